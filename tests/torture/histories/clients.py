"""Clients of one queue, whose calls are written down."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final, TypeVar

from leasedkeyq import (
    InvalidLeaseError,
    KeyAlreadyInFlightError,
    KeyAlreadyPresentError,
    Lease,
    LeaseAlreadyAcknowledgedError,
    StoreError,
)
from leasedkeyq.model.requests import StoredItem
from leasedkeyq.stores.queue.store_queue import StoreQueue
from tests.torture.histories.faults import BadLine, Line
from tests.torture.histories.history import Answer, Call, Leased, Recorder, Seen
from tests.torture.histories.sites import Site

T = TypeVar("T")

CLIENTS: Final = 8
POLICIES: Final[dict[str, dict[str, str]]] = {
    "update": {},
    "reject": {"if_in_flight": "reject"},
    "buffer": {"if_present": "update"},
    "append": {"if_present": "append"},
    "skip": {"if_present": "skip"},
    "only_new": {"if_present": "reject"},
}
"""How a put says them."""
REFUSALS: Final = (
    InvalidLeaseError,
    KeyAlreadyInFlightError,
    KeyAlreadyPresentError,
    LeaseAlreadyAcknowledgedError,
)


@dataclass(frozen=True)
class Workload:
    """What the clients of one history do.

    Attributes:
        keys: The keys of the queue.
        policies: Those that puts choose from.
        lease_times: Those that claims and extensions choose from; None: for ever.
        pause: Seconds between two calls of a client, at most.
        wait: Seconds for which a claim waits, at most.
        cancels: The share of calls that are cancelled.
        calls: How many each client makes.
        line: How bad their connections are.
    """

    keys: tuple[str, ...]
    policies: tuple[str, ...]
    lease_times: tuple[float | None, ...]
    pause: float
    wait: float
    cancels: float
    calls: int
    line: Line

    @classmethod
    def chosen_by(cls, dice: Random, unit: float) -> "Workload":
        """One of many kinds of histories.

        Args:
            unit: Seconds that are short for the store: about what a call takes.
        """
        # Each put of a line is seen, and each put of a newest value is overwritten by the next:
        # a history of one kind sees more of it than one of all.
        mixes = (
            ("append",),
            ("append", "append", "buffer", "update"),
            ("update",),
            ("update", "buffer", "reject"),
            ("buffer",),
            tuple(POLICIES),
        )
        faulty = dice.random() < 0.7
        return cls(
            keys=("a", "b", "c")[: dice.choice((1, 1, 2, 3))],
            policies=dice.choice(mixes),
            lease_times=dice.choice(((4 * unit, 8 * unit), (2 * unit, 20 * unit), (1000 * unit,))),
            pause=dice.choice((0, 2, 4)) * unit,
            wait=dice.choice((0, 0, 4)) * unit,
            cancels=dice.choice((0.05, 0.12)) if faulty else 0,
            calls=dice.choice((5, 5, 6, 7)),
            line=Line(
                dice.choice((0, 1, 2)) * unit,
                dice.choice((0, 0.03)) if faulty else 0,
                dice.choice((0, 0.03, 0.1)) if faulty else 0,
            ),
        )

    def without_faults(self) -> "Workload":
        """The same, but each call is answered."""
        return replace(self, cancels=0, line=Line())


class Client:
    """Makes calls, one after the other, and remembers the leases that it was given."""

    def __init__(
        self, number: int, site: Site, queue: str, *, work: Workload, record: Recorder, seed: str
    ) -> None:
        place = number % len(site.stores)
        self._number = number
        self._dice = Random(f"{seed} client {number}")
        self._work = work
        self._record = record
        self._repeated = place in site.repeating
        self._store = BadLine(site.stores[place], work.line, Random(f"{seed} line {number}"))
        self._queue: StoreQueue[str] = self._store.queue(queue)
        self._leases: list[tuple[int, Lease[str]]] = []
        """Each with the number of the claim that gave it. Those that have ended stay here."""
        self._puts = 0

    async def run(self) -> None:
        for _ in range(self._work.calls):
            await asyncio.sleep(self._dice.random() * self._work.pause)
            await self._call()

    async def look_back(self) -> None:
        """See what is there at the end, when nobody else does anything."""
        for key in self._work.keys:
            await self._line(key)
            await self._claim(key, 0.0)

    async def _call(self) -> None:
        dice = self._dice
        if self._leases and dice.random() < 0.6:
            await self._settle()
            return
        chance = dice.random()
        if chance < 0.4:
            await self._put()
        elif chance < 0.8:
            wait = dice.random() * self._work.wait if dice.random() < 0.5 else 0.0
            await self._claim(dice.choice(self._work.keys) if dice.random() < 0.5 else None, wait)
        elif chance < 0.95:
            await self._look()
        else:
            await self._remove()

    async def _put(self) -> None:
        dice, work = self._dice, self._work
        self._puts += 1
        key, policy = dice.choice(work.keys), dice.choice(work.policies)
        value = f"{self._number}.{self._puts}"
        number = self._record.begin(self._number, "put", key, value=value, policy=policy)
        options: dict[str, Any] = POLICIES[policy]
        await self._answered(number, self._queue.put(key, value, **options), str)

    async def _claim(self, key: str | None, wait: float) -> None:
        lease_time = self._dice.choice(self._work.lease_times)
        number = self._record.begin(
            self._number,
            "claim",
            key,
            lease_time=lease_time,
            waits=wait > 0,
            repeated=self._repeated,
        )
        asked = (
            self._queue.get(wait, lease_timeout=lease_time)
            if key is None
            else self._queue.take(key, wait, lease_timeout=lease_time)
        )
        got = await self._outcome(asked)
        if isinstance(got, TimeoutError):
            self._record.end(number, "empty")
        elif not isinstance(got, BaseException):
            key, value, lease = got
            self._leases.append((number, lease))
            answer = Leased(value, lease.fence, lease.attempt, lease.expires_at)
            self._record.end(number, answer, key)

    async def _settle(self) -> None:
        dice, work = self._dice, self._work
        # Mostly the lease that the client holds; sometimes one that it has held long ago.
        place = -1 if dice.random() < 0.8 else dice.randrange(len(self._leases))
        claim, lease = self._leases[place]
        chance = dice.random()
        key = lease.key
        if chance < 0.45:
            number = self._record.begin(self._number, "ack", key, lease=claim)
            await self._answered(number, self._queue.ack(lease), lambda _: "done")
        elif chance < 0.75:
            front = dice.random() < 0.5
            number = self._record.begin(self._number, "release", key, lease=claim)
            released = self._queue.release(lease, requeue_front=front)
            await self._answered(number, released, lambda _: "done")
        else:
            lease_time = dice.choice(work.lease_times)
            number = self._record.begin(
                self._number, "extend", key, lease=claim, lease_time=lease_time
            )
            extended = self._queue.extend(lease, lease_time)
            await self._answered(number, extended, lambda _: lease.expires_at or "done")

    async def _look(self) -> None:
        key = self._dice.choice(self._work.keys)
        if self._dice.random() < 0.5:
            number = self._record.begin(self._number, "look", key)
            looked = self._store.look(self._queue.name, [key])
            await self._answered(number, looked, lambda found: _seen(found[0]))
        else:
            await self._line(key)

    async def _line(self, key: str) -> None:
        number = self._record.begin(self._number, "line", key)
        line = self._store.line(self._queue.name, key)
        await self._answered(number, line, lambda page: _seen(page.items))

    async def _remove(self) -> None:
        key = self._dice.choice(self._work.keys)
        number = self._record.begin(self._number, "remove", key)
        removed = self._queue.remove(key)
        await self._answered(number, removed, lambda was: "done" if was else "absent")

    async def _answered(
        self, number: int, asked: Awaitable[T], answer: Callable[[T], Answer]
    ) -> None:
        """Note the answer to a call, if there is one."""
        got = await self._outcome(asked)
        if isinstance(got, REFUSALS):
            self._record.end(number, "refused")
        elif not isinstance(got, BaseException):
            self._record.end(number, answer(got))

    async def _outcome(self, asked: Awaitable[T]) -> T | BaseException:
        """What a call came to; an error that says nothing about what was done is a lost answer."""
        task = asyncio.ensure_future(asked)
        if self._dice.random() < self._work.cancels:
            await self._moment()
            task.cancel()
        await asyncio.wait([task])
        if task.cancelled():
            return asyncio.CancelledError()
        error = task.exception()
        if error is None:
            return task.result()
        if not isinstance(error, (*REFUSALS, TimeoutError, StoreError)):
            raise error
        return error

    async def _moment(self) -> None:
        """Some turns of the event loop, or some time: a cancellation may come at any await."""
        if self._dice.random() < 0.5:
            for _ in range(self._dice.randrange(12)):
                await asyncio.sleep(0)
        else:
            await asyncio.sleep(self._dice.random() * 2 * self._work.line.delay)


def _seen(items: Sequence[StoredItem]) -> tuple[Seen, ...]:
    return tuple(
        Seen(item.state, item.value.decode().strip('"'), item.attempt, item.due) for item in items
    )


async def record(site: Site, queue: str, work: Workload, seed: str) -> list[Call]:
    """One history of a queue that is empty: what the clients asked and were told.

    The clients share the store objects of the site.
    """
    record = Recorder(site.clock)
    clients = [
        Client(number, site, queue, work=work, record=record, seed=seed)
        for number in range(CLIENTS)
    ]
    async with asyncio.TaskGroup() as group:
        for client in clients:
            group.create_task(client.run())
    await Client(0, site, queue, work=work.without_faults(), record=record, seed=seed).look_back()
    return list(record.calls.values())
