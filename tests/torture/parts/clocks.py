"""Clocks that jump, forward and back, by seconds and by years.

Memory, file and SQLite go by the clock of the machine. In one round two stores on one file work
while that clock is set again and again. PostgreSQL and Redis go by the clock of the server: there
the clocks of the clients jump, and nothing of it may be seen.
"""

import asyncio
import shutil
from random import Random
from typing import Final

from tests.torture.clocks import local, schedules, servers
from tests.torture.clocks.jumping_clock import JumpingClock
from tests.torture.clocks.session import (
    EARLY,
    FENCES,
    LOST,
    STUCK,
    TOO_MANY,
    TWICE,
    Problem,
    Session,
)
from tests.torture.part import Findings, Part, Trial
from tests.torture.scratch import scratch_folder

PATIENCE: Final = 120.0
"""Seconds after which a round counts as stuck."""

SCHEDULES: Final = 4
"""Each of so many rounds in memory is one of lanes with a schedule, too."""


def run(trial: Trial) -> Findings:
    if trial.engine in ("postgres", "redis"):
        return _on_a_server(trial)
    found = Findings()
    with scratch_folder(trial.folder) as folder:
        for seed in trial.seeds:
            dice = trial.dice(seed)
            own = folder / "round"
            own.mkdir()
            clock = JumpingClock(Random(dice.getrandbits(64)))
            session = Session(dice, clock)
            suffix = dice.choice(("yaml", "json"))
            place = local.Place(trial.engine, own, suffix, clock)
            try:
                played = local.play(place, clock, dice, session)
                found.tried += asyncio.run(asyncio.wait_for(played, PATIENCE))
            except TimeoutError:
                found.violation(STUCK, seed, f"after {session.calls} calls")
            _count(found, seed, session.calls, session.problems)
            shutil.rmtree(own)
            if trial.engine == "memory" and seed % SCHEDULES == 0:
                workers = schedules.TickingWorkers(Random(dice.getrandbits(64)))
                workers.play()
                found.tried += workers.jumps
                found.counted["rounds with schedules"] += 1
                _count(found, seed, 0, workers.problems)
    return found


def _on_a_server(trial: Trial) -> Findings:
    found = Findings()
    dice = {seed: trial.dice(seed) for seed in trial.seeds}

    async def play(url: str) -> None:
        async for seed, clients in servers.play_all(url, dice):
            found.tried += clients.jumps
            _count(found, seed, clients.calls, clients.problems)

    with trial.empty_store() as url:
        asyncio.run(play(url))
    return found


def _count(found: Findings, seed: int, calls: int, problems: list[Problem]) -> None:
    found.counted["calls"] += calls
    for problem in problems:
        found.violation(problem.name, seed, problem.words)


PART = Part(
    name="clocks",
    title="Clocks set forward and back by seconds to years, under leases, delays and rate limits",
    unit="jumps of a clock",
    amounts=dict.fromkeys(("memory", "file", "sqlite", "postgres", "redis"), 1_000),
    slice={"memory": 8, "file": 6, "sqlite": 6},
    run=run,
    wrong=(LOST, TWICE, EARLY, TOO_MANY, FENCES, STUCK),
    note=(
        "On memory, file and SQLite the clock of the machine jumps; an open store stands still "
        "while the clock is behind. On PostgreSQL and Redis the clocks of the clients jump, and "
        "the clock of the server does not. Each fourth round in memory also runs a schedule of "
        "lanes, in virtual time: each of its ticks fires once."
    ),
)
