"""Short ways to say what checks say often. All of it is about the queue ``"q"``."""

from collections.abc import Awaitable, Sequence
from typing import Any, cast

from leasedkeyq.model.requests import (
    Answer,
    Change,
    Claim,
    Claimed,
    Counts,
    Placed,
    Put,
    Refusal,
    StoredItem,
    StoredState,
)
from leasedkeyq.stores.store import Store

SHORT = 1.0
"""A lease time or a delay that passes soon, in seconds."""
LONG = 600.0
"""One that does not pass during a check."""

EVERY_STATE: tuple[StoredState, ...] = (
    "available",
    "scheduled",
    "in_flight",
    "buffered",
    "in_line",
    "buried",
    "done",
)


def one(key: str, value: bytes = b"1", **options: Any) -> Put:
    """A put of one item."""
    return Put("q", ((key, value),), **options)


def next_items(limit: int = 1, lease_time: float | None = LONG, **options: Any) -> Claim:
    """A claim of the next items."""
    return Claim((("q", limit),), limit, None, lease_time, **options)


def of_key(key: str, lease_time: float | None = LONG) -> Claim:
    """A claim of one key."""
    return Claim((("q", 1),), 1, key, lease_time)


async def put_one(store: Store, put: Put) -> Placed:
    """Put one item that must not be refused."""
    [answer] = await store.put([put])
    assert isinstance(answer, tuple), f"{put} was refused: {answer!r}"
    assert len(answer) == 1, f"{put} was answered by {answer!r}"
    return answer[0]


async def append(store: Store, key: str, count: int) -> list[int]:
    """Append ``b"0"``, ``b"1"`` and so on to a key; their ids."""
    [answer] = await store.put(
        [Put("q", tuple((key, b"%d" % number) for number in range(count)), "append")]
    )
    return [placed.id for placed in placed_by(answer)]


def placed_by(answer: object) -> tuple[Placed, ...]:
    """Where a put has left its values, from its answer, which must not be a refusal."""
    answered = cast("tuple[object, ...]", answer) if type(answer) is tuple else (answer,)
    placed = tuple(each for each in answered if isinstance(each, Placed))
    assert len(placed) == len(answered), f"a put was answered by {answer!r}"
    return placed


async def line_of(store: Store, key: str) -> list[StoredItem]:
    """The head of a key and its line."""
    return list((await store.line("q", key, limit=1000)).items)


async def values_of(store: Store, key: str) -> list[bytes]:
    """The values of a key, in order."""
    return [item.value for item in await line_of(store, key)]


async def claim_one(store: Store, request: Claim | None = None) -> Claimed:
    """Claim one item that must be there."""
    claimed = await claim(store, request or next_items())
    assert len(claimed) == 1, f"one item was to be claimed, got {claimed}"
    return claimed[0]


async def claim(store: Store, request: Claim) -> tuple[Claimed, ...]:
    """Claim, by one request."""
    [claimed] = await store.claim([request])
    return claimed


async def settle(store: Store, *changes: Change) -> list[Answer]:
    """Settle what must not be refused."""
    answers = await store.settle(changes)
    for change, answer in zip(changes, answers, strict=True):
        assert not isinstance(answer, Exception), f"{change} was refused: {answer!r}"
    return answers


async def refused(store: Store, changes: Sequence[Change]) -> None:
    """Settle what must be refused, because the lease does not hold its key."""
    for change, answer in zip(changes, await store.settle(changes), strict=True):
        assert isinstance(answer, Refusal), f"{change} was not refused but answered {answer!r}"


async def everything(store: Store, *states: StoredState) -> list[StoredItem]:
    """The items in some states, or in all."""
    page = await store.browse("q", states=states or EVERY_STATE, limit=100_000)
    return list(page.items)


async def order(store: Store) -> list[str]:
    """The available keys in the order in which they would be handed out."""
    items = await everything(store, "available")
    return [i.key for i in sorted(items, key=lambda i: (-i.priority, i.place))]


async def counts(store: Store) -> Counts:
    """How many items there are."""
    return (await store.count(["q"])).get("q", Counts())


async def expect(error: type[BaseException], call: Awaitable[Any]) -> None:
    """Await `call`, which must raise `error`."""
    try:
        answer = await call
    except error:
        return
    raise AssertionError(f"{error.__name__} was not raised but {answer!r} returned")
