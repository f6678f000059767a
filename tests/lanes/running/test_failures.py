"""Tasks of a manager that end unexpectedly: everybody hears of it, and nobody waits for ever."""

import asyncio
import logging
import signal
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from leasedkeyq import MemoryStore
from leasedkeyq.lanes import (
    LaneConfig,
    ManagerFailedError,
    QueueManager,
    QueueManagerBuilder,
)
from leasedkeyq.lanes.durable.engine import StoreEngine
from leasedkeyq.lanes.durable.heartbeat import Heartbeat
from leasedkeyq.lanes.durable.outbox import Outbox
from leasedkeyq.lanes.durable.results import ResultWatch
from leasedkeyq.lanes.durable.workers import WorkerGroup
from leasedkeyq.lanes.memory import MemoryEngine
from leasedkeyq.lanes.running.job import Job
from tests.lanes.support import clock


class PlantedError(Exception):
    """Raised where nothing should be."""


def manager_on(store: MemoryStore | None) -> tuple[QueueManager, Any]:
    builder = QueueManagerBuilder(clock=clock).with_lane("x", LaneConfig(0, 4), 0)
    manager = (builder if store is None else builder.with_storage(store)).build()

    async def work(seconds: float = 0.0) -> str:
        await asyncio.sleep(seconds)
        return "done"

    return manager, manager.command("work", work)


async def test_an_exception_after_a_settle_harms_no_other_command(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryStore(clock=clock)
    manager, work = manager_on(store)
    end = StoreEngine._end_completed

    def fails_once(self: StoreEngine, job: Job, result: Any) -> None:
        if job.key == "bad":
            raise PlantedError
        end(self, job, result)

    monkeypatch.setattr(StoreEngine, "_end_completed", fails_once)
    async with asyncio.timeout(100), manager:
        handles = [await manager.submit("x", work(), key=key) for key in ("a", "bad", "b")]
        assert [await handles[0], await handles[2]] == ["done", "done"]
        with pytest.raises(PlantedError):
            await handles[1]
        assert await (await manager.submit("x", work())) == "done"
        assert "the end of command 'work' of key 'bad' failed" in caplog.text


async def test_an_exception_in_a_callback_of_the_outbox_does_not_end_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore(clock=clock)
    manager, work = manager_on(store)
    told = StoreEngine._told

    def fails_once(self: StoreEngine, job: Job, *more: Any) -> None:
        told(self, job, *more)
        if job.key == "bad":
            raise PlantedError

    monkeypatch.setattr(StoreEngine, "_told", fails_once)
    async with asyncio.timeout(100), manager:
        handles = [await manager.submit("x", work(), key=key) for key in ("bad", "b")]
        assert [await handle for handle in handles] == ["done", "done"]
        await manager.drain()
    assert "queue 'x': the callback of a settled Ack failed" in caplog.text
    assert "PlantedError" in caplog.text


def plant(monkeypatch: pytest.MonkeyPatch, cls: type, method: str) -> None:
    """Let a method of a task raise, when a manager has been at work for some time."""
    inner = getattr(cls, method)

    def fails(self: Any, *arguments: Any) -> Any:
        if clock() > planted + 5:
            raise PlantedError
        return inner(self, *arguments)

    async def fails_later(self: Any) -> None:
        await asyncio.sleep(6)
        raise PlantedError

    planted = clock()
    monkeypatch.setattr(cls, method, fails_later if method in ("run", "_run", "_serve") else fails)


TASKS = [(StoreEngine, "_serve"), (Outbox, "_next"), (Heartbeat, "run"), (WorkerGroup, "run")]


@pytest.mark.parametrize("cls, method", TASKS)
async def test_a_task_that_ends_fails_its_manager(
    cls: type, method: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plant(monkeypatch, cls, method)
    store = MemoryStore(clock=clock)
    manager, work = manager_on(store)
    await manager.start()
    waiting = await manager.submit("x", work(20.0))
    short = await manager.submit("x", work(7.0))
    async with asyncio.timeout(15):
        with pytest.raises(ManagerFailedError, match="ended unexpectedly") as raised:
            await waiting
        assert isinstance(raised.value.__cause__, PlantedError)
        with pytest.raises(ManagerFailedError):
            await short
        with pytest.raises(ManagerFailedError):
            await manager.drain()
        with pytest.raises(ManagerFailedError):
            await manager.submit("x", work())
        with pytest.raises(ManagerFailedError):
            await manager.shutdown()
        assert await manager.close() in ({"x": 2}, {"x": 1}, {})
    [record] = [record for record in caplog.records if "ended unexpectedly" in record.message]
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None


def long_tasks() -> list[asyncio.Task[Any]]:
    """The tasks of the manager without which it cannot work."""
    names = {f"leasedkeyq {name}" for name in ("claims", "worker group", "outbox", "heartbeat")}
    return [task for task in asyncio.all_tasks() if task.get_name() in names]


@pytest.mark.parametrize("name", ["claims", "worker group", "outbox", "heartbeat"])
async def test_a_task_that_somebody_cancels_fails_its_manager(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    manager, work = manager_on(MemoryStore(clock=clock))
    await manager.start()
    waiting = await manager.submit("x", work(20.0))
    await asyncio.sleep(1)
    next(task for task in long_tasks() if task.get_name() == f"leasedkeyq {name}").cancel()
    async with asyncio.timeout(15):
        with pytest.raises(ManagerFailedError, match=f"{name}' has ended unexpectedly: it was can"):
            await waiting
        with pytest.raises(ManagerFailedError):
            await manager.submit("x", work())
        await manager.close()
    [record] = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert f"leasedkeyq {name} has ended unexpectedly" in record.message


@pytest.mark.parametrize(
    "cls, method",
    [(StoreEngine, "_serve"), (Outbox, "run"), (Heartbeat, "run"), (WorkerGroup, "run")],
)
async def test_a_task_that_returns_fails_its_manager(
    cls: type, method: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def returns(self: Any) -> None:
        await asyncio.sleep(5)

    monkeypatch.setattr(cls, method, returns)
    manager, work = manager_on(MemoryStore(clock=clock))
    await manager.start()
    waiting = await manager.submit("x", work(20.0))
    async with asyncio.timeout(15):
        with pytest.raises(ManagerFailedError, match="ended unexpectedly: it has returned"):
            await waiting
        await manager.close()
    [record] = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert "ended unexpectedly" in record.message


async def test_tasks_that_end_with_their_manager_are_no_failures(
    caplog: pytest.LogCaptureFixture,
) -> None:
    manager, work = manager_on(MemoryStore(clock=clock))
    async with manager:
        tasks = long_tasks()
        assert await (await manager.submit("x", work())) == "done"
    assert len(tasks) >= 4
    assert all(task.done() for task in tasks)
    assert not caplog.records


async def test_whoever_waits_for_the_end_of_all_commands_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch, Heartbeat, "run")
    manager, work = manager_on(MemoryStore(clock=clock))
    async with asyncio.timeout(50):
        with pytest.raises(ManagerFailedError):
            async with manager:
                await manager.submit("x", work(1000.0))


async def test_the_task_that_reads_results_is_one_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, ResultWatch, "_run")
    manager, work = manager_on(MemoryStore(clock=clock))
    handle = await manager.submit("x", work())
    async with asyncio.timeout(10):
        with pytest.raises(ManagerFailedError, match="leasedkeyq results"):
            await handle
    await manager.close()


async def test_run_ends_when_a_task_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, Outbox, "_next")
    store = MemoryStore(clock=clock)
    manager, work = manager_on(store)
    await manager.submit("x", work(10.0))
    async with asyncio.timeout(50):
        with pytest.raises(ManagerFailedError):
            await manager.run(())
    assert (await store.count(["x"]))["x"].in_flight == 1  # until its lease ends


@pytest.mark.parametrize("cls, method", TASKS[1:3])
async def test_run_tells_of_a_task_that_fails_while_it_ends(
    cls: type, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that was told to stop has not ended well then."""
    signals: list[Callable[[], None]] = []

    def heed(number: signal.Signals, heard: Any, *arguments: Any) -> None:
        signals.append(partial(heard, *arguments))

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "add_signal_handler", heed)
    monkeypatch.setattr(loop, "remove_signal_handler", lambda _: True)
    plant(monkeypatch, cls, method)
    manager, work = manager_on(MemoryStore(clock=clock))
    running = asyncio.create_task(manager.run((signal.SIGTERM,)))
    await asyncio.sleep(1)
    await manager.submit("x", work(7.0))
    await manager.submit("x", work(15.0))
    await asyncio.sleep(1)
    signals[0]()
    async with asyncio.timeout(50):
        with pytest.raises(ManagerFailedError):
            await running


async def test_in_memory_the_end_of_a_command_that_fails_is_a_failure_of_the_manager(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(self: MemoryEngine, job: Job, result: Any) -> None:
        raise PlantedError

    monkeypatch.setattr(MemoryEngine, "_completed", fails)
    manager, work = manager_on(None)
    async with asyncio.timeout(10):
        with pytest.raises(ManagerFailedError):
            async with manager:
                other = await manager.submit("x", work(), key="a")
                later = await manager.submit("x", work(), delay=100)
                with pytest.raises(ManagerFailedError, match="the end of command 'work'"):
                    await other
                with pytest.raises(ManagerFailedError):
                    await later
    assert "the end of command 'work' of key 'a' failed" in caplog.text
