"""Reading minute values: of all workers, once, and no more of them than are needed."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from leasedkeyq import MemoryStore, connect
from leasedkeyq.lanes import LaneConfig, QueueManagerBuilder
from leasedkeyq.lanes.durable.reports.minutes import (
    SERIES_KEPT,
    SERIES_QUEUE,
    DurationBuckets,
    LaneGauges,
    LaneMinute,
    WorkerMinute,
)
from leasedkeyq.model.requests import Cancel, Put
from leasedkeyq.operations.live import series
from leasedkeyq.operations.live.series import SeriesReader
from tests.lanes.support import EPOCH, clock
from tests.servers.urls import KINDS, empty_store

START = int(EPOCH)


async def write(store: Any, minute: WorkerMinute, key: str = "") -> None:
    key = key or f"{minute.worker}:{minute.at}"
    raw = msgspec.json.encode(minute)
    await store.put([Put(SERIES_QUEUE, ((key, b"null"),))])
    await store.settle([Cancel(SERIES_QUEUE, key, raw, SERIES_KEPT, outcome="completed")])


def values(completed: int, *seconds: float, **more: Any) -> LaneMinute:
    ran = DurationBuckets()
    ran.fresh.extend(seconds)
    buckets, total = ran.take()
    return LaneMinute(completed=completed, ran=buckets, ran_total=total, **more)


async def test_workers_are_added_up_and_only_new_minutes_are_read() -> None:
    store = MemoryStore(clock=clock)
    reader = SeriesReader(store, clock=clock)
    assert await reader.refresh() == 0
    await asyncio.sleep(61)
    slow = values(2, 1.0, 1.0, gauges=LaneGauges(waiting=5))
    await write(store, WorkerMinute(START, "one", {"x": values(3, 0.1, 0.1, 0.1)}))
    await write(store, WorkerMinute(START, "two", {"x": slow, "y": values(1)}))
    assert await reader.refresh() == 2
    assert await reader.refresh() == 0
    await asyncio.sleep(120)
    await write(store, WorkerMinute(START + 120, "one", {"x": values(7, failed=1)}))
    assert await reader.refresh() == 1
    assert reader.lanes() == ["x", "y"]
    lane = reader.lane("x", since=START + 1)
    assert (lane.begin, lane.step) == (START, 60)
    assert lane.completed == (5, 0, 7, 0)
    assert lane.waiting == (5, 5, 5, 5)  # nobody has said otherwise
    assert lane.run_p50[0] == pytest.approx(0.1, rel=0.1)
    assert lane.run_p50[1:] == (None, None, None)
    assert lane.run_p99[0] == pytest.approx(1.0, rel=0.1)
    hour = reader.totals("x", 3600)
    assert (hour.completed, hour.failed) == (12, 1)
    assert hour.failure_rate == pytest.approx(1 / 13)
    assert hour.throughput == pytest.approx(12 / 3600)
    assert hour.run_mean == pytest.approx(2.3 / 5)
    assert reader.totals(None, 3600).completed == 13
    assert reader.totals("x", 60).completed == 7
    assert reader.lane("unknown", since=START).completed == (0, 0, 0, 0)


async def test_steps_add_minutes_up() -> None:
    store = MemoryStore(clock=clock)
    reader = SeriesReader(store, clock=clock)
    await asyncio.sleep(1200)
    for minute in range(20):
        await write(store, WorkerMinute(START + 60 * minute, "one", {"x": values(1)}))
    await reader.refresh()
    lane = reader.lane("x", since=START, step=300)
    assert (lane.step, lane.completed) == (300, (5, 5, 5, 5))
    assert reader.lane("x", since=START, step=301).step == 360


async def test_older_time_is_told_in_parts_of_ten_minutes_and_forgotten_after_two_days() -> None:
    store = MemoryStore(clock=clock)
    reader = SeriesReader(store, clock=clock)
    for minute in range(0, 4 * 24 * 60, 5):
        await write(store, WorkerMinute(START + 60 * minute, "one", {"x": values(1, 0.5)}))
        await asyncio.sleep(300)
        if minute % 600 == 0:
            await reader.refresh()
    await reader.refresh()
    kept = 48 * 12
    assert reader.totals("x", 48 * 3600).completed == pytest.approx(kept, abs=3)
    chart = reader.lane("x", since=clock() - 48 * 3600, step=60)
    assert chart.step == 600
    assert sum(chart.completed) == pytest.approx(kept, abs=3)
    assert len(chart.completed) == pytest.approx(288, abs=1)
    assert reader.lane("x", since=clock() - 3600).step == 60
    assert len(reader._fine["x"]) <= 4 * 12  # of three hours, and the rest of ten minutes
    assert len(reader._coarse["x"]) <= 288
    await asyncio.sleep(3 * 24 * 3600)
    await reader.refresh()
    assert reader.lanes() == []


async def test_a_thousand_lanes_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series, "MOST_LANES", 3)
    store = MemoryStore(clock=clock)
    lanes = {f"lane-{number}": values(1) for number in range(5)}
    await write(store, WorkerMinute(START, "one", lanes))
    reader = SeriesReader(store, clock=clock)
    await reader.refresh()
    assert reader.lanes() == ["(other)", "lane-0", "lane-1", "lane-2"]
    assert reader.totals("(other)", 3600).completed == 2


async def test_what_a_later_version_has_written_is_left_out() -> None:
    store = MemoryStore(clock=clock)
    await store.put([Put(SERIES_QUEUE, (("new", b"null"),))])
    await store.settle([Cancel(SERIES_QUEUE, "new", b'{"at": "soon"}', 1000.0)])
    await write(store, WorkerMinute(START, "one", {"x": values(1)}))
    reader = SeriesReader(store, clock=clock)
    assert await reader.refresh() == 2
    assert reader.unread == 1
    assert reader.totals("x", 3600).completed == 1


async def test_a_clock_that_is_behind_the_store_hides_nothing() -> None:
    store = MemoryStore(clock=lambda: clock() + 6030)
    await write(store, WorkerMinute(START + 6000, "one", {"x": values(4)}))
    reader = SeriesReader(store, clock=clock)
    await reader.refresh()
    assert reader.lane("x", since=START + 6000).completed == (4,)
    assert reader.totals("x", 60).completed == 4


async def test_many_pages_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leasedkeyq.operations.items.kept_results.PAGE", 7)
    store = MemoryStore(clock=clock)
    reader = SeriesReader(store, clock=clock)
    for number in range(50):
        await write(store, WorkerMinute(START, f"worker-{number}", {"x": values(1)}))
        if number % 9 == 0:
            await reader.refresh()
        await asyncio.sleep(number % 5)
    await reader.refresh()
    assert reader.totals("x", 3600).completed == 50


@pytest.mark.parametrize("kind", KINDS)
def test_series_on_a_real_store(kind: str, tmp_path: Path) -> None:
    """What a worker writes is read on every engine, also by another connection."""
    with empty_store(kind, tmp_path) as url:
        asyncio.run(write_and_read(url))


async def write_and_read(url: str) -> None:
    async with connect(url) as store, connect(url) as other:
        lane = LaneConfig(0, 2)
        manager = QueueManagerBuilder().with_lane("x", lane, 0).with_storage(store).build()

        @manager.command("work")
        async def work() -> int:
            return 1

        async with manager:
            for number in range(5):
                await (await manager.submit("x", work(), key=str(number)))
        reader = SeriesReader(other)
        await reader.refresh()
        found = reader.totals("x", 3600)
        assert (found.submitted, found.started, found.completed) == (5, 5, 5)
        assert found.run_p95 is not None
        assert await reader.refresh() == 0


async def test_a_worker_whose_clock_is_ahead_does_not_move_the_time_of_all() -> None:
    store = MemoryStore(clock=clock)
    reader = SeriesReader(store, clock=clock)
    await asyncio.sleep(61)
    await write(store, WorkerMinute(START, "one", {"x": values(3)}))
    await write(store, WorkerMinute(START + 86400 * 60, "ahead", {"x": values(4)}))
    await reader.refresh()
    assert reader.lane("x", since=START).completed == (3, 4)
    assert reader.totals("x", 3600).completed == 7
