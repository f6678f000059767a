"""Batches on every store, and workers that are killed in the middle of one."""

import asyncio
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.lanes.durable import batch_worker
from tests.lanes.durable.batch_worker import STUCK
from tests.servers.urls import KINDS, empty_store

PATIENCE = 60.0
ROOT = Path(__file__).resolve().parents[3]


class Worker:
    """A worker process, and the lines that it has told so far."""

    def __init__(self, url: str, *arguments: str) -> None:
        command = [sys.executable, "-m", "tests.lanes.durable.batch_worker", url, *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        self.lines: queue.Queue[str] = queue.Queue()
        self.told: list[str] = []
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
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


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_on_a_store_is_one_call(kind: str, tmp_path: Path) -> None:
    async def main(url: str) -> None:
        manager, index = batch_worker.build(url, lease=30.0)
        handles = await manager.submit_many(index(number) for number in range(6))
        async with asyncio.timeout(PATIENCE), manager:
            assert [await handle for handle in handles] == [0, 2, 4, 6, 8, 10]

    with empty_store(kind, tmp_path) as url:
        asyncio.run(main(url))


def test_the_items_of_a_batch_whose_worker_is_killed_run_again(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"

    async def submit(*items: int) -> list[str]:
        manager, index = batch_worker.build(url)
        handles = await manager.submit_many(index(item) for item in items)
        ids = [handle.id for handle in handles]
        await manager.close()
        return ids

    async def results(ids: list[str]) -> list[int]:
        manager, _ = batch_worker.build(url)
        try:
            async with asyncio.timeout(PATIENCE):
                return [await manager.handle(one) for one in ids]
        finally:
            await manager.close()

    settled = asyncio.run(submit(1, 2, 3, 4))
    stuck = Worker(url, "stuck")
    second: Worker | None = None
    try:
        stuck.hear("end 1 2 3 4")
        assert asyncio.run(results(settled)) == [2, 4, 6, 8]  # the first batch is settled
        left = asyncio.run(submit(STUCK, 5, 6))
        begun = stuck.hear(f"start {STUCK}/1")
        stuck.kill()
        second = Worker(url)
        assert asyncio.run(results(left)) == [2 * STUCK, 10, 12]
    finally:
        stuck.kill()
        if second is not None:
            second.kill()
    assert second is not None
    while not second.lines.empty():
        second.told.append(second.lines.get())
    attempts = [word for line in second.told if line.startswith("start") for word in line.split()]
    again = [one.replace("/1", "/2") for one in begun.split()[1:]]
    runs = [one for one in attempts if one != "start"]
    assert set(again) <= set(runs)
    assert sorted(int(one.partition("/")[0]) for one in runs) == [5, 6, STUCK]  # once each
    assert asyncio.run(results(settled)) == [2, 4, 6, 8]
