"""Stores tell instruments what their calls do."""

import asyncio
import logging
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.trace import SpanKind, StatusCode
from prometheus_client import CollectorRegistry

from leasedkeyq import MemoryStore, Store, StoreClosedError, StoreError, connect
from leasedkeyq.model.requests import (
    Ack,
    Amend,
    Bury,
    Cancel,
    Claim,
    Claimed,
    Discard,
    Extend,
    Limits,
    Placed,
    Purge,
    Put,
    Release,
    Requeue,
)
from leasedkeyq.telemetry import StoreCall, StoreMetrics, StoreVerb
from leasedkeyq.telemetry.prometheus import PrometheusInstrument
from leasedkeyq.telemetry.series import OTHER
from tests.servers.urls import empty_store
from tests.telemetry.test_otel import Rig
from tests.telemetry.test_prometheus import scrape

KINDS = ["memory", "file", "sqlite", "postgresql", "redis"]


class Noted:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.calls: list[StoreCall] = []

    def called(self, call: StoreCall) -> None:
        self.calls.append(call)

    @property
    def last(self) -> StoreCall:
        return self.calls[-1]


async def claimed(store: Store, key: str) -> Claimed:
    [[item]] = await store.claim([Claim((("mail", 1),), 1, key, 60.0)])
    return item


async def live(store: Store) -> None:
    """Something of everything."""
    await store.put([Put("mail", (("a", b"1"), ("b", b"1"))), Put("bills", (("c", b"1"),))])
    await store.put([Put("mail", (("", b"1"),)), Put("mail", (("d", b"1"), ("e", b"1")))])
    a, b, d, e = [await claimed(store, key) for key in "abde"]
    assert await store.claim([Claim((("mail", 1),), 1, "a"), Claim((("none", 1),))]) == [(), ()]
    await store.settle([Extend("mail", "a", a.token, 60.0), Release("mail", "b", b.token)])
    answers = await store.settle([Ack("mail", "a", a.token), Ack("mail", "a", a.token)])
    assert isinstance(answers[1], Exception)
    [buried, also] = await store.settle([Bury("mail", "d", d.token), Bury("mail", "e", e.token)])
    assert isinstance(buried, int)
    assert isinstance(also, int)
    await store.settle([Requeue("mail", buried), Discard("mail", also), Cancel("mail", "absent")])
    gone = Amend("mail", "b", 10**6, b"2")
    assert await store.settle([Amend("mail", "b", b.id, b"2"), gone]) == [True, False]
    await store.edit("mail", lambda _: [Put("mail", (("f", b"1"),)), Cancel("mail", "b")])
    await store.settle([Purge("bills", part="all")])


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_done_to_items_is_counted_by_queue(kind: str, tmp_path: Path) -> None:
    async def main(url: str) -> None:
        metrics, noted = StoreMetrics(), Noted()
        async with connect(url) as store:
            store.instrument(metrics, noted)
            await live(store)
            await store.sweep(["mail", "bills"])
            await store.count()
            await store.count(["mail"])
            await store.heads(["mail"])
            await store.look("mail", ["a", "b", "f"])
            await store.browse("mail", prefix="f")
            await store.results("mail", [1, 2])
        found = metrics.snapshot()
        assert found.items == {
            "mail": {
                "put": 5,
                "refused": 2,
                "claimed": 4,
                "extended": 1,
                "released": 1,
                "acknowledged": 1,
                "buried": 2,
                "requeued": 1,
                "discarded": 1,
                "cancelled": 1,
                "amended": 1,
            },
            "bills": {"put": 1, "purged": 1},
        }
        counted = {verb: (v.seconds.count, v.requests) for verb, v in found.verbs.items()}
        assert counted == {
            "put": (2, 4),
            "claim": (5, 6),
            "settle": (6, 12),
            "edit": (1, 2),
            "sweep": (1, 2),
            "count": (2, 1),
            "heads": (1, 1),
            "look": (1, 3),
            "browse": (1, 1),
            "results": (1, 2),
        }
        assert found.verbs["settle"].most_requests == 3
        assert not any(v.errors for v in found.verbs.values())
        queues = {call.verb: call.queues for call in noted.calls}
        assert queues["sweep"] == ("mail", "bills")
        assert queues["browse"] == queues["edit"] == ("mail",)

    if kind == "memory":
        asyncio.run(main("memory://"))
    elif kind == "file":
        asyncio.run(main(f"file://{tmp_path}/queue.json"))
    else:
        with empty_store(kind, tmp_path) as url:
            asyncio.run(main(url))


async def test_queues_on_a_measured_store_are_measured() -> None:
    store, metrics = MemoryStore(), StoreMetrics()
    store.instrument(metrics)
    async with store:
        queue = store.queue("mail")
        await queue.put("a", 1)
        _, _, lease = await queue.get()
        await queue.ack(lease)
        await queue.close()
    assert metrics.snapshot().items == {"mail": {"put": 1, "claimed": 1, "acknowledged": 1}}
    metrics.reset()
    assert not metrics.snapshot().items
    assert not metrics.snapshot().verbs


async def test_an_error_is_counted_and_raised() -> None:
    store, metrics, noted = MemoryStore(), StoreMetrics(), Noted()
    store.instrument(metrics, noted)

    def refuse(_: object) -> list[Put]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await store.edit("mail", refuse)
    assert isinstance(noted.last.error, ZeroDivisionError)
    assert noted.last.items == {}
    await store.close()
    with pytest.raises(StoreClosedError):
        await store.put([Put("mail", (("a", b"1"),))])
    assert noted.last.requests == 1
    verbs = metrics.snapshot().verbs
    assert verbs["put"].errors == {"StoreClosedError": 1}
    assert verbs["edit"].errors == {"ZeroDivisionError": 1}


async def test_the_last_instruments_count() -> None:
    store, first, second = MemoryStore(), Noted(), Noted()
    store.instrument(first)
    await store.count()
    store.instrument(second)
    await store.count()
    assert (len(first.calls), len(second.calls)) == (1, 1)


async def test_durations_are_those_of_the_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = asyncio.get_running_loop().time
    monkeypatch.setattr("leasedkeyq.stores.observation.perf_counter", clock)

    class Slow(MemoryStore):
        async def do_put(self, requests: Sequence[Put]) -> Any:
            await asyncio.sleep(2)
            return await super().do_put(requests)

    store, noted = Slow(), Noted()
    store.instrument(noted)
    await asyncio.gather(*[store.put([Put("mail", (("a", b"1"),))]) for _ in range(2)])
    assert [call.seconds for call in noted.calls] == [pytest.approx(2)] * 2


async def test_an_instrument_that_fails_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def called(self, call: StoreCall) -> None:
            raise ZeroDivisionError(call.verb)

        def calling(
            self, verb: StoreVerb, queues: tuple[str, ...], requests: int
        ) -> AbstractContextManager[None]:
            raise ZeroDivisionError(f"span {verb}")

    store, noted = MemoryStore(), Noted()
    store.instrument(Broken(), noted, tracing=Broken())
    assert await store.put([Put("mail", (("a", b"1"),))]) == [(Placed(1, "added"),)]
    assert noted.last.items == {"mail": {"put": 1}}
    assert {record.levelno for record in caplog.records} == {logging.ERROR}
    assert "ZeroDivisionError: put" in caplog.text
    assert "ZeroDivisionError: span put" in caplog.text


async def test_many_queues_are_counted_together() -> None:
    metrics, registry = StoreMetrics(most=2), CollectorRegistry()
    store = MemoryStore()
    store.instrument(metrics, PrometheusInstrument(registry, most=2))
    await store.put([Put(f"q{number}", (("a", b"1"),)) for number in range(9)])
    assert metrics.snapshot().items == {"q0": {"put": 1}, "q1": {"put": 1}, OTHER: {"put": 7}}
    assert scrape(registry)["leasedkeyq_store_items_total outcome=put queue=(other)"] == 7


async def test_a_scrape_shows_stores() -> None:
    registry = CollectorRegistry()
    instrument = PrometheusInstrument(registry)
    assert not [name for name in scrape(registry) if "store" in name]
    store = MemoryStore(limits=Limits(value_size=10))
    store.instrument(instrument)
    await store.put([Put("mail", (("a", b"1"), ("b", b"1"))), Put("mail", (("c", b"1" * 11),))])
    await store.close()
    with pytest.raises(StoreError):
        await store.count()
    samples = scrape(registry)
    assert samples["leasedkeyq_store_items_total outcome=put queue=mail"] == 2
    assert samples["leasedkeyq_store_items_total outcome=refused queue=mail"] == 1
    assert samples["leasedkeyq_store_call_seconds_count verb=put"] == 1
    assert samples["leasedkeyq_store_call_requests_sum verb=put"] == 2
    assert samples["leasedkeyq_store_call_requests_bucket le=2.0 verb=put"] == 1
    assert samples["leasedkeyq_store_errors_total error=StoreClosedError verb=count"] == 1


async def test_a_call_is_a_span() -> None:
    rig, store = Rig(), MemoryStore()
    store.instrument(rig.instrument, tracing=rig.instrument)
    await store.put([Put("mail", (("a", b"1"),)), Put("mail", (("b", b"1"),))])
    await store.count()
    await store.sweep(["mail", "bills"])
    await store.close()
    with pytest.raises(StoreClosedError):
        await store.look("mail", ["a"])
    put, count, sweep, look = rig.spans
    assert [span.name for span in rig.spans] == ["put mail", "count", "sweep", "look mail"]
    assert put.kind == SpanKind.PRODUCER
    assert {span.kind for span in (count, sweep, look)} == {SpanKind.CLIENT}
    assert put.attributes is not None
    assert dict(put.attributes) == {
        "messaging.system": "leasedkeyq",
        "messaging.operation.name": "put",
        "messaging.operation.type": "send",
        "messaging.destination.name": "mail",
        "messaging.batch.message_count": 2,
    }
    assert look.status.status_code == StatusCode.ERROR
    points = rig.points()
    [items] = points["leasedkeyq.store.items"]
    assert (items.value, items.attributes["leasedkeyq.item.outcome"]) == (2, "put")
    durations = [dict(point.attributes) for point in points["leasedkeyq.store.call.duration"]]
    assert {
        "messaging.system": "leasedkeyq",
        "messaging.operation.name": "look",
        "error.type": "leasedkeyq.errors.StoreClosedError",
    } in durations
    assert {p.sum for p in points["leasedkeyq.store.call.requests"]} == {2, 0, 1}


async def test_spans_of_a_call_are_children_of_the_callers() -> None:
    rig, store = Rig(), MemoryStore()
    store.instrument(tracing=rig.instrument)
    with rig.tracers.get_tracer("test").start_as_current_span("mine") as mine:
        await store.count()
    [count] = [span for span in rig.spans if span.name == "count"]
    assert count.parent is not None
    assert count.parent.span_id == mine.get_span_context().span_id


async def test_a_caller_may_name_the_arguments_of_a_measured_store() -> None:
    store = MemoryStore()
    noted = Noted()
    store.instrument(noted)
    await store.put(requests=[Put("mail", (("a", b"1"),)), Put("bills", (("b", b"1"),))])
    assert noted.last.items == {"mail": {"put": 1}, "bills": {"put": 1}}
    assert [*await store.count(queues=["mail"])] == ["mail"]
    assert noted.last.queues == ("mail",)
    assert len(await store.count(queues=None)) == 2
    await store.look("mail", keys=["a", "b"])
    assert (noted.last.queues, noted.last.requests) == (("mail",), 2)
    assert len((await store.browse(queue="mail", limit=1)).items) == 1
    assert noted.last.queues == ("mail",)


def test_the_first_calls_of_two_threads_are_counted() -> None:
    """The metrics of stores are made with the first call, and a registry takes them once."""
    registry = CollectorRegistry()
    register = registry.register
    begun = threading.Barrier(2)

    def slowly(collector: Any) -> None:
        register(collector)
        time.sleep(0.05)

    instrument = PrometheusInstrument(registry)
    registry.register = slowly  # type: ignore[method-assign]  # as slow as a busy machine

    def call() -> None:
        begun.wait()
        instrument.called(StoreCall("put", ("mail",), 1, {"mail": {"put": 1}}, 0.1))

    with ThreadPoolExecutor(2) as threads:
        for ended in [threads.submit(call) for _ in range(2)]:
            ended.result()
    found = registry.get_sample_value(
        "leasedkeyq_store_items_total", {"queue": "mail", "outcome": "put"}
    )
    assert found == 2
