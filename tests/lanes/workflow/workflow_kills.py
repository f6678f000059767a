"""Chains and gathers while workers are killed: a moment in the suite, for long under torture."""

import asyncio
import random
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

from leasedkeyq.lanes import Handle, QueueManager
from tests.lanes.workflow import workflow_worker
from tests.lanes.workflow.workflow_worker import Commands

ROOT = Path(__file__).resolve().parents[3]
PATIENCE = 120.0


class WorkerProcess:
    """A worker process, which is killed in the end."""

    def __init__(self, url: str, diary: Path, point: str = "") -> None:
        module = "tests.lanes.workflow.workflow_worker"
        command = [sys.executable, "-m", module, url, str(diary), point]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=ROOT)

    async def dies(self) -> None:
        """Wait until it has killed itself."""
        async with asyncio.timeout(PATIENCE):
            while self.process.poll() is None:
                await asyncio.sleep(0.02)
        assert self.process.returncode < 0, "it ended by itself"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)


class Workload:
    """Chains and gathers that were submitted, and what is to come of them."""

    def __init__(self, manager: QueueManager, commands: Commands, diary: Path) -> None:
        self._manager = manager
        self._commands = commands
        self._diary = diary
        self._chains: dict[int, Handle[int]] = {}
        self._gathers: dict[str, tuple[int, Handle[dict[str, Any]]]] = {}

    async def submit(self, chains: int, members: int) -> None:
        """Submit so many chains, in one lane and in two by turns, and a gather."""
        manager, commands = self._manager, self._commands
        for number in range(len(self._chains), len(self._chains) + chains):
            lanes = "a" if number % 2 else ["a", "b", "a"]
            steps = commands.first(number), commands.middle, commands.last
            self._chains[number] = await manager.chain(*steps, lane=lanes)
        name = f"g{len(self._gathers)}"
        some = [commands.member(number) for number in range(members)]
        then = partial(commands.report, name=name)
        gather = await manager.gather(some, then=then, lane="a", then_lane="b")
        self._gathers[name] = members, gather

    async def check(self) -> None:
        """Wait for all of it: nothing is lost, all is right, and in order."""
        async with asyncio.timeout(PATIENCE):
            for number, chain in self._chains.items():
                assert await chain == 2 * number + 1
            for members, gather in self._gathers.values():
                good = [n for n in range(members) if n % 10 != 7]
                states = "".join("f" if n % 10 == 7 else "c" for n in range(members))
                assert await gather == {"sum": sum(n * n for n in good), "states": states}
            await self._manager.drain()
        runs = self._runs()
        for number in self._chains:
            steps = [list(runs).index((step, str(number))) for step in ("first", "middle", "last")]
            assert steps == sorted(steps), f"chain {number} is out of order"
        for name in self._gathers:
            assert ("report", name) in runs
        # A command may run twice, but there is one: nothing was submitted twice.
        chains = {run: ids for run, ids in runs.items() if run[0] != "member"}
        assert {run: ids for run, ids in chains.items() if len(ids) > 1} == {}

    def _runs(self) -> dict[tuple[str, str], set[str]]:
        """The ids of the commands that have run, by what they are, in the order of their runs."""
        runs: dict[tuple[str, str], set[str]] = {}
        for line in self._diary.read_text(encoding="utf-8").splitlines():
            name, number, command_id = line.split()
            runs.setdefault((name, number), set()).add(command_id)
        return runs


async def kill_at_points(url: str, folder: Path) -> None:
    """Kill a worker between any two writes to the store, one after the other."""
    diary = folder / "diary"
    manager = workflow_worker.build(url)
    workload = Workload(manager, workflow_worker.register(manager, diary), diary)
    for point in workflow_worker.POINTS:
        await workload.submit(2, 12)
        worker = WorkerProcess(url, diary, point)
        try:
            await worker.dies()
        finally:
            worker.kill()
    worker = WorkerProcess(url, diary)
    try:
        await workload.check()
    finally:
        worker.kill()
        await manager.close()


async def kill_at_random(url: str, folder: Path, kills: int, seed: int, work: int = 1) -> None:
    """Kill workers at random moments while they work."""
    chance = random.Random(seed)
    diary = folder / f"diary-{seed}"
    manager = workflow_worker.build(url)
    workload = Workload(manager, workflow_worker.register(manager, diary), diary)
    workers = [WorkerProcess(url, diary) for _ in range(2)]
    try:
        for _ in range(kills):
            await workload.submit(4 * work, 25 * work)
            await asyncio.sleep(chance.uniform(0.3, 1.5))
            victim = chance.randrange(len(workers))
            workers[victim].kill()
            workers[victim] = WorkerProcess(url, diary)
        await workload.submit(4 * work, 25 * work)
        await workload.check()
    finally:
        for worker in workers:
            worker.kill()
        await manager.close()
