"""A store with items in every state, always the same: what frozen copies have in them."""

import itertools
import os
import secrets
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, Final
from unittest.mock import patch

import msgspec

from leasedkeyq.model.requests import (
    Ack,
    Bury,
    Cancel,
    Cap,
    Change,
    Claim,
    Claimed,
    Extend,
    Put,
    Release,
    StoredItem,
)
from leasedkeyq.stores import Store
from leasedkeyq.testing import ManualClock
from leasedkeyq.testing.shorthand import EVERY_STATE

THEN: Final = 1_700_000_000.0
"""When the store was filled."""
LATER: Final = 1000.0
QUEUES: Final = ("mail", "other")
HOLDER: Final = "web-1:4242"


@contextmanager
def no_chance() -> Generator[None]:
    """Tokens and secrets are numbers in a row."""
    numbers = itertools.count(1)

    def some_bytes(many: int) -> bytes:
        return next(numbers).to_bytes(many, "big")

    def some_hex(many: int | None = None) -> str:
        return some_bytes(many or 32).hex()

    with patch.object(os, "urandom", some_bytes), patch.object(secrets, "token_hex", some_hex):
        yield


async def fill(store: Store, clock: ManualClock) -> dict[str, str]:
    """Leave items in every state behind; return the tokens of the leases, by key."""
    clock.now = THEN
    await put(store, ("gone", "result", "failed", "again", "held", "both", "buffers", "stops"))
    tokens: dict[str, str] = {}
    for item in await claim(store, 8):
        tokens[item.key] = item.token
    await store.put([Put("mail", (("both", b'"second"'), ("both", b'"third"')), "append")])
    await store.put([Put("mail", (("buffers", b'"newer"'),), "buffer", priority=2)])
    await store.put([Put("mail", (("stops", b'"behind"'),), "append")])
    clock.now += 1
    await settle(
        store,
        Bury("mail", "gone", tokens.pop("gone"), "it broke"),
        Bury("mail", "stops", tokens.pop("stops"), "it holds", hold=True),
        Ack("mail", "result", tokens.pop("result"), b'"done"', LATER),
        Ack("mail", "failed", tokens.pop("failed"), b'"no"', LATER, "failed"),
        Release("mail", "again", tokens.pop("again"), error="not now"),
        Extend("mail", "held", tokens["held"], LATER, b'{"percent":40}'),
    )
    clock.now += 1
    await put(store, ("free",))
    await store.put([Put("mail", (("urgent", b"[1,2]"),), priority=5, kind="call")])
    await store.put([Put("mail", (("later", b"2.5"),), delay=100.0)])
    await store.put([Put("mail", (("dated", b"1"),), deadline=50.0)])
    await put(store, ("recalled",))
    await settle(store, Cancel("mail", "recalled", b'"recalled"', LATER))
    await store.put([Put("other", (("limited", b"null"), ("free", b"null")))])
    cap = Cap("other", "limited", rate=0.5, burst=2)
    [[limited]] = await store.claim(
        [Claim((("other", 1),), 1, lease_time=LATER, caps=(cap,), holder=HOLDER)]
    )
    await settle(store, Ack("other", "limited", limited.token))
    return tokens


async def put(store: Store, keys: Sequence[str]) -> None:
    items = tuple((key, msgspec.json.encode(f"value of {key}")) for key in keys)
    await store.put([Put("mail", items)])


async def claim(store: Store, many: int) -> Sequence[Claimed]:
    [claimed] = await store.claim([Claim((("mail", many),), many, lease_time=LATER, holder=HOLDER)])
    return claimed


async def settle(store: Store, *changes: Change) -> None:
    for change in changes:
        [answer] = await store.settle([change])
        assert not isinstance(answer, Exception), (change, answer)


async def contents(store: Store) -> list[dict[str, Any]]:
    """All items of the queues, as plain as JSON has them."""
    found: list[dict[str, Any]] = []
    for queue in QUEUES:
        page = await store.browse(queue, states=EVERY_STATE, limit=1000)
        found += map(plain, page.items)
    return found


def plain(item: StoredItem) -> dict[str, Any]:
    """An item without the fields that say nothing."""
    fields: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(item))
    return {k: v for k, v in fields.items() if k == "state" or v != NOTHING[k]}


NOTHING: Final[dict[str, Any]] = msgspec.json.decode(
    msgspec.json.encode(StoredItem(id=0, queue="", key="", state="done", value=b""))
)
