"""The values of a key: its live item, and the line behind that."""

from typing import Any, TypeVar

from leasedkeyq.model.line import Line, LineValue
from leasedkeyq.model.linkedlist import Node

K = TypeVar("K")
V = TypeVar("V")


class Item(Node[K, V]):
    """The head of a key: available, scheduled, in flight, or the place of a buried item.

    It is in flight while it has a `lease`; otherwise it is available while it is linked into a
    list, and while it is not, it is scheduled, or held by a buried item. `line` has the values
    that wait behind it; None for no line. `timer` is its entry among the
    `Timers`. `number` is set when somebody first asks for it. `since` is the time of its last
    move, kept by the driver of the state, if that wants it.
    """

    __slots__ = (
        "attempt",
        "lease",
        "line",
        "not_before",
        "number",
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
    line: Line[V] | None
    not_before: float | None
    number: int
    timer: Any
    since: float

    def __init__(self, key: K, value: V, priority: int) -> None:
        self.key = key
        self.value = value
        self.priority = priority
        self.position = self.attempt = 0
        self.prev = self.next = self.lease = self.line = self.not_before = self.timer = None

    @property
    def available(self) -> bool:
        """Whether it can be claimed."""
        return self.lease is None and self.next is not None

    @property
    def first_in_line(self) -> LineValue[V] | None:
        """The value that follows it."""
        return None if self.line is None else self.line.first

    @property
    def buffered(self) -> LineValue[V] | None:
        """The value that takes its place when its lease ends before it is done."""
        first = self.first_in_line
        return None if first is None or not first.replaces else first

    @property
    def last_in_line(self) -> LineValue[V] | None:
        """The newest value that waits behind it."""
        return None if self.line is None else self.line.last
