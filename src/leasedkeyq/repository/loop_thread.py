"""The event loop of a store for the threads of a repository, and edits whose work they do."""

import os
import threading
from collections.abc import Callable, Coroutine, Generator, Sequence
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import contextmanager, suppress
from typing import Any, ClassVar, TypeVar

from leasedkeyq.background import loop_thread as background
from leasedkeyq.background.loop_thread import BackgroundLoop
from leasedkeyq.model.requests import Answer, StoredItem
from leasedkeyq.repository.errors import TransactionError
from leasedkeyq.repository.mapping import ItemRequest
from leasedkeyq.stores.store import Store

T = TypeVar("T")
OWNER = "repository"
"""What errors say that was closed."""
EditCall = Callable[
    [Callable[[Sequence[StoredItem]], Sequence[ItemRequest]]], Coroutine[Any, Any, list[Answer]]
]
"""An edit of a store, but for its work."""


class LoopThread(BackgroundLoop):
    """The event loop of a store, in a thread.

    One loop thread serves all repositories of a store object: some stores belong to one event loop.
    """

    _of_store: ClassVar[dict[Store, "LoopThread"]] = {}
    # Reentrant, as the garbage collector may end a repository at any moment.
    _registry = threading.RLock()

    def __init__(self, store: Store) -> None:
        super().__init__(f"leasedkeyq repository on {type(store).__name__}", OWNER)
        self.store = store
        self._users = 0

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
            self.loop.call_soon_threadsafe(before)
        with self._registry:
            self._users -= 1
            last = not self._users
            if last:
                self._of_store.pop(self.store, None)
        if last:
            close = self.store.close if close_store else None
            # While the server is away, a call under way that no thread waits for is not missed.
            self.end(close, given_up=lambda: self.store.outage is not None, wait=wait)


def wait_for(future: "Future[T]") -> T:
    """The result of what runs in a loop thread."""
    return background.wait_for(future, OWNER)


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
