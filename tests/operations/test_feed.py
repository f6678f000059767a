"""What happens in a store, as it happens: told by workers, or seen by looks."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from leasedkeyq import MemoryStore, connect
from leasedkeyq.lanes import LaneConfig, QueueManager, QueueManagerBuilder, RetryPolicy
from leasedkeyq.lanes.durable.reports import event_publisher
from leasedkeyq.lanes.durable.reports.event_batches import EVENTS_QUEUE, LISTENER, LISTENER_LEASE
from leasedkeyq.lanes.presence.records import WORKERS_QUEUE
from leasedkeyq.model.requests import Claim, Limits, Put
from leasedkeyq.operations.live import feed as feed_module
from leasedkeyq.operations.live.feed import Feed
from leasedkeyq.operations.views import FeedEvent
from tests.lanes.support import clock
from tests.servers.urls import empty_store

CONFIG = LaneConfig(0, 4, retry_policy=RetryPolicy.fixed(1, 5.0))


def manager_on(store: Any, lane: str = "x") -> tuple[QueueManager, Any]:
    builder = QueueManagerBuilder(clock=clock).with_lane(lane, CONFIG, 0).with_storage(store)
    manager = builder.build()

    @manager.command("work")
    async def work(failures: int = 0) -> None:
        if failures:
            raise ValueError("not today\nnor tomorrow")

    return manager, work


class Listener:
    """Gathers what a feed tells."""

    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self.events: list[FeedEvent] = []

    async def run(self) -> None:
        async for event in self.feed:
            self.events.append(event)

    @property
    def lines(self) -> list[tuple[str, str]]:
        return [(event.key, event.outcome) for event in self.events]


@asynccontextmanager
async def listening(store: Any, *queues: str, **options: Any) -> AsyncGenerator[Listener]:
    async with Feed(store, queues or None, clock=clock, **options) as feed:
        listener = Listener(feed)
        task = asyncio.create_task(listener.run())
        await asyncio.sleep(3)
        yield listener
    await task


async def listeners(store: Any) -> list[str]:
    page = await store.browse(WORKERS_QUEUE, prefix=LISTENER)
    return [item.key for item in page.items]


async def test_workers_tell_what_happens_while_somebody_listens() -> None:
    store = MemoryStore(clock=lambda: clock() + 100.0)
    manager, work = manager_on(store)
    async with manager:
        await (await manager.submit("x", work(), key="before"))
        assert not manager.queue().emitter.listening
        async with listening(store) as listener:
            assert listener.feed.workers == 1
            await (await manager.submit("x", work(), key="good"))
            await manager.submit("x", work(1), key="bad")
            await asyncio.sleep(10)
        found = listener.events
        assert listener.lines[:3] == [
            ("good", one) for one in ("submitted", "started", "completed")
        ]
        assert [outcome for key, outcome in listener.lines if key == "bad"] == [
            "submitted",
            "started",
            "retry",
            "started",
            "failed",
            "dead_lettered",
        ]
        retry = next(event for event in found if event.outcome == "retry")
        assert (retry.queue, retry.lane, retry.kind, retry.attempt) == ("x", "x", "work", 1)
        assert retry.delay == 5.0
        assert retry.error.startswith("ValueError: not today")
        assert retry.command_id
        assert retry.at == pytest.approx(clock() + 100 - 10, abs=3)  # by the clock of the store
        await asyncio.sleep(1)
        assert await listeners(store) == []
        await (await manager.submit("x", work(), key="after"))
        assert not manager.queue().emitter.listening
        await asyncio.sleep(1)
    assert "after" not in [key for key, _ in listener.lines]
    await asyncio.sleep(100)
    assert EVENTS_QUEUE not in await store.count()


async def test_filters() -> None:
    store = MemoryStore(clock=clock)
    manager, work = manager_on(store)

    @manager.command("other")
    async def other() -> None:
        return None

    async with (
        manager,
        listening(store, "y") as elsewhere,
        listening(store, "x", keys=["order-*"]) as keys,
        listening(store, kinds=["other"], outcomes=["completed"]) as kinds,
    ):
        await (await manager.submit("x", work(), key="order-1"))
        await (await manager.submit("x", other(), key="other-1"))
        await asyncio.sleep(2)
    assert elsewhere.events == []
    assert {event.key for event in keys.events} == {"order-1"}
    assert kinds.lines == [("other-1", "completed")]


async def test_the_end_of_a_command_is_told_once() -> None:
    """The worker that ran it tells, and so does the one through which it was submitted."""
    store = MemoryStore(clock=clock)
    one, work = manager_on(store)
    two, _ = manager_on(store, "y")
    async with one, two, listening(store) as listener:
        handles = [await one.submit("x", work(), key=str(number)) for number in range(5)]
        for handle in handles:
            await handle
        payload = {"lane": "x", "command_id": handles[0].id, "key": "0"}
        two.queue().emitter.emit("queue.command.completed", payload)
        await asyncio.sleep(2)
    completed = [key for key, outcome in listener.lines if outcome == "completed"]
    assert sorted(completed) == ["0", "1", "2", "3", "4"]


async def test_too_many_events_are_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_publisher, "MOST", 50)
    monkeypatch.setattr(event_publisher, "IN_ONE", 20)
    store = MemoryStore(clock=clock)
    manager, work = manager_on(store)
    async with manager, listening(store) as listener:
        await manager.submit_many("x", [(str(number), work()) for number in range(200)])
        await manager.drain(60)
        await asyncio.sleep(2)
    told = [event for event in listener.events if event.outcome != "dropped"]
    dropped = sum(event.count or 0 for event in listener.events if event.outcome == "dropped")
    assert dropped > 0
    assert len(told) + dropped == 600


async def test_a_caller_that_is_too_slow_hears_how_many_it_has_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feed_module, "HELD", 10)
    store = MemoryStore(clock=clock)
    manager, work = manager_on(store)
    async with manager, Feed(store, clock=clock) as feed:
        await asyncio.sleep(3)
        await manager.submit_many("x", [(str(number), work()) for number in range(20)])
        await manager.drain(60)
        await asyncio.sleep(2)
        first = await anext(feed)
        assert (first.outcome, first.count) == ("dropped", 50)
        rest = [await anext(feed) for _ in range(10)]
        assert {event.outcome for event in rest} <= {"completed", "started"}


async def test_small_stores_get_small_batches() -> None:
    store = MemoryStore(clock=clock, limits=Limits(value_size=600))
    manager, work = manager_on(store)
    async with manager, listening(store) as listener:
        await manager.submit_many("x", [(f"key-{number}", work()) for number in range(20)])
        await manager.drain(60)
        await asyncio.sleep(2)
    assert len([one for one in listener.events if one.outcome == "completed"]) == 20


async def test_a_listener_that_dies_is_forgotten() -> None:
    store = MemoryStore(clock=clock)
    manager, work = manager_on(store)
    async with manager:
        await store.put([Put(WORKERS_QUEUE, ((f"{LISTENER}dead", b"null"),))])
        await store.claim([Claim(((WORKERS_QUEUE, 1),), 1, f"{LISTENER}dead", LISTENER_LEASE)])
        await store.put([Put(WORKERS_QUEUE, ((f"{LISTENER}unborn", b"null"),))])
        await asyncio.sleep(1)
        assert manager.queue().emitter.listening
        assert len(await listeners(store)) == 2
        await asyncio.sleep(LISTENER_LEASE + 12)
        assert await listeners(store) == []
        await (await manager.submit("x", work()))
        assert not manager.queue().emitter.listening


async def test_a_listener_that_was_taken_for_dead_is_heard_again() -> None:
    store = MemoryStore(clock=clock)
    manager, work = manager_on(store)
    async with manager, listening(store) as listener:
        [name] = await listeners(store)
        await store.queue(WORKERS_QUEUE).remove(name)
        await asyncio.sleep(LISTENER_LEASE)
        assert len(await listeners(store)) == 1
        await (await manager.submit("x", work(), key="later"))
        await asyncio.sleep(2)
    assert ("later", "completed") in listener.lines


async def test_totals_count_what_no_event_tells() -> None:
    store = MemoryStore(clock=clock)
    one, work = manager_on(store)
    two, _ = manager_on(store)
    async with one, two:
        await (await one.submit("x", work(), key="before"))
        async with listening(store, outcomes=["failed"], totals=True) as listener:
            for round_ in range(3):
                commands = [(f"{round_}-{number}", work()) for number in range(100)]
                await one.submit_many("x", commands)
                await asyncio.sleep(2)
            await one.submit("x", work(1), key="bad")
            await asyncio.sleep(10)
            count = listener.feed.counts["x"]
            assert (count.completed, count.failed, count.retried) == (300, 1, 1)
            assert count.started == 302
    assert listener.lines == [("bad", "failed")]


# Plain queues


async def test_plain_queues_are_compared() -> None:
    store = MemoryStore(clock=clock)
    queue = store.queue("plain", default_lease_timeout=1000.0)
    await queue.put("old", 1)
    async with listening(store) as listener:
        await queue.put("a", 1)
        await asyncio.sleep(3)
        for key in ("old", "a"):
            _, _, lease = await queue.take(key)
            await asyncio.sleep(3)
            await (queue.ack(lease) if key == "old" else queue.release(lease, delay=100.0))
            await asyncio.sleep(3)
        await queue.put("b", 1)
        _, _, lease = await queue.take("b")
        await asyncio.sleep(3)
        await queue.bury(lease, "ValueError: gone bad\nat line 1")
        await asyncio.sleep(3)
    assert listener.lines == [
        ("a", "submitted"),
        ("old", "started"),
        ("old", "ended"),
        ("a", "started"),
        ("a", "retry"),
        ("b", "submitted"),
        ("b", "started"),
        ("b", "dead_lettered"),
    ]
    assert listener.events[-1].error == "ValueError: gone bad"
    assert listener.events[-1].queue == "plain"
    assert listener.events[-1].worker == ""
    assert listener.events[4].delay == pytest.approx(97, abs=5)


async def test_a_queue_that_begins_and_one_that_empties() -> None:
    store = MemoryStore(clock=clock)
    async with listening(store) as listener:
        queue = store.queue("new", default_lease_timeout=100.0)
        await queue.put("first", 1)
        await asyncio.sleep(3)
        _, _, lease = await queue.get()
        await asyncio.sleep(3)
        await queue.ack(lease)
        await asyncio.sleep(3)
    assert listener.lines == [("first", "submitted"), ("first", "started"), ("first", "ended")]


async def test_lanes_of_workers_are_not_compared() -> None:
    store = MemoryStore(clock=clock)
    manager, work = manager_on(store)
    async with manager, listening(store) as listener:
        await manager.submit("x", work(), key="later", delay=5.0)
        await asyncio.sleep(60)  # longer than a worker is silent
    assert listener.lines == [("later", one) for one in ("submitted", "started", "completed")]


async def test_more_new_items_than_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leasedkeyq.operations.live.queue_looks.MOST_NEW", 10)
    store = MemoryStore(clock=clock)
    async with listening(store) as listener:
        await store.queue("plain").put_many([(str(number), 1) for number in range(25)])
        await asyncio.sleep(3)
        await store.queue("plain").put("next", 1)
        await asyncio.sleep(3)
    outcomes = [event.outcome for event in listener.events]
    assert outcomes == ["submitted"] * 10 + ["dropped", "submitted"]
    assert listener.events[10].count == 15


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await condition():
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "redis"])
def test_a_feed_on_a_real_store(kind: str, tmp_path: Path) -> None:
    with empty_store(kind, tmp_path) as url:
        asyncio.run(listen_on(url))


async def listen_on(url: str) -> None:
    async with connect(url) as store, connect(url) as other:
        builder = QueueManagerBuilder().with_lane("x", LaneConfig(0, 2), 0).with_storage(store)
        manager = builder.build()

        @manager.command("work")
        async def work() -> int:
            return 1

        async with manager, Feed(other) as feed:

            async def told() -> bool:
                return feed.workers == 1

            await until(told)
            await manager.submit("x", work(), key="k")
            async with asyncio.timeout(60):
                found = [await anext(feed) for _ in range(3)]
            assert [event.outcome for event in found] == ["submitted", "started", "completed"]
        assert await listeners(other) == []
