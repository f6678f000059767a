"""Hundreds of producers, getters and takers, cancelled at random; the promises hold throughout."""

import asyncio
import os
import random
from collections import Counter, defaultdict
from typing import Any

import pytest

from leasedkeyq import InvalidLeaseError, LeasedKeyQueue
from leasedkeyq.testing import VirtualTimeLoop
from tests.support import check_invariants, waiters

TORTURE = os.environ.get("TORTURE") == "1"

Queue = LeasedKeyQueue[str, int]


class Town:
    """Tasks that work on one queue, and a ledger of what each did."""

    def __init__(self, seed: int, maxsize: int) -> None:
        self.chance = random.Random(seed)
        self.queue = Queue(maxsize=maxsize, default_lease_timeout=50)
        self.put = Counter[str]()
        self.acked = Counter[str]()
        self.holders: dict[str, int] = defaultdict(int)
        self.fences: dict[str, int] = {}
        self.removed = Counter[str]()

    def a_key(self) -> str:
        return f"k{self.chance.randrange(60)}"

    async def produce(self) -> None:
        for _ in range(10):
            await asyncio.sleep(self.chance.random() * 3)
            key = self.a_key()
            delay = self.chance.choice([None, None, None, 0, 2.0])
            priority = self.chance.choice([None, None, 0, 1, -1])
            policy: Any = self.chance.choice(["buffer", "buffer", "update"])
            await self.queue.put(key, 1, if_in_flight=policy, delay=delay, priority=priority)
            self.put[key] += 1

    async def consume(self, key: str | None) -> None:
        for _ in range(10):
            try:
                if key is None:
                    got = await self.queue.get(timeout=self.chance.random() * 5)
                else:
                    got = await self.queue.take(key, timeout=self.chance.random() * 5)
            except TimeoutError:
                continue
            await self.work(*got)

    async def work(self, key: str, value: int, lease: Any) -> None:
        assert self.holders[key] == 0, "two valid leases for one key"
        assert lease.fence > self.fences.get(key, 0), "a fence did not grow"
        self.fences[key] = lease.fence
        self.holders[key] += 1
        try:
            await asyncio.sleep(self.chance.random())
        finally:
            self.holders[key] -= 1
            try:
                await self.settle(key, lease)
            except InvalidLeaseError as error:
                if error.reason != "removed":
                    raise

    async def settle(self, key: str, lease: Any) -> None:
        match self.chance.randrange(10):
            case 0:
                await self.queue.release(lease, requeue_front=True)
            case 1:
                await self.queue.release(lease, delay=1)
            case 2:
                await self.queue.release(lease)
            case 3 if await self.queue.remove(key):
                self.removed[key] += 1
            case _:
                await self.queue.ack(lease)
                self.acked[key] += 1

    async def murder(self, tasks: "list[asyncio.Task[None]]") -> None:
        for _ in range(150):
            await asyncio.sleep(self.chance.random() * 0.2)
            self.chance.choice(tasks).cancel()


class CheckedLoop(VirtualTimeLoop):
    """Checks the promises after every step of the event loop."""

    queue: Queue | None = None
    checks = 0

    def _run_once(self) -> None:
        base: Any = super()
        base._run_once()
        if self.queue is not None:
            check_invariants(self.queue)
            self.checks += 1


@pytest.mark.parametrize("maxsize", [0, 5])
@pytest.mark.parametrize("seed", range(20 if TORTURE else 1))
def test_a_busy_town(seed: int, maxsize: int) -> None:
    with asyncio.Runner(loop_factory=CheckedLoop) as runner:
        runner.run(a_busy_town(seed, maxsize))


async def a_busy_town(seed: int, maxsize: int) -> None:
    town = Town(seed, maxsize)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, CheckedLoop)
    loop.queue = town.queue
    producers = [asyncio.create_task(town.produce()) for _ in range(200)]
    consumers = [asyncio.create_task(town.consume(None)) for _ in range(200)]
    consumers += [asyncio.create_task(town.consume(town.a_key())) for _ in range(200)]
    tasks = producers + consumers
    await asyncio.gather(town.murder(tasks), *consumers, return_exceptions=True)
    # What is left is worked off; no key was lost and none invented.
    while not all(task.done() for task in producers) or await town.queue.snapshot():
        try:
            key, _, lease = await town.queue.get(timeout=10)
        except TimeoutError:
            continue
        await town.queue.ack(lease)
        town.acked[key] += 1
    errors = [t.exception() for t in tasks if not t.cancelled() and t.exception() is not None]
    assert errors == []
    assert waiters(town.queue) == 0
    assert town.queue._consumers.for_key == {}
    assert town.queue._producers.by_key == {}
    assert loop.checks > 1000
    assert sum(town.acked.values()) > 100
    for key, count in town.put.items():
        assert 1 <= town.acked[key] + town.removed[key] <= count
    assert set(town.acked) <= set(town.put)


async def test_no_item_and_no_waiter_is_lost_when_everything_is_cancelled_at_once() -> None:
    queue = LeasedKeyQueue[int, int](maxsize=50)
    getters = [asyncio.create_task(queue.get()) for _ in range(300)]
    takers = [asyncio.create_task(queue.take(number)) for number in range(300)]
    await asyncio.sleep(0)
    producers = [asyncio.create_task(queue.put(number, 0)) for number in range(600)]
    await asyncio.sleep(0)
    for task in getters + takers:
        task.cancel()
    results = await asyncio.gather(*getters, *takers, return_exceptions=True)
    got = [result[0] for result in results if isinstance(result, tuple)]
    check_invariants(queue)
    rest: list[int] = []
    while len(rest) + len(got) < 600:
        rest.append((await queue.get())[0])
    await asyncio.gather(*producers)
    assert sorted(got + rest) == list(range(600))
    assert waiters(queue) == 0
