"""Rate limits on a store that is slower than the limit: tokens come between a claim and a sweep."""

import asyncio
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest

from leasedkeyq import MemoryStore
from leasedkeyq.lanes import KeyLimit, LaneConfig, QueueManager, RateLimitConfig
from leasedkeyq.model.requests import Claim, Claimed, Counts
from tests.lanes.durable.workers_support import Diary, worker
from tests.lanes.support import clock


class BusyMachine(MemoryStore):
    """A store on a busy machine: time passes during its calls, and no timer of the loop is run."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self._random = random.Random(1)
        self._passed = 0.0
        super().__init__(clock=lambda: clock() + self._passed)

    def _let_time_pass(self, verb: str) -> None:
        self.calls[verb] += 1
        self._passed += self._random.choice((0, 0, 0.001, 0.02))

    async def do_claim(self, requests: Sequence[Claim]) -> list[tuple[Claimed, ...]]:
        self._let_time_pass("claim")
        return await super().do_claim(requests)

    async def do_sweep(self, queues: Sequence[str]) -> list[float | None]:
        self._let_time_pass("sweep")
        return await super().do_sweep(queues)

    async def do_count(self, queues: Sequence[str] | None) -> Mapping[str, Counts]:
        self._let_time_pass("count")
        return await super().do_count(queues)


LIMITS: list[dict[str, Any]] = [
    {"rate_limit": RateLimitConfig.per_second(100)},
    {"rate_limit": RateLimitConfig.per_second(100, burst=1)},
    {"rate_limit": RateLimitConfig.per_second(30, burst=10)},
    {"key_limits": [KeyLimit("k-*", rate_limit=RateLimitConfig.per_second(100, burst=1))]},
    {"rate_limit": RateLimitConfig.per_second(100, burst=1), "partitions": 3},
    {"rate_limit": RateLimitConfig.per_second(100, burst=1), "global_concurrency": 1},
]


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("limits", LIMITS, ids=[" ".join(limits) for limits in LIMITS])
async def test_a_lane_goes_on_though_its_tokens_come_between_two_looks(
    limits: dict[str, Any], workers: int
) -> None:
    store, diary = BusyMachine(), Diary()
    config = LaneConfig(0, 20, **limits)
    managers = [worker(store, diary, "", config) for _ in range(workers)]
    manager, note = managers[0]
    for number in range(150):
        await manager.submit("x", note(str(number)), key=f"k-{number}")
    for each, _ in managers:
        await each.start()
    await manager.drain(60)
    starts = sorted(when for when, _ in diary.lines)
    assert len(starts) == 150
    assert max(later - earlier for earlier, later in pairwise(starts)) < 1.0
    for each, _ in managers:
        await each.close()


async def test_keys_with_a_rate_each_go_on() -> None:
    store, diary = BusyMachine(), Diary()
    config = LaneConfig(0, 20, key_rate_limit=RateLimitConfig.per_second(100, burst=1))
    manager, note = worker(store, diary, "", config)
    await manager.start()
    for turn in range(20):
        handles = [await manager.submit("x", note(f"{turn}"), key=f"{key}") for key in range(5)]
        async with asyncio.timeout(2):
            await asyncio.gather(*[handle.wait() for handle in handles])
    assert len(diary.lines) == 100
    await manager.close()


async def calls_in_a_minute(manager: QueueManager, store: BusyMachine) -> Counter[str]:
    await manager.start()
    await asyncio.sleep(10)
    store.calls.clear()
    await asyncio.sleep(60)
    return Counter(store.calls)


async def test_an_idle_lane_with_a_rate_limit_does_not_poll() -> None:
    store, diary = BusyMachine(), Diary()
    config = LaneConfig(0, 20, rate_limit=RateLimitConfig.per_second(100))
    manager, note = worker(store, diary, "", config)
    await manager.submit("x", note("a"))
    calls = await calls_in_a_minute(manager, store)
    assert calls.pop("count", 0) <= 1  # for the values of the minute
    assert not calls
    assert diary.names == ["a"]
    await manager.close()


async def test_a_lane_that_waits_for_something_else_asks_rarely() -> None:
    """Its commands are of a type that only other workers know."""
    store, diary = BusyMachine(), Diary()
    config = LaneConfig(0, 20, rate_limit=RateLimitConfig.per_second(1000))
    submitter, note = worker(store, diary, "", config)
    await submitter.submit("x", note("a"))
    manager, _ = worker(store, diary, "", config)
    manager.queue().registry.types.clear()

    @manager.command("other")
    async def other() -> None:
        return None

    assert (await calls_in_a_minute(manager, store)).total() < 200
    assert diary.names == []
    await manager.close()
    await submitter.close()


async def test_a_slow_rate_is_not_asked_for_more_often_than_it_has_tokens() -> None:
    store, diary = BusyMachine(), Diary()
    config = LaneConfig(0, 20, rate_limit=RateLimitConfig.per_minute(6, burst=1))
    manager, note = worker(store, diary, "", config)
    for number in range(20):
        await manager.submit("x", note(str(number)))
    assert (await calls_in_a_minute(manager, store)).total() < 60
    starts = [when for when, _ in diary.lines]
    assert starts == pytest.approx([10 * number for number in range(len(starts))], abs=1)
    assert len(starts) in (7, 8)
    await manager.close()
