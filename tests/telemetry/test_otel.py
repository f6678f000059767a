"""Spans and metrics as the real SDK sees them."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, SpanKind, StatusCode

from leasedkeyq.telemetry import (
    AttemptEnd,
    AttemptStart,
    DeadLetteredCommand,
    Instrument,
    SubmittedCommand,
    Tracing,
)
from leasedkeyq.telemetry.otel import OtelInstrument
from leasedkeyq.telemetry.stats import LaneStats, QueueStats


class Rig:
    """An instrument and what it has told the SDK."""

    def __init__(self, **options: Any) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        meters = MeterProvider([self.reader])
        self.instrument = OtelInstrument(self.tracers, meters, **options)

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        return self.exporter.get_finished_spans()

    @property
    def span(self) -> ReadableSpan:
        (span,) = self.spans
        return span

    def points(self) -> dict[str, list[Any]]:
        """The data points of each metric."""
        data = self.reader.get_metrics_data()
        if data is None:
            return {}
        return {
            metric.name: list(metric.data.data_points)
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


@pytest.fixture
def rig() -> Rig:
    return Rig()


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def context(span: ReadableSpan) -> SpanContext:
    found = span.get_span_context()
    assert found is not None
    return found


def span_id(span: ReadableSpan) -> int:
    return context(span).span_id


def trace_id(span: ReadableSpan) -> int:
    return context(span).trace_id


class TestSpans:
    def test_it_is_both(self, rig: Rig) -> None:
        told: tuple[Instrument, Tracing] = (rig.instrument, rig.instrument)
        assert len(told) == 2

    def test_send(self, rig: Rig) -> None:
        with rig.instrument.submitting("api", "mail", "7") as carrier:
            pass
        assert rig.span.name == "send api"
        assert rig.span.kind is SpanKind.PRODUCER
        assert rig.span.status.status_code is StatusCode.UNSET
        assert attributes(rig.span) == {
            "messaging.system": "leasedkeyq",
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "messaging.destination.name": "api",
            "messaging.message.id": "7",
            "leasedkeyq.command.type": "mail",
        }
        assert list(carrier) == ["traceparent"]
        ids = f"00-{trace_id(rig.span):032x}-{span_id(rig.span):016x}-"
        assert carrier["traceparent"].startswith(ids)

    def test_send_belongs_to_the_trace_of_whoever_submits(self, rig: Rig) -> None:
        with (
            rig.tracers.get_tracer("web").start_as_current_span("request"),
            rig.instrument.submitting("api", "mail", "7"),
        ):
            pass
        send, request = rig.spans
        assert send.parent is not None
        assert send.parent.span_id == span_id(request)

    def test_many_are_sent_with_one_span(self, rig: Rig) -> None:
        with rig.instrument.submitting_many("api", 5) as carrier:
            pass
        assert rig.span.name == "send api"
        assert rig.span.kind is SpanKind.PRODUCER
        assert attributes(rig.span) == {
            "messaging.system": "leasedkeyq",
            "messaging.operation.name": "send",
            "messaging.operation.type": "send",
            "messaging.destination.name": "api",
            "messaging.batch.message_count": 5,
        }
        assert carrier["traceparent"].split("-")[2] == f"{span_id(rig.span):016x}"

    def test_receive(self, rig: Rig) -> None:
        rig.instrument.claimed("api", 5)
        assert rig.span.name == "receive api"
        assert rig.span.kind is SpanKind.CLIENT
        assert attributes(rig.span) == {
            "messaging.system": "leasedkeyq",
            "messaging.operation.name": "receive",
            "messaging.operation.type": "receive",
            "messaging.destination.name": "api",
            "messaging.batch.message_count": 5,
        }

    def test_settle(self, rig: Rig) -> None:
        with rig.instrument.settling("api", 3):
            pass
        assert rig.span.name == "settle api"
        assert rig.span.kind is SpanKind.CLIENT
        assert attributes(rig.span)["messaging.batch.message_count"] == 3
        assert attributes(rig.span)["messaging.operation.type"] == "settle"

    def test_process_is_a_child_of_send_and_linked_to_it(self, rig: Rig) -> None:
        with rig.instrument.submitting("api", "mail", "7") as carrier:
            pass
        with rig.instrument.processing("api", "mail", "7", 2, carrier):
            pass
        send, process = rig.spans
        assert process.name == "process api"
        assert process.kind is SpanKind.CONSUMER
        assert attributes(process)["leasedkeyq.command.attempt"] == 2
        assert attributes(process)["messaging.message.id"] == "7"
        assert trace_id(process) == trace_id(send)
        assert process.parent is not None
        assert process.parent.span_id == span_id(send)
        assert [link.context.span_id for link in process.links] == [span_id(send)]

    def test_a_new_trace_with_a_link(self) -> None:
        rig = Rig(child=False)
        with rig.instrument.submitting("api", "mail", "7") as carrier:
            pass
        with rig.instrument.processing("api", "mail", "7", 1, carrier):
            pass
        send, process = rig.spans
        assert process.parent is None
        assert trace_id(process) != trace_id(send)
        assert [link.context.trace_id for link in process.links] == [trace_id(send)]

    def test_spans_of_the_command_are_children_of_process(self, rig: Rig) -> None:
        with (
            rig.instrument.processing("api", "mail", "7", 1, {}),
            rig.tracers.get_tracer("mail").start_as_current_span("smtp"),
        ):
            pass
        smtp, process = rig.spans
        assert smtp.parent is not None
        assert smtp.parent.span_id == span_id(process)

    async def test_also_across_awaits_and_side_by_side(self, rig: Rig) -> None:
        tracer = rig.tracers.get_tracer("mail")

        async def run(number: int) -> None:
            with rig.instrument.processing("api", f"kind {number}", str(number), 1, {}):
                await asyncio.sleep(10 - number)
                with tracer.start_as_current_span(f"smtp {number}"):
                    await asyncio.sleep(number)

        await asyncio.gather(*(run(number) for number in range(5)))
        by_id = {span_id(span): span for span in rig.spans}
        inner = [span for span in rig.spans if span.name.startswith("smtp")]
        assert len(inner) == 5
        for span in inner:
            assert span.parent is not None
            outer = by_id[span.parent.span_id]
            assert attributes(outer)["messaging.message.id"] == span.name.removeprefix("smtp ")

    def test_whoever_starts_an_attempt_is_not_its_parent(self, rig: Rig) -> None:
        with (
            rig.tracers.get_tracer("web").start_as_current_span("request"),
            rig.instrument.processing("api", "mail", "7", 1, {}),
        ):
            pass
        process, _ = rig.spans
        assert process.parent is None

    @pytest.mark.parametrize(
        "carrier",
        [{}, {"traceparent": "nonsense"}, {"traceparent": ""}, {"other": "x"}],
    )
    def test_a_carrier_that_says_nothing(self, rig: Rig, carrier: dict[str, str]) -> None:
        with rig.instrument.processing("api", "mail", "7", 1, carrier):
            pass
        assert rig.span.parent is None
        assert not rig.span.links

    def test_the_trace_state_travels_too(self, rig: Rig) -> None:
        parent = {
            "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "tracestate": "vendor=value",
        }
        with (
            rig.instrument.processing("api", "mail", "1", 1, parent),
            rig.instrument.submitting("api", "mail", "2") as carrier,
        ):
            pass
        assert carrier["traceparent"].split("-")[1] == parent["traceparent"].split("-")[1]
        assert carrier["tracestate"] == "vendor=value"

    @pytest.mark.parametrize(
        "error, name",
        [
            (ValueError("no"), "ValueError"),
            (asyncio.CancelledError(), "asyncio.exceptions.CancelledError"),
            (KeyboardInterrupt(), "KeyboardInterrupt"),
            (json.JSONDecodeError("no", "", 0), "json.decoder.JSONDecodeError"),
        ],
    )
    @pytest.mark.parametrize("operation", ["send", "send many", "process", "settle"])
    def test_an_exception_is_recorded_and_passes_through(
        self, rig: Rig, operation: str, error: BaseException, name: str
    ) -> None:
        surrounding: dict[str, Callable[[], AbstractContextManager[object]]] = {
            "send": lambda: rig.instrument.submitting("api", "mail", "7"),
            "process": lambda: rig.instrument.processing("api", "mail", "7", 1, {}),
            "send many": lambda: rig.instrument.submitting_many("api", 2),
            "settle": lambda: rig.instrument.settling("api", 1),
        }
        with pytest.raises(type(error)) as raised, surrounding[operation]():
            raise error
        assert raised.value is error
        assert rig.span.status.status_code is StatusCode.ERROR
        assert attributes(rig.span)["error.type"] == name
        (event,) = rig.span.events
        assert event.name == "exception"
        assert (event.attributes or {})["exception.type"] == name

    def test_an_exception_that_cannot_be_printed(self, rig: Rig) -> None:
        class Unprintable(Exception):  # noqa: N818 - a bad one on purpose
            def __str__(self) -> str:
                raise ZeroDivisionError

        with (
            pytest.raises(Unprintable),
            rig.instrument.processing("api", "mail", "7", 1, {}),
        ):
            raise Unprintable
        assert rig.span.status.status_code is StatusCode.ERROR

    def test_nothing_stays_current(self, rig: Rig) -> None:
        with rig.instrument.submitting("api", "mail", "7") as carrier:
            pass
        with rig.instrument.processing("api", "mail", "7", 1, carrier):
            pass
        assert not trace.get_current_span().get_span_context().is_valid


PROCESS = """
import json, sys
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from leasedkeyq.telemetry.otel import OtelInstrument

exporter = InMemorySpanExporter()
tracers = TracerProvider()
tracers.add_span_processor(SimpleSpanProcessor(exporter))
instrument = OtelInstrument(tracers)
with instrument.processing("api", "mail", "7", 1, json.load(sys.stdin)):
    pass
(span,) = exporter.get_finished_spans()
print(json.dumps([span.context.trace_id, span.parent.span_id, span.links[0].context.span_id]))
"""


def test_another_process_goes_on_with_the_trace(rig: Rig) -> None:
    with rig.instrument.submitting("api", "mail", "7") as carrier:
        stored = json.dumps(carrier)
    done = subprocess.run(
        [sys.executable, "-c", PROCESS],
        input=stored,
        capture_output=True,
        encoding="utf-8",
        timeout=100,
        check=True,
    )
    sender = span_id(rig.span)
    assert json.loads(done.stdout) == [trace_id(rig.span), sender, sender]


class TestMetrics:
    def test_the_life_of_a_command(self, rig: Rig) -> None:
        instrument = rig.instrument
        instrument.submitted(SubmittedCommand("api", "mail", "7"))
        instrument.started(AttemptStart("api", "mail", "7", 1, 0.5))
        instrument.ended(AttemptEnd("api", "mail", "7", 1, "failed", 2.0, 3.0, OSError()))
        instrument.dead_lettered(DeadLetteredCommand("api", "mail", "7"))
        points = rig.points()
        common = {
            "messaging.system": "leasedkeyq",
            "messaging.destination.name": "api",
            "leasedkeyq.command.type": "mail",
        }
        (sent,) = points["messaging.client.sent.messages"]
        assert sent.value == 1
        assert sent.attributes == {**common, "messaging.operation.name": "send"}
        (consumed,) = points["messaging.client.consumed.messages"]
        assert consumed.value == 1
        assert consumed.attributes == {**common, "messaging.operation.name": "process"}
        (waiting,) = points["leasedkeyq.command.waiting"]
        assert (waiting.count, waiting.sum, waiting.attributes) == (1, 0.5, common)
        (process,) = points["messaging.process.duration"]
        assert (process.count, process.sum) == (1, 2.0)
        assert process.attributes == {
            **common,
            "messaging.operation.name": "process",
            "leasedkeyq.command.outcome": "failed",
            "error.type": "OSError",
        }
        (dead,) = points["leasedkeyq.command.dead_lettered"]
        assert (dead.value, dead.attributes) == (1, common)

    def test_operations_are_timed(self, rig: Rig) -> None:
        with rig.instrument.submitting("api", "mail", "7"):
            pass
        with pytest.raises(OSError, match="gone"), rig.instrument.settling("api", 3):
            raise OSError("gone")
        points = rig.points()["messaging.client.operation.duration"]
        found = {
            (point.attributes["messaging.operation.name"], point.attributes.get("error.type"))
            for point in points
        }
        assert found == {("send", None), ("settle", "OSError")}
        assert all(point.count == 1 and point.sum >= 0 for point in points)

    def test_units(self, rig: Rig) -> None:
        rig.instrument.started(AttemptStart("api", "mail", "7", 1, 0.5))
        data = rig.reader.get_metrics_data()
        assert data is not None
        (resource,) = data.resource_metrics
        (scope,) = resource.scope_metrics
        units = {metric.name: metric.unit for metric in scope.metrics}
        assert scope.scope.name == "leasedkeyq"
        assert units == {
            "messaging.client.consumed.messages": "{message}",
            "leasedkeyq.command.waiting": "s",
        }

    def test_gauges(self, rig: Rig) -> None:
        api = LaneStats(pending=3, active=2, scheduled=1, oldest_age=7.5)
        rig.instrument.gauges(QueueStats(dead_letters=4, lanes={"api": api, "b": LaneStats()}))
        points = rig.points()
        found = {
            name: {point.attributes.get("leasedkeyq.lane"): point.value for point in each}
            for name, each in points.items()
        }
        assert found == {
            "leasedkeyq.dead_letters": {None: 4},
            "leasedkeyq.lane.pending": {"api": 3, "b": 0},
            "leasedkeyq.lane.active": {"api": 2, "b": 0},
            "leasedkeyq.lane.scheduled": {"api": 1, "b": 0},
            "leasedkeyq.lane.oldest_age": {"api": 7.5, "b": 0},
        }

    def test_a_clock_that_was_set_back_counts_as_no_time(self, rig: Rig) -> None:
        rig.instrument.started(AttemptStart("api", "mail", "7", 1, -5))
        rig.instrument.ended(AttemptEnd("api", "mail", "7", 1, "completed", -5, -5, None))
        points = rig.points()
        assert points["leasedkeyq.command.waiting"][0].sum == 0
        assert points["messaging.process.duration"][0].sum == 0

    def test_types_beyond_the_limit_are_counted_together(self) -> None:
        rig = Rig(most=2)
        for number in range(100):
            rig.instrument.submitted(SubmittedCommand("api", f"type {number}", "1"))
        points = rig.points()["messaging.client.sent.messages"]
        found = {point.attributes["leasedkeyq.command.type"]: point.value for point in points}
        assert found == {"type 0": 1, "type 1": 1, "(other)": 98}


def test_without_an_sdk_nothing_happens() -> None:
    instrument = OtelInstrument()
    instrument.submitted(SubmittedCommand("api", "mail", "7"))
    instrument.gauges(QueueStats(lanes={"api": LaneStats()}))
    instrument.claimed("api", 1)
    with instrument.submitting("api", "mail", "7") as carrier:
        assert carrier == {}
    with instrument.processing("api", "mail", "7", 1, carrier), instrument.settling("api", 1):
        pass
