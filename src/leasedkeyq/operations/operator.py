"""`Operator`: what an operator looks at and does, on any store.

It is made for one store and keeps nothing of it: each call looks anew. All calls use the contract
of stores, so that it works on every store, those of other people included.
"""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import msgspec

from leasedkeyq import checks
from leasedkeyq.errors import LeasedKeyQError
from leasedkeyq.lanes.durable.envelope import encode_envelope
from leasedkeyq.lanes.errors import CommandPayloadError
from leasedkeyq.lanes.presence.catalog_records import CATALOG_QUEUE, LaneRecord
from leasedkeyq.lanes.presence.directory import pause_lane, read_lanes, resume_lane
from leasedkeyq.lanes.presence.records import PAUSED, WORKERS_QUEUE
from leasedkeyq.lanes.running.command_id import command_id, parse_command_id
from leasedkeyq.model.requests import (
    STATES,
    Amend,
    Cancel,
    Change,
    Counts,
    Discard,
    Purge,
    Put,
    Release,
    Requeue,
    StoredItem,
    StoredState,
)
from leasedkeyq.operations import audit
from leasedkeyq.operations.items.bulk import (
    BULK_VERBS,
    STATES_OF,
    BulkChange,
    BulkProgress,
    BulkVerb,
    SeenItems,
)
from leasedkeyq.operations.items.burying import bury_waiting
from leasedkeyq.operations.items.error_groups import ErrorGrouping
from leasedkeyq.operations.items.item_search import ItemSearch
from leasedkeyq.operations.items.item_views import envelope_of, item_view
from leasedkeyq.operations.items.redaction import Redaction
from leasedkeyq.operations.items.schema_check import check_value
from leasedkeyq.operations.store_layout import StoreLayout, is_internal
from leasedkeyq.operations.views import (
    ActionReport,
    ErrorGroups,
    ItemFilter,
    ItemPage,
    ItemView,
    LaneView,
    MatchCount,
    QueueView,
    ScheduleView,
    StackView,
    StoreStats,
    TypeView,
    WorkerView,
)
from leasedkeyq.operations.workers import stack_view, told_lane, type_views, worker_views
from leasedkeyq.stores.store import NO_ITEMS, Store
from leasedkeyq.types import PresentPolicy

if TYPE_CHECKING:
    from leasedkeyq.operations.lane_access import LaneAccess

MOST_LETTERS = 20_000
"""Dead letters that are grouped by their errors."""
MOST_COUNTED = 20_000
"""Items that are looked at to count those that match a filter."""
LONGEST_COUNT = 1.0
"""Seconds for which items are counted."""
AT_ONCE = 1000
"""Items in one look at the store."""
SCHEDULES_QUEUE = "leasedkeyq.schedules"
"""As in `leasedkeyq.lanes.durable.schedules`, which is slow to import."""
PurgePart: TypeAlias = Literal["buried", "results", "all"]
"""What of a queue is purged."""


class Operator:
    """What an operator can see of a store, and do with it.

    Names of lanes stand for all queues of the lane, where a queue is asked for. What a call raises
    that is no misuse is a `StoreError`: the store is closed, broken or out of reach.

    Args:
        store: The store.
        clock: Unix time, for ages.
        redaction: What of values is hidden: in all that is shown, and from searches by error.
        changes_from: From where changes are made, such as ``"command line"``. If it is given, the
            last changes but `put` and `submit` are kept in the store, for the page *Changes*.
    """

    def __init__(
        self,
        store: Store,
        *,
        clock: Callable[[], float] = time.time,
        redaction: Redaction | None = None,
        changes_from: str = "",
    ) -> None:
        self.store = store
        self._clock = clock
        self._redaction = redaction or Redaction()
        self._changes_from = changes_from

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
        return None if found is None else await self._with_worker(self._view(found, layout))

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
        return await self._with_worker(self._view(found, layout))

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
        named = layout.known if queue_or_lane is None else layout.queues_of(queue_or_lane)
        counts: Mapping[str, Counts] = await self.store.count(named) if named else {}
        queues = [queue for queue in named if counts[queue].buried]
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

    async def stack(self, command_id: str, timeout: float = 5.0) -> StackView:
        """Where a running command is right now: its worker is asked through the store.

        It has names of functions and files, lines, and lines of code, and no values.

        Args:
            command_id: Its id, as `Handle.id` tells it.
            timeout: Seconds to wait for the answer.

        Raises:
            UnknownCommandError: The text is no id of a command, or no worker runs the command.
            TimeoutError: The worker has not answered.
        """
        return await stack_view(self.store, command_id, timeout)

    async def types(self) -> list[TypeView]:
        """The command types that workers of the store have told of, by name."""
        return await type_views(self.store)

    async def schedules(self) -> list[ScheduleView]:
        """The schedules of the store, by name."""
        # It needs the timetables of lanes, which are slow to import.
        from leasedkeyq.operations.schedules.schedule_views import schedule_views  # noqa: PLC0415

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

    # Acting

    async def put(
        self,
        queue: str,
        key: str,
        value: str | bytes,
        *,
        priority: int | None = None,
        delay: float | None = None,
        if_present: PresentPolicy | None = None,
        actor: str,
    ) -> ActionReport:
        """Put a value into a plain queue, as `StoreQueue.put` does.

        Args:
            queue: The queue. That of a lane takes commands only: see `submit`.
            key: The key.
            value: The value, as JSON text.
            priority: Higher goes first.
            delay: Seconds until it is available.
            if_present: What becomes of it where the key is there; as in `StoreQueue.put`.
            actor: Who does it, for the audit log; so in all that follows.

        Raises:
            ValueError: The value is no JSON, or the queue is that of a lane, or internal.
            LeasedKeyQError: The store refused it.
        """

        async def work() -> ActionReport:
            layout = await self.layout()
            if layout.kind_of(queue) != "queue" or queue in layout.lanes:
                raise ValueError(
                    f"queue {queue!r} is one of leasedkeyq itself"
                    if is_internal(queue)
                    else f"{queue!r} is a lane, whose items are commands: submit one instead"
                )
            policy = checks.put_policy(None, if_present)
            wait = checks.put_options(priority, delay)
            item = (key, as_json(value, "the value"))
            [answer] = await self.store.put([Put(queue, (item,), policy, priority, wait)])
            if isinstance(answer, LeasedKeyQError):
                raise answer
            placed = answer[0]
            done = int(placed.outcome != "skipped")
            return ActionReport(
                action="put", done=done, matched=1, note=placed.outcome, id=placed.id
            )

        return await self._act("put", actor, queue, key, work)

    async def submit(
        self,
        lane: str,
        kind: str,
        arguments: str | bytes = b"{}",
        *,
        key: str | None = None,
        priority: int | None = None,
        delay: float | None = None,
        deadline: float | None = None,
        timeout: float | None = None,
        if_present: PresentPolicy | None = None,
        unique_for: float | None = None,
        unchecked: bool = False,
        actor: str,
    ) -> ActionReport:
        """Submit a command, as `QueueManager.submit` does.

        The lane, the command type and the arguments are checked against what workers have told of
        them, before anything is stored.

        Args:
            lane: The lane.
            kind: The command type.
            arguments: The arguments by name, as a JSON object.
            key: As in `QueueManager.submit`, and so are the others.
            priority: Lower goes first.
            delay: Seconds before it may start.
            deadline: Seconds within which it should be started.
            timeout: Seconds for which it may run.
            if_present: What to do where a command of the key is there.
            unique_for: Seconds after its end for which a command of the key counts as there.
            unchecked: Whether to submit it although no worker has told of the lane or the type, or
                the arguments do not fit.
            actor: Who does it.

        Raises:
            UnknownLaneError: No worker has told of the lane.
            CommandPayloadError: No worker has told of the type, or the arguments do not fit it.
            ValueError: The arguments are no JSON, or another argument makes no sense.
            LeasedKeyQError: The store refused it.
        """

        async def work() -> ActionReport:
            from leasedkeyq.lanes.commands.submit_terms import SubmitTerms  # noqa: PLC0415 - as `_access`

            self._refuse_internal(lane)
            raw = as_json(arguments, "the arguments")
            terms = SubmitTerms.checked(
                if_present, priority, delay, deadline, timeout, unique_for=unique_for
            )
            access = await self._access()
            if unchecked:
                target = access.assumed_lane(lane)
            else:
                target = access.lane(lane)
                await self._check_command(lane, kind, raw)
            place = await access.submit(target, kind, msgspec.Raw(raw), key, terms)
            partition, placed, its_key, _, _ = place
            return ActionReport(
                action="submit",
                done=int(placed.outcome != "skipped"),
                matched=1,
                note=placed.outcome,
                id=placed.id,
                command_id=command_id(placed.id, partition.queue, its_key),
            )

        return await self._act("submit", actor, lane, kind if key is None else key, work)

    async def requeue(self, queue_or_lane: str, number: int, *, actor: str) -> ActionReport:
        """Put a buried item back into its queue, where it starts anew.

        A command goes back with all that it had, its part in a workflow included: whoever awaits
        the workflow hears of its end.

        Args:
            queue_or_lane: Where it is.
            number: Its id.
            actor: Who does it.
        """
        return await self._change_one(
            "requeue",
            queue_or_lane,
            number,
            actor,
            lambda item: Requeue(item.queue, item.id) if item.state == "buried" else None,
        )

    async def remove(self, queue_or_lane: str, key_or_id: str | int, *, actor: str) -> ActionReport:
        """Forget an item: one of an id, or all values of a key that wait or run.

        A lease on it ends. A dead letter or a result goes by its id, or by its key where no value
        of that waits. Whoever awaits a command hears that it is lost: `cancel` tells more.

        Args:
            queue_or_lane: Where it is.
            key_or_id: Its key, or its id.
            actor: Who does it.
        """
        whole_key = isinstance(key_or_id, str)

        def request(item: StoredItem) -> Change:
            if item.state in ("buried", "done"):
                return Discard(item.queue, item.id)
            return Cancel(item.queue, item.key, id=None if whole_key else item.id)

        return await self._change_one("remove", queue_or_lane, key_or_id, actor, request)

    async def cancel(self, queue_or_lane: str, key_or_id: str | int, *, actor: str) -> ActionReport:
        """Cancel a command: one of an id, or all of a key. Also one that runs: its handler ends.

        Whoever awaits it gets a `CommandCancelledError`, its chain does not go on, and its gather
        hears of it. An item of a plain queue is removed.

        Args:
            queue_or_lane: Where it is.
            key_or_id: Its key, or its id.
            actor: Who does it.
        """
        access = await self._access()
        whole_key = isinstance(key_or_id, str)
        cancelled: list[StoredItem] = []

        def request(item: StoredItem) -> Change | None:
            if item.state in ("buried", "done"):
                return None
            cancelled.append(item)
            return access.cancel_request(item, whole_key=whole_key)

        report = await self._change_one("cancel", queue_or_lane, key_or_id, actor, request)
        if report.done:
            await access.tell_workflow(cancelled[0])
        return report

    async def bury(
        self, queue_or_lane: str, key_or_id: str | int, *, reason: str = "", actor: str
    ) -> ActionReport:
        """Give up an item that waits: it is kept aside, with an error that says who did it.

        Args:
            queue_or_lane: Where it is.
            key_or_id: Its key, or its id.
            reason: Why, for the error.
            actor: Who does it.
        """

        async def work() -> ActionReport:
            self._refuse_internal(queue_or_lane)
            found = await self._find(await self.layout(), queue_or_lane, key_or_id)
            if found is None:
                return ActionReport(action="bury")
            error = f"buried by {actor}: {reason}" if reason else f"buried by {actor}"
            return _one("bury", found, await bury_waiting(self.store, found, error, self._clock))

        return await self._act("bury", actor, queue_or_lane, str(key_or_id), work)

    async def release(
        self, queue_or_lane: str, key: str, *, force: bool = False, actor: str
    ) -> ActionReport:
        """Take a lease away from a holder that has died: the item goes to the front of its queue.

        Args:
            queue_or_lane: Where it is.
            key: Its key.
            force: Whether to do so although a worker that lives runs it. That run is cancelled,
                and another one begins.
            actor: Who does it.
        """

        async def work() -> ActionReport:
            self._refuse_internal(queue_or_lane)
            queue = (await self.layout()).queue_of(queue_or_lane, key)
            [found] = await self.store.look(queue, [key])
            if not found:
                return ActionReport(action="release")
            head = found[0]
            if head.state != "in_flight":
                return _one("release", head, f"it is not leased: {_state_words(head.state)}")
            if not force:
                for worker in await self.workers():
                    if worker.alive and any(
                        running.queue == queue and running.key == key for running in worker.running
                    ):
                        why = (
                            f"worker {worker.id} (process {worker.pid} on {worker.host}) lives and "
                            "runs it; cancel it, or force this"
                        )
                        return _one("release", head, why)
            released: list[bool] = []

            def give_back(items: Sequence[StoredItem]) -> list[Put | Change]:
                for item in items:
                    if item.id == head.id and item.token:
                        released.append(True)
                        error = checks.storable(f"released by {actor}")
                        return [Release(queue, key, item.token, front=True, error=error)]
                return []

            await self.store.edit(queue, give_back, keys=[key], heads_only=True)
            return _one("release", head, "" if released else "its lease has ended meanwhile")

        return await self._act("release", actor, queue_or_lane, key, work)

    async def purge(
        self,
        queue_or_lane: str,
        part: PurgePart = "all",
        *,
        dry_run: bool = False,
        actor: str,
    ) -> ActionReport:
        """Forget a part of a queue or a lane, or all of it; leases in it end.

        Args:
            queue_or_lane: Which queue, or all queues of which lane.
            part: ``"buried"``, ``"results"`` or ``"all"``.
            dry_run: Whether to count the items only.
            actor: Who does it.

        Raises:
            ValueError: The queue is one of leasedkeyq itself, or there is no such part.
        """

        async def work() -> ActionReport:
            self._refuse_internal(queue_or_lane)
            if part not in get_args(PurgePart):
                raise ValueError(f"part must be 'buried', 'results' or 'all', got {part!r}")
            queues = (await self.layout()).queues_of(queue_or_lane)
            if dry_run:
                counts = await self.store.count(queues)
                found = sum(_purged(count, part) for count in counts.values())
                return ActionReport(action="purge", done=found, matched=found, dry_run=True)
            gone = 0
            for queue in queues:
                [answer] = await self.store.settle([Purge(queue, part)])
                if isinstance(answer, LeasedKeyQError):
                    raise answer
                gone += int(answer) if isinstance(answer, int) else 0
            return ActionReport(action="purge", done=gone, matched=gone)

        return await self._act("purge", actor, queue_or_lane, part, work)

    async def edit(
        self,
        queue_or_lane: str,
        number: int,
        *,
        value: str | bytes | None = None,
        priority: int | None = None,
        delay: float | None = None,
        expected: str | None = None,
        unchecked: bool = False,
        actor: str,
        action: str = "edit",
    ) -> ActionReport:
        """Change an item that waits, where it is.

        Args:
            queue_or_lane: Where it is.
            number: Its id.
            value: Its new value, or the new arguments of a command, as JSON text.
            priority: Its new priority, as stores have it: higher goes first.
            delay: Seconds until it is available; 0: now.
            expected: What its value is, as `ItemView.raw` tells it. If it is another one by then,
                because somebody has put a newer one, nothing is changed.
            unchecked: Whether arguments need not fit the type of their command.
            actor: Who does it.
            action: What the audit log calls it.

        Raises:
            ValueError: The value is no JSON, or a number makes no sense.
            CommandPayloadError: The arguments do not fit the type of the command.
            LimitExceededError: The value is too large for the store.
        """

        async def work() -> ActionReport:
            self._refuse_internal(queue_or_lane)
            wait = checks.put_options(priority, delay)
            layout = await self.layout()
            found = await self._find(layout, queue_or_lane, number)
            if found is None:
                return ActionReport(action=action)
            raw = None if value is None else as_json(value, "the value")
            lane = layout.lane_of(found.queue)
            if expected is not None and item_view(found, lane).raw != expected:
                return _one(action, found, "its value has changed meanwhile")
            envelope = envelope_of(found, lane)
            if raw is not None and envelope is not None:
                if not unchecked:
                    await self._check_command(found.queue, found.kind, raw, known=False)
                envelope.payload = msgspec.Raw(raw)
                raw = encode_envelope(envelope, found.kind, found.key, self.store.limits)
            change = Amend(
                found.queue, found.key, found.id, value=raw, priority=priority, delay=wait
            )
            if expected is not None:

                def amend(items: Sequence[StoredItem]) -> list[Put | Change]:
                    same = any((item.id, item.value) == (found.id, found.value) for item in items)
                    return [change] if same else []

                answers = await self.store.edit(found.queue, amend, keys=[found.key])
                why = "" if answers and answers[0] else "it has changed meanwhile, or is gone"
                return _one(action, found, why)
            [answer] = await self.store.settle([change])
            if isinstance(answer, LeasedKeyQError):
                raise answer
            why = "" if answer else f"it does not wait: {_state_words(found.state)}"
            return _one(action, found, why)

        return await self._act(action, actor, queue_or_lane, str(number), work)

    async def set_priority(
        self, queue_or_lane: str, number: int, priority: int, *, actor: str
    ) -> ActionReport:
        """Change the priority of an item that waits, as stores have it: higher goes first."""
        return await self.edit(
            queue_or_lane, number, priority=priority, actor=actor, action="priority"
        )

    async def run_now(self, queue_or_lane: str, number: int, *, actor: str) -> ActionReport:
        """Let an item that is scheduled be available now."""
        return await self.edit(queue_or_lane, number, delay=0.0, actor=actor, action="run_now")

    async def pause(self, lane: str, *, unchecked: bool = False, actor: str) -> ActionReport:
        """Let no worker start commands of a lane, as `QueueManager.pause` does.

        Args:
            lane: The lane.
            unchecked: Whether to pause it although no worker has told of it.
            actor: Who does it.

        Raises:
            UnknownLaneError: No worker has told of it.
        """

        async def work() -> ActionReport:
            if not unchecked:
                (await self._access()).lane(lane)
            done = lane not in await self._paused(await self.store.count([WORKERS_QUEUE]))
            await pause_lane(self.store, lane)
            return ActionReport(
                action="pause", done=1, matched=1, note="" if done else "it was paused already"
            )

        return await self._act("pause", actor, lane, "", work)

    async def resume(self, lane: str, *, actor: str) -> ActionReport:
        """Let the workers start commands of a lane again."""

        async def work() -> ActionReport:
            paused = await resume_lane(self.store, lane)
            note = "" if paused else "it was not paused"
            return ActionReport(action="resume", done=int(paused), matched=int(paused), note=note)

        return await self._act("resume", actor, lane, "", work)

    async def pause_schedule(self, name: str, *, actor: str) -> ActionReport:
        """Fire no more ticks of a schedule until it is resumed, as `Schedule.pause` does.

        Raises:
            UnknownScheduleError: There is none.
        """
        return await self._change_schedule("pause", name, actor)

    async def resume_schedule(self, name: str, *, actor: str) -> ActionReport:
        """Go on with the next tick of a schedule, if it is paused.

        Raises:
            UnknownScheduleError: There is none.
        """
        return await self._change_schedule("resume", name, actor)

    async def run_schedule(self, name: str, *, actor: str) -> ActionReport:
        """Submit the command of a schedule once more, now, as `Schedule.run_now` does.

        Raises:
            UnknownScheduleError: There is none.
            LeasedKeyQError: The store refused the command.
        """

        async def work() -> ActionReport:
            from leasedkeyq.operations.schedules.schedule_changes import command_now  # noqa: PLC0415 - slow

            put = await command_now(self.store, name, await self._access(), self._clock)
            key = put.items[0][0]
            [answer] = await self.store.put([put])
            if isinstance(answer, LeasedKeyQError):
                raise answer
            placed = answer[0]
            return ActionReport(
                action="run_now",
                done=int(placed.outcome != "skipped"),
                matched=1,
                note=placed.outcome,
                id=placed.id,
                command_id=command_id(placed.id, put.queue, key),
            )

        return await self._act("run_now", actor, SCHEDULES_QUEUE, name, work)

    async def bulk(
        self,
        verb: BulkVerb,
        queue_or_lane: str | None,
        wanted: ItemFilter,
        *,
        priority: int | None = None,
        dry_run: bool = False,
        progress: BulkProgress | None = None,
        should_stop: Callable[[], bool] | None = None,
        actor: str,
    ) -> ActionReport:
        """Do something to all items that match, in bounded steps.

        Items that are put meanwhile are left alone. An item that changes before its turn is left
        alone, too, and told of in the report. Whatever ends it early, all that was dealt with
        stays so, and the same call again goes on with the rest.

        Args:
            verb: ``"requeue"`` (buried items), ``"remove"`` (any), ``"cancel"`` (those that wait or
                run), ``"priority"`` (those that wait) or ``"run_now"`` (those that are scheduled).
            queue_or_lane: Where; None: in all queues but the internal ones.
            wanted: Which items. Its states count as far as the action can be done to them.
            priority: The new one, as stores have it, for ``"priority"``.
            dry_run: Whether to count the items only.
            progress: Told after each step what was done so far.
            should_stop: Asked before each step whether to stop.
            actor: Who does it.

        Raises:
            ValueError: There is no such action, a priority is missing, the queue is internal, or
                the action cannot be done to items in these states.
            StoreError: The store is out of reach. What was dealt with before stays so.
        """

        async def work() -> ActionReport:
            self._check_verb(verb, priority)
            self._refuse_internal(queue_or_lane or "")
            states = STATES_OF[verb]
            if wanted.states:
                states = tuple(state for state in wanted.states if state in states)
            if not states:
                raise ValueError(f"{verb} can be done to items that are {STATES_OF[verb]} only")
            exact = msgspec.structs.replace(wanted, states=states)
            layout = await self.layout()
            search = await self._bounded_search(layout, queue_or_lane, exact)
            action = BulkChange(
                self.store,
                verb,
                search,
                await self._access(),
                priority=priority,
                dry_run=dry_run,
            )
            return await action.run(progress, should_stop)

        return await self._act(
            f"bulk {verb}", actor, queue_or_lane or "all queues", _filter_words(wanted), work
        )

    async def change_seen(
        self,
        verb: BulkVerb,
        seen: Sequence[ItemView],
        *,
        priority: int | None = None,
        actor: str,
    ) -> ActionReport:
        """Do something to some items as they were seen, in bounded steps.

        An item that is in another state by then, or at another attempt, is left alone, and told of
        in the report: a lease that has begun meanwhile goes on.

        Args:
            verb: As in `bulk`.
            seen: The items.
            priority: As in `bulk`.
            actor: Who does it.

        Raises:
            ValueError: There is no such action, a priority is missing, or a queue is internal.
            StoreError: The store is out of reach. What was dealt with before stays so.
        """

        async def work() -> ActionReport:
            self._check_verb(verb, priority)
            stored: list[StoredItem] = []
            failed: list[tuple[str, str, str]] = []
            for view in seen:
                self._refuse_internal(view.queue)
                item = await self._by_id((view.queue,), view.id)
                if item is None or (item.state, item.attempt) != (view.state, view.attempt):
                    failed.append(
                        (view.queue, str(view.id), "it has changed meanwhile, or is gone")
                    )
                elif item.state not in STATES_OF[verb]:
                    why = f"it cannot be done: {_state_words(item.state)}"
                    failed.append((view.queue, str(view.id), why))
                else:
                    stored.append(item)
            access = await self._access()
            action = BulkChange(self.store, verb, SeenItems(stored), access, priority=priority)
            report = await action.run()
            return msgspec.structs.replace(
                report,
                matched=len(seen),
                failed=(*failed, *report.failed),
                failed_count=len(failed) + report.failed_count,
            )

        queues = ", ".join(dict.fromkeys(view.queue for view in seen))
        return await self._act(verb, actor, queues, ", ".join(str(view.id) for view in seen), work)

    # How it acts

    def _check_verb(self, verb: BulkVerb, priority: int | None) -> None:
        if verb not in BULK_VERBS:
            raise ValueError(f"verb must be one of {', '.join(BULK_VERBS)}; got {verb!r}")
        if (priority is None) == (verb == "priority"):
            raise ValueError("priority goes with the action 'priority', which needs it")
        checks.put_options(priority, None)

    async def _act(
        self,
        action: str,
        actor: str,
        queue: str,
        target: str,
        work: Callable[[], Awaitable[ActionReport]],
    ) -> ActionReport:
        """Do something, and write it into the audit log."""
        if not actor:
            raise ValueError("actor must say who does it, for the audit log")
        try:
            report = await work()
        except BaseException as error:
            audit.record_failure(action, error, actor=actor, queue=queue, target=target)
            if not isinstance(error, LeasedKeyQError | ValueError):  # those are refusals
                await self._remember(action, actor, f"{queue} {target}", type(error).__name__)
            raise
        audit.record(report, actor=actor, queue=queue, target=target, action=action)
        if report.matched and not report.dry_run:
            await self._remember(action, actor, f"{queue} {target}", audit.result_of(report))
        return report

    async def _remember(self, action: str, actor: str, target: str, outcome: str) -> None:
        """Keep a change in the store, if it is to be kept."""
        # Scripts put and submit all day long: that would push out what people have done.
        if not self._changes_from or action in ("put", "submit"):
            return
        from leasedkeyq.operations.change_log import AuditLog  # noqa: PLC0415 - who looks needs none

        log = AuditLog(self.store, self.store.name, self._clock)
        await log.add(
            who=actor,
            client=self._changes_from,
            action=action,
            target=target.strip(),
            outcome=outcome,
        )

    async def _change_one(
        self,
        action: str,
        queue_or_lane: str,
        key_or_id: str | int,
        actor: str,
        request: Callable[[StoredItem], Change | None],
    ) -> ActionReport:
        """Settle one request, which depends on what the item is."""

        async def work() -> ActionReport:
            self._refuse_internal(queue_or_lane)
            found = await self._find(await self.layout(), queue_or_lane, key_or_id)
            if found is None:
                return ActionReport(action=action)
            change = request(found)
            if change is None:
                return _one(action, found, f"it cannot be done: {_state_words(found.state)}")
            [answer] = await self.store.settle([change])
            if isinstance(answer, LeasedKeyQError):
                return _one(action, found, str(answer))
            if not answer:
                return _one(action, found, "it has changed meanwhile, or is gone")
            count = int(answer) if isinstance(answer, int) else 1
            return ActionReport(action=action, done=count, matched=count, id=found.id)

        return await self._act(action, actor, queue_or_lane, str(key_or_id), work)

    async def _change_schedule(
        self,
        action: Literal["pause", "resume"],
        name: str,
        actor: str,
    ) -> ActionReport:
        async def work() -> ActionReport:
            # Slow to import, and for schedules only.
            from leasedkeyq.operations.schedules.schedule_changes import change  # noqa: PLC0415

            done = await change(self.store, name, action, self._clock)
            note = "" if done else f"it was {'' if action == 'pause' else 'not '}paused"
            return ActionReport(action=action, done=int(done), matched=1, note=note)

        return await self._act(action, actor, SCHEDULES_QUEUE, name, work)

    async def _access(self) -> "LaneAccess":
        """The lanes of the store, for submissions and cancellations."""
        # It needs all that runs commands; who only looks does not wait for that.
        from leasedkeyq.operations.lane_access import LaneAccess  # noqa: PLC0415

        layout = await self.layout()
        told = await self._told_lanes(await self.store.count([CATALOG_QUEUE]))
        kept = {name: record.keep_results for name, record in told.items()}
        return LaneAccess(self.store, layout, kept, self._clock)

    async def _check_command(self, lane: str, kind: str, raw: bytes, *, known: bool = True) -> None:
        """See that arguments fit what workers have told of a command type."""
        types = {view.name: view for view in await self.types()}
        view = types.get(kind)
        if view is None:
            if not known:
                return
            names = ", ".join(sorted(types)) or "none"
            raise CommandPayloadError(
                f"no worker of this store has told of a command type {kind!r}; known are: {names}",
                lane=lane,
                command_type=kind,
            )
        decoded = msgspec.json.decode(raw)
        if not isinstance(decoded, dict):
            message = 'the arguments must be a JSON object, such as {"to": "ann"}'
            raise CommandPayloadError(message, lane=lane, command_type=kind)
        problems = [] if view.schema is None else check_value(decoded, view.schema)
        if problems:
            raise CommandPayloadError(
                f"the arguments do not fit command {kind!r}: {'; '.join(map(str, problems))}",
                lane=lane,
                command_type=kind,
            )

    async def _bounded_search(
        self, layout: StoreLayout, queue_or_lane: str | None, wanted: ItemFilter
    ) -> ItemSearch:
        """A search that ends at what is there now."""
        queues = self._queues(layout, queue_or_lane, wanted)
        bounds: dict[str, int] = {}
        for queue in queues:
            page = await self.store.browse(queue, states=STATES, limit=1, newest_first=True)
            bounds[queue] = page.items[0].id if page.items else 0
        return ItemSearch(
            self.store, queues, wanted, self._clock(), seen=self._redaction.stored, bounds=bounds
        )

    def _refuse_internal(self, queue_or_lane: str) -> None:
        if is_internal(queue_or_lane):
            raise ValueError(
                f"queue {queue_or_lane!r} is one of leasedkeyq itself, and is left alone"
            )

    # How it looks

    def _view(self, item: StoredItem, layout: StoreLayout) -> ItemView:
        return self._redaction.item(item_view(item, layout.lane_of(item.queue)))

    async def _with_worker(self, view: ItemView) -> ItemView:
        """The same, with the worker that runs it, if one that lives tells so."""
        if view.state != "in_flight" or not view.command_id:
            return view
        for worker in await self.workers():
            if worker.alive and any(
                running.command_id == view.command_id for running in worker.running
            ):
                return msgspec.structs.replace(view, worker=worker.id)
        return view

    def _search(
        self,
        layout: StoreLayout,
        queue_or_lane: str | None,
        wanted: ItemFilter | None,
        *,
        newest_first: bool = False,
    ) -> ItemSearch:
        wanted = wanted or ItemFilter()
        queues = self._queues(layout, queue_or_lane, wanted)
        now = self._clock()
        return ItemSearch(
            self.store, queues, wanted, now, newest_first=newest_first, seen=self._redaction.stored
        )

    def _queues(
        self, layout: StoreLayout, queue_or_lane: str | None, wanted: ItemFilter
    ) -> Sequence[str]:
        """The queues in which a filter is searched for."""
        if queue_or_lane is None:
            return layout.known
        if wanted.key:
            return (layout.queue_of(queue_or_lane, wanted.key),)
        return layout.queues_of(queue_or_lane)

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


def _one(action: str, item: StoredItem, why_not: str) -> ActionReport:
    """What became of an action on one item."""
    if not why_not:
        return ActionReport(action=action, done=1, matched=1, id=item.id)
    failed = ((item.queue, str(item.id), why_not),)
    return ActionReport(action=action, matched=1, failed=failed, failed_count=1, id=item.id)


def _state_words(state: StoredState) -> str:
    return {
        "available": "it waits",
        "scheduled": "it is scheduled",
        "in_flight": "it is leased",
        "buffered": "it waits behind another value of its key",
        "in_line": "it waits behind other values of its key",
        "buried": "it is buried",
        "done": "it is done",
    }[state]


def _purged(counts: Counts, part: PurgePart) -> int:
    """How many items a purge would forget."""
    if part == "buried":
        return counts.buried
    if part == "results":
        return counts.done
    waiting = counts.available + counts.scheduled + counts.in_flight + counts.held
    return waiting + counts.buried + counts.done


def _filter_words(wanted: ItemFilter) -> str:
    """A filter for the audit log."""
    said = msgspec.structs.asdict(wanted)
    return ", ".join(f"{name}={value!r}" for name, value in said.items() if value)


def as_json(text: str | bytes, what: str) -> bytes:
    """A text that was written by a person, if it is JSON.

    Raises:
        ValueError: It is none.
    """
    try:
        raw = text.encode() if isinstance(text, str) else text
        msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ValueError(f"{what} must be JSON: {error}") from error
    return raw.strip()
