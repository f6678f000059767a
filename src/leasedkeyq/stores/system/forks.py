"""What happens around a fork of the process: first the doors let go, then the engines.

Python calls what was registered last first, and modules are imported in any order. So doors and
engines register here, and this module registers once.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

ForkStep: TypeAlias = Callable[[], None]
MOST_ENDED: Final = 16
"""Threads that have ended, of which a fork looks whether the system has ended them."""
LONGEST_END: Final = 1.0
"""Seconds for which a fork waits until the system has ended threads."""


class _ForkSteps(NamedTuple):
    before: ForkStep
    after_in_parent: ForkStep
    after_in_child: ForkStep


class Forks:
    """The steps that doors and engines take around a fork."""

    def __init__(self) -> None:
        self._doors: list[_ForkSteps] = []
        self._engines: list[_ForkSteps] = []
        self._ended: deque[int] = deque(maxlen=MOST_ENDED)

    def add_door(
        self, before: ForkStep, after_in_parent: ForkStep, after_in_child: ForkStep
    ) -> None:
        """Take these steps for something that uses stores.

        `before` may wait for calls that are under way.
        """
        self._doors.append(_ForkSteps(before, after_in_parent, after_in_child))

    def add_engine(
        self, before: ForkStep, after_in_parent: ForkStep, after_in_child: ForkStep
    ) -> None:
        """Take these steps for stores: `before` after that of all doors, and the others first."""
        self._engines.append(_ForkSteps(before, after_in_parent, after_in_child))

    def thread_ended(self, thread: threading.Thread) -> None:
        """A thread that had a connection has ended just now."""
        if thread.native_id is not None:
            self._ended.append(thread.native_id)

    def before(self) -> None:
        """The process is about to fork."""
        running = _native_threads()
        for steps in (*self._doors, *self._engines):
            steps.before()
        _wait_until_gone((running | {*self._ended}) - _native_threads())
        self._ended.clear()

    def after_in_parent(self) -> None:
        """The process has forked."""
        for steps in (*self._engines, *self._doors):
            steps.after_in_parent()

    def after_in_child(self) -> None:
        """This is the new process."""
        for steps in (*self._engines, *self._doors):
            steps.after_in_child()


def _native_threads() -> set[int]:
    return {thread.native_id for thread in threading.enumerate() if thread.native_id is not None}


def _wait_until_gone(threads: set[int]) -> None:
    """Wait until the system has ended threads that Python takes for ended.

    At its very end a thread cleans up what C libraries keep for it, and OpenSSL takes a lock for
    that. A process that is forked meanwhile would wait for this lock for ever.
    """
    until = time.monotonic() + LONGEST_END
    for thread in threads:
        while Path(f"/proc/self/task/{thread}").exists() and time.monotonic() < until:
            time.sleep(0.001)


forks = Forks()
"""Those of this process."""

if hasattr(os, "register_at_fork"):
    # The callback that was registered last is called first before a fork. The pools of threads
    # take a lock then that a store may need to be closed, so theirs must be registered before.
    import_module("concurrent.futures.thread")
    os.register_at_fork(
        before=forks.before,
        after_in_parent=forks.after_in_parent,
        after_in_child=forks.after_in_child,
    )
