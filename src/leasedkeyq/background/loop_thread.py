"""From threads without an event loop to something that needs one, and back."""

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from leasedkeyq.errors import QueueClosedError
from leasedkeyq.stores.system.forks import forks
from leasedkeyq.stores.watchers import LISTENER

T = TypeVar("T")
STEP = 0.1
"""Seconds between two looks at whether a thread that ends has to wait any longer."""


class BackgroundLoop:
    """An event loop in a thread of its own, which does what other threads ask for.

    Args:
        name: The name of the thread.
        owner: What threads use it for, as errors name it.

    Attributes:
        loop: The event loop.
        process: The process that it belongs to: after a fork there is no such thread.
    """

    def __init__(self, name: str, owner: str) -> None:
        self.process = os.getpid()
        self._owner = owner
        self._gate = threading.Lock()
        self._closing = False
        self._ending: asyncio.Task[None] | None = None
        self._awaited: set[Future[Any]] = set()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> "Future[T]":
        """Have a coroutine run.

        Raises:
            QueueClosedError: The thread ends.
        """
        with self._gate:
            if not self._closing:
                answer = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
                self._awaited.add(answer)
                answer.add_done_callback(self._awaited.discard)
                return answer
        coroutine.close()
        raise self._closed_error()

    def start(self, function: Callable[[], object]) -> None:
        """Have a function called in the thread; the thread waits for the tasks that it makes.

        Raises:
            QueueClosedError: The thread ends.
        """
        with self._gate:
            if self._closing:
                raise self._closed_error()
            self.loop.call_soon_threadsafe(function)

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Have a coroutine run, and wait for what it returns.

        If the waiting thread is interrupted, the coroutine is cancelled.
        """
        return wait_for(self.submit(coroutine), self._owner)

    def end(
        self,
        finish: Callable[[], Awaitable[None]] | None = None,
        *,
        given_up: Callable[[], bool] = lambda: False,
        wait: bool = True,
    ) -> None:
        """Finish what was asked for so far, and end the thread; refuse what comes later.

        Args:
            finish: Awaited in the thread when nothing else is under way.
            given_up: Whether what is under way need not be waited for, if no thread does.
            wait: Whether to wait for the end.
        """
        with self._gate:
            # All that was submitted is before this in the line, and nothing comes after it.
            self._closing = True
            self.loop.call_soon_threadsafe(self._stop, finish, given_up)
        if wait and threading.current_thread() is not self._thread:
            self._thread.join()
            forks.thread_ended(self._thread)

    def _closed_error(self) -> QueueClosedError:
        return QueueClosedError(f"the {self._owner} is closed; make a new one")

    # In the thread

    def _run(self) -> None:
        try:
            self.loop.run_forever()
            # As `asyncio.run` ends: connections that were closed get the turn that they need.
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
        finally:
            self.loop.close()

    def _stop(
        self, finish: Callable[[], Awaitable[None]] | None, given_up: Callable[[], bool]
    ) -> None:
        self._ending = self.loop.create_task(self._end(finish, given_up))

    async def _end(
        self, finish: Callable[[], Awaitable[None]] | None, given_up: Callable[[], bool]
    ) -> None:
        try:
            while (others := self._others()) and (self._awaited or not given_up()):
                await asyncio.wait(others, timeout=STEP)
            # The threads that wait for calls that have ended may not know yet that they have.
            if unheard := [asyncio.wrap_future(answer) for answer in list(self._awaited)]:
                await asyncio.wait(unheard)
            if finish is not None:
                await finish()
            if left := asyncio.all_tasks() - {asyncio.current_task()}:
                for task in left:
                    task.cancel()
                await asyncio.wait(left, timeout=1.0)
        finally:
            self.loop.stop()

    def _others(self) -> "set[asyncio.Task[Any]]":
        """What is under way, but for tasks that listen until their store is closed."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        return {task for task in tasks if task.get_name() != LISTENER}


def wait_for(future: "Future[T]", owner: str) -> T:
    """The result of what runs in a background loop, for a thread that uses its `owner`."""
    try:
        return future.result()
    except CancelledError:
        raise QueueClosedError(f"the {owner} was closed while it was used") from None
    except BaseException:
        future.cancel()
        raise
