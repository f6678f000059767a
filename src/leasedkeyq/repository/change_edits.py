"""Changes of single items that several threads ask for: one edit of the store for all of them."""

from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple, TypeAlias

from leasedkeyq.errors import LeasedKeyQError, StoreError
from leasedkeyq.model.requests import Answer, StoredItem
from leasedkeyq.repository.mapping import FoundItems, ItemRequest, is_storable_id
from leasedkeyq.stores.group_keys import group_key
from leasedkeyq.stores.store import Store

LookAtItem: TypeAlias = Callable[[StoredItem | None, FoundItems], Sequence[ItemRequest]]
"""Looks at an item, or None, and says what is to be done. It may be called more than once.

It is shown the item and all that was found with it.
"""


class ItemPlace(NamedTuple):
    """Where to look for an item.

    Attributes:
        item_id: Its id, which is its key if it has no group, or is finished.
        group: Its group, whose items are looked at, too; None: it may have none.
        heads_only: Whether only the first item of the group is looked at.
    """

    item_id: str
    group: str | None = None
    heads_only: bool = True

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys to look at."""
        return (self.item_id,) if self.group is None else (self.item_id, group_key(self.group))

    @property
    def key(self) -> str:
        """The key that is changed; changes of one key follow each other."""
        return self.keys[-1]


def places(
    item_id: str, group: str | None, find_group: Callable[[str], str | None]
) -> Generator[ItemPlace]:
    """Where an item may be: the next place if it is not at one.

    Args:
        item_id: Its id.
        group: Where to look first, if that is known.
        find_group: Called if it is not there: looks at all items that are in a group.
    """
    if not is_storable_id(item_id):
        return
    if group is None or not is_storable_id(group):
        yield ItemPlace(item_id)
    else:
        yield ItemPlace(item_id, group)
        yield ItemPlace(item_id, group, heads_only=False)
    found = find_group(item_id)
    if found is not None:
        yield ItemPlace(item_id, found, heads_only=False)
        # It was finished meanwhile, or left its group.
        yield ItemPlace(item_id)


class ItemChange:
    """A change of one item of a queue.

    Attributes:
        answers: To the requests of the change, or what stopped it.
    """

    __slots__ = ("answers", "error", "look", "place", "requests")

    def __init__(self, place: ItemPlace, look: LookAtItem) -> None:
        self.place = place
        self.look = look
        self.requests: Sequence[ItemRequest] = ()
        self.error: Exception | None = None
        self.answers: list[Answer] | Exception = []

    def see(self, found: FoundItems) -> None:
        """Look at the item."""
        self.requests, self.error = (), None
        try:
            self.requests = self.look(found.by_id.get(self.place.item_id), found)
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
        """Apply changes; those of one item, or of one group, follow each other."""
        left = changes
        while left:
            now: dict[str, ItemChange] = {}
            heads_only = left[0].place.heads_only
            for change in left:
                if change.place.heads_only is heads_only:
                    now.setdefault(change.place.key, change)
            await self._edit(list(now.values()))
            left = [change for change in left if now.get(change.place.key) is not change]
        return [change.answers for change in changes]

    async def _edit(self, changes: list[ItemChange]) -> None:
        seeing = changes.copy()
        keys = [key for change in changes for key in change.place.keys]
        # A key that is an id has no line.
        lines = any(change.place.group is not None for change in changes)
        heads_only = changes[0].place.heads_only and lines

        def work(items: Sequence[StoredItem]) -> Sequence[ItemRequest]:
            self._check()
            found = FoundItems(items, heads_only=heads_only)
            for change in seeing:
                change.see(found)
            return [request for change in seeing for request in change.requests]

        try:
            answers = await self._store.edit(self._queue, work, keys=keys, heads_only=heads_only)
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
