"""Defaults, middleware, resources and batches on every store, and workers that are killed."""

import asyncio
import os
import queue
import threading
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.forks import Program
from tests.lanes.durable import around_worker
from tests.lanes.durable.around_worker import STUCK
from tests.servers.urls import KINDS, empty_store

PATIENCE = 60.0
LONG = bool(os.environ.get("TORTURE"))


class Worker:
    """A worker process, and the lines that it has told so far."""

    def __init__(self, url: str, *arguments: str) -> None:
        self.process = Program("tests.lanes.durable.around_worker", url, *arguments)
        self.lines: queue.Queue[str] = queue.Queue()
        self.told: list[str] = []
        self.listener = threading.Thread(target=self._listen, daemon=True)
        self.listener.start()

    def _listen(self) -> None:
        with self.process.stdout as lines:
            for line in lines:
                self.lines.put(line.strip())

    def hear(self, wanted: str) -> str:
        """Wait until it tells a line that begins with `wanted`."""
        deadline = time.monotonic() + PATIENCE
        while not (found := [line for line in self.told if line.startswith(wanted)]):
            self.told.append(self.lines.get(timeout=max(0.1, deadline - time.monotonic())))
        return found[0]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)

    def everything(self) -> list[str]:
        """All that it has told until its end."""
        self.listener.join(PATIENCE)
        while not self.lines.empty():
            self.told.append(self.lines.get())
        return self.told


def started(lines: Iterable[str]) -> list[tuple[int, int]]:
    """The items of the batches that a worker has begun, each with its attempt."""
    words = [word for line in lines if line.startswith("start") for word in line.split()[1:]]
    pairs = [word.split("/") for word in words]
    return [(int(item), int(attempt)) for item, attempt in pairs]


async def submitted(url: str, items: Iterable[int], numbers: Iterable[int] = ()) -> list[str]:
    """Submit items to the batch and numbers to the command; returns the ids."""
    manager, index, double = around_worker.build(url)
    handles: list[Any] = await manager.submit_many(index(item) for item in items)
    handles += [await double.submit(number) for number in numbers]
    ids = [handle.id for handle in handles]
    await manager.close()
    return ids


async def results(url: str, ids: list[str]) -> list[int]:
    manager = around_worker.build(url).manager
    try:
        async with asyncio.timeout(PATIENCE):
            return [await manager.handle(one) for one in ids]
    finally:
        await manager.close()


@pytest.mark.parametrize("kind", KINDS)
def test_everything_around_commands_works_on_a_store(
    kind: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async def main(url: str) -> None:
        manager, index, double = around_worker.build(url, lease=30.0)
        handles = await manager.submit_many(index(item) for item in range(6))
        alone = await double.submit(7)
        assert (alone.lane, alone.key) == ("other", "number-7")
        async with asyncio.timeout(PATIENCE), manager:
            assert [await handle for handle in handles] == [0, 2, 4, 6, 8, 10]
            assert await alone == 14

    with empty_store(kind, tmp_path) as url:
        asyncio.run(main(url))
    told = capfd.readouterr().out.splitlines()
    assert told[0] == "open"
    assert told[-1] == "close"
    assert Counter(told)["around index/1"] == 6
    assert Counter(told)["around double/1"] == 1
    assert len(started(told)) == 6


@pytest.mark.parametrize("kind", KINDS if LONG else KINDS[:1])
def test_what_a_killed_worker_had_not_settled_runs_again(kind: str, tmp_path: Path) -> None:
    with empty_store(kind, tmp_path) as url:
        for _ in range(5 if LONG else 1):
            kill_in_the_middle(url)


def kill_in_the_middle(url: str) -> None:
    settled = asyncio.run(submitted(url, [1, 2, 3, 4]))
    workers = [Worker(url, "stuck")]
    try:
        workers[0].hear("end 1 2 3 4")
        assert asyncio.run(results(url, settled)) == [2, 4, 6, 8]
        left = asyncio.run(submitted(url, [STUCK, 5, 6], [STUCK]))
        workers[0].hear(f"start {STUCK}/1")
        workers[0].hear("around double/1")
        workers[0].kill()
        workers.append(Worker(url))
        assert asyncio.run(results(url, left)) == [2 * STUCK, 10, 12, 2 * STUCK]
    finally:
        for worker in workers:
            worker.kill()
    first, second = [worker.everything() for worker in workers]
    assert (first.count("open"), first.count("close")) == (1, 0)
    assert second.count("open") == 1
    begun = dict(started(first)[4:])
    assert STUCK in begun
    again = dict(started(second))
    # Of the batch that did not end, each item runs again; of the one that did, none.
    assert again.keys() == {5, 6, STUCK}
    assert all(again[item] > attempt for item, attempt in begun.items())
    assert [line for line in second if line.startswith("around double/")] != ["around double/1"]
