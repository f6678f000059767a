"""`QueueLooks`: what has changed in a plain queue between two looks at it."""

import time
from collections.abc import Callable

from leasedkeyq.model.requests import Attempt, StoredItem
from leasedkeyq.operations.views import FeedEvent, FeedOutcome
from leasedkeyq.stores.store import LIVE_STATES, Store

MOST_NEW = 500
"""New items that are told of one look."""
MOST_LEASED = 1000
"""Leases of a queue that are compared."""


class QueueLooks:
    """Compares looks at a queue that no worker tells of.

    It sees items that were put, leases that began, and leases that ended. Of an item that was put,
    leased and acknowledged between two looks it sees nothing. Nor does it see changes of items
    that wait, and of items beyond the first 1,000 that are leased. How an item has ended is known
    if its result was kept, or if it was buried or released; otherwise it is just gone.

    Args:
        store: The store.
        queue: The queue.
        new: Whether the queue was not there before: then the first look tells all that is in it.
        clock: Unix time.
    """

    def __init__(
        self,
        store: Store,
        queue: str,
        *,
        new: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._queue = queue
        self._clock = clock
        self._newest: int | None = 0 if new else None
        self._leased: dict[int, StoredItem] = {}

    async def compare(self) -> list[FeedEvent]:
        """What has happened since the last call, in the order of a life; the first one begins."""
        if self._newest is None:
            page = await self._store.browse(
                self._queue, states=(*LIVE_STATES, "buried", "done"), newest_first=True, limit=1
            )
            self._newest = page.items[0].id if page.items else 0
            self._leased = await self._in_flight()
            return []
        events = await self._put()
        leased = await self._in_flight()
        before, self._leased = self._leased, leased
        gone = [
            item
            for number, item in before.items()
            if number not in leased or leased[number].attempt != item.attempt
        ]
        if gone:
            events += await self._ended(gone)
        for number, item in leased.items():
            old = before.get(number)
            if old is None or old.attempt != item.attempt:
                events.append(self._event("started", item, at=item.leased_at))
        return events

    async def _put(self) -> list[FeedEvent]:
        """The items that were put since the last look and are still there."""
        page = await self._store.browse(
            self._queue, states=LIVE_STATES, cursor=str(self._newest), limit=MOST_NEW
        )
        events = [self._event("submitted", item, at=item.put_at) for item in page.items]
        if page.items:
            self._newest = page.items[-1].id
        if page.cursor is not None:
            last = await self._store.browse(
                self._queue, states=LIVE_STATES, newest_first=True, limit=1
            )
            newest = last.items[0].id if last.items else self._newest
            assert newest is not None
            assert self._newest is not None
            if newest > self._newest:
                # Ids of one queue may have gaps, so this is how many there are at most.
                missed = newest - self._newest
                events.append(
                    FeedEvent(at=self._clock(), outcome="dropped", queue=self._queue, count=missed)
                )
                self._newest = newest
        return events

    async def _in_flight(self) -> dict[int, StoredItem]:
        page = await self._store.browse(self._queue, states=("in_flight",), limit=MOST_LEASED)
        return {item.id: item for item in page.items}

    async def _ended(self, gone: list[StoredItem]) -> list[FeedEvent]:
        """How leases have ended, as far as the store tells."""
        results = await self._store.results(self._queue, [item.id for item in gone])
        heads = await self._store.look(self._queue, [item.key for item in gone])
        events: list[FeedEvent] = []
        for item, result, head in zip(gone, results, heads, strict=True):
            now = next((one for one in head if one.id == item.id), None)
            if result is not None:
                outcome: FeedOutcome = result.outcome or "completed"
                events.append(self._event(outcome, item, at=result.ended_at))
            elif now is not None:
                ended = _attempt(now, item.attempt)
                delay = None
                if now.state == "scheduled" and now.due is not None:
                    delay = max(0.0, now.due - self._clock())
                events.append(
                    self._event(
                        "timeout" if ended is not None and ended.how == "expired" else "retry",
                        item,
                        at=None if ended is None else ended.ended_at,
                        error="" if ended is None else ended.error,
                        delay=delay,
                    )
                )
            else:
                events.append(await self._buried_or_gone(item))
        return events

    async def _buried_or_gone(self, item: StoredItem) -> FeedEvent:
        page = await self._store.browse(
            self._queue, states=("buried",), cursor=str(item.id - 1), limit=1
        )
        for buried in page.items:
            if buried.id == item.id:
                return self._event("dead_lettered", item, error=buried.error)
        return self._event("ended", item)

    def _event(
        self,
        outcome: FeedOutcome,
        item: StoredItem,
        *,
        at: float | None = None,
        error: str = "",
        delay: float | None = None,
    ) -> FeedEvent:
        return FeedEvent(
            at=self._clock() if at is None else at,
            outcome=outcome,
            queue=self._queue,
            key=item.key,
            kind=item.kind,
            id=item.id,
            attempt=item.attempt,
            error=error.partition("\n")[0],
            delay=delay,
        )


def _attempt(item: StoredItem, number: int) -> Attempt | None:
    return next((one for one in reversed(item.history) if one.number == number), None)
