"""Workers of schedules that are killed and paused, and what is to be found of their ticks."""

import asyncio
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from datetime import datetime
from itertools import pairwise
from pathlib import Path

from leasedkeyq.lanes import DrainTimeoutError, QueueManager
from tests.lanes.schedules.tick_worker import EVERY, LEASE, build, declare

ROOT = Path(__file__).resolve().parents[3]
PATIENCE = 90.0


def start(url: str, notes: Path, offset: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.lanes.schedules.tick_worker", url, str(notes)]
    return subprocess.Popen([*command, str(offset)], stdout=subprocess.PIPE, text=True, cwd=ROOT)


def survive(url: str, notes: Path, *, ticks: int, offsets: list[float], disturb: float) -> None:
    """Let workers fire at least so many ticks, and check that each was fired once.

    They are killed at moments of their own choice, and every `disturb` seconds one of them is
    killed or paused for longer than its leases. Others take the places of those that are gone.
    """
    workers = [start(url, notes, offset) for offset in offsets]
    try:
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n"
        runs = asyncio.run(
            _disturb(url, notes, workers, ticks=ticks, offsets=offsets, disturb=disturb)
        )
        _check(notes, runs)
        assert runs >= ticks
    finally:
        for worker in workers:
            worker.kill()
            worker.wait(PATIENCE)
            if worker.stdout is not None:
                worker.stdout.close()


async def _disturb(
    url: str,
    notes: Path,
    workers: list[subprocess.Popen[str]],
    *,
    ticks: int,
    offsets: list[float],
    disturb: float,
) -> int:
    """How many ticks were fired in the end, according to the store."""
    chance = random.Random(7)
    manager = build(url)
    schedule = declare(manager, str(notes))
    deadline = time.monotonic() + PATIENCE + ticks * 0.5
    number = 0
    while (await _runs(schedule.name, manager)) < ticks:
        assert time.monotonic() < deadline, "the ticks do not come"
        await asyncio.sleep(disturb)
        number += 1
        place = chance.randrange(len(workers))
        if number % 3 == 0:
            workers[place].send_signal(signal.SIGSTOP)
            await asyncio.sleep(LEASE * 1.5)
            workers[place].send_signal(signal.SIGCONT)
        elif number % 3 == 1:
            workers[place].kill()
        _replace_dead(workers, url, notes, offsets)
    found = next(each for each in await manager.schedules() if each.name == schedule.name)
    await found.pause()
    found = await found.refresh()
    while True:
        _replace_dead(workers, url, notes, offsets)
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


def _replace_dead(
    workers: list[subprocess.Popen[str]], url: str, notes: Path, offsets: list[float]
) -> None:
    for place, worker in enumerate(workers):
        if worker.poll() is not None:
            if worker.stdout is not None:
                worker.stdout.close()
            workers[place] = start(url, notes, offsets[place])


def _check(notes: Path, runs: int) -> None:
    """Each tick has run, and none under two ids; none was left out."""
    ids: dict[str, set[str]] = defaultdict(set)
    for line in notes.read_text().splitlines():
        key, _, command = line.rpartition(" ")
        ids[key].add(command)
    assert {key: found for key, found in ids.items() if len(found) > 1} == {}
    assert len(ids) == runs
    fired = sorted(datetime.fromisoformat(key.partition("@")[2]).timestamp() for key in ids)
    assert {round((later - tick) / EVERY) for tick, later in pairwise(fired)} == {1}


async def _runs(name: str, manager: QueueManager) -> int:

    return next((each.runs for each in await manager.schedules() if each.name == name), 0)
