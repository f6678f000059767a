"""Gathers: one command runs when all others are done, with what became of them."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import msgspec
import pytest

from leasedkeyq import MemoryStore
from leasedkeyq.errors import LimitExceededError
from leasedkeyq.lanes import (
    CommandCancelledError,
    CommandPayloadError,
    GatherOutcome,
    LaneConfig,
    QueueManager,
    QueueManagerBuilder,
    RetryPolicy,
    UnregisteredCommandError,
)
from leasedkeyq.lanes.durable import workflow
from leasedkeyq.lanes.presence.catalog_records import CATALOG_QUEUE
from leasedkeyq.model.requests import Limits
from tests.lanes.support import Build, clock, everywhere, now, on_a_store
from tests.lanes.trouble import Trouble

QUICK = LaneConfig(0, 4, retry_policy=RetryPolicy.none())


class Square(msgspec.Struct):
    """A result of a command of the tests."""

    number: int
    square: int


class Commands:
    """The commands of the tests, and what they were called with."""

    def __init__(self, manager: QueueManager) -> None:
        self.reports: list[list[GatherOutcome[Square]]] = []
        self.squared: list[int] = []
        self.broken = False

        @manager.command("square")
        async def square(number: int, seconds: float = 0.0) -> Square:
            await asyncio.sleep(seconds)
            self.squared.append(number)
            if number < 0:
                raise ValueError(f"{number} is negative")
            return Square(number, number * number)

        @manager.command("report")
        async def report(outcomes: list[GatherOutcome[Square]], title: str = "") -> str:
            self.reports.append(outcomes)
            if self.broken:
                raise LookupError("no paper")
            return title + ",".join(
                str(one.result.square) if one.result is not None else one.status for one in outcomes
            )

        self.square, self.report = square, report


def manager_of(build: Build) -> QueueManager:
    return build().with_lane("a", QUICK, 0).with_lane("b", QUICK, 1).build()


async def left_in(store: Any) -> dict[str, Any]:
    """The queues of gathers that are not empty."""
    counts = await store.count()
    return {name: count for name, count in counts.items() if "gather" in name}


@everywhere
async def test_then_runs_once_with_all_results_in_order(build: Build) -> None:
    manager = manager_of(build)
    commands = Commands(manager)
    async with manager:
        squares = [commands.square(n, 10.0 - n) for n in range(10)]
        handle = await manager.gather(squares, then=commands.report, lane="a")
        assert handle.status == "scheduled"
        assert await handle == "0,1,4,9,16,25,36,49,64,81"
        assert now() < 60
    [outcomes] = commands.reports
    assert outcomes == [GatherOutcome(result=Square(n, n * n)) for n in range(10)]


@everywhere
async def test_without_then_the_handle_has_the_outcomes(build: Build) -> None:
    manager = manager_of(build)
    commands = Commands(manager)
    async with manager:
        handle = await manager.gather([commands.square(n) for n in (3, -1, 2)], lane="a")
        outcomes = await handle
    assert [one.ok for one in outcomes] == [True, False, True]
    assert outcomes[0].result == Square(3, 9)
    assert (outcomes[1].status, outcomes[1].error_type) == ("failed", "ValueError")
    assert outcomes[1].error == "ValueError: -1 is negative"


@everywhere
async def test_a_gather_of_nothing_runs_then_at_once(build: Build) -> None:
    manager = manager_of(build)
    commands = Commands(manager)
    async with manager:
        assert await (await manager.gather([], then=commands.report, lane="a")) == ""
        with pytest.raises(ValueError, match="a gather of no commands"):
            await manager.gather([], lane="a")
    assert commands.reports == [[]]


@everywhere
async def test_then_has_other_arguments_and_a_lane_of_its_own(build: Build) -> None:
    manager = manager_of(build)
    commands = Commands(manager)
    async with manager:
        then = partial(commands.report, title="squares: ")
        squares = [commands.square(n) for n in (1, 2)]
        handle = await manager.gather(squares, then=then, lane="a", then_lane="b")
        assert (handle.lane, await handle) == ("b", "squares: 1,4")


@everywhere
async def test_every_way_to_end_is_an_outcome(build: Build) -> None:
    config = LaneConfig(0, 8, retry_policy=RetryPolicy.fixed(2, 1.0), timeout=30.0)
    manager = build().with_lane("a", config, 0).build()
    commands = Commands(manager)
    async with manager:
        squares = [commands.square(n, s) for n, s in [(1, 0), (-2, 0), (3, 60), (4, 20)]]
        handle = await manager.gather(squares, then=commands.report, lane="a")
        await asyncio.sleep(10)
        [key] = [key for key in await running_keys(manager) if key.endswith(".3")]
        assert await manager.cancel("a", key)
        assert await handle == "1,failed,timed_out,cancelled"
        assert await manager.dlq.len() == 2
    [outcomes] = commands.reports
    assert [one.error_type for one in outcomes] == [
        "",
        "ValueError",
        "CommandTimeoutError",
        "CommandCancelledError",
    ]


async def running_keys(manager: QueueManager) -> list[str]:
    engine: Any = manager.queue()._engine
    return [job.key for job in engine.running]


@everywhere
async def test_a_member_that_waits_can_be_cancelled(build: Build) -> None:
    config = LaneConfig(0, 1, retry_policy=RetryPolicy.none())
    manager = build().with_lane("a", config, 0).build()
    commands = Commands(manager)
    async with manager:
        squares = [commands.square(n, 10.0) for n in (1, 2)]
        handle = await manager.gather(squares, then=commands.report, lane="a")
        await asyncio.sleep(1)
        assert await manager.cancel("a", f"{handle.key}.1")
        assert await handle == "1,cancelled"


@everywhere
async def test_a_requeued_dead_letter_of_a_member_changes_nothing(build: Build) -> None:
    manager = manager_of(build)
    commands = Commands(manager)
    async with manager:
        squares = [commands.square(n) for n in (1, -2)]
        assert await (await manager.gather(squares, then=commands.report, lane="a")) == "1,failed"
        [letter] = await manager.dlq.list()
        assert await manager.dlq.requeue(letter)
        await manager.drain()
    assert commands.squared == [1, -2, -2]
    assert len(commands.reports) == 1


@everywhere
async def test_a_requeued_dead_letter_of_then_gets_the_outcomes_again(build: Build) -> None:
    manager = manager_of(build)
    commands = Commands(manager)
    commands.broken = True
    async with manager:
        squares = [commands.square(n) for n in (1, 2)]
        handle = await manager.gather(squares, then=commands.report, lane="a")
        with pytest.raises(LookupError, match="no paper"):
            await handle
        commands.broken = False
        [letter] = await manager.dlq.list()
        assert await manager.dlq.requeue(letter)
        await manager.drain()
    assert [len(outcomes) for outcomes in commands.reports] == [2, 2]
    assert commands.reports[0] == commands.reports[1]


@everywhere
async def test_cancelling_a_gather_cancels_its_members(build: Build) -> None:
    config = LaneConfig(0, 2, retry_policy=RetryPolicy.none())
    manager = build().with_lane("a", config, 0).build()
    commands = Commands(manager)
    async with manager:
        squares = [commands.square(n, 100.0) for n in range(5)]
        handle = await manager.gather(squares, then=commands.report, lane="a")
        await asyncio.sleep(10)
        assert await handle.cancel()
        with pytest.raises(CommandCancelledError):
            await handle
        await manager.drain()
    assert (commands.squared, commands.reports) == ([], [])


@everywhere
async def test_what_has_not_ended_in_time_is_lost(build: Build) -> None:
    manager = manager_of(build)
    commands = Commands(manager)
    async with manager:
        squares = [commands.square(n, 100.0 * n) for n in range(3)]
        handle = await manager.gather(squares, then=commands.report, lane="a", within=150)
        assert await handle == "0,1,lost"
        assert now() < 160
        assert "nothing was heard of it in time" in commands.reports[0][2].error
        await manager.drain()
    assert commands.squared == [0, 1, 2]
    assert len(commands.reports) == 1


async def test_a_member_that_was_removed_by_hand_is_lost_in_time() -> None:
    store = MemoryStore(clock=clock)
    manager = store_manager(store)
    commands = Commands(manager)
    async with manager:
        await manager.pause("a")
        squares = [commands.square(n) for n in range(2)]
        handle = await manager.gather(
            squares, then=commands.report, lane="a", then_lane="b", within=1000
        )
        assert await store.queue("a").remove(f"{handle.key}.1")
        await manager.resume("a")
        assert await handle == "0,lost"


def store_manager(store: MemoryStore) -> QueueManager:
    builder = QueueManagerBuilder(clock=clock).with_lane("a", QUICK, 0).with_lane("b", QUICK, 1)
    return builder.with_storage(store).build()


async def test_nothing_of_a_gather_stays_in_the_store() -> None:
    store = MemoryStore(clock=clock)
    manager = store_manager(store)
    commands = Commands(manager)
    await manager.start()
    squares = [commands.square(n) for n in (1, -2)]
    await (await manager.gather(squares, then=commands.report, lane="a"))
    await (await manager.gather(squares, lane="a"))
    cancelled = await manager.gather([commands.square(1, 100.0)], lane="a")
    assert await left_in(store)
    assert await cancelled.cancel()
    await asyncio.sleep(1)
    assert await left_in(store) == {}
    assert await manager.dlq.requeue_all() == 2
    await manager.drain()
    assert await left_in(store) == {}
    await manager.close()


@pytest.mark.parametrize("moment", [5.0, 15.0, 25.0])
async def test_nothing_stays_of_a_gather_whose_call_was_cancelled(moment: float) -> None:
    """Each put takes ten seconds: of the plan, of what gets the outcomes, of the members."""
    store = Trouble()
    store.takes["put"] = 10.0
    manager = store_manager(store)
    commands = Commands(manager)
    calling = asyncio.create_task(manager.gather([commands.square(1)], lane="a"))
    await asyncio.sleep(moment)
    calling.cancel()
    await asyncio.wait([calling])
    assert calling.cancelled()
    await asyncio.sleep(30)
    assert await left_in(store) == {}
    count = (await store.count(["a"]))["a"]
    assert (count.available, count.scheduled) == (0, 0)
    await manager.close()


async def test_outcomes_whose_then_never_runs_are_forgotten_in_the_end() -> None:
    store = MemoryStore(clock=clock)
    manager = store_manager(store)
    commands = Commands(manager)
    commands.broken = True
    async with manager:
        squares = [commands.square(n) for n in (1, 2)]
        handle = await manager.gather(squares, then=commands.report, lane="a", within=1000)
        with pytest.raises(LookupError):
            await handle
        assert await left_in(store)
        await asyncio.sleep(3000)
        await (await manager.gather(squares, lane="a"))
        await asyncio.sleep(1)
        assert await left_in(store) == {}
        commands.broken = False
        [letter] = await manager.dlq.list()
        await manager.dlq.requeue(letter)
        await manager.drain()
        [letter] = await manager.dlq.list()
        assert "are not kept any more" in letter.error
    assert len(commands.reports) == 1


async def test_another_manager_knows_the_gather_by_its_handle() -> None:
    store = MemoryStore(clock=clock)
    submitter, worker = store_manager(store), store_manager(store)
    mine, theirs = Commands(submitter), Commands(worker)
    squares = [mine.square(n) for n in (1, 2, -3)]
    told = await submitter.gather(squares, then=mine.report, lane="a")
    listed = await submitter.gather(squares, lane="a")
    await worker.start()
    assert await told == "1,4,failed"
    assert [one.result for one in await listed] == [Square(1, 1), Square(2, 4), None]
    assert len(theirs.reports) == 1
    await worker.close()
    await submitter.close()


async def test_members_of_one_lane_take_few_trips() -> None:
    """Submitting, recording and reading do not grow with the number of members, in trips."""
    store = MemoryStore(clock=clock)
    trips = count_calls(store, "put", "settle", "look", "count", "edit")
    config = LaneConfig(0, 500, retry_policy=RetryPolicy.none())
    builder = QueueManagerBuilder(clock=clock).with_lane("a", config, 0)
    manager = builder.with_storage(store).build()
    commands = Commands(manager)
    handle = await manager.gather([commands.square(n) for n in range(500)], lane="a")
    assert trips["put"] == 3
    async with manager:
        assert len(await handle) == 500
        assert trips["edit"] == 1
        assert trips["count"] < 50


def count_calls(store: Any, *names: str) -> dict[str, int]:
    counted = dict.fromkeys(names, 0)

    def counting(name: str, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        def counted_call(*args: Any, **kwargs: Any) -> Awaitable[Any]:
            # A worker that starts tells which lanes and types it has: that is not counted.
            counted[name] += getattr(args[0], "queue", "") != CATALOG_QUEUE
            return call(*args, **kwargs)

        return counted_call

    for name in names:
        inner = f"do_{name}"
        setattr(store, inner, counting(name, getattr(store, inner)))
    return counted


@everywhere
async def test_what_cannot_be_gathered_is_refused_and_nothing_is_submitted(build: Build) -> None:
    manager = manager_of(build)
    commands = Commands(manager)
    gather: Any = manager.gather

    @manager.command("none")
    async def none() -> None: ...

    one = [commands.square(1)]
    with pytest.raises(CommandPayloadError, match="'none' do not fit: no parameter is left"):
        await gather(one, then=none, lane="a")
    with pytest.raises(TypeError, match="then is <report"):
        await gather(one, then=commands.report([]), lane="a")
    with pytest.raises(TypeError, match="'square' is a type of command; call it"):
        await gather([commands.square], lane="a")
    with pytest.raises(TypeError, match="commands must be commands"):
        await gather(17, lane="a")
    with pytest.raises(ValueError, match="within must be above 0"):
        await gather(one, lane="a", within=0)
    assert (await manager.stats()).total_pending == 0
    await manager.close()


async def test_a_store_refuses_what_it_cannot_keep_before_anything_is_submitted() -> None:
    store = MemoryStore(clock=clock, limits=Limits(batch_size=5))
    manager = store_manager(store)
    commands = Commands(manager)

    class Unknown:
        command_type = "unknown"

        async def execute(self) -> int:
            return 1

    mixed: list[Any] = [commands.square(1), Unknown()]
    with pytest.raises(UnregisteredCommandError, match="'unknown'"):
        await manager.gather(mixed, lane="a")
    with pytest.raises(LimitExceededError, match="6 commands"):
        await manager.gather([commands.square(n) for n in range(6)], lane="a")
    assert await store.count() == {}
    await manager.close()


async def test_a_gather_that_is_refused_halfway_is_taken_back() -> None:
    store = MemoryStore(clock=clock)
    manager = store_manager(store)
    commands = Commands(manager)
    engine: Any = manager.queue()._engine
    put_parts = engine._submissions.put_parts

    async def failing(lane: Any, some: Any, puts: Any) -> Any:
        if len(some) > 1:
            raise ConnectionError("the store is gone")
        return await put_parts(lane, some, puts)

    engine._submissions.put_parts = failing
    with pytest.raises(ConnectionError):
        await manager.gather([commands.square(n) for n in range(3)], lane="a")
    await asyncio.sleep(1)
    counts = await store.count()
    assert {name: count.scheduled + count.available for name, count in counts.items()} == {}
    await manager.close()


async def test_a_result_that_cannot_be_written_down_is_told_as_failed() -> None:
    manager = manager_of(on_a_store)

    @manager.command("odd")
    async def odd() -> object:
        return object()

    async with manager:
        [outcome] = await (await manager.gather([odd()], lane="a"))
    assert outcome.status == "failed"
    assert "the result of command 'odd' cannot be written down" in outcome.error


def test_the_limits_of_gathers_are_what_the_page_says() -> None:
    assert workflow.CONTINUATION_KEPT == 7 * 86400
