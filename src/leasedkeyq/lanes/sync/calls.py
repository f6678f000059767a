"""The calls of threads, on their way into an event loop and back."""

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any, Final, Generic, TypeVar

from leasedkeyq.errors import QueueClosedError
from leasedkeyq.lanes.errors import ManagerClosedError

T = TypeVar("T")

LOOK: Final = 1.0
"""Seconds between two looks whether the event loop that a thread waits for is still there."""


class SentAwayError(Exception):
    """The call only waited, and is to be made again: the process forks."""


class SyncCall(Generic[T]):
    """Something to await in an event loop, for a thread that waits for the outcome.

    Args:
        work: Makes what is to be awaited.
        waits: Whether it only waits for something, and can be made again without harm.
    """

    __slots__ = ("_done", "_error", "_result", "context", "task", "waits", "work")

    def __init__(self, work: Callable[[], Awaitable[T]], *, waits: bool = False) -> None:
        self.work = work
        self.waits = waits
        self.context = contextvars.copy_context()
        self.task: asyncio.Task[T] | None = None
        self._done = threading.Lock()
        self._done.acquire()
        self._result: T
        self._error: BaseException | None = None

    async def run(self) -> T:
        """Do it, in the event loop."""
        return await self.work()

    def send_away(self, error: Exception) -> None:
        """End the call with an error, in the event loop."""
        if self.task is not None:
            self._error = error
            self.task.cancel()

    def ended(self, task: "asyncio.Task[T]") -> None:
        """Its task has ended; one that is cancelled before its first step runs nothing at all."""
        self.task = None
        if task.cancelled():
            self._error = self._error or ManagerClosedError(
                "the manager was closed, or its event loop has ended, while this call was under way"
            )
        elif (error := task.exception()) is not None:
            self._error = error
        else:
            self._error = None
            self._result = task.result()
        self._done.release()

    def outcome(self, still_there: Callable[[], bool]) -> T:
        """Wait for the outcome, in the thread.

        A thread that is interrupted, such as by Ctrl-C, goes on at once.

        Raises:
            ManagerClosedError: The event loop has ended.
        """
        while not self._done.acquire(timeout=LOOK):
            if not still_there() and not self._done.acquire(timeout=LOOK):
                raise ManagerClosedError("the event loop of the manager has ended meanwhile")
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # or the error and this frame would refer to each other
        return self._result


class SyncCalls:
    """Carries calls into an event loop. Calls that threads make together arrive there together.

    So what they put goes to the store as one batch. The event loop is woken once for all of them.

    Args:
        loop: Where calls run.
        start: Has a function called in it, or raises.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, start: Callable[[Callable[[], object]], object]
    ) -> None:
        self._loop = loop
        self._start = start
        self._line: deque[SyncCall[Any]] = deque()
        self._awake = False
        """Whether the event loop is going to look at the line once more."""
        self._under_way: set[asyncio.Task[Any]] = set()
        self._waiting: set[SyncCall[Any]] = set()

    def make(self, call: SyncCall[T]) -> T:
        """Make a call, and wait for its outcome.

        Raises:
            ManagerClosedError: The event loop has ended.
        """
        self._line.append(call)
        # Only the event loop resets it, and takes the whole line afterwards: so a call that finds
        # it set is still seen.
        if not self._awake:
            self._awake = True
            self._start(self._take)
        try:
            return call.outcome(self._is_there)
        except BaseException as error:
            if not isinstance(error, Exception):  # the thread is interrupted
                self._abandon(call)
            raise

    def _is_there(self) -> bool:
        if self._line:
            # The thread that was to wake the event loop may have been interrupted before it did.
            with suppress(QueueClosedError, RuntimeError):
                self._start(self._take)
        return self._loop.is_running()

    def _abandon(self, call: SyncCall[Any]) -> None:
        task = call.task
        if task is not None and self._loop.is_running():
            self._loop.call_soon_threadsafe(task.cancel)

    @property
    def waited_for(self) -> bool:
        """Whether a thread waits for the outcome of a call."""
        return bool(self._line or self._under_way)

    # In the event loop

    def _take(self) -> None:
        self._awake = False
        line = self._line
        while line:
            call = line.popleft()
            task = self._loop.create_task(call.run(), context=call.context)
            call.task = task
            task.add_done_callback(call.ended)
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
            if call.waits:
                self._waiting.add(call)
                task.add_done_callback(partial(self._waited, call))

    def _waited(self, call: SyncCall[Any], task: "asyncio.Task[Any]") -> None:
        del task
        self._waiting.discard(call)

    async def quiet(self) -> None:
        """Wait until no call is under way; no more are made."""
        self._take()
        while self._under_way:
            await asyncio.wait(self._under_way)

    def send_away(self, error: Exception) -> None:
        """End the calls that only wait."""
        self._take()
        for call in list(self._waiting):
            call.send_away(error)


def time_left(until: float | None) -> float | None:
    """Seconds until a moment of the monotonic clock; None: for ever."""
    return None if until is None else max(0.0, until - monotonic())
