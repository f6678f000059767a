"""Processes that begin in some milliseconds: forked from one that has imported what they need."""

import multiprocessing
from collections.abc import Callable, Sequence
from multiprocessing.context import ForkServerProcess
from typing import Any

from tests.servers.valkey import die_with_parent

PATIENCE = 60.0


class Forks:
    """Starts processes that call a function of a module, and ends those that are left.

    Args:
        modules: Imported once, before the first process is started.
    """

    def __init__(self, modules: Sequence[str]) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([*modules, __name__])
        self._started: list[ForkServerProcess] = []

    def start(self, function: Callable[..., None], *arguments: Any) -> ForkServerProcess:
        process = self._context.Process(target=_begin, args=(function, *arguments))
        process.start()
        self._started.append(process)
        return process

    def kill(self, process: ForkServerProcess) -> None:
        """Kill -9, and wait until it is dead. It may be dead already."""
        process.kill()
        process.join(PATIENCE)
        process.close()
        self._started.remove(process)

    def close(self) -> None:
        for process in list(self._started):
            self.kill(process)


def _begin(function: Callable[..., None], *arguments: Any) -> None:
    die_with_parent()
    function(*arguments)
