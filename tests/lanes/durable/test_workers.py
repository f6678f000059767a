"""What all workers of a store obey: limits beyond one process."""

import asyncio
import logging
from typing import Any

import pytest

from leasedkeyq.lanes import (
    KeyLimit,
    LaneConfig,
    LaneConfigError,
    QueueManager,
    QueueManagerBuilder,
    RateLimitConfig,
)
from leasedkeyq.lanes.presence.records import WORKERS_QUEUE
from tests.lanes.durable.workers_support import PARTS, Diary, memory, worker
from tests.lanes.support import Build, clock, everywhere

# Limits


async def test_a_rate_limit_holds_over_all_workers() -> None:
    store, diary = memory(), Diary()
    config = LaneConfig(0, 10, rate_limit=RateLimitConfig.per_second(2, burst=3))
    workers = [worker(store, diary, "", config) for _ in range(3)]
    note = workers[0][1]
    for number in range(9):
        await workers[0][0].submit("x", note(str(number)))
    for manager, _ in workers:
        await manager.start()
    await workers[0][0].drain(60)
    starts = [when for when, _ in diary.lines]
    assert starts == pytest.approx([0, 0, 0, 0.5, 1, 1.5, 2, 2.5, 3], abs=0.01)
    for manager, _ in workers:
        await manager.close()


@everywhere
async def test_a_global_limit_on_concurrency(build: Build) -> None:
    diary = Diary()
    config = LaneConfig(0, 10, global_concurrency=3)
    one = build().with_lane("x", config, 0)
    managers = [one.build()]
    if one.storage is not None:
        managers.append(one.build())
    note = diary.register(managers[0])
    for number in range(9):
        await managers[0].submit("x", note(str(number), 1.0))
    for manager in managers:
        await manager.start()
    await managers[0].drain(60)
    assert diary.most == {"": 3}
    assert [when for when, _ in diary.lines] == pytest.approx([0] * 3 + [1] * 3 + [2] * 3, abs=0.01)
    for manager in managers:
        await manager.close()


@everywhere
async def test_limits_for_some_keys(build: Build) -> None:
    diary = Diary()
    config = LaneConfig(
        0,
        10,
        key_limits=[
            KeyLimit("slow-*", max_concurrency=2),
            KeyLimit("*-paid", rate_limit=RateLimitConfig.per_second(1, burst=1)),
        ],
    )
    manager = build().with_lane("x", config, 0).build()
    note = diary.register(manager)
    for number in range(4):
        await manager.submit("x", note("slow", 1.0, "slow"), key=f"slow-{number}")
    for number in range(3):
        await manager.submit("x", note("paid"), key=f"{number}-paid")
    await manager.submit("x", note("both", 1.0, "slow"), key="slow-paid")
    await manager.submit("x", note("free"), key="free")
    async with manager:
        await manager.drain(60)
    assert diary.most["slow"] == 2
    assert [when for when, name in diary.lines if name == "slow"] == pytest.approx(
        [0, 0, 1, 1], abs=0.01
    )
    assert [when for when, name in diary.lines if name == "paid"] == pytest.approx(
        [0, 1, 2], abs=0.01
    )
    assert [when for when, name in diary.lines if name == "both"] == pytest.approx([3], abs=0.01)
    assert [when for when, name in diary.lines if name == "free"] == [0], "it passed the others by"


@everywhere
async def test_limits_of_a_lane_with_partitions(build: Build) -> None:
    """No more than allowed run at a time in all partitions together, and all of them get on."""
    diary = Diary()
    config = LaneConfig(
        0, 10, partitions=3, global_concurrency=4, key_limits=[KeyLimit("k*", max_concurrency=3)]
    )
    manager = build().with_lane("x", config, 0).build()
    note = diary.register(manager)
    for number in range(30):
        await manager.submit("x", note(str(number), 1.0), key=f"k{number}")
    async with manager:
        await manager.drain(100)
    assert diary.most[""] == 3
    assert len(diary.lines) == 30


async def test_a_rate_limit_is_divided_among_partitions() -> None:
    store, diary = memory(), Diary()
    config = LaneConfig(0, 10, partitions=2, rate_limit=RateLimitConfig.per_second(4, burst=2))
    manager, note = worker(store, diary, "", config)
    for number in range(200):
        await manager.submit("x", note(str(number)), key=str(number))
    async with manager:
        await asyncio.sleep(10)
        assert len(diary.lines) == pytest.approx(42, abs=2)
        await manager.close()


@pytest.mark.parametrize(
    "options, said",
    [
        ({"global_concurrency": 0}, "global_concurrency must be at least 1"),
        ({"global_concurrency": 2, "partitions": 3}, "global_concurrency is 2, and there are 3"),
        ({"key_limits": [KeyLimit("a*", 1), KeyLimit("a*", 2)]}, "two limits for the keys 'a\\*'"),
        ({"key_limits": [KeyLimit("a*", 1)], "partitions": 2}, "max_concurrency of 'a\\*' is 1"),
        ({"key_limits": ["a*"]}, "key_limits are KeyLimit objects, got str"),
    ],
)
def test_limits_that_make_no_sense(options: Any, said: str) -> None:
    with pytest.raises((LaneConfigError, ValueError, TypeError), match=said):
        LaneConfig(0, 4, **options)


@pytest.mark.parametrize("arguments", [("*", 1), ("", 1), ("a",), ("a", 0), (1, 1)])
def test_key_limits_that_make_no_sense(arguments: Any) -> None:
    with pytest.raises(ValueError, match=r"pattern must|limits nothing|at least 1"):
        KeyLimit(*arguments)


# Clocks that are off


async def test_a_boost_goes_by_the_clock_of_the_store() -> None:
    """The submitter is hours ahead, the worker hours behind: the deadline is met all the same."""
    store, diary = memory(), Diary()

    def build(hours: float) -> QueueManager:
        skewed = QueueManagerBuilder(clock=lambda: clock() + hours * 3600).with_capacity(1)
        skewed.with_lane("low", LaneConfig(0, 1), 9).with_lane("high", LaneConfig(0, 1), 0)
        return skewed.with_storage(store).build()

    ahead, behind = build(5), build(-5)
    note = diary.register(ahead)
    diary.register(behind)
    for number in range(10):
        await ahead.submit("high", note(f"high {number}", 1.0), key=str(number))
    await ahead.submit("low", note("low", 1.0), deadline=4)
    await ahead.submit("low", note("no deadline", 1.0))
    async with behind:
        await behind.drain(60)
    place = diary.names.index("low")
    assert 2 <= place <= 4, diary.names
    assert diary.names[-1] == "no deadline"
    await ahead.close()


async def test_a_closed_manager_leaves_nothing_behind(caplog: pytest.LogCaptureFixture) -> None:
    store, diary = memory(), Diary()
    with caplog.at_level(logging.WARNING):
        for sharing in (True, False):
            manager, note = worker(store, diary, "", PARTS, sharing=sharing)
            async with manager:
                await (await manager.submit("x", note("a")))
    assert caplog.text == ""
    assert WORKERS_QUEUE not in await store.count()
