"""From threads without an event loop to a store that needs one, and back."""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Generator, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError, wait
from contextlib import contextmanager, suppress
from typing import Any, ClassVar, TypeVar

from leasedkeyq.errors import QueueClosedError
from leasedkeyq.model.requests import Answer, StoredItem
from leasedkeyq.repository.errors import TransactionError
from leasedkeyq.repository.mapping import ItemRequest
from leasedkeyq.stores.store import Store
from leasedkeyq.stores.watchers import LISTENER

T = TypeVar("T")
STEP = 0.1
"""Seconds between two looks at whether a thread that closes has to wait any longer."""
EditCall = Callable[
    [Callable[[Sequence[StoredItem]], Sequence[ItemRequest]]], Coroutine[Any, Any, list[Answer]]
]
"""An edit of a store, but for its work."""


class LoopThread:
    """An event loop in a thread of its own, which does what other threads ask for.

    One loop thread serves all repositories of a store object: some stores belong to one event loop.
    """

    _of_store: ClassVar[dict[Store, "LoopThread"]] = {}
    # Reentrant, as the garbage collector may end a repository at any moment.
    _registry = threading.RLock()

    def __init__(self, store: Store) -> None:
        self.store = store
        self.process = os.getpid()
        self._users = 0
        self._gate = threading.Lock()
        self._closing = False
        self._ending: asyncio.Task[None] | None = None
        self._awaited: set[Future[Any]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._run, name=f"leasedkeyq repository on {type(store).__name__}", daemon=True
        )
        self._thread.start()

    @classmethod
    def of(cls, store: Store) -> "LoopThread":
        """The loop thread of `store`. A caller that asks for it calls `leave` in the end."""
        with cls._registry:
            loop_thread = cls._of_store.get(store)
            if loop_thread is None:
                loop_thread = cls._of_store[store] = LoopThread(store)
            loop_thread._users += 1
        return loop_thread

    @classmethod
    def after_fork(cls) -> None:
        """In a new process there are no threads, and no loop threads."""
        cls._registry = threading.RLock()
        cls._of_store = {}

    def leave(
        self, *, close_store: bool, wait: bool = True, before: Callable[[], None] | None = None
    ) -> None:
        """End this use of the loop thread; with the last one the thread ends.

        `before` is called in the thread before that.
        """
        if self.process != os.getpid():
            return
        if before is not None:
            self._loop.call_soon_threadsafe(before)
        with self._registry:
            self._users -= 1
            last = not self._users
            if last:
                self._of_store.pop(self.store, None)
        if not last:
            return
        with self._gate:
            # All that was submitted is before this in the line, and nothing comes after it.
            self._closing = True
            self._loop.call_soon_threadsafe(self._stop, close_store)
        if wait and threading.current_thread() is not self._thread:
            self._thread.join()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> "Future[T]":
        """Have a coroutine run."""
        with self._gate:
            if not self._closing:
                answer = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
                self._awaited.add(answer)
                answer.add_done_callback(self._awaited.discard)
                return answer
        coroutine.close()
        raise QueueClosedError("the repository is closed; make a new one")

    def start(self, function: Callable[[], object]) -> None:
        """Have a function called in the thread; the thread waits for the tasks that it makes."""
        with self._gate:
            if self._closing:
                raise QueueClosedError("the repository is closed; make a new one")
            self._loop.call_soon_threadsafe(function)

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Have a coroutine run, and wait for what it returns.

        If the waiting thread is interrupted, the coroutine is cancelled.
        """
        return wait_for(self.submit(coroutine))

    # In the thread

    def _run(self) -> None:
        try:
            self._loop.run_forever()
            # As `asyncio.run` ends: connections that were closed get the turn that they need.
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
        finally:
            self._loop.close()

    def _stop(self, close_store: bool) -> None:
        self._ending = self._loop.create_task(self._end(close_store))

    async def _end(self, close_store: bool) -> None:
        try:
            while (others := self._others()) and not self._is_given_up():
                await asyncio.wait(others, timeout=STEP)
            # The threads that wait for calls that have ended may not know yet that they have.
            if unheard := [asyncio.wrap_future(answer) for answer in list(self._awaited)]:
                await asyncio.wait(unheard)
            if close_store:
                await self.store.close()
            if left := asyncio.all_tasks() - {asyncio.current_task()}:
                for task in left:
                    task.cancel()
                await asyncio.wait(left, timeout=1.0)
        finally:
            self._loop.stop()

    def _others(self) -> "set[asyncio.Task[Any]]":
        """What is under way, but for tasks that listen until their store is closed."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        return {task for task in tasks if task.get_name() != LISTENER}

    def _is_given_up(self) -> bool:
        """Whether the server is away and no thread waits: then none misses a call under way."""
        return self.store.outage is not None and not self._awaited


def wait_for(future: "Future[T]") -> T:
    """The result of what runs in a loop thread."""
    try:
        return future.result()
    except CancelledError:
        raise QueueClosedError("the repository was closed while it was used") from None
    except BaseException:
        future.cancel()
        raise


class Abandoned(Exception):  # noqa: N818 - a message to the store, not an error
    """The thread that did the work has gone: the edit must not happen."""


class Handoff:
    """Lets the thread that called do the work of an edit, while the store waits for it.

    Args:
        at_start: Called in the store's thread before the work is handed out.
        at_end: Called there when it is done, before it is applied.

    Attributes:
        items: What is stored, for the thread that does the work.
        requests: What is to be done, from that thread.
        answers: How that went, once it is done.
    """

    def __init__(self, at_start: Callable[[], None], at_end: Callable[[], None]) -> None:
        self.items: Sequence[StoredItem] = ()
        self.requests: Sequence[ItemRequest] = ()
        self.answers: list[Answer] = []
        self._at_start = at_start
        self._at_end = at_end
        self._given: Future[Sequence[StoredItem]] = Future()
        self._made: Future[None] = Future()

    @contextmanager
    def during(self, loop_thread: LoopThread, edit: EditCall) -> Generator[None]:
        """Run an edit whose work is the body of the `with` statement; what it raises ends it."""
        running = loop_thread.submit(edit(self._work))
        running.add_done_callback(self._hear_end)
        process = os.getpid()
        try:
            self.items = wait_for(self._given)
            yield
        except BaseException:
            if process == os.getpid():
                self._abandon(running)
            raise
        if process != os.getpid():
            message = "a transaction was carried over a fork; it belongs to the old process"
            raise TransactionError(message)
        self._made.set_result(None)
        self.answers = wait_for(running)

    def _abandon(self, running: "Future[list[Answer]]") -> None:
        self._made.set_exception(Abandoned())
        if self._given.done() and not self._given.cancelled():
            # The store has the work in hand, and must have let go of it before this thread goes on.
            wait([running])
        else:
            running.cancel()

    def _work(self, items: Sequence[StoredItem]) -> Sequence[ItemRequest]:
        self._at_start()
        with suppress(InvalidStateError):  # the thread that waited for it has gone
            self._given.set_result(items)
        self._made.result()
        self._at_end()
        return self.requests

    def _hear_end(self, running: "Future[list[Answer]]") -> None:
        """The edit may end before its work was called: the store is closed, or broken."""
        if running.cancelled():
            self._given.cancel()
        elif not self._given.done() and (error := running.exception()) is not None:
            self._given.set_exception(error)


_here = threading.local()


@contextmanager
def inside(place: object) -> Generator[None]:
    """Mark this thread as being inside a transaction of `place`."""
    refuse_inside(place)
    places: set[object] = _here.__dict__.setdefault("places", set())
    places.add(place)
    try:
        yield
    finally:
        places.discard(place)


def refuse_inside(place: object) -> None:
    """Refuse to let a thread wait for a transaction that it is in itself.

    Raises:
        TransactionError: This thread is inside a transaction of `place`.
    """
    if is_inside(place):
        raise TransactionError(
            "this thread is inside a transaction or an update_item of the same store, and would "
            "wait for itself; use the queue or the item that it was given, or call afterwards"
        )


def is_inside(place: object) -> bool:
    """Whether this thread is inside a transaction of `place`."""
    return place in _here.__dict__.get("places", ())
