"""Counters and histograms in memory, against what sorting all durations says."""

import sys
from math import ceil, inf, nan
from typing import get_args

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leasedkeyq.telemetry import (
    AttemptEnd,
    AttemptStart,
    DeadLetteredCommand,
    Instrument,
    LaneMetrics,
    LatencySnapshot,
    Outcome,
    SeriesSnapshot,
    SubmittedCommand,
)
from leasedkeyq.telemetry.metrics import ERROR, HIGHEST, LOWEST, Histogram
from leasedkeyq.telemetry.series import OTHER
from leasedkeyq.telemetry.stats import QueueStats

# The machine may be busy.
busy = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


def of(durations: list[float]) -> LatencySnapshot:
    histogram = Histogram()
    for each in durations:
        histogram.record(each)
    return histogram.snapshot()


def exact(durations: list[float], share: float) -> float:
    return sorted(durations)[max(ceil(share * len(durations)), 1) - 1]


def only(metrics: LaneMetrics) -> SeriesSnapshot:
    (series,) = metrics.snapshot().series
    return series


class TestHistogram:
    def test_the_promised_error(self) -> None:
        assert ERROR < 0.05

    @busy
    @given(st.lists(st.floats(LOWEST, HIGHEST), min_size=1))
    def test_quantiles_are_within_the_error(self, durations: list[float]) -> None:
        snapshot = of(durations)
        for name, share in QUANTILES.items():
            assert getattr(snapshot, name) == pytest.approx(
                exact(durations, share), rel=ERROR * (1 + 1e-9), abs=LOWEST
            )

    @busy
    @given(st.lists(st.floats(0, 10), min_size=1).map(lambda powers: [10**-p for p in powers]))
    def test_on_every_scale(self, durations: list[float]) -> None:
        snapshot = of(durations)
        for name, share in QUANTILES.items():
            assert getattr(snapshot, name) == pytest.approx(
                exact(durations, share), rel=ERROR * (1 + 1e-9), abs=LOWEST
            )

    @busy
    @given(st.lists(st.floats(allow_nan=True, allow_infinity=True)))
    def test_anything_can_be_recorded(self, durations: list[float]) -> None:
        snapshot = of(durations)
        assert snapshot.count == len(durations)
        quantiles = [getattr(snapshot, name) for name in QUANTILES]
        assert quantiles == sorted(quantiles)
        assert all(0 <= quantile <= snapshot.longest for quantile in quantiles)

    def test_a_clock_that_was_set_back_counts_as_no_time(self) -> None:
        assert of([-5.0, nan]) == LatencySnapshot(count=2)

    def test_beyond_the_range(self) -> None:
        assert of([HIGHEST * 5]).p99 == HIGHEST * 5
        assert of([inf]).longest == inf
        assert of([LOWEST / 2]).p50 <= LOWEST

    def test_sum_mean_and_longest_are_exact(self) -> None:
        snapshot = of([1.0, 2.0, 6.0])
        assert (snapshot.count, snapshot.total, snapshot.mean, snapshot.longest) == (3, 9, 3, 6)
        assert of([]) == LatencySnapshot()
        assert LatencySnapshot().mean == 0

    def test_the_longest_is_never_exceeded(self) -> None:
        assert of([1.0] * 10).p99 <= 1.0

    def test_memory_does_not_grow(self) -> None:
        histogram = Histogram()
        before = sys.getsizeof(histogram._buckets)
        for number in range(100_000):
            histogram.record(number / 1000)
        assert sys.getsizeof(histogram._buckets) == before < 4000


class TestLaneMetrics:
    def test_it_is_an_instrument(self) -> None:
        instrument: Instrument = LaneMetrics()
        instrument.gauges(QueueStats())

    def test_the_life_of_a_command(self) -> None:
        metrics = LaneMetrics()
        metrics.submitted(SubmittedCommand("api", "send", "1"))
        metrics.started(AttemptStart("api", "send", "1", 1, 0.5))
        metrics.ended(AttemptEnd("api", "send", "1", 1, "retry", 1.0, 1.5, OSError()))
        metrics.started(AttemptStart("api", "send", "1", 2, 0.25))
        metrics.ended(AttemptEnd("api", "send", "1", 2, "completed", 2.0, 9.0, None))
        series = only(metrics)
        assert (series.lane, series.command_type) == ("api", "send")
        counts = (series.submitted, series.started, series.retried, series.completed)
        assert counts == (1, 2, 1, 1)
        assert (series.waiting.count, series.waiting.longest) == (2, 0.5)
        assert (series.running.count, series.running.total) == (2, 3.0)
        # The retry was not the end.
        assert (series.end_to_end.count, series.end_to_end.total) == (1, 9.0)

    @pytest.mark.parametrize("outcome", get_args(Outcome))
    def test_outcomes(self, outcome: Outcome) -> None:
        metrics = LaneMetrics()
        metrics.ended(AttemptEnd("api", "send", "1", 1, outcome, 1.0, 2.0, None))
        names = {
            "completed": {"completed"},
            "failed": {"failed"},
            "timeout": {"failed", "timed_out"},
            "retry": {"retried"},
            "cancelled": {"cancelled"},
            "lost": {"lost"},
        }[outcome]
        fields = msgspec.structs.asdict(only(metrics))
        counters = {name for name, value in fields.items() if isinstance(value, int) and value}
        assert counters == names
        final = outcome in {"completed", "failed", "timeout"}
        assert only(metrics).running.count == 1
        assert only(metrics).end_to_end.count == final

    def test_dead_letters(self) -> None:
        metrics = LaneMetrics()
        metrics.dead_lettered(DeadLetteredCommand("api", "send", "1"))
        assert only(metrics).dead_lettered == 1

    def test_lanes_and_types_are_told_apart(self) -> None:
        metrics = LaneMetrics()
        for lane, kind in (("a", "x"), ("a", "y"), ("b", "x"), ("a", "x")):
            metrics.submitted(SubmittedCommand(lane, kind, "1"))
        snapshot = metrics.snapshot()
        found = {(series.lane, series.command_type): series.submitted for series in snapshot.series}
        assert found == {("a", "x"): 2, ("a", "y"): 1, ("b", "x"): 1}
        assert snapshot.find("a", "x") is snapshot.series[0]
        assert snapshot.find("b", "y") is None

    def test_a_snapshot_does_not_change(self) -> None:
        metrics = LaneMetrics()
        metrics.submitted(SubmittedCommand("a", "x", "1"))
        snapshot = metrics.snapshot()
        metrics.submitted(SubmittedCommand("a", "x", "2"))
        assert snapshot.series[0].submitted == 1

    def test_a_snapshot_can_be_written_down(self) -> None:
        metrics = LaneMetrics()
        metrics.started(AttemptStart("a", "x", "1", 1, 0.5))
        text = msgspec.json.encode(metrics.snapshot())
        assert msgspec.json.decode(text)["series"][0]["waiting"]["count"] == 1

    def test_reset(self) -> None:
        metrics = LaneMetrics(most=1)
        metrics.submitted(SubmittedCommand("a", "x", "1"))
        metrics.reset()
        assert metrics.snapshot().series == ()
        metrics.submitted(SubmittedCommand("a", "y", "1"))
        assert only(metrics).command_type == "y"

    def test_types_beyond_the_limit_are_counted_together(self) -> None:
        metrics = LaneMetrics(most=3)
        for number in range(1000):
            metrics.submitted(SubmittedCommand("a", f"type {number}", "1"))
        metrics.submitted(SubmittedCommand("b", "type 0", "1"))
        metrics.submitted(SubmittedCommand("a", "type 1", "1"))
        found = {
            (series.lane, series.command_type): series.submitted
            for series in metrics.snapshot().series
        }
        assert found == {
            ("a", "type 0"): 1,
            ("a", "type 1"): 2,
            ("a", "type 2"): 1,
            ("a", OTHER): 997,
            ("b", OTHER): 1,
        }
        with pytest.raises(ValueError, match="most"):
            LaneMetrics(most=0)
