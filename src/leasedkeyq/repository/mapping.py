"""How an item is stored: which state of the store is which status, and what a change asks for.

The key is the id of the item. A live or buried item has the fields that its state does not tell as
its value, in JSON; a finished one has all of them, as `QueueItem.to_dict` names them.

- pending: available, or scheduled where `scheduled_at` lies ahead,
- processing: in flight,
- failed: buried, or done where it was saved ready-made,
- completed and cancelled: done.

The status of what is done is its outcome, too, so that the store counts it.

An attempt that ended counts in `retry_count`; the value has what comes on top of that.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

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

PENDING: Final = QueueItemStatus.PENDING
PROCESSING: Final = QueueItemStatus.PROCESSING
COMPLETED: Final = QueueItemStatus.COMPLETED
FAILED: Final = QueueItemStatus.FAILED

STATUS: Final = {
    "available": PENDING,
    "scheduled": PENDING,
    "in_flight": PROCESSING,
    "buried": FAILED,
    "done": COMPLETED,
}
OUTCOME: Final[dict[QueueItemStatus, ResultOutcome]] = {
    COMPLETED: "completed",
    FAILED: "failed",
    QueueItemStatus.CANCELLED: "cancelled",
}
ORDER: Final = {"in_flight": 0, "available": 1, "scheduled": 2, "buried": 3, "done": 4}
LIVE: Final = frozenset({"available", "scheduled", "in_flight"})
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


def latest(found: Iterable[StoredItem]) -> dict[str, StoredItem]:
    """One stored item for each id, in the order of the queue: higher priority first."""
    newest: dict[str, StoredItem] = {}
    for stored in sorted(found, key=lambda stored: stored.id):
        if stored.state == "buffered":
            continue
        known = newest.get(stored.key)
        if known is None or known.state not in LIVE:
            newest[stored.key] = stored
    in_order = sorted(
        newest.values(), key=lambda s: (-s.priority, ORDER[s.state], s.place, s.due or 0, s.id)
    )
    return {stored.key: stored for stored in in_order}


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
    key = stored.key
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
        | {"id": key, "status": STATUS[stored.state], "priority": stored.priority}
    )
    if isinstance(count, int):
        item.retry_count = max(count + _ended(stored), 0)
    if stored.state == "in_flight" and stored.leased_at is not None:
        item.started_at = moment(stored.leased_at)
    if stored.state == "scheduled" and stored.due is not None:
        said = item.scheduled_at
        if said is None or abs(said.timestamp() - stored.due) > SAME_MOMENT:
            item.scheduled_at = moment(stored.due)
    if stored.state == "buried":
        item.error_message = stored.error or item.error_message
    elif death := death_of(stored):
        item.error_message = death
    return item


def show(stored: StoredItem, default_max_retries: int) -> QueueItem:
    """The item that is stored, or something to look at where it is none."""
    try:
        return read(stored, default_max_retries)
    except InvalidItemError as error:
        return QueueItem(
            id=stored.key,
            type=UNREADABLE,
            payload={"stored": stored.value.decode(errors="replace")},
            status=QueueItemStatus(stored.outcome) if stored.outcome else STATUS[stored.state],
            created_at=moment(stored.put_at),
            priority=stored.priority,
            retry_count=_ended(stored),
            error_message=stored.error or str(error),
        )


def death_of(stored: StoredItem) -> str:
    """That the last attempt ended with its worker, or ""."""
    if not stored.history or stored.history[-1].how != "expired":
        return ""
    return f"the worker died in attempt {stored.history[-1].number}: its lease expired"


def says_error(stored: StoredItem) -> str:
    """The error that is stored with an item."""
    try:
        return str(msgspec.json.decode(stored.value, type=dict[str, Any]).get("error_message", ""))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""


def moment(seconds: float) -> datetime:
    """Unix time as a datetime."""
    return datetime.fromtimestamp(seconds, UTC)


def _ended(stored: StoredItem) -> int:
    return stored.attempt - (stored.state == "in_flight")


# Writing


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
        return Claim(((self.queue, 1),), key=key, lease_time=self.lease_time)

    def plan(
        self,
        stored: StoredItem | None,
        old: QueueItem | None,
        new: QueueItem | None,
        now: float,
        max_items: int = 0,
    ) -> list[ItemRequest]:
        """The requests that make `old`, stored as `stored`, into `new`; None is an absent item.

        Raises:
            InvalidItemError: `new` cannot be stored.
            InvalidTransitionError: There is no way from the status of `old` to that of `new`.
            TransactionError: `new` is to be started, which only `dequeue` can do.
        """
        if old == new:
            return []
        requests: list[ItemRequest] = []
        live = stored
        if stored is not None and stored.state == "buried":
            requests.append(Requeue(self.queue, stored.id))
            live = msgspec.structs.replace(stored, state="available", attempt=0)
        elif stored is not None and stored.state == "done":
            requests.append(Discard(self.queue, stored.id))
            live = None
        if new is None:
            return requests if live is None else [*requests, Cancel(self.queue, live.key)]
        new.check()
        for field in ("priority", "retry_count", "max_retries"):
            if abs(getattr(new, field)) > LARGEST:
                message = f"item {new.id!r}: {field} must be below 2**63 on a store, up or down"
                raise InvalidItemError(message, item_id=new.id, field=field)
        self._check_text(new, "id")
        if new.type:
            self._check_text(new, "type")
        if old is not None and not can_become(old.status, new.status):
            raise InvalidTransitionError(new.id, old.status, new.status)
        leased = live is not None and live.state == "in_flight"
        if new.status is PROCESSING and not leased:
            raise TransactionError(
                f"item {new.id!r} cannot be started here: only dequeue() hands out items. To move "
                "a queue with items that are being processed, call recover(older_than=0) on it"
            )
        if new.status in FINISHED and not (new.status is FAILED and leased):
            return requests + self._finish(stored, live, old, new, now)
        return requests + self._keep_alive(live, old, new, now, max_items)

    def _finish(
        self,
        stored: StoredItem | None,
        live: StoredItem | None,
        old: QueueItem | None,
        new: QueueItem,
        now: float,
    ) -> list[ItemRequest]:
        keep = FOR_GOOD if new.status is FAILED else self.keep
        if stored is not None and stored.state == "done" and old and old.status is new.status:
            # An item that a person finished in a document stays for good.
            keep = FOR_GOOD if stored.due is None else max(stored.due - now, SHORTEST)
        if not keep:
            return [] if live is None else [Cancel(self.queue, new.id)]
        result = self._encode(new, new.to_dict())
        cancel = Cancel(self.queue, new.id, result, keep, outcome=OUTCOME[new.status])
        if live is None:
            # Only a live item can be done.
            put = Put(self.queue, ((new.id, b"{}"),), priority=new.priority, kind=new.type)
            return [put, cancel]
        if live.state == "in_flight" and new.status is COMPLETED:
            return [Ack(self.queue, new.id, live.token, result, keep)]
        return [cancel]

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

    def _value(self, item: QueueItem, ended: int) -> bytes:
        fields = item.to_dict()
        names = ("type", "payload", "created_at", "max_retries", "metadata")
        value = {name: fields[name] for name in names}
        for name in ("scheduled_at", "started_at", "error_message"):
            if fields[name] is not None:
                value[name] = fields[name]
        if item.retry_count != ended:
            value["retry_count"] = item.retry_count - ended
        return self._encode(item, value)

    def _check_text(self, item: QueueItem, field: str) -> None:
        try:
            check_name(f"the {field} of an item", getattr(item, field), self._limits)
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
