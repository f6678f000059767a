"""Where a queue may be used: in one event loop, found out cheaply."""

import sys
from asyncio import AbstractEventLoop, BaseEventLoop, _get_running_loop
from collections.abc import Callable
from threading import get_ident
from typing import Any

from leasedkeyq.errors import WrongEventLoopError


def used_elsewhere(method: str) -> WrongEventLoopError:
    """The error for a call in a second event loop while the first one may still go on."""
    return WrongEventLoopError(
        f"{method} was called in another event loop than the one that uses the queue, and that one "
        "is not closed; use asyncio.run_coroutine_threadsafe to reach it, or make one queue per "
        "event loop"
    )


class _Affinity:
    """Where a queue may be used. The name of the attribute is that of asyncio's own loops."""

    __slots__ = ("_thread_id",)

    def __init__(self, place: object) -> None:
        self._thread_id = place


class _LoopOfOtherMake:
    """The thread that an event loop runs in, for loops that do not show it."""

    __slots__ = ("_loop", "_thread")

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._thread = get_ident()

    @property
    def _thread_id(self) -> int | None:
        return self._thread if self._loop.is_running() else None


UNBOUND: Any = _Affinity(object())
"""The affinity of a queue that has none: not used yet, or closed."""

# Every call of a queue begins with ``if here() != self._affinity._thread_id``: it must be cheap.
# Python 3.11 makes a system call to find the running event loop, which costs as much as a put.
# There, we compare threads: a loop knows the thread that it runs in while it runs.
if sys.version_info >= (3, 12):
    here: Callable[[], object] = _get_running_loop

    def affinity_of(loop: AbstractEventLoop) -> Any:
        """The affinity of a queue that is first used in `loop`, which runs."""
        return _Affinity(loop)
else:
    here = get_ident

    def affinity_of(loop: AbstractEventLoop) -> Any:
        """The affinity of a queue that is first used in `loop`, which runs."""
        return loop if isinstance(loop, BaseEventLoop) else _LoopOfOtherMake(loop)
