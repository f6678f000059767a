"""Kills workers with kill -9, at random and at named points of their work.

A round is a store and nine kills. In three rounds of four these come in three waves: two workers
are killed at named points and one at random, while they put, edit, claim, ack, release and extend
on a few keys with short leases; what the dead leave behind is what the next ones begin with. In the
fourth, workers that wait for items of a queue with little room are killed at random and replaced.
In the end everything that was asked and answered is compared with what is there:
`tests.engines.kill_judge`.
"""

import time
import traceback
from typing import Final

from tests.engines.kill_judge import FAILED, WRONG, Judge
from tests.engines.kill_rounds import Arena, Kind, Site
from tests.torture.part import Findings, Part, Trial

WAVES: Final = 3
NAMED: Final = 2
"""Kills at named points in a wave."""
KILLS: Final = WAVES * (NAMED + 1)
"""In a round."""
WORKERS: Final = 4
"""At a time, in rounds in which they are replaced."""
KINDS: Final[dict[str, tuple[Kind, ...]]] = {
    "file": ("yaml", "json"),
    "sqlite": ("sqlite-full", "sqlite-full", "sqlite-normal"),
    "postgres": ("postgres",),
    "redis": ("redis",),
}
"""The kinds of stores of an engine, which take turns."""


def run(trial: Trial) -> Findings:
    found = Findings()
    with Site(KINDS[trial.engine], trial.folder) as site:
        for seed in trial.seeds:
            try:
                try_round(site, seed, found)
            except Exception:
                found.violation(FAILED, seed, traceback.format_exc())
                site.begin_anew()
    return found


def try_round(site: Site, seed: int, found: Findings) -> None:
    with site.arena(seed) as arena:
        by_key = seed % 4 == 0
        if by_key:
            kill_and_replace(arena, found)
        else:
            kill_in_waves(arena, seed, found)
        judge = arena.judge(by_key=by_key)
    tell(arena, judge, seed, found)


def kill_in_waves(arena: Arena, seed: int, found: Findings) -> None:
    # One after the other, so that all points come up equally often.
    first = seed * WAVES * NAMED
    for wave in range(WAVES):
        places = (first + wave * NAMED + number for number in range(NAMED))
        arena.wave([arena.points[place % len(arena.points)] for place in places])
        found.counted["kills at named points"] += NAMED
        found.counted["kills at random"] += 1
        found.tried += NAMED + 1
        # What the dead left behind is dealt with by the next ones, or by this process.
        if arena.dice.random() < 0.5:
            arena.inspect()


def kill_and_replace(arena: Arena, found: Findings) -> None:
    lives = [arena.start("queue") for _ in range(WORKERS)]
    for left in reversed(range(KILLS)):
        time.sleep(arena.dice.random() * 0.2)
        arena.kill(lives.pop(arena.dice.randrange(len(lives))))
        found.counted["kills at random"] += 1
        found.tried += 1
        if left > len(lives):
            lives.append(arena.start("queue"))


def tell(arena: Arena, judge: Judge, seed: int, found: Findings) -> None:
    """Count what workers did, and all that is wrong."""
    settles = [settle for lease in judge.leases.values() for settle in lease.settles]
    found.counted["acknowledged puts"] += sum(put.item is not None for put in judge.puts)
    found.counted["leases"] += len(judge.leases)
    found.counted["accepted settles"] += sum(settle.accepted is True for settle in settles)
    found.counted["refused settles"] += sum(settle.accepted is False for settle in settles)
    found.counted["calls without an answer"] += judge.unanswered
    for complaint in arena.complaints:
        found.violation(complaint.wrong, seed, complaint.words)


PART = Part(
    name="kills",
    title="Workers killed with kill -9, at random and at named points of their work",
    unit="kills",
    amounts=dict.fromkeys(KINDS, 112),
    slice=dict.fromkeys(KINDS, 1),
    run=run,
    wrong=WRONG,
    note=(
        "A named point is a step of the engine: before, halfway through and after each write, "
        "sync, rename and commit; on a server before, halfway through and after sending each "
        "request, and before its answer is read."
    ),
)
