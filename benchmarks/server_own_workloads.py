"""The workloads on a server for this package, and what a claim costs among many items."""

import asyncio
import logging
from collections.abc import Sequence
from itertools import count
from typing import Any

from benchmarks.places import new_place
from benchmarks.server_workloads import WORKLOADS as SHARED
from benchmarks.server_workloads import Library
from benchmarks.timing import Turn, Workload, quiet, wall_clock
from leasedkeyq.connect import connect
from leasedkeyq.lanes import LaneConfig, QueueManager, QueueManagerBuilder

# That Redis may lose the last second is known here, and need not be said for every case.
logging.getLogger("leasedkeyq").setLevel(logging.ERROR)

VALUE = {"user": 12345, "action": "refresh"}
HOUR = 3600.0
PORTION = 5000
"""Items of one call, when a queue is filled."""


class Lanes(Library):
    """Commands in a lane: leases, fences, keys and priorities.

    Options:
        keep_results: Seconds.
        keys: Over how many keys the commands are spread, each in order; 0: each is on its own.
    """

    _manager: QueueManager
    _job: Any

    def _make(self, concurrency: int) -> None:
        keep = self.options.get("keep_results", 0)
        config = LaneConfig(1, concurrency, keep_results=keep)
        self._manager = (
            QueueManagerBuilder().with_storage(self.url).with_lane("jobs", config, 0).build()
        )

        async def job(number: int) -> None:
            self.note(number)

        self._job = self._manager.command("job", job)

    async def open(self) -> None:
        self._make(1)

    async def close(self) -> None:
        await self._manager.close()

    async def put(self, number: int) -> None:
        await self._manager.submit("jobs", self._job(number), key=self._key(number))

    async def put_many(self, numbers: Sequence[int]) -> None:
        if keys := self.options.get("keys"):
            keyed = [(f"key-{number % keys}", self._job(number)) for number in numbers]
            await self._manager.submit_many("jobs", keyed)
        else:
            await self._manager.submit_many("jobs", [self._job(number) for number in numbers])

    def _key(self, number: int) -> str | None:
        keys = self.options.get("keys", 0)
        return f"key-{number % keys}" if keys else None

    def work(self, concurrency: int) -> None:
        async def main() -> None:
            self._make(concurrency)
            await self._manager.run()

        asyncio.run(main())


class SyncLanes(Lanes):
    """Commands in a lane, submitted by threads without an event loop: `manager.sync`."""

    in_threads = True

    def put_now(self, number: int) -> None:
        self._manager.sync.submit("jobs", self._job(number))

    async def close(self) -> None:
        await asyncio.to_thread(self._manager.sync.close)
        await super().close()


class Queue(Library):
    """Items in a queue of the store; a worker gets and acknowledges in as many tasks."""

    async def open(self) -> None:
        self._store: Any = connect(self.url)
        self._queue: Any = self._store.queue("jobs", default_lease_timeout=30.0)

    async def close(self) -> None:
        await self._store.close()

    async def put(self, number: int) -> None:
        await self._queue.put(f"key-{number}", number)

    async def put_many(self, numbers: Sequence[int]) -> None:
        await self._queue.put_many([(f"key-{number}", number) for number in numbers])

    def work(self, concurrency: int) -> None:
        async def work() -> None:
            while True:
                _, number, lease = await self._queue.get()
                self.note(number)
                await self._queue.ack(lease)

        async def main() -> None:
            await self.open()
            await asyncio.gather(*(work() for _ in range(concurrency)))

        asyncio.run(main())


async def claims(server: str, operations: int, callers: int, waiting: int, in_flight: int) -> Turn:
    """get with so many items waiting and so many in flight, all the time.

    What was got is acknowledged, and as many items are put, while the clock stands still.
    """
    store: Any = connect(new_place(server))
    queue = store.queue("jobs", default_lease_timeout=HOUR)
    for prefix, many in (("held", in_flight), ("waiting", waiting)):
        for first in range(0, many, PORTION):
            some = range(first, min(first + PORTION, many))
            await queue.put_many([(f"{prefix}-{number}", VALUE) for number in some])
            if prefix == "held":
                assert len(await queue.get_many(len(some))) == len(some)
    numbers = count()

    async def get(times: int) -> list[Any]:
        return [await queue.get() for _ in range(times)]

    async def turn() -> float:
        quiet()
        start = wall_clock()
        got = await asyncio.gather(*(get(operations // callers) for _ in range(callers)))
        seconds = wall_clock() - start
        leases = [lease for some in got for _, _, lease in some]
        await asyncio.gather(*(queue.ack(lease) for lease in leases))
        await queue.put_many([(f"new-{next(numbers)}", VALUE) for _ in leases])
        return seconds / len(leases)

    return turn


async def lines(server: str, operations: int, keys: int, values: int) -> Turn:
    """get and ack by one task, one after the other, with so many keys and values of each.

    What was acknowledged is put again, at the end of its line, while the clock stands still.
    """
    store: Any = connect(new_place(server))
    return await line_turn(
        store.queue("jobs", default_lease_timeout=HOUR), operations, keys, values
    )


async def line_turn(queue: Any, operations: int, keys: int, values: int) -> Turn:
    """The same on a queue of any store."""
    step = max(PORTION // values, 1)
    for first in range(0, keys, step):
        some = [f"key-{number}" for number in range(first, min(first + step, keys))]
        for begun in range(0, values, PORTION):
            depth = min(values - begun, PORTION)
            await queue.put_many(
                [(key, VALUE) for key in some for _ in range(depth)], if_present="append"
            )

    async def turn() -> float:
        quiet()
        done: list[tuple[str, Any]] = []
        start = wall_clock()
        for _ in range(operations):
            key, value, lease = await queue.get()
            await queue.ack(lease)
            done.append((key, value))
        seconds = wall_clock() - start
        await queue.put_many(done, if_present="append")
        return seconds / operations

    return turn


WORKLOADS: dict[str, Workload] = {**SHARED, "claims": claims, "lines": lines}
