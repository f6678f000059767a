"""`Operator`: what an operator looks at and does, on any store.

It is made for one store and keeps nothing of it: each call looks anew. All calls use the contract
of stores, so that it works on every store, those of other people included.
"""

import time
from collections.abc import Callable, Mapping, Sequence

from leasedkeyq.lanes.presence.catalog import CATALOG_QUEUE, LaneRecord
from leasedkeyq.lanes.presence.directory import read_lanes
from leasedkeyq.lanes.presence.records import PAUSED, WORKERS_QUEUE
from leasedkeyq.lanes.running.command_id import parse_command_id
from leasedkeyq.model.requests import STATES, Counts, StoredItem
from leasedkeyq.operations.error_groups import ErrorGrouping
from leasedkeyq.operations.item_search import ItemSearch
from leasedkeyq.operations.item_views import item_view
from leasedkeyq.operations.redaction import Redaction
from leasedkeyq.operations.schedule_views import schedule_views
from leasedkeyq.operations.store_layout import StoreLayout, is_internal
from leasedkeyq.operations.views import (
    ErrorGroups,
    ItemFilter,
    ItemPage,
    ItemView,
    LaneView,
    MatchCount,
    QueueView,
    ScheduleView,
    StoreStats,
    TypeView,
    WorkerView,
)
from leasedkeyq.operations.workers import told_lane, type_views, worker_views
from leasedkeyq.stores.store import NO_ITEMS, Store

MOST_LETTERS = 20_000
"""Dead letters that are grouped by their errors."""
MOST_COUNTED = 20_000
"""Items that are looked at to count those that match a filter."""
LONGEST_COUNT = 1.0
"""Seconds for which items are counted."""
AT_ONCE = 1000
"""Items in one look at the store."""


class Operator:
    """What an operator can see of a store, and do with it.

    Names of lanes stand for all queues of the lane, where a queue is asked for. What a call raises
    that is no misuse is a `StoreError`: the store is closed, broken or out of reach.

    Args:
        store: The store.
        clock: Unix time, for ages.
        redaction: What of values is hidden: in all that is shown, and from searches by error.
    """

    def __init__(
        self,
        store: Store,
        *,
        clock: Callable[[], float] = time.time,
        redaction: Redaction | None = None,
    ) -> None:
        self.store = store
        self._clock = clock
        self._redaction = redaction or Redaction()

    # Looking

    async def queues(self, *, internal: bool = False) -> list[QueueView]:
        """All queues that hold anything, by name.

        Args:
            internal: Whether to tell of those that leasedkeyq has for itself, too.
        """
        counts = await self.store.count()
        names = [name for name in sorted(counts) if internal or not is_internal(name)]
        heads = await self._heads(names)
        layout = _layout(await self._told_lanes(counts), heads)
        paused = await self._paused(counts)
        now = self._clock()
        views: list[QueueView] = []
        for name in names:
            lane = layout.lane_of(name)
            found = counts[name]
            views.append(
                QueueView(
                    name=name,
                    kind=layout.kind_of(name),
                    lane=lane,
                    available=found.available,
                    scheduled=found.scheduled,
                    in_flight=found.in_flight,
                    buried=found.buried,
                    held=found.held,
                    done=found.done,
                    done_failed=found.done_failed,
                    done_cancelled=found.done_cancelled,
                    oldest=_age(heads[name], now),
                    paused=(name if lane is None else lane) in paused,
                )
            )
        return views

    async def lanes(self) -> list[LaneView]:
        """The lanes of the store, by name: those that workers have told of, and those in use."""
        counts = await self.store.count()
        heads = await self._heads([name for name in counts if not is_internal(name)])
        told = await self._told_lanes(counts)
        layout = _layout(told, heads)
        paused = await self._paused(counts)
        workers = await self.workers() if told else []
        now = self._clock()
        views: list[LaneView] = []
        for lane, queues in sorted(layout.lanes.items()):
            found = [counts.get(queue, NO_ITEMS) for queue in queues]
            ages = [_age(heads.get(queue), now) for queue in queues]
            view = LaneView(
                name=lane,
                queues=queues,
                paused=lane in paused,
                available=sum(count.available for count in found),
                scheduled=sum(count.scheduled for count in found),
                in_flight=sum(count.in_flight for count in found),
                buried=sum(count.buried for count in found),
                held=sum(count.held for count in found),
                oldest=max((age for age in ages if age is not None), default=None),
            )
            views.append(told_lane(view, told[lane], workers) if lane in told else view)
        return views

    async def items(
        self,
        queue_or_lane: str,
        wanted: ItemFilter | None = None,
        *,
        cursor: str | None = None,
        limit: int = 100,
        newest_first: bool = False,
    ) -> ItemPage:
        """A page of the items of a queue or a lane, in the order in which they were put.

        What a store has no index for is searched for, some thousand items per page: a page may have
        few items or none, and still be followed by others.

        Args:
            queue_or_lane: Which queue, or all queues of which lane.
            wanted: Which items; all by default.
            cursor: Where to begin: that of the page before.
            limit: How many items, at most.
            newest_first: Whether to begin with the newest.

        Raises:
            ValueError: The cursor is none of this listing, or the limit is below 1.
        """
        layout = await self.layout()
        search = self._search(layout, queue_or_lane, wanted, newest_first=newest_first)
        found = await search.page(cursor, limit)
        views = tuple(self._view(item, layout) for item in found.items)
        return ItemPage(items=views, cursor=found.cursor, searched=found.searched)

    async def item(self, queue_or_lane: str, key_or_id: str | int) -> ItemView | None:
        """One item: that of an id, or the one that stands for a key.

        That is the head of the key or the first of its line, or else the last of its buried items,
        or else its newest result, if that is among the newest some thousand items.
        """
        layout = await self.layout()
        found = await self._find(layout, queue_or_lane, key_or_id)
        return None if found is None else self._view(found, layout)

    async def find(self, command_id: str) -> ItemView | None:
        """The command of an id, as `Handle.id` tells it.

        Raises:
            UnknownCommandError: The text is not the id of a command.
        """
        name = parse_command_id(command_id)
        if name.scope:
            return None  # it was in the memory of a manager
        layout = await self.layout()
        found = await self._by_id((name.queue,), name.number)
        if found is None or found.key != name.key:
            return None
        return self._view(found, layout)

    async def line(
        self, queue_or_lane: str, key: str, *, cursor: str | None = None, limit: int = 100
    ) -> ItemPage:
        """The head of a key and the values behind it, in order.

        Raises:
            ValueError: The cursor is none, or the limit is below 1.
        """
        layout = await self.layout()
        queue = layout.queue_of(queue_or_lane, key)
        page = await self.store.line(queue, key, cursor=cursor, limit=limit)
        views = tuple(self._view(item, layout) for item in page.items)
        return ItemPage(items=views, cursor=page.cursor, searched=len(views))

    async def count_matching(
        self, queue_or_lane: str | None, wanted: ItemFilter, *, most: int = MOST_COUNTED
    ) -> MatchCount:
        """How many items match; at least so many, if there are too many items to look at all.

        Args:
            queue_or_lane: Where to look; None: in all queues but the internal ones.
            wanted: Which items.
            most: How many items are looked at, about.
        """
        layout = await self.layout()
        search = self._search(layout, queue_or_lane, wanted)
        found = await search.page(None, most, most=most, seconds=LONGEST_COUNT)
        complete = found.cursor is None
        return MatchCount(count=len(found.items), searched=found.searched, complete=complete)

    async def error_groups(self, queue_or_lane: str | None = None) -> ErrorGroups:
        """The buried items of a queue, a lane or all queues, by their errors."""
        layout = await self.layout()
        grouping = ErrorGrouping()
        letters = 0
        queues = layout.known if queue_or_lane is None else layout.queues_of(queue_or_lane)
        for queue in queues:
            cursor: str | None = None
            while True:
                page = await self.store.browse(
                    queue, states=("buried",), cursor=cursor, limit=AT_ONCE
                )
                for item in page.items:
                    grouping.add(self._redaction.stored(item))
                letters += len(page.items)
                cursor = page.cursor
                if letters >= MOST_LETTERS and (cursor is not None or queue != queues[-1]):
                    return ErrorGroups(groups=grouping.groups(), letters=letters, complete=False)
                if cursor is None:
                    break
        return ErrorGroups(groups=grouping.groups(), letters=letters)

    async def workers(self) -> list[WorkerView]:
        """The workers of the store that live, oldest first, and those that died of late."""
        return await worker_views(self.store)

    async def types(self) -> list[TypeView]:
        """The command types that workers of the store have told of, by name."""
        return await type_views(self.store)

    async def schedules(self) -> list[ScheduleView]:
        """The schedules of the store, by name."""
        views = await schedule_views(self.store, self._clock())
        return [self._redaction.schedule(view) for view in views]

    async def stats(self) -> StoreStats:
        """The store at a glance."""
        views = await self.queues(internal=True)
        shown = [view for view in views if view.kind != "internal"]
        internal = [view for view in views if view.kind == "internal"]
        lanes = await self.lanes()
        ages = [view.oldest for view in shown if view.oldest is not None]
        return StoreStats(
            store=self.store.name,
            durability=self.store.capabilities.durability,
            queues=len(shown),
            lanes=len(lanes),
            workers=sum(worker.alive for worker in await self.workers()),
            schedules=len(await self.schedules()),
            paused=tuple(lane.name for lane in lanes if lane.paused),
            available=sum(view.available for view in shown),
            scheduled=sum(view.scheduled for view in shown),
            in_flight=sum(view.in_flight for view in shown),
            buried=sum(view.buried for view in shown),
            held=sum(view.held for view in shown),
            done=sum(view.done for view in shown),
            done_failed=sum(view.done_failed for view in shown),
            done_cancelled=sum(view.done_cancelled for view in shown),
            oldest=max(ages, default=None),
            internal=sum(
                view.available + view.scheduled + view.in_flight + view.buried + view.held
                for view in internal
            ),
        )

    async def layout(self) -> StoreLayout:
        """The lanes of the store and their queues, as they are now."""
        counts = await self.store.count()
        heads = await self._heads([name for name in sorted(counts) if not is_internal(name)])
        return _layout(await self._told_lanes(counts), heads)

    # How it looks

    def _view(self, item: StoredItem, layout: StoreLayout) -> ItemView:
        return self._redaction.item(item_view(item, layout.lane_of(item.queue)))

    def _search(
        self,
        layout: StoreLayout,
        queue_or_lane: str | None,
        wanted: ItemFilter | None,
        *,
        newest_first: bool = False,
    ) -> ItemSearch:
        wanted = wanted or ItemFilter()
        queues: Sequence[str]
        if queue_or_lane is None:
            queues = layout.known
        elif wanted.key:
            queues = (layout.queue_of(queue_or_lane, wanted.key),)
        else:
            queues = layout.queues_of(queue_or_lane)
        now = self._clock()
        return ItemSearch(
            self.store, queues, wanted, now, newest_first=newest_first, seen=self._redaction.stored
        )

    async def _find(
        self, layout: StoreLayout, queue_or_lane: str, key_or_id: str | int
    ) -> StoredItem | None:
        if isinstance(key_or_id, int):
            return await self._by_id(layout.queues_of(queue_or_lane), key_or_id)
        key = key_or_id
        queue = layout.queue_of(queue_or_lane, key)
        [alive] = await self.store.look(queue, [key])
        if alive:
            return alive[0]
        last: StoredItem | None = None
        cursor: str | None = None
        while True:
            page = await self.store.browse(
                queue, states=("buried",), prefix=key, cursor=cursor, limit=AT_ONCE
            )
            last = next((item for item in reversed(page.items) if item.key == key), last)
            cursor = page.cursor
            if cursor is None:
                break
        if last is not None:
            return last
        wanted = ItemFilter(states=("done",), key=key)
        search = ItemSearch(self.store, (queue,), wanted, self._clock(), newest_first=True)
        found = await search.page(None, 1)
        return found.items[0] if found.items else None

    async def _by_id(self, queues: Sequence[str], number: int) -> StoredItem | None:
        """The item of an id, in any state."""
        if number < 1:
            return None
        for queue in queues:
            page = await self.store.browse(queue, states=STATES, cursor=str(number - 1), limit=1)
            if page.items and page.items[0].id == number:
                return page.items[0]
        return None

    async def _heads(self, queues: Sequence[str]) -> Mapping[str, StoredItem | None]:
        found = await self.store.heads(queues) if queues else []
        return dict(zip(queues, found, strict=True))

    async def _told_lanes(self, counts: Mapping[str, Counts]) -> Mapping[str, LaneRecord]:
        """The lanes that workers have told of."""
        if CATALOG_QUEUE not in counts:
            return {}
        return {record.name: record for record in await read_lanes(self.store)}

    async def _paused(self, counts: Mapping[str, Counts]) -> set[str]:
        """The lanes that are paused."""
        if WORKERS_QUEUE not in counts:
            return set()
        paused: set[str] = set()
        cursor: str | None = None
        while True:
            page = await self.store.browse(
                WORKERS_QUEUE, prefix=PAUSED, cursor=cursor, limit=AT_ONCE
            )
            paused.update(item.key.removeprefix(PAUSED) for item in page.items)
            cursor = page.cursor
            if cursor is None:
                return paused


def _layout(told: Mapping[str, LaneRecord], heads: Mapping[str, StoredItem | None]) -> StoreLayout:
    known = {lane: record.partitions for lane, record in told.items()}
    return StoreLayout(known, _of_lanes(heads), heads)


def _of_lanes(heads: Mapping[str, StoredItem | None]) -> list[str]:
    """The queues whose next item is a command."""
    return [queue for queue, head in heads.items() if head is not None and head.kind]


def _age(head: StoredItem | None, now: float) -> float | None:
    return None if head is None else max(0.0, now - head.put_at)
