"""Random requests, for a store and for the pure machine: both must answer the same.

Everything is compared but tokens, which are random, and places, of which only the order counts.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from leasedkeyq.errors import KeyAlreadyInFlightError, LeasedKeyQError, QueueFullError
from leasedkeyq.stores.contract import (
    Ack,
    Bury,
    Cancel,
    Change,
    Claim,
    Claimed,
    Counts,
    Extend,
    Limits,
    Purge,
    Put,
    Refusal,
    Release,
    Requeue,
    StoredItem,
    StoredState,
)
from leasedkeyq.stores.machine import StoreMachine
from leasedkeyq.stores.store import Store

LIMITS = Limits(buried=3, history=3)
QUEUES = ("mail", "mäil", "other")
KEYS = ("a", "ab", "b", "c", "ö", "%_")
EVERYTHING: tuple[StoredState, ...] = (
    "available",
    "scheduled",
    "in_flight",
    "buffered",
    "buried",
    "done",
)


class FakeClock:
    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@dataclass
class Held:
    """A lease, by the token of the machine and the token of the store."""

    queue: str
    key: str
    expected: str
    actual: str


class Differential:
    """Drives a store and a machine with the same requests at the same times.

    Several store objects on the same data take turns at random.
    """

    def __init__(self, stores: Sequence[Store], clock: FakeClock, seed: int) -> None:
        self.stores = list(stores)
        self.clock = clock
        self.machine = StoreMachine(self.stores[0].limits)
        self.random = random.Random(seed)
        self.held: list[Held] = []
        self.log: list[str] = []

    @property
    def store(self) -> Store:
        return self.random.choice(self.stores)

    async def run(self, steps: int) -> None:
        choices = [self.put] * 4 + [self.claim] * 4 + [self.settle] * 6 + [self.wait] * 2
        choices += [self.sweep, self.look, self.compare]
        for _ in range(steps):
            await self.random.choice(choices)()
        await self.compare()

    async def wait(self) -> None:
        self.clock.now += self.random.choice((0.25, 0.5, 1.0, 1.0, 2.0, 7.0))

    # Requests

    async def put(self) -> None:
        requests = [self._put() for _ in range(self.random.choice((1, 1, 1, 3)))]
        expected = [self.machine.put(request, self.clock.now) for request in requests]
        actual = await self.store.put(requests)
        self.same(requests, expected, actual)

    def _put(self) -> Put:
        pick = self.random.choice
        count = pick((1, 1, 1, 2, 4))
        items = tuple((pick(KEYS), b"%d" % self.random.randrange(1000)) for _ in range(count))
        return Put(
            pick(QUEUES),
            items,
            pick(("update", "update", "reject", "buffer", "buffer")),
            pick((None, None, None, 0, 1, -1, 5)),
            pick((None, None, None, None, 0, 0.5, 1.0, 3.0)),
            pick((0, 0, 0, 3, 5)),
        )

    async def claim(self) -> None:
        requests = [self._claim() for _ in range(self.random.choice((1, 1, 1, 3)))]
        if len(requests) > 1 and self.random.random() < 0.5:
            requests = [requests[0], requests[0], *requests]  # a store may serve equals together
        expected = [self.machine.claim(request, self.clock.now) for request in requests]
        actual = await self.store.claim(requests)
        for mine, yours in zip(expected, actual, strict=True):
            for one, other in zip(mine, yours, strict=True):
                self.held.append(Held(one.queue, one.key, one.token, other.token))
        self.same(requests, [_bare(c) for c in expected], [_bare(c) for c in actual])
        del self.held[:-30]

    def _claim(self) -> Claim:
        pick = self.random.choice
        queues = self.random.sample(QUEUES, pick((1, 1, 1, 2, 3)))
        limits = tuple((queue, pick((1, 1, 2, 3, 0))) for queue in queues)
        key = pick((None, None, None, *KEYS))
        return Claim(limits, pick((1, 1, 2, 4)), key, pick((None, 0.5, 1.0, 1.0, 2.0, 5.0, 0.0)))

    async def settle(self) -> None:
        pairs = [self._change() for _ in range(self.random.choice((1, 1, 1, 3)))]
        requests = [mine for mine, _ in pairs]
        expected = [self.machine.settle(mine, self.clock.now) for mine in requests]
        actual = await self.store.settle([yours for _, yours in pairs])
        self.same(requests, expected, actual)

    def _change(self) -> tuple[Change, Change]:
        pick = self.random.choice
        kind = pick("aaarrruubbexcqqp" if self.random.random() < 0.3 else "aarrrruuubbeexcqq")
        queue = pick(QUEUES)
        if kind == "c":
            change = Cancel(queue, pick(KEYS))
            return change, change
        if kind == "q":
            buried = (
                list(self.machine.spaces[queue].state.buried.values())
                if (queue in self.machine.spaces)
                else []
            )
            number = pick(buried).value.id if buried else self.random.randrange(50)
            requeue = Requeue(
                queue, number, pick(("update", "reject", "buffer")), pick((0, 0, 2, 4))
            )
            return requeue, requeue
        if kind == "p":
            purge = Purge(queue, pick(("buried", "results", "all")))
            return purge, purge
        # The latest leases are the likely ones to be valid.
        recent = self.held[-pick((1, 3, 6, 30)) :]
        held = pick(recent) if recent else Held(queue, pick(KEYS), "nobody", "no one")
        mine = self._settling(kind, held)
        return mine, msgspec.structs.replace(mine, token=held.actual)

    def _settling(self, kind: str, held: Held) -> Ack | Release | Extend | Bury:
        pick = self.random.choice
        names = (held.queue, held.key, held.expected)
        if kind == "a":
            return Ack(*names, pick((None, b'"done"')), pick((0.0, 0.0, 1.0, 4.0)))
        if kind == "r":
            delay = pick((0.0, 0.0, 1.0, 2.0))
            return Release(*names, pick((False, True)), delay, pick(("", "öops")))
        if kind == "u":
            return Release(*names, undo=True)
        if kind == "b":
            return Bury(*names, pick(("", "bad")))
        return Extend(*names, pick((None, 0.5, 1.0, 3.0)))

    # Looking

    async def sweep(self) -> None:
        queue = self.random.choice((*QUEUES, "nowhere"))
        moment = self.machine.sweep(queue, self.clock.now)
        expected = None if moment is None else moment - self.clock.now
        self.same([("sweep", queue)], [expected], [await self.store.sweep(queue)])

    async def look(self) -> None:
        queue = self.random.choice(QUEUES)
        keys = self.random.sample(KEYS, 3)
        expected = [self.machine.look(queue, key, self.clock.now) for key in keys]
        actual = await self.store.look(queue, keys)
        bare = [[_without_place(item) for item in found] for found in expected]
        self.same(keys, bare, [[_without_place(item) for item in found] for found in actual])

    async def compare(self) -> None:
        """All that can be seen is the same."""
        now = self.clock.now
        for queue in (*QUEUES, "nowhere"):
            expected = self.machine.browse(queue, EVERYTHING, "", now)
            actual = await self.browse(queue, EVERYTHING, "")
            self.same([("browse", queue)], [_ranked(expected)], [_ranked(actual)])
            states = self.random.sample(EVERYTHING, 2)
            prefix = self.random.choice(("", "a", "%", "ö"))
            some = self.machine.browse(queue, states, prefix, now)
            others = await self.browse(queue, states, prefix)
            self.same([(queue, states, prefix)], [_ranked(some)], [_ranked(others)])
            ids = [item.id for item in expected[:5]]
            done = [self.machine.result(queue, number, now) for number in ids]
            self.same(ids, done, await self.store.results(queue, ids))
        counts = {queue: self.machine.count(queue, now) for queue in QUEUES}
        self.same(["count"], [counts], [dict(await self.store.count(QUEUES))])
        filled = {queue: count for queue, count in counts.items() if count != Counts()}
        everywhere = dict(await self.store.count())
        found = {queue: count for queue, count in everywhere.items() if count != Counts()}
        self.same(["count all"], [filled], [found])

    async def browse(
        self, queue: str, states: Sequence[StoredState], prefix: str
    ) -> list[StoredItem]:
        """All pages."""
        limit = self.random.choice((1, 2, 100))
        items: list[StoredItem] = []
        cursor: str | None = None
        while True:
            page = await self.store.browse(
                queue, states=states, prefix=prefix, cursor=cursor, limit=limit
            )
            items += page.items
            cursor = page.cursor
            if cursor is None:
                return items

    def same(self, requests: Sequence[Any], expected: Sequence[Any], actual: Sequence[Any]) -> None:
        for request, mine, yours in zip(requests, expected, actual, strict=True):
            self.log.append(f"{self.clock.now}: {request} -> {mine}")
            if _comparable(mine) != _comparable(yours):
                past = "\n".join(self.log[-30:])
                raise AssertionError(f"{past}\n{request}\nexpected {mine}\n     got {yours}")


def _comparable(answer: Any) -> Any:
    if isinstance(answer, KeyAlreadyInFlightError):
        return (type(answer), str(answer), answer.keys)
    if isinstance(answer, QueueFullError):
        return (type(answer), str(answer), answer.maxsize)
    if isinstance(answer, Refusal):
        return (type(answer), answer.key)
    if isinstance(answer, LeasedKeyQError):
        return (type(answer), str(answer))
    if isinstance(answer, bool):
        return (bool, answer)
    return answer


def _bare(claimed: Sequence[Claimed]) -> list[Claimed]:
    return [msgspec.structs.replace(item, token="") for item in claimed]


def _without_place(item: StoredItem) -> StoredItem:
    return msgspec.structs.replace(item, place=0)


def _ranked(items: Sequence[StoredItem]) -> list[StoredItem]:
    """Places as ranks within their priority."""
    available = sorted(
        (item for item in items if item.state == "available"), key=lambda item: item.place
    )
    ranks: dict[int, int] = {}
    taken: dict[int, int] = {}
    for item in available:
        taken[item.priority] = ranks[item.id] = taken.get(item.priority, 0) + 1
    return [msgspec.structs.replace(item, place=ranks.get(item.id, 0)) for item in items]
