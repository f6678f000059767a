"""Traces and metrics of lanes and stores for OpenTelemetry.

Needs the extra: ``pip install 'leasedkeyq[otel]'``. The names are those of the semantic
conventions for messaging. These are not final yet, so the strings are kept here.
"""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from time import perf_counter

try:
    from opentelemetry import metrics, trace
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:
    raise ImportError(
        "traces and metrics for OpenTelemetry take opentelemetry-api: "
        "pip install 'leasedkeyq[otel]'"
    ) from error

from leasedkeyq.telemetry.instrument import (
    AttemptEnd,
    AttemptStart,
    Carrier,
    DeadLetteredCommand,
    StoreCall,
    StoreVerb,
    SubmittedCommand,
)
from leasedkeyq.telemetry.series import KnownNames, Series
from leasedkeyq.telemetry.stats import QueueStats

SYSTEM = "messaging.system"
OPERATION_NAME = "messaging.operation.name"
OPERATION_TYPE = "messaging.operation.type"
DESTINATION = "messaging.destination.name"
MESSAGE_ID = "messaging.message.id"
BATCH_COUNT = "messaging.batch.message_count"
ERROR_TYPE = "error.type"
COMMAND_TYPE = "leasedkeyq.command.type"
ATTEMPT = "leasedkeyq.command.attempt"
OUTCOME = "leasedkeyq.command.outcome"
LANE = "leasedkeyq.lane"
ITEM_OUTCOME = "leasedkeyq.item.outcome"

_SCOPE = "leasedkeyq"
_Attributes = dict[str, str | int]
_OPERATION_TYPES = {"put": "send", "claim": "receive"}
"""What the conventions call the verbs of a store, where they have a word."""


class OtelInstrument:
    """An `Instrument` and a `Tracing` that speak to OpenTelemetry, for lanes and for stores.

    Spans, whose names end with that of the lane:

    - ``send``: a submission. Its context is stored with the command.
    - ``receive``: a claim of commands from a store.
    - ``process``: one attempt. It is a child of ``send``, and linked to it, in whichever process
      it runs; spans that the command opens are its children.
    - ``settle``: telling a store how commands have ended.

    A store has a span for each call, named after the verb and the queue, such as ``put mail``; a
    call that names several queues has the verb alone.

    Metrics: ``messaging.client.sent.messages``, ``messaging.client.consumed.messages``,
    ``messaging.client.operation.duration`` (send and settle), ``messaging.process.duration``, and
    of our own ``leasedkeyq.command.waiting``, ``leasedkeyq.command.dead_lettered`` and the gauges
    ``leasedkeyq.lane.pending``, ``.active``, ``.scheduled``, ``.oldest_age`` and
    ``leasedkeyq.dead_letters``. The gauges show what the manager said when it was last asked for
    its statistics; a `QueueMonitor` asks it regularly. A store has ``leasedkeyq.store.items``, by
    queue and outcome (see `ItemOutcome`), ``leasedkeyq.store.call.duration`` and
    ``leasedkeyq.store.call.requests``, by verb.

    Args:
        tracer_provider: Takes the spans; the global one if None.
        meter_provider: Takes the metrics; the global one if None.
        child: False begins a new trace with each ``process`` and only links it to ``send``. That
            suits commands that run days after their submission.
        most: How many pairs of lane and command type the metrics tell apart, and how many queues.
            What is beyond it is counted together, as the type ``"(other)"`` of each lane and the
            queue ``"(other)"``.
    """

    def __init__(
        self,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
        *,
        child: bool = True,
        most: int = 10_000,
    ) -> None:
        self._tracer = trace.get_tracer(_SCOPE, tracer_provider=tracer_provider)
        self._propagator = TraceContextTextMapPropagator()
        self._child = child
        self._series = Series(_attributes, most)
        meter = metrics.get_meter(_SCOPE, meter_provider=meter_provider)
        self._sent = meter.create_counter(
            "messaging.client.sent.messages", "{message}", "Commands that were submitted."
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Attempts that were started."
        )
        self._operation = meter.create_histogram(
            "messaging.client.operation.duration", "s", "How long sending and settling takes."
        )
        self._process = meter.create_histogram(
            "messaging.process.duration", "s", "From the start of an attempt to its end."
        )
        self._waiting = meter.create_histogram(
            "leasedkeyq.command.waiting", "s", "From when an attempt could start until it did."
        )
        self._dead_lettered = meter.create_counter(
            "leasedkeyq.command.dead_lettered", "{command}", "Commands sent to the dead letters."
        )
        self._pending = meter.create_gauge(
            "leasedkeyq.lane.pending", "{command}", "Commands that could start."
        )
        self._active = meter.create_gauge(
            "leasedkeyq.lane.active", "{command}", "Commands that run."
        )
        self._scheduled = meter.create_gauge(
            "leasedkeyq.lane.scheduled", "{command}", "Commands that wait for their time."
        )
        self._oldest_age = meter.create_gauge(
            "leasedkeyq.lane.oldest_age", "s", "How long the oldest pending command has waited."
        )
        self._dead_letters = meter.create_gauge(
            "leasedkeyq.dead_letters", "{command}", "Letters in the dead letter queue."
        )
        self._queues = KnownNames(most)
        self._store_items = meter.create_counter(
            "leasedkeyq.store.items", "{message}", "Items of queues on stores, by what was done."
        )
        self._store_calls = meter.create_histogram(
            "leasedkeyq.store.call.duration", "s", "How long calls of stores take."
        )
        self._store_requests = meter.create_histogram(
            "leasedkeyq.store.call.requests", "{request}", "How many requests a call has."
        )

    # Metrics

    def submitted(self, command: SubmittedCommand) -> None:
        """Count a submission."""
        self._sent.add(1, {**self._series.get(command.lane, command.kind), OPERATION_NAME: "send"})

    def started(self, start: AttemptStart) -> None:
        """Count a start, and measure how long the command has waited."""
        attributes = self._series.get(start.lane, start.kind)
        self._consumed.add(1, {**attributes, OPERATION_NAME: "process"})
        self._waiting.record(max(start.waited, 0.0), attributes)

    def ended(self, end: AttemptEnd) -> None:
        """Measure how long an attempt took."""
        attributes = {
            **self._series.get(end.lane, end.kind),
            OPERATION_NAME: "process",
            OUTCOME: end.outcome,
        }
        if end.error is not None:
            attributes[ERROR_TYPE] = _name_of(end.error)
        self._process.record(max(end.ran, 0.0), attributes)

    def dead_lettered(self, command: DeadLetteredCommand) -> None:
        """Count a dead letter."""
        self._dead_lettered.add(1, self._series.get(command.lane, command.kind))

    def gauges(self, stats: QueueStats) -> None:
        """Set the gauges."""
        self._dead_letters.set(stats.dead_letters)
        for name, lane in stats.lanes.items():
            attributes = {LANE: name}
            self._pending.set(lane.pending, attributes)
            self._active.set(lane.active, attributes)
            self._scheduled.set(lane.scheduled, attributes)
            self._oldest_age.set(lane.oldest_age or 0.0, attributes)

    def called(self, call: StoreCall) -> None:
        """Count a call of a store."""
        if not call.given:
            attributes: dict[str, str] = {SYSTEM: _SCOPE, OPERATION_NAME: call.verb}
            self._store_requests.record(call.requests, attributes)
            if call.error is not None:
                attributes[ERROR_TYPE] = _name_of(call.error)
            self._store_calls.record(call.seconds, attributes)
        for queue, outcomes in call.items.items():
            destination = {SYSTEM: _SCOPE, DESTINATION: self._queues.known(queue)}
            for outcome, number in outcomes.items():
                self._store_items.add(number, {**destination, ITEM_OUTCOME: outcome})

    # Traces

    @contextmanager
    def calling(
        self, verb: StoreVerb, queues: tuple[str, ...], requests: int
    ) -> Generator[None, None, None]:
        """A span around a call of a store."""
        queue = queues[0] if len(queues) == 1 else ""
        kind = trace.SpanKind.PRODUCER if verb == "put" else trace.SpanKind.CLIENT
        with self._span(verb, queue, kind, {BATCH_COUNT: requests}):
            yield

    @contextmanager
    def submitting(self, lane: str, kind: str, command_id: str) -> Generator[Carrier, None, None]:
        """A span around a submission; gives its context."""
        attributes: _Attributes = {MESSAGE_ID: command_id, COMMAND_TYPE: kind}
        with self._timed("send", lane, trace.SpanKind.PRODUCER, attributes):
            carrier: Carrier = {}
            self._propagator.inject(carrier)
            yield carrier

    @contextmanager
    def submitting_many(self, lane: str, count: int) -> Generator[Carrier, None, None]:
        """A span around the submission of many commands at once; gives its context."""
        with self._timed("send", lane, trace.SpanKind.PRODUCER, {BATCH_COUNT: count}):
            carrier: Carrier = {}
            self._propagator.inject(carrier)
            yield carrier

    def claimed(self, lane: str, count: int) -> None:
        """A span for a claim that has just been made."""
        with self._span("receive", lane, trace.SpanKind.CLIENT, {BATCH_COUNT: count}):
            pass

    @contextmanager
    def processing(
        self, lane: str, kind: str, command_id: str, attempt: int, carrier: Mapping[str, str]
    ) -> Generator[None, None, None]:
        """A span around an attempt, joined to that of the submission."""
        # Not the context of whoever happens to start the attempt: it has nothing to do with it.
        context = self._propagator.extract(carrier, Context())
        origin = trace.get_current_span(context).get_span_context()
        attributes: _Attributes = {MESSAGE_ID: command_id, COMMAND_TYPE: kind, ATTEMPT: attempt}
        with self._span(
            "process",
            lane,
            trace.SpanKind.CONSUMER,
            attributes,
            context=context if self._child else Context(),
            links=[trace.Link(origin)],
        ):
            yield

    @contextmanager
    def settling(self, lane: str, count: int) -> Generator[None, None, None]:
        """A span around the settling of commands in a store."""
        with self._timed("settle", lane, trace.SpanKind.CLIENT, {BATCH_COUNT: count}):
            yield

    @contextmanager
    def _timed(
        self, operation: str, lane: str, kind: trace.SpanKind, attributes: _Attributes
    ) -> Generator[None, None, None]:
        """A span whose duration is measured, too."""
        start = perf_counter()
        measured: dict[str, str] = {
            SYSTEM: _SCOPE,
            DESTINATION: lane,
            OPERATION_NAME: operation,
            OPERATION_TYPE: operation,
        }
        try:
            with self._span(operation, lane, kind, attributes):
                yield
        except BaseException as error:
            measured[ERROR_TYPE] = _name_of(error)
            raise
        finally:
            self._operation.record(perf_counter() - start, measured)

    @contextmanager
    def _span(
        self,
        operation: str,
        lane: str,
        kind: trace.SpanKind,
        attributes: _Attributes,
        *,
        context: Context | None = None,
        links: Sequence[trace.Link] = (),
    ) -> Generator[None, None, None]:
        """The current span while it lasts; it is told of every exception that passes through."""
        named: _Attributes = {
            SYSTEM: _SCOPE,
            OPERATION_NAME: operation,
            OPERATION_TYPE: _OPERATION_TYPES.get(operation, operation),
        }
        if lane:
            named[DESTINATION] = lane
        span = self._tracer.start_span(
            f"{operation} {lane}".rstrip(), context, kind, {**named, **attributes}, links
        )
        with trace.use_span(span, True, record_exception=False, set_status_on_exception=False):
            try:
                yield
            except BaseException as error:
                # Cancellations, too: that is how a time-out looks from here.
                span.set_attribute(ERROR_TYPE, _name_of(error))
                span.set_status(trace.StatusCode.ERROR, type(error).__name__)
                with suppress(Exception):  # it may refuse to be printed
                    span.record_exception(error)
                raise


def _attributes(lane: str, kind: str) -> dict[str, str]:
    return {SYSTEM: _SCOPE, DESTINATION: lane, COMMAND_TYPE: kind}


def _name_of(error: BaseException) -> str:
    kind = type(error)
    return (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )
