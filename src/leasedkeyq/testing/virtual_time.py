"""An event loop with virtual time."""

import asyncio
import selectors
from typing import Any


class DeadlockError(RuntimeError):
    """Everybody waits, and nothing is going to happen."""


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps: an hour of waiting takes no time.

    The clock starts at 0 and stands still while there is something to run. When everybody waits,
    it jumps to the next timer. When everybody waits and there is no timer, nothing could ever
    happen: the loop raises `DeadlockError`, which finds lost wake-ups. Tests that use it are
    fast and always run in the same order.

    Meant for programs without threads and sockets, as the ``loop_factory`` of `asyncio.Runner`.
    """

    def __init__(self) -> None:
        self._now = 0.0
        self._selector_of_time = _JumpingSelector(self)
        super().__init__(self._selector_of_time)

    def time(self) -> float:
        """The virtual time, in seconds."""
        return self._now

    def jump(self, seconds: float) -> None:
        """Let time pass without running anything, as a blocking call would."""
        self._now += seconds


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        events = super().select(0)
        if not events:
            if timeout is None:
                raise DeadlockError("every task waits and no timer is set")
            self._loop.jump(max(timeout, 0))
        return events
