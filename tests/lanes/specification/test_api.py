"""The tables of the specification, row by row: what each method does.

The rows of `RetryPolicy` are in tests/lanes/policies/test_retry.py, those of `EventEmitter` in
tests/lanes/test_events.py, and mistakes in tests/lanes/specification/test_mistakes.py.
"""

import asyncio
from collections.abc import Coroutine
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from leasedkeyq import MemoryStore
from leasedkeyq.lanes import (
    AlertRule,
    Command,
    CommandQueue,
    DeadLetter,
    DeadLetterQueue,
    DrainTimeoutError,
    EventEmitter,
    LaneConfig,
    LocalStorage,
    MonitorConfig,
    PriorityBoostConfig,
    QueueManager,
    QueueManagerBuilder,
    QueueMonitor,
    RateLimitConfig,
    RetryPolicy,
    StoredCommand,
    UnknownLaneError,
)
from tests.lanes.specification.support import MyCommand, failing, one_lane, sleeping
from tests.lanes.support import Build, Work, clock, everywhere, in_memory, on_a_store


def in_real_time(main: Coroutine[Any, Any, None]) -> None:
    """For SQLite, whose threads know no virtual time."""

    async def limited() -> None:
        async with asyncio.timeout(60):
            await main

    asyncio.run(limited())


# QueueManagerBuilder


async def test_builder_new_takes_the_emitter() -> None:
    emitter = EventEmitter(100)
    manager = QueueManagerBuilder(emitter).with_default_lanes().build()
    assert manager.emitter is emitter
    assert QueueManagerBuilder().with_default_lanes().build().emitter is not emitter
    with pytest.raises(TypeError, match="emitter must be an EventEmitter"):
        wrong: Any = 100
        QueueManagerBuilder(wrong)


async def test_builder_with_lane_adds_a_lane() -> None:
    builder = QueueManagerBuilder().with_lane("high-priority", LaneConfig(1, 4), 0)
    manager = builder.with_lane("background", LaneConfig(1, 2), 2).build()
    lanes = (await manager.stats()).lanes
    found = {
        name: (lane.min_concurrency, lane.max_concurrency, lane.priority)
        for name, lane in lanes.items()
    }
    assert found == {"high-priority": (1, 4, 0), "background": (1, 2, 2)}


@pytest.mark.parametrize(
    "id_, config, priority",
    [("", LaneConfig(), 0), ("a#b", LaneConfig(), 0), ("x", 4, 0), ("x", LaneConfig(), "high")],
)
def test_builder_with_lane_refuses_what_is_no_lane(id_: Any, config: Any, priority: Any) -> None:
    with pytest.raises(TypeError):
        QueueManagerBuilder().with_lane(id_, config, priority).build()


async def test_builder_with_default_lanes_adds_the_six() -> None:
    lanes = (await QueueManagerBuilder().with_default_lanes().build().stats()).lanes
    assert {name: (lane.priority, lane.max_concurrency) for name, lane in lanes.items()} == {
        "system": (0, 5),
        "control": (1, 3),
        "query": (2, 10),
        "session": (3, 5),
        "skill": (4, 3),
        "prompt": (5, 2),
    }


async def test_builder_with_storage_keeps_commands_in_a_store() -> None:
    store = MemoryStore(clock=clock)
    builder = QueueManagerBuilder(clock=clock).with_lane("x", LaneConfig(), 0).with_storage(store)
    manager = builder.build()
    manager.command("my_command")(MyCommand)
    await manager.submit("x", MyCommand("a"))
    assert (await store.count())["x"].available == 1
    await manager.close()
    assert (await store.count())["x"].available == 1  # it was given, and so stays open
    with pytest.raises(TypeError, match="storage must be"):
        wrong: Any = 3
        builder.with_storage(wrong)
    with pytest.raises(TypeError, match="options go with"):
        builder.with_storage(store, durability="full")


def test_builder_with_storage_takes_a_url(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"

    async def submit() -> None:
        manager = QueueManagerBuilder().with_lane("x", LaneConfig(), 0).with_storage(url).build()
        manager.command("my_command")(MyCommand)
        await manager.submit("x", MyCommand("hello"))
        await manager.close()

    async def run() -> None:
        manager = QueueManagerBuilder().with_lane("x", LaneConfig(), 0).with_storage(url).build()
        manager.command("my_command")(MyCommand)
        ran = manager.subscribe_filtered(lambda event: event.key == "queue.command.completed")
        async with manager:
            assert (await ran.recv()).payload["command_type"] == "my_command"

    in_real_time(submit())
    in_real_time(run())


@everywhere
async def test_builder_with_dlq_limits_the_letters(build: Build) -> None:
    manager = build().with_lane("x", LaneConfig(0, 1), 0).with_dlq(2).build()
    assert manager.dlq.max_size == 2
    with pytest.raises(ValueError, match="max_size must be at least 1"):
        build().with_dlq(0)


async def test_builder_with_capacity_limits_all_lanes_together() -> None:
    builder = in_memory().with_lane("x", LaneConfig(0, 9), 0).with_lane("y", LaneConfig(0, 9), 0)
    manager = builder.with_capacity(3).build()
    async with manager:
        for lane in ("x", "y") * 5:
            await manager.submit(lane, Work(lambda: asyncio.sleep(1)))
        assert (await manager.stats()).total_active == 3


@everywhere
async def test_builder_with_metrics_measures(build: Build) -> None:
    manager = build().with_lane("x", LaneConfig(0, 1), 0).with_metrics().build()
    work = manager.command("sleeping", sleeping)
    async with manager:
        await (await manager.submit("x", work(2.0)))
    assert manager.metrics is not None
    (series,) = manager.metrics.snapshot().series
    assert (series.lane, series.command_type, series.completed) == ("x", "sleeping", 1)
    assert one_lane(build).metrics is None


@everywhere
async def test_builder_with_alerts_calls_back(build: Build) -> None:
    levels: list[str] = []
    rule = AlertRule.queue_depth(warning=2, critical=100)
    builder = build().with_lane("x", LaneConfig(0, 1), 0)
    config = MonitorConfig(interval=1)
    manager = builder.with_alerts(
        [rule], lambda alert: levels.append(alert.level), monitor=config
    ).build()
    work = manager.command("sleeping", sleeping)
    async with manager:
        for _ in range(4):
            await manager.submit("x", work(1.0))
        await manager.drain()
        await asyncio.sleep(2)
    assert levels == ["warning", "ok"]


async def test_builder_build_is_a_plain_call_and_starts_nothing() -> None:
    manager = QueueManagerBuilder().with_default_lanes().build()
    assert isinstance(manager, QueueManager)
    handle = await manager.submit("query", MyCommand("a"))
    await asyncio.sleep(1)
    assert handle.status == "pending"


# QueueManager


@everywhere
async def test_manager_start_runs_commands_and_may_be_called_again(build: Build) -> None:
    manager = one_lane(build)
    handle = await manager.submit("x", MyCommand("a"))
    await manager.start()
    await manager.start()
    assert await handle == {"processed": "a"}
    await manager.close()


@everywhere
async def test_manager_submit_gives_the_result_to_come(build: Build) -> None:
    manager = one_lane(build)
    async with manager:
        handle = await manager.submit("x", MyCommand("hello"))
        assert await handle == {"processed": "hello"}
        many = await asyncio.gather(*(handle.wait() for _ in range(50)))
        assert many == [{"processed": "hello"}] * 50


@everywhere
async def test_manager_stats_tells_how_things_stand(build: Build) -> None:
    manager = one_lane(build)
    work = manager.command("sleeping", sleeping)
    for _ in range(3):
        await manager.submit("x", work(1.0))
    await manager.submit("x", work(1.0), delay=60)
    async with manager:
        while not (stats := await manager.stats()).total_active:
            await asyncio.sleep(0.01)
        assert (stats.total_pending, stats.total_active, stats.total_scheduled) == (2, 1, 1)
        assert stats.lanes["x"].submitted == 4
        assert stats.lanes["x"].oldest_age == pytest.approx(0, abs=0.5)
        assert stats.dead_letters == 0
        await manager.cancel("x", "nothing")
        await asyncio.sleep(100)
        assert (await manager.stats()).lanes["x"].completed == 4


@everywhere
async def test_manager_queue_is_the_command_queue(build: Build) -> None:
    manager = one_lane(build)
    queue = manager.queue()
    assert isinstance(queue, CommandQueue)
    async with manager:
        handle = await queue.submit("x", MyCommand("a"))
        assert await handle == {"processed": "a"}
    assert (await queue.stats()).lanes["x"].completed == 1


@everywhere
async def test_manager_drain_says_what_is_left(build: Build) -> None:
    manager = one_lane(build)
    work = manager.command("sleeping", sleeping)
    async with manager:
        for _ in range(2):
            await manager.submit("x", work(10.0))
        await manager.shutdown()
        with pytest.raises(DrainTimeoutError, match="2 commands are not done"):
            await manager.drain(timedelta(seconds=5))
        with pytest.raises(TimeoutError):
            await manager.drain(0)
        await manager.drain(timedelta(seconds=30))
        assert manager.is_shutting_down()


@everywhere
async def test_manager_pause_with_a_capacity_leaves_the_slots_to_others(build: Build) -> None:
    builder = build().with_capacity(2)
    builder.with_lane("x", LaneConfig(0, 9), 0).with_lane("y", LaneConfig(0, 9), 1)
    manager = builder.build()
    work = manager.command("sleeping", sleeping)
    async with manager:
        manager.pause("x")
        held = await manager.submit("x", work(1.0))
        others = [await manager.submit("y", work(1.0)) for _ in range(2)]
        for handle in others:
            await handle
        assert held.status == "pending"
        manager.resume("x")
        assert await held == 1.0
        with pytest.raises(UnknownLaneError):
            manager.pause("z")


# LaneConfig


def test_lane_config_new_takes_minimum_and_maximum() -> None:
    config: Any = LaneConfig(1, 4)
    assert (config.min_concurrency, config.max_concurrency) == (1, 4)
    assert config == LaneConfig(min_concurrency=1, max_concurrency=4)
    with pytest.raises(AttributeError):
        config.max_concurrency = 5


def test_lane_config_with_methods_give_changed_copies() -> None:
    config = LaneConfig(1, 5)
    retry, limit = RetryPolicy.exponential(3), RateLimitConfig.per_second(5)
    boost = PriorityBoostConfig.standard(9)
    assert config.with_timeout(timedelta(seconds=30)) == LaneConfig(1, 5, timeout=30)
    assert config.with_retry_policy(retry) == LaneConfig(1, 5, retry_policy=retry)
    assert config.with_rate_limit(limit) == LaneConfig(1, 5, rate_limit=limit)
    assert config.with_rate_limit(None, per_key=limit) == LaneConfig(1, 5, key_rate_limit=limit)
    assert config.with_priority_boost(boost) == LaneConfig(1, 5, priority_boost=boost)
    assert config.with_pressure_threshold(7) == LaneConfig(1, 5, pressure_threshold=7)
    assert config.with_partitions(3) == LaneConfig(1, 5, partitions=3)
    assert config.with_lease(9, 2) == LaneConfig(1, 5, lease_time=9, heartbeat=2)
    assert config == LaneConfig(1, 5)


# DeadLetterQueue


async def test_dead_letters_in_memory() -> None:
    dlq = DeadLetterQueue(2)
    for number in range(3):
        await dlq.push(DeadLetter(lane="x", command_type="t", key=str(number)))
    assert (await dlq.len(), dlq.dropped) == (2, 1)
    assert [letter.key for letter in await dlq.list()] == ["1", "2"]
    assert await dlq.list("y") == []
    oldest = await dlq.pop()
    assert oldest is not None
    assert oldest.key == "1"
    assert await dlq.clear() == 1
    assert (await dlq.pop(), await dlq.len()) == (None, 0)
    with pytest.raises(TypeError, match="letter must be a DeadLetter"):
        wrong: Any = "letter"
        await dlq.push(wrong)


async def test_a_command_queue_with_dlq_puts_its_letters_there() -> None:
    dlq = DeadLetterQueue(1000)
    queue = CommandQueue.with_dlq(EventEmitter(100), dlq)
    queue.add_lane("x", LaneConfig(0, 1), 0)
    await queue.start()
    handle = await queue.submit("x", Work(failing))
    with pytest.raises(ValueError, match="on purpose"):
        await handle
    (letter,) = await dlq.list()
    assert (letter.command_type, letter.error) == ("work", "ValueError: on purpose")
    await queue.close()


@everywhere
async def test_dead_letters_are_pushed_and_requeued(build: Build) -> None:
    manager = one_lane(build)
    letters = [
        DeadLetter(lane="x", command_type="my_command", key=key, payload={"data": key})
        for key in ("a", "b", "c")
    ]
    for letter in letters:
        await manager.dlq.push(letter)
    done = manager.subscribe_filtered(lambda event: event.key == "queue.command.completed")
    async with manager:
        found = {letter.key: letter for letter in await manager.dlq.list()}
        assert found["a"].payload == {"data": "a"}
        assert await manager.dlq.requeue(found["a"])
        assert (await done.recv()).payload["key"] == "a"
        assert await manager.dlq.requeue_all(lambda letter: letter.key == "b") == 1
        assert (await done.recv()).payload["key"] == "b"
        assert [letter.key for letter in await manager.dlq.list()] == ["c"]


@everywhere
async def test_a_letter_of_an_unknown_lane_is_not_requeued(build: Build) -> None:
    manager = one_lane(build)
    with pytest.raises(UnknownLaneError, match="no lane 'y'"):
        letter = DeadLetter(id="1", lane="y", command_type="my_command", payload={"data": "a"})
        await manager.dlq.push(letter)
        await manager.dlq.requeue(letter)
    if build is in_memory:
        assert await manager.dlq.len() == 1


# Storage


def test_local_storage_shows_what_is_stored(tmp_path: Path) -> None:
    async def main() -> None:
        storage = LocalStorage(tmp_path / "queue_data")
        builder = QueueManagerBuilder().with_storage(storage).with_lane("api", LaneConfig(1, 5), 0)
        manager = builder.build()
        manager.command("my_command")(MyCommand)
        await manager.submit("api", MyCommand("a"), key="k", priority=3)
        (stored,) = await storage.load_commands()
        assert (stored.lane, stored.command_type, stored.key) == ("api", "my_command", "k")
        assert (stored.payload, stored.state, stored.priority) == ({"data": "a"}, "available", 3)
        number = await storage.save_command(
            StoredCommand(lane="api", command_type="my_command", payload={"data": "b"})
        )
        assert len(await storage.load_commands("api")) == 2
        assert await storage.load_commands("other") == []
        assert await storage.remove_command(number)
        assert not await storage.remove_command(number)
        letter = DeadLetter(
            lane="api", command_type="my_command", key="k", payload={"data": "c"}, error="no"
        )
        await storage.save_dead_letter(letter)
        (found,) = await storage.load_dead_letters()
        assert (found.lane, found.payload, found.error) == ("api", {"data": "c"}, "no")
        assert await manager.dlq.len() == 1
        assert await storage.clear_dead_letters() == 1
        assert await storage.load_dead_letters() == []
        assert await storage.clear_all() == 1
        assert await storage.load_commands() == []
        await manager.close()
        await storage.close()

    in_real_time(main())


def test_local_storage_new_takes_a_file_or_a_folder(tmp_path: Path) -> None:
    assert LocalStorage(tmp_path / "queue_data").path == tmp_path / "queue_data" / "commands.db"
    assert LocalStorage(tmp_path / "jobs.db").path == tmp_path / "jobs.db"
    assert LocalStorage(str(tmp_path)).path == tmp_path / "commands.db"


# QueueMonitor


@everywhere
async def test_a_monitor_of_a_manager_and_of_its_queue(build: Build) -> None:
    manager = one_lane(build)
    for _ in range(3):
        await manager.submit("x", MyCommand("a"))
    plain = QueueMonitor(manager)
    config = MonitorConfig(
        interval=timedelta(seconds=5), pending_warning_threshold=50, active_warning_threshold=25
    )
    monitor = QueueMonitor.with_config(manager.queue(), config)
    await monitor.start()
    assert (await monitor.stats()).total_pending == 3
    assert (await plain.stats()).total_active == 0
    await monitor.stop()
    await manager.close()


# Command


async def test_a_command_is_any_object_with_execute_and_command_type() -> None:
    class Told:
        def command_type(self) -> str:
            return "told by a method"

        async def execute(self) -> int:
            return 3

    command: Command[dict[str, str]] = MyCommand("a")
    manager = one_lane(in_memory)
    async with manager:
        assert await (await manager.submit("x", command)) == {"processed": "a"}
        told: Any = Told()  # `command_type` is a method, as in the specification
        handle = await manager.submit("x", told)
        assert await handle == 3
        assert handle.command_type == "told by a method"


# Events on a store


async def test_lane_pressure_and_idle_are_told_on_a_store() -> None:
    manager = one_lane(on_a_store, LaneConfig(0, 1, pressure_threshold=3))
    told = manager.subscribe_filtered(lambda event: event.key.startswith("queue.lane"))
    async with manager:
        for _ in range(6):
            await manager.submit("x", MyCommand("a"))
        await manager.drain()
        pressure, idle = await told.recv(), await told.recv()
    assert (pressure.key, pressure.payload["lane"]) == ("queue.lane.pressure", "x")
    assert pressure.payload["pending"] >= 3
    assert (idle.key, idle.payload) == ("queue.lane.idle", {"lane": "x"})
