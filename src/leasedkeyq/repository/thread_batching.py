"""Batches of calls that threads make: what they ask for at a time is asked of the store at once."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from typing import Any, Final, Generic, TypeAlias, TypeVar

from leasedkeyq.errors import LeasedKeyQError, StoreError
from leasedkeyq.model.requests import Answer, StoredItem
from leasedkeyq.repository.loop_thread import LoopThread
from leasedkeyq.repository.mapping import ItemRequest, latest
from leasedkeyq.stores.batching import Call, CallLine, outcomes_of
from leasedkeyq.stores.store import Store

Request = TypeVar("Request")
Result = TypeVar("Result")

LookAtItem: TypeAlias = Callable[[StoredItem | None], Sequence[ItemRequest]]
"""Looks at an item, or None, and says what is to be done. It may be called more than once."""

MOST: Final = 500
"""How many calls go into one batch."""


class CallerBatcher(Generic[Request, Result]):
    """Gathers the calls of threads and applies them batch by batch in the store's event loop.

    A task for each call, in that loop, would cost a fifth more of the processor's time: so much was
    measured with 30 threads.

    Args:
        loop_thread: Where batches are applied.
        apply: Gets a list of requests and returns as many answers; what it raises goes to every
            caller of the batch.
        lost: Told an answer that nobody waits for.
    """

    def __init__(
        self,
        loop_thread: LoopThread,
        apply: Callable[[list[Request]], Awaitable[Sequence[Result]]],
        lost: Callable[[Result], object] = lambda _: None,
    ) -> None:
        self._loop_thread = loop_thread
        self._apply = apply
        self._lost = lost
        self._lock = threading.Lock()
        self._line: CallLine[Request, Future[Result]] = CallLine(MOST)
        self._applying = False

    def submit(self, request: Request) -> "Future[Result]":
        """Have a request applied. A caller that does not wait any more cancels what it got."""
        answer: Future[Result] = Future()
        with self._lock:
            if not self._applying:
                self._loop_thread.start(self._run)
                self._applying = True
            self._line.append(Call((request,), answer))
        return answer

    async def _run(self) -> None:
        while batch := self._next_batch():
            answers: Sequence[Result] | BaseException
            try:
                answers = await self._apply(
                    [request for call in batch for request in call.requests]
                )
            except asyncio.CancelledError:
                self._send_away(batch)
                raise
            except Exception as error:
                answers = error
            for call, mine in outcomes_of(batch, answers):
                self._hand_out(call.turn, mine)

    def _next_batch(self) -> "list[Call[Request, Future[Result]]]":
        with self._lock:
            batch = self._line.next_batch()
            if not batch:
                self._applying = False
        return batch

    def _send_away(self, batch: "list[Call[Request, Future[Result]]]") -> None:
        """The loop thread ends, as the server is away: no caller will be answered."""
        with self._lock:
            left = [*batch, *self._line]
            self._line.clear()
            self._applying = False
        for call in left:
            assert call.turn is not None
            call.turn.cancel()

    def _hand_out(self, answer: "Future[Result] | None", mine: Any) -> None:
        assert answer is not None
        wanted = answer.set_running_or_notify_cancel()
        if not isinstance(mine, BaseException):
            if wanted:
                answer.set_result(mine[0])
            else:
                self._lost(mine[0])
        elif wanted:
            answer.set_exception(mine)


class ItemChange:
    """A change of one item of a queue.

    Attributes:
        answers: To the requests of the change, or what stopped it.
    """

    __slots__ = ("answers", "error", "item_id", "look", "requests")

    def __init__(self, item_id: str, look: LookAtItem) -> None:
        self.item_id = item_id
        self.look = look
        self.requests: Sequence[ItemRequest] = ()
        self.error: Exception | None = None
        self.answers: list[Answer] | Exception = []

    def see(self, stored: StoredItem | None) -> None:
        """Look at the item."""
        self.requests, self.error = (), None
        try:
            self.requests = self.look(stored)
        except Exception as error:
            self.error = error


class ChangeEdits:
    """Applies changes of single items: one edit of the store for all of them.

    What one change asks for is all or nothing, and what stops it does not stop the others.

    Args:
        store: Where the items are.
        queue: The name of the queue.
        check: Called in each edit; what it raises stops all changes of that.
    """

    def __init__(self, store: Store, queue: str, check: Callable[[], None]) -> None:
        self._store = store
        self._queue = queue
        self._check = check

    async def apply(self, changes: list[ItemChange]) -> list[list[Answer] | Exception]:
        """Apply changes; those of one item follow each other."""
        left = changes
        while left:
            now: dict[str, ItemChange] = {}
            for change in left:
                now.setdefault(change.item_id, change)
            await self._edit(list(now.values()))
            left = [change for change in left if now[change.item_id] is not change]
        return [change.answers for change in changes]

    async def _edit(self, changes: list[ItemChange]) -> None:
        seeing = changes.copy()

        def work(items: Sequence[StoredItem]) -> Sequence[ItemRequest]:
            self._check()
            found = latest(items)
            for change in seeing:
                change.see(found.get(change.item_id))
            return [request for change in seeing for request in change.requests]

        try:
            keys = [change.item_id for change in changes]
            answers = await self._store.edit(self._queue, work, keys=keys)
        except Exception as error:
            if _is_of_one(error) and len(changes) > 1:
                for change in changes:
                    await self._edit([change])
            else:
                for change in changes:
                    change.answers = error
            return
        finally:
            # The store may remember the work for a while, and with it the changes.
            seeing.clear()
        start = 0
        for change in changes:
            end = start + len(change.requests)
            change.answers = change.error or answers[start:end]
            start = end


def _is_of_one(error: Exception) -> bool:
    """Whether one of the requests is the cause, and not the store. Nothing was stored then."""
    faults = (TypeError, ValueError, OverflowError)
    if isinstance(error, StoreError):
        return isinstance(error, ValueError) or isinstance(error.__cause__, faults)
    return isinstance(error, LeasedKeyQError)
