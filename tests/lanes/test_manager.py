"""What a manager does with commands, in memory and on a store."""

import asyncio
import logging

import pytest

from leasedkeyq import MemoryStore
from leasedkeyq.errors import KeyAlreadyPresentError
from leasedkeyq.lanes import (
    CommandCancelledError,
    CommandExitError,
    CommandTimeoutError,
    DrainTimeoutError,
    LaneConfig,
    ManagerClosedError,
    PriorityBoostConfig,
    QueueManager,
    QueueManagerBuilder,
    RateLimitConfig,
    RetryPolicy,
    ShuttingDownError,
)
from tests.lanes.diary import Diary
from tests.lanes.support import Build, Work, everywhere, in_memory, nothing, now, on_a_store


async def test_a_manager_knows_its_builder_and_the_builder_its_storage() -> None:
    store = MemoryStore()
    builder = QueueManagerBuilder().with_lane("x", LaneConfig(0, 1), 0).with_drain_timeout(7)
    assert QueueManagerBuilder().storage is None
    manager = builder.with_storage(store).build()
    assert manager.builder is builder
    assert builder.storage is store
    assert manager.drain_timeout == 7.0
    assert QueueManager(manager.queue()).builder is None


@everywhere
async def test_a_command_gives_its_result(build: Build) -> None:
    manager = build().with_default_lanes().build()
    diary = Diary(manager)
    async with manager:
        handle = await manager.submit("query", diary.note("a", 1.5))
        assert (handle.lane, handle.command_type) == ("query", "note")
        assert await handle == "a"
        assert await handle == "a"
        assert handle.status == "completed"
        assert handle.done()
        assert handle.attempt == 1
        assert now() == pytest.approx(1.5)


@everywhere
async def test_a_command_gives_its_exception(build: Build) -> None:
    manager = build().with_default_lanes().build()
    diary = Diary(manager)
    async with manager:
        handle = await manager.submit("query", diary.flaky(1))
        with pytest.raises(ValueError, match="failure 1"):
            await handle
        assert handle.status == "failed"


@everywhere
async def test_what_is_submitted_before_the_start_waits_for_it(build: Build) -> None:
    manager = build().with_default_lanes().build()
    diary = Diary(manager)
    handle = await manager.submit("query", diary.note("early"))
    await asyncio.sleep(5)
    assert handle.status == "pending"
    async with manager:
        assert await handle == "early"


@everywhere
async def test_a_cancelled_wait_does_not_cancel_the_command(build: Build) -> None:
    manager = build().with_default_lanes().build()
    diary = Diary(manager)
    async with manager:
        handle = await manager.submit("query", diary.note("a", 2))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(handle.wait(), 1)
        assert await handle == "a"


@everywhere
async def test_lanes_go_by_priority_and_commands_by_age(build: Build) -> None:
    builder = build().with_capacity(1)
    builder.with_lane("low", LaneConfig(0, 4), 5).with_lane("high", LaneConfig(0, 4), 1)
    manager = builder.build()
    diary = Diary(manager)
    for number in range(3):
        await manager.submit("low", diary.note(f"low {number}", 1))
    for number in range(3):
        await manager.submit("high", diary.note(f"high {number}", 1))
    await manager.submit("high", diary.note("high first", 1), priority=-7)
    async with manager:
        await manager.drain()
    names = ["high first", "high 0", "high 1", "high 2", "low 0", "low 1", "low 2"]
    assert diary.names == names
    assert [moment for moment, _ in diary.lines] == [0, 1, 2, 3, 4, 5, 6]


@everywhere
async def test_lanes_of_one_priority_share_by_age(build: Build) -> None:
    builder = build().with_capacity(1)
    builder.with_lane("a", LaneConfig(0, 4), 1).with_lane("b", LaneConfig(0, 4), 1)
    manager = builder.build()
    diary = Diary(manager)
    for lane in ("a", "b", "b", "a", "b"):
        await manager.submit(lane, diary.note(lane, 1))
    async with manager:
        await manager.drain()
    assert diary.names == ["a", "b", "b", "a", "b"]


@everywhere
async def test_a_lane_runs_no_more_than_its_maximum(build: Build) -> None:
    manager = build().with_lane("x", LaneConfig(0, 3), 0).build()
    diary = Diary(manager)
    async with manager:
        for number in range(10):
            await manager.submit("x", diary.note(str(number), 1))
        await manager.drain()
    assert diary.most == 3
    assert now() == pytest.approx(4)


@everywhere
async def test_a_flood_above_does_not_starve_a_lane_with_a_minimum(build: Build) -> None:
    builder = build().with_capacity(3)
    builder.with_lane("flood", LaneConfig(0, 3), 0).with_lane("calm", LaneConfig(1, 1), 9)
    manager = builder.build()
    diary = Diary(manager)
    async with manager:
        for number in range(20):
            await manager.submit("flood", diary.note(f"f{number}", 1))
        handle = await manager.submit("calm", diary.note("calm", 1))
        assert await handle == "calm"
        assert now() == pytest.approx(1)
        await manager.drain()
    assert diary.most == 3


@everywhere
async def test_an_update_of_a_waiting_key_joins_the_first(build: Build) -> None:
    manager = build().with_default_lanes().build()
    diary = Diary(manager)
    first = await manager.submit("query", diary.note("old"), key="k")
    second = await manager.submit("query", diary.note("new"), key="k", if_present="update")
    async with manager:
        assert await first == "new"
        assert await second == "new"
    assert diary.names == ["new"]


@everywhere
async def test_a_running_key(build: Build) -> None:
    manager = build().with_default_lanes().build()
    diary = Diary(manager)
    async with manager:
        first = await manager.submit("query", diary.note("first", 1), key="k")
        await asyncio.sleep(0.5)
        joined = await manager.submit("query", diary.note("no"), key="k", if_present="skip")
        after = await manager.submit("query", diary.note("after"), key="k", if_present="update")
        with pytest.raises(KeyAlreadyPresentError):
            await manager.submit("query", diary.note("no"), key="k", if_present="reject")
        assert [await first, await joined, await after] == ["first", "first", "after"]
    assert diary.lines == [(0, "first"), (1, "after")]


@everywhere
async def test_a_retry_waits_without_a_slot(build: Build) -> None:
    config = LaneConfig(0, 1, retry_policy=RetryPolicy.exponential(3))
    manager = build().with_lane("x", config, 0).build()
    diary = Diary(manager)
    async with manager:
        handle = await manager.submit("x", diary.flaky(2))
        other = await manager.submit("x", diary.note("between"))
        await other
        await asyncio.sleep(0.5)
        assert handle.status == "scheduled"
        assert (await manager.stats()).total_scheduled == 1
        assert await handle == "at last"
        assert handle.attempt == 3
    assert diary.lines == [(0, "attempt 1"), (0, "between"), (1, "attempt 2"), (3, "attempt 3")]
    lane = (await manager.stats()).lanes["x"]
    assert (lane.retried, lane.completed, lane.failed) == (2, 2, 0)


@everywhere
async def test_drain_waits_for_retries_and_delays(build: Build) -> None:
    config = LaneConfig(0, 1, retry_policy=RetryPolicy.fixed(1, 10))
    manager = build().with_lane("x", config, 0).build()
    diary = Diary(manager)
    async with manager:
        await manager.submit("x", diary.flaky(1))
        await manager.submit("x", diary.note("later"), delay=30)
        with pytest.raises(DrainTimeoutError, match=r"2 commands .*2 in lane 'x'") as caught:
            await manager.drain(5)
        assert caught.value.left == {"x": 2}
        await manager.drain()
        assert now() == pytest.approx(30)
    assert diary.lines == [(0, "attempt 1"), (10, "attempt 2"), (30, "later")]


@everywhere
async def test_what_fails_for_good_is_a_dead_letter(build: Build) -> None:
    config = LaneConfig(0, 1, retry_policy=RetryPolicy.fixed(1, 1))
    manager = build().with_lane("x", config, 0).with_dlq(10).build()
    diary = Diary(manager)
    async with manager:
        handle = await manager.submit("x", diary.flaky(2), key="k")
        with pytest.raises(ValueError, match="failure 2"):
            await handle
        (letter,) = await manager.dlq.list()
        assert (letter.lane, letter.command_type, letter.key) == ("x", "flaky", "k")
        assert letter.error == "ValueError: failure 2"
        assert "raise ValueError" in letter.traceback
        assert letter.attempts == 2
        assert letter.failed_at - letter.submitted_at == pytest.approx(1, abs=0.01)
        assert await manager.dlq.requeue(letter)
        assert not await manager.dlq.requeue(letter)
        await manager.drain()
        assert await manager.dlq.len() == 0
    assert diary.names == ["attempt 1", "attempt 2", "attempt 3"]


@everywhere
async def test_dead_letters_are_limited(build: Build) -> None:
    manager = build().with_lane("x", LaneConfig(0, 1), 0).with_dlq(2).build()
    diary = Diary(manager)
    async with manager:
        for _ in range(3):
            with pytest.raises(ValueError, match="failure"):
                await (await manager.submit("x", diary.flaky(9)))
        await asyncio.sleep(1)
        errors = [letter.error for letter in await manager.dlq.list()]
        assert errors == ["ValueError: failure 2", "ValueError: failure 3"]
        oldest = await manager.dlq.pop()
        assert oldest is not None
        assert oldest.error == "ValueError: failure 2"
        assert await manager.dlq.clear() == 1
        assert await manager.dlq.pop() is None


@everywhere
async def test_a_time_out_cancels(build: Build) -> None:
    config = LaneConfig(0, 1, timeout=2, retry_policy=RetryPolicy.fixed(1, 1))
    manager = build().with_lane("x", config, 0).build()
    diary = Diary(manager)
    async with manager:
        handle = await manager.submit("x", diary.note("slow", 60))
        with pytest.raises(CommandTimeoutError, match="longer than 2"):
            await handle
        assert handle.status == "timed_out"
        assert now() == pytest.approx(5)
        quick = await manager.submit("x", diary.note("quick", 3), timeout=4)
        assert await quick == "quick"
    assert (await manager.stats()).lanes["x"].timed_out == 2


async def test_a_command_that_does_not_stop_is_left_to_itself(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = LaneConfig(0, 1, timeout=1, cancel_grace=2, retry_policy=RetryPolicy.fixed(5, 1))
    manager = in_memory().with_lane("x", config, 0).build()
    done = False

    async def stubborn() -> None:
        nonlocal done
        for _ in range(2):
            try:
                await asyncio.sleep(100)
            except asyncio.CancelledError:
                continue
        done = True

    async with manager:
        handle = await manager.submit("x", Work(stubborn))
        with caplog.at_level(logging.ERROR), pytest.raises(CommandTimeoutError, match="not stop"):
            await handle
        assert now() == pytest.approx(3)
        assert "did not stop within 2" in caplog.text
        assert await manager.dlq.len() == 1
        assert await (await manager.submit("x", Work(nothing))) is None
        await asyncio.sleep(300)
        assert done


@everywhere
async def test_cancelling(build: Build) -> None:
    manager = build().with_lane("x", LaneConfig(0, 1), 0).build()
    diary = Diary(manager)
    async with manager:
        running = await manager.submit("x", diary.note("running", 60), key="r")
        waiting = await manager.submit("x", diary.note("waiting"), key="w")
        await asyncio.sleep(1)
        assert await waiting.cancel()
        assert await manager.cancel("x", "r")
        for handle in (waiting, running):
            with pytest.raises(CommandCancelledError, match="was cancelled"):
                await handle
            assert handle.status == "cancelled"
            assert not await handle.cancel()
        assert not await manager.cancel("x", "r")
        assert now() == pytest.approx(1)
        await manager.drain(1)
    assert diary.names == ["running"]
    assert (await manager.stats()).lanes["x"].cancelled == 2


@everywhere
async def test_pausing(build: Build) -> None:
    manager = build().with_lane("x", LaneConfig(0, 1), 0).build()
    diary = Diary(manager)
    async with manager:
        manager.pause("x")
        handle = await manager.submit("x", diary.note("a"))
        await asyncio.sleep(10)
        assert handle.status == "pending"
        assert (await manager.stats()).lanes["x"].paused
        manager.resume("x")
        assert await handle == "a"
    assert diary.lines == [(10, "a")]


@everywhere
async def test_a_rate_limit(build: Build) -> None:
    config = LaneConfig(0, 10, rate_limit=RateLimitConfig.per_second(2, burst=1))
    manager = build().with_lane("x", config, 0).build()
    diary = Diary(manager)
    async with manager:
        await asyncio.sleep(10)
        for number in range(4):
            await manager.submit("x", diary.note(str(number)))
        await manager.drain()
    assert [moment for moment, _ in diary.lines] == pytest.approx([10, 10.5, 11, 11.5], abs=0.01)


@everywhere
async def test_a_rate_limit_for_each_key(build: Build) -> None:
    config = LaneConfig(0, 10, key_rate_limit=RateLimitConfig.per_second(1, burst=1))
    manager = build().with_lane("x", config, 0).build()
    diary = Diary(manager)
    async with manager:
        for key in ("a", "b"):
            await manager.submit("x", diary.note(f"{key}1"), key=key)
        await manager.drain()
        for key in ("a", "b"):
            await manager.submit("x", diary.note(f"{key}2"), key=key)
        await manager.drain()
    assert sorted(diary.lines) == [(0, "a1"), (0, "b1"), (1, "a2"), (1, "b2")]


@everywhere
async def test_partitions_run_beside_each_other(build: Build) -> None:
    manager = build().with_lane("x", LaneConfig(0, 3, partitions=4), 0).build()
    diary = Diary(manager)
    async with manager:
        for number in range(12):
            await manager.submit("x", diary.note(str(number), 1), key=f"k{number}")
        await manager.drain()
    assert diary.most == 3


@everywhere
async def test_a_deadline_lifts_a_lane(build: Build) -> None:
    builder = build().with_capacity(1)
    boosted = LaneConfig(0, 4, priority_boost=PriorityBoostConfig.standard(8))
    builder.with_lane("low", boosted, 4).with_lane("high", LaneConfig(0, 4), 2)
    manager = builder.build()
    diary = Diary(manager)
    async with manager:
        await manager.submit("low", diary.note("block", 1))
        while not diary.lines:
            await asyncio.sleep(0)
        await manager.submit("low", diary.note("low", 1))
        for number in range(12):
            await manager.submit("high", diary.note(f"high {number}", 1))
        await manager.drain()
    # At 50 % of its 8 s the lane is at 2, equal to the other, and older; below that it is behind.
    assert diary.lines[4] == (4, "low")


@everywhere
async def test_events_tell_the_story(build: Build) -> None:
    config = LaneConfig(0, 1, retry_policy=RetryPolicy.fixed(1, 1))
    manager = build().with_lane("x", config, 0).build()
    diary = Diary(manager)
    told = manager.subscribe()
    failed = manager.subscribe_filtered(lambda event: event.key.endswith(".failed"))
    async with manager:
        with pytest.raises(ValueError, match="failure"):
            await (await manager.submit("x", diary.flaky(9), key="k"))
        await (await manager.submit("x", diary.note("a")))
    keys: list[str] = []
    while len(keys) < 10:
        event = await told.recv()
        keys.append(event.key.removeprefix("queue."))
        if event.key == "queue.shutdown.started":
            break
        assert event.payload["lane"] == "x"
    assert keys[:2] == ["command.submitted", "command.started"]
    assert keys[2:4] == ["command.retry", "command.started"]
    assert sorted(keys[4:6]) == ["command.dead_lettered", "command.failed"]
    assert keys[6:] == [
        "command.submitted",
        "command.started",
        "command.completed",
        "shutdown.started",
    ]
    event = await failed.recv()
    assert event.payload["error"] == "ValueError: failure 2"
    assert event.payload["attempt"] == 2


async def test_pressure_is_told_once_and_idle_after_it() -> None:
    manager = in_memory().with_lane("x", LaneConfig(0, 1, pressure_threshold=3), 0).build()
    told = manager.subscribe_filtered(lambda event: event.key.startswith("queue.lane"))
    async with manager:
        for _ in range(6):
            await manager.submit("x", Work(nothing))
        await manager.drain()
    assert (await told.recv()).payload == {"lane": "x", "pending": 3, "threshold": 3}
    assert (await told.recv()).key == "queue.lane.idle"


@everywhere
async def test_after_a_shutdown_nothing_is_taken_and_all_is_done(build: Build) -> None:
    manager = build().with_default_lanes().build()
    diary = Diary(manager)
    async with manager:
        handle = await manager.submit("query", diary.note("a", 1))
        assert not manager.is_shutting_down()
        await manager.shutdown()
        assert manager.is_shutting_down()
        with pytest.raises(ShuttingDownError, match="shutting down"):
            await manager.submit("query", diary.note("b"))
        await manager.drain(5)
        assert handle.status == "completed"


async def test_what_is_left_in_memory_is_told_as_lost(caplog: pytest.LogCaptureFixture) -> None:
    builder = in_memory().with_lane("x", LaneConfig(0, 1, cancel_grace=1), 0)
    manager = builder.with_drain_timeout(1).build()
    diary = Diary(manager)
    async with manager:
        running = await manager.submit("x", diary.note("a", 60))
        waiting = await manager.submit("x", diary.note("b", 60))
    for handle in (running, waiting):
        assert handle.status == "lost"
        with pytest.raises(ManagerClosedError):
            await handle
    assert "2 commands were not run, and are lost: 2 in lane 'x'" in caplog.text
    with pytest.raises(ManagerClosedError):
        await manager.start()


async def test_what_is_left_in_a_store_stays_there(caplog: pytest.LogCaptureFixture) -> None:
    builder = on_a_store().with_lane("x", LaneConfig(0, 1, cancel_grace=1), 0)
    first = builder.with_drain_timeout(1).build()
    diary = Diary(first)
    async with first:
        await first.submit("x", diary.note("a", 60), key="a")
        await first.submit("x", diary.note("b", 2), key="b")
        await asyncio.sleep(0.5)
    assert "2 commands stay in the store: 2 in lane 'x'" in caplog.text
    second = builder.with_drain_timeout(None).build()
    # The registry is the builder's, so the second manager knows the commands.
    async with second:
        await second.drain()
    assert diary.names == ["a", "a", "b"]


@everywhere
async def test_every_kind_of_exception_is_the_failure_of_its_command(build: Build) -> None:
    manager = build().with_lane("x", LaneConfig(0, 5), 0).build()

    @manager.command("raise")
    async def raising(which: str) -> None:
        raise {
            "exit": SystemExit(3),
            "interrupt": KeyboardInterrupt(),
            "cancelled": asyncio.CancelledError(),
            "error": ZeroDivisionError("no"),
            "group": ExceptionGroup("many", [ValueError("one")]),
        }[which]

    expected: dict[str, type[BaseException]] = {
        "exit": CommandExitError,
        "interrupt": CommandExitError,
        "cancelled": CommandCancelledError,
        "error": ZeroDivisionError,
        "group": ExceptionGroup,
    }
    async with manager:
        for which, kind in expected.items():
            handle = await manager.submit("x", raising(which))
            with pytest.raises(kind):
                await handle
            assert handle.status == "failed"
        assert await manager.dlq.len() == 5
