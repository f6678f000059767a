"""Policies, protocols and small value types."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Generic, Literal, Protocol, TypeAlias, TypeVar

K = TypeVar("K")
V = TypeVar("V")
K_contra = TypeVar("K_contra", contravariant=True)

InFlightPolicy: TypeAlias = Literal["update", "reject", "buffer"]
"""What a put does when its key is in flight.

- ``"update"``: replace the value of the leased item. The holder keeps the value it got; the new
  one is seen if the item comes back (release, expiry) and is gone with an acknowledgement.
- ``"reject"``: raise `KeyAlreadyInFlightError`.
- ``"buffer"``: keep the value beside the leased one, to be handed out when the lease has ended.
  Once a value is buffered, ``"update"`` replaces that one.
"""

PresentPolicy: TypeAlias = Literal["append", "update", "skip", "reject"]
"""What a put does when its key is there already: waiting, scheduled or in flight.

- ``"append"``: the value goes to the end of the key's line. Nothing is replaced, nothing is lost.
- ``"update"``: replace the newest value of the key that waits. Behind a leased value without a
  line the new one waits its turn.
- ``"skip"``: put nothing; what is there stays.
- ``"reject"``: raise `KeyAlreadyPresentError`.
"""

PutPolicy: TypeAlias = Literal["update", "reject", "buffer", "append", "skip", "only_new"]
"""What a put does where its key is there, in one word, as stores are told it.

The first three are those of `InFlightPolicy`, which differ only where the key is in flight.
``"buffer"`` is also what ``if_present="update"`` means. ``"append"`` and ``"skip"`` are those of
`PresentPolicy`, and ``"only_new"`` is its ``"reject"``.
"""

PutOutcome: TypeAlias = Literal["added", "updated", "buffered", "appended", "skipped"]
"""What a put has done.

- ``"added"``: the key was absent, and has this value now.
- ``"updated"``: the value has replaced another one of the key.
- ``"buffered"``: it waits behind the leased value of the key, and newer ones replace it.
- ``"appended"``: it stands at the end of the key's line.
- ``"skipped"``: nothing; the key was there.
"""

Duration: TypeAlias = float | timedelta
"""A span of time: seconds, or a `datetime.timedelta`."""

ItemState: TypeAlias = Literal["available", "scheduled", "in_flight", "buffered", "in_line"]
"""Where a value stands that a `snapshot` or a `line` shows.

The first three are the states of the head of a key. ``"buffered"`` and ``"in_line"`` are values
behind it. A buffered one also takes the place of a head that is released.
"""


@dataclass(frozen=True, slots=True)
class ItemSnapshot(Generic[K, V]):
    """One item of a queue as it was when the snapshot was taken."""

    key: K
    value: V
    state: ItemState
    priority: int
    attempt: int
    """How often the item has been handed out so far."""
    due: float | None
    """When a lease expires, or before when a value is not handed out."""
    id: int = 0
    """The number of the value in its queue, for `remove`."""
    holder: str = ""
    """Who holds its lease, if it is leased on a store: ``store.queue(holder=...)``."""


@dataclass(frozen=True, slots=True)
class BuriedItem(Generic[K, V]):
    """An item that was given up. It has left its key; `requeue` puts it back."""

    id: int
    """Its number among the buried items of the queue."""
    key: K
    value: V
    priority: int
    attempt: int
    """How often the item had been handed out when it was buried."""
    error: str
    """Why it was buried, in the words of whoever buried it."""
    buried_at: float
    """When, on the clock of the queue."""
    holds: bool = False
    """Whether the line of its key waits until it is requeued or dropped."""


class QueueObserver(Protocol[K_contra]):
    """Told of what happens in a queue, for metrics and logs.

    Subclass it and override what you need; the other methods do nothing. The calls are made
    right after the change, in the event loop, and must return quickly and not call the queue. An
    exception from an observer goes to the event loop's exception handler and never to the caller
    of the queue. Leases that `close` ends are told as released.
    """

    def on_put(self, key: K_contra) -> None:
        """A put was accepted: a new item, a new value for a live one, or a buffered copy."""
        return

    def on_claim(self, key: K_contra, attempt: int, waited: float) -> None:
        """An item was handed out, `waited` seconds after it became available."""
        return

    def on_ack(self, key: K_contra, attempt: int, held: float) -> None:
        """A lease was acknowledged, `held` seconds after it was handed out."""
        return

    def on_release(self, key: K_contra, attempt: int, held: float) -> None:
        """A lease was released, `held` seconds after it was handed out."""
        return

    def on_expire(self, key: K_contra, attempt: int, held: float) -> None:
        """A lease expired, `held` seconds after it was handed out."""
        return

    def on_bury(self, key: K_contra, attempt: int, held: float) -> None:
        """An item was buried, `held` seconds after it was handed out."""
        return

    def on_remove(self, key: K_contra) -> None:
        """A key was removed, whatever its state."""
        return
