"""Workers of schedules that are killed and paused, and what is to be found of their ticks."""

import asyncio
import os
import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import pairwise
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Final

from leasedkeyq.lanes import DrainTimeoutError, QueueManager
from tests.forks import Forks
from tests.lanes.schedules import tick_worker
from tests.lanes.schedules.tick_worker import EVERY, LEASE, build, declare

PATIENCE = 90.0
TWICE: Final = "ticks fired twice"
LEFT_OUT: Final = "ticks left out"
NOT_RUN: Final = "ticks whose command did not run"
NOT_COUNTED: Final = "ticks that the store did not count"
WRONG: Final = (TWICE, LEFT_OUT, NOT_RUN, NOT_COUNTED)


class TickWorkers:
    """Workers on a store, each with a clock of its own. Those that are gone are replaced.

    Attributes:
        counted: What became of them, by name.
    """

    def __init__(
        self, forks: Forks, url: str, notes: Path, *, offsets: Sequence[float], seed: str
    ) -> None:
        self._forks = forks
        self._url = url
        self._notes = notes
        self._offsets = offsets
        self._seed = seed
        self._number = 0
        self.counted: Counter[str] = Counter()
        self._workers = [self._start(offset) for offset in offsets]

    def _start(self, offset: float) -> ForkServerProcess:
        self._number += 1
        seed = f"{self._seed} {self._number}"
        arguments = self._url, str(self._notes), offset, seed
        return self._forks.start(tick_worker.begin, *arguments)

    def replace_dead(self) -> None:
        for place, worker in enumerate(self._workers):
            if not worker.is_alive():
                self._forks.kill(worker)
                self.counted["kills before and after a tick is fired"] += 1
                self._workers[place] = self._start(self._offsets[place])

    async def disturb(self, number: int, dice: random.Random) -> None:
        """Kill one of them, or pause it for longer than its leases, or neither."""
        place = dice.randrange(len(self._workers))
        worker = self._workers[place]
        if number % 3 == 0 and worker.pid is not None and worker.is_alive():
            self.counted["pauses past a lease"] += 1
            os.kill(worker.pid, signal.SIGSTOP)
            await asyncio.sleep(LEASE * 1.5)
            os.kill(worker.pid, signal.SIGCONT)
        elif number % 3 == 1:
            self.counted["kills at random"] += 1
            self._forks.kill(worker)
            self._workers[place] = self._start(self._offsets[place])


async def fire(
    url: str, notes: Path, workers: TickWorkers, *, ticks: int, disturb: float, dice: random.Random
) -> int:
    """Let workers fire at least so many ticks; returns how many the store has counted.

    Every `disturb` seconds one of them is killed or paused, besides the kills of their own.

    Raises:
        AssertionError: The ticks do not come, or their commands do not end.
    """
    manager = build(url)
    schedule = declare(manager, str(notes))
    deadline = time.monotonic() + PATIENCE + ticks * 0.5
    number = 0
    while (await _runs(schedule.name, manager)) < ticks:
        assert time.monotonic() < deadline, "the ticks do not come"
        await asyncio.sleep(disturb)
        number += 1
        await workers.disturb(number, dice)
        workers.replace_dead()
    found = next(each for each in await manager.schedules() if each.name == schedule.name)
    await found.pause()
    found = await found.refresh()
    while True:
        workers.replace_dead()
        try:
            await manager.drain(2.0)
            break
        except DrainTimeoutError:
            assert time.monotonic() < deadline + PATIENCE, "the commands do not end"
    await manager.close()
    store = manager.queue().store
    assert store is not None
    await store.close()
    return found.runs


def complaints(notes: Sequence[str], runs: int) -> Iterator[tuple[str, str]]:
    """What is wrong, and in which words, if the store has counted so many ticks.

    Each tick is to have run under one id, and none is to be left out.
    """
    ids: dict[str, set[str]] = defaultdict(set)
    for line in notes:
        key, _, command = line.rpartition(" ")
        ids[key].add(command)
    for key, found in ids.items():
        if len(found) > 1:
            yield TWICE, f"{key} has the commands {', '.join(sorted(found))}"
    for _ in range(runs - len(ids)):
        yield NOT_RUN, f"{runs} ticks were fired, and {len(ids)} have run"
    for _ in range(len(ids) - runs):
        yield NOT_COUNTED, f"{len(ids)} ticks have run, and {runs} were counted"
    moments = sorted(datetime.fromisoformat(key.partition("@")[2]).timestamp() for key in ids)
    for tick, later in pairwise(moments):
        if round((later - tick) / EVERY) != 1:
            yield LEFT_OUT, f"after {tick} comes {later}"


async def _runs(name: str, manager: QueueManager) -> int:
    return next((each.runs for each in await manager.schedules() if each.name == name), 0)
