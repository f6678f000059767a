"""The errors of leasedkeyq: one root, each carrying its data.

The classes say whose turn it is to act. A `QueueClosedError` or a `LeaseExpiredError` is the
course of events; a `WrongEventLoopError` or an `InvalidLeaseError` with the reason ``"unknown"``
is a mistake in the calling code. Wrong arguments raise `TypeError` or `ValueError` that name
the argument.
"""

import asyncio
from collections.abc import Container, Hashable, Iterable
from typing import Literal, TypeVar

Key = TypeVar("Key", bound=Hashable)

LeaseEnd = Literal["acknowledged", "released", "expired", "removed", "buried", "closed"]
"""How a lease came to its end."""

LONG_KEY = 100


class LeasedKeyQError(Exception):
    """Root of all errors that leasedkeyq raises on its own account."""


class QueueClosedError(LeasedKeyQError):
    """The queue is closed: it takes no more work and hands none out.

    What is left in it can still be read with the methods that only look, such as
    `LeasedKeyQueue.snapshot`.
    """


class KeyAlreadyInFlightError(LeasedKeyQError):
    """A put with ``if_in_flight="reject"`` met a key that is leased. Nothing was put.

    Attributes:
        keys: The keys that are in flight. One for `put`, at least one for `put_many`.
    """

    def __init__(self, message: str, *, keys: tuple[Hashable, ...] = ()) -> None:
        super().__init__(message)
        self.keys = keys

    @property
    def key(self) -> Hashable:
        """The first of `keys`, or None."""
        return self.keys[0] if self.keys else None


class KeyAlreadyPresentError(LeasedKeyQError):
    """A put with ``if_present="reject"`` met a key that is there already. Nothing was put.

    Attributes:
        keys: The keys that are there. One for `put`, at least one for `put_many`.
    """

    def __init__(self, message: str, *, keys: tuple[Hashable, ...] = ()) -> None:
        super().__init__(message)
        self.keys = keys

    @property
    def key(self) -> Hashable:
        """The first of `keys`, or None."""
        return self.keys[0] if self.keys else None


class InvalidLeaseError(LeasedKeyQError):
    """The lease does not hold its key (any more). The call changed nothing.

    Attributes:
        key: The key the lease speaks of.
        reason: How the lease ended (``"released"``, ``"expired"``, ``"removed"``, ``"buried"``,
            ``"closed"``), or ``"unknown"`` when this queue never issued it, or does not remember.
            On a store, ``"removed"`` also stands for a lease that was settled before its time
            through another queue object, such as one of another process.
    """

    def __init__(
        self,
        message: str,
        *,
        key: Hashable = None,
        reason: LeaseEnd | Literal["unknown"] = "unknown",
    ) -> None:
        super().__init__(message)
        self.key = key
        self.reason = reason


class LeaseExpiredError(InvalidLeaseError):
    """The lease ran out before it was settled; its item went back to the queue.

    Somebody else may be working on the key by now. Ask for a longer ``lease_timeout``, or call
    `extend` while the work goes on.
    """


class LeaseAlreadyAcknowledgedError(LeasedKeyQError):
    """The lease was acknowledged before. The call changed nothing.

    Attributes:
        key: The key the lease held.
    """

    def __init__(self, message: str, *, key: Hashable = None) -> None:
        super().__init__(message)
        self.key = key


class QueueEmptyError(LeasedKeyQError, asyncio.QueueEmpty):
    """`get_nowait` found nothing available. Also an `asyncio.QueueEmpty`."""


class KeyNotAvailableError(QueueEmptyError):
    """`take_nowait` found its key absent, scheduled for later, in flight or held.

    Attributes:
        key: The key that was asked for.
        state: ``"absent"``, ``"scheduled"``, ``"in_flight"``, or ``"held"``: behind a buried item.
    """

    def __init__(self, message: str, *, key: Hashable = None, state: str = "absent") -> None:
        super().__init__(message)
        self.key = key
        self.state = state


class QueueFullError(LeasedKeyQError, asyncio.QueueFull):
    """There is no room for the put now, or ever. Also an `asyncio.QueueFull`.

    Attributes:
        maxsize: The limit that was met.
    """

    def __init__(self, message: str, *, maxsize: int = 0) -> None:
        super().__init__(message)
        self.maxsize = maxsize


class WrongEventLoopError(LeasedKeyQError, RuntimeError):
    """The queue was used outside the one event loop that it belongs to. Nothing was changed.

    A queue belongs to the event loop of its first use, until that loop is closed, as
    ``asyncio.run`` does at its end. Then the next loop that uses the queue takes it over. From
    another thread, go through ``asyncio.run_coroutine_threadsafe(queue.put(...), loop)``.
    """


class StoreError(LeasedKeyQError):
    """A store could not do its work: the disk, the file or the server behind it failed.

    What was under way is done completely or not at all. The call can be tried again when the cause
    is gone; `__cause__` has the engine's own error.
    """


class StoreClosedError(StoreError):
    """The store is closed."""


class StoreUnavailableError(StoreError):
    """The store cannot be reached, or does not answer: an outage, not an empty queue.

    A `get` with a timeout raises this, and no `TimeoutError`, if the store could not be asked by
    then. The message says whether a change that was under way may have been made.
    """


class StoreDamagedError(StoreError):
    """What is stored does not fit together: somebody else has removed or changed a part of it.

    The message says which part, and what can be done.

    Attributes:
        queue: The queue that is damaged.
        part: What is damaged, by the name that it has in the store.
    """

    def __init__(self, message: str, *, queue: str = "", part: str = "") -> None:
        super().__init__(message)
        self.queue = queue
        self.part = part


class UnstorableError(StoreError, ValueError):
    """A request has something that cannot be stored, such as an empty key. Nothing was stored.

    Unlike other failures of a store it does not pass: trying again is no use.
    """


class LimitExceededError(LeasedKeyQError, ValueError):
    """A key, a value or a batch is larger than the store takes. Nothing was stored.

    Attributes:
        limit: The name of the limit, as in `leasedkeyq.stores.Limits`.
        most: What it allows.
    """

    def __init__(self, message: str, *, limit: str = "", most: int = 0) -> None:
        super().__init__(message)
        self.limit = limit
        self.most = most


class UndecodableValueError(LeasedKeyQError, ValueError):
    """A stored value is not of the type that was asked for.

    Attributes:
        key: The key of the item.
        raw: The value as it is stored.
    """

    def __init__(self, message: str, *, key: str = "", raw: bytes = b"") -> None:
        super().__init__(message)
        self.key = key
        self.raw = raw


def describe(value: object) -> str:
    """A key or a value for an error message: its repr, cut where it would drown the message."""
    try:
        text = repr(value)
    except Exception:
        return f"<{type(value).__name__} that cannot be shown>"
    return text if len(text) <= LONG_KEY else f"{text[:LONG_KEY]}... ({len(text)} characters)"


def closed_while_waiting() -> QueueClosedError:
    """The error for a caller that waited in a queue when it was closed."""
    return QueueClosedError("the queue was closed while waiting")


def store_closed(name: str) -> StoreClosedError:
    """The error for a call of a store that is closed."""
    return StoreClosedError(f"the {name} is closed")


def store_of_another_process(name: str) -> StoreError:
    """The error for a call of a store that was carried over a fork."""
    return StoreError(f"the {name} was opened before a fork; open it in the new process")


def keys_in_flight(leased: tuple[Hashable, ...], of: int) -> KeyAlreadyInFlightError:
    """The refusal of a put of so many keys with the policy ``"reject"``, as some are leased."""
    message = f"key {describe(leased[0])} is in flight: it was leased and not yet settled"
    if of > 1:
        message = (
            f"{len(leased)} of {of} keys are in flight, the first is {describe(leased[0])}; "
            "nothing was put"
        )
    return KeyAlreadyInFlightError(message, keys=leased)


def keys_present(present: tuple[Hashable, ...], of: int) -> KeyAlreadyPresentError:
    """The refusal of a put of so many keys with ``if_present="reject"``, as some are there."""
    message = f"key {describe(present[0])} is in the queue already"
    if of > 1:
        message = (
            f"{len(present)} of {of} keys are in the queue already, the first is "
            f"{describe(present[0])}; nothing was put"
        )
    return KeyAlreadyPresentError(message, keys=present)


def repeated(keys: Iterable[Key], present: Container[Key]) -> tuple[Key, ...]:
    """Those of the keys of a put that are there when their turn comes: present, or put twice."""
    met: set[Key] = set()
    found: dict[Key, None] = {}
    for key in keys:
        if key in present or key in met:
            found[key] = None
        met.add(key)
    return tuple(found)


_ENDED_ELSEWHERE = (
    "its key was removed while it was held, or it was settled through another queue object"
)
_HOW_IT_ENDED: dict[LeaseEnd, str] = {
    "released": "it was released before",
    "removed": "its key was removed while it was held",
    "buried": "its item was buried",
    "closed": "the queue was closed while it was held",
}


def lease_refusal(
    key: Hashable, ended: LeaseEnd | None, *, elsewhere: bool = False
) -> LeasedKeyQError:
    """The error for a lease that does not hold `key`; `ended` is None where it is not known.

    With `elsewhere`, it is only known that somebody else has ended it before its time.
    """
    if ended == "acknowledged":
        message = f"the lease on key {describe(key)} was acknowledged before"
        return LeaseAlreadyAcknowledgedError(message, key=key)
    if ended == "expired":
        message = (
            f"the lease on key {describe(key)} has expired and its item went back to the "
            "queue; ask for a longer lease_timeout or extend the lease while working"
        )
        return LeaseExpiredError(message, key=key, reason="expired")
    if ended is not None:
        how = _ENDED_ELSEWHERE if elsewhere else _HOW_IT_ENDED[ended]
        message = f"the lease does not hold key {describe(key)} any more: {how}"
        return InvalidLeaseError(message, key=key, reason=ended)
    return InvalidLeaseError(f"there is no such lease on key {describe(key)} here", key=key)
