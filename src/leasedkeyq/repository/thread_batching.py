"""What many threads ask for at a time is asked of the store at once."""

import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeAlias, TypeVar

from leasedkeyq.errors import LeasedKeyQError, StoreError
from leasedkeyq.model.requests import Answer, Claim, Claimed, StoredItem
from leasedkeyq.repository.loop_thread import LoopThread
from leasedkeyq.repository.mapping import ItemRequest, latest

Request = TypeVar("Request")
Result = TypeVar("Result")

Look: TypeAlias = Callable[[StoredItem | None], Sequence[ItemRequest]]
"""Looks at an item, or None, and says what is to be done. It may be called more than once."""

MOST = 500
"""How many calls are served at once."""


class Call(Generic[Request, Result]):
    """What a thread asks for, and where it waits for the answer."""

    __slots__ = ("answer", "request")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.answer: Future[Result] = Future()


class Gatherer(Generic[Request, Result]):
    """Calls that are made while others are being served are served together next.

    Args:
        loop_thread: Where they are served.
        serve: Gives every call its answer. It must not raise.
    """

    def __init__(
        self,
        loop_thread: LoopThread,
        serve: Callable[[list[Call[Request, Result]]], Awaitable[None]],
    ) -> None:
        self._loop_thread = loop_thread
        self._serve = serve
        self._lock = threading.Lock()
        self._waiting: deque[Call[Request, Result]] = deque()
        self._serving = False

    def submit(self, request: Request) -> "Future[Result]":
        """Have a request served. To cancel what is returned withdraws it, if it still waits."""
        call: Call[Request, Result] = Call(request)
        with self._lock:
            if not self._serving:
                self._loop_thread.start(self._run)
                self._serving = True
            self._waiting.append(call)
        return call.answer

    async def _run(self) -> None:
        while calls := self._next():
            await self._serve(calls)

    def _next(self) -> list[Call[Request, Result]]:
        calls: list[Call[Request, Result]] = []
        with self._lock:
            while self._waiting and len(calls) < MOST:
                call = self._waiting.popleft()
                if call.answer.set_running_or_notify_cancel():
                    calls.append(call)
            if not calls:
                self._serving = False
        return calls


class ClaimServer:
    """Serves claims: one call of the store for all of them."""

    def __init__(self, loop_thread: LoopThread) -> None:
        self._store = loop_thread.store

    async def __call__(self, calls: list[Call[Claim, tuple[Claimed, ...]]]) -> None:
        """Serve them."""
        try:
            answers = await self._store.claim([call.request for call in calls])
        except Exception as error:
            _fail(calls, error)
        else:
            for call, answer in zip(calls, answers, strict=True):
                call.answer.set_result(answer)


class Change:
    """A change of one item of a queue."""

    __slots__ = ("error", "item_id", "look", "requests")

    def __init__(self, item_id: str, look: Look) -> None:
        self.item_id = item_id
        self.look = look
        self.requests: Sequence[ItemRequest] = ()
        self.error: Exception | None = None

    def see(self, stored: StoredItem | None) -> None:
        """Look at the item."""
        self.requests, self.error = (), None
        try:
            self.requests = self.look(stored)
        except Exception as error:
            self.error = error


class ChangeServer:
    """Serves changes of single items: one edit of the store for all of them.

    What one call asks for is all or nothing, and what stops it does not stop the others.

    Args:
        loop_thread: That of the store.
        queue: The name of the queue.
        check: Called in each edit; what it raises stops all calls of that.
    """

    def __init__(
        self, loop_thread: LoopThread, queue: str, check: Callable[[], None] = lambda: None
    ) -> None:
        self._store = loop_thread.store
        self._queue = queue
        self._check = check

    async def __call__(self, calls: list[Call[Change, list[Answer]]]) -> None:
        """Serve them, each item once at a time."""
        while calls:
            now: dict[str, Call[Change, list[Answer]]] = {}
            for call in calls:
                now.setdefault(call.request.item_id, call)
            await self._edit(list(now.values()))
            calls = [call for call in calls if now[call.request.item_id] is not call]

    async def _edit(self, calls: list[Call[Change, list[Answer]]]) -> None:
        changes = [call.request for call in calls]

        def work(items: Sequence[StoredItem]) -> Sequence[ItemRequest]:
            self._check()
            found = latest(items)
            for change in changes:
                change.see(found.get(change.item_id))
            return [request for change in changes for request in change.requests]

        try:
            keys = [change.item_id for change in changes]
            answers = await self._store.edit(self._queue, work, keys=keys)
            # The store may remember the work for a while, and with it whoever asked for it.
            changes.clear()
        except Exception as error:
            changes.clear()
            if _is_of_one(error) and len(calls) > 1:
                for call in calls:
                    await self._edit([call])
            else:
                _fail(calls, error)
            return
        start = 0
        for call in calls:
            end = start + len(call.request.requests)
            if call.request.error is not None:
                call.answer.set_exception(call.request.error)
            else:
                call.answer.set_result(answers[start:end])
            start = end


def _is_of_one(error: Exception) -> bool:
    """Whether one of the requests is the cause, and not the store. Nothing was stored then."""
    faults = (TypeError, ValueError, OverflowError)
    if isinstance(error, StoreError):
        return isinstance(error, ValueError) or isinstance(error.__cause__, faults)
    return isinstance(error, LeasedKeyQError)


def _fail(calls: "list[Call[Request, Result]]", error: Exception) -> None:
    for call in calls:
        call.answer.set_exception(error)
