"""`SeriesReader`: what the workers of a store did in the last two days, for charts."""

import time
from collections.abc import Callable, Iterable
from math import ceil
from typing import Any, Final

import msgspec

from leasedkeyq.lanes.durable.reports.minutes import (
    COUNTERS,
    GAUGES_HOLD,
    MINUTE,
    SERIES_KEPT,
    SERIES_QUEUE,
    LaneGauges,
    LaneMinute,
    WorkerMinute,
    flat,
    merged,
    quantile,
)
from leasedkeyq.operations.items.kept_results import KeptResults
from leasedkeyq.operations.views import LaneSeries, LaneTotals
from leasedkeyq.stores.codec import UNREADABLE
from leasedkeyq.stores.store import Store
from leasedkeyq.telemetry.series import OTHER

FINE: Final = 3 * 3600
"""Seconds for which single minutes are kept; what is older is added up."""
COARSE: Final = 600
"""Seconds of a part of the older time."""
MOST_LANES: Final = 1000
"""Lanes that are told apart; all further ones are added up as the lane ``"(other)"``."""


class SeriesReader:
    """The minute values of lanes, those of all workers added up.

    It reads all of them once, and then only what is new. It holds the minutes of the last three
    hours, and parts of ten minutes of the two days before: some hundred kilobytes for each lane.
    In the minute that runs now, and a few seconds longer, nothing is known of it yet.

    Args:
        store: The store whose workers are read.
        clock: Unix time. If it is behind that of the store, the newest minute counts as now.
    """

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.time) -> None:
        self._results = KeptResults(store, SERIES_QUEUE)
        self._clock = clock
        self._newest = 0
        self._fine: dict[str, dict[int, _Part]] = {}
        self._coarse: dict[str, dict[int, _Part]] = {}
        self._unread = 0

    async def refresh(self) -> int:
        """Read what is new; returns how many results that were.

        If it is cancelled or the store fails, what was read counts, and the next call goes on.

        Raises:
            StoreError: The store cannot be read.
        """
        read = 0
        async for page in self._results.new():
            for item in page:
                try:
                    minute = msgspec.json.decode(item.value, type=WorkerMinute)
                except UNREADABLE:
                    self._unread += 1  # a later version has written it
                    continue
                # The store knows when it was written. A worker that has claimed nothing yet knows
                # no clock but its own, which may be far ahead.
                written = item.ended_at or minute.at
                at = min(minute.at, int(written // MINUTE) * MINUTE)
                self._newest = max(self._newest, at)
                for name, lane in minute.lanes.items():
                    self._add(name, at, lane, written)
            read += len(page)
        self._drop()
        return read

    @property
    def unread(self) -> int:
        """How many results could not be read: workers of a later version have written them."""
        return self._unread

    def lanes(self) -> list[str]:
        """The lanes of which anything is known, in the order of their names."""
        return sorted(self._fine.keys() | self._coarse.keys())

    def lane(self, name: str, *, since: float, step: int = MINUTE) -> LaneSeries:
        """The values of a lane from a moment to now, in equal steps.

        Args:
            name: The lane. One that is not known has no values.
            since: When the first step begins, as Unix time; at most 48 hours ago. It is rounded
                down to a whole step.
            step: Seconds of a step: whole minutes. If `since` is more than three hours ago, it is
                ten minutes at least, and whole parts of ten minutes.
        """
        now = self._now()
        since = max(since, now - SERIES_KEPT)
        unit = MINUTE if since >= now - FINE + COARSE else COARSE
        step = max(1, ceil(step / unit)) * unit
        begin = int(since // step) * step
        number = max(1, ceil((now - begin) / step))
        steps = [_Part() for _ in range(number)]
        standing: list[tuple[int, LaneGauges]] = []
        for at, part in self._parts(name):
            if begin <= at < begin + number * step:
                steps[(at - begin) // step].add(part)
            if part.values.gauges is not None:
                standing.append((at, part.values.gauges))
        gauges = _carried(standing, begin, step, number)
        values: dict[str, Any] = {
            field: tuple(getattr(one.values, field) for one in steps) for field in COUNTERS
        }
        for field in ("waiting", "scheduled", "in_flight", "buried", "oldest"):
            values[field] = tuple(None if one is None else getattr(one, field) for one in gauges)
        values |= _quantiles("wait", [one.values.waited for one in steps])
        values |= _quantiles("run", [one.values.ran for one in steps])
        return LaneSeries(lane=name, begin=float(begin), step=step, **values)

    def totals(self, name: str | None, seconds: float) -> LaneTotals:
        """The values of a lane, or of all lanes, over the last `seconds`, at most 48 hours.

        Beyond three hours they are exact to ten minutes.
        """
        begin = self._now() - seconds
        total = _Part()
        names = self.lanes() if name is None else [name]
        parts = [
            part
            for lane in names
            for at, part in self._parts(lane)
            if at + (MINUTE if part.fine else COARSE) > begin
        ]
        total.add_all(parts)
        values = total.values
        waited, ran = merged([values.waited]), merged([values.ran])
        ended = values.completed + values.failed
        waits, runs = sum(waited.values()), sum(ran.values())
        counts: dict[str, Any] = {field: getattr(values, field) for field in COUNTERS}
        return LaneTotals(
            lane=name,
            seconds=seconds,
            **counts,
            throughput=values.completed / seconds,
            failure_rate=values.failed / ended if ended else 0.0,
            wait_mean=values.waited_total / waits if waits else None,
            wait_p50=quantile(waited, 0.5),
            wait_p95=quantile(waited, 0.95),
            wait_p99=quantile(waited, 0.99),
            run_mean=values.ran_total / runs if runs else None,
            run_p50=quantile(ran, 0.5),
            run_p95=quantile(ran, 0.95),
            run_p99=quantile(ran, 0.99),
        )

    def _now(self) -> float:
        return max(self._clock(), float(self._newest + MINUTE))

    def _parts(self, name: str) -> list[tuple[int, "_Part"]]:
        """What is known of a lane, oldest first."""
        return [
            *sorted(self._coarse.get(name, {}).items()),
            *sorted(self._fine.get(name, {}).items()),
        ]

    def _add(self, name: str, at: int, values: LaneMinute, written: float) -> None:
        known = self._fine.keys() | self._coarse.keys() if name not in self._fine else ()
        if known and name not in known and len(known) >= MOST_LANES:
            name = OTHER
        minutes = self._fine.setdefault(name, {})
        part = minutes.setdefault(at, _Part(fine=True))
        part.add(_Part(values, written))

    def _drop(self) -> None:
        """Add up what is no longer told by the minute, and forget what is too old."""
        now = self._now()
        fine, oldest = now - FINE, now - SERIES_KEPT
        for name, minutes in list(self._fine.items()):
            parts = self._coarse.setdefault(name, {})
            for at in sorted(at for at in minutes if at - at % COARSE + COARSE <= fine):
                parts.setdefault(at - at % COARSE, _Part()).add(minutes.pop(at))
            for at in [at for at in parts if at + COARSE <= oldest]:
                del parts[at]
            if not minutes and not parts:
                del self._fine[name], self._coarse[name]


class _Part:
    """The values of a lane over some time.

    Attributes:
        values: The values. Its gauges are the newest.
        written: When these were written.
        fine: Whether it is a single minute.
    """

    __slots__ = ("fine", "values", "written")

    def __init__(
        self, values: LaneMinute | None = None, written: float = 0.0, *, fine: bool = False
    ) -> None:
        self.values = LaneMinute() if values is None else values
        self.written = written
        self.fine = fine

    def add(self, other: "_Part") -> None:
        self.add_all([other])

    def add_all(self, others: Iterable["_Part"]) -> None:
        """Add what is known of the same lane, or of another one."""
        mine = self.values
        parts = [mine]
        for other in others:
            theirs = other.values
            parts.append(theirs)
            for field in COUNTERS:
                setattr(mine, field, getattr(mine, field) + getattr(theirs, field))
            mine.waited_total += theirs.waited_total
            mine.ran_total += theirs.ran_total
            if theirs.gauges is not None and other.written >= self.written:
                mine.gauges, self.written = theirs.gauges, other.written
        mine.waited = flat(merged([one.waited for one in parts]))
        mine.ran = flat(merged([one.ran for one in parts]))


def _quantiles(
    what: str, buckets: Iterable[tuple[int, ...]]
) -> dict[str, tuple[float | None, ...]]:
    found = [merged([one]) for one in buckets]
    return {
        f"{what}_p{percent}": tuple(quantile(one, percent / 100) for one in found)
        for percent in (50, 95, 99)
    }


def _carried(
    standing: Iterable[tuple[int, LaneGauges]], begin: int, step: int, number: int
) -> list[LaneGauges | None]:
    """The gauges at the end of each step: the newest, unless that is too old to tell."""
    found: list[LaneGauges | None] = []
    known = list(standing)
    index = 0
    newest: tuple[int, LaneGauges] | None = None
    for end in range(begin + step, begin + step * (number + 1), step):
        while index < len(known) and known[index][0] < end:
            newest = known[index]
            index += 1
        held = newest is not None and newest[0] + GAUGES_HOLD + MINUTE + COARSE >= end
        found.append(newest[1] if newest is not None and held else None)
    return found
