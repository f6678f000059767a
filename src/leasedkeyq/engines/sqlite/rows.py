"""The rows of the SQLite store as a transaction knows them."""

from typing import Any, Final

from leasedkeyq.model.requests import OUTCOMES

SIZES: Final = (
    "available",
    "buffered",
    "scheduled",
    "in_flight",
    "buried",
    "done",
    "done_failed",
    "done_cancelled",
)
FAILED: Final = OUTCOMES.index("failed")
CANCELLED: Final = OUTCOMES.index("cancelled")


class Space:
    """A queue as this transaction knows it. It has no `id` as long as it is not stored."""

    __slots__ = (
        "available",
        "buffered",
        "buried",
        "changed",
        "done",
        "done_cancelled",
        "done_failed",
        "earliest",
        "forgot",
        "id",
        "in_flight",
        "name",
        "scheduled",
    )

    def __init__(self, name: str, row: tuple[int, ...] | None) -> None:
        self.name = name
        self.id = 0
        self.available = self.buffered = self.scheduled = 0
        self.in_flight = self.buried = self.done = self.done_failed = self.done_cancelled = 0
        if row is not None:
            self.id, self.available, self.buffered, self.scheduled = row[:4]
            self.in_flight, self.buried, self.done, self.done_failed, self.done_cancelled = row[4:]
        self.changed = False
        self.forgot = False
        """Whether results were deleted; `done` counts those that are old and not deleted yet."""
        self.earliest: float | None = None
        """No live item comes due before; it may be too early, never too late."""

    def expect(self, due: float) -> None:
        """Something comes due at `due`."""
        if self.earliest is None or due < self.earliest:
            self.earliest = due

    def count_result(self, outcome: int, step: int) -> None:
        """There is one result of that outcome more, or one less."""
        self.done += step
        if outcome == FAILED:
            self.done_failed += step
        elif outcome == CANCELLED:
            self.done_cancelled += step

    @property
    def waiting(self) -> int:
        """What `max_items` limits."""
        return self.available + self.buffered + self.scheduled

    def sizes(self) -> tuple[int, ...]:
        """In the order of `SIZES`."""
        return (
            self.available,
            self.buffered,
            self.scheduled,
            self.in_flight,
            self.buried,
            self.done,
            self.done_failed,
            self.done_cancelled,
        )


class Live:
    """The row of a live key, without its values."""

    __slots__ = (
        "attempt",
        "due",
        "history",
        "id",
        "key",
        "next_id",
        "next_not_before",
        "next_priority",
        "next_put_at",
        "not_before",
        "place",
        "priority",
        "put_at",
        "replaced",
        "state",
        "token",
        "turn",
    )

    def __init__(self, row: tuple[Any, ...]) -> None:
        self.id: int
        self.key: str
        self.state: int
        self.priority: int
        self.place: int
        self.attempt: int
        self.put_at: float
        self.due: float | None
        self.turn: int
        self.not_before: float | None
        self.token: str | None
        self.history: bytes | None
        self.next_id: int | None
        self.next_priority: int
        self.next_not_before: float | None
        self.next_put_at: float
        (
            self.id,
            self.key,
            self.state,
            self.priority,
            self.place,
            self.attempt,
            self.put_at,
            self.due,
            self.turn,
            self.not_before,
            self.token,
            self.history,
            self.next_id,
            self.next_priority,
            self.next_not_before,
            self.next_put_at,
        ) = row
        self.replaced = False
        """Whether the buffered value takes the place of the value when the row is written."""
