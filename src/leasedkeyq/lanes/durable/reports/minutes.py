"""Minute values of lanes, as the workers of a store keep them: what is written, and where.

Each worker writes one kept result for each minute in which something happened in its lanes, into a
queue of the store. They end by themselves after two days. `leasedkeyq.operations.live.series` reads
them, those of all workers together.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import repeat
from math import ceil
from typing import Final

import msgspec

SERIES_QUEUE: Final = "leasedkeyq.series"
"""The queue of the store that has them."""
SERIES_KEPT: Final = 48 * 3600.0
"""Seconds for which a minute is kept."""
MINUTE: Final = 60
"""Seconds."""
GAUGES_HOLD: Final = 10 * MINUTE
"""Seconds for which the gauges of a lane stand, if no worker writes others.

A worker writes those of a lane in which nothing changes once in this time, unless all are 0.
"""

SHORTEST: Final = 2.0**-13
"""Seconds: durations below, about 0.1 ms, are in the first bucket."""
_PER_DOUBLING = 4
_DOUBLINGS = 31
LIMITS: Final[tuple[float, ...]] = tuple(
    SHORTEST * 2 ** (number / _PER_DOUBLING) for number in range(_PER_DOUBLING * _DOUBLINGS)
)
"""Where the buckets of durations end, in seconds: each 19 % above the one before, up to 2.5 days.

Beyond the last is one more bucket. These numbers are stored: a change needs another field.
"""


class LaneMinute(msgspec.Struct, omit_defaults=True):
    """What one worker did in a lane in one minute, and how the lane stood at the end of it.

    Attributes:
        submitted: Commands that were submitted through the manager of this worker.
        started: Attempts that were started.
        completed: Commands that were done.
        failed: Commands that were given up.
        retried: Attempts that failed and are followed by another.
        timed_out: Attempts that ran too long.
        cancelled: Commands that were cancelled.
        dead_lettered: Commands that went to the dead letters.
        waited: How long first attempts had waited: a bucket, how many, the next bucket, how many.
        waited_total: Their sum, in seconds.
        ran: How long the attempts that ended ran, as `waited`.
        ran_total: Their sum, in seconds.
        gauges: How the lane stands in the whole store, if it was looked at.
    """

    submitted: int = 0
    started: int = 0
    completed: int = 0
    failed: int = 0
    retried: int = 0
    timed_out: int = 0
    cancelled: int = 0
    dead_lettered: int = 0
    waited: tuple[int, ...] = ()
    waited_total: float = 0.0
    ran: tuple[int, ...] = ()
    ran_total: float = 0.0
    gauges: "LaneGauges | None" = None


class LaneGauges(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a lane stands in the whole store."""

    waiting: int = 0
    scheduled: int = 0
    in_flight: int = 0
    buried: int = 0
    held: int = 0
    oldest: float | None = None
    """For how many seconds the command that is next has been there."""


class WorkerMinute(msgspec.Struct, omit_defaults=True):
    """One minute of one worker."""

    at: int
    """When the minute began, as Unix time by the clock of the store."""
    worker: str
    """Tells workers apart, and nothing else."""
    lanes: dict[str, LaneMinute] = {}


COUNTERS: Final[tuple[str, ...]] = (
    "submitted",
    "started",
    "completed",
    "failed",
    "retried",
    "timed_out",
    "cancelled",
    "dead_lettered",
)
"""The fields of `LaneMinute` that count."""


class DurationBuckets:
    """Durations in buckets, for one minute.

    Attributes:
        fresh: Durations that are in no bucket yet: many at once cost less.
        total: Their sum in seconds, without the fresh ones.
    """

    __slots__ = ("buckets", "fresh", "total")

    def __init__(self) -> None:
        self.fresh: list[float] = []
        self.buckets: Counter[int] = Counter()
        self.total = 0.0

    def fold(self) -> None:
        """Put the fresh ones into their buckets."""
        fresh = self.fresh
        if fresh:
            if not min(fresh) >= 0:  # by a clock that was set back: that counts as 0
                fresh[:] = [seconds if seconds > 0 else 0.0 for seconds in fresh]
            self.total += sum(fresh)
            self.buckets.update(map(bisect_left, repeat(LIMITS), fresh))
            fresh.clear()

    def take(self) -> tuple[tuple[int, ...], float]:
        """What there is, as it is written, and its sum; nothing is left."""
        self.fold()
        taken = flat(self.buckets), round(self.total, 6)
        self.buckets.clear()
        self.total = 0.0
        return taken


def flat(buckets: Mapping[int, int]) -> tuple[int, ...]:
    """Buckets as they are written: a number, how many, the next number, how many."""
    return tuple(number for pair in sorted(buckets.items()) for number in pair)


def merged(buckets: Iterable[tuple[int, ...]]) -> dict[int, int]:
    """Buckets that were written, added up."""
    found: dict[int, int] = {}
    for one in buckets:
        for number, count in zip(one[::2], one[1::2], strict=False):
            found[number] = found.get(number, 0) + count
    return found


def quantile(buckets: Mapping[int, int], share: float) -> float | None:
    """The duration at that place among all, sorted, within about 10 %; None if there are none."""
    total = sum(buckets.values())
    if not total:
        return None
    rank = max(1, ceil(share * total))
    seen = 0
    for number, count in sorted(buckets.items()):
        if seen + count >= rank:
            # The middle of its bucket, which is off by the same share from both ends.
            return LIMITS[min(number, len(LIMITS) - 1)] * 2 ** (-0.5 / _PER_DOUBLING)
        seen += count
    raise AssertionError("a rank is at most the number of all")
