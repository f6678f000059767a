"""The items of a repository, and the queue that holds them: plain data with rules.

Nothing here is stored or shared; that is the matter of `leasedkeyq.repository.QueueRepository`.
"""

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, cast
from uuid import UUID

from leasedkeyq import checks
from leasedkeyq.errors import QueueFullError, describe
from leasedkeyq.repository.backoff import DEFAULT_BACKOFF
from leasedkeyq.repository.errors import (
    DuplicateItemError,
    InvalidItemError,
    InvalidTransitionError,
)
from leasedkeyq.repository.status import ARROWS, FINISHED, QueueItemStatus
from leasedkeyq.types import Duration

MOST_FRESH: Final = 10_000
"""How many ids are remembered of items that were made and not enqueued yet."""
LONGEST_ERROR: Final = 20_000
"""Characters that are kept of an error."""
TIMES: Final = frozenset({"created_at", "scheduled_at", "started_at", "completed_at"})
REQUIRED: Final = ("id", "type", "payload", "status", "created_at")
OPTIONAL: Final = (
    "priority",
    "scheduled_at",
    "started_at",
    "completed_at",
    "retry_count",
    "max_retries",
    "error_message",
    "metadata",
    "group",
)


@dataclass
class QueueItem:
    """One piece of work.

    Times are aware of their time zone. One without is local time, as ``datetime.now()`` gives it,
    and becomes aware when it is assigned: compare with aware ones, such as ``datetime.now(UTC)``.
    `status` moves only along the arrows of the diagram in the docs: an assignment that does not
    raises `InvalidTransitionError`. `payload` and `metadata` are stored as JSON: keys come back as
    strings, tuples and sets as lists, times as strings, bytes as a string in base64. NaN and
    infinity are refused.

    Attributes:
        id: Unique in its queue. `create` makes one.
        type: What sort of work it is, for the worker.
        payload: What the worker needs to know.
        status: Where it stands.
        created_at: When it was made.
        priority: Higher goes first.
        scheduled_at: Not handed out before this time.
        started_at: When it was last handed out. An item of a group does not tell while it waits for
            its retry.
        completed_at: When it was completed.
        retry_count: How many attempts have failed, also by the death of the worker.
        max_retries: At so many failed attempts it is given up: with 3 it is tried three times. It
            is always tried once.
        error_message: Why it failed last.
        metadata: Whatever else is worth keeping.
        group: Items of one group are handed out one at a time, in the order in which they were
            enqueued: the next one when the one before is completed, cancelled, removed or given up.
            One that waits for its retry keeps those behind it waiting.
    """

    id: str
    type: str
    payload: dict[str, Any]
    status: QueueItemStatus
    created_at: datetime
    priority: int = 0
    scheduled_at: datetime | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None
    retry_count: int = 0
    max_retries: int = 3
    error_message: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    group: str | None = None

    def __post_init__(self) -> None:
        self.check()

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "status":
            value = self._next_status(value)
        elif name in TIMES:
            try:
                value = _aware(value)
            except (OverflowError, OSError, ValueError):
                expected = "a time with its zone, as it is none of local time"
                raise self._wrong(name, expected, value) from None
        object.__setattr__(self, name, value)

    def _next_status(self, value: Any) -> QueueItemStatus:
        try:
            status = QueueItemStatus(value)
        except ValueError:
            known = ", ".join(status.value for status in QueueItemStatus)
            raise self._wrong("status", f"one of {known}", value) from None
        before = getattr(self, "status", status)
        if status is not before and status not in ARROWS[before]:
            raise InvalidTransitionError(self.id, before, status)
        return status

    @classmethod
    def create(
        cls,
        item_type: str,
        payload: Mapping[str, Any],
        priority: int = 0,
        *,
        scheduled_at: datetime | None = None,
        max_retries: int = 3,
        metadata: Mapping[str, Any] | None = None,
        group: str | None = None,
    ) -> "QueueItem":
        """A new pending item with an id of its own. Ids sort by the time at which they were made.

        Raises:
            InvalidItemError: An argument is not what the field needs.
        """
        return cls(
            id=fresh_ids.make(),
            type=item_type,
            payload=_dict(payload),
            status=QueueItemStatus.PENDING,
            created_at=_now(),
            priority=priority,
            scheduled_at=scheduled_at,
            max_retries=max_retries,
            metadata=_dict(metadata or {}),
            group=group,
        )

    # The arrows

    def start(self, *, now: datetime | None = None) -> None:
        """Begin to work on it.

        Raises:
            InvalidTransitionError: It is not pending.
        """
        self._move(QueueItemStatus.PENDING, QueueItemStatus.PROCESSING)
        self.started_at = now or _now()

    def complete(self, *, now: datetime | None = None) -> None:
        """The work is done.

        Raises:
            InvalidTransitionError: It is not being processed.
        """
        self._move(QueueItemStatus.PROCESSING, QueueItemStatus.COMPLETED)
        self.completed_at = now or _now()

    def fail(
        self,
        error: str | BaseException,
        *,
        backoff: Callable[[int], Duration] = DEFAULT_BACKOFF,
        now: datetime | None = None,
    ) -> None:
        """The attempt failed: pending again after a while, or failed for good.

        It counts in `retry_count`. As long as that is below `max_retries`, the item is pending
        again, and `scheduled_at` is as far ahead as `backoff` says for that count.

        Raises:
            InvalidTransitionError: It is not being processed.
        """
        again = self.retry_count + 1 < self.max_retries
        text, scheduled_at = error_text(error), self.scheduled_at
        if again:
            delay = checks.delay_time("backoff", backoff(self.retry_count + 1))
            scheduled_at = _aware(now or _now()) + timedelta(seconds=delay)
        self._move(
            QueueItemStatus.PROCESSING, QueueItemStatus.PENDING if again else QueueItemStatus.FAILED
        )
        self.retry_count += 1
        self.error_message = text
        self.scheduled_at = scheduled_at

    def cancel(self) -> None:
        """It is not wanted any more.

        Raises:
            InvalidTransitionError: It is completed or cancelled.
        """
        if self.status is QueueItemStatus.CANCELLED:
            raise InvalidTransitionError(self.id, self.status, QueueItemStatus.CANCELLED)
        self.status = QueueItemStatus.CANCELLED

    def retry(self) -> None:
        """Have an item that failed tried anew: now, with all its retries.

        Raises:
            InvalidTransitionError: It did not fail.
        """
        self._move(QueueItemStatus.FAILED, QueueItemStatus.PENDING)
        self.retry_count = 0
        self.scheduled_at = None

    def _move(self, before: QueueItemStatus, after: QueueItemStatus) -> None:
        if self.status is not before:
            raise InvalidTransitionError(self.id, self.status, after)
        self.status = after

    def is_due(self, now: datetime | None = None) -> bool:
        """Whether it is pending and its time has come."""
        if self.status is not QueueItemStatus.PENDING:
            return False
        return self.scheduled_at is None or self.scheduled_at <= _aware(now or _now())

    # As data

    def to_dict(self) -> dict[str, Any]:
        """All fields by name, times as ISO 8601 text, for JSON and YAML; `group` if it has one."""
        fields = {
            "id": self.id,
            "type": self.type,
            "payload": self.payload,
            "status": self.status.value,
            "created_at": self.created_at.isoformat(),
            "priority": self.priority,
            "scheduled_at": _text(self.scheduled_at),
            "started_at": _text(self.started_at),
            "completed_at": _text(self.completed_at),
            "retry_count": self.retry_count,
            "max_retries": self.max_retries,
            "error_message": self.error_message,
            "metadata": self.metadata,
        }
        return fields if self.group is None else {**fields, "group": self.group}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "QueueItem":
        """The item that `to_dict` described.

        Times may be ISO 8601 text or datetimes; one without a time zone is local time. Names that
        are not those of fields are passed over.

        Raises:
            InvalidItemError: A field is missing or wrong; the error says which, and of which item.
        """
        given_data: object = data
        if not isinstance(given_data, Mapping):
            kind = type(given_data).__name__
            raise InvalidItemError(f"an item must be a mapping of its fields, got {kind}")
        name = describe(data.get("id"))
        for required in REQUIRED:
            if required not in data:
                message = f"item {name}: the field {required!r} is missing"
                raise InvalidItemError(message, item_id=str(data.get("id", "")), field=required)
        given = {known: data[known] for known in (*REQUIRED, *OPTIONAL) if known in data}
        for time_field in TIMES & given.keys():
            given[time_field] = _parsed(given[time_field])
        for mapping in ("payload", "metadata"):
            if isinstance(given.get(mapping), Mapping):
                given[mapping] = dict(given[mapping])
        return cls(**given)

    def check(self) -> None:
        """See that every field is what it should be.

        Raises:
            InvalidItemError: One is not.
        """
        if not isinstance(self.id, str) or not self.id:
            raise self._wrong("id", "a text that is not empty", self.id)
        if not isinstance(self.type, str):
            raise self._wrong("type", "a text", self.type)
        for name in ("payload", "metadata"):
            if not isinstance(getattr(self, name), dict):
                raise self._wrong(name, "a dict", getattr(self, name))
        for name in sorted(TIMES):
            value = getattr(self, name)
            if not isinstance(value, datetime) and (value is not None or name == "created_at"):
                raise self._wrong(name, "a time", value)
        for name in ("priority", "retry_count", "max_retries"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise self._wrong(name, "a whole number", value)
            if value < 0 and name != "priority":
                raise self._wrong(name, "zero or more", value)
        if self.error_message is not None and not isinstance(self.error_message, str):
            raise self._wrong("error_message", "a text or None", self.error_message)
        if self.group is not None and (not isinstance(self.group, str) or not self.group):
            raise self._wrong("group", "a text that is not empty, or None", self.group)

    def _take_over(self, other: "QueueItem") -> "QueueItem":
        """Become like `other`, whatever the status was."""
        for name in (*REQUIRED, *OPTIONAL):
            object.__setattr__(self, name, getattr(other, name))
        return self

    def _wrong(self, name: str, expected: str, value: object) -> InvalidItemError:
        item_id = getattr(self, "id", "")
        message = f"item {describe(item_id)}: {name} must be {expected}, got {describe_any(value)}"
        named = item_id if isinstance(item_id, str) else describe(item_id)
        return InvalidItemError(message, item_id=named, field=name)


class Origin(NamedTuple):
    """The items and settings of a queue when it was read, and the repository that read it."""

    owner: str
    items: dict[str, QueueItem]
    max_size: int | None
    default_max_retries: int


@dataclass
class Queue:
    """A queue as it was read: a list of items, with rules for adding and taking.

    Attributes:
        name: Its name. That of a queue that was read from a repository cannot be changed.
        items: All items, in whatever status, higher priority first.
        max_size: How many items may be pending; None or 0 for no limit. Items that are being
            processed or are finished take no room.
        default_max_retries: `max_retries` of the items that `QueueService` makes.
    """

    name: str
    items: list[QueueItem] = field(default_factory=list[QueueItem])
    max_size: int | None = None
    default_max_retries: int = 3
    _origin: Origin | None = field(default=None, init=False, repr=False, compare=False)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "name" and getattr(self, "_origin", None) is not None and value != self.name:
            raise AttributeError(
                f"the queue {self.name!r} is stored and keeps its name. In a document, change "
                "'name:' by hand while no program uses it; on another store, open a "
                "QueueRepository with the other name and save_queue this queue there"
            )
        object.__setattr__(self, name, value)

    def enqueue(self, item: QueueItem) -> None:
        """Add an item behind those of its priority, and behind those of its group.

        Raises:
            QueueFullError: It is pending, and so are `max_size` others.
            DuplicateItemError: An item with its id is there.
        """
        if self.get_item(item.id) is not None:
            raise DuplicateItemError(item.id, self.name)
        pending = QueueItemStatus.PENDING
        if self.max_size and item.status is pending:
            waiting = sum(other.status is pending for other in self.items)
            if waiting >= self.max_size:
                raise queue_full(self.name, self.max_size)
        self.items.append(item)
        ranks = dict(zip(map(id, self.items), group_ranks(self.items), strict=True))
        self.items.sort(key=lambda other: -ranks[id(other)])

    def dequeue(self, *, now: datetime | None = None) -> QueueItem | None:
        """The item to work on next: pending, due, and the first of the highest priority.

        Of a group it can only be the first that is pending or processing. It stays in the queue;
        `QueueItem.start` marks it.
        """
        now = now or _now()
        busy: set[str] = set()
        due: list[QueueItem] = []
        for item in self.items:
            if item.group in busy or item.status in FINISHED:
                continue
            if item.group is not None:
                busy.add(item.group)
            if item.is_due(now):
                due.append(item)
        return min(due, key=lambda item: -item.priority, default=None)

    def peek(self, *, now: datetime | None = None) -> QueueItem | None:
        """What `dequeue` returns."""
        return self.dequeue(now=now)

    def get_item(self, item_id: str) -> QueueItem | None:
        """The item with this id, or None."""
        return next((item for item in self.items if item.id == item_id), None)

    def remove_item(self, item_id: str) -> bool:
        """Take an item out, whatever its status; return whether it was there."""
        for place, item in enumerate(self.items):
            if item.id == item_id:
                del self.items[place]
                return True
        return False

    def get_stats(self) -> dict[str, int]:
        """How many items there are: ``"total"``, and by status."""
        counts = {status.value: 0 for status in QueueItemStatus}
        for item in self.items:
            counts[item.status.value] += 1
        return {"total": len(self.items), **counts}

    def _take_over(self, other: "Queue") -> None:
        """Become like `other`; items that are in both stay the same objects."""
        mine = {item.id: item for item in self.items}
        self.items[:] = [
            mine[item.id]._take_over(item) if item.id in mine else item for item in other.items
        ]
        self._origin = None
        self.name, self._origin = other.name, other._origin
        self.max_size, self.default_max_retries = other.max_size, other.default_max_retries


def new_id() -> str:
    """A UUID of version 7: 48 bits of time, which sort, and 74 bits of chance."""
    milliseconds = time.time_ns() // 1_000_000
    low = (0b10 << 62) | secrets.randbits(62)
    high = (milliseconds << 16) | (7 << 12) | secrets.randbits(12)
    return str(UUID(int=(high << 64) | low))


class FreshIds:
    """The ids that `QueueItem.create` made in this process, until they are enqueued.

    No other item can have one of them, so nobody has to look for that. The oldest are forgotten.
    """

    def __init__(self) -> None:
        self.begin_anew()

    def begin_anew(self) -> None:
        """Know none. In a new process after a fork, the parent may enqueue its items, too."""
        self._lock = threading.Lock()
        self._ids: OrderedDict[str, None] = OrderedDict()

    def make(self) -> str:
        """A new id."""
        made = new_id()
        with self._lock:
            self._ids[made] = None
            if len(self._ids) > MOST_FRESH:
                self._ids.popitem(last=False)
        return made

    def take(self, item_id: str) -> bool:
        """Whether an id is fresh. It is not from now on."""
        with self._lock:
            return self._ids.pop(item_id, "") is None


fresh_ids: Final = FreshIds()


def group_ranks(items: Sequence[QueueItem]) -> list[int]:
    """By what the items of a queue are in order, for items in the order of their groups.

    It is the priority. An item that waits for others of its group ranks no higher than they do.
    """
    lowest: dict[str, int] = {}
    ranks: list[int] = []
    for item in items:
        rank = item.priority
        if item.group is not None and item.status not in FINISHED:
            rank = lowest[item.group] = min(rank, lowest.get(item.group, rank))
        ranks.append(rank)
    return ranks


def queue_full(name: str, max_size: int) -> QueueFullError:
    """The error for an item that finds no room."""
    message = f"the queue {name!r} is full: max_size is {max_size}, and so many items are pending"
    return QueueFullError(message, maxsize=max_size)


def error_text(error: str | BaseException) -> str:
    """An error as text that can be stored: its beginning and its end, if it is very long.

    An error must not be refused: the item would be neither failed nor done.
    """
    if isinstance(error, BaseException):
        try:
            text = str(error)
        except Exception:
            text = "(an exception that cannot be shown)"
        error = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if not isinstance(error, str):
        raise TypeError(f"error must be a str or an exception, got {type(error).__name__}")
    if len(error) > LONGEST_ERROR:
        half = LONGEST_ERROR // 2
        error = f"{error[:half]} ... {error[-half:]}"
    return checks.storable(error)


def describe_any(value: object) -> str:
    """A value for an error message, cut where it would drown the message."""
    return describe(cast("Any", value))


def _now() -> datetime:
    return datetime.now(UTC)


def _aware(value: Any) -> Any:
    if not isinstance(value, datetime) or value.utcoffset() is not None:
        return value
    local = value.replace(tzinfo=None).astimezone()
    offset = local.utcoffset() or timedelta()
    # Long ago the offsets had seconds, which ISO 8601 cannot say.
    return local.astimezone(UTC) if offset % timedelta(minutes=1) else local


def _text(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


def _parsed(value: Any) -> Any:
    """A time from text. Any other value is returned, for `check` to refuse."""
    if not isinstance(value, str):
        return value
    try:
        return datetime.fromisoformat(value)
    except ValueError:
        return value


def _dict(value: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a mapping. Any other value is returned, for `check` to refuse."""
    return dict(value) if isinstance(value, Mapping) else value
