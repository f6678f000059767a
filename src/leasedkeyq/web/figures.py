"""Figures of lanes: what the workers of a store did in the last hour, and in two days."""

import time
from collections.abc import Sequence
from typing import Final, TypeAlias

import msgspec
from markupsafe import Markup

from leasedkeyq.operations.live.series import SeriesReader
from leasedkeyq.operations.views import LaneSeries, LaneTotals
from leasedkeyq.web.charts import Track, chart, sparkline

HOUR: Final = 3600.0
TOTALS_OVER: Final = HOUR
MOST_ADDED: Final = 100
"""Lanes of which the charts of all lanes together are made."""

RANGES: Final = {
    "hour": ("1 h", HOUR, 60),
    "six": ("6 h", 6 * HOUR, 600),
    "two-days": ("2 days", 48 * HOUR, 1200),
}
"""What charts can show, by their names in addresses: words, seconds, seconds of a step."""
WIDEST: Final = "two-days"

Sparks: TypeAlias = dict[str, Markup]


class LaneFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What happened in a lane in the last hour.

    Attributes:
        totals: The sums and quantiles of the last hour.
        per_minute: Commands done in each minute of the last hour, the oldest first.
        failed_per_minute: Commands given up in each minute.
    """

    totals: LaneTotals
    per_minute: tuple[int, ...]
    failed_per_minute: tuple[int, ...]


class FigureBook:
    """The figures of all lanes of a store, made once a minute.

    Args:
        reader: Reads the minute values.
    """

    def __init__(self, reader: SeriesReader) -> None:
        self._reader = reader
        self._made_at: object = None
        self._figures: dict[str, LaneFigures] = {}
        self._charts: dict[tuple[str, str], Markup] = {}
        self._begin: float | None = None

    def lanes(self, read: int) -> dict[str, LaneFigures]:
        """The figures of each lane that has any.

        Args:
            read: How many results the reader has read in all: another number makes them anew.
        """
        self._renew(read)
        if not self._figures:
            since = time.time() - HOUR
            for name in self._reader.lanes():
                series = self._reader.lane(name, since=since)
                self._figures[name] = LaneFigures(
                    totals=self._reader.totals(name, TOTALS_OVER),
                    # Of the minute that runs now nothing is known yet.
                    per_minute=series.completed[:-1],
                    failed_per_minute=series.failed[:-1],
                )
        return self._figures

    def range_of(self, wanted: str) -> str:
        """A range by its name, or the one that what is known fits in."""
        if wanted in RANGES:
            return wanted
        if self._begin is None:
            self._begin = self._first()
        known = time.time() - self._begin
        return next((name for name, (_, seconds, _) in RANGES.items() if known < seconds), WIDEST)

    def charts(self, read: int, lane: str | None, span: str) -> Markup:
        """The charts of a lane, or of all lanes together.

        Args:
            read: As in `lanes`.
            lane: The lane; None for all.
            span: One of `RANGES`, as `range_of` tells it.
        """
        self._renew(read)
        key = (lane or "", span)
        if key not in self._charts:
            self._charts[key] = self._draw(lane, span)
        return self._charts[key]

    def _renew(self, read: int) -> None:
        now = (read, int(time.time() // 60))
        if now != self._made_at:
            self._made_at = now
            self._figures = {}
            self._charts = {}
            self._begin = None

    def _first(self) -> float:
        """When the first of all that is known began."""
        since = time.time() - RANGES[WIDEST][1]
        begins = [time.time()]
        for name in self._reader.lanes()[:MOST_ADDED]:
            series = self._reader.lane(name, since=since, step=600)
            place = next((at for at, number in enumerate(series.started) if number), None)
            if place is not None:
                begins.append(series.begin + place * series.step)
        return min(begins)

    def _draw(self, lane: str | None, span: str) -> Markup:
        _, seconds, step = RANGES[span]
        since = time.time() - seconds
        names = [lane] if lane is not None else self._reader.lanes()[:MOST_ADDED]
        parts = [self._reader.lane(name, since=since, step=step) for name in names]
        if not parts:
            return Markup("")
        first = parts[0]
        drawn = [
            chart(
                f"Commands in {_step_words(first.step)}",
                [
                    Track("done", _added([part.completed for part in parts]), "flight"),
                    Track("retried", _added([part.retried for part in parts]), "scheduled"),
                    Track("given up", _added([part.failed for part in parts]), "dead"),
                ],
                first.begin,
                first.step,
                kind="bars",
            ),
            chart(
                "How many there were",
                [
                    Track("waiting", _added([part.waiting for part in parts]), "waiting"),
                    Track("in flight", _added([part.in_flight for part in parts]), "flight"),
                    Track("dead", _added([part.buried for part in parts]), "dead"),
                ],
                first.begin,
                first.step,
            ),
        ]
        if lane is not None:
            drawn += [
                _quantile_chart("Waiting time of first attempts", first, "wait"),
                _quantile_chart("Running time of attempts", first, "run"),
            ]
        return Markup("").join(drawn)


def _quantile_chart(title: str, series: LaneSeries, what: str) -> Markup:
    colors = (("p50", "flight"), ("p95", "waiting"), ("p99", "scheduled"))
    tracks = [Track(name, getattr(series, f"{what}_{name}"), color) for name, color in colors]
    return chart(title, tracks, series.begin, series.step, unit="span")


def lane_spark(figures: LaneFigures) -> Markup:
    """The last hour of a lane: what was done, and over it what was given up."""
    label = "Done in each minute of the last hour"
    if sum(figures.failed_per_minute):
        label += ", and given up"
    return sparkline(figures.per_minute, label, "flight", over=figures.failed_per_minute)


def _added(series: Sequence[Sequence[float | None]]) -> list[float | None]:
    """The sums of several series, step by step; None where none of them knows anything."""
    sums: list[float | None] = []
    for step in zip(*series, strict=False):
        known = [value for value in step if value is not None]
        sums.append(sum(known) if known else None)
    return sums


def _step_words(step: int) -> str:
    return "each minute" if step <= 60 else f"each {step // 60} minutes"  # noqa: PLR2004
