"""Kills workers with threads and processes, and workers that a supervisor replaces.

In odd rounds a worker is killed while a command runs in a thread and another in a process of its
pool; a second worker takes both over, is told to end by Ctrl-C, and ends. In even rounds three
supervised workers, which are replaced after some commands as well, are killed at random.
"""

import asyncio
import os
import random
import re
import signal
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Final

from tests.cli.test_worker import APP, PATIENCE, Worker, command, producer, worker
from tests.lanes.durable.plain_functions_support import (
    ENDED_BADLY,
    LOST,
    RESULTS,
    WRONG,
    kill_and_interrupt,
)
from tests.torture.part import Findings, Part, Trial

COMMANDS: Final = 120
"""Of a round with a supervisor."""
KILLS: Final = 4
STARTED: Final = re.compile(r"started worker \d+ \(process (\d+)\)")
STUCK: Final = "rounds that did not go on"


def run(trial: Trial) -> Findings:
    found = Findings()
    for seed in trial.seeds:
        folder = Path(trial.folder, str(seed))
        folder.mkdir()
        try:
            with trial.empty_store() as url:
                if seed % 2:
                    kill_a_pool(url, folder, seed, found)
                else:
                    kill_supervised(url, folder, trial.dice(seed), seed, found)
        except Exception:
            found.violation(STUCK, seed, traceback.format_exc())
    return found


def kill_a_pool(url: str, folder: Path, seed: int, found: Findings) -> None:
    for wrong, words in asyncio.run(kill_and_interrupt(url, folder)):
        found.violation(wrong, seed, words)
    found.tried += 1
    found.counted["workers with a pool killed"] += 1
    found.counted["workers with a pool interrupted"] += 1


def kill_supervised(
    url: str, folder: Path, dice: random.Random, seed: int, found: Findings
) -> None:
    (folder / "app.py").write_text(APP, encoding="utf-8")
    arguments = ("app:manager", "--store", url, "--processes", "3", "--max-commands", "30")
    with worker(folder, *arguments) as supervisor, producer(url) as (runner, manager):
        supervisor.hear("running the lanes")
        handles = [
            runner.run(manager.submit("work", command(manager, "work", number, 0.05)))
            for number in range(COMMANDS)
        ]
        for _ in range(KILLS):
            time.sleep(dice.uniform(0.1, 1.0))
            with suppress(ProcessLookupError):
                os.kill(dice.choice(started(supervisor)[-3:]), signal.SIGKILL)
                found.tried += 1
        for number, handle in enumerate(handles):
            try:
                result = runner.run(handle.result(3 * PATIENCE))
            except Exception as error:
                found.violation(LOST, seed, f"command {number}: {error!r}")
            else:
                if result != 2 * number:
                    found.violation(RESULTS, seed, f"command {number}: {result}")
        # A worker that was killed in the last moment makes it a 1.
        if (code := supervisor.end(signal.SIGTERM)) not in (0, 1):
            found.violation(ENDED_BADLY, seed, f"the supervisor ended with {code}")
        if left := runner.run(manager.stats()).total_pending:
            found.violation(RESULTS, seed, f"{left} commands are left, though all are done")
    found.counted["supervised workers started"] += len(started(supervisor))
    found.counted["commands of supervised workers"] += COMMANDS


def started(supervisor: Worker) -> list[int]:
    """The processes that a supervisor has told of so far."""
    while not supervisor.lines.empty():
        supervisor.told.append(supervisor.lines.get())
    return [int(one[1]) for one in map(STARTED.search, supervisor.told) if one]


PART = Part(
    name="pools",
    title="Workers with pools of processes, and workers of a supervisor, killed with kill -9",
    unit="kills",
    amounts={"sqlite": 20, "postgres": 20, "redis": 20},
    slice={"sqlite": 1},
    run=run,
    wrong=(*WRONG, STUCK),
    note=(
        "No command is to be lost, each result is to be right, and no process of a pool is to "
        "outlive its worker, whether that is killed or told to end."
    ),
)
