"""Chains and gathers while workers are killed, and what is to come of them."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from leasedkeyq.lanes import Handle, QueueManager
from tests.forks import Forks
from tests.lanes.workflow import workflow_worker
from tests.lanes.workflow.workflow_worker import Commands

PATIENCE = 120.0
LOST: Final = "chains and gathers lost"
RESULTS: Final = "results that are wrong"
UNORDERED: Final = "steps out of order"
TWICE: Final = "steps submitted twice"
WRONG: Final = (LOST, RESULTS, UNORDERED, TWICE)
STEPS: Final = ("first", "middle", "last")

Complaint = tuple[str, str]
"""What is wrong, and in which words."""


class Workload:
    """Chains and gathers that were submitted, and what is to come of them."""

    def __init__(self, manager: QueueManager, commands: Commands, diary: Path) -> None:
        self._manager = manager
        self._commands = commands
        self._diary = diary
        self.chains: dict[int, Handle[int]] = {}
        self.gathers: dict[str, tuple[int, Handle[dict[str, Any]]]] = {}

    async def submit(self, chains: int, members: int) -> None:
        """Submit so many chains, in one lane and in two by turns, and a gather."""
        manager, commands = self._manager, self._commands
        for number in range(len(self.chains), len(self.chains) + chains):
            lanes = "a" if number % 2 else ["a", "b", "a"]
            steps = commands.first(number), commands.middle, commands.last
            self.chains[number] = await manager.chain(*steps, lane=lanes)
        name = f"g{len(self.gathers)}"
        some = [commands.member(number) for number in range(members)]
        then = partial(commands.report, name=name)
        gather = await manager.gather(some, then=then, lane="a", then_lane="b")
        self.gathers[name] = members, gather

    async def complaints(self) -> AsyncIterator[Complaint]:
        """Wait for all of it: nothing is lost, all is right, and in order."""
        for number, chain in self.chains.items():
            async for complaint in _expect(f"chain {number}", chain, 2 * number + 1):
                yield complaint
        for name, (members, gather) in self.gathers.items():
            good = [n for n in range(members) if n % 10 != 7]
            states = "".join("f" if n % 10 == 7 else "c" for n in range(members))
            right = {"sum": sum(n * n for n in good), "states": states}
            async for complaint in _expect(f"gather {name}", gather, right):
                yield complaint
        await self._manager.drain(PATIENCE)
        diary = self._diary.read_text(encoding="utf-8").splitlines()
        for complaint in complaints(runs_of(diary), self.chains, self.gathers):
            yield complaint


async def _expect(name: str, handle: Handle[Any], right: object) -> AsyncIterator[Complaint]:
    try:
        result = await handle.result(PATIENCE)
    except Exception as error:
        yield LOST, f"{name}: {error!r}"
    else:
        if result != right:
            yield RESULTS, f"{name}: {result!r} instead of {right!r}"


def runs_of(diary: Sequence[str]) -> dict[tuple[str, str], set[str]]:
    """The ids of the commands that have run, by what they are, in the order of their runs."""
    runs: dict[tuple[str, str], set[str]] = {}
    for line in diary:
        name, number, command_id = line.split()
        runs.setdefault((name, number), set()).add(command_id)
    return runs


def complaints(
    runs: Mapping[tuple[str, str], set[str]],
    chains: Sequence[int] | Mapping[int, object],
    gathers: Sequence[str] | Mapping[str, object],
) -> Iterator[Complaint]:
    """What is wrong with the steps that have run."""
    order = list(runs)
    for number in chains:
        steps = [(step, str(number)) for step in STEPS]
        if missing := [step for step in steps if step not in runs]:
            yield LOST, f"chain {number} has no {', '.join(step for step, _ in missing)}"
        elif steps != sorted(steps, key=order.index):
            yield UNORDERED, f"chain {number}: {sorted(steps, key=order.index)}"
    for name in gathers:
        if ("report", name) not in runs:
            yield LOST, f"gather {name} was not reported"
    # A command may run twice, but there is one: nothing was submitted twice.
    for (step, name), ids in runs.items():
        if step != "member" and len(ids) > 1:
            yield TWICE, f"{step} {name}: {', '.join(sorted(ids))}"


async def kill_at_points(url: str, diary: Path, workload: Workload, forks: Forks) -> int:
    """Kill a worker between any two writes to the store, one after the other; returns how many.

    A worker is left that does the rest.
    """
    for point in workflow_worker.POINTS:
        await workload.submit(2, 12)
        doomed = forks.start(workflow_worker.begin, url, str(diary), point)
        async with asyncio.timeout(PATIENCE):
            while doomed.is_alive():
                await asyncio.sleep(0.02)
        assert doomed.exitcode is not None
        assert doomed.exitcode < 0, "the worker ended by itself"
    forks.start(workflow_worker.begin, url, str(diary), "")
    return len(workflow_worker.POINTS)


async def kill_at_random(
    url: str, diary: Path, workload: Workload, forks: Forks, dice: random.Random
) -> int:
    """Kill workers at random moments while they work; returns how many. Two are left."""
    workers = [forks.start(workflow_worker.begin, url, str(diary), "") for _ in range(2)]
    kills = 6
    for _ in range(kills):
        await workload.submit(4, 25)
        await asyncio.sleep(dice.uniform(0.1, 0.8))
        victim = dice.randrange(len(workers))
        forks.kill(workers[victim])
        workers[victim] = forks.start(workflow_worker.begin, url, str(diary), "")
    await workload.submit(4, 25)
    return kills
