"""Counters and latencies in memory."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import repeat
from math import ceil, inf, log
from typing import get_args

import msgspec

from leasedkeyq.telemetry.instrument import (
    AttemptEnd,
    AttemptStart,
    DeadLetteredCommand,
    Outcome,
    SubmittedCommand,
)
from leasedkeyq.telemetry.series import Series
from leasedkeyq.telemetry.stats import QueueStats

ERROR = 0.04
"""How far a quantile is off at most, as a share of it."""
LOWEST = 1e-6
"""Seconds that are told from zero; anything below counts as that."""
HIGHEST = 1e6
"""Seconds, eleven days and a half, up to which the error holds."""
FRESH = 100
"""Durations that are counted at once."""

# Bucket 0 ends at `LOWEST`, each of the others at `_GROWTH` times the end of the one before it.
# The last is for what is above all ends.
_GROWTH = (1 + ERROR) / (1 - ERROR)
_COUNT = ceil(log(HIGHEST / LOWEST, _GROWTH)) + 1
_LIMITS = tuple(LOWEST * _GROWTH**index for index in range(_COUNT))
# The numbers in the middle of the buckets: off by the same share from both ends.
_MIDDLES = (0.0, *(limit * (1 - ERROR) for limit in _LIMITS[1:]), inf)

ENDS = ("completed", "failed", "timeout")
"""The outcomes after which a command is done or given up."""


class LatencySnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Durations in seconds. All are 0 if none was measured.

    Between a microsecond and eleven days, a quantile is off by at most 4 %.
    """

    count: int = 0
    total: float = 0.0
    """Their sum."""
    longest: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p95: float = 0.0
    p99: float = 0.0

    @property
    def mean(self) -> float:
        """Their mean."""
        return self.total / self.count if self.count else 0.0


class SeriesSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One command type in one lane."""

    lane: str
    command_type: str
    """The type; ``"(other)"`` for all those beyond the limit of series."""
    submitted: int
    """Commands that were submitted."""
    started: int
    """Attempts that were started."""
    completed: int
    """Commands that ended well."""
    failed: int
    """Commands that were given up, be it after an error or a time-out."""
    timed_out: int
    """Those of `failed` whose last attempt ran out of time."""
    retried: int
    """Attempts that failed and were followed by another."""
    cancelled: int
    """Commands that were cancelled while they ran."""
    lost: int
    """Attempts whose lease was lost."""
    dead_lettered: int
    """Commands that went to the dead letters."""
    waiting: LatencySnapshot
    """From the moment at which an attempt could start until it did."""
    running: LatencySnapshot
    """From the start of an attempt to its end, however it ended."""
    end_to_end: LatencySnapshot
    """From the submission of a command until it was done or given up."""


class MetricsSnapshot(msgspec.Struct, frozen=True):
    """All series at one moment, in the order in which they began."""

    series: tuple[SeriesSnapshot, ...]

    def find(self, lane: str, command_type: str) -> SeriesSnapshot | None:
        """The series of a command type in a lane, or None if there was no such command."""
        for one in self.series:
            if one.lane == lane and one.command_type == command_type:
                return one
        return None


class Histogram:
    """Durations in buckets that grow by a constant factor: little memory, whatever comes.

    Attributes:
        fresh: Durations that are not counted yet: many at once cost less. Whoever adds to it by
            himself has them counted when there are `FRESH` of them.
    """

    __slots__ = ("_buckets", "_longest", "_total", "fresh")

    def __init__(self) -> None:
        self.fresh: list[float] = []
        self._buckets = [0] * len(_MIDDLES)
        self._total = 0.0
        self._longest = 0.0

    def record(self, seconds: float) -> None:
        """Add one. If it is negative, as by a clock that was set back, it counts as 0."""
        self.fresh.append(seconds)
        if len(self.fresh) >= FRESH:
            self.count_fresh()

    def count_fresh(self) -> None:
        """Count what is in `fresh`."""
        fresh = self.fresh
        total, shortest = sum(fresh), min(fresh, default=0.0)
        if not (total >= 0 and shortest >= 0):  # negative, or not a number
            fresh[:] = [seconds if seconds > 0 else 0.0 for seconds in fresh]
            total = sum(fresh)
        self._total += total
        self._longest = max(self._longest, max(fresh, default=0.0))
        buckets = self._buckets
        for index in map(bisect_left, repeat(_LIMITS), fresh):
            buckets[index] += 1
        fresh.clear()

    def snapshot(self) -> LatencySnapshot:
        """How things stand now."""
        self.count_fresh()
        count = sum(self._buckets)
        if not count:
            return LatencySnapshot()
        p50, p90, p95, p99 = self._quantiles(count, (0.5, 0.9, 0.95, 0.99))
        return LatencySnapshot(
            count=count,
            total=self._total,
            longest=self._longest,
            p50=p50,
            p90=p90,
            p95=p95,
            p99=p99,
        )

    def _quantiles(self, count: int, shares: Iterable[float]) -> Iterator[float]:
        """For each share, the duration at that place among all, sorted. The shares ascend."""
        seen = index = 0
        for share in shares:
            rank = max(ceil(share * count), 1)
            while seen + self._buckets[index] < rank:
                seen += self._buckets[index]
                index += 1
            yield min(_MIDDLES[index], self._longest)


class SeriesCounts:
    """What is measured of one command type in one lane.

    Attributes:
        waits: The waiting times that are not counted yet; see `Histogram.fresh`.
    """

    __slots__ = (
        "dead_lettered",
        "end_to_end",
        "kind",
        "lane",
        "outcomes",
        "running",
        "submitted",
        "waiting",
        "waits",
    )

    def __init__(self, lane: str, kind: str) -> None:
        self.lane = lane
        self.kind = kind
        self.submitted = 0
        self.dead_lettered = 0
        self.outcomes: dict[Outcome, int] = dict.fromkeys(get_args(Outcome), 0)
        self.waiting = Histogram()
        self.running = Histogram()
        self.end_to_end = Histogram()
        self.waits = self.waiting.fresh

    def ended(self, outcome: Outcome, ran: float, total: float) -> None:
        """Count an end."""
        self.outcomes[outcome] += 1
        runs = self.running.fresh
        runs.append(ran)
        if outcome in ENDS:
            self.end_to_end.fresh.append(total)
        if len(runs) >= FRESH:
            self.waiting.count_fresh()
            self.running.count_fresh()
            self.end_to_end.count_fresh()

    def snapshot(self) -> SeriesSnapshot:
        """How things stand now."""
        outcomes = self.outcomes
        waiting = self.waiting.snapshot()
        return SeriesSnapshot(
            lane=self.lane,
            command_type=self.kind,
            submitted=self.submitted,
            started=waiting.count,
            completed=outcomes["completed"],
            failed=outcomes["failed"] + outcomes["timeout"],
            timed_out=outcomes["timeout"],
            retried=outcomes["retry"],
            cancelled=outcomes["cancelled"],
            lost=outcomes["lost"],
            dead_lettered=self.dead_lettered,
            waiting=waiting,
            running=self.running.snapshot(),
            end_to_end=self.end_to_end.snapshot(),
        )


class LaneMetrics:
    """Counts commands and measures how long they wait and run, by lane and command type.

    An `Instrument` that keeps everything in memory, about 20 KB for each pair of lane and type.
    Use it in the event loop of the manager that it measures; several managers of one event loop
    may share it.

    Args:
        most: How many pairs of lane and command type are told apart. The types beyond it are
            counted together for each lane, as the type ``"(other)"``.
    """

    def __init__(self, *, most: int = 10_000) -> None:
        self._most = most
        self.reset()

    def snapshot(self) -> MetricsSnapshot:
        """What was measured so far."""
        return MetricsSnapshot(tuple(one.snapshot() for one in self._series.things.values()))

    def reset(self) -> None:
        """Forget everything and start at zero. Attempts that run now are not counted."""
        self._series = Series(SeriesCounts, self._most)
        self.of = self._series.get
        """The counts of a command type in a lane."""

    # What the manager calls

    def submitted(self, command: SubmittedCommand) -> None:
        """Count a submission."""
        self.of(command.lane, command.kind).submitted += 1

    def started(self, start: AttemptStart) -> None:
        """Count a start."""
        self.of(start.lane, start.kind).waits.append(start.waited)

    def ended(self, end: AttemptEnd) -> None:
        """Count an end."""
        self.of(end.lane, end.kind).ended(end.outcome, end.ran, end.total)

    def dead_lettered(self, command: DeadLetteredCommand) -> None:
        """Count a dead letter."""
        self.of(command.lane, command.kind).dead_lettered += 1

    def gauges(self, stats: QueueStats) -> None:
        """Do nothing: whoever asked for the statistics has them."""
