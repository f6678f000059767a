"""Workers share out the partitions of a lane."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from leasedkeyq import MemoryStore
from leasedkeyq.errors import StoreError
from leasedkeyq.lanes import LaneConfig, QueueManager, QueueManagerBuilder
from leasedkeyq.lanes.durable.engine import StoreEngine
from leasedkeyq.lanes.durable.workers import divide
from leasedkeyq.lanes.presence.directory import read_workers
from leasedkeyq.lanes.presence.records import WORKERS_QUEUE
from leasedkeyq.model.requests import Cancel, Claim, Counts, Put
from tests.lanes.durable.workers_support import LEASE, PARTS, Diary, Failing, memory, worker
from tests.lanes.support import clock, now
from tests.lanes.trouble import Trouble, on


def engine(manager: QueueManager) -> StoreEngine:
    found = manager.queue()._engine
    assert isinstance(found, StoreEngine)
    return found


def owned(manager: QueueManager) -> set[int]:
    return {partition.index for partition in engine(manager).partitions if partition.owned}


async def kill(manager: QueueManager) -> None:
    """End a worker as SIGKILL does: it tells nobody."""
    for task in engine(manager)._tasks:
        task.cancel()
    await asyncio.sleep(0)


def divided(managers: Sequence[QueueManager]) -> bool:
    """Whether each partition has one owner, and each worker something to do."""
    parts = [owned(manager) for manager in managers]
    return all(parts) and sorted(part for some in parts for part in some) == list(range(16))


async def until(condition: Callable[[], bool], timeout: float = 1.0) -> float:
    """Wait until something holds; returns how long that took."""
    began = now()
    while not condition():
        assert now() - began <= timeout, "it took too long"
        await asyncio.sleep(0.01)
    return now() - began


async def test_workers_share_out_the_partitions() -> None:
    store, diary = memory(), Diary()
    made = [worker(store, diary, f"{n}:", PARTS, sharing=True) for n in range(4)]
    workers = [manager for manager, _ in made]
    note = made[0][1]
    await workers[0].start()
    await until(lambda: divided(workers[:1]))
    await workers[1].start()
    await workers[2].start()
    await until(lambda: divided(workers[:3]))
    # One joins, and has its fair share.
    await workers[3].start()
    await until(lambda: divided(workers))
    assert [len(owned(manager)) for manager in workers] == [4, 4, 4, 4]
    handles = [await workers[0].submit("x", note(str(n)), key=str(n)) for n in range(200)]
    ran = {await handle for handle in handles}
    assert ran == {"0:", "1:", "2:", "3:"}
    assert len(diary.lines) == 200
    # One ends: the others have its partitions at once.
    await workers[3].close()
    assert await until(lambda: divided(workers[:3])) < 0.5
    # One dies: the others have them when its lease is over.
    await kill(workers[2])
    took = await until(lambda: divided(workers[:2]), LEASE + 1)
    assert took > LEASE / 2
    await asyncio.sleep(100)
    assert divided(workers[:2])
    counts = Counts(in_flight=2, done=1, done_failed=1)  # the dead one is remembered for a while
    assert (await store.count([WORKERS_QUEUE]))[WORKERS_QUEUE] == counts
    for manager in workers:
        await manager.close()


@pytest.mark.parametrize("parts, workers", [(16, 4), (64, 8), (4, 4), (5, 3), (3, 5), (1, 1)])
def test_each_worker_has_its_fair_share(parts: int, workers: int) -> None:
    names = [f"worker {number}" for number in range(workers)]
    owners = divide("x", dict.fromkeys(names, parts))
    assert divide("x", dict.fromkeys(reversed(names), parts)) == owners
    assert len(owners) == parts
    loads = [owners.count(name) for name in names]
    assert sum(loads) == parts
    assert max(loads) == -(-parts // workers)


def test_a_change_of_workers_moves_few_partitions() -> None:
    names = [f"worker {number}" for number in range(8)]
    before = divide("x", dict.fromkeys(names, 64))
    after = divide("x", dict.fromkeys(names[1:], 64))
    moved = sum(old not in (new, names[0]) for old, new in zip(before, after, strict=True))
    assert moved <= 12
    assert divide("y", dict.fromkeys(names, 64)) != before


def test_a_partition_goes_to_one_who_knows_it() -> None:
    owners = divide("x", {"old": 2, "new": 8, "other lanes": 0})
    assert set(owners[2:]) == {"new"}
    assert "old" in owners[:2]
    assert divide("x", {"other lanes": 0}) == []
    assert divide("x", {}) == []


async def test_a_worker_that_was_taken_for_dead_joins_again() -> None:
    store, diary = memory(), Diary()
    workers = [worker(store, diary, "", PARTS, sharing=True)[0] for _ in range(2)]
    for manager in workers:
        await manager.start()
    await until(lambda: divided(workers))
    await store.settle([Cancel(WORKERS_QUEUE, engine(workers[0])._workers._name)])
    assert (await store.count([WORKERS_QUEUE]))[WORKERS_QUEUE] == Counts(in_flight=1)
    await asyncio.sleep(LEASE)
    assert (await store.count([WORKERS_QUEUE]))[WORKERS_QUEUE] == Counts(in_flight=2)
    assert divided(workers)
    for manager in workers:
        await manager.close()


class Deaf(MemoryStore):
    """Loses the answers to as many claims as it is told."""

    losses = 0

    async def do_claim(self, requests: Sequence[Claim]) -> Any:
        answers = await super().do_claim(requests)
        if self.losses:
            self.losses -= 1
            raise StoreError("the connection was lost")
        return answers


async def test_a_worker_joins_although_an_answer_was_lost() -> None:
    store, diary = Deaf(clock=clock), Diary()
    store.losses = 1
    manager, note = worker(store, diary, "", PARTS, sharing=True)
    async with manager:
        handle = await manager.submit("x", note("a"))
        await asyncio.wait_for(handle.wait(), LEASE + 1)
        await asyncio.sleep(LEASE + 1)
        assert owned(manager) == set(range(16))
        assert (await store.count([WORKERS_QUEUE]))[WORKERS_QUEUE] == Counts(in_flight=1)


async def test_lanes_and_types_that_come_later_are_shared_too() -> None:
    store = memory()
    made = [worker(store, Diary(), f"{n}:", PARTS, sharing=True)[0] for n in range(2)]
    for manager in made:
        await manager.start()
    await until(lambda: divided(made))
    for manager in made:
        manager.queue().add_lane("y", PARTS, 1, shared=True)

    def number_owned() -> list[int]:
        lanes = [manager.queue().lane("y") for manager in made]
        return [sum(partition.owned for partition in lane.partitions) for lane in lanes]

    await until(lambda: sum(number_owned()) == 16)
    assert all(number_owned())

    async def later() -> None: ...

    # One of them knows a type more: its commands are for that one, wherever they are.
    made[0].command("later", later)
    await until(lambda: number_owned() == [16, 16], LEASE)
    made[1].command("later", later)
    await until(lambda: sum(number_owned()) == 16, LEASE)
    for manager in made:
        await manager.close()


async def test_no_partition_is_given_to_a_worker_that_does_not_know_it() -> None:
    """The number of partitions has been raised, and not all workers have been restarted yet."""
    store, diary = memory(), Diary()
    few = LaneConfig(0, 4, partitions=2, lease_time=LEASE)
    old = [worker(store, diary, "", few, sharing=True)[0] for _ in range(3)]
    new, note = worker(store, diary, "", PARTS, sharing=True)
    for manager in old:
        await manager.start()
    async with new:
        await until(lambda: sum(len(owned(manager)) for manager in [*old, new]) == 16)
        assert set(range(2, 16)) <= owned(new)
        for number in range(100):
            await new.submit("x", note(str(number)), key=str(number))
        await new.drain(10)
    for manager in old:
        await manager.close()


async def test_a_manager_that_is_closed_does_not_go_on_telling() -> None:
    store, diary = Failing(clock=clock), Diary()
    store.failures = [StoreError("no disk") for _ in range(100)]
    manager, _ = worker(store, diary)
    manager.pause("x")
    await manager.close()
    left = len(store.failures)
    await asyncio.sleep(100)
    assert 0 < left == len(store.failures)


async def test_a_worker_that_died_before_its_first_lease_is_forgotten() -> None:
    store, diary = memory(), Diary()
    await store.put([Put(WORKERS_QUEUE, (("worker:stillborn", b"{}"),))])
    manager, _ = worker(store, diary, "", PARTS, sharing=True)
    async with manager:
        await asyncio.sleep(1)
        assert divided([manager])
        assert (await store.count([WORKERS_QUEUE]))[WORKERS_QUEUE] == Counts(
            in_flight=1, available=1
        )
        await asyncio.sleep(100)
        assert (await store.count([WORKERS_QUEUE]))[WORKERS_QUEUE] == Counts(in_flight=1)


async def test_a_worker_that_drains_gives_its_partitions_away() -> None:
    store, diary = memory(), Diary()
    (first, note), (second, _) = (worker(store, diary, "", PARTS, sharing=True) for _ in range(2))
    await first.start()
    await until(lambda: divided([first]))
    await first.submit("x", note("long", 60.0))
    await until(lambda: bool(diary.lines))
    await second.start()
    await until(lambda: divided([first, second]))
    ending = asyncio.create_task(first._end(leave=True))
    await until(lambda: divided([second]))
    assert not ending.done()
    ending.cancel()
    await first.close()
    await second.close()


async def test_workers_that_know_other_commands_do_not_share_with_each_other() -> None:
    store, diary = memory(), Diary()
    first, _ = worker(store, diary, "", PARTS, sharing=True)
    second, _ = worker(store, diary, "", PARTS, sharing=True)

    @second.command("more")
    async def more() -> None: ...

    async with first, second:
        await asyncio.sleep(1)
        assert owned(first) == owned(second) == set(range(16))


async def test_who_is_not_asked_to_share_has_all_partitions() -> None:
    store, diary = memory(), Diary()
    plain, _ = worker(store, diary, "", PARTS)  # a memory store is not for several processes
    fixed = (
        QueueManagerBuilder(clock=clock)
        .with_partition_sharing()
        .with_lane("x", PARTS, 0, owned_partitions=[1, 2])
        .with_storage(store)
        .build()
    )
    other = (
        QueueManagerBuilder(clock=clock)
        .with_partition_sharing()
        .with_lane("x", PARTS, 0)
        .with_lane("y", LaneConfig(0, 1), 1)
        .with_storage(store)
        .run_only("y")
        .build()
    )
    async with plain, fixed, other:
        await asyncio.sleep(1)
        assert owned(plain) == set(range(16))
        assert owned(fixed) == {1, 2}
        assert {partition.lane.id for partition in engine(other).partitions if partition.owned} == {
            "y"
        }
        told = [record.member for record in await read_workers(store)]
        assert [(member.lanes, member.types) for member in told] == [({}, "")] * 3


async def test_the_minimum_of_a_lane_is_where_its_partitions_are() -> None:
    store = memory()
    config = LaneConfig(2, 2, partitions=2, lease_time=LEASE)

    def build() -> QueueManager:
        built = QueueManagerBuilder(clock=clock).with_partition_sharing().with_capacity(5)
        built.with_lane("x", config, 0).with_lane("y", LaneConfig(0, 5), 1)
        return built.with_storage(store).build()

    first, second = build(), build()
    third = build()
    async with first, second:
        await asyncio.sleep(1)
        assert [engine(each).slots.reserved for each in (first, second)] == [2, 2]
        async with third:
            await asyncio.sleep(1)
            workers = [engine(each) for each in (first, second, third)]
            owned = [any(s.owned for s in each.partitions if s.lane.id == "x") for each in workers]
            assert sum(owned) == 2
            assert [each.slots.reserved for each in workers] == [2 * own for own in owned]
        await asyncio.sleep(1)
        assert [engine(each).slots.reserved for each in (first, second)] == [2, 2]


@pytest.mark.parametrize("pause", [0.3, 0.7, 1.3])
async def test_a_command_that_comes_after_its_partition_was_asked_is_run(pause: float) -> None:
    """With room for one command, a worker asks the partitions in turn, which takes it a while."""
    store = Trouble()
    store.takes["claimed"] = 1.0
    manager = on(store).with_capacity(1).with_lane("x", LaneConfig(0, 1, partitions=3), 0).build()

    @manager.command("note")
    async def note(number: int) -> int:
        return number

    async with manager:
        for number in range(20):
            await asyncio.sleep(pause)
            handle = await manager.submit("x", note(number), key=f"key {number}")
            assert await handle.result(30) == number
