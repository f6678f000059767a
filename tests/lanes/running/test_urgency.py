"""Which lane is next when several share the slots of a manager, and workers share a store."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from leasedkeyq import MemoryStore
from leasedkeyq.lanes import (
    LaneConfig,
    PriorityBoostConfig,
    QueueManager,
    QueueManagerBuilder,
    RetryPolicy,
)
from leasedkeyq.model.requests import Claim, Claimed
from tests.lanes.support import Build, clock, everywhere, is_of_commands

PLAIN = LaneConfig(0, 9)


class Slow(MemoryStore):
    """A store that is asked over a slow line, and remembers what for."""

    def __init__(self) -> None:
        super().__init__(clock=clock)
        self.asked: list[list[Claim]] = []
        self.claimed: list[Claimed] = []

    async def do_claim(self, requests: Sequence[Claim]) -> list[tuple[Claimed, ...]]:
        await asyncio.sleep(0.01)
        answers = await super().do_claim(requests)
        if any(answers) and is_of_commands(requests):
            self.asked.append([*requests])
            self.claimed += [item for answer in answers for item in answer]
        return answers


def register(manager: QueueManager, started: list[str]) -> Any:
    @manager.command("note")
    async def note(name: str, seconds: float = 1.0) -> None:
        started.append(name)
        await asyncio.sleep(seconds)

    return note


@everywhere
async def test_each_slot_is_for_the_most_urgent_command_of_all_lanes(build: Build) -> None:
    """What follows an urgent command in its lane is not urgent for that."""
    manager = (
        build().with_capacity(3).with_lane("low", PLAIN, 9).with_lane("high", PLAIN, 1).build()
    )
    started: list[str] = []
    note = register(manager, started)
    async with manager:
        blocks = [await manager.submit("high", note("block")) for _ in range(3)]
        while len(started) < 3:
            await asyncio.sleep(0.01)
        for number in range(4):
            await manager.submit("low", note(f"low {number}"), deadline=None if number else 0.5)
        for number in range(4):
            await manager.submit("high", note(f"high {number}"))
        await asyncio.gather(*(block.wait() for block in blocks))
        await manager.drain()
    assert started[3:6] == ["low 0", "high 0", "high 1"]
    assert sorted(started[6:9]) == ["high 2", "high 3", "low 1"]


async def test_workers_that_claim_at_the_same_time_do_not_pass_what_is_urgent() -> None:
    """The store decides when it leases, and not the worker when it looks."""
    store = Slow()
    started: list[str] = []
    managers: list[QueueManager] = []
    for _ in range(2):
        builder = QueueManagerBuilder(clock=clock).with_capacity(1).with_storage(store)
        managers.append(builder.with_lane("low", PLAIN, 9).with_lane("high", PLAIN, 1).build())
    note, _ = [register(manager, started) for manager in managers]
    await managers[0].submit("low", note("urgent"), deadline=0.5)
    await managers[0].submit("low", note("low"))
    for number in range(3):
        await managers[0].submit("high", note(f"high {number}"))
    await asyncio.sleep(1)
    await asyncio.gather(*(manager.start() for manager in managers))
    while len(started) < 2:
        await asyncio.sleep(0.01)
    assert started == ["urgent", "high 0"]
    await managers[0].drain(60)
    assert started[-1] == "low"
    for manager in managers:
        await manager.close()


async def test_one_request_is_the_whole_plan() -> None:
    """Minima of lanes, lease times of their own, and what they share: in one round trip."""
    store = Slow()
    builder = QueueManagerBuilder(clock=clock).with_capacity(4).with_storage(store)
    builder.with_lane("kept", LaneConfig(1, 9, lease_time=20), 9)
    builder.with_lane("low", LaneConfig(0, 9, lease_time=40), 5)
    builder.with_lane("high", LaneConfig(0, 9, lease_time=60), 1)
    manager = builder.build()
    started: list[str] = []
    note = register(manager, started)
    for lane in ("kept", "low", "high"):
        for number in range(2):
            await manager.submit(lane, note(f"{lane} {number}"))
    async with manager:
        while not started:
            await asyncio.sleep(0.001)
        assert started == ["kept 0", "high 0", "high 1", "low 0"]
        assert len(store.asked) == 1
        now = clock()
        left = {item.queue: round((item.expires_at or 0) - now) for item in store.claimed}
        assert left == {"kept": 20, "low": 40, "high": 60}
        await manager.drain()


async def test_a_command_that_is_retried_keeps_its_deadline() -> None:
    store = MemoryStore(clock=clock)
    config = LaneConfig(0, 1, retry_policy=RetryPolicy.fixed(2, 5))
    manager = QueueManagerBuilder(clock=clock).with_lane("x", config, 0).with_storage(store).build()
    deadlines: list[float | None] = []

    @manager.command("fail")
    async def fail() -> None:
        [[item]] = await store.look("x", ["k"])
        deadlines.append(item.deadline)
        raise ValueError("no")

    async with manager:
        submitted = clock()
        handle = await manager.submit("x", fail(), key="k", deadline=60)
        with pytest.raises(ValueError, match="no"):
            await handle
    assert deadlines == [pytest.approx(submitted + 60)] * 3


@pytest.mark.parametrize(
    "config, priority",
    [
        (PLAIN, 2**52 + 1),
        (LaneConfig(0, 1, priority_boost=PriorityBoostConfig(5, ((0.5, 2**53),))), 0),
    ],
)
def test_numbers_that_no_store_can_compare_are_refused(config: LaneConfig, priority: int) -> None:
    async def build() -> None:
        builder = QueueManagerBuilder().with_lane("x", config, priority)
        builder.with_storage(MemoryStore()).build()

    with pytest.raises(ValueError, match="must be at most"):
        asyncio.run(build())
