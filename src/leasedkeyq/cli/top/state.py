"""What `top` shows, and what is selected in it: plain data."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

Pane: TypeAlias = Literal["lanes", "running", "failures"]
PANES: Final[tuple[Pane, ...]] = ("lanes", "running", "failures")
SORTS: Final = ("name", "waiting", "rate", "dead")
"""By what lanes can be sorted, in turn."""
MOST_FAILURES: Final = 200
"""Failures that are remembered."""


@dataclass(frozen=True)
class LaneRow:
    """A lane, or a queue that is none of a lane."""

    name: str
    is_lane: bool = True
    waiting: int = 0
    scheduled: int = 0
    in_flight: int = 0
    dead: int = 0
    capacity: int | None = None
    """How many commands all its workers can run at a time, if they tell."""
    rate: float | None = None
    """Commands that were done per second, of late; None for a queue."""
    failed_rate: float | None = None
    history: tuple[float, ...] = ()
    """Commands that were done per second, in steps of ten seconds, oldest first."""
    oldest: float | None = None
    paused: bool = False


@dataclass(frozen=True)
class RunningRow:
    """An item that is leased."""

    queue: str
    lane: str
    id: int
    key: str
    kind: str
    attempt: int
    since: float | None
    """For how many seconds it has been leased."""
    fraction: float | None = None
    """How far it has come, from 0 to 1, if it tells."""
    text: str = ""
    holder: str = ""


@dataclass(frozen=True)
class FailureRow:
    """Something that failed."""

    at: float
    outcome: str
    lane: str
    key: str
    kind: str
    error: str
    queue: str = ""
    id: int | None = None
    """The number of the item in its queue, if that is known."""
    attempt: int = 0


@dataclass
class TopState:
    """All that is shown.

    Attributes:
        store: The name of the store.
        now: Unix time.
        lanes: Lanes and queues.
        running: What is leased, the oldest lease first.
        failures: The newest first.
        workers: How many workers tell of their lanes.
        pane: Which part the keys are for.
        selected: In each part, what is selected: by what names it, so that it stays selected when
            rows come and go.
        sort: By what lanes are sorted.
        message: What was done last.
        trouble: Why the store cannot be read, if it cannot.
        detail: What is known of the selected item, in lines, if it is shown.
        detail_title: What that is.
        scroll: How many of these lines are above the screen.
        help: Whether the keys are explained.
        loaded: Whether the store has answered once.
    """

    store: str = ""
    now: float = 0.0
    lanes: Sequence[LaneRow] = ()
    running: Sequence[RunningRow] = ()
    failures: list[FailureRow] = field(default_factory=list[FailureRow])
    workers: int = 0
    pane: Pane = "lanes"
    selected: dict[Pane, object] = field(default_factory=dict[Pane, object])
    sort: str = "name"
    message: str = ""
    trouble: str = ""
    detail: Sequence[str] | None = None
    detail_title: str = ""
    scroll: int = 0
    help: bool = False
    loaded: bool = False

    def rows(self, pane: Pane) -> "Sequence[LaneRow | RunningRow | FailureRow]":
        """What a part shows, in order."""
        if pane == "running":
            return self.running
        if pane == "failures":
            return self.failures
        return self.sorted_lanes()

    def sorted_lanes(self) -> list[LaneRow]:
        """The lanes in their order; queues come behind them."""
        rows = sorted(self.lanes, key=lambda row: (not row.is_lane, row.name))
        if self.sort == "waiting":
            rows.sort(key=lambda row: -row.waiting)
        elif self.sort == "rate":
            rows.sort(key=lambda row: -(row.rate or 0.0))
        elif self.sort == "dead":
            rows.sort(key=lambda row: -row.dead)
        return rows

    def index(self, pane: Pane) -> int:
        """Which row of a part is selected."""
        wanted = self.selected.get(pane)
        for number, row in enumerate(self.rows(pane)):
            if name_of(row) == wanted:
                return number
        return 0

    def select(self, pane: Pane, index: int) -> None:
        """Select a row of a part, the nearest that there is."""
        rows = self.rows(pane)
        if rows:
            self.selected[pane] = name_of(rows[max(0, min(index, len(rows) - 1))])

    def current(self) -> "LaneRow | RunningRow | FailureRow | None":
        """What is selected in the part that the keys are for."""
        rows = self.rows(self.pane)
        return rows[self.index(self.pane)] if rows else None

    def add_failure(self, failure: FailureRow) -> None:
        """Remember a failure, unless it is known."""
        if name_of(failure) not in map(name_of, self.failures[:50]):
            self.failures.insert(0, failure)
            del self.failures[MOST_FAILURES:]


def name_of(row: LaneRow | RunningRow | FailureRow) -> object:
    """What names a row, however it changes."""
    if isinstance(row, LaneRow):
        return row.name
    if isinstance(row, RunningRow):
        return row.queue, row.id
    return row.queue, row.lane, row.key, row.id, row.attempt, row.outcome
