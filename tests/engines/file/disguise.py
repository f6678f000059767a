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
from leasedkeyq.model.requests import (
    Ack,
    Answer,
    Cancel,
    Change,
    Claim,
    Claimed,
    EditWork,
    Page,
    Put,
    StoredItem,
    StoredState,
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


def _wrap(request: Any) -> Any:
    if isinstance(request, Put):
        items = tuple((key, live(value)) for key, value in request.items)
        return msgspec.structs.replace(request, items=items)
    if isinstance(request, Ack | Cancel) and request.keep > 0:
        value = b"null" if request.result is None else request.result
        return msgspec.structs.replace(request, result=finished(request.key, value))
    return request


class Disguise(FileStore):
    """One queue of a repository, with values of any kind."""

    async def put(self, requests: Sequence[Put]) -> list[Any]:
        return await super().put([_wrap(request) for request in requests])

    async def claim(self, requests: Sequence[Claim]) -> list[tuple[Claimed, ...]]:
        return [tuple(map(unwrap, found)) for found in await super().claim(requests)]

    async def settle(self, requests: Sequence[Change]) -> list[Answer]:
        return await super().settle([_wrap(request) for request in requests])

    async def edit(
        self, queue: str, work: EditWork, *, keys: Sequence[str] | None = None
    ) -> list[Answer]:
        def wrapped(items: Sequence[StoredItem]) -> list[Any]:
            return [_wrap(change) for change in work([unwrap(item) for item in items])]

        return await super().edit(queue, wrapped, keys=keys)

    async def heads(self, queues: Sequence[str]) -> list[StoredItem | None]:
        return [unwrap(item) for item in await super().heads(queues)]

    async def look(self, queue: str, keys: Sequence[str]) -> list[tuple[StoredItem, ...]]:
        return [tuple(map(unwrap, found)) for found in await super().look(queue, keys)]

    async def browse(
        self,
        queue: str,
        *,
        states: Sequence[StoredState] = ("available", "scheduled", "in_flight", "buffered"),
        prefix: str = "",
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page:
        page = await super().browse(queue, states=states, prefix=prefix, cursor=cursor, limit=limit)
        return Page(tuple(map(unwrap, page.items)), page.cursor)

    async def results(self, queue: str, ids: Sequence[int]) -> list[StoredItem | None]:
        return [unwrap(item) for item in await super().results(queue, ids)]
