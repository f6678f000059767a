"""Fires the ticks of a schedule by workers that are killed and paused, with clocks that differ.

A round is a store, a schedule of a tick every twentieth of a second, three workers, and a hundred
ticks. The workers are killed right before and right after they fire a tick, and at random, and are
paused for longer than their leases.
"""

import asyncio
import traceback
from pathlib import Path
from typing import Final

from tests.forks import Forks
from tests.lanes.schedules import tick_worker
from tests.lanes.schedules.tick_processes import WRONG, TickWorkers, complaints, fire
from tests.torture.part import Findings, Part, Trial

TICKS: Final = 100
OFFSETS: Final = (0.0, 2.0, -2.0, 0.5, -0.1)
"""Seconds by which the clocks of workers are ahead; three of them work in a round."""
DISTURB: Final = 0.8
"""Seconds between two kills or pauses."""
STUCK: Final = "schedules that did not go on"


def run(trial: Trial) -> Findings:
    found = Findings()
    for seed in trial.seeds:
        forks = Forks([tick_worker.__name__])
        try:
            with trial.empty_store() as url:
                try:
                    try_round(trial, url, seed, forks, found)
                finally:
                    forks.close()
        except AssertionError:
            found.violation(STUCK, seed, traceback.format_exc())
    return found


def try_round(trial: Trial, url: str, seed: int, forks: Forks, found: Findings) -> None:
    dice = trial.dice(seed)
    notes = Path(trial.folder, f"notes-{seed}")
    offsets = dice.sample(OFFSETS, 3)
    workers = TickWorkers(forks, url, notes, offsets=offsets, seed=f"{trial.engine} {seed}")
    fired = asyncio.run(fire(url, notes, workers, ticks=TICKS, disturb=DISTURB, dice=dice))
    found.tried += fired
    found.counted.update(workers.counted)
    for wrong, words in complaints(notes.read_text().splitlines(), fired):
        found.violation(wrong, seed, words)


PART = Part(
    name="schedules",
    title="Ticks of a schedule, fired by workers that are killed and paused, with other clocks",
    unit="ticks",
    amounts={"sqlite": 10, "postgres": 10, "redis": 10},
    slice={"sqlite": 1},
    run=run,
    wrong=(*WRONG, STUCK),
    note=(
        "Each tick is to be fired once, whatever becomes of the workers: they are killed with "
        "kill -9 before and after one of seven writes that move the schedule on, and their clocks "
        "differ by up to four seconds. A tick that was fired twice would have two commands."
    ),
)
