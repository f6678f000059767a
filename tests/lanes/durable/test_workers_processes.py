"""Workers in processes of their own, on a store that they share: what one says, all obey."""

import asyncio
import queue
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from leasedkeyq.lanes import CommandCancelledError, QueueManager
from tests.forks import Program
from tests.lanes.durable import workers_process
from tests.lanes.durable.workers_process import LEASE, PARTITIONS
from tests.servers.urls import KINDS, empty_store

PATIENCE = 60.0


class Worker:
    """A worker process, and what it has told so far, with the time at which it did."""

    def __init__(self, url: str) -> None:
        self.process = Program("tests.lanes.durable.workers_process", url)
        self.lines: queue.Queue[tuple[float, str]] = queue.Queue()
        self.told: list[tuple[float, str]] = []
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        with self.process.stdout as lines:
            for line in lines:
                self.lines.put((time.monotonic(), line.strip()))

    def listen(self) -> list[tuple[float, str]]:
        while not self.lines.empty():
            self.told.append(self.lines.get())
        return self.told

    @property
    def owned(self) -> set[int] | None:
        """The partitions that it runs; None as long as it has not said."""
        said = [line for _, line in self.listen() if line.startswith("owned")]
        return {int(part) for part in said[-1].split()[1:]} if said else None

    @property
    def paused(self) -> bool | None:
        said = [line for _, line in self.listen() if line.endswith(" parts")]
        return said[-1] == "paused parts" if said else None


@contextmanager
def workers(url: str, count: int) -> Generator[list[Worker]]:
    started: list[Worker] = []
    try:
        started.extend(Worker(url) for _ in range(count))
        yield started
    finally:
        for worker in started:
            worker.process.kill()
            worker.process.wait(PATIENCE)


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.01)


def divided(some: list[Worker]) -> bool:
    parts = [worker.owned for worker in some]
    return None not in parts and sorted(
        part for owned in parts if owned is not None for part in owned
    ) == list(range(PARTITIONS))


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with empty_store(request.param, tmp_path) as found:
        yield found


@contextmanager
def producer(url: str) -> Generator[tuple[asyncio.Runner, QueueManager, Any]]:
    """A manager on the store in this process, which runs nothing."""
    manager = workers_process.build(url)
    with asyncio.Runner() as runner:
        try:
            yield runner, manager, manager.queue().registry.types["work"]
        finally:
            runner.run(manager.close())


def test_a_pause_reaches_every_process_within_a_second(url: str) -> None:
    with workers(url, 2) as both, producer(url) as (runner, manager, work):
        until(lambda: all(worker.paused is False for worker in both))
        times: list[float] = []

        async def change(paused: bool) -> None:
            await (manager.pause("parts") if paused else manager.resume("parts"))

        def seen(paused: bool) -> bool:
            return all(worker.paused is paused for worker in both)

        for paused in (True, False, True, False, True):
            runner.run(change(paused))
            began = time.monotonic()
            until(partial(seen, paused))
            times.append(max(worker.listen()[-1][0] for worker in both) - began)
        # One of them may be late, on a machine that is busy with something else.
        assert sorted(times)[len(times) // 2] < 1
        runner.run(manager.submit("parts", work(0.0), key="k"))
        with workers(url, 1) as (late,):
            until(lambda: late.paused is True)
            assert not any(
                "start k" in line for worker in (*both, late) for _, line in worker.listen()
            )
            runner.run(change(paused=False))
            every = (*both, late)
            until(lambda: any("start k" in line for one in every for _, line in one.listen()))


def test_the_partitions_of_a_killed_worker_go_to_the_others(url: str) -> None:
    with workers(url, 2) as some, producer(url) as (runner, manager, work):
        until(lambda: divided(some))
        with workers(url, 1) as more:
            until(lambda: divided([*some, *more]))
            more[0].process.send_signal(signal.SIGKILL)
            began = time.monotonic()
            until(lambda: divided(some))
            took = time.monotonic() - began
            # Only to see that it is its lease that was waited for, and not something longer.
            assert took < LEASE + 10

        async def everywhere() -> None:
            handles = [await manager.submit("parts", work(0.0), key=str(n)) for n in range(50)]
            async with asyncio.timeout(PATIENCE):
                assert [await handle for handle in handles] == [str(n) for n in range(50)]

        runner.run(everywhere())


def test_a_command_is_cancelled_in_whichever_process_it_runs(url: str) -> None:
    with workers(url, 2) as both, producer(url) as (runner, manager, work):
        times: list[float] = []
        for number in range(3):
            key = f"long-{number}"
            handle = runner.run(manager.submit("limited", work(3600.0), key=key))
            until(partial(_told, both, f"start {key} "))
            assert runner.run(manager.cancel("limited", key))
            began = time.monotonic()
            with pytest.raises(CommandCancelledError):
                runner.run(handle.wait())
            until(partial(_told, both, f"end {key} "))
            times.append(time.monotonic() - began)
        assert sorted(times)[1] < 1


def _told(some: list[Worker], beginning: str) -> bool:
    return any(line.startswith(beginning) for worker in some for _, line in worker.listen())


def test_limits_hold_over_all_processes(url: str) -> None:
    with workers(url, 3) as some, producer(url) as (runner, manager, work):
        until(lambda: all(worker.owned is not None for worker in some))

        async def submit() -> None:
            async with asyncio.timeout(PATIENCE):
                handles = [
                    await manager.submit("limited", work(0.1), key=f"{kind}-{number}")
                    for number in range(6)
                    for kind in ("one", "any", "rate")
                ]
                for handle in handles:
                    await handle

        def facts_said() -> list[list[str]]:
            said = [line.split() for worker in some for _, line in worker.listen()]
            return [line for line in said if line[0] in ("start", "end")]

        began = time.monotonic()
        runner.run(submit())
        until(lambda: len(facts_said()) >= 36)
        facts = facts_said()
    running: set[str] = set()
    starts: list[float] = []
    for what, key, when in sorted(facts, key=lambda fact: float(fact[2])):
        if what == "end":
            running.discard(key)
            continue
        running.add(key)
        assert len(running) <= 3
        assert sum(key.startswith("one") for key in running) <= 1
        if key.startswith("rate"):
            starts.append(float(when))
    assert len(facts) == 36
    assert len(starts) == 6
    # The first at once, and then five a second. A start may be late, but never early.
    assert all(when - began > number / 5 - 0.05 for number, when in enumerate(starts))
