"""`ItemSearch`: the items of some queues that match a filter, page by page, in bounded steps.

A store lists items by state and key. All else is searched for: items are read in order and looked
at one by one. A search that has looked at many items without finding enough of them ends its page,
and its cursor says where to go on.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from leasedkeyq.model.requests import STATES, Page, StoredItem, StoredState
from leasedkeyq.operations.items.error_groups import group_of
from leasedkeyq.operations.items.item_views import error_of
from leasedkeyq.operations.views import ItemFilter
from leasedkeyq.stores.store import LIVE_STATES, Store

MOST_SEARCHED = 5000
"""Items that a page looks at."""
LONGEST_SEARCH = 0.1
"""Seconds that a page looks for items, from its second read on."""
READ_AT_ONCE = 500
"""Items that are read at once, where most of them do not match."""
MOST_QUEUES = 256
"""Queues that a page reads side by side. Those behind them come when these are at their end."""
_ENDED = "e"


class SearchPart(NamedTuple):
    """A part of what a search finds.

    Attributes:
        items: The items that match.
        cursor: Where to go on; None at the end.
        searched: How many items were looked at.
    """

    items: list[StoredItem]
    cursor: str | None
    searched: int


class ItemSearch:
    """Finds items of queues.

    The items of several queues are merged by the time at which they were put.

    Args:
        store: Where they are.
        queues: The queues, in an order that is the same for each page.
        wanted: Which items.
        now: The time, as Unix time: what ages are counted from.
        newest_first: Whether to begin with the newest.
        seen: What of an item may be searched.
        bounds: By queue the highest id that counts, for a search from the oldest on: items that
            are put meanwhile are not found.
    """

    def __init__(
        self,
        store: Store,
        queues: Sequence[str],
        wanted: ItemFilter,
        now: float,
        *,
        newest_first: bool = False,
        seen: Callable[[StoredItem], StoredItem] | None = None,
        bounds: Mapping[str, int] | None = None,
    ) -> None:
        self._store = store
        self._seen = seen
        self._wanted = wanted
        self._now = now
        self._newest_first = newest_first
        states: Sequence[StoredState] = wanted.states or STATES
        self._sources: list[_Source] = []
        searched: Sequence[StoredState] = states
        if wanted.key:
            # The values of a key have an index; what is buried or done has to be searched for.
            searched = _not_live(states)
        for queue in queues:
            bound = None if bounds is None else bounds.get(queue, 0)
            if len(searched) < len(states):
                self._sources.append(_KeySource(store, queue, states, wanted.key, bound))
            if searched:
                source = _Source(store, queue, searched, bound, newest_first=newest_first)
                self._sources.append(source)

    async def page(
        self,
        cursor: str | None = None,
        limit: int = 100,
        *,
        most: int = MOST_SEARCHED,
        seconds: float | None = LONGEST_SEARCH,
    ) -> SearchPart:
        """The next items.

        Args:
            cursor: That of the page before.
            limit: How many items to find, at most.
            most: How many items to look at, about.
            seconds: For how long to look; None: as long as it takes.

        Raises:
            ValueError: The cursor is none of this search.
        """
        if limit < 1:
            raise ValueError(f"limit must be at least 1, got {limit}")
        sources = self._sources
        self._set(cursor)
        found: list[StoredItem] = []
        searched = 0
        ends = None if seconds is None else time.monotonic() + seconds
        exact = self._lists_only
        while len(found) < limit:
            open_now = [source for source in sources if not source.ended][:MOST_QUEUES]
            if not open_now:
                break
            for source in open_now:
                if not source.items:
                    size = max(1, limit - len(found)) if exact else READ_AT_ONCE
                    share = max(20, 2 * size // len(open_now))
                    await source.read(min(size, share, READ_AT_ONCE))
            ready = [source for source in open_now if source.items]
            if not ready:
                continue  # all of them are at their end
            if searched >= most or (searched and ends is not None and time.monotonic() > ends):
                break
            searched += self._merge(ready, found, limit)
        if all(source.ended for source in sources):
            return SearchPart(found, None, searched)
        return SearchPart(found, ",".join(source.place for source in sources), searched)

    def _merge(self, ready: "Sequence[_Source]", found: list[StoredItem], limit: int) -> int:
        """Look at items in order until one source has to be read again; returns how many."""
        searched = 0
        while len(found) < limit:
            source = min(ready, key=self._turn)
            item = source.take()
            searched += 1
            if self._seen is not None and (self._wanted.error or self._wanted.error_group):
                item = self._seen(item)
            if matches(item, self._wanted, self._now):
                found.append(item)
            if not source.items:
                break
        return searched

    def _turn(self, source: "_Source") -> tuple[int, float]:
        put_at = source.items[0].put_at
        return source.rank, -put_at if self._newest_first else put_at

    @property
    def _lists_only(self) -> bool:
        """Whether the store lists just what is wanted, so that no item is read in vain."""
        wanted = self._wanted
        return wanted == ItemFilter(states=wanted.states)

    def _set(self, cursor: str | None) -> None:
        places = ["" for _ in self._sources] if cursor is None else cursor.split(",")
        if len(places) != len(self._sources) or not all(
            place in ("", _ENDED) or (place.isascii() and place.isdigit()) for place in places
        ):
            raise ValueError(f"cursor must be that of the page before, or None; got {cursor!r}")
        for source, place in zip(self._sources, places, strict=True):
            source.begin(place)


def _not_live(states: Sequence[StoredState]) -> Sequence[StoredState]:
    found: list[StoredState] = []
    for state in states:
        if state not in LIVE_STATES:
            found.append(state)  # noqa: PERF401 - a type checker loses the type in a comprehension
    return found


class _Source:
    """The items of one queue, read as they are needed."""

    rank = 1
    """Sources of a lower rank come first."""

    def __init__(
        self,
        store: Store,
        queue: str,
        states: Sequence[StoredState],
        bound: int | None = None,
        *,
        newest_first: bool = False,
    ) -> None:
        self._store = store
        self._bound = bound
        self._queue = queue
        self._states = states
        self._newest_first = newest_first
        self.items: deque[StoredItem] = deque()
        self._after: str | None = None
        """The id of the last item that was taken."""
        self._more = True

    def begin(self, place: str) -> None:
        self.items.clear()
        self._more = place != _ENDED
        self._after = place if place and self._more else None

    @property
    def ended(self) -> bool:
        return not self.items and not self._more

    @property
    def place(self) -> str:
        return _ENDED if self.ended else self._after or ""

    async def read(self, limit: int) -> None:
        page = await self._store.browse(
            self._queue,
            states=self._states,
            cursor=self._after,
            limit=limit,
            newest_first=self._newest_first,
        )
        self._add(page)

    def _add(self, page: Page) -> None:
        bound = self._bound
        self.items.extend(item for item in page.items if bound is None or item.id <= bound)
        self._more = page.cursor is not None and len(self.items) == len(page.items)

    def take(self) -> StoredItem:
        item = self.items.popleft()
        self._after = str(item.id)
        return item


class _KeySource(_Source):
    """The values of one key."""

    rank = 0

    def __init__(
        self,
        store: Store,
        queue: str,
        states: Sequence[StoredState],
        key: str,
        bound: int | None = None,
    ) -> None:
        super().__init__(store, queue, states, bound)
        self._key = key

    async def read(self, limit: int) -> None:
        self._add(await self._store.line(self._queue, self._key, cursor=self._after, limit=limit))


def matches(item: StoredItem, wanted: ItemFilter, now: float) -> bool:
    """Whether an item is one of those that are wanted; see `ItemFilter`."""
    if wanted.states and item.state not in wanted.states:
        return False
    if wanted.key and item.key != wanted.key:
        return False
    if wanted.key_prefix and not item.key.startswith(wanted.key_prefix):
        return False
    if wanted.kind and item.kind != wanted.kind:
        return False
    if wanted.outcome is not None and item.outcome != wanted.outcome:
        return False
    if wanted.older_than is not None and now - item.put_at < wanted.older_than:
        return False
    if wanted.newer_than is not None and now - item.put_at > wanted.newer_than:
        return False
    if wanted.error_group and (
        item.state != "buried" or group_of(item.error) != wanted.error_group
    ):
        return False
    return not wanted.error or wanted.error.casefold() in error_of(item).casefold()
