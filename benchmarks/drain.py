"""Worker processes that empty a queue in a file together: how long they take."""

import multiprocessing
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from typing import Any, TypeAlias

from benchmarks.timing import wall_clock

Emptying: TypeAlias = Callable[..., list[int]]
"""Opens the queue in a file, waits at a barrier, empties it, and tells the numbers that it ran.

It gets the barrier, a counter that all processes share and may use, and the other arguments.
"""


def seconds_to_empty(emptying: Emptying, processes: int, items: int, *arguments: Any) -> float:
    """Seconds from the moment when all processes are ready until the last has ended its work.

    The queue has the numbers from 0 to `items`, each of which must have been run exactly once.
    """
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(processes + 1)
    counter = context.Value("q", 0)
    answers: list[Connection] = []
    for _ in range(processes):
        here, there = context.Pipe()
        whole = (emptying, there, start, counter, arguments)
        context.Process(target=_tell, args=whole, daemon=True).start()
        there.close()
        answers.append(here)
    start.wait()
    began = wall_clock()
    ran: Counter[int] = Counter()
    for here in answers:
        ran.update(here.recv())
    seconds = wall_clock() - began
    assert ran == Counter(range(items)), f"{ran.total()} runs of {len(ran)} of {items} commands"
    return seconds


def _tell(
    emptying: Emptying, there: Connection, start: Barrier, counter: Any, arguments: Any
) -> None:
    there.send(emptying(start, counter, *arguments))
