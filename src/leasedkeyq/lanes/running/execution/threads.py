"""Plain functions of commands, in threads of the worker's own.

The pool has as many threads as plain functions have run at a time, so the concurrency of the lanes
is its size. It is not the default executor of the event loop, whose few threads anything in the
process may keep busy. Its threads are daemons: the end of the process does not wait for them.
"""

import contextvars
import threading
from asyncio import AbstractEventLoop, CancelledError, Future, get_running_loop
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from queue import SimpleQueue
from typing import Any


class ThreadCall:
    """One call of a function in a thread, and the task that waits for it.

    Attributes:
        thread: The thread that makes it, while it does; otherwise 0.
    """

    __slots__ = ("context", "done", "error", "function", "loop", "result", "thread", "waiter")

    def __init__(
        self, function: Callable[[], Any], context: Context, loop: AbstractEventLoop
    ) -> None:
        self.function = function
        self.context = context
        self.loop = loop
        self.done = False
        self.thread = 0
        self.result: Any = None
        self.error: BaseException | None = None
        self.waiter: Future[None] | None = None

    def make(self) -> None:
        """Call the function, in the current thread, and tell the event loop of the end."""
        self.thread = threading.get_ident()
        try:
            self.result = self.context.run(self.function)
        except BaseException as error:
            self.error = error
        self.thread = 0
        with suppress(RuntimeError):  # the event loop was closed: nothing waits any more
            self.loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        self.done = True
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)


class ThreadPool:
    """Threads that call functions for the tasks of one event loop.

    Attributes:
        size: How many threads there are.
        calls: The calls that are made, or are about to be.
    """

    def __init__(self) -> None:
        self.size = 0
        self.calls: set[ThreadCall] = set()
        self._busy = 0
        self._calls: SimpleQueue[ThreadCall | None] = SimpleQueue()

    async def run(self, function: Callable[[], Any]) -> Any:
        """Call a function in a thread, with the context variables of the current task.

        A thread cannot be ended from outside. So a cancelled call goes on until the function
        returns, and raises `CancelledError` only then, whatever the function returned or raised.
        """
        loop = get_running_loop()
        call = ThreadCall(function, contextvars.copy_context(), loop)
        cancelled: CancelledError | None = None
        self._busy += 1
        try:
            if self._busy > self.size:
                self._add_thread()
            self.calls.add(call)
            self._calls.put(call)
            while not call.done:
                call.waiter = loop.create_future()
                try:
                    await call.waiter
                except CancelledError as error:
                    cancelled = error
        finally:
            self._busy -= 1
            self.calls.discard(call)
        try:
            if cancelled is not None:
                raise cancelled
            if call.error is not None:
                raise call.error
            return call.result
        finally:
            # An exception refers to this frame, and the frame must not refer back to it.
            del call, cancelled

    def close(self) -> None:
        """Let the threads end: each as soon as its function, if it runs one, has returned."""
        for _ in range(self.size):
            self._calls.put(None)
        self.size = 0

    def _add_thread(self) -> None:
        name = f"leasedkeyq command {self.size + 1}"
        threading.Thread(target=_serve, args=(self._calls,), name=name, daemon=True).start()
        self.size += 1


def _serve(calls: "SimpleQueue[ThreadCall | None]") -> None:
    while (call := calls.get()) is not None:
        call.make()
        del call  # an idle thread keeps nothing of the command alive
