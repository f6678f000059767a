"""Hands out the values of keys in order, to workers that fail, hang and are killed.

All rounds share one queue and its workers. A round appends some values to a tenth of the keys and
kills a process of workers; the next begins while the last ones are still in line. In the end the
queue is empty, and the notes of all workers tell who was given what: `tests.torture.order.judge`.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterator
from multiprocessing.context import ForkServerProcess
from typing import Final

from leasedkeyq import Store, connect
from tests.forks import Forks
from tests.torture.order import worker
from tests.torture.order.judge import WRONG, Judge
from tests.torture.part import Findings, Part, Trial

KEYS: Final = 1_000
TENTH: Final = KEYS // 10
"""Keys of a round."""
EACH: Final = {"file": 2, "sqlite": 10, "postgres": 10, "redis": 10}
"""Values of a key in a round, by engine. The file store writes all of them at each step."""
PROCESSES: Final = 4
TASKS: Final = 4
"""Workers of a process."""
BEHIND: Final = 5_000
"""A round does not begin while more values than these wait."""
PATIENCE: Final = 300.0
"""Seconds in which a queue becomes shorter, on a machine however busy."""
STUCK: Final = "queues that did not become empty"


class Crew:
    """Processes of workers; one that is killed is replaced."""

    def __init__(self, forks: Forks, url: str, trial: Trial) -> None:
        self._forks = forks
        self._url = url
        self._folder = trial.folder
        self._name = f"{trial.engine} {trial.seeds.start}"
        self._started = 0
        self._processes = [self._start() for _ in range(PROCESSES)]

    def _start(self) -> ForkServerProcess:
        self._started += 1
        notes = self._folder / f"notes-{self._started}"
        seed = f"{self._name} {self._started}"
        return self._forks.start(worker.begin, self._url, notes, seed, TASKS)

    def kill_one(self, dice: random.Random) -> None:
        place = dice.randrange(PROCESSES)
        self._forks.kill(self._processes[place])
        self._processes[place] = self._start()

    def notes(self) -> Iterator[str]:
        for path in sorted(self._folder.glob("notes-*")):
            yield from path.read_text().splitlines()


def run(trial: Trial) -> Findings:
    found = Findings()
    forks = Forks([worker.__name__])
    put: Counter[str] = Counter()
    put_by: dict[tuple[str, int], int] = {}
    with trial.empty_store() as url:
        try:
            crew = Crew(forks, url, trial)
            rounds = play(trial, url, crew, put, put_by)
            if not asyncio.run(rounds):
                found.violation(STUCK, trial.seeds.start, f"after {PATIENCE:.0f} s: {url}")
        finally:
            forks.close()
    judge = Judge(crew.notes())
    found.tried = put.total()
    found.counted = judge.counted
    found.counted["kills"] = len(trial.seeds)
    for complaint in judge.complaints(put):
        seed = put_by.get((complaint.key, complaint.value), trial.seeds.start)
        found.violation(complaint.wrong, seed, complaint.words)
    return found


async def play(
    trial: Trial, url: str, crew: Crew, put: Counter[str], put_by: dict[tuple[str, int], int]
) -> bool:
    """Play all rounds; returns whether the queue became empty in the end."""
    async with connect(url) as store:
        for seed in trial.seeds:
            dice = trial.dice(seed)
            await append(store, seed, EACH[trial.engine], dice, put, put_by)
            await asyncio.sleep(dice.uniform(0.0, 0.4))
            crew.kill_one(dice)
            await until_at_most(store, BEHIND)
        return await until_at_most(store, 0)


async def append(  # noqa: PLR0917  # a round, and what is remembered of it
    store: Store,
    seed: int,
    each: int,
    dice: random.Random,
    put: Counter[str],
    put_by: dict[tuple[str, int], int],
) -> None:
    """Append values to a tenth of the keys: those of a key in order, the keys mixed up."""
    queue = store.queue(worker.QUEUE, value_type=int)
    first = seed % 10 * TENTH
    left = {f"key-{number}": each for number in range(first, first + TENTH)}
    while left:
        batch: list[tuple[str, int]] = []
        for key in dice.sample(sorted(left), min(len(left), dice.randint(1, 50))):
            for _ in range(min(left[key], dice.randint(1, 3))):
                batch.append((key, put[key]))
                put_by[key, put[key]] = seed
                put[key] += 1
                left[key] -= 1
            if not left[key]:
                del left[key]
        await queue.put_many(batch, if_present="append")


async def until_at_most(store: Store, many: int) -> bool:
    """Wait until no more than so many values wait or are leased; returns whether that came."""
    fewest, deadline = 10**9, time.monotonic() + PATIENCE
    while True:
        counts = (await store.count([worker.QUEUE]))[worker.QUEUE]
        left = counts.available + counts.scheduled + counts.in_flight
        if left <= many:
            return True
        if left < fewest:
            fewest, deadline = left, time.monotonic() + PATIENCE
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.1)


PART = Part(
    name="order",
    title=(
        "Jobs of 1,000 keys in their lines, in order, by 16 workers that fail, hang and are killed"
    ),
    unit="jobs",
    amounts={"file": 10, "sqlite": 100, "postgres": 100, "redis": 100},
    slice={"sqlite": 1},
    run=run,
    wrong=(*WRONG, STUCK),
    spread=False,
    note=(
        "Four processes of four workers share one queue. Each job is a value in the line of its "
        "key: all of them are to be handed out, each only when the one before it is done, and "
        "none again that was acknowledged. Six of a hundred are given back, some with a delay, one "
        "of a thousand workers hangs past its lease, and a process is killed with kill -9 after "
        "each thousand jobs. The file store has 2,000 jobs, as it writes all that wait at each "
        "step."
    ),
)
