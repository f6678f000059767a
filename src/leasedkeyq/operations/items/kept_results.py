"""`KeptResults`: the kept results of a queue, read once, and then only those that are new."""

from collections.abc import AsyncIterator

from leasedkeyq.model.requests import StoredItem
from leasedkeyq.stores.store import Store

PAGE = 500
"""Results that are read at a time."""
SETTLED = 10.0
"""Seconds after which no result with a lower id appears any more.

Two writers may get their ids in one order, and be seen in another. So those of the last seconds
are read again, and told once.
"""


class KeptResults:
    """The kept results of a queue, in the order of their ids, each told once.

    Args:
        store: Where they are.
        queue: The queue.
    """

    def __init__(self, store: Store, queue: str) -> None:
        self._store = store
        self._queue = queue
        self._behind = 0
        """All ids up to this one have been told."""
        self._told: dict[int, float] = {}
        """When those beyond it ended that have been told, by their ids."""

    async def new(self) -> AsyncIterator[tuple[StoredItem, ...]]:
        """The results that have not been told yet, page by page.

        A result counts as told when the page it is on has been handed over.
        """
        cursor: str | None = str(self._behind)
        while cursor is not None:
            page = await self._store.browse(
                self._queue, states=("done",), cursor=cursor, limit=PAGE
            )
            news = tuple(item for item in page.items if item.id not in self._told)
            self._told.update((item.id, item.ended_at or 0.0) for item in news)
            cursor = page.cursor
            if cursor is not None:
                self._settle()
            if news:
                yield news
        self._settle()

    def _settle(self) -> None:
        """Forget ids that no lower one can follow any more."""
        if self._told:
            newest = max(self._told.values())
            for number in sorted(self._told):
                if self._told[number] > newest - SETTLED:
                    return
                self._behind = number
                del self._told[number]
