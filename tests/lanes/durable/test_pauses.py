"""A pause holds for all workers of a store."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from leasedkeyq import MemoryStore
from leasedkeyq.errors import StoreClosedError, StoreError
from leasedkeyq.lanes import LaneConfig, QueueManagerBuilder
from leasedkeyq.lanes.presence.records import FOREVER, WORKERS_QUEUE
from leasedkeyq.model.requests import Answer, Cancel, Change, Claim, Counts, Put
from tests.lanes.durable.workers_support import Diary, Failing, memory, worker
from tests.lanes.support import clock, now


async def test_a_pause_holds_for_all_workers_and_those_to_come() -> None:
    store, diary = memory(), Diary()
    (first, _), (second, _), (third, note) = (worker(store, diary) for _ in range(3))
    async with first, second:
        await first.pause("x")
        await asyncio.sleep(1)
        await third.start()
        handle = await third.submit("x", note("a"))
        await asyncio.sleep(100)
        assert diary.names == []
        for manager in (first, second, third):
            assert (await manager.stats()).lanes["x"].paused
        # Resumed by another than it was paused by.
        second.resume("x")
        began = now()
        await handle
        assert now() - began < 1
        assert not (await third.stats()).lanes["x"].paused
        await third.close()
    assert await store.count([WORKERS_QUEUE]) == {WORKERS_QUEUE: Counts()}


async def test_a_pause_that_nobody_waits_for_holds_too() -> None:
    store, diary = memory(), Diary()
    first, _ = worker(store, diary)
    second, note = worker(store, diary)
    async with second:
        first.pause("x")  # it was never started
        await first.close()
        await asyncio.sleep(0.5)
        await second.submit("x", note("a"))
        await asyncio.sleep(10)
        assert diary.names == []
        await second.resume("x")
        await second.drain(1)


@pytest.mark.parametrize("waits", [True, False])
def test_a_pause_before_there_is_an_event_loop(waits: bool) -> None:
    store = MemoryStore()
    manager = QueueManagerBuilder().with_lane("x", LaneConfig(0, 1), 0).with_storage(store).build()
    pausing = manager.pause("x")

    async def main() -> None:
        if waits:
            await pausing
            assert (await store.count([WORKERS_QUEUE]))[WORKERS_QUEUE].scheduled == 1
        await manager.close()
        assert (await store.count([WORKERS_QUEUE]))[WORKERS_QUEUE].scheduled == 1

    asyncio.run(main())


async def test_only_the_last_word_counts() -> None:
    store, diary = memory(), Diary()
    manager, note = worker(store, diary)
    async with manager:
        for _ in range(3):
            manager.pause("x")
            manager.resume("x")
        manager.pause("x")
        await manager.resume("x")
        await asyncio.sleep(1)
        await manager.submit("x", note("a"))
        await manager.drain(1)
    assert diary.names == ["a"]


async def test_in_memory_a_pause_can_be_awaited_as_well() -> None:
    manager = QueueManagerBuilder().with_lane("x", LaneConfig(0, 1), 0).build()
    diary = Diary()
    note = diary.register(manager)
    async with manager:
        await manager.pause("x")
        await manager.submit("x", note("a"))
        await asyncio.sleep(1)
        assert diary.names == []
        await manager.resume("x")


class Recording(MemoryStore):
    """Remembers what is done to the queue of the worker group."""

    def __init__(self) -> None:
        super().__init__(clock=clock)
        self.done: list[str] = []

    async def do_put(self, requests: Sequence[Put]) -> Any:
        self.done += [f"put {key} {put.delay or 0:g}" for put in requests for key, _ in put.items]
        return await super().do_put(requests)

    async def do_settle(self, requests: Sequence[Change]) -> list[Answer]:
        self.done += [f"cancel {one.key}" for one in requests if isinstance(one, Cancel)]
        return await super().do_settle(requests)


async def test_those_who_watch_are_told_of_a_pause() -> None:
    """A store need not tell of items that are scheduled: only of those that come and go."""
    store = Recording()
    manager, _ = worker(store, Diary())
    await manager.pause("x")
    assert store.done == [f"put paused:x {FOREVER:g}", "put news 0", "cancel news"]
    store.done.clear()
    await manager.resume("x")
    assert store.done == ["cancel paused:x", "put news 0", "cancel news"]
    await manager.close()


async def test_a_store_that_fails_is_told_again() -> None:
    store, diary = Failing(clock=clock), Diary()
    store.failures = [StoreError("no disk"), StoreError("no disk")]
    (first, _), (second, _) = (worker(store, diary) for _ in range(2))
    async with first, second:
        await first.pause("x")
        assert not store.failures
        await asyncio.sleep(1)
        assert (await second.stats()).lanes["x"].paused
        await second.resume("x")


async def test_a_closed_store_says_so(caplog: pytest.LogCaptureFixture) -> None:
    store, diary = memory(), Diary()
    manager, _ = worker(store, diary)
    await store.close()
    with pytest.raises(StoreClosedError):
        await manager.pause("x")
    caplog.clear()
    manager.pause("x")
    await asyncio.sleep(1)
    assert "a pause or resume is not known to other workers" in caplog.text
    await manager.close()


class Slow(MemoryStore):
    """Answers claims and looks at the queue of the worker group late, if it is told to."""

    slow = ""

    async def do_claim(self, requests: Sequence[Claim]) -> Any:
        answers = await super().do_claim(requests)
        await asyncio.sleep(0.2 if self.slow == "claim" else 0)
        return answers

    async def do_browse(self, *listing: Any, **order: Any) -> Any:
        found = await super().do_browse(*listing, **order)
        await asyncio.sleep(0.2 if self.slow == "browse" else 0)
        return found


@pytest.mark.parametrize("slow", ["claim", "browse"])
async def test_what_was_asked_before_does_not_undo_a_pause(slow: str) -> None:
    """A claim, or a look at what is paused, is under way when the lane is paused."""
    store, diary = Slow(clock=clock), Diary()
    manager, note = worker(store, diary)
    async with manager:
        await asyncio.sleep(1)
        store.slow = slow
        if slow == "claim":
            await manager.submit("x", note("a"))
        else:
            await store.put([Put(WORKERS_QUEUE, (("news", b"null"),))])
        await asyncio.sleep(0.1)
        await manager.pause("x")
        if slow == "browse":
            await manager.submit("x", note("a"))
        await asyncio.sleep(10)
        assert diary.names == []
        stats = (await manager.stats()).lanes["x"]
        assert (stats.paused, stats.pending, stats.active) == (True, 1, 0)
        await manager.resume("x")
        await manager.drain(1)
    assert diary.names == ["a"]
