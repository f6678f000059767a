"""The file store with a repository's document, disguised as one that takes values of any kind.

So whatever tests a store can test that document as well. The values of the caller are wrapped into
the values of items, with one or another of the fields that an item may have, and unwrapped when
they come back; on the way each one is checked to be the same, field by field.
"""

import base64
import json
from collections.abc import Sequence
from typing import Any

import msgspec

from leasedkeyq.engines.file.store import FileStore
from leasedkeyq.errors import StoreError
from leasedkeyq.model.edit import Edit
from leasedkeyq.model.requests import (
    Ack,
    Amend,
    Answer,
    Cancel,
    Change,
    Claim,
    Claimed,
    Put,
    StoredItem,
)

CREATED = "2026-11-16T00:31:33.123456+00:00"
OPTIONAL: tuple[dict[str, object], ...] = (
    {},
    {"error_message": "boom: ö"},
    {"retry_count": 4},
    {"retry_count": -2, "started_at": "2026-11-15T23:59:59+00:00"},
    {"scheduled_at": "2020-01-01T00:00:00.500000+01:00"},
    {"scheduled_at": "2099-01-01T00:00:00+00:00", "completed_at": CREATED, "error_message": "x"},
)


def live(value: bytes) -> bytes:
    """The value of an item that is not done."""
    return json.dumps(_live(value), ensure_ascii=False).encode()


def _live(value: bytes) -> dict[str, object]:
    return {
        "type": "mail",
        "payload": {
            "raw": base64.b64encode(value).decode(),
            "one": 1e16,
            "two": [None, "\x85# \t"],
        },
        "created_at": CREATED,
        "max_retries": sum(value) % 5,
        "metadata": {"a: b": {"c": []}},
        **OPTIONAL[sum(value) % len(OPTIONAL)],
    }


def finished(key: str, value: bytes) -> bytes:
    """The value of an item that is done."""
    return json.dumps(_finished(key, value)).encode()


def _finished(key: str, value: bytes) -> dict[str, object]:
    return {
        "id": key,
        "type": "mail",
        "payload": {"raw": base64.b64encode(value).decode()},
        "status": ("completed", "cancelled", "failed")[sum(value) % 3],
        "created_at": CREATED,
        "priority": sum(value) % 7,
        "scheduled_at": None,
        "started_at": "2026-11-16T00:31:34+00:00",
        "completed_at": "2026-11-16T00:31:35.000001+00:00",
        "retry_count": 1,
        "max_retries": 3,
        "error_message": None,
        "metadata": {},
    }


def unwrap(item: Any) -> Any:
    """An answer with the value that the caller had given."""
    if not isinstance(item, StoredItem | Claimed):
        return item
    found = json.loads(item.value)
    value = base64.b64decode(found["payload"]["raw"])
    done = isinstance(item, StoredItem) and item.state == "done"
    assert found == (_finished(item.key, value) if done else _live(value))
    return msgspec.structs.replace(item, value=value)


def wrap(request: Any) -> Any:
    """A request with values that have their place in the document of a repository."""
    if isinstance(request, Put):
        items = tuple((key, live(value)) for key, value in request.items)
        return msgspec.structs.replace(request, items=items)
    if isinstance(request, Amend) and request.value is not None:
        return msgspec.structs.replace(request, value=live(request.value))
    if isinstance(request, Ack | Cancel) and request.keep > 0:
        value = b"null" if request.result is None else request.result
        return msgspec.structs.replace(request, result=finished(request.key, value))
    return request


class Disguise(FileStore):
    """One queue of a repository, with values of any kind."""

    async def do_put(self, requests: Sequence[Put]) -> list[Any]:
        return await super().do_put([wrap(request) for request in requests])

    async def do_claim(self, requests: Sequence[Claim]) -> list[Any]:
        return [_unwrap_all(found) for found in await super().do_claim(requests)]

    async def do_settle(self, requests: Sequence[Change]) -> list[Answer]:
        return await super().do_settle([wrap(request) for request in requests])

    async def do_edit(self, edit: Edit) -> list[Answer] | StoreError:
        work = edit.work

        def wrapped(items: Sequence[StoredItem]) -> list[Any]:
            return [wrap(change) for change in work([unwrap(item) for item in items])]

        edit.work = wrapped
        return await super().do_edit(edit)

    async def do_heads(self, queues: Sequence[str]) -> Any:
        return _unwrap_all(await super().do_heads(queues))

    async def do_look(self, queue: str, keys: Sequence[str]) -> Any:
        found = await super().do_look(queue, keys)
        return found if isinstance(found, StoreError) else [*map(_unwrap_all, found)]

    async def do_line(self, *listing: Any) -> Any:
        return _unwrap_all(await super().do_line(*listing))

    async def do_browse(self, *listing: Any, **named: Any) -> Any:
        return _unwrap_all(await super().do_browse(*listing, **named))

    async def do_results(self, queue: str, ids: Sequence[int]) -> Any:
        return _unwrap_all(await super().do_results(queue, ids))


def _unwrap_all(found: Any) -> Any:
    return found if isinstance(found, StoreError) else type(found)(map(unwrap, found))
