"""`QueueRepository`: a queue on any store, for programs without an event loop."""

import os
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import TracebackType
from typing import Self, TypeAlias

import msgspec

from leasedkeyq import checks
from leasedkeyq.errors import InvalidLeaseError, QueueClosedError
from leasedkeyq.model.requests import Extend, StoredItem, StoredState
from leasedkeyq.repository.backoff import DEFAULT_BACKOFF
from leasedkeyq.repository.change_edits import ItemPlace
from leasedkeyq.repository.changes import Changes
from leasedkeyq.repository.claims import Claims, is_older
from leasedkeyq.repository.connection import Connection, is_document
from leasedkeyq.repository.errors import (
    DuplicateItemError,
    InvalidTransitionError,
)
from leasedkeyq.repository.items import Queue, QueueItem, fresh_ids
from leasedkeyq.repository.leases import HeldLease
from leasedkeyq.repository.mapping import (
    FAILED,
    FOR_GOOD,
    PENDING,
    PROCESSING,
    FoundItems,
    ItemRequest,
    ItemTerms,
    Step,
    death_of,
    id_of_stored,
    moment,
    show,
)
from leasedkeyq.repository.status import QueueItemStatus
from leasedkeyq.stores.group_keys import group_of
from leasedkeyq.stores.store import Store
from leasedkeyq.stores.take_back import undo_lease
from leasedkeyq.types import Duration

StatusMap: TypeAlias = (
    Mapping[str, str | QueueItemStatus] | Callable[[str], str | QueueItemStatus | None]
)


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What `QueueRepository.recover` did.

    Attributes:
        pending: The ids of items whose worker died and that wait for another one now.
        failed: The ids of items that were given up, as their retries are used up.
    """

    pending: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()


class QueueRepository:
    """A queue of `QueueItem` objects that threads and processes share.

    Every method is atomic, and durable on return as far as the store is. It blocks the calling
    thread meanwhile, also where that runs an event loop. A repository can be used from any number
    of threads. After a fork it opens its store again by itself, if it was given a path or a URL.

    An item that was handed out is leased for `lease_time`. If its worker does not settle it by
    then, it is pending again, with its retry counted.

    Methods that want an `item_id` take the item, too. Of that only the id counts; when they return,
    it shows how the item is now.

    Args:
        source: Where the queue is: the path of a document (``queue.yaml``, ``.yml`` or ``.json``),
            a URL for `leasedkeyq.connect`, or a store. A document has one queue in it and
            is easy to read. A store that is passed in is not closed here.
        name: Which queue. A document has its own name; elsewhere it is ``"queue"`` by default.
        max_size: How many items may be pending; None or 0 for no limit. In a document it is what
            the document says, and this counts where it says nothing.
        default_max_retries: `max_retries` of items that do not say it, as with `max_size`; 3 where
            neither says it.
        lease_time: How long a worker has for an item, or None for ever.
        backoff: Called with how often an item has failed; says how long to wait for the next try.
        keep_finished: How long completed and cancelled items are kept, or None for good. Failed
            items are kept until they are retried or removed; stores have a limit on their number.
        status_map: For a document in which other programs write a status that is none of
            `QueueItemStatus`: which one it is, such as ``{"waiting": "pending"}``, or a function
            from the status to ours, or to None if it does not know it. The document is written
            in our words then.
        clock: Unix time, for tests. Give the store the same one.

    Raises:
        StoreError: The store cannot be opened; the message says why and what to do.
        ValueError: `source` is neither a document nor a URL, or another argument is wrong.
        TransactionError: This thread is inside a transaction of the same document.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | Store,
        name: str | None = None,
        *,
        max_size: int | None = None,
        default_max_retries: int | None = None,
        lease_time: Duration | None = timedelta(hours=1),
        backoff: Callable[[int], Duration] = DEFAULT_BACKOFF,
        keep_finished: Duration | None = timedelta(days=7),
        status_map: StatusMap | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if max_size is not None:
            checks.whole("max_size", max_size, 0)
        if default_max_retries is not None:
            checks.whole("default_max_retries", default_max_retries, 0)
        lease_seconds = checks.lease_time("lease_time", lease_time)
        keep = checks.wait_time("keep_finished", keep_finished)
        self._backoff = backoff
        self._clock = clock
        translate = None if status_map is None else _translation(source, status_map)
        self._connection = Connection(source, name, max_size, default_max_retries, translate)
        with self._connection.using() as session:
            self._name, limits = session.name, session.store.limits
        keep_seconds = FOR_GOOD if keep is None else keep
        self._terms = ItemTerms(self._name, limits, keep_seconds, lease_seconds)
        self._changes = Changes(self._connection, self._terms, clock)
        self._claims = Claims(self._changes, self._terms, clock)

    # Life

    @property
    def name(self) -> str:
        """The name of the queue."""
        return self._name

    @property
    def max_size(self) -> int | None:
        """How many items may be pending; None or 0 for no limit."""
        with self._connection.using() as session:
            return session.read_settings().max_size

    @property
    def default_max_retries(self) -> int:
        """`max_retries` of items that do not say it."""
        with self._connection.using() as session:
            return session.read_settings().default_max_retries

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._connection.closed

    def close(self) -> None:
        """Let go of the store. What was handed out stays so until its lease expires.

        Calls that are under way are finished; a thread that waits in `dequeue` gets a
        `QueueClosedError`, and so does every call from now on.
        """
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # The whole queue

    def get_queue(self) -> Queue:
        """All items as they are at one moment.

        Changes to the `Queue` change nothing in the store; `save_queue` saves them.
        """
        with self._connection.using() as session:
            items, settings = session.read()
        return self._changes.read_queue(items, settings)

    def save_queue(self, queue: Queue) -> None:
        """Save what was changed in `queue` since `get_queue` returned it, all or nothing.

        Items that other threads or programs changed or added meanwhile stay as they are. If they
        changed the same items, nothing is saved. A `Queue` that did not come from `get_queue` of
        this repository is all new: none of its items may be there yet, and none can be
        processing. On return `queue` shows what is stored.

        Raises:
            QueueConflictError: The same items were changed or added since `get_queue`.
            QueueFullError: More items would be pending than `max_size` allows.
            InvalidItemError: An item cannot be stored, or is there twice.
            InvalidTransitionError: There is no way from an item's status to the new one.
            InvalidLeaseError: An item was handed out to this thread, and its lease is lost.
        """
        with self._changes.edit() as edit:
            steps = self._changes.queue_steps(edit, queue)
        self._changes.drop_leases(steps)
        queue._take_over(self.get_queue())

    @contextmanager
    def transaction(self) -> Generator[Queue]:
        """Change the queue as a whole: ``with repository.transaction() as queue:``.

        The block gets all items as they are. When it ends, what it changed is stored, all or
        nothing; if it raises, nothing is. No other call can change the queue meanwhile, in any
        process: keep it short. The calling thread cannot use this repository in the block. The
        order of `queue.items` is not stored: higher priority goes first, then first in, first out.

        Raises:
            QueueFullError: More items would be pending than `max_size` allows.
            InvalidItemError: An item cannot be stored, or is there twice.
            InvalidTransitionError: There is no way from an item's status to the new one.
            InvalidLeaseError: An item was handed out to this thread, and its lease is lost.
            TransactionError: An item was started, which only `dequeue` can do; or this thread is
                inside a transaction of the same store already.
        """
        with self._changes.edit() as edit:
            queue = self._changes.read_queue(edit.items, edit.settings)
            yield queue
            steps = self._changes.queue_steps(edit, queue)
        self._changes.drop_leases(steps)

    # Single items

    def enqueue(self, item: QueueItem) -> None:
        """Add an item; one with a group waits behind those of that.

        Raises:
            QueueFullError: `max_size` items are pending.
            DuplicateItemError: An item with its id is there, in whatever status. An item without a
                group is not compared with those that wait in groups. One with a group is, for which
                these are all looked at, unless `QueueItem.create` made its id in this process.
            InvalidItemError: It cannot be stored; the error names the field.
            LimitExceededError: It is larger than the store takes; the error names the limit.
        """
        with self._connection.using() as session:

            def look(stored: StoredItem | None, found: FoundItems) -> Sequence[ItemRequest]:
                if stored is not None:
                    raise DuplicateItemError(item.id, self._name)
                room = session.settings.max_size or 0 if item.status is PENDING else 0
                steps = [Step(None, None, item)]
                return self._terms.plan(steps, self._clock(), found, room)

            place = ItemPlace(item.id)
            if not fresh_ids.take(item.id) and item.group is not None:
                self._terms.check(item)
                if session.find_group(item.id) is not None:
                    raise DuplicateItemError(item.id, self._name)
                place = ItemPlace(item.id, item.group, heads_only=False)
            session.change_at(place, look)
        self._changes.groups.add(item.id, item.group)

    def dequeue(self, timeout: Duration | None = 0) -> QueueItem | None:
        """Hand out the next item, which is then processing, or None if there is none.

        That is the first in, of the highest priority, of the pending items whose time has come.
        An item whose worker died and that has no retries left is given up on the way.

        Args:
            timeout: How long to wait for an item; None to wait for ever.

        Raises:
            QueueClosedError: The repository was closed meanwhile.
        """
        seconds = checks.wait_time("timeout", timeout)
        deadline = None if seconds is None else time.monotonic() + seconds
        while True:
            left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            with self._connection.using() as session:
                try:
                    claimed = self._claims.next(session, left)
                except QueueClosedError:
                    if session.ended_by_fork and not self.closed:
                        continue
                    raise
                if claimed is None:
                    return None
                item = self._claims.accept(session, claimed)
                if item is not None:
                    return item

    def get_item(self, item_id: str | QueueItem) -> QueueItem | None:
        """The item with this id as it is now, or None.

        An item that is finished, or has no group, is found at once. So is the first of a group, if
        the item itself is passed here, or this repository enqueued it or handed it out. One that
        waits behind others of its group is looked for among these, and if its group is not known,
        among all items that are in groups and not finished: that takes the longer the more of them
        there are. So does an id that is not there. This goes for all methods that want an item.
        """
        shown: list[QueueItem] = []
        with self._connection.using() as session:

            def look(stored: StoredItem | None, _: FoundItems) -> Sequence[ItemRequest]:
                if stored is not None:
                    shown[:] = [show(stored, session.settings.default_max_retries)]
                return ()

            session.change(*self._named(item_id), look)
        return shown[0] if shown else None

    def update_item(
        self, item_id: str | QueueItem, update: Callable[[QueueItem], object]
    ) -> QueueItem | None:
        """Change an item while no other call can: `update` is called with it, once.

        What `update` changes in the item is stored; if it raises, nothing is. It must not use this
        repository. What it returns does not matter.

        Returns:
            The item as it is now, or None if there is none with this id.

        Raises:
            InvalidItemError: It cannot be stored any more; the error names the field.
            InvalidTransitionError: There is no way from its status to the new one.
            InvalidLeaseError: It was handed out to this thread, and its lease is lost.
        """
        return self._changes.update_item(*self._named(item_id), update)

    def remove_item(self, item_id: str | QueueItem) -> bool:
        """Take an item out, whatever its status; return whether it was there.

        If a worker has it, that worker cannot settle it any more.
        """
        return self._changes.update_item(*self._named(item_id), None) is not None

    # Settling items

    def complete(self, item_id: str | QueueItem) -> QueueItem:
        """The work on an item is done.

        If this thread was handed the item, it must still have the lease: a worker that was paused
        for too long cannot finish its successor's work. A thread that was not is held to the
        lease of the last one that was, if that was a thread of this repository. Otherwise this
        acts on the item as it is, with or without a worker on it.

        Raises:
            ItemNotFoundError: There is no such item.
            InvalidTransitionError: It is not being processed.
            InvalidLeaseError: It was handed out here, and its lease is lost.
        """
        return self._changed(item_id, lambda item: item.complete(now=self._now()))

    def fail(self, item_id: str | QueueItem, error: str | BaseException) -> QueueItem:
        """The work on an item failed: it is tried again after a while, or given up.

        The rules are those of `QueueItem.fail`, with the backoff of this repository; the lease is
        checked as in `complete`. Of an error of more than 20,000 characters, the beginning and the
        end are kept.

        Raises:
            ItemNotFoundError: There is no such item.
            InvalidTransitionError: It is not being processed.
            InvalidLeaseError: It was handed out here, and its lease is lost.
        """
        return self._changed(
            item_id, lambda item: item.fail(error, backoff=self._backoff, now=self._now())
        )

    def cancel(self, item_id: str | QueueItem) -> QueueItem:
        """Cancel an item. If a worker has it, that worker cannot settle it any more.

        Raises:
            ItemNotFoundError: There is no such item.
            InvalidTransitionError: It is completed, or cancelled.
        """
        return self._changed(item_id, QueueItem.cancel, anybody=True)

    def retry(self, item_id: str | QueueItem) -> QueueItem:
        """Have an item that failed tried anew, with all its retries.

        Raises:
            ItemNotFoundError: There is no such item.
            InvalidTransitionError: It did not fail.
        """
        return self._changed(item_id, QueueItem.retry, anybody=True)

    def extend(
        self, item_id: str | QueueItem, lease_time: Duration | None = None
    ) -> datetime | None:
        """Give the worker of an item more time: `lease_time` from now, or that of the repository.

        Returns:
            When the lease expires now; None for never.

        Raises:
            ItemNotFoundError: There is no such item.
            InvalidLeaseError: No worker has it, or its lease is lost, as in `complete`.
        """
        seconds = self._terms.lease_time
        if lease_time is not None:
            seconds = checks.lease_time("lease_time", lease_time)

        def extend(stored: StoredItem, item: QueueItem) -> ItemRequest:
            if item.status is not PROCESSING:
                message = f"item {item.id!r} is {item.status.value}: nobody works on it"
                raise InvalidLeaseError(message, key=item.id)
            return Extend(self._name, stored.key, stored.token, seconds)

        expiry = self._changes.request(*self._named(item_id), extend)
        return moment(expiry) if isinstance(expiry, float) else None

    def release(self, item_id: str | QueueItem) -> QueueItem:
        """Give an item back unfinished: it is pending again where it was, and nothing is counted.

        For a worker that stops before its work is done. The lease is checked as in `complete`.

        Raises:
            ItemNotFoundError: There is no such item.
            InvalidTransitionError: It is not being processed.
            InvalidLeaseError: It was handed out here, and its lease is lost.
        """
        seen: list[tuple[StoredItem, QueueItem]] = []

        def give_back(stored: StoredItem, item: QueueItem) -> ItemRequest:
            if item.status is not PROCESSING:
                raise InvalidTransitionError(item.id, item.status, PENDING)
            seen[:] = [(stored, item)]
            return undo_lease(self._name, stored.key, stored.token)

        self._changes.request(*self._named(item_id), give_back)
        [(stored, item)] = seen
        self._changes.held.drop(item.id, stored.token)
        attempt = stored.attempt - 1
        given_back = msgspec.structs.replace(stored, state="available", attempt=attempt)
        return _shown_as(item_id, show(given_back, item.max_retries))

    def _changed(
        self,
        item_id: str | QueueItem,
        change: Callable[[QueueItem], object],
        *,
        anybody: bool = False,
    ) -> QueueItem:
        changed = self._changes.change_item(*self._named(item_id), change, anybody=anybody)
        return _shown_as(item_id, changed)

    def _named(self, item: str | QueueItem) -> tuple[str, str | None]:
        """The id of an item, and the group in which to look for it first."""
        item_id = id_of(item)
        group = item.group if isinstance(item, QueueItem) else None
        return item_id, group or self._changes.groups.get(item_id)

    def _lease_of(self, item: QueueItem) -> HeldLease:
        """The lease under which this thread was just handed an item."""
        held = self._changes.held.own(item.id)
        assert held is not None
        return held

    # Looking after the queue

    def recover(self, *, older_than: Duration | None = None) -> RecoveryReport:
        """Deal with items whose worker died, and say what was done.

        An item whose lease has expired is pending again by itself. This reports it, once, and gives
        it up if its retries are used up. With `older_than` it also takes items away from workers
        that have had them for longer, lease or not: use it when you know that they are dead.
        """
        states: tuple[StoredState, ...] = ("available",)
        since = float("-inf")
        if older_than is not None:
            states = ("available", "in_flight")
            since = self._clock() - checks.seconds("older_than", older_than)
        outcomes: dict[str, QueueItemStatus | None] = {}
        with self._connection.using() as session:
            for stored in session.browse(states):
                if is_older(stored, since) or death_of(stored):
                    item_id, group = id_of_stored(stored), group_of(stored.key)
                    outcomes[item_id] = self._claims.recover(session, item_id, group, since)
        return RecoveryReport(
            tuple(item_id for item_id, status in outcomes.items() if status is PENDING),
            tuple(item_id for item_id, status in outcomes.items() if status is FAILED),
        )

    def stats(self) -> dict[str, int]:
        """How many items there are: ``"total"``, and by status, as `Queue.get_stats` says it.

        The store counts as it goes: it costs the same however many items there are (but see
        `leasedkeyq.stores.Store.count` on results that have expired). While other programs work, an
        item that moves may be counted twice or not at all.
        """
        with self._connection.using() as session:
            counts = session.count()
        stats = Queue(self._name).get_stats()
        stats["pending"] = counts.available + counts.scheduled + counts.held
        stats["processing"] = counts.in_flight
        stats["completed"] = counts.done - counts.done_failed - counts.done_cancelled
        stats["failed"] = counts.buried + counts.done_failed
        stats["cancelled"] = counts.done_cancelled
        stats["total"] = sum(stats[status.value] for status in QueueItemStatus)
        return stats

    def __len__(self) -> int:
        """How many items are pending, those with a `scheduled_at` ahead included."""
        with self._connection.using() as session:
            counts = session.count()
        return counts.available + counts.scheduled + counts.held

    def __bool__(self) -> bool:
        """Always true: an empty queue is a queue, too."""
        return True

    def _now(self) -> datetime:
        return moment(self._clock())


def _translation(source: object, status_map: StatusMap) -> Callable[[str], str | None]:
    """From a status that is none of ours to the name of one that is."""
    if isinstance(source, Store) or not is_document(source):
        raise ValueError(
            "status_map is for documents that QueueRepository opens by their path; other stores "
            "hold no status of others, and a FileStore takes status_map itself"
        )
    if not callable(status_map):
        for status, ours in status_map.items():
            _known_status(status, ours)

    def translate(status: str) -> str | None:
        ours = status_map(status) if callable(status_map) else status_map.get(status)
        return None if ours is None else _known_status(status, ours)

    return translate


def _known_status(status: str, ours: str | QueueItemStatus) -> str:
    try:
        return QueueItemStatus(ours).value
    except ValueError:
        known = ", ".join(status.value for status in QueueItemStatus)
        message = f"status_map makes {status!r} {ours!r}, which is none of {known}"
        raise ValueError(message) from None


def id_of(item: str | QueueItem) -> str:
    """The id of an item, from the item or from itself.

    Raises:
        TypeError: It is neither.
    """
    given: object = item.id if isinstance(item, QueueItem) else item
    if not isinstance(given, str):
        kind = type(given).__name__
        raise TypeError(f"item_id must be the id of an item, or the item itself, got {kind}")
    return given


def _shown_as(given: str | QueueItem, item: QueueItem) -> QueueItem:
    """The item as it is now; if the caller gave an item, that one shows it."""
    return given._take_over(item) if isinstance(given, QueueItem) else item
