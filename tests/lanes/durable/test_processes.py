"""Lanes on one SQLite file, shared by processes that are killed, paused and told to end."""

import asyncio
import queue
import signal
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from leasedkeyq.lanes import (
    CommandCancelledError,
    CommandTimeoutError,
    QueueManager,
    RemoteCommandError,
)
from tests.forks import Program
from tests.lanes.durable import lane_worker
from tests.lanes.durable.lane_worker import LEASE

PATIENCE = 60.0


class Worker:
    """A worker process, and the lines that it has told so far."""

    def __init__(self, path: Path, *arguments: str) -> None:
        self.process = Program("tests.lanes.durable.lane_worker", str(path), *arguments)
        self.lines: queue.Queue[str] = queue.Queue()
        self.told: list[str] = []
        self.listener = threading.Thread(target=self._listen, daemon=True)
        self.listener.start()
        self.hear("ready")

    def _listen(self) -> None:
        with self.process.stdout as lines:
            for line in lines:
                self.lines.put(line.strip())

    def hear(self, wanted: str) -> None:
        """Wait until it tells `wanted`."""
        deadline = time.monotonic() + PATIENCE
        while wanted not in self.told:
            self.told.append(self.lines.get(timeout=max(0.1, deadline - time.monotonic())))

    def everything(self) -> list[str]:
        """All that it told until its end."""
        self.process.wait(PATIENCE)
        self.listener.join(PATIENCE)
        while not self.lines.empty():
            self.told.append(self.lines.get())
        return self.told

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def pause(self, path: Path) -> None:
        """Stop it at a moment at which it does not write: all others would wait for its lock."""
        while True:
            self.send(signal.SIGSTOP)
            time.sleep(0.05)
            with closing(sqlite3.connect(path, timeout=0.2)) as database:
                try:
                    database.execute("BEGIN IMMEDIATE")
                except sqlite3.OperationalError:
                    self.send(signal.SIGCONT)
                else:
                    return


@contextmanager
def workers(path: Path, count: int, *arguments: str) -> Generator[list[Worker]]:
    started: list[Worker] = []
    try:
        started.extend(Worker(path, *arguments) for _ in range(count))
        yield started
    finally:
        for worker in started:
            worker.process.kill()
            worker.process.wait(PATIENCE)


def produce(path: Path, use: Callable[[QueueManager, Any, Any], Awaitable[None]]) -> None:
    """Let `use` submit to the file from this process, which runs nothing."""

    async def main() -> None:
        manager = lane_worker.build(str(path))
        lane_worker.register(manager)
        types = manager.queue().registry.types
        try:
            async with asyncio.timeout(PATIENCE):
                await use(manager, types["work"], types["fail"])
        finally:
            await manager.close()

    asyncio.run(main())


def test_results_and_errors_come_from_another_process(tmp_path: Path) -> None:
    async def use(manager: QueueManager, work: Any, fail: Any) -> None:
        handles = [await manager.submit("work", work(n, 0.01)) for n in range(50)]
        assert [await handle for handle in handles] == [2 * n for n in range(50)]
        assert {handle.status for handle in handles} == {"completed"}
        broken = await manager.submit("work", fail("nothing there"))
        with pytest.raises(LookupError, match="nothing there") as caught:
            await broken
        remote = caught.value.__cause__
        assert isinstance(remote, RemoteCommandError)
        assert remote.error_type == "LookupError"
        assert "raise LookupError(text)" in remote.traceback
        late = await manager.submit("work", work(1, 60), timeout=0.1)
        with pytest.raises(CommandTimeoutError, match=r"ran longer than 0\.1 s") as timed_out:
            await late
        assert (late.status, timed_out.value.lane, timed_out.value.key) == (
            "timed_out",
            "work",
            late.key,
        )

    with workers(tmp_path / "jobs.db", 1):
        produce(tmp_path / "jobs.db", use)


def test_two_workers_share_the_lanes_and_end_when_they_are_told(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"

    async def use(manager: QueueManager, work: Any, fail: Any) -> None:
        handles = [await manager.submit("work", work(n, 0.05), key=str(n)) for n in range(100)]
        assert [await handle for handle in handles] == [2 * n for n in range(100)]

    with workers(path, 2) as both:
        produce(path, use)
        for worker in both:
            worker.send(signal.SIGTERM)
        told = [worker.everything() for worker in both]
        assert [worker.process.returncode for worker in both] == [0, 0]
    starts = [sum(line.startswith("start") for line in lines) for lines in told]
    assert sum(starts) == 100
    assert min(starts) > 0


def test_a_killed_worker_is_healed_by_the_other(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with workers(path, 1) as (victim,):

        async def use(manager: QueueManager, work: Any, fail: Any) -> None:
            handle = await manager.submit("work", work(21, 0.2), key="slow")
            victim.hear("start slow")
            victim.send(signal.SIGSTOP)  # so that it cannot finish before it is killed
            with workers(path, 1):
                victim.send(signal.SIGKILL)
                assert await handle == 42
                assert handle.attempt == 2

        produce(path, use)


def test_what_a_killed_worker_had_claimed_ahead_runs_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    many = 1000
    with workers(path, 1, "doomed") as (victim,):

        async def use(manager: QueueManager, work: Any, fail: Any) -> None:
            commands = {f"k{number}": work(number, 0) for number in range(many)}
            handles = await manager.submit_many("work", commands)
            told = await asyncio.to_thread(victim.everything)
            assert victim.process.returncode == -signal.SIGKILL
            with workers(path, 1):
                assert await asyncio.gather(*handles) == [2 * number for number in range(many)]
            twice = [handle.key for handle in handles if handle.attempt == 2]
            assert any(f"start {key}" not in told for key in twice)
            assert max(handle.attempt for handle in handles) == 2

        produce(path, use)


def test_a_worker_that_was_paused_past_its_lease_does_not_settle(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with workers(path, 1) as (paused,):

        async def use(manager: QueueManager, work: Any, fail: Any) -> None:
            handle = await manager.submit("work", work(1, 0.3), key="k")
            paused.hear("start k")
            paused.pause(path)
            with workers(path, 1) as (other,):
                assert await handle == 2
                assert handle.attempt == 2
                paused.send(signal.SIGCONT)
                paused.hear("end k")
                again = await manager.submit("work", work(2, 0), key="k")
                assert await again == 4
                for worker in (paused, other):
                    worker.send(signal.SIGTERM)
                assert "start k" in other.everything()
                assert paused.everything().count("end k") >= 1

        produce(path, use)


def test_a_running_command_is_cancelled_from_another_process(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with workers(path, 1) as (worker,):

        async def use(manager: QueueManager, work: Any, fail: Any) -> None:
            handle = await manager.submit("work", work(1, 3600), key="long")
            worker.hear("start long")
            assert await manager.cancel("work", "long")
            with pytest.raises(CommandCancelledError):
                await handle
            await asyncio.to_thread(worker.hear, "end long")

        produce(path, use)


def test_a_restart_finds_retries_that_wait(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"

    async def first(manager: QueueManager, work: Any, fail: Any) -> None:
        await manager.submit("work", work(1, 0), key="later", delay=LEASE)
        await manager.submit("work", work(2, 0), key="now")

    produce(path, first)
    with workers(path, 1) as (worker,):
        worker.hear("start now")
        worker.hear("start later")
