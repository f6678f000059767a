"""Lanes mean the same in memory and on a store, and in the process that only submits."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from leasedkeyq import MemoryStore
from leasedkeyq.lanes import (
    DeadLetter,
    LaneConfig,
    LaneEvent,
    QueueManager,
    QueueManagerBuilder,
    RetryPolicy,
    ShuttingDownError,
)
from leasedkeyq.lanes.durable.envelope import available_since
from leasedkeyq.model.requests import Answer, Attempt, Change, Counts, StoredItem
from leasedkeyq.telemetry.stats import QueueStats
from tests.lanes.durable.workers_support import Diary, builder
from tests.lanes.support import Build, clock, everywhere, now
from tests.servers.urls import KINDS, empty_store

ONCE: dict[str, Any] = {"retry_policy": RetryPolicy.none()}


def register(manager: QueueManager) -> tuple[Any, Any]:
    """Commands that fail, and that take their time."""

    @manager.command("fail")
    async def fail(number: int = 0) -> None:
        raise LookupError(f"number {number}")

    @manager.command("sleep")
    async def sleep(seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    return fail, sleep


# The end of a block


@everywhere
async def test_async_with_waits_until_all_commands_are_done(build: Build) -> None:
    diary = Diary()
    manager = build().with_lane("x", LaneConfig(0, 1), 0).build()
    note = diary.register(manager)
    async with manager:
        for number in range(5):
            await manager.submit("x", note(str(number), 1.0))
    assert diary.names == ["0", "1", "2", "3", "4"]


@everywhere
async def test_async_with_waits_for_the_drain_time_out_at_most(
    build: Build, caplog: pytest.LogCaptureFixture
) -> None:
    diary = Diary()
    manager = build().with_lane("x", LaneConfig(0, 1), 0).with_drain_timeout(2.5).build()
    note = diary.register(manager)
    async with manager:
        for number in range(5):
            await manager.submit("x", note(str(number), 1.0))
    assert diary.names == ["0", "1", "2"]
    assert "3 commands are not done after 2.5 s" in caplog.text


# Dead letters


class SlowCounts(MemoryStore):
    """A store that takes its time, so that more commands fail while letters are dropped."""

    async def do_count(self, queues: Sequence[str] | None) -> Mapping[str, Counts]:
        await asyncio.sleep(0.01)
        return await super().do_count(queues)

    async def do_settle(self, requests: Sequence[Change]) -> list[Answer]:
        await asyncio.sleep(0.001)
        return await super().do_settle(requests)


async def test_dead_letters_on_a_store_stay_within_their_limit() -> None:
    store = SlowCounts(clock=clock)
    config = LaneConfig(0, 60, **ONCE)
    managers = [builder(store, config).with_storage(store).with_dlq(3).build() for _ in range(2)]
    fail, sleep = register(managers[0])
    register(managers[1])
    for manager in managers:
        await manager.start()
    for _ in range(3):
        await managers[0].submit_many("x", [fail(number) for number in range(60)])
        await managers[0].submit("x", sleep(0.005))
        await managers[0].drain(60)
    await asyncio.sleep(1)
    letters = await managers[0].dlq.list()
    assert len(letters) == await managers[1].dlq.len() == 3
    assert letters == await managers[1].dlq.list()
    assert sum(manager.dlq.dropped for manager in managers) == 177
    await managers[0].dlq.push(DeadLetter(lane="x", command_type="fail", payload={"number": 1}))
    assert await managers[0].dlq.len() == 3
    for manager in managers:
        await manager.close()


@everywhere
async def test_no_letter_is_requeued_after_the_shutdown(build: Build) -> None:
    manager = build().with_lane("x", LaneConfig(0, 1, **ONCE), 0).with_dlq(10).build()
    fail, _ = register(manager)
    await manager.start()
    await manager.submit("x", fail())
    await manager.drain()
    await manager.shutdown()
    [letter] = await manager.dlq.list()
    assert letter.payload == {"number": 0}
    with pytest.raises(ShuttingDownError, match="'x'") as caught:
        await manager.dlq.requeue(letter)
    assert caught.value.lane == "x"
    with pytest.raises(ShuttingDownError):
        await manager.dlq.requeue_all()
    assert await manager.dlq.list() == [letter]
    await manager.close()


# Events


class Heard:
    """The events of a manager, from now on."""

    def __init__(self, manager: QueueManager) -> None:
        self._keys: list[str] = []
        self._events = manager.subscribe_filtered(self._hear)

    def _hear(self, event: LaneEvent) -> bool:
        self._keys.append(event.key.removeprefix("queue.command."))
        return False

    def take(self) -> list[str]:
        keys, self._keys = self._keys, []
        return keys


@everywhere
async def test_events_of_a_command_come_in_one_order(build: Build) -> None:
    config = LaneConfig(0, 1, retry_policy=RetryPolicy.fixed(1, 0.5), timeout=1.0)
    manager = build().with_lane("x", config, 0).with_dlq(10).build()
    fail, sleep = register(manager)
    heard = Heard(manager)
    await manager.start()
    await manager.submit("x", fail())
    await manager.drain()
    start, again = ["submitted", "started"], ["retry", "started"]
    end = ["failed", "dead_lettered"]
    assert heard.take() == [*start, *again, *end]
    await manager.submit("x", sleep(5))
    await manager.drain()
    assert heard.take() == [*start, "timeout", *again, "timeout", *end]
    await manager.close()


async def test_a_submitter_hears_how_commands_end_elsewhere() -> None:
    store = MemoryStore(clock=clock)
    config = LaneConfig(0, 4, timeout=1.0, **ONCE)
    worker, submitter = (builder(store, config).with_storage(store).build() for _ in range(2))
    register(worker)
    fail, sleep = register(submitter)
    await worker.start()
    heard = Heard(submitter)
    ends = [(sleep(0.5), ["completed"]), (fail(), ["failed"]), (sleep(5), ["timeout", "failed"])]
    for command, expected in ends:
        handle = await submitter.submit("x", command)
        await asyncio.gather(handle.wait(), return_exceptions=True)
        assert heard.take() == ["submitted", *expected]
    await submitter.close()
    await worker.close()


# Handles


class CountedLooks(MemoryStore):
    """A store that counts how often it is asked where commands stand."""

    looks = 0

    async def do_results(self, queue: str, ids: Sequence[int]) -> list[StoredItem | None]:
        self.looks += 1
        return await super().do_results(queue, ids)


async def test_a_handle_tells_where_a_command_stands_elsewhere() -> None:
    store = CountedLooks(clock=clock)
    config = LaneConfig(0, 4, **ONCE)
    worker, submitter = (builder(store, config).with_storage(store).build() for _ in range(2))
    register(worker)
    fail, sleep = register(submitter)
    slow = await submitter.submit("x", sleep(10))
    failing = await submitter.submit("x", fail())
    later = await submitter.submit("x", sleep(1), delay=60)
    assert [handle.status for handle in (slow, failing, later)] == ["pending"] * 2 + ["scheduled"]
    await worker.start()
    await asyncio.sleep(2)
    assert (slow.status, slow.attempt, slow.done()) == ("running", 1, False)
    assert (failing.status, failing.done()) == ("failed", True)
    looks = store.looks
    await asyncio.sleep(7)
    assert store.looks == looks, "nothing has changed meanwhile"
    await asyncio.sleep(3)
    assert (slow.status, slow.done()) == ("completed", True)
    assert later.status == "scheduled"
    assert await slow == 10
    with pytest.raises(Exception, match="number 0"):
        await failing
    await asyncio.sleep(60)
    assert later.done()
    await submitter.close()
    await worker.close()


async def test_a_handle_tells_where_a_command_stands_in_another_lane() -> None:
    """Also if nothing happens any more in the lane whose handles came first."""
    store = MemoryStore(clock=clock)
    worker, submitter = (
        builder(store).with_lane("y", LaneConfig(0, 4), 1).with_storage(store).build()
        for _ in range(2)
    )
    register(worker)
    _, sleep = register(submitter)
    later = await submitter.submit("x", sleep(1), delay=3600)
    await asyncio.sleep(5)
    other = await submitter.submit("y", sleep(1))
    await asyncio.sleep(5)
    await worker.start()
    await asyncio.sleep(5)
    assert (later.status, other.status) == ("scheduled", "completed")
    await submitter.close()
    await worker.close()


class SlowLooks(MemoryStore):
    """Takes two calls at a time, and its time for looks."""

    calls_at_a_time = 2

    async def do_look(self, queue: str, keys: Sequence[str]) -> list[tuple[StoredItem, ...]]:
        await asyncio.sleep(1)
        return await super().do_look(queue, keys)


async def test_what_is_measured_does_not_change_the_order() -> None:
    """How long a retry has waited is read from the store: nothing overtakes it meanwhile."""
    store = SlowLooks(clock=clock)
    config = LaneConfig(0, 1, retry_policy=RetryPolicy.fixed(1, 1.0))
    manager = builder(store, config).with_storage(store).with_metrics().build()
    ran: list[str] = []

    @manager.command("note")
    async def note(name: str, failures: int = 0) -> None:
        ran.append(name)
        if ran.count(name) <= failures:
            raise LookupError(name)

    await manager.start()
    await manager.submit("x", note("a", 1))
    await asyncio.sleep(1.5)
    assert ran == ["a"], "the second attempt is leased, and has not begun"
    await manager.submit("x", note("b"))
    await manager.drain(60)
    assert ran == ["a", "a", "b"]
    await manager.close()


@pytest.mark.parametrize("error", ["", "x; tried again after 1.2.3 s", "x; tried again after - s"])
def test_a_history_that_others_have_written_tells_no_delay(error: str) -> None:
    history = (Attempt(1, 5.0, "released", error),)
    item = StoredItem(id=1, queue="q", key="a", state="in_flight", value=b"", history=history)
    assert available_since(item) == 5.0


async def test_nobody_looks_at_commands_whose_handles_are_gone() -> None:
    store = CountedLooks(clock=clock)
    worker, submitter = (builder(store).with_storage(store).build() for _ in range(2))
    register(worker)
    _, sleep = register(submitter)
    await worker.start()
    for _ in range(50):
        await submitter.submit("x", sleep(0.1))
        await asyncio.sleep(0.2)
    assert store.looks == 0
    await submitter.close()
    await worker.close()


# Gauges


class Gauges:
    """An instrument that keeps the gauges, and nothing else."""

    def __init__(self) -> None:
        self.told: list[QueueStats] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None

    def gauges(self, stats: QueueStats) -> None:
        self.told.append(stats)


@everywhere
async def test_a_command_waits_from_the_moment_at_which_it_could_start(build: Build) -> None:
    """Not from its submission, where it is delayed, tried again or put back."""
    retries = RetryPolicy.fixed(2, 5.0).with_jitter(0.5)
    one = build().with_lane("x", LaneConfig(0, 1, retry_policy=retries), 0)
    manager = one.with_metrics().with_dlq(10).build()
    fail, sleep = register(manager)
    await manager.start()
    await manager.submit("x", fail())
    await manager.drain()
    await asyncio.sleep(100)
    await manager.dlq.requeue_all()
    await manager.drain()
    await manager.submit("x", sleep(1), delay=10)
    await manager.drain()
    assert manager.metrics is not None
    waits = {one.command_type: one.waiting for one in manager.metrics.snapshot().series}
    assert (waits["fail"].count, waits["sleep"].count) == (6, 1)
    assert waits["fail"].longest < 0.1
    assert waits["sleep"].longest < 0.1
    await manager.submit("x", sleep(3))
    await manager.submit("x", sleep(0))
    await manager.drain()
    assert manager.metrics.snapshot().series[-1].waiting.longest == pytest.approx(3, abs=0.1)
    await manager.close()


async def test_a_command_that_failed_elsewhere_waits_from_its_next_time_on() -> None:
    store = MemoryStore(clock=clock)
    config = LaneConfig(0, 1, retry_policy=RetryPolicy.fixed(1, 5.0))
    first, second = (
        builder(store, config).with_storage(store).with_metrics().build() for _ in range(2)
    )
    fail, _ = register(first)
    _, sleep = register(second)
    await first.start()
    await first.submit("x", fail())
    await asyncio.sleep(1)
    await first.close()
    await second.submit("x", sleep(7))
    await second.start()
    await second.drain()
    assert second.metrics is not None
    waits = {one.command_type: one.waiting for one in second.metrics.snapshot().series}
    # It could have started 5 seconds after its failure, and did when the other one had ended.
    assert waits["fail"].longest == pytest.approx(3, abs=0.1)
    await second.close()


@everywhere
async def test_gauges_are_there_when_the_manager_has_started(build: Build) -> None:
    gauges: Any = Gauges()
    manager = build().with_lane("x", LaneConfig(0, 1), 0).with_metrics(gauges).build()
    _, sleep = register(manager)
    await manager.submit("x", sleep(1))
    await manager.start()
    [stats] = gauges.told
    assert set(stats.lanes) == {"x"}
    await manager.close()


# Types of commands that nobody knows


async def test_a_worker_tells_once_of_each_type_that_it_does_not_know(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryStore(clock=clock)
    manager, other = (builder(store).with_storage(store).build() for _ in range(2))
    _, sleep = register(manager)

    @other.command("rename")
    async def rename(number: int) -> None:
        raise LookupError(number)

    await manager.start()
    for number in range(3):
        await other.submit("x", rename(number))
        await manager.submit("x", sleep(0.1))
        await asyncio.sleep(5)
    assert (await manager.stats()).total_pending == 3
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1
    assert "lane 'x': commands of type 'rename' wait" in warnings[0]
    assert "it knows: fail, sleep" in warnings[0]
    await manager.close()
    await other.close()


# Partitions


@everywhere
@pytest.mark.parametrize("capacity", [None, 3, 9])
@pytest.mark.parametrize("beside", [False, True])
async def test_the_concurrency_of_a_lane_is_that_of_all_its_partitions(
    build: Build, capacity: int | None, beside: bool
) -> None:
    diary = Diary()
    builder = build().with_lane("x", LaneConfig(1, 2, partitions=4), 1)
    if beside:
        builder.with_lane("other", LaneConfig(1, 4, partitions=2), 0)
    if capacity is not None:
        builder.with_capacity(capacity)
    manager = builder.build()
    note = diary.register(manager)
    for number in range(12):
        await manager.submit("x", note(str(number), 1.0, "x"), key=f"key {number}")
        if beside:
            await manager.submit("other", note(str(number), 1.0, "other"), key=f"key {number}")
    began = now()
    await manager.start()
    await manager.drain()
    assert diary.most["x"] == 2
    if beside:
        assert 2 <= diary.most["other"] <= 4
    else:
        assert now() - began == pytest.approx(6.0, abs=0.1)
    await manager.close()


@everywhere
async def test_no_partition_waits_while_others_have_much_to_do(build: Build) -> None:
    diary = Diary()
    manager = build().with_lane("x", LaneConfig(0, 1, partitions=4), 0).build()
    lane = manager.queue().lanes["x"]
    keys = [f"key {number}" for number in range(200)]
    note = diary.register(manager)
    many = [key for key in keys if lane.partition_of(key).index == 0]
    others = [
        next(key for key in keys if lane.partition_of(key).index == part) for part in (1, 2, 3)
    ]
    for key in [*many[:20], *others]:
        await manager.submit("x", note(key, 1.0), key=key)
    await manager.start()
    await manager.drain()
    assert diary.most == {"": 1}
    # In memory they come in the order in which they were submitted, on a store by turns.
    assert set(others) <= set(diary.names)
    await manager.close()


async def test_partitions_of_a_store_take_turns() -> None:
    store, diary = MemoryStore(clock=clock), Diary()
    config = LaneConfig(0, 1, partitions=4, lease_time=9.0)
    manager = builder(store, config).with_storage(store).build()
    note = diary.register(manager)
    lane = manager.queue().lanes["x"]
    parts: dict[str, int] = {}
    for number in range(40):
        key = f"key {number}"
        parts[key] = lane.partition_of(key).index
        await manager.submit("x", note(key, 1.0), key=key)
    await manager.start()
    await asyncio.sleep(7.5)
    assert len({parts[name] for name in diary.names}) == 4
    await manager.close()


class CountedSweeps(MemoryStore):
    """A store that notes which queues are swept at a time."""

    def __init__(self) -> None:
        super().__init__(clock=clock)
        self.swept: list[int] = []

    async def do_sweep(self, queues: Sequence[str]) -> list[float | None]:
        self.swept.append(len(queues))
        return await super().do_sweep(queues)


async def test_all_partitions_of_a_worker_are_swept_in_one_trip() -> None:
    store = CountedSweeps()
    manager = builder(store, LaneConfig(0, 4, partitions=16)).with_storage(store).build()
    _, sleep = register(manager)
    await manager.start()
    await manager.drain()
    store.swept.clear()
    for _ in range(5):
        await (await manager.submit("x", sleep(0.1)))
    assert set(store.swept) == {16}
    assert len(store.swept) <= 5 * 4
    await manager.close()


# Letters from outside


@pytest.mark.parametrize("kind", [*KINDS, "file"])
def test_a_letter_that_is_pushed_is_not_run(kind: str, tmp_path: Path) -> None:
    """Neither here nor by a worker of another process, however busy they look for commands."""

    async def main(url: str) -> None:
        ran: list[int] = []
        builders = [QueueManagerBuilder().with_lane("x", LaneConfig(0, 4), 0) for _ in range(2)]
        managers = [each.with_storage(url).build() for each in builders]
        for manager in managers:

            @manager.command("note")
            async def note(number: int) -> None:
                ran.append(number)

            await manager.start()
        for number in range(20):
            payload = {"number": number}
            letter = DeadLetter(lane="x", command_type="note", payload=payload, error="why")
            await managers[0].dlq.push(letter)
        letters = await managers[1].dlq.list()
        assert sorted(letter.payload["number"] for letter in letters) == [*range(20)]
        assert {(letter.command_type, letter.error) for letter in letters} == {("note", "why")}
        assert not ran
        await managers[1].dlq.requeue(letters[0])
        await managers[0].drain(20)
        assert ran == [letters[0].payload["number"]]
        for manager in managers:
            await manager.close()

    with empty_store(kind, tmp_path) as url:
        asyncio.run(main(url))
