"""Runs lanes on a virtual clock: random commands, failures, cancellations, pauses, deaths.

A round is one simulation: `tests.lanes.simulation.simulation`. One of ten is on a store, with one
to three workers that die and are replaced; half of those have a store that is far away, so that
claims, settlements and deaths cross each other, and workers prefetch as much as they ever do.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from leasedkeyq.lanes.durable import prefetch
from tests.lanes.simulation.simulation import Simulation, simulate
from tests.torture.part import Findings, Part, Trial

ON_A_STORE: Final = 10
"""One of so many rounds is on a store."""
TRIPS: Final = (0.0, 0.02, 0.0, 0.3)
"""Seconds to the store and back, in turn."""
BROKEN: Final = "promises broken"


def run(trial: Trial) -> Findings:
    found = Findings()
    for seed in trial.seeds:
        found.tried += 1
        try:
            told = play(seed)
        except AssertionError as error:
            found.violation(BROKEN, seed, str(error))
            continue
        count(told, found)
    return found


def play(seed: int) -> Simulation:
    """One simulation.

    Raises:
        AssertionError: A promise was broken. The message says which, and what happened before.
    """
    number, rest = divmod(seed, ON_A_STORE)
    if rest:
        return simulate(seed, on_store=False)
    trip = TRIPS[number % len(TRIPS)]
    if not trip:
        return simulate(seed, on_store=True)
    with much_prefetching():
        return simulate(seed, on_store=True, trip=trip)


@contextmanager
def much_prefetching() -> Generator[None]:
    """Workers prefetch after their first command, and soon forget that one was slow."""
    enough, fading = prefetch.ENOUGH, prefetch.FADING
    prefetch.ENOUGH, prefetch.FADING = 1, 0.9
    try:
        yield
    finally:
        prefetch.ENOUGH, prefetch.FADING = enough, fading


def count(told: Simulation, found: Findings) -> None:
    """What happened in a simulation."""
    found.counted["commands"] += len(told.tasks)
    found.counted["attempts"] += sum(task.starts for task in told.tasks.values())
    found.counted["starts whose urgency was checked"] += told.checked_starts
    if told.on_store:
        found.counted["simulations on a store"] += 1
        found.counted["deaths of workers"] += sum(line.endswith(" dies") for line in told.trace)


PART = Part(
    name="simulation",
    title="Lanes on a virtual clock, with random commands, failures, cancellations and deaths",
    unit="simulations",
    amounts={"memory": 100_000},
    slice={"memory": 20},
    run=run,
    wrong=(BROKEN,),
    note=(
        "Checked from outside: of a key one command at a time and in order, no lane above its "
        "maximum, the capacity and the minima kept, nothing more urgent left waiting, each handle "
        "told the truth, nothing lost, no task left behind. Nine of ten are lanes in memory; one "
        "of ten is on a store with up to three workers that die, and half of those stores are "
        "far away. A seed replays exactly."
    ),
)
