"""The workload of the lanes for a3s-lane, whose Python package runs its own commands only."""

from importlib import import_module
from threading import Thread

from benchmarks.timing import Turn, Workload, quiet, wall_clock

LANES = ("system", "control", "query", "session", "skill", "prompt")


async def commands(operations: int, threads: int) -> Turn:
    """Submit commands to its six default lanes, in so many threads: submit waits for the end."""
    manager = import_module("_a3s_lane").PyLane()
    manager.start()

    def submit(first: int) -> None:
        for number in range(first, operations, threads):
            manager.submit(LANES[number % len(LANES)], "nothing")

    async def turn() -> float:
        quiet()
        start = wall_clock()
        workers = [Thread(target=submit, args=(first,)) for first in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return (wall_clock() - start) / operations

    return turn


WORKLOADS: dict[str, Workload] = {"commands": commands}
