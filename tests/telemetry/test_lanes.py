"""What a manager of lanes tells its instruments, in memory and across processes."""

import asyncio
import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

from leasedkeyq.lanes import (
    CommandCancelledError,
    CommandTimeoutError,
    LaneConfig,
    MonitorConfig,
    QueueManager,
    QueueManagerBuilder,
    QueueMonitor,
    RetryPolicy,
)
from leasedkeyq.lanes.running import engine as running_engine
from leasedkeyq.telemetry import (
    AttemptStart,
    DeadLetteredCommand,
    SeriesSnapshot,
    SubmittedCommand,
)
from leasedkeyq.telemetry.otel import OtelInstrument
from leasedkeyq.telemetry.prometheus import PrometheusInstrument


def build(*instruments: Any, tracing: Any = None) -> QueueManager:
    config = LaneConfig(0, 2, timeout=5, retry_policy=RetryPolicy.fixed(1, 10))
    builder = QueueManagerBuilder().with_lane("api", config, 0).with_dlq(10)
    builder.with_metrics(*instruments)
    if tracing is not None:
        builder.with_tracing(tracing)
    manager = builder.build()

    @manager.command("work")
    async def work(seconds: float, fail: bool = False) -> float:
        await asyncio.sleep(seconds)
        if fail:
            raise ValueError("no")
        return seconds

    return manager


def work(manager: QueueManager, seconds: float, *, fail: bool = False) -> Any:
    registered: Any = manager.queue().registry.types["work"]
    return registered(seconds, fail=fail)


def series(manager: QueueManager) -> SeriesSnapshot:
    assert manager.metrics is not None
    found = manager.metrics.snapshot().find("api", "work")
    assert found is not None
    return found


async def test_every_kind_of_end_is_counted() -> None:
    manager = build()
    async with manager:
        done = await manager.submit("api", work(manager, 1))
        assert await done == 1
        with pytest.raises(ValueError, match="no"):
            await (await manager.submit("api", work(manager, 1, fail=True)))
        with pytest.raises(CommandTimeoutError):
            await (await manager.submit("api", work(manager, 99)))
        cancelled = await manager.submit("api", work(manager, 4))
        await asyncio.sleep(1)
        await cancelled.cancel()
        with pytest.raises(CommandCancelledError):
            await cancelled
    found = series(manager)
    assert (found.submitted, found.completed, found.cancelled) == (4, 1, 1)
    assert (found.failed, found.timed_out, found.retried, found.dead_lettered) == (2, 1, 2, 2)
    # One, two of each that was retried, and the one that was cancelled.
    assert found.started == found.running.count == 6
    assert found.running.longest == 5
    # The first took 1 s, the others twice their time and the 10 s between.
    assert (found.end_to_end.count, found.end_to_end.total) == (3, 1 + 12 + 20)


async def test_an_instrument_that_fails_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def __getattr__(self, name: str) -> Any:
            raise ZeroDivisionError(name)

    registry = CollectorRegistry()
    manager = build(Broken(), PrometheusInstrument(registry))
    async with manager:
        assert await (await manager.submit("api", work(manager, 1))) == 1
        await manager.stats()
    sample = registry.get_sample_value(
        "leasedkeyq_attempts_ended_total",
        {"lane": "api", "type": "work", "outcome": "completed"},
    )
    assert sample == 1
    assert series(manager).completed == 1
    assert {record.levelno for record in caplog.records} == {logging.ERROR}
    for name in ("submitted", "started", "ended", "gauges"):
        assert f"ZeroDivisionError: {name}" in caplog.text


async def test_every_event_is_one_struct() -> None:
    told: list[Any] = []

    class Notes:
        def __getattr__(self, name: str) -> Any:
            return lambda event: told.append((name, event))

    manager = build(Notes())
    async with manager:
        with pytest.raises(ValueError, match="no"):
            await (await manager.submit("api", work(manager, 1, fail=True), delay=2))
    events = [(name, event) for name, event in told if name != "gauges"]
    command = ("api", "work", events[0][1].command_id)
    assert command[2].startswith("1-")
    assert [(name, event) for name, event in events if name != "ended"] == [
        ("submitted", SubmittedCommand(*command)),
        ("started", AttemptStart(*command, attempt=1, waited=0.0)),
        ("started", AttemptStart(*command, attempt=2, waited=0.0)),
        ("dead_lettered", DeadLetteredCommand(*command)),
    ]
    ends = [event for name, event in events if name == "ended"]
    assert [(end.attempt, end.outcome, end.ran, end.total) for end in ends] == [
        (1, "retry", 1.0, 3.0),
        (2, "failed", 1.0, 14.0),
    ]


async def test_no_event_is_made_for_a_manager_without_instruments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Metrics in memory are counted in place, which costs half as much."""

    def refuse(*_: object) -> None:
        raise AssertionError("nobody listens")

    for name in ("SubmittedCommand", "AttemptStart", "AttemptEnd", "DeadLetteredCommand"):
        monkeypatch.setattr(running_engine, name, refuse)
    manager = build()
    async with manager:
        assert await (await manager.submit("api", work(manager, 1))) == 1
        with pytest.raises(ValueError, match="no"):
            await (await manager.submit("api", work(manager, 1, fail=True)))
    assert (series(manager).completed, series(manager).dead_lettered) == (1, 1)


async def test_a_monitor_keeps_the_gauges_fresh() -> None:
    registry = CollectorRegistry()
    manager = build(PrometheusInstrument(registry))

    def gauge(name: str) -> float | None:
        return registry.get_sample_value(f"leasedkeyq_lane_{name}", {"lane": "api"})

    async with manager, QueueMonitor(manager, MonitorConfig(interval=1)):
        handles = [await manager.submit("api", work(manager, 4)) for _ in range(5)]
        handles.append(await manager.submit("api", work(manager, 1), delay=60))
        await asyncio.sleep(2.5)
        assert (gauge("pending"), gauge("active"), gauge("scheduled")) == (3, 2, 1)
        assert gauge("oldest_age_seconds") == 2
        await asyncio.sleep(20)
        assert (gauge("pending"), gauge("active"), gauge("scheduled")) == (0, 0, 1)


def traced() -> tuple[OtelInstrument, InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return OtelInstrument(provider), exporter


async def test_each_attempt_is_a_span_of_the_submission() -> None:
    otel, exporter = traced()
    manager = build(otel, tracing=otel)
    async with manager:
        with pytest.raises(ValueError, match="no"):
            await (await manager.submit("api", work(manager, 1, fail=True)))
    send, *attempts = exporter.get_finished_spans()
    assert send.name == "send api"
    assert [span.name for span in attempts] == ["process api"] * 2
    for number, span in enumerate(attempts, start=1):
        attributes = span.attributes or {}
        assert attributes["leasedkeyq.command.attempt"] == number
        assert attributes["error.type"] == "ValueError"
        parent, sender = span.parent, send.get_span_context()
        assert parent is not None
        assert sender is not None
        assert (parent.trace_id, parent.span_id) == (sender.trace_id, sender.span_id)


@pytest.mark.parametrize("url", [None, "memory://"])
async def test_commands_of_one_call_have_one_submission(url: str | None) -> None:
    otel, exporter = traced()
    builder = QueueManagerBuilder().with_lane("api", LaneConfig(0, 2), 0).with_tracing(otel)
    manager = (builder if url is None else builder.with_storage(url)).build()

    @manager.command("work")
    async def work(seconds: float) -> float:
        return seconds

    async with manager:
        await manager.submit_many("api", [work(1), work(2), work(3)])
        await manager.drain()
    sends = [span for span in exporter.get_finished_spans() if span.name == "send api"]
    (sender,) = [span.get_span_context() for span in sends]
    assert sender is not None
    parents = [s.parent for s in exporter.get_finished_spans() if s.name == "process api"]
    assert [parent and parent.span_id for parent in parents] == [sender.span_id] * 3


SUBMIT = """
import asyncio, json, sys
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from leasedkeyq.lanes import LaneConfig, QueueManagerBuilder
from leasedkeyq.telemetry.otel import OtelInstrument

exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))

async def main():
    builder = QueueManagerBuilder().with_lane("api", LaneConfig(0, 2), 0).with_storage(sys.argv[1])
    manager = builder.with_tracing(OtelInstrument(provider)).build()

    @manager.command("work")
    async def work(seconds: float) -> float:
        raise AssertionError("not here")

    with provider.get_tracer("web").start_as_current_span("request"):
        await manager.submit("api", work(0.0), key="the key")
    await manager.close()

asyncio.run(main())
request = exporter.get_finished_spans()[-1].context
send = exporter.get_finished_spans()[0]
assert send.name == "send api", send.name
print(json.dumps([request.trace_id, send.context.span_id]))
"""


def test_a_trace_goes_on_in_the_process_that_runs_the_command(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    done = subprocess.run(
        [sys.executable, "-c", SUBMIT, url],
        stdout=subprocess.PIPE,
        encoding="utf-8",
        timeout=100,
        check=True,
    )
    trace_id, sender = json.loads(done.stdout)
    otel, exporter = traced()

    async def run() -> None:
        builder = QueueManagerBuilder().with_lane("api", LaneConfig(0, 2), 0).with_storage(url)
        manager = builder.with_tracing(otel).build()

        @manager.command("work")
        async def work(seconds: float) -> float:
            return seconds

        assert work.command_type == "work"
        async with manager:
            await manager.drain(90)

    asyncio.run(run())
    spans = {span.name.partition(" ")[0]: span for span in exporter.get_finished_spans()}
    assert set(spans) == {"receive", "process", "settle"}
    process = spans["process"]
    context = process.get_span_context()
    assert context is not None
    assert context.trace_id == trace_id
    assert process.parent is not None
    assert process.parent.span_id == sender
    assert [link.context.span_id for link in process.links] == [sender]
    for name in ("receive", "settle"):
        assert (spans[name].attributes or {})["messaging.batch.message_count"] == 1
        assert (spans[name].attributes or {})["messaging.destination.name"] == "api"
