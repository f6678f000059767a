"""The live item of a key."""

from typing import Any, Generic, TypeVar

from leasedkeyq.model.linkedlist import Node

K = TypeVar("K")
V = TypeVar("V")


class Item(Node[K, V]):
    """The one live item of a key: available, scheduled or in flight.

    It is in flight while it has a `lease`; otherwise it is available while it is linked into a
    list, and scheduled while it is not. `timer` is its entry among the `Timers`. `since` is the
    time of its last move, kept by the driver of the state, if that wants it.
    """

    __slots__ = (
        "attempt",
        "buffered",
        "lease",
        "not_before",
        "position",
        "priority",
        "since",
        "timer",
    )

    key: K
    value: V
    priority: int
    position: int
    attempt: int
    lease: Any
    buffered: "Buffered[V] | None"
    not_before: float | None
    timer: Any
    since: float

    def __init__(self, key: K, value: V, priority: int) -> None:
        self.key = key
        self.value = value
        self.priority = priority
        self.position = self.attempt = 0
        self.prev = self.next = self.lease = self.buffered = self.not_before = self.timer = None

    @property
    def available(self) -> bool:
        """Whether it can be claimed."""
        return self.lease is None and self.next is not None


class Buffered(Generic[V]):
    """A newer value that waits beside a leased one."""

    __slots__ = ("not_before", "priority", "value")

    def __init__(self, value: V, priority: int, not_before: float | None) -> None:
        self.value = value
        self.priority = priority
        self.not_before = not_before
