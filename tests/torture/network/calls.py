"""The calls that are disturbed: how each is prepared and made, and what it leaves behind.

Each works on a key of its own, so that what became of it can be seen apart from the others. What
it should leave behind is not written down here: a store in memory, where nothing is disturbed, is
prepared in the same way and asked for the same.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from leasedkeyq.model.requests import (
    Ack,
    Bury,
    Cancel,
    Change,
    Claim,
    Claimed,
    Extend,
    Put,
    Release,
    StoredItem,
)
from leasedkeyq.stores import Store

LONG: Final = 1000.0
"""Seconds of leases that do not expire, and by which times are told apart."""
KEPT: Final = 100 * LONG

Made = Callable[[], Awaitable[Any]]


@dataclass(frozen=True)
class Place:
    """Where a call is made."""

    store: Store
    queue: str
    key: str
    lease_time: float = LONG

    async def put(self, value: str, policy: Any = "append") -> Any:
        [answer] = await self.store.put([Put(self.queue, ((self.key, value.encode()),), policy)])
        return answer

    async def take(self) -> tuple[Claimed, ...]:
        claim = Claim(((self.queue, 1),), 1, self.key, self.lease_time)
        [claimed] = await self.store.claim([claim])
        return claimed

    async def hold(self) -> str:
        """Put a value and another one behind it, and lease the first; returns the token."""
        await self.put('"first"')
        await self.put('"second"')
        [claimed] = await self.take()
        return claimed.token

    async def settle(self, change: Change) -> Any:
        [answer] = await self.store.settle([change])
        return answer

    def through(self, store: Store) -> "Place":
        """The same place, reached in another way."""
        return Place(store, self.queue, self.key, self.lease_time)


Prepare = Callable[[Place], Awaitable[Any]]
"""Brings about what the call needs, and returns what the call has to know: a token."""
Make = Callable[[Place, Any], Awaitable[Any]]
"""Makes the call. What it returns is the same on every store, and differs if it is made twice."""


@dataclass(frozen=True)
class Verb:
    """A call."""

    prepare: Prepare
    make: Make
    repeatable: bool = False
    """Whether to call again is right after an error that does not say whether it was made."""
    requests: int = 1
    """How many requests the call makes of a server, at most: which of them is disturbed differs."""
    may_fail: bool = False
    """Whether it may fail though it has patience: what it has begun cannot be begun again."""


async def _nothing(place: Place) -> None:
    return None


async def _leased(place: Place) -> None:
    await place.hold()


async def _waiting(place: Place) -> None:
    await place.put('"first"')
    await place.put('"second"')


async def _put(place: Place, _: Any) -> Any:
    return [placed.outcome for placed in await place.put('"new"', "update")]


async def _append(place: Place, _: Any) -> Any:
    return [placed.outcome for placed in await place.put('"new"', "append")]


async def _buffer(place: Place, _: Any) -> Any:
    return [placed.outcome for placed in await place.put('"new"', "buffer")]


async def _claim(place: Place, _: Any) -> Any:
    claim = Claim(((place.queue, 1),), 1, None, LONG)
    [claimed] = await place.store.claim([claim])
    return [(item.value, item.attempt) for item in claimed]


async def _several(place: Place) -> None:
    """Keys in a queue that no other call is about: which one is leased is known then."""
    items = tuple((f"{place.key}-{number}", b"%d" % number) for number in range(3))
    await place.store.put([Put(place.queue, items)])


async def _take(place: Place, _: Any) -> Any:
    return [(item.value, item.attempt) for item in await place.take()]


async def _ack(place: Place, token: str) -> Any:
    return await place.settle(Ack(place.queue, place.key, token))


async def _keep(place: Place, token: str) -> Any:
    return await place.settle(Ack(place.queue, place.key, token, b'"result"', KEPT))


async def _release(place: Place, token: str) -> Any:
    return await place.settle(Release(place.queue, place.key, token, error="again"))


async def _extend(place: Place, token: str) -> Any:
    answer = await place.settle(Extend(place.queue, place.key, token, 5 * LONG, b'"half"'))
    return answer if isinstance(answer, Exception) else "extended"


async def _bury(place: Place, token: str) -> Any:
    answer = await place.settle(Bury(place.queue, place.key, token, "no use"))
    return answer if isinstance(answer, Exception) else "buried"


async def _remove(place: Place, _: Any) -> Any:
    return await place.settle(Cancel(place.queue, place.key, b'"gone"', KEPT))


async def _edit(place: Place, _: Any) -> Any:
    """Looks at the key, and appends the number of its values."""
    calls = 0

    def work(items: Sequence[StoredItem]) -> list[Put | Change]:
        nonlocal calls
        calls += 1
        value = b"%d" % len(items)
        return [Put(place.queue, ((place.key, value),), "append")]

    answers = await place.store.edit(place.queue, work, keys=[place.key])
    return [placed.outcome for answer in answers for placed in _tuple(answer)], calls


def _tuple(answer: Any) -> tuple[Any, ...]:
    assert isinstance(answer, tuple), answer
    found: tuple[Any, ...] = answer
    return found


async def _token(place: Place) -> str:
    return await place.hold()


VERBS: Final[dict[str, Verb]] = {
    "put": Verb(_nothing, _put),
    "put behind others": Verb(_waiting, _append),
    "put beside a lease": Verb(_leased, _buffer),
    "claim": Verb(_several, _claim),
    "take": Verb(_waiting, _take),
    "ack": Verb(_token, _ack, repeatable=True),
    "ack with a result": Verb(_token, _keep, repeatable=True),
    "release": Verb(_token, _release, repeatable=True),
    "extend": Verb(_token, _extend, repeatable=True),
    "bury": Verb(_token, _bury, repeatable=True),
    "remove": Verb(_waiting, _remove, repeatable=True),
    "edit": Verb(_waiting, _edit, requests=8, may_fail=True),
}

Shown = list[tuple[Any, ...]]


def show(items: Sequence[StoredItem], now: float) -> Shown:
    """What is left of a key, without what differs between two stores: ids, tokens, moments."""
    return sorted(
        (
            item.key,
            item.state,
            item.value,
            item.attempt,
            item.error,
            [(past.number, past.how, past.error) for past in item.history],
            item.progress,
            item.outcome,
            None if item.due is None else round((item.due - now) / LONG),
        )
        for item in items
    )


async def left_behind(place: Place) -> Shown:
    """What is left of the key of a call, in whatever state, and of those that begin with it."""
    states: Any = ("available", "scheduled", "in_flight", "buffered", "buried", "done", "in_line")
    page = await place.store.browse(place.queue, states=states, prefix=place.key, limit=100)
    return show(page.items, time.time())
