"""What workers keep of each minute in the store."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from leasedkeyq import MemoryStore, StoreError, connect
from leasedkeyq.lanes import LaneConfig, QueueManager, QueueManagerBuilder, RetryPolicy
from leasedkeyq.lanes.durable.reports.minutes import (
    SERIES_KEPT,
    SERIES_QUEUE,
    DurationBuckets,
    LaneGauges,
    LaneMinute,
    WorkerMinute,
    merged,
    quantile,
)
from leasedkeyq.lanes.presence.records import WORKERS_QUEUE
from leasedkeyq.model.edit import Edit
from leasedkeyq.model.requests import Ack, Answer, Capabilities, Change, Counts, Limits
from tests.lanes.support import EPOCH, clock

CONFIG = LaneConfig(0, 4, retry_policy=RetryPolicy.fixed(1, 5.0))


def manager_on(store: Any, *lanes: str, config: LaneConfig = CONFIG) -> tuple[QueueManager, Any]:
    builder = QueueManagerBuilder(clock=clock)
    for priority, lane in enumerate(lanes or ("x",)):
        builder.with_lane(lane, config, priority)
    manager = builder.with_storage(store).build()

    @manager.command("work")
    async def work(seconds: float = 0.0, failures: int = 0) -> None:
        await asyncio.sleep(seconds)
        if failures:
            raise ValueError("not today")

    return manager, work


async def written(store: Any) -> list[WorkerMinute]:
    page = await store.browse(SERIES_QUEUE, states=("done",), limit=1000)
    return [msgspec.json.decode(item.value, type=WorkerMinute) for item in page.items]


async def test_a_minute_has_what_was_done_in_it() -> None:
    store = MemoryStore(clock=clock)
    manager, work = manager_on(store)
    async with manager:
        await asyncio.sleep(1)
        for _ in range(3):
            await manager.submit("x", work(2.0))
        await manager.submit("x", work(0.5, failures=1), key="bad")
        await manager.submit("x", work(100.0), key="long")
        await manager.submit("x", work(), key="later", delay=1000)
        await asyncio.sleep(70)
        [minute] = await written(store)
    assert minute.at == EPOCH
    one = minute.lanes["x"]
    assert (one.submitted, one.started, one.completed, one.retried) == (6, 6, 3, 1)
    assert (one.failed, one.dead_lettered, one.timed_out, one.cancelled) == (1, 1, 0, 0)
    ran = merged([one.ran])
    assert sum(ran.values()) == 5
    assert one.ran_total == pytest.approx(7.0)
    assert quantile(ran, 0.99) == pytest.approx(2.0, rel=0.2)
    assert sum(merged([one.waited]).values()) == 4  # first attempts that have ended
    assert one.gauges == LaneGauges(in_flight=1, scheduled=1, buried=1)


async def test_an_idle_minute_is_not_written() -> None:
    store = MemoryStore(clock=clock)
    manager, work = manager_on(store)
    async with manager:
        await manager.submit("x", work())
        await asyncio.sleep(600)
        [minute] = await written(store)
        assert minute.lanes["x"].gauges == LaneGauges()
    assert len(await written(store)) == 1


async def test_gauges_that_others_change_are_written_and_stand_for_a_while() -> None:
    store = MemoryStore(clock=clock)
    manager, _ = manager_on(store)
    submitter, work = manager_on(store)
    async with manager:
        await manager.queue().pause("x")
        await asyncio.sleep(90)
        await submitter.submit("x", work())
        await asyncio.sleep(60 * 25)
        minutes = await written(store)
        assert [int(minute.at - EPOCH) for minute in minutes] == [60, 660, 1260]
        last = minutes[-1].lanes["x"]
        assert last == LaneMinute(gauges=last.gauges)
        assert last.gauges is not None
        assert last.gauges.waiting == 1
        assert last.gauges.oldest == pytest.approx(1320 - 90, abs=5)
    await submitter.close()


async def test_the_last_part_is_written_at_the_end_and_all_ends_by_itself() -> None:
    store = MemoryStore(clock=clock)
    manager, work = manager_on(store, "x", "y")
    async with manager:
        await (await manager.submit("y", work()))
    [minute] = await written(store)
    assert list(minute.lanes) == ["y"]
    assert (await store.count([SERIES_QUEUE]))[SERIES_QUEUE] == Counts(done=1)
    await asyncio.sleep(SERIES_KEPT + 1)
    assert await written(store) == []
    assert SERIES_QUEUE not in await store.count()


async def test_the_minute_is_that_of_the_clock_of_the_store() -> None:
    store = MemoryStore(clock=lambda: clock() + 5000.0)
    manager, work = manager_on(store)
    async with manager:
        await (await manager.submit("x", work()))
        await asyncio.sleep(120)
        await (await manager.submit("x", work()))
        await asyncio.sleep(120)
    first, second = await written(store)
    assert second.at - EPOCH == (5000 + 120) // 60 * 60
    assert first.at <= second.at


class Unreliable(MemoryStore):
    """Its edits fail, before or after they were done."""

    fails: str = ""

    async def do_edit(self, edit: Edit) -> list[Answer]:
        if self.fails == "before":
            raise OSError("no route")
        answer = await super().do_edit(edit)
        if self.fails == "after":
            raise OSError("no route back")
        return answer


@pytest.mark.parametrize("fails", ["before", "after"])
async def test_minutes_wait_for_a_store_that_fails_and_are_written_once(
    fails: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = Unreliable(clock=clock)
    manager, work = manager_on(store)
    async with manager:
        store.fails = fails
        await asyncio.sleep(5)
        for _ in range(3):
            await (await manager.submit("x", work()))
            await asyncio.sleep(60)
        await asyncio.sleep(10)
        assert "minute values of lanes could not be written" in caplog.text
        store.fails = ""
        await asyncio.sleep(60)
        minutes = await written(store)
        assert [int(one.at - EPOCH) for one in minutes if one.lanes["x"].completed] == [0, 60, 120]
        assert sum(one.lanes["x"].completed for one in minutes) == 3


async def test_closing_does_not_fail_where_the_last_part_cannot_be_written() -> None:
    store = Unreliable(clock=clock)
    manager, work = manager_on(store)
    async with manager:
        await (await manager.submit("x", work()))
        store.fails = "before"
    store.fails = ""
    assert await written(store) == []


@pytest.mark.parametrize("queue", [SERIES_QUEUE, WORKERS_QUEUE])
async def test_closing_ends_though_the_store_does_not_answer(
    queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Silent(MemoryStore):
        async def do_edit(self, edit: Edit) -> list[Answer]:
            if edit.queue == queue:
                await asyncio.sleep(10**6)
            return await super().do_edit(edit)

        async def do_settle(self, requests: Sequence[Change]) -> list[Answer]:
            if requests[0].queue == queue and isinstance(requests[0], Ack):
                await asyncio.sleep(10**6)
            return await super().do_settle(requests)

    manager, work = manager_on(Silent(clock=clock))
    await manager.start()
    await (await manager.submit("x", work()))
    async with asyncio.timeout(60):
        await manager.close()
    [said] = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert said.endswith("the store does not answer")
    assert "commands" not in said  # all of them are settled


async def test_a_small_store_gets_a_minute_in_parts(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore(clock=clock, limits=Limits(value_size=300))
    lanes = [f"lane-{number}" for number in range(9)]
    manager, work = manager_on(store, *lanes)
    async with manager:
        for lane in lanes:
            await (await manager.submit(lane, work()))
    minutes = await written(store)
    assert len(minutes) > 1
    assert sorted(name for minute in minutes for name in minute.lanes) == lanes
    assert len({minute.worker for minute in minutes}) == 1
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


class NoSeries(MemoryStore):
    capabilities = Capabilities(durability="none", cross_process=False, minute_series=False)


async def test_a_store_that_wants_none_gets_none(tmp_path: Any) -> None:
    async with connect(f"file://{tmp_path}/queue.json") as document:
        assert not document.capabilities.minute_series
    store = NoSeries(clock=clock)
    manager, work = manager_on(store)
    async with manager:
        await (await manager.submit("x", work()))
        await asyncio.sleep(200)
    assert SERIES_QUEUE not in await store.count()


def sample(durations: Sequence[float]) -> dict[int, int]:
    found = DurationBuckets()
    found.fresh.extend(durations)
    return merged([found.take()[0]])


def test_quantiles_are_within_a_tenth() -> None:
    for scale in (0.0003, 0.02, 1.0, 90.0, 5000.0):
        many = sorted(scale * (1 + number / 100) for number in range(1000))
        buckets = sample(many)
        for share in (0.5, 0.95, 0.99):
            exact = many[int(share * 1000) - 1]
            assert quantile(buckets, share) == pytest.approx(exact, rel=0.1)


def test_durations_beyond_the_buckets_count() -> None:
    assert quantile({}, 0.5) is None
    assert quantile(sample([-1.0, 0.0]), 0.5) == pytest.approx(0.0, abs=0.001)
    assert (quantile(sample([1e9]), 0.5) or 0) > 2 * 86400


async def test_a_store_that_is_closed_first_is_no_failure() -> None:
    store = MemoryStore(clock=clock)
    manager, work = manager_on(store)
    await manager.start()
    await (await manager.submit("x", work()))
    await store.close()
    await manager.close()
    with pytest.raises(StoreError):
        await written(store)
