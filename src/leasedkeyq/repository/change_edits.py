"""Changes of single items that several threads ask for: one edit of the store for all of them."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from leasedkeyq.errors import LeasedKeyQError, StoreError
from leasedkeyq.model.requests import Answer, StoredItem
from leasedkeyq.repository.mapping import ItemRequest, latest
from leasedkeyq.stores.store import Store

LookAtItem: TypeAlias = Callable[[StoredItem | None], Sequence[ItemRequest]]
"""Looks at an item, or None, and says what is to be done. It may be called more than once."""


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
