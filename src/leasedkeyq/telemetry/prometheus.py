"""Metrics of lanes and stores for Prometheus.

Needs the extra: ``pip install 'leasedkeyq[prometheus]'``.
"""

from collections.abc import Sequence
from functools import cache
from threading import Lock
from typing import NamedTuple, get_args

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
except ImportError as error:
    raise ImportError(
        "metrics for Prometheus take prometheus-client: pip install 'leasedkeyq[prometheus]'"
    ) from error

from leasedkeyq.telemetry.instrument import (
    AttemptEnd,
    AttemptStart,
    DeadLetteredCommand,
    Outcome,
    StoreCall,
    SubmittedCommand,
)
from leasedkeyq.telemetry.metrics import ENDS
from leasedkeyq.telemetry.series import KnownNames, Series
from leasedkeyq.telemetry.stats import QueueStats

BUCKETS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0),
)
"""Seconds: from what an idle lane takes to what a long backlog takes."""


BATCH_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
"""Requests in a call of a store."""


class _StoreCounts:
    """The metrics of stores, which are there once a store is measured."""

    def __init__(
        self, registry: CollectorRegistry, namespace: str, buckets: Sequence[float]
    ) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, namespace, registry=registry)

        def histogram(name: str, text: str, ends: Sequence[float]) -> Histogram:
            return Histogram(name, text, ("verb",), namespace, registry=registry, buckets=ends)

        self.items = counter("store_items", "Items, by what was done.", "queue", "outcome")
        self.errors = counter("store_errors", "Calls that raised.", "verb", "error")
        self.seconds = histogram("store_call_seconds", "How long calls take.", buckets)
        self.requests = histogram("store_call_requests", "How many requests.", BATCH_BUCKETS)


class _Children(NamedTuple):
    """The metrics of one command type in one lane, kept: finding them costs more than counting."""

    submitted: Counter
    dead_lettered: Counter
    ended: dict[Outcome, Counter]
    waiting: Histogram
    running: Histogram
    end_to_end: Histogram


class PrometheusInstrument:
    """An `Instrument` and a `StoreInstrument` that count in a registry of prometheus-client.

    With the default namespace these are, for lanes, by ``lane`` and, except for the gauges,
    ``type``:

    - ``leasedkeyq_commands_submitted_total``,
    - ``leasedkeyq_attempts_ended_total``, also by ``outcome``,
    - ``leasedkeyq_commands_dead_lettered_total``,
    - ``leasedkeyq_command_waiting_seconds``, ``leasedkeyq_command_running_seconds`` and
      ``leasedkeyq_command_end_to_end_seconds``, histograms,
    - ``leasedkeyq_lane_pending``, ``leasedkeyq_lane_active``, ``leasedkeyq_lane_scheduled`` and
      ``leasedkeyq_lane_oldest_age_seconds``, gauges, and ``leasedkeyq_dead_letters`` without a
      lane.

    And for stores, from the first call of one:

    - ``leasedkeyq_store_items_total``, by ``queue`` and ``outcome`` (see `ItemOutcome`),
    - ``leasedkeyq_store_call_seconds`` and ``leasedkeyq_store_call_requests``, histograms by
      ``verb`` of how long calls take and how large their batches are,
    - ``leasedkeyq_store_errors_total``, by ``verb`` and ``error``.

    The gauges show what the manager said when it was last asked for its statistics; a
    `QueueMonitor` asks it regularly. Managers in one process share one instrument, as a registry
    takes each name once.

    Args:
        registry: Where the metrics are kept; the default registry of prometheus-client if None.
        namespace: What all names begin with.
        buckets: The upper ends of the buckets of the histograms, in seconds.
        most: How many pairs of lane and command type are told apart, and how many queues. What is
            beyond it is counted together, as the type ``"(other)"`` of each lane and the queue
            ``"(other)"``.

    Raises:
        ValueError: The registry has metrics of these names, from another instrument.
    """

    def __init__(
        self,
        registry: CollectorRegistry | None = None,
        *,
        namespace: str = "leasedkeyq",
        buckets: Sequence[float] = BUCKETS,
        most: int = 10_000,
    ) -> None:
        home = REGISTRY if registry is None else registry
        self._lock = Lock()
        self._stores = cache(lambda: _StoreCounts(home, namespace, buckets))
        self._queues = KnownNames(most)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, ("lane", "type", *labels), namespace, registry=home)

        def histogram(name: str, text: str) -> Histogram:
            labels = ("lane", "type")
            return Histogram(name, text, labels, namespace, registry=home, buckets=buckets)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(name, text, labels, namespace, registry=home)

        self._submitted = counter("commands_submitted", "Commands that were submitted.")
        self._ended = counter("attempts_ended", "Attempts that ended, by outcome.", "outcome")
        self._dead_lettered = counter(
            "commands_dead_lettered", "Commands that went to the dead letters."
        )
        self._waiting = histogram(
            "command_waiting_seconds", "From when an attempt could start until it did."
        )
        self._running = histogram(
            "command_running_seconds", "From the start of an attempt to its end."
        )
        self._end_to_end = histogram(
            "command_end_to_end_seconds",
            "From the submission of a command until it was done or given up.",
        )
        self._pending = gauge("lane_pending", "Commands that could start.", "lane")
        self._active = gauge("lane_active", "Commands that run.", "lane")
        self._scheduled = gauge("lane_scheduled", "Commands that wait for their time.", "lane")
        self._oldest_age = gauge(
            "lane_oldest_age_seconds", "How long the oldest pending command has waited.", "lane"
        )
        self._dead_letters = gauge("dead_letters", "Letters in the dead letter queue.")
        self._series = Series(self._children, most)

    def submitted(self, command: SubmittedCommand) -> None:
        """Count a submission."""
        self._series.get(command.lane, command.kind).submitted.inc()

    def started(self, start: AttemptStart) -> None:
        """Measure how long a command has waited."""
        self._series.get(start.lane, start.kind).waiting.observe(max(start.waited, 0.0))

    def ended(self, end: AttemptEnd) -> None:
        """Count an end, and measure how long it took."""
        children = self._series.get(end.lane, end.kind)
        children.ended[end.outcome].inc()
        children.running.observe(max(end.ran, 0.0))
        if end.outcome in ENDS:
            children.end_to_end.observe(max(end.total, 0.0))

    def dead_lettered(self, command: DeadLetteredCommand) -> None:
        """Count a dead letter."""
        self._series.get(command.lane, command.kind).dead_lettered.inc()

    def gauges(self, stats: QueueStats) -> None:
        """Set the gauges."""
        self._dead_letters.set(stats.dead_letters)
        for name, lane in stats.lanes.items():
            self._pending.labels(name).set(lane.pending)
            self._active.labels(name).set(lane.active)
            self._scheduled.labels(name).set(lane.scheduled)
            self._oldest_age.labels(name).set(lane.oldest_age or 0.0)

    def called(self, call: StoreCall) -> None:
        """Count a call of a store."""
        with self._lock:  # the first calls of two threads must not make the metrics twice
            counts = self._stores()
        if not call.given:
            counts.seconds.labels(call.verb).observe(call.seconds)
            counts.requests.labels(call.verb).observe(call.requests)
        if call.error is not None:
            counts.errors.labels(call.verb, type(call.error).__name__).inc()
        for queue, outcomes in call.items.items():
            name = self._queues.known(queue)
            for outcome, number in outcomes.items():
                counts.items.labels(name, outcome).inc(number)

    def _children(self, lane: str, kind: str) -> _Children:
        outcomes: tuple[Outcome, ...] = get_args(Outcome)
        return _Children(
            submitted=self._submitted.labels(lane, kind),
            dead_lettered=self._dead_lettered.labels(lane, kind),
            ended={outcome: self._ended.labels(lane, kind, outcome) for outcome in outcomes},
            waiting=self._waiting.labels(lane, kind),
            running=self._running.labels(lane, kind),
            end_to_end=self._end_to_end.labels(lane, kind),
        )
