"""Runs chains and gathers whose workers are killed.

In odd rounds a worker kills itself between any two writes that a workflow makes, in even rounds two
workers are killed at random. One round of twenty gathers ten thousand members, with no kills.
"""

import asyncio
import traceback
from pathlib import Path
from typing import Final

from tests.forks import Forks
from tests.lanes.workflow import workflow_worker
from tests.lanes.workflow.workflow_kills import (
    PATIENCE,
    RESULTS,
    WRONG,
    Workload,
    kill_at_points,
    kill_at_random,
)
from tests.torture.part import Findings, Part, Trial

MANY: Final = 20
"""One round of so many gathers many members."""
MEMBERS: Final = 10_000
STUCK: Final = "rounds that did not go on"


def run(trial: Trial) -> Findings:
    found = Findings()
    for seed in trial.seeds:
        forks = Forks([workflow_worker.__name__])
        diary = Path(trial.folder, f"diary-{seed}")
        try:
            with trial.empty_store() as url:
                try:
                    if seed % MANY:
                        asyncio.run(try_kills(trial, url, diary, seed, forks, found))
                    else:
                        asyncio.run(gather_many(url, diary, seed, found))
                finally:
                    forks.close()
        except Exception:
            found.violation(STUCK, seed, traceback.format_exc())
    return found


async def try_kills(  # noqa: PLR0917  # a round
    trial: Trial, url: str, diary: Path, seed: int, forks: Forks, found: Findings
) -> None:
    manager = workflow_worker.build(url)
    workload = Workload(manager, workflow_worker.register(manager, diary), diary)
    try:
        if seed % 2:
            kills = await kill_at_points(url, diary, workload, forks)
            found.counted["kills between two writes"] += kills
        else:
            kills = await kill_at_random(url, diary, workload, forks, trial.dice(seed))
            found.counted["kills at random"] += kills
        async for wrong, words in workload.complaints():
            found.violation(wrong, seed, words)
    finally:
        forks.close()
        await manager.close()
    found.tried += len(workload.chains) + len(workload.gathers)
    found.counted["chains of three steps"] += len(workload.chains)
    found.counted["gathers"] += len(workload.gathers)


async def gather_many(url: str, diary: Path, seed: int, found: Findings) -> None:
    manager = workflow_worker.build(url)
    commands = workflow_worker.register(manager, diary)
    async with asyncio.timeout(10 * PATIENCE), manager:
        members = [commands.member(number) for number in range(MEMBERS)]
        outcomes = await (await manager.gather(members, lane="a"))
    good = [outcome.result for outcome in outcomes if outcome.ok]
    if good != [n * n for n in range(MEMBERS) if n % 10 != 7]:
        found.violation(RESULTS, seed, f"{len(good)} of {MEMBERS} members have a good result")
    found.tried += 1
    found.counted["gathers of 10,000 members"] += 1


PART = Part(
    name="chains",
    title="Chains and gathers of commands whose workers are killed",
    unit="chains and gathers",
    amounts={"sqlite": 20, "postgres": 20, "redis": 20},
    slice={"sqlite": 1},
    run=run,
    wrong=(*WRONG, STUCK),
    note=(
        "Each chain and each gather is to end with the right result, no step before the one "
        "before it, and none submitted twice, though the worker is killed with kill -9 between "
        "any two of the writes that lead from one step to the next."
    ),
)
