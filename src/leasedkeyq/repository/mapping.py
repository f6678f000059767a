"""How an item is stored: which state of the store is which status, and what a change asks for.

The key is the id of the item. A live or buried item has the fields that its state does not tell as
its value, in JSON; a finished one has all of them, as `QueueItem.to_dict` names them.

- pending: available, or scheduled where `scheduled_at` lies ahead,
- processing: in flight,
- failed: buried, or done where it was saved ready-made or has a group,
- completed and cancelled: done.

The status of what is done is its outcome, too, so that the store counts it.

An attempt that ended counts in `retry_count`; the value has what comes on top of that.

Items of a group that are pending or processing are the values of one key, in its line, with their
ids in their values: the store hands out one at a time. When one is finished, its result is kept
under its id as the key, like that of any other item. A put can only replace the last value of a
line, so a change of another one puts those behind it once more. An attempt that failed needs
no such change: the store remembers its error and its delay.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from leasedkeyq.checks import is_text
from leasedkeyq.errors import (
    InvalidLeaseError,
    LeaseEnd,
    LeaseExpiredError,
    LimitExceededError,
)
from leasedkeyq.model.admission import check_name
from leasedkeyq.model.requests import (
    LINE_STATES,
    Ack,
    Bury,
    Cancel,
    Change,
    Claim,
    Claimed,
    Discard,
    Limits,
    Put,
    Release,
    Requeue,
    ResultOutcome,
    StoredItem,
    StoredState,
)
from leasedkeyq.repository.errors import (
    InvalidItemError,
    InvalidTransitionError,
    TransactionError,
)
from leasedkeyq.repository.items import QueueItem
from leasedkeyq.repository.status import FINISHED, QueueItemStatus, can_become
from leasedkeyq.stores.codec import Codec
from leasedkeyq.stores.finite import check_finite
from leasedkeyq.stores.group_keys import GROUP_MARK, group_key, group_of, is_group_key
from leasedkeyq.stores.system.holder import this_process

PENDING: Final = QueueItemStatus.PENDING
PROCESSING: Final = QueueItemStatus.PROCESSING
COMPLETED: Final = QueueItemStatus.COMPLETED
FAILED: Final = QueueItemStatus.FAILED

STATUS: Final = {
    "available": PENDING,
    "scheduled": PENDING,
    "in_flight": PROCESSING,
    "buffered": PENDING,
    "in_line": PENDING,
    "buried": FAILED,
    "done": COMPLETED,
}
OUTCOME: Final[dict[QueueItemStatus, ResultOutcome]] = {
    COMPLETED: "completed",
    FAILED: "failed",
    QueueItemStatus.CANCELLED: "cancelled",
}
ORDER: Final[dict[StoredState, int]] = {
    "in_flight": 0,
    "available": 1,
    "scheduled": 2,
    "buffered": 3,
    "in_line": 3,
    "buried": 4,
    "done": 5,
}
LIVE: Final = frozenset({"available", "scheduled", "in_flight", *LINE_STATES})
RETOLD: Final = ("scheduled_at", "started_at", "error_message")
"""The fields of a value that the state or the history of an item may tell anew."""
FOR_GOOD: Final = 100 * 366 * 86400.0
"""Seconds that a finished item is kept which is not to be forgotten."""
SAME_MOMENT: Final = 1.0
"""Seconds by which the store's time may differ from `scheduled_at` and mean the same.

The store is told how long to wait, a moment after it looked at its clock.
"""
SHORTEST: Final = 0.001
"""Seconds that a result is kept whose time comes while it is changed."""
LARGEST: Final = 2**63 - 1
"""Stores have numbers of 64 bits."""
UNREADABLE: Final = "unreadable"
"""The type that an item is shown with whose stored value is none of ours."""

ItemRequest: TypeAlias = Put | Change


# Reading


def id_of_stored(stored: StoredItem) -> str:
    """The id of the item that is stored."""
    group = group_of(stored.key)
    if group is None:
        return stored.key
    try:
        return msgspec.json.decode(stored.value, type=_InGroup).id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return f"{group}#{stored.id}"


class _InGroup(msgspec.Struct):
    id: str


class FoundItems:
    """What an edit has shown of a queue.

    Attributes:
        by_id: One stored item for each id, in the order of the queue: higher priority first, and
            no item before those of its group that it waits for.
    """

    def __init__(self, items: Sequence[StoredItem], *, heads_only: bool = False) -> None:
        self._items = items
        self._heads_only = heads_only
        self._lines: dict[str, list[StoredItem]] | None = None
        newest: dict[str, StoredItem] = {}
        for stored in sorted(items, key=lambda stored: stored.id):
            item_id = id_of_stored(stored)
            if stored.state == "buffered" and not is_group_key(stored.key):
                continue
            known = newest.get(item_id)
            if known is None or known.state not in LIVE:
                newest[item_id] = stored
        ranks = _ranks(newest.values())
        in_order = sorted(newest.items(), key=lambda one: (-ranks[one[1].id], *_place(one[1])))
        self.by_id: dict[str, StoredItem] = dict(in_order)

    def has_key(self, key: str) -> bool:
        """Whether there is a live item under a key."""
        return any(stored.key == key and stored.state in LIVE for stored in self._items)

    def line(self, key: str) -> list[StoredItem]:
        """The values of a key, in order.

        Raises:
            LineNotShownError: Only heads were shown.
        """
        if self._heads_only:
            raise LineNotShownError
        if self._lines is None:
            self._lines = defaultdict(list)
            for stored in sorted(self._items, key=lambda stored: stored.id):
                if stored.state in LIVE:
                    self._lines[stored.key].append(stored)
        return self._lines[key]


def _ranks(found: Iterable[StoredItem]) -> dict[int, int]:
    """By what items are in order; see `leasedkeyq.repository.items.group_ranks`."""
    lowest: dict[str, int] = {}
    ranks: dict[int, int] = {}
    for stored in sorted(found, key=lambda stored: stored.id):
        rank = stored.priority
        if is_group_key(stored.key) and stored.state in LIVE:
            rank = lowest[stored.key] = min(rank, lowest.get(stored.key, rank))
        ranks[stored.id] = rank
    return ranks


def _place(stored: StoredItem) -> tuple[float, ...]:
    due = 0.0 if stored.state in LINE_STATES else stored.due or 0.0
    return ORDER[stored.state], stored.place, due, stored.id


def is_storable_id(item_id: str) -> bool:
    """Whether a store can have an item with this id. Stores refuse to be asked for others."""
    return "\x00" not in item_id and is_text(item_id)


def claimed_item(claimed: Claimed, leased_at: float) -> StoredItem:
    """An item that was just leased, as the store shows it."""
    return StoredItem(
        id=claimed.id,
        queue=claimed.queue,
        key=claimed.key,
        state="in_flight",
        value=claimed.value,
        priority=claimed.priority,
        attempt=claimed.attempt,
        put_at=claimed.put_at,
        due=claimed.expires_at,
        leased_at=leased_at,
        token=claimed.token,
    )


def read(stored: StoredItem, default_max_retries: int) -> QueueItem:
    """The item that is stored.

    Raises:
        InvalidItemError: The stored value is none of an item.
    """
    key, group = id_of_stored(stored), group_of(stored.key)
    try:
        fields = msgspec.json.decode(stored.value, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidItemError(f"item {key!r}: not the fields of an item: {error}") from error
    if stored.state == "done":
        item = QueueItem.from_dict({**fields, "id": key})
        if item.status not in FINISHED:
            raise InvalidItemError(f"item {key!r}: it is finished, and says {item.status.value}")
        return item
    count = fields.pop("retry_count", 0)
    item = QueueItem.from_dict(
        {"created_at": moment(stored.put_at), "max_retries": default_max_retries}
        | fields
        | {"id": key, "status": STATUS[stored.state], "priority": stored.priority, "group": group}
    )
    if isinstance(count, int):
        item.retry_count = max(count + _ended(stored), 0)
    if stored.state == "in_flight" and stored.leased_at is not None:
        item.started_at = moment(stored.leased_at)
    if stored.state in {"scheduled", *LINE_STATES} and stored.due is not None:
        said = item.scheduled_at
        if said is None or abs(said.timestamp() - stored.due) > SAME_MOMENT:
            item.scheduled_at = moment(stored.due)
    if stored.state == "buried":
        item.error_message = stored.error or item.error_message
    elif death := death_of(stored):
        item.error_message = death
    elif group is not None and item.error_message is None and stored.history:
        item.error_message = stored.history[-1].error or None
    return item


def show(stored: StoredItem, default_max_retries: int) -> QueueItem:
    """The item that is stored, or something to look at where it is none."""
    try:
        return read(stored, default_max_retries)
    except InvalidItemError as error:
        return QueueItem(
            id=id_of_stored(stored),
            type=UNREADABLE,
            payload={"stored": stored.value.decode(errors="replace")},
            status=QueueItemStatus(stored.outcome) if stored.outcome else STATUS[stored.state],
            created_at=moment(stored.put_at),
            priority=stored.priority,
            retry_count=_ended(stored),
            error_message=stored.error or str(error),
            group=group_of(stored.key),
        )


def death_of(stored: StoredItem) -> str:
    """That the last attempt ended with its worker, or ""."""
    if not stored.history or stored.history[-1].how != "expired":
        return ""
    return f"the worker died in attempt {stored.history[-1].number}: its lease expired"


def fields_of(stored: StoredItem) -> dict[str, Any]:
    """The fields that are stored with an item; none where they cannot be read."""
    try:
        return msgspec.json.decode(stored.value, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}


def says_error(stored: StoredItem) -> str:
    """The error that is stored with an item."""
    return str(fields_of(stored).get("error_message", ""))


def moment(seconds: float) -> datetime:
    """Unix time as a datetime."""
    return datetime.fromtimestamp(seconds, UTC)


def _ended(stored: StoredItem) -> int:
    return stored.attempt - (stored.state == "in_flight")


# Writing


class Step(NamedTuple):
    """One item that changes. None: it is not there."""

    stored: StoredItem | None
    old: QueueItem | None
    new: QueueItem | None


class LineNotShownError(Exception):
    """The change of an item takes an edit that shows the line of its group."""


class Plan:
    """The requests of one edit, which may change several items.

    Attributes:
        found: What the edit has shown.
        first: What ends, and what takes the place of that under another key.
        removed: The numbers of values that leave their lines by that.
        rewrites: Values that change where they are, by the key of their group and by number.
        then: Changes of single keys.
        last: What joins the end of a line.
    """

    def __init__(self, queue: str, found: FoundItems, now: float) -> None:
        self.found = found
        self.now = now
        self.first: list[ItemRequest] = []
        self.removed: set[int] = set()
        self.rewrites: dict[str, dict[int, Put]] = {}
        self.then: list[ItemRequest] = []
        self.last: list[ItemRequest] = []
        self._queue = queue

    def revive(self, stored: StoredItem | None, *, requeue: bool) -> StoredItem | None:
        """An item as it is when it is neither failed nor finished any more, or None.

        With `requeue`, one that is buried comes back; otherwise it has to be put anew.
        """
        if stored is None or stored.state in LIVE:
            return stored
        if stored.state == "buried" and requeue:
            self.first.append(Requeue(self._queue, stored.id))
            return msgspec.structs.replace(stored, state="available", attempt=0)
        self.first.append(Discard(self._queue, stored.id))
        return None

    def remove(self, live: StoredItem) -> None:
        """Take an item out."""
        if is_group_key(live.key):
            self.first.append(Cancel(self._queue, live.key, id=live.id))
            self.removed.add(live.id)
        else:
            self.first.append(Cancel(self._queue, live.key))

    def requests(self, batch_size: int) -> list[ItemRequest]:
        """All requests, in order.

        Raises:
            LineNotShownError: A line has to be known, and was not shown.
        """
        requests = self.first.copy()
        for key, changed in self.rewrites.items():
            requests += self._rewritten(key, changed, batch_size)
        return requests + self.then + self.last

    def _rewritten(
        self, key: str, changed: Mapping[int, Put], batch_size: int
    ) -> list[ItemRequest]:
        """A put replaces the last of a line: those behind it leave the line, and join it again."""
        values = [stored for stored in self.found.line(key) if stored.id not in self.removed]
        at = next(at for at, stored in enumerate(values) if stored.id in changed)
        behind = values[at + 1 :]
        requests: list[ItemRequest] = []
        if behind and not at and values[0].state not in LINE_STATES:
            requests.append(Cancel(self._queue, key, only_line=True))
        else:
            requests += [Cancel(self._queue, key, id=stored.id) for stored in behind]
        requests.append(changed[values[at].id])
        run: Put | None = None
        for stored in behind:
            put = self._again(stored, changed.get(stored.id))
            if run is None or len(run.items) >= batch_size or _terms_of(run) != _terms_of(put):
                requests.append(put)
            else:
                put = requests[-1] = msgspec.structs.replace(run, items=run.items + put.items)
            run = put
        return requests

    def _again(self, stored: StoredItem, change: Put | None) -> Put:
        """A value of a line joins it once more, maybe changed."""
        delay = None if stored.due is None else max(stored.due - self.now, 0.0) or None
        if change is None:
            items = ((stored.key, stored.value),)
            return Put(self._queue, items, "append", stored.priority, delay, kind=stored.kind)
        if change.delay is not None:
            delay = change.delay or None
        priority = stored.priority if change.priority is None else change.priority
        return Put(self._queue, change.items, "append", priority, delay, kind=change.kind)


def _terms_of(put: Put) -> tuple[object, ...]:
    return put.priority, put.delay, put.kind


class ItemTerms:
    """On which terms a queue's items are stored.

    Args:
        queue: Its name.
        limits: The limits of the store.
        keep: Seconds that a finished item is kept.
        lease_time: Seconds that a worker has, or None for ever.
    """

    def __init__(self, queue: str, limits: Limits, keep: float, lease_time: float | None) -> None:
        self.queue = queue
        self.keep = keep
        self.lease_time = lease_time
        self._limits = limits
        self._codec: Codec[Any] = Codec(Any)

    def claim(self, key: str | None = None) -> Claim:
        """Ask for the next item, or for one."""
        return Claim(((self.queue, 1),), key=key, lease_time=self.lease_time, holder=this_process())

    def plan(
        self, steps: Sequence[Step], now: float, found: FoundItems, max_items: int = 0
    ) -> list[ItemRequest]:
        """The requests that make these steps; `found` is what the edit has shown.

        Raises:
            InvalidItemError: An item cannot be stored.
            InvalidTransitionError: There is no way from the old status of an item to the new one.
            TransactionError: An item is to be started, which only `dequeue` can do.
            LineNotShownError: It takes an edit that shows the lines.
        """
        plan = Plan(self.queue, found, now)
        for step in steps:
            self._plan(plan, step, max_items)
        return plan.requests(self._limits.batch_size)

    def _plan(self, plan: Plan, step: Step, max_items: int) -> None:
        stored, old, new = step
        if old == new:
            return
        grouped = stored is not None and is_group_key(stored.key)
        ungrouped = not grouped and (new is None or new.group is None)
        live = plan.revive(stored, requeue=ungrouped)
        if new is None:
            if live is not None:
                plan.remove(live)
            return
        self.check(new)
        if old is not None and not can_become(old.status, new.status):
            raise InvalidTransitionError(new.id, old.status, new.status)
        leased = live is not None and live.state == "in_flight"
        if new.status is PROCESSING and not leased:
            raise TransactionError(
                f"item {new.id!r} cannot be started here: only dequeue() hands out items. To move "
                "a queue with items that are being processed, call recover(older_than=0) on it"
            )
        if new.status in FINISHED and not (new.status is FAILED and leased and ungrouped):
            self._finish(plan, stored, live, old, new)
            return
        if live is not None and new.group != group_of(live.key):
            if leased:
                message = f"item {new.id!r} is processing: its group can be changed when it is not"
                raise InvalidItemError(message, item_id=new.id, field="group")
            plan.remove(live)
            live = None
        if new.group is None:
            plan.then += self._keep_alive(live, old, new, plan.now, max_items)
        elif live is None:
            plan.last.append(self._append(new, plan.now, max_items))
        else:
            self._keep_in_line(plan, live, old, new)

    def check(self, new: QueueItem) -> None:
        """See that the store can have an item, apart from its size.

        Raises:
            InvalidItemError: It cannot.
            LimitExceededError: A name is too long.
        """
        new.check()
        for field in ("priority", "retry_count", "max_retries"):
            if abs(getattr(new, field)) > LARGEST:
                message = f"item {new.id!r}: {field} must be below 2**63 on a store, up or down"
                raise InvalidItemError(message, item_id=new.id, field=field)
        self._check_text(new, "id", new.id)
        if is_group_key(new.id):
            message = f"item {new.id!r}: its id must not begin with {GROUP_MARK!r}"
            raise InvalidItemError(message, item_id=new.id, field="id")
        if new.type:
            self._check_text(new, "type", new.type)
        if new.group is not None:
            self._check_text(new, "group", group_key(new.group))

    def _finish(
        self,
        plan: Plan,
        stored: StoredItem | None,
        live: StoredItem | None,
        old: QueueItem | None,
        new: QueueItem,
    ) -> None:
        keep = FOR_GOOD if new.status is FAILED else self.keep
        if stored is not None and stored.state == "done" and old and old.status is new.status:
            # An item that a person finished in a document stays for good.
            keep = FOR_GOOD if stored.due is None else max(stored.due - plan.now, SHORTEST)
        if not keep:
            if live is not None:
                plan.remove(live)
            return
        result = self._encode(new, new.to_dict())
        cancel = Cancel(self.queue, new.id, result, keep, outcome=OUTCOME[new.status])
        leased = live is not None and live.state == "in_flight"
        completed = leased and new.status is COMPLETED
        if live is not None and not is_group_key(live.key):
            ack = Ack(self.queue, new.id, live.token, result, keep)
            plan.first.append(ack if completed else cancel)
            return
        if live is not None and plan.found.has_key(new.id):
            # Another item has the id as its key, so the result stays with the group.
            if completed:
                plan.first.append(Ack(self.queue, live.key, live.token, result, keep))
            else:
                in_group = msgspec.structs.replace(cancel, key=live.key, id=live.id)
                plan.first.append(in_group)
            plan.removed.add(live.id)
            return
        if live is not None and completed:
            plan.first.append(Ack(self.queue, live.key, live.token))
            plan.removed.add(live.id)
        elif live is not None:
            plan.remove(live)
        # Only a live item can be done.
        put = Put(self.queue, ((new.id, b"{}"),), priority=new.priority, kind=new.type)
        plan.first += [put, cancel]

    def _keep_alive(
        self,
        live: StoredItem | None,
        old: QueueItem | None,
        new: QueueItem,
        now: float,
        max_items: int,
    ) -> list[ItemRequest]:
        leased = live is not None and live.state == "in_flight"
        delay = self._delay(new, now)
        put_delay: float | None = None
        if live is None:
            put_delay = delay or None
        elif not leased and old is not None and old.scheduled_at != new.scheduled_at:
            put_delay = delay
        ended = 0
        if live is not None:
            ended = live.attempt - (leased and new.status is PROCESSING)
        requests: list[ItemRequest] = [
            Put(
                self.queue,
                ((new.id, self._value(new, ended)),),
                priority=new.priority if live is None or live.priority != new.priority else None,
                delay=put_delay,
                max_items=max_items,
                kind=new.type,
            )
        ]
        if live is not None and leased:
            error = new.error_message or ""
            if new.status is PENDING:
                release = Release(self.queue, new.id, live.token, delay=delay, error=error)
                requests.append(release)
            elif new.status is FAILED:
                requests.append(Bury(self.queue, new.id, live.token, error))
        return requests

    def _append(self, new: QueueItem, now: float, max_items: int) -> Put:
        """Let a new item wait behind those of its group."""
        assert new.group is not None
        return Put(
            self.queue,
            ((group_key(new.group), self._value(new, 0)),),
            "append",
            priority=new.priority,
            delay=self._delay(new, now) or None,
            max_items=max_items,
            kind=new.type,
        )

    def _keep_in_line(
        self, plan: Plan, live: StoredItem, old: QueueItem | None, new: QueueItem
    ) -> None:
        """Change an item that stays in its group, pending or processing."""
        leased = live.state == "in_flight"
        released = leased and new.status is PENDING
        known = fields_of(live)
        told = {name: known.get(name) for name in RETOLD if _same_field(old, new, name)}
        if released:
            # The history tells the error, and the schedule is the store's.
            told |= {name: known.get(name) for name in RETOLD if name not in known}
            told["scheduled_at"] = known.get("scheduled_at")
        ended = live.attempt - (leased and not released)
        value = self._value(new, ended, told)
        moved = not leased and not _same_field(old, new, "scheduled_at")
        ranked = new.priority != live.priority
        if moved or ranked or msgspec.json.decode(value) != known:
            plan.rewrites.setdefault(live.key, {})[live.id] = Put(
                self.queue,
                ((live.key, value),),
                priority=new.priority if ranked else None,
                delay=self._delay(new, plan.now) if moved else None,
                kind=new.type,
            )
        if released:
            delay, error = self._delay(new, plan.now), new.error_message or ""
            plan.then.append(Release(self.queue, live.key, live.token, delay=delay, error=error))

    def _value(
        self, item: QueueItem, ended: int, told: Mapping[str, Any] = MappingProxyType({})
    ) -> bytes:
        """The value of an item that is not done.

        Args:
            item: The item.
            ended: How many of its attempts the store counts.
            told: Fields that stay what they were in the value, as the state of the item says more.
        """
        fields = {**item.to_dict(), **told}
        names = ("type", "payload", "created_at", "max_retries", "metadata")
        value = {name: fields[name] for name in names}
        for name in RETOLD:
            if fields[name] is not None:
                value[name] = fields[name]
        if item.retry_count != ended:
            value["retry_count"] = item.retry_count - ended
        if item.group is not None:
            value["id"] = item.id
        return self._encode(item, value)

    def _check_text(self, item: QueueItem, field: str, name: str) -> None:
        try:
            check_name(f"the {field} of an item", name, self._limits)
        except LimitExceededError:
            raise
        except ValueError as error:
            raise InvalidItemError(str(error), item_id=item.id, field=field) from error

    def _encode(self, item: QueueItem, value: dict[str, Any]) -> bytes:
        try:
            encoded = self._codec.encode(item.id, value)
        except TypeError as error:
            field = next(name for name, part in value.items() if not self._is_json(part))
            message = f"item {item.id!r}: {field} cannot be stored as JSON: {error.__cause__}"
            raise InvalidItemError(message, item_id=item.id, field=field) from error
        for name in ("payload", "metadata"):
            _check_finite(item, name, encoded)
        return encoded

    def _is_json(self, value: object) -> bool:
        try:
            self._codec.encode("", value)
        except TypeError:
            return False
        return True

    @staticmethod
    def _delay(item: QueueItem, now: float) -> float:
        if item.scheduled_at is None:
            return 0.0
        return max(item.scheduled_at.timestamp() - now, 0.0)


def _same_field(old: QueueItem | None, new: QueueItem, name: str) -> bool:
    return old is not None and getattr(old, name) == getattr(new, name)


def _check_finite(item: QueueItem, field: str, encoded: bytes) -> None:
    try:
        check_finite(getattr(item, field), encoded)
    except ValueError as error:
        message = f"item {item.id!r}: {field} cannot be stored as JSON: {error}"
        raise InvalidItemError(message, item_id=item.id, field=field) from error


def lease_lost(
    item_id: str, stored: StoredItem | None, status: QueueItemStatus | None, attempt: int
) -> InvalidLeaseError:
    """The error for a worker whose lease, of this attempt, has ended without its doing."""
    reason: LeaseEnd = "removed"
    if stored is not None:
        ends: dict[int, LeaseEnd] = {past.number: past.how for past in stored.history}
        otherwise: LeaseEnd = "acknowledged" if status is COMPLETED else "removed"
        reason = ends.get(attempt, otherwise)
    now = "gone" if status is None else status.value
    message = (
        f"item {item_id!r}: the lease under which it was handed out here has ended "
        f"({reason}), and it is {now} now. Nothing was changed"
    )
    if reason == "expired":
        message += "; ask for a longer lease_time, or call extend while working"
        return LeaseExpiredError(message, key=item_id, reason=reason)
    return InvalidLeaseError(message, key=item_id, reason=reason)
