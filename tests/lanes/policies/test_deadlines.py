"""A deadline lifts a command within its lane, in memory as on every store."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from leasedkeyq.lanes import (
    DeadlineWarning,
    KeyLimit,
    LaneConfig,
    PriorityBoostConfig,
    QueueManagerBuilder,
    RateLimitConfig,
    RetryPolicy,
)
from tests.lanes.diary import Diary
from tests.lanes.support import Build, everywhere, in_memory
from tests.servers.urls import KINDS, empty_store

ONE_SLOT = LaneConfig(0, 1)


@everywhere
@pytest.mark.parametrize("capacity", [None, 1])
async def test_a_command_past_its_deadline_goes_before_those_of_its_lane(
    build: Build, capacity: int | None
) -> None:
    builder = build().with_lane("x", ONE_SLOT, 0)
    if capacity is not None:
        builder.with_capacity(capacity)
    manager = builder.build()
    diary = Diary(manager)
    async with manager:
        for number in range(15):
            await manager.submit("x", diary.note(f"{number}", 1))
        await manager.submit("x", diary.note("hurry", 1), deadline=0.1)
        await manager.drain()
    assert diary.names[:3] == ["0", "hurry", "1"]
    assert len(diary.names) == 16


@everywhere
async def test_it_goes_up_as_its_deadline_comes_near(build: Build) -> None:
    """The first of the lane goes until the other one has reached a step of its boost."""
    boost = PriorityBoostConfig(steps=((0.5, 1),))
    manager = build().with_lane("x", LaneConfig(0, 1, priority_boost=boost), 0).build()
    diary = Diary(manager)
    async with manager:
        for number in range(10):
            await manager.submit("x", diary.note(f"{number}", 1))
        await manager.submit("x", diary.note("far", 1), deadline=100)
        await manager.submit("x", diary.note("near", 1), deadline=10)
        await manager.drain()
    # Of the ten seconds, half are over when the fifth one ends.
    assert diary.names.index("near") == 5
    assert diary.names[-1] == "far"


@everywhere
async def test_the_nearest_deadline_is_first_whatever_the_priority(build: Build) -> None:
    manager = build().with_lane("x", ONE_SLOT, 0).build()
    diary = Diary(manager)
    await manager.submit("x", diary.note("first", 1), priority=-5)
    await manager.submit("x", diary.note("plain", 1))
    await manager.submit("x", diary.note("second", 1), deadline=0.02, priority=9)
    await manager.submit_many("x", [diary.note("third", 1)], deadline=0.03)
    await manager.submit("x", diary.note("later", 1), deadline=1000)
    async with manager:
        await asyncio.sleep(0.01)
        await manager.drain()
    assert diary.names == ["first", "second", "third", "plain", "later"]


@everywhere
async def test_a_lane_without_boosts_says_that_a_deadline_has_no_effect(build: Build) -> None:
    config = LaneConfig(0, 1, priority_boost=PriorityBoostConfig.disabled())
    manager = build().with_lane("x", config, 0).build()
    diary = Diary(manager)
    for name in ("a", "b"):
        await manager.submit("x", diary.note(name, 1))
    with pytest.warns(DeadlineWarning, match="'x'.*has no effect.*standard") as caught:
        await manager.submit("x", diary.note("c", 1), deadline=0)
    assert caught[0].filename == __file__
    with pytest.warns(DeadlineWarning, match="has no effect"):
        await manager.submit_many("x", [diary.note("d", 1)], deadline=0)
    async with manager:
        await manager.drain()
    assert diary.names == ["a", "b", "c", "d"]


def test_the_deadline_of_a_lane_that_shares_nothing_is_said() -> None:
    config = LaneConfig(0, 1, priority_boost=PriorityBoostConfig.standard(60))
    builder = in_memory().with_lane("x", config, 0).with_lane("y", ONE_SLOT, 1)
    with pytest.warns(
        DeadlineWarning, match=r"lane 'x'.*with_capacity.*submit\(deadline"
    ) as caught:
        builder.build()
    assert caught[0].filename == __file__
    builder.with_capacity(2).build()
    LaneConfig(0, 1, priority_boost=PriorityBoostConfig.standard(None))


@everywhere
async def test_a_command_that_comes_back_is_still_in_a_hurry(build: Build) -> None:
    config = LaneConfig(0, 1, retry_policy=RetryPolicy.fixed(3, 2))
    manager = build().with_lane("x", config, 0).build()
    ran: list[str] = []

    @manager.command("work")
    async def work(name: str, fails: int = 0) -> None:
        ran.append(name)
        await asyncio.sleep(1)
        if ran.count(name) <= fails:
            raise ValueError(name)

    async with manager:
        for number in range(8):
            await manager.submit("x", work(f"{number}"))
        await manager.submit("x", work("hurry", 2), deadline=0.1)
        await manager.drain()
    # It fails twice, and each time it waits for two seconds and no longer.
    assert ran[:9] == ["0", "hurry", "1", "2", "hurry", "3", "4", "hurry", "5"]


@everywhere
async def test_another_submit_of_its_key_sets_the_deadline_anew(build: Build) -> None:
    manager = build().with_lane("x", ONE_SLOT, 0).build()
    diary = Diary(manager)
    for name in ("a", "b", "c", "d"):
        await manager.submit("x", diary.note(name, 1), key=name)
    await manager.submit("x", diary.note("d", 1), key="d", if_present="update", deadline=0)
    await manager.submit("x", diary.note("c", 1), key="c", if_present="update", deadline=0)
    await manager.submit("x", diary.note("c", 1), key="c", if_present="update")
    async with manager:
        await asyncio.sleep(0.1)
        handle = await manager.submit("x", diary.note("d again", 1), key="d", if_present="update")
        assert handle.status == "pending"
        await manager.submit(
            "x", diary.note("d at last", 1), key="d", if_present="update", deadline=0
        )
        await manager.drain()
    assert diary.names == ["d", "d at last", "a", "b", "c"]


@everywhere
async def test_a_delayed_command_is_in_a_hurry_when_its_time_has_come(build: Build) -> None:
    manager = build().with_lane("x", ONE_SLOT, 0).build()
    diary = Diary(manager)
    async with manager:
        for number in range(9):
            await manager.submit("x", diary.note(f"{number}", 1))
        await manager.submit("x", diary.note("later", 1), delay=3.5, deadline=1)
        await manager.drain()
    assert diary.names.index("later") == 4


@everywhere
async def test_limits_hold_for_a_command_in_a_hurry(build: Build) -> None:
    limits = (KeyLimit("slow-*", max_concurrency=1),)
    manager = build().with_lane("x", LaneConfig(0, 2, key_limits=limits), 0).build()
    diary = Diary(manager)
    async with manager:
        await manager.submit("x", diary.note("slow 1", 10), key="slow-1")
        await asyncio.sleep(0.1)
        await manager.pause("x")
        await manager.submit("x", diary.note("slow 2", 1), key="slow-2", deadline=0)
        for number in range(4):
            await manager.submit("x", diary.note(f"{number}", 1), key=f"{number}")
        await manager.submit("x", diary.note("hurry", 1), key="hurry", deadline=0)
        await manager.resume("x")
        await manager.drain()
    assert diary.names == ["slow 1", "hurry", "0", "1", "2", "3", "slow 2"]


async def test_a_rate_limited_lane_gives_its_token_to_who_is_in_a_hurry() -> None:
    config = LaneConfig(0, 5, rate_limit=RateLimitConfig.per_second(1, burst=1))
    manager = in_memory().with_lane("x", config, 0).build()
    diary = Diary(manager)
    async with manager:
        for number in range(4):
            await manager.submit("x", diary.note(f"{number}"))
        await manager.submit("x", diary.note("hurry"), deadline=0.5)
        await manager.drain()
    assert diary.names == ["0", "hurry", "1", "2", "3"]


async def test_many_deadlines_are_forgotten_with_their_commands() -> None:
    """Deadlines that are far away must not pile up."""
    manager = in_memory().with_lane("x", LaneConfig(0, 10), 0).build()
    diary = Diary(manager)
    async with manager:
        for _ in range(2000):
            await (await manager.submit("x", diary.note("a"), deadline=1e6))
        [partition] = manager.queue().lane("x").partitions
        assert len(partition.deadlines._heap) < 100


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with empty_store(request.param, tmp_path) as where:
        yield where


def test_on_every_store_in_real_time(url: str) -> None:
    """With lanes that have their own slots, and with one capacity for all."""

    async def main(capacity: int | None) -> list[str]:
        lane = f"x{capacity}"
        builder = QueueManagerBuilder().with_storage(url).with_lane(lane, ONE_SLOT, 0)
        builder.with_lane("other", ONE_SLOT, 1)
        if capacity is not None:
            builder.with_capacity(capacity)
        manager = builder.build()
        started: list[str] = []

        @manager.command("note")
        async def note(name: str) -> None:
            started.append(name)

        await manager.submit_many(lane, [note(f"{number}") for number in range(15)])
        await manager.submit(lane, note("far"), deadline=3600)
        await manager.submit(lane, note("hurry"), deadline=0.05)
        await asyncio.sleep(0.2)
        async with manager:
            await manager.drain()
        return started

    for capacity in (None, 1):
        numbers = [f"{number}" for number in range(15)]
        assert asyncio.run(main(capacity)) == ["hurry", *numbers, "far"]
