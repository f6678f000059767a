"""Workers, lanes and command types, as an operator sees them."""

import asyncio

import pytest

from leasedkeyq import MemoryStore
from leasedkeyq.lanes import KeyLimit, LaneConfig, QueueManagerBuilder, RateLimitConfig
from leasedkeyq.lanes.presence.catalog_records import TypeRecord
from leasedkeyq.operations.operator import Operator
from leasedkeyq.operations.views import LaneView, WorkerLane
from leasedkeyq.operations.workers import type_view
from tests.lanes.support import clock
from tests.operations.support import mail_manager


async def lane_of(operator: Operator) -> LaneView:
    [view] = await operator.lanes()
    return view


async def test_a_worker_is_shown_with_its_lanes_and_what_it_runs() -> None:
    store = MemoryStore(clock=clock)
    operator = Operator(store, clock=clock)
    config = LaneConfig(1, 2, lease_time=9)
    builder = QueueManagerBuilder(clock=clock).with_storage(store)
    manager = builder.with_lane("mail", config, 5).build()

    @manager.command("wait")
    async def wait() -> None:
        await asyncio.sleep(100)

    async with manager:
        handle = await manager.submit("mail", wait(), key="a")
        await asyncio.sleep(4)
        [worker] = await operator.workers()
        assert worker.alive
        assert worker.types == ("wait",)
        assert worker.lanes == (
            WorkerLane(lane="mail", max_concurrency=2, min_concurrency=1, active=1),
        )
        [running] = worker.running
        assert running.command_id == handle.id
        assert (running.queue, running.key, running.kind) == ("mail", "a", "wait")
        assert running.since == pytest.approx(clock() - 4, abs=0.2)
        assert worker.running_count == 1
        lane = await lane_of(operator)
        assert (lane.name, lane.priority, lane.workers) == ("mail", 5, (worker.id,))
        assert (lane.max_concurrency, lane.min_concurrency, lane.in_flight) == (2, 1, 1)
        assert lane.seen_at == worker.seen_at
        assert (await operator.stats()).workers == 1
        stack = await operator.stack(handle.id)
        assert (stack.command_id, stack.worker, stack.where) == (handle.id, worker.id, "task")
        [here] = [frame for frame in stack.frames if frame.file == __file__]
        assert here.function.endswith("wait")
        assert here.source == "await asyncio.sleep(100)"
        assert stack.at == pytest.approx(clock(), abs=1)
        await handle.cancel()
    assert await operator.workers() == []
    lane = await lane_of(operator)
    assert (lane.workers, lane.available) == ((), 0)


async def test_command_types_are_shown_with_their_schema() -> None:
    store = MemoryStore(clock=clock)
    operator = Operator(store, clock=clock)
    manager, _ = mail_manager(store)
    assert await operator.types() == []
    async with manager:
        await asyncio.sleep(1)
    [send] = await operator.types()
    assert (send.name, send.run_in, send.lane) == ("send", "loop", None)
    assert [(one.name, one.required, one.default) for one in send.parameters] == [
        ("to", True, ""),
        ("number", False, "0"),
    ]
    assert send.schema is not None
    assert send.schema["properties"]["to"] == {"type": "string"}


async def test_what_holds_a_lane_back_is_said() -> None:
    store = MemoryStore(clock=clock)
    operator = Operator(store, clock=clock)
    config = LaneConfig(0, 2, lease_time=9)
    gate = asyncio.Event()

    def lanes(config: LaneConfig) -> QueueManagerBuilder:
        return QueueManagerBuilder(clock=clock).with_storage(store).with_lane("mail", config, 5)

    manager = lanes(config).build()

    async def hold() -> None:
        await gate.wait()

    held = manager.command("hold", hold)
    async with manager:
        await manager.pause("mail")
        await manager.submit("mail", held(), key="a")
        await asyncio.sleep(1)
        assert (await lane_of(operator)).held_back == ("it is paused",)
        await manager.resume("mail")
        await manager.submit("mail", held(), key="b")
        await asyncio.sleep(1)
        assert (await lane_of(operator)).held_back == ()
        await manager.submit("mail", held(), key="c")
        await asyncio.sleep(1)
        full = await lane_of(operator)
        assert full.held_back == ("all 2 slots of its worker are taken",)
        second = lanes(config).build()
        second.command("other", hold)
        async with second:
            await asyncio.sleep(1)
            assert (await lane_of(operator)).held_back == ()
        gate.set()
        await manager.drain(10)
        await manager.pause("mail")
    await manager.close()


async def test_limits_that_hold_a_lane_back_are_named() -> None:
    store = MemoryStore(clock=clock)
    operator = Operator(store, clock=clock)
    config = LaneConfig(
        0,
        4,
        lease_time=9,
        global_concurrency=1,
        rate_limit=RateLimitConfig.per_minute(6, burst=1),
        key_limits=[KeyLimit("eu-*", 1)],
    )
    builder = QueueManagerBuilder(clock=clock).with_storage(store)
    manager = builder.with_lane("mail", config, 5).build()

    @manager.command("wait")
    async def wait() -> None:
        await asyncio.sleep(5)

    assert (await operator.lanes()) == []
    async with manager:
        for key in "abc":
            await manager.submit("mail", wait(), key=key)
        await asyncio.sleep(2)
        lane = await lane_of(operator)
        assert lane.limits == (
            "1 at a time in all workers",
            "6 per minute, burst 1",
            "keys eu-*: 1 at a time",
        )
        assert lane.held_back == ("its limit of 1 at a time in all workers is reached",)
        await asyncio.sleep(5)
        assert (await lane_of(operator)).held_back == ("its rate limit: 6 per minute, burst 1",)
        await manager.drain(60)
    submitter = builder.build()
    await submitter.submit("mail", wait(), key="d")
    assert (await lane_of(operator)).held_back == ("no worker runs it",)
    await submitter.close()


@pytest.mark.parametrize("schema", ["{", "[1]", "[" * 100_000, '"\x00"'])
def test_a_type_with_a_damaged_schema_has_none(schema: str) -> None:
    record = TypeRecord(name="send", schema=schema)
    assert type_view(record).schema is None
