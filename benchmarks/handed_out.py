"""Two processes that empty one queue: who gets what."""

import multiprocessing
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from typing import TypeAlias

Emptying: TypeAlias = Callable[[str, Barrier], list[str]]
"""Opens the queue in a file, waits at the barrier, empties it, and tells what it got."""


def handed_out_twice(emptying: Emptying, path: str) -> int:
    """How many items more than one of two processes got."""
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(2)
    got: Counter[str] = Counter()
    answers: list[Connection] = []
    for _ in range(2):
        here, there = context.Pipe()
        context.Process(target=_tell, args=(emptying, path, start, there), daemon=True).start()
        there.close()
        answers.append(here)
    for here in answers:
        got.update(here.recv())
    return sum(times > 1 for times in got.values())


def _tell(emptying: Emptying, path: str, start: Barrier, there: Connection) -> None:
    there.send(emptying(path, start))
