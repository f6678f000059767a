"""The workload of the lanes on SQLite for huey: its consumer, with threads, empties a file."""

import asyncio
from importlib import import_module
from itertools import count
from multiprocessing.synchronize import Barrier
from time import sleep
from typing import Any

from benchmarks.drain import seconds_to_empty
from benchmarks.sqlite_facts import pragmas
from benchmarks.timing import FACTS, Turn, Workload, own_folder

PATIENCE = 60.0
"""Seconds that it waits for a lock of SQLite."""
POLL = 0.001
"""Seconds between two looks whether all is done."""


async def drain(items: int, processes: int, **options: Any) -> Turn:
    """Empty a file by worker processes.

    Options:
        threads: How many each process has.
        results: Whether what the jobs return is kept.
    """
    results = options["results"]
    files = count()
    FACTS.update(pragmas(_open(str(own_folder() / "facts.db"), results)[0].storage.conn))

    async def turn() -> float:
        path = str(own_folder() / f"{next(files)}.db")
        _, job, _ = _open(path, results)
        for number in range(items):
            job(number)
        seconds = await asyncio.to_thread(
            seconds_to_empty, empty_in_process, processes, items, path, items, options
        )
        return seconds / items

    return turn


def empty_in_process(
    start: Barrier, counter: Any, path: str, items: int, options: dict[str, Any]
) -> list[int]:
    """Run what is in a file until all of it is done; return what this process ran."""
    huey, _, ran = _open(path, options["results"])
    consumer: Any = import_module("huey.consumer").Consumer(
        huey, workers=options["threads"], periodic=False, check_worker_health=False
    )

    def note(signal: str, task: Any) -> None:
        del signal, task
        with counter.get_lock():
            counter.value += 1

    huey.signal(import_module("huey.signals").SIGNAL_COMPLETE)(note)
    start.wait()
    consumer.start()
    while counter.value < items:
        sleep(POLL)
    return list(ran)


def _open(path: str, results: bool) -> tuple[Any, Any, list[int]]:
    """huey on a file, its task, and the list of what that has run."""
    huey: Any = import_module("huey").SqliteHuey(filename=path, timeout=PATIENCE, results=results)
    ran: list[int] = []

    def job(number: int) -> int:
        ran.append(number)
        return number

    return huey, huey.task(name="job")(job), ran


WORKLOADS: dict[str, Workload] = {"drain": drain}
