"""Schedules in virtual time: in memory and on a store alike."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import msgspec
import pytest

from leasedkeyq import MemoryStore, StoreError
from leasedkeyq.lanes import (
    COMMAND_SUBMITTED,
    CommandFunction,
    CommandStorage,
    Cron,
    Every,
    LaneConfig,
    LaneConfigError,
    LaneError,
    ManagerClosedError,
    QueueManager,
    QueueManagerBuilder,
    Schedule,
    ScheduleError,
    UnknownLaneError,
    UnknownScheduleError,
    UnregisteredCommandError,
    current_command,
    timetable,
)
from leasedkeyq.lanes.durable.schedules import (
    LEASE_TIME,
    SCHEDULES_QUEUE,
    StoreSchedules,
    read_record,
    write_record,
)
from leasedkeyq.model.edit import Edit
from leasedkeyq.model.requests import Claim, Put
from tests.lanes.support import EPOCH, Build, Work, clock, everywhere, nothing, now
from tests.lanes.test_storage import ListStorage

Runs = list[tuple[str, str, float]]
"""What has run: its argument, its key, and when, from the start of the test."""


def lanes(builder: QueueManagerBuilder) -> QueueManager:
    return builder.with_lane("reports", LaneConfig(0, 8), 0).build()


def recording(manager: QueueManager, runs: Runs) -> CommandFunction[[str], None]:
    """A command that notes when it runs."""

    @manager.command("report")
    async def report(text: str) -> None:
        runs.append((text, current_command().key, round(now(), 3)))

    return report


def moments(runs: Runs, text: str = "a") -> list[float]:
    return [moment for said, _, moment in runs if said == text]


@everywhere
async def test_each_tick_runs_once_at_its_time(build: Build) -> None:
    manager, runs = lanes(build()), Runs()
    report = recording(manager, runs)
    manager.schedule("often", report("a"), every=10, lane="reports")
    manager.schedule("seldom", report("b"), every=timedelta(seconds=25), lane="reports")
    async with manager:
        await asyncio.sleep(61)
        manager.schedule("late", report("c"), every=5, lane="reports")
        await asyncio.sleep(6)
    assert moments(runs, "a") == [10, 20, 30, 40, 50, 60]
    assert moments(runs, "b") == [25, 50]
    assert moments(runs, "c") == [66]
    assert runs[0][1] == f"often@{datetime.fromtimestamp(EPOCH + 10, UTC).isoformat()}"
    assert len({key for _, key, _ in runs}) == len(runs)


@everywhere
async def test_a_cron_expression_goes_by_its_time_zone(build: Build) -> None:
    manager, runs = lanes(build()), Runs()
    report = recording(manager, runs)
    morning = manager.schedule(
        "morning", "30 9 * * *", report("a"), lane="reports", tz="Europe/Berlin"
    )
    assert [tick.hour for tick in morning.next_runs(3)] == [9, 9, 9]
    async with manager:
        await asyncio.sleep(3600)
    assert moments(runs) == [1800]  # the tests begin at eight o'clock UTC


@everywhere
async def test_what_is_to_be_seen_of_a_schedule(build: Build) -> None:
    manager, runs = lanes(build()), Runs()
    report = recording(manager, runs)
    manager.schedule("b", report("a"), every=10, lane="reports", missed="all", jitter=2)
    manager.schedule("a", "0 3 * * *", report("a"), lane="reports", key="one", missed="skip")
    async with manager:
        await asyncio.sleep(15)
        first, second = await manager.schedules()
        assert (first.name, second.name) == ("a", "b")
        assert (first.expression, first.every, first.tz) == ("0 3 * * *", None, "UTC")
        assert (first.lane, first.command_type) == ("reports", "report")
        assert (first.key, first.missed, first.jitter) == ("one", "skip", 0.0)
        assert first.last_run is None
        assert first.runs == 0
        assert first.next_run == first.next_runs(1)[0]
        assert (second.expression, second.every) == (None, timedelta(seconds=10))
        assert (second.key, second.missed, second.jitter) == (None, "all", 2.0)
        assert second.last_run == datetime.fromtimestamp(EPOCH + 10, UTC)
        assert second.next_run == datetime.fromtimestamp(EPOCH + 20, UTC)
        assert second.declared_at == datetime.fromtimestamp(EPOCH, UTC)
        assert second.runs == 1
        later = [20, 30, 40]
        assert second.next_runs(3) == [datetime.fromtimestamp(EPOCH + n, UTC) for n in later]
        with pytest.raises(ValueError, match="count must be at least 1"):
            second.next_runs(0)
        with pytest.raises(AttributeError):
            second.name = "x"  # type: ignore[misc]  # that is what is tested  # pyright: ignore[reportAttributeAccessIssue]
        stats = await manager.stats()
        assert (stats.total_pending, stats.total_active) == (0, 0)


@everywhere
async def test_pause_resume_run_now_and_remove(build: Build) -> None:
    manager, runs = lanes(build()), Runs()
    report = recording(manager, runs)
    often = manager.schedule("often", report("a"), every=10, lane="reports")
    async with manager:
        await asyncio.sleep(11)
        await often.pause()
        await often.pause()
        paused = await often.refresh()
        assert (paused.paused, paused.next_run, paused.next_runs(2)) == (True, None, [])
        await asyncio.sleep(50)
        assert moments(runs) == [10]
        await (await often.run_now())
        assert moments(runs) == [10, 61]
        await often.resume()
        await often.resume()
        await asyncio.sleep(20)
        assert moments(runs) == [10, 61, 70, 80]
        assert runs[1][1].startswith("often@")
        assert await manager.unschedule("often")
        assert not await manager.unschedule("often")
        assert not await often.remove()
        for use in (often.pause, often.resume, often.run_now, often.refresh, often.declare):
            with pytest.raises(UnknownScheduleError, match="no schedule 'often'") as caught:
                await use()
            assert caught.value.schedule == "often"
        await asyncio.sleep(30)
    assert len(runs) == 4
    assert await manager.schedules() == []
    with pytest.raises(ManagerClosedError, match="schedule 'often': the manager was closed"):
        manager.schedule("often", report("a"), every=10, lane="reports")


@everywhere
async def test_shutting_down_ends_the_ticks_here_and_drains(build: Build) -> None:
    manager, runs = lanes(build()), Runs()
    report = recording(manager, runs)
    manager.schedule("often", report("a"), every=10, lane="reports")
    async with manager:
        await asyncio.sleep(25)
        await manager.drain(timeout=1)
        await asyncio.sleep(6)
    ended = now()
    assert moments(runs) == [10, 20, 30]
    assert ended == 31
    await asyncio.sleep(100)
    assert len(runs) == 3


@everywhere
async def test_jitter_delays_the_command_and_not_the_tick(build: Build) -> None:
    manager, runs = lanes(build()), Runs()
    report = recording(manager, runs)
    manager.schedule("often", report("a"), every=100, jitter=timedelta(seconds=50), lane="reports")
    async with manager:
        await asyncio.sleep(100 * 30 + 60)
    late = [moment - 100 * number for number, moment in enumerate(moments(runs), 1)]
    assert len(late) == 30
    assert all(0 <= seconds <= 50.1 for seconds in late)
    assert len(set(late)) > 10


@everywhere
async def test_a_key_lets_commands_run_one_by_one_and_skip_lets_none_pile_up(build: Build) -> None:
    manager = lanes(build())
    began: list[tuple[str, float]] = []

    @manager.command("slow", lane="reports")
    async def slow(text: str) -> None:
        began.append((text, now()))
        await asyncio.sleep(35)

    manager.schedule("a", slow("append"), every=10, key="one")
    manager.schedule("b", slow("skip"), every=10, key="two", if_present="skip")
    manager.schedule("c", slow("free"), every=30)
    async with manager:
        await asyncio.sleep(101)
        await manager.unschedule("a")
        await manager.unschedule("b")
        await manager.unschedule("c")
        manager.drain_timeout = 1000
    assert [at for text, at in began if text == "append"] == [10 + 35 * n for n in range(10)]
    assert [at for text, at in began if text == "skip"] == [10, 50, 90]
    assert [at for text, at in began if text == "free"] == [30, 60, 90]


@everywhere
async def test_lane_key_and_priority_of_the_type_of_a_command(build: Build) -> None:
    manager = lanes(build())
    keys: list[str] = []

    @manager.command("report", lane="reports", key=lambda month: f"month-{month}", priority=3)
    async def report(month: int) -> None:
        keys.append(current_command().key)

    schedule = manager.schedule("often", report(11), every=10)
    assert (schedule.lane, schedule.key) == ("reports", "month-11")
    async with manager:
        await asyncio.sleep(11)
    assert keys == ["month-11"]


@everywhere
async def test_what_is_wrong_is_refused_where_it_is_declared(build: Build) -> None:
    manager = lanes(build())
    report: Any = recording(manager, [])
    schedule: Any = manager.schedule
    command = report("a")
    wrong: list[tuple[type[Exception], str, tuple[Any, ...], dict[str, Any]]] = [
        (ScheduleError, "no cron expression", ("n", "0 25 * * *", command), {}),
        (ScheduleError, "no time zone", ("n", "0 3 * * *", command), {"tz": "Mars/Base"}),
        (ScheduleError, "neither of a cron", ("n", command), {}),
        (ScheduleError, "both of a cron", ("n", "0 3 * * *", command), {"every": 5}),
        (ScheduleError, "at least 0.001 s", ("n", command), {"every": 0}),
        (ValueError, "every", ("n", command), {"every": -5}),
        (ScheduleError, "at most a hundred years", ("n", command), {"every": 1e12}),
        (ScheduleError, "missed must be", ("n", command), {"every": 5, "missed": "never"}),
        (
            ScheduleError,
            'use "skip"',
            ("n", command),
            {"every": 5, "key": "k", "if_present": "reject"},
        ),
        (
            ScheduleError,
            "if_present needs a key",
            ("n", command),
            {"every": 5, "if_present": "skip"},
        ),
        (ValueError, "jitter", ("n", command), {"every": 5, "jitter": -1}),
        (ValueError, "timeout must be greater", ("n", command), {"every": 5, "timeout": 0}),
        (TypeError, "priority", ("n", command), {"every": 5, "priority": "high"}),
        (TypeError, "key must be a str", ("n", command), {"every": 5, "key": ""}),
        (TypeError, "name of a schedule", ("", command), {"every": 5}),
        (TypeError, "has no command", ("n", "0 3 * * *"), {}),
        (TypeError, "a cron expression is a str", ("n", 5, command), {}),
        (TypeError, "call it with its arguments", ("n", report), {"every": 5}),
        (UnknownLaneError, "no lane 'other'", ("n", command), {"every": 5, "lane": "other"}),
    ]
    for kind, message, arguments, options in wrong:
        with pytest.raises(kind, match=message):
            schedule(*arguments, **({"lane": "reports"} | options))
    with pytest.raises(LaneConfigError, match="no default lane"):
        schedule("n", command, every=5)
    assert await manager.schedules() == []


async def test_a_store_needs_a_registered_command() -> None:
    manager = lanes(QueueManagerBuilder(clock=clock).with_storage(MemoryStore(clock=clock)))
    with pytest.raises(UnregisteredCommandError, match="takes registered commands only"):
        manager.schedule("n", Work(nothing), every=5, lane="reports")
    in_memory = lanes(QueueManagerBuilder(clock=clock))
    in_memory.schedule("n", Work(nothing), every=5, lane="reports")


# With the command


@everywhere
async def test_a_command_has_its_schedule_where_it_is_registered(build: Build) -> None:
    manager = lanes(build())
    ran: list[tuple[str, float]] = []

    @manager.command("clean", lane="reports", schedule=timedelta(seconds=20))
    async def clean(days: int = 3) -> None:
        ran.append((f"clean {days}", now()))

    @manager.command("half", lane="reports", schedule="*/30 * * * *")
    def half() -> None:
        ran.append(("half", 0.0))

    @manager.command("more", lane="reports", schedule=Every(50, missed="all", jitter=1))
    @dataclass
    class More:
        text: str = "more"

        async def execute(self) -> None:
            ran.append((self.text, 0.0))

    @manager.command("both", lane="reports", schedule=Cron("0 3 * * *", tz="Asia/Tokyo"))
    async def both(number: int) -> None: ...

    manager.schedule("both", both(5), every=1000)  # it goes before what the type says
    async with manager:
        await asyncio.sleep(65)
        found = {schedule.name: schedule for schedule in await manager.schedules()}
        assert [*found] == ["both", "clean", "half", "more"]
        assert found["both"].every == timedelta(seconds=1000)
        assert (found["more"].missed, found["more"].jitter) == ("all", 1.0)
        assert found["half"].expression == "*/30 * * * *"
    assert [at for text, at in ran if text == "clean 3"] == [20, 40, 60]
    assert [text for text, _ in ran if text == "more"] == ["more"]
    assert clean.options.timing == Every(timedelta(seconds=20))


@everywhere
async def test_a_schedule_of_a_type_that_makes_no_sense_is_refused(build: Build) -> None:
    manager: Any = lanes(build())
    wrong: list[tuple[type[Exception], str, Any]] = [
        (ScheduleError, "schedule 'x': '5 5' is no cron expression", "5 5"),
        (ScheduleError, "no time zone 'Mars'", Cron("0 3 * * *", tz="Mars")),
        (ScheduleError, "missed must be", Cron("0 3 * * *", missed="never")),  # type: ignore[arg-type]  # tested  # pyright: ignore[reportArgumentType]
        (ScheduleError, "every must be at least", Every(0)),
        (ValueError, "jitter", Every(5, jitter=-1)),
        (TypeError, "command 'x': schedule must be a cron expression", 300),
    ]
    for kind, message, schedule in wrong:
        with pytest.raises(kind, match=message):
            manager.command("x", nothing, lane="reports", schedule=schedule)
    with pytest.raises(ScheduleError, match="its command has no lane"):
        manager.command("x", nothing, schedule="0 3 * * *")

    async def needs(month: int) -> None: ...

    manager.command("needs", needs, lane="reports", schedule="0 3 * * *")
    opened: list[str] = []

    async def resources() -> AsyncIterator[None]:
        opened.append("open")
        yield

    manager.lifespan(resources)
    with pytest.raises(ScheduleError, match="schedule 'needs': its command is submitted without"):
        await manager.start()
    assert opened == []
    await manager.close()


@pytest.mark.parametrize("lane", ["reports", "nowhere"])
async def test_a_schedule_that_is_refused_at_the_start_leaves_no_store_open(lane: str) -> None:
    """Of a manager that has opened its store by itself."""
    builder = QueueManagerBuilder().with_lane("reports", LaneConfig(), 0)
    manager = builder.with_storage("memory://").build()

    async def needs(month: int = 1) -> None: ...

    async def needs_more(month: int) -> None: ...

    function: Any = needs_more if lane == "reports" else needs
    manager.command("needs", function, lane=lane, schedule="0 3 * * *")
    store = manager.queue().store
    assert store is not None
    with pytest.raises(LaneError, match=r"needs|nowhere"):
        async with manager:
            pass
    with pytest.raises(StoreError, match="is closed"):
        await store.count()


# On a store: several programs, restarts, kills


def on(store: MemoryStore, runs: Runs) -> tuple[QueueManager, CommandFunction[[str], None]]:
    manager = lanes(QueueManagerBuilder(clock=clock).with_storage(store))
    return manager, recording(manager, runs)


async def test_workers_share_the_ticks_and_a_restart_goes_on_where_it_was() -> None:
    store, runs = MemoryStore(clock=clock), Runs()
    for _ in range(3):
        managers = [on(store, runs) for _ in range(3)]
        for manager, report in managers:
            manager.schedule("often", report("a"), every=10, lane="reports")
            await manager.start()
        await asyncio.sleep(34)
        for manager, _ in managers:
            await manager.close()
    assert moments(runs) == [10 * n for n in range(1, 11)]


@pytest.mark.parametrize(
    "missed, wanted",
    [("once", [10, 105, 110]), ("skip", [10, 110]), ("all", [10, *[105] * 9, 110])],
)
async def test_what_becomes_of_ticks_that_were_missed(missed: Any, wanted: list[float]) -> None:
    store, runs = MemoryStore(clock=clock), Runs()
    for sleep, pause in ((15, 90), (8, 0)):
        manager, report = on(store, runs)
        # Not declared again: the schedule is the store's.
        if pause:
            manager.schedule("often", report("a"), every=10, lane="reports", missed=missed)
        if missed == "skip":
            # The last tick before the worker is back is five seconds late: that is not missed.
            wanted = [10, 105, 110]
        await manager.start()
        await asyncio.sleep(sleep)
        await manager.close()
        await asyncio.sleep(pause)
    assert moments(runs) == wanted
    keys = [key for _, key, _ in runs]
    assert len(set(keys)) == len(keys)


async def test_skip_leaves_out_what_is_more_than_a_minute_late() -> None:
    store, runs = MemoryStore(clock=clock), Runs()
    manager, report = on(store, runs)
    schedule = manager.schedule("hourly", report("a"), every=3600, lane="reports", missed="skip")
    await schedule.declare()
    await asyncio.sleep(3 * 3600 + 61)
    await manager.start()
    await asyncio.sleep(3600)
    await manager.close()
    assert moments(runs) == [4 * 3600]


async def test_all_is_bounded_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    store, runs = MemoryStore(clock=clock), Runs()
    manager, report = on(store, runs)
    schedule = manager.schedule("often", report("a"), every=1, lane="reports", missed="all")
    await schedule.declare()
    await asyncio.sleep(1500.5)
    with caplog.at_level(logging.WARNING, "leasedkeyq"):
        await manager.start()
        await asyncio.sleep(0.1)
        await manager.drain()
        await manager.close()
    assert len(runs) == 1000
    ticks = sorted(key for _, key, _ in runs)
    assert ticks[-1] == f"often@{datetime.fromtimestamp(EPOCH + 1500, UTC).isoformat()}"
    assert "more than 1000 ticks were missed" in caplog.text


async def test_another_timetable_and_other_arguments_are_taken_up() -> None:
    store, runs = MemoryStore(clock=clock), Runs()
    steps: list[tuple[str, Any]] = [("a", 10), ("b", 10), ("b", 7)]
    for text, every in steps:
        manager, report = on(store, runs)
        manager.schedule("often", report(text), every=every, lane="reports")
        await manager.start()
        await asyncio.sleep(25)
        await manager.close()
    assert moments(runs, "a") == [10, 20]
    # The same timetable goes on as it was; another one is counted from when it was declared.
    assert moments(runs, "b") == [30, 40, 50, 57, 64, 71]


async def test_a_tick_that_is_due_is_fired_though_its_schedule_is_declared_otherwise() -> None:
    store, runs = MemoryStore(clock=clock), Runs()
    manager, report = on(store, runs)
    await manager.schedule("often", report("a"), every=10, lane="reports").declare()
    await asyncio.sleep(15)
    manager.schedule("often", report("b"), every=100, lane="reports")
    await manager.start()
    await asyncio.sleep(101)
    await manager.close()
    assert [(text, moment) for text, _, moment in runs] == [("b", 15), ("b", 115)]


async def test_programs_do_not_end_each_others_schedules() -> None:
    store, runs = MemoryStore(clock=clock), Runs()
    one, report = on(store, runs)
    other, same = on(store, runs)
    one.schedule("mine", report("a"), every=10, lane="reports")
    other.schedule("yours", same("b"), every=10, lane="reports")
    async with one, other:
        await asyncio.sleep(5)
        assert [schedule.name for schedule in await one.schedules()] == ["mine", "yours"]
        assert await other.unschedule("mine")
        await asyncio.sleep(20)
    again, report = on(store, runs)
    async with again:
        await asyncio.sleep(10)
        [left] = await again.schedules()
        assert left.declared_at == datetime.fromtimestamp(EPOCH, UTC)
    assert moments(runs, "a") == []
    assert moments(runs, "b") == [10, 20, 30]


async def test_a_process_that_is_no_worker_sees_and_changes_schedules() -> None:
    store, runs = MemoryStore(clock=clock), Runs()
    worker, _ = on(store, runs)
    await worker.start()
    visitor, report = on(store, runs)
    schedule = visitor.schedule("often", report("a"), every=10, lane="reports")
    assert (schedule.next_run, schedule.declared_at) == (None, None)
    assert await visitor.schedules() == []
    schedule = await schedule.declare()
    assert schedule.next_run == datetime.fromtimestamp(EPOCH + 10, UTC)
    await asyncio.sleep(11)
    assert moments(runs) == [10]
    [found] = await visitor.schedules()
    await found.pause()
    await asyncio.sleep(20)
    handle = await found.run_now()
    await handle
    await found.resume()
    await asyncio.sleep(10)
    assert moments(runs) == [10, 31, 40]
    await found.remove()
    await asyncio.sleep(20)
    assert len(runs) == 3
    await visitor.close()
    await worker.close()


async def test_a_worker_fires_the_schedules_of_its_lanes_only() -> None:
    store, runs = MemoryStore(clock=clock), Runs()
    visitor, report = on(store, runs)
    await visitor.schedule("often", report("a"), every=10, lane="reports").declare()
    other = QueueManagerBuilder(clock=clock).with_storage(store).with_lane("x", LaneConfig(0, 1), 0)
    async with other.build() as stranger:
        await asyncio.sleep(15)
        [schedule] = await stranger.schedules()
        assert schedule.runs == 0
        with pytest.raises(UnknownLaneError, match="no lane 'reports'"):
            await schedule.run_now()
    async with visitor:
        await asyncio.sleep(1)
    assert moments(runs) == [15]


async def test_a_paused_schedule_stays_paused_when_it_is_declared_again() -> None:
    store, runs = MemoryStore(clock=clock), Runs()
    for every in (10, 10, 5):
        manager, report = on(store, runs)
        schedule = manager.schedule("often", report("a"), every=every, lane="reports")
        async with manager:
            await asyncio.sleep(0.5)
            await schedule.pause()
            await asyncio.sleep(30)
    assert moments(runs) == []


async def test_the_event_of_a_submission_and_the_counters_know_of_ticks() -> None:
    store, runs = MemoryStore(clock=clock), Runs()
    manager, report = on(store, runs)
    manager.schedule("often", report("a"), every=10, lane="reports")
    submitted = manager.subscribe_filtered(lambda event: event.key == COMMAND_SUBMITTED)
    async with manager:
        await asyncio.sleep(21)
        assert (await anext(submitted)).payload["key"].startswith("often@")
        assert (await manager.stats()).lanes["reports"].submitted == 2
    submitted.close()


async def test_a_storage_of_somebody_else_keeps_schedules() -> None:
    storage, runs = ListStorage(), Runs()
    for _ in range(2):
        manager = lanes(QueueManagerBuilder(clock=clock).with_storage(storage))
        report = recording(manager, runs)
        if not runs:
            manager.schedule("often", report("a"), every=10, lane="reports", missed="all")
        async with manager:
            await asyncio.sleep(26)
            assert [schedule.name for schedule in await manager.schedules()] == ["often"]
    assert moments(runs) == [10, 20, 30, 40, 50]
    shown = CommandStorage(MemoryStore(clock=clock))
    manager = lanes(QueueManagerBuilder(clock=clock).with_storage(shown.store))
    await manager.schedule("n", recording(manager, [])("a"), every=5, lane="reports").declare()
    assert await shown.load_commands() == []
    await shown.clear_all()
    assert len(await manager.schedules()) == 1
    await manager.close()


async def test_a_lane_with_partitions() -> None:
    store, runs = MemoryStore(clock=clock), Runs()
    builder = QueueManagerBuilder(clock=clock).with_storage(store)
    manager = builder.with_lane("reports", LaneConfig(0, 8, partitions=4), 0).build()
    report = recording(manager, runs)
    manager.schedule("often", report("a"), every=10, lane="reports", missed="all")
    await manager.schedule("kept", report("b"), every=100, lane="reports", key="one").declare()
    await asyncio.sleep(125)
    async with manager:
        await asyncio.sleep(1)
    assert len({key for text, key, _ in runs if text == "a"}) == 12
    assert [key for text, key, _ in runs if text == "b"] == ["one"]


# Atomicity


class Crashing(MemoryStore):
    """A store whose user is gone at a chosen moment: it stops the world there."""

    crash: str = ""

    async def do_edit(self, edit: Edit) -> Any:
        ticking = edit.queue == SCHEDULES_QUEUE and bool(edit.others)
        if ticking and self.crash == "before":
            await asyncio.sleep(10**6)
        answers = await super().do_edit(edit)
        if ticking and self.crash == "after":
            await asyncio.sleep(10**6)
        return answers


@pytest.mark.parametrize("crash", ["before", "after"])
async def test_a_worker_that_dies_before_or_after_the_step_fires_no_tick_twice(crash: str) -> None:
    """There is no moment in between: the command and the next tick are one step."""
    inner, runs = MemoryStore(clock=clock), Runs()
    doomed = Crashing(clock=clock)
    doomed._model = inner._model
    doomed._watchers = inner._watchers
    doomed.crash = crash
    victim, report = on(doomed, [])
    victim.schedule("often", report("a"), every=20, lane="reports", missed="all")
    await victim.start()
    await victim.pause("reports")
    await asyncio.sleep(21)
    keeper = victim.queue().schedules
    assert isinstance(keeper, StoreSchedules)
    task = keeper._task
    assert task is not None
    task.remove_done_callback(keeper._ended)
    task.cancel()
    await victim.close()
    worker, _ = on(inner, runs)
    await worker.resume("reports")
    await worker.start()
    await asyncio.sleep(LEASE_TIME + 30)
    await worker.close()
    ticks = [key for _, key, _ in runs]
    wanted = [20, 40, 60]
    assert ticks == [f"often@{datetime.fromtimestamp(EPOCH + n, UTC).isoformat()}" for n in wanted]


async def test_a_worker_that_is_held_up_past_its_lease_changes_nothing() -> None:
    """It was stopped between its claim and its edit, and goes on when others have fired."""
    store, runs = MemoryStore(clock=clock), Runs()
    sleeper, report = on(store, runs)
    await sleeper.schedule("often", report("a"), every=5, lane="reports", missed="all").declare()
    await asyncio.sleep(5.5)
    [[claimed]] = await store.claim([Claim(((SCHEDULES_QUEUE, 1),), 1, None, LEASE_TIME)])
    worker, _ = on(store, runs)
    await worker.start()
    await asyncio.sleep(LEASE_TIME + 1)
    keeper = sleeper.queue().schedules
    assert isinstance(keeper, StoreSchedules)
    await keeper._fire(claimed, lambda: EPOCH + 6)
    await asyncio.sleep(4)
    await worker.close()
    await sleeper.close()
    keys = [key for _, key, _ in runs]
    assert len(set(keys)) == len(keys) == 4


async def test_what_is_declared_while_a_tick_is_fired_is_not_lost() -> None:
    store, runs = MemoryStore(clock=clock), Runs()
    manager, report = on(store, runs)
    schedule = manager.schedule("often", report("a"), every=5, lane="reports")
    await schedule.declare()
    await asyncio.sleep(5.5)
    [[claimed]] = await store.claim([Claim(((SCHEDULES_QUEUE, 1),), 1, None, LEASE_TIME)])
    changed = manager.schedule("often", report("b"), every=5, lane="reports", missed="all")
    await changed.declare()
    keeper = manager.queue().schedules
    assert isinstance(keeper, StoreSchedules)
    await keeper._fire(claimed, clock)
    found = await changed.refresh()
    assert (found.missed, found.runs) == ("all", 1)
    async with manager:
        await asyncio.sleep(0.1)
    assert [text for text, *_ in runs] == ["b"]


async def test_a_store_without_joint_edits_takes_two_steps_and_fires_no_tick_twice() -> None:
    store, runs = MemoryStore(clock=clock), Runs()
    store.capabilities = msgspec.structs.replace(store.capabilities, joint_edits=False)
    manager, report = on(store, runs)
    manager.schedule("often", report("a"), every=5, lane="reports")
    failures = [StoreError("away"), StoreError("away")]
    real = store.do_edit

    async def failing(edit: Edit) -> Any:
        # Behind the first step: the command is in the lane.
        if failures and now() > 4:
            raise failures.pop()
        return await real(edit)

    store.do_edit = failing  # type: ignore[method-assign]  # it dies there
    async with manager:
        await asyncio.sleep(31)
    keys = [key for _, key, _ in runs]
    assert len(set(keys)) == len(keys)
    assert not failures
    assert moments(runs)[0] == 5
    assert moments(runs)[-2:] == [25, 30]


def skewed(offset: float) -> float:
    return clock() + offset


async def test_a_clock_that_is_ahead_or_behind_moves_no_tick() -> None:
    """The store is a server: its clock decides, whatever those of the workers say."""
    store, runs = MemoryStore(clock=clock), Runs()
    for offset in (-300.0, 300.0):
        builder = QueueManagerBuilder(clock=partial(skewed, offset))
        manager = lanes(builder.with_storage(store))
        report = recording(manager, runs)
        manager.schedule("hourly", "0 * * * *", report("a"), lane="reports")
        await manager.start()
        await asyncio.sleep(2 * 3600 + 1)
        await manager.close()
    first = 3600 - EPOCH % 3600
    assert moments(runs) == [first + 3600 * n for n in range(4)]


async def test_a_record_that_cannot_be_read_stops_no_other_schedule(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, runs = MemoryStore(clock=clock), Runs()
    await store.put([Put(SCHEDULES_QUEUE, (("newer", b'{"version": 9}'),), kind="reports")])
    manager, report = on(store, runs)
    manager.schedule("often", report("a"), every=5, lane="reports")
    async with manager:
        await asyncio.sleep(11)
        assert [schedule.name for schedule in await manager.schedules()] == ["often"]
    assert moments(runs) == [5, 10]
    assert "schedule 'newer' could not be fired here" in caplog.text


async def test_a_priority_that_no_store_can_keep_is_refused_where_it_is_declared() -> None:
    manager, report = on(MemoryStore(clock=clock), Runs())
    with pytest.raises(ValueError, match=r"priority must be below 2\*\*63"):
        manager.schedule("often", report("a"), every=5, lane="reports", priority=2**63)
    assert await manager.schedules() == []


async def test_a_command_that_cannot_be_stored_stops_no_other_schedule(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, runs = MemoryStore(clock=clock), Runs()
    manager, report = on(store, runs)
    await manager.schedule("wrong", report("b"), every=4, lane="reports").declare()
    [[item]] = await store.look(SCHEDULES_QUEUE, ["wrong"])
    record = read_record(item.value)
    definition = msgspec.structs.replace(record.definition, priority=2**63)
    value = write_record(msgspec.structs.replace(record, definition=definition))
    await store.put([Put(SCHEDULES_QUEUE, (("wrong", value),), kind="reports")])
    other, report = on(store, runs)
    other.schedule("often", report("a"), every=5, lane="reports")
    async with other:
        await asyncio.sleep(11)
    assert moments(runs) == [5, 10]
    assert "schedule 'wrong' could not be fired here" in caplog.text


async def test_a_worker_without_cronsim_leaves_cron_expressions_to_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store, runs = MemoryStore(clock=clock), Runs()
    manager, report = on(store, runs)
    await manager.schedule("cron", "* * * * *", report("cron"), lane="reports").declare()
    manager.schedule("often", report("a"), every=20, lane="reports")
    with monkeypatch.context() as patch:

        def missing() -> None:
            raise ModuleNotFoundError("no cronsim")

        patch.setattr(timetable, "_cronsim", missing)
        async with manager:
            await asyncio.sleep(81)
    assert moments(runs, "a") == [20, 40, 60, 80]
    assert moments(runs, "cron") == []
    assert "schedule 'cron' could not be fired here, and is tried again in 60 s" in caplog.text
    other, _ = on(store, runs)
    async with other:
        await asyncio.sleep(60)
    assert moments(runs, "cron")[0] == 120


async def test_a_store_that_fails_for_a_while_loses_no_tick() -> None:
    store, runs = MemoryStore(clock=clock), Runs()
    manager, report = on(store, runs)
    manager.schedule("often", report("a"), every=10, lane="reports", missed="all")
    real = store.do_claim

    async def failing(requests: Sequence[Claim]) -> Any:
        if 15 < now() < 45:
            raise StoreError("away")
        return await real(requests)

    store.do_claim = failing  # type: ignore[method-assign]  # as long as it is away
    async with manager:
        await asyncio.sleep(61)
    assert len(runs) == len({key for _, key, _ in runs}) == 6


async def test_idle_schedules_ask_for_nothing() -> None:
    """One alarm for all of them: nothing is asked until a tick is due."""
    store, runs = MemoryStore(clock=clock), Runs()
    manager, report = on(store, runs)
    for number in range(100):
        manager.schedule(f"s{number}", report("a"), every=86400 + number, lane="reports")
    asked: list[float] = []
    for verb in ("do_claim", "do_sweep", "do_edit", "do_browse", "do_look"):
        real = getattr(store, verb)

        def noting(*arguments: Any, real: Any = real, **options: Any) -> Any:
            asked.append(now())
            return real(*arguments, **options)

        setattr(store, verb, noting)
    async with manager:
        await asyncio.sleep(20000)
        assert [at for at in asked if at > 60] == []
        assert len(await manager.schedules()) == 100


@pytest.mark.parametrize("stored", [False, True])
async def test_a_tick_is_not_late_by_the_time_for_which_the_machine_was_suspended(
    stored: bool,
) -> None:
    """The time of day has gone on meanwhile, and the clock of the event loop has not."""
    suspended = 0.0

    def time_of_day() -> float:
        return clock() + suspended

    builder, runs = QueueManagerBuilder(clock=time_of_day), Runs()
    if stored:
        builder = builder.with_storage(MemoryStore(clock=time_of_day))
    manager = lanes(builder)
    report = recording(manager, runs)
    manager.schedule("n", report("a"), every=36000, lane="reports")
    async with manager:
        await asyncio.sleep(1000)
        suspended = 40000.0
        await asyncio.sleep(100)
        assert len(runs) == 1
        await asyncio.sleep(36000)
        assert len(runs) == 2


async def test_records_are_read_as_they_were_written() -> None:
    store = MemoryStore(clock=clock)
    manager, report = on(store, [])
    schedule: Schedule = await manager.schedule(
        "n", "0 3 * * *", report("ä"), lane="reports", tz="Europe/Berlin", timeout=5, priority=2
    ).declare()
    [[item]] = await store.look(SCHEDULES_QUEUE, ["n"])
    record = read_record(item.value)
    assert write_record(record) == item.value
    assert (item.kind, item.due) == ("reports", record.tick)
    assert msgspec.json.decode(record.definition.payload) == {"text": "ä"}
    assert schedule.refresh is not None
