"""Many commands in one step: in memory, on a store on the virtual clock, and on every store."""

import asyncio
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from leasedkeyq import MemoryStore
from leasedkeyq.errors import KeyAlreadyPresentError, LeasedKeyQError, LimitExceededError
from leasedkeyq.lanes import (
    CommandPayloadError,
    LaneConfig,
    QueueManager,
    QueueManagerBuilder,
    ShuttingDownError,
    UnknownLaneError,
    UnregisteredCommandError,
)
from leasedkeyq.lanes.events import COMMAND_SUBMITTED
from leasedkeyq.stores import Limits, Placed, Put
from tests.lanes.support import Build, Work, clock, everywhere, in_memory, on_a_store
from tests.servers.urls import KINDS, empty_store


def now() -> float:
    return asyncio.get_running_loop().time()


class Notes:
    """Two types of commands that note when they start."""

    def __init__(self, manager: QueueManager) -> None:
        self.lines: list[tuple[float, str]] = []

        @manager.command("note")
        async def note(name: str, seconds: float = 0.0) -> str:
            self.lines.append((round(now(), 3), name))
            await asyncio.sleep(seconds)
            return name

        @manager.command("shout")
        async def shout(name: str) -> str:
            self.lines.append((round(now(), 3), name))
            return name.upper()

        self.note = note
        self.shout = shout

    @property
    def names(self) -> list[str]:
        return [name for _, name in self.lines]


class CountingStore(MemoryStore):
    """Counts what it is asked to put."""

    def __init__(self) -> None:
        super().__init__(clock=clock)
        self.asked: list[int] = []

    async def do_put(self, requests: Sequence[Put]) -> list[tuple[Placed, ...] | LeasedKeyQError]:
        self.asked.append(sum(len(request.items) for request in requests))
        return await super().do_put(requests)


def one_lane(build: Build, **options: Any) -> tuple[QueueManager, Notes]:
    manager = build().with_lane("x", LaneConfig(0, 1, **options), 0).build()
    return manager, Notes(manager)


@everywhere
async def test_commands_run_in_order_and_their_handles_tell_the_results(build: Build) -> None:
    manager, notes = one_lane(build)
    async with manager:
        handles = await manager.submit_many("x", [notes.note(f"{n}") for n in range(50)])
        assert len({handle.key for handle in handles}) == 50
        assert [await handle for handle in handles] == [f"{n}" for n in range(50)]
        assert (await manager.stats()).lanes["x"].submitted == 50
    assert notes.names == [f"{n}" for n in range(50)]


@everywhere
async def test_any_iterable_will_do_and_nothing_is_nothing(build: Build) -> None:
    manager, notes = one_lane(build)
    async with manager:
        assert await manager.submit_many("x", []) == []
        assert await manager.submit_many("x", {}) == []
        handles = await manager.submit_many("x", (notes.note(name) for name in "ab"))
        assert [await handle for handle in handles] == ["a", "b"]


@everywhere
async def test_a_mapping_says_the_keys(build: Build) -> None:
    manager, notes = one_lane(build)
    first = await manager.submit("x", notes.note("old"), key="a")
    commands = {"b": notes.note("b"), "a": notes.note("new")}
    many = await manager.submit_many("x", commands, if_present="update")
    assert [handle.key for handle in many] == ["b", "a"]
    async with manager:
        assert [await first, *[await handle for handle in many]] == ["new", "b", "new"]
    assert notes.names == ["new", "b"]


@everywhere
async def test_commands_of_several_types(build: Build) -> None:
    manager, notes = one_lane(build)
    commands: list[Any] = [notes.note("a"), notes.shout("b"), notes.note("c"), notes.shout("d")]
    async with manager:
        handles = await manager.submit_many("x", commands)
        assert [await handle for handle in handles] == ["a", "B", "c", "D"]
        assert [handle.command_type for handle in handles] == ["note", "shout", "note", "shout"]
    assert notes.names == ["a", "b", "c", "d"]


@everywhere
@pytest.mark.parametrize("mixed", [False, True])
async def test_one_key_that_is_there_is_enough_to_submit_nothing(build: Build, mixed: bool) -> None:
    manager, notes = one_lane(build)
    last = notes.shout("c") if mixed else notes.note("c")
    commands: dict[str, Any] = {"a": notes.note("a"), "busy": notes.note("no"), "c": last}
    async with manager:
        busy = await manager.submit("x", notes.note("busy", 5), key="busy")
        await asyncio.sleep(1)
        with pytest.raises(KeyAlreadyPresentError) as caught:
            await manager.submit_many("x", commands, if_present="reject")
        assert caught.value.keys == ("busy",)
        await busy
        await manager.drain()
        assert notes.names == ["busy"]
        await manager.submit_many("x", commands, if_present="reject")
        await manager.drain()
    assert sorted(notes.names) == ["a", "busy", "c", "no"]


@everywhere
async def test_keys_in_flight_join_or_wait(build: Build) -> None:
    manager, notes = one_lane(build)
    async with manager:
        first = await manager.submit("x", notes.note("first", 5), key="k")
        await asyncio.sleep(1)
        (joined,) = await manager.submit_many("x", {"k": notes.note("no")}, if_present="skip")
        (after,) = await manager.submit_many("x", {"k": notes.note("y")}, if_present="update")
        assert [await first, await joined, await after] == ["first", "first", "y"]


@everywhere
async def test_the_options_are_for_all_of_them(build: Build) -> None:
    manager, notes = one_lane(build)
    await manager.submit_many("x", [notes.note("low"), notes.note("low too")])
    await manager.submit_many("x", [notes.note("high"), notes.note("high too")], priority=-3)
    later = await manager.submit_many("x", [notes.note("later")], delay=10)
    slow = await manager.submit_many("x", [notes.note("slow", 99)], delay=20, timeout=2)
    assert later[0].status == "scheduled"
    async with manager:
        await manager.drain()
        assert slow[0].status == "timed_out"
        assert now() == 22
    names = [(0, "high"), (0, "high too"), (0, "low"), (0, "low too"), (10, "later"), (20, "slow")]
    assert notes.lines == names


@everywhere
async def test_deadlines_lift_their_lane(build: Build) -> None:
    builder = build().with_capacity(1)
    builder.with_lane("low", LaneConfig(0, 4), 5).with_lane("high", LaneConfig(0, 4), 1)
    manager = builder.build()
    notes = Notes(manager)
    await manager.submit_many("low", [notes.note("urgent")], deadline=1)
    await manager.submit_many("high", [notes.note("high")])
    await asyncio.sleep(2)
    async with manager:
        await manager.drain()
    assert notes.names == ["urgent", "high"]


@everywhere
async def test_what_is_wrong_with_one_of_them_stops_all(build: Build) -> None:
    manager, notes = one_lane(build)
    wrong: Any = notes.note
    mistakes: list[Any] = [
        [notes.note("a"), wrong],
        {"a": notes.note("a"), 5: notes.note("b")},
        notes.note("x"),
    ]
    for commands in mistakes:
        with pytest.raises(TypeError):
            await manager.submit_many("x", commands)
    with pytest.raises(ValueError, match="delay"):
        await manager.submit_many("x", [notes.note("a")], delay=-1)
    with pytest.raises(UnknownLaneError):
        await manager.submit_many("y", [notes.note("a")])
    async with manager:
        await manager.drain()
        await manager.shutdown()
        with pytest.raises(ShuttingDownError):
            await manager.submit_many("x", [notes.note("a")])
    assert notes.names == []


async def test_a_store_refuses_what_it_cannot_keep() -> None:
    store = MemoryStore(clock=clock, limits=Limits(batch_size=3, key_length=30, value_size=100))
    manager, notes = one_lane(lambda: QueueManagerBuilder(clock=clock).with_storage(store))

    async def nothing() -> None: ...

    stray: Any = Work(nothing)
    unwritable: Any = notes.note("a")
    unwritable.arguments.name = object()
    too_much = (
        [notes.note("a")] * 4,
        {"a": notes.note("a"), "a key that is too long for this store": notes.note("b")},
        [notes.note("a"), notes.note("a" * 100)],
    )
    for commands in too_much:
        with pytest.raises(LimitExceededError):
            await manager.submit_many("x", commands)
    with pytest.raises(UnregisteredCommandError):
        await manager.submit_many("x", [notes.note("a"), stray])
    with pytest.raises(CommandPayloadError):
        await manager.submit_many("x", [notes.note("a"), unwritable])
    with pytest.raises(ValueError, match="priority"):
        await manager.submit_many("x", [notes.note("a")], priority=2**63)
    assert not await store.count()
    await manager.submit_many("x", [notes.note("a")] * 3)
    assert (await store.count())["x"].available == 3


async def test_a_store_is_asked_once() -> None:
    store = CountingStore()
    manager, notes = one_lane(lambda: QueueManagerBuilder(clock=clock).with_storage(store))
    tasks = len(asyncio.all_tasks())
    await manager.submit_many("x", [notes.note(f"{n}") for n in range(1000)])
    assert store.asked == [1000]
    assert len(asyncio.all_tasks()) == tasks


@everywhere
async def test_a_lane_with_partitions(build: Build) -> None:
    manager = build().with_lane("x", LaneConfig(0, 1, partitions=4), 0).build()
    notes = Notes(manager)
    async with manager:
        handles = await manager.submit_many("x", {f"{n}": notes.note(f"{n}") for n in range(40)})
        assert [await handle for handle in handles] == [f"{n}" for n in range(40)]
    assert sorted(notes.names) == sorted(f"{n}" for n in range(40))


async def test_a_partition_that_refuses_leaves_the_others_theirs() -> None:
    manager = on_a_store().with_lane("x", LaneConfig(0, 9, partitions=2), 0).build()
    notes = Notes(manager)
    lane = manager.queue().lanes["x"]
    keys = [f"{n}" for n in range(20)]
    busy = keys[0]
    async with manager:
        await manager.submit("x", notes.note(busy, 5), key=busy)
        await asyncio.sleep(1)
        commands = {key: notes.note(key) for key in keys}
        with pytest.raises(KeyAlreadyPresentError):
            await manager.submit_many("x", commands, if_present="reject")
        await manager.drain()
    others = [key for key in keys if lane.partition_of(key) is not lane.partition_of(busy)]
    assert others
    assert sorted(notes.names) == sorted([busy, *others])


async def test_in_memory_the_partitions_are_one_in_this() -> None:
    manager = in_memory().with_lane("x", LaneConfig(0, 9, partitions=2), 0).build()
    notes = Notes(manager)
    async with manager:
        await manager.submit("x", notes.note("0", 5), key="0")
        commands = {f"{n}": notes.note(f"{n}") for n in range(20)}
        with pytest.raises(KeyAlreadyPresentError):
            await manager.submit_many("x", commands, if_present="reject")
    assert notes.names == ["0"]


@everywhere
async def test_each_of_them_is_told_of_and_counted(build: Build) -> None:
    manager = build().with_lane("x", LaneConfig(0, 1), 0).with_metrics().build()
    notes = Notes(manager)
    events = manager.subscribe_filtered(lambda event: event.key == COMMAND_SUBMITTED)
    handles = await manager.submit_many("x", [notes.note("a"), notes.note("b")])
    told = [(await events.recv()).payload["command_id"] for _ in handles]
    assert told == [handle.id for handle in handles]
    assert manager.metrics is not None
    found = manager.metrics.snapshot().find("x", "note")
    assert found is not None
    assert found.submitted == 2
    await manager.close()


# On real stores


@pytest.fixture(params=["file", *KINDS])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with empty_store(request.param, tmp_path) as found:
        yield found


def test_many_commands_on_every_store(url: str) -> None:
    async def main() -> None:
        config = LaneConfig(0, 20)
        manager = QueueManagerBuilder().with_storage(url).with_lane("x", config, 0).build()
        notes = Notes(manager)
        plain = await manager.submit_many("x", [notes.note(f"{n}") for n in range(300)])
        mixed: dict[str, Any] = {"a": notes.note("a"), "b": notes.shout("b")}
        typed = await manager.submit_many("x", mixed, priority=-1)
        async with manager:
            results = await asyncio.gather(*(handle.wait() for handle in [*typed, *plain]))
            assert results == ["a", "B", *(f"{n}" for n in range(300))]
            held = await manager.submit("x", notes.note("held", 60), key="a")
            while held.status != "running":
                await asyncio.sleep(0.01)
            with pytest.raises(KeyAlreadyPresentError) as caught:
                await manager.submit_many("x", mixed, if_present="reject")
            assert caught.value.keys == ("a",)
            same: dict[str, Any] = {"b": notes.note("b"), "a": notes.note("a")}
            with pytest.raises(KeyAlreadyPresentError):
                await manager.submit_many("x", same, if_present="reject")
            await held.cancel()
            await manager.drain(30)
        assert sorted(notes.names) == sorted(["a", "b", "held", *(f"{n}" for n in range(300))])

    asyncio.run(main())


class OlderTracing:
    """As it was before there was `submit_many`."""

    @contextmanager
    def submitting(self, lane: str, kind: str, command_id: str) -> Generator[dict[str, str]]:
        yield {}

    def claimed(self, lane: str, count: int) -> None:
        pass

    @contextmanager
    def processing(self, *told: object) -> Generator[None]:
        yield

    @contextmanager
    def settling(self, lane: str, count: int) -> Generator[None]:
        yield


@everywhere
async def test_tracing_that_does_not_know_of_many_does_no_harm(build: Build) -> None:
    tracing: Any = OlderTracing()
    manager = build().with_lane("x", LaneConfig(0, 1), 0).with_tracing(tracing).build()
    notes = Notes(manager)
    async with manager:
        handles = await manager.submit_many("x", [notes.note("a"), notes.note("b")])
        assert [await handle for handle in handles] == ["a", "b"]
