"""What all workers of a store obey: pauses, shared partitions, and limits beyond one process."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from leasedkeyq.errors import StoreClosedError, StoreError
from leasedkeyq.lanes import (
    KeyLimit,
    LaneConfig,
    LaneConfigError,
    QueueManager,
    QueueManagerBuilder,
    RateLimitConfig,
)
from leasedkeyq.lanes.control import CONTROL, FOREVER, divide
from leasedkeyq.lanes.on_store import StoreEngine
from leasedkeyq.stores import MemoryStore
from leasedkeyq.stores.contract import Answer, Cancel, Change, Claim, Counts, Put
from tests.lanes.support import Build, clock, everywhere

LEASE = 9.0


def now() -> float:
    return asyncio.get_running_loop().time()


class Diary:
    """What the workers of one store have run."""

    def __init__(self) -> None:
        self.lines: list[tuple[float, str]] = []
        self.running: dict[str, int] = {}
        self.most: dict[str, int] = {}

    def register(self, manager: QueueManager, worker: str = "") -> Any:
        @manager.command("note")
        async def note(name: str, seconds: float = 0.0, group: str = "") -> str:
            self.lines.append((round(now(), 3), f"{worker}{name}"))
            self.running[group] = self.running.get(group, 0) + 1
            self.most[group] = max(self.most.get(group, 0), self.running[group])
            try:
                await asyncio.sleep(seconds)
            finally:
                self.running[group] -= 1
            return worker

        return note

    @property
    def names(self) -> list[str]:
        return [name for _, name in self.lines]


def builder(
    store: MemoryStore, config: LaneConfig | None = None, **options: Any
) -> QueueManagerBuilder:
    config = config or LaneConfig(0, 4, lease_time=LEASE)
    return QueueManagerBuilder(clock=options.pop("clock", clock)).with_lane("x", config, 0)


def worker(
    store: MemoryStore,
    diary: Diary,
    name: str = "",
    config: LaneConfig | None = None,
    **options: Any,
) -> tuple[QueueManager, Any]:
    sharing = options.pop("sharing", None)
    built = builder(store, config, **options).with_storage(store)
    if sharing is not None:
        built.with_partition_sharing(sharing)
    manager = built.build()
    return manager, diary.register(manager, name)


def engine(manager: QueueManager) -> StoreEngine:
    found = manager.queue()._engine
    assert isinstance(found, StoreEngine)
    return found


def memory() -> MemoryStore:
    return MemoryStore(clock=clock)


# Pauses


async def test_a_pause_holds_for_all_workers_and_those_to_come() -> None:
    store, diary = memory(), Diary()
    (first, _), (second, _), (third, note) = (worker(store, diary) for _ in range(3))
    async with first, second:
        await first.pause("x")
        await asyncio.sleep(1)
        await third.start()
        handle = await third.submit("x", note("a"))
        await asyncio.sleep(100)
        assert diary.names == []
        for manager in (first, second, third):
            assert (await manager.stats()).lanes["x"].paused
        # Resumed by another than it was paused by.
        second.resume("x")
        began = now()
        await handle
        assert now() - began < 1
        assert not (await third.stats()).lanes["x"].paused
        await third.close()
    assert await store.count([CONTROL]) == {CONTROL: Counts()}


async def test_a_pause_that_nobody_waits_for_holds_too() -> None:
    store, diary = memory(), Diary()
    first, _ = worker(store, diary)
    second, note = worker(store, diary)
    async with second:
        first.pause("x")  # it was never started
        await first.close()
        await asyncio.sleep(0.5)
        await second.submit("x", note("a"))
        await asyncio.sleep(10)
        assert diary.names == []
        await second.resume("x")
        await second.drain(1)


@pytest.mark.parametrize("waits", [True, False])
def test_a_pause_before_there_is_an_event_loop(waits: bool) -> None:
    store = MemoryStore()
    manager = QueueManagerBuilder().with_lane("x", LaneConfig(0, 1), 0).with_storage(store).build()
    pausing = manager.pause("x")

    async def main() -> None:
        if waits:
            await pausing
            assert (await store.count([CONTROL]))[CONTROL].scheduled == 1
        await manager.close()
        assert (await store.count([CONTROL]))[CONTROL].scheduled == 1

    asyncio.run(main())


async def test_only_the_last_word_counts() -> None:
    store, diary = memory(), Diary()
    manager, note = worker(store, diary)
    async with manager:
        for _ in range(3):
            manager.pause("x")
            manager.resume("x")
        manager.pause("x")
        await manager.resume("x")
        await asyncio.sleep(1)
        await manager.submit("x", note("a"))
        await manager.drain(1)
    assert diary.names == ["a"]


async def test_in_memory_a_pause_can_be_awaited_as_well() -> None:
    manager = QueueManagerBuilder().with_lane("x", LaneConfig(0, 1), 0).build()
    diary = Diary()
    note = diary.register(manager)
    async with manager:
        await manager.pause("x")
        await manager.submit("x", note("a"))
        await asyncio.sleep(1)
        assert diary.names == []
        await manager.resume("x")


class Failing(MemoryStore):
    """Fails to put into the control queue as often as it is told."""

    failures: list[Exception]

    async def put(self, requests: Sequence[Put]) -> Any:
        if requests[0].queue == CONTROL and self.failures:
            raise self.failures.pop()
        return await super().put(requests)


class Recording(MemoryStore):
    """Remembers what is done to the control queue."""

    def __init__(self) -> None:
        super().__init__(clock=clock)
        self.done: list[str] = []

    async def put(self, requests: Sequence[Put]) -> Any:
        self.done += [f"put {key} {put.delay or 0:g}" for put in requests for key, _ in put.items]
        return await super().put(requests)

    async def settle(self, requests: Sequence[Change]) -> list[Answer]:
        self.done += [f"cancel {one.key}" for one in requests if isinstance(one, Cancel)]
        return await super().settle(requests)


async def test_those_who_watch_are_told_of_a_pause() -> None:
    """A store need not tell of items that are scheduled: only of those that come and go."""
    store = Recording()
    manager, _ = worker(store, Diary())
    await manager.pause("x")
    assert store.done == [f"put paused:x {FOREVER:g}", "put news 0", "cancel news"]
    store.done.clear()
    await manager.resume("x")
    assert store.done == ["cancel paused:x", "put news 0", "cancel news"]
    await manager.close()


async def test_a_store_that_fails_is_told_again() -> None:
    store, diary = Failing(clock=clock), Diary()
    store.failures = [StoreError("no disk"), StoreError("no disk")]
    (first, _), (second, _) = (worker(store, diary) for _ in range(2))
    async with first, second:
        await first.pause("x")
        assert not store.failures
        await asyncio.sleep(1)
        assert (await second.stats()).lanes["x"].paused
        await second.resume("x")


async def test_a_closed_store_says_so(caplog: pytest.LogCaptureFixture) -> None:
    store, diary = memory(), Diary()
    manager, _ = worker(store, diary)
    await store.close()
    with pytest.raises(StoreClosedError):
        await manager.pause("x")
    caplog.clear()
    manager.pause("x")
    await asyncio.sleep(1)
    assert "a pause or resume is not known to other workers" in caplog.text
    await manager.close()


class Slow(MemoryStore):
    """Answers claims and looks at the control queue late, if it is told to."""

    slow = ""

    async def claim(self, requests: Sequence[Claim]) -> Any:
        answers = await super().claim(requests)
        await asyncio.sleep(0.2 if self.slow == "claim" else 0)
        return answers

    async def browse(self, queue: str, **options: Any) -> Any:
        page = await super().browse(queue, **options)
        await asyncio.sleep(0.2 if self.slow == "browse" else 0)
        return page


@pytest.mark.parametrize("slow", ["claim", "browse"])
async def test_what_was_asked_before_does_not_undo_a_pause(slow: str) -> None:
    """A claim, or a look at what is paused, is under way when the lane is paused."""
    store, diary = Slow(clock=clock), Diary()
    manager, note = worker(store, diary)
    async with manager:
        await asyncio.sleep(1)
        store.slow = slow
        if slow == "claim":
            await manager.submit("x", note("a"))
        else:
            await store.put([Put(CONTROL, (("news", b"null"),))])
        await asyncio.sleep(0.1)
        await manager.pause("x")
        if slow == "browse":
            await manager.submit("x", note("a"))
        await asyncio.sleep(10)
        assert diary.names == []
        stats = (await manager.stats()).lanes["x"]
        assert (stats.paused, stats.pending, stats.active) == (True, 1, 0)
        await manager.resume("x")
        await manager.drain(1)
    assert diary.names == ["a"]


# Partitions

PARTS = LaneConfig(0, 4, partitions=16, lease_time=LEASE)


def owned(manager: QueueManager) -> set[int]:
    return {share.index for share in engine(manager).shares if share.owned}


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
    assert (await store.count([CONTROL]))[CONTROL] == Counts(in_flight=2)
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
    await store.settle([Cancel(CONTROL, engine(workers[0])._control._name)])
    assert (await store.count([CONTROL]))[CONTROL] == Counts(in_flight=1)
    await asyncio.sleep(LEASE)
    assert (await store.count([CONTROL]))[CONTROL] == Counts(in_flight=2)
    assert divided(workers)
    for manager in workers:
        await manager.close()


class Deaf(MemoryStore):
    """Loses the answers to as many claims as it is told."""

    losses = 0

    async def claim(self, requests: Sequence[Claim]) -> Any:
        answers = await super().claim(requests)
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
        assert (await store.count([CONTROL]))[CONTROL] == Counts(in_flight=1)


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
        return [sum(share.owned for share in lane.shares) for lane in lanes]

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
    await store.put([Put(CONTROL, (("worker:stillborn", b"{}"),))])
    manager, _ = worker(store, diary, "", PARTS, sharing=True)
    async with manager:
        await asyncio.sleep(1)
        assert divided([manager])
        assert (await store.count([CONTROL]))[CONTROL] == Counts(in_flight=1, available=1)
        await asyncio.sleep(100)
        assert (await store.count([CONTROL]))[CONTROL] == Counts(in_flight=1)


async def test_a_worker_that_drains_gives_its_partitions_away() -> None:
    store, diary = memory(), Diary()
    (first, note), (second, _) = (worker(store, diary, "", PARTS, sharing=True) for _ in range(2))
    await first.start()
    await until(lambda: divided([first]))
    await first.submit("x", note("long", 60.0))
    await until(lambda: bool(diary.lines))
    await second.start()
    await until(lambda: divided([first, second]))
    ending = asyncio.create_task(first._end())
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
        assert {share.lane.id for share in engine(other).shares if share.owned} == {"y"}
        assert set(await store.count()) == set()


async def test_the_minimum_of_a_partition_goes_with_it() -> None:
    store = memory()
    config = LaneConfig(1, 2, partitions=4, lease_time=LEASE)

    def build() -> QueueManager:
        built = QueueManagerBuilder(clock=clock).with_partition_sharing().with_capacity(5)
        built.with_lane("x", config, 0).with_lane("y", LaneConfig(0, 5), 1)
        return built.with_storage(store).build()

    first, second = build(), build()
    async with first:
        await asyncio.sleep(1)
        assert engine(first).slots.reserved == 4
        async with second:
            await asyncio.sleep(1)
            numbers = [
                sum(share.owned for share in engine(each).shares if share.lane.id == "x")
                for each in (first, second)
            ]
            assert sum(numbers) == 4
            assert [engine(each).slots.reserved for each in (first, second)] == numbers
        await asyncio.sleep(1)
        assert engine(first).slots.reserved == 4


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
    if one._storage is not None:
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
    assert CONTROL not in await store.count()
