"""Who uses the stores of this process at the moment, so that a fork can wait for them."""

import threading
from collections.abc import Callable
from typing import Final

STEP: Final = 0.05
"""Seconds after which those who wait are told again that they must not."""


class _Own(threading.local):
    depth = 0


class Traffic:
    """Counts the threads that use a store, and holds them back while the process forks.

    ``with traffic:`` is one use. A thread that is in one may begin others at any time.
    """

    def __init__(self) -> None:
        self._free = threading.Condition()
        self._users = 0
        self._stopped = False
        self._own = _Own()

    def __enter__(self) -> None:
        if not self._own.depth:
            with self._free:
                while self._stopped:
                    self._free.wait()
                self._users += 1
        self._own.depth += 1

    def __exit__(self, *_: object) -> None:
        self._own.depth -= 1
        if not self._own.depth:
            with self._free:
                self._users -= 1
                self._free.notify_all()

    def stop(self, send_away: Callable[[], None]) -> None:
        """Let nobody begin any more, and wait until all others have finished.

        `send_away` is called to tell those who only wait.
        """
        with self._free:
            while self._stopped:
                self._free.wait()
            self._stopped = True
        while True:
            send_away()
            with self._free:
                # Who had begun before may begin to wait after that.
                if self._free.wait_for(self._is_alone, timeout=STEP):
                    return

    def _is_alone(self) -> bool:
        return self._users <= bool(self._own.depth)

    def resume(self) -> None:
        """Let everybody begin again."""
        with self._free:
            self._stopped = False
            self._free.notify_all()

    def begin_anew(self) -> None:
        """In a new process there is no other thread."""
        self._free = threading.Condition()
        self._users = int(bool(self._own.depth))
        self._stopped = False
