"""Every worker of a store tells that it lives, and what it does."""

import asyncio
import os
import platform
import socket
from collections.abc import Sequence
from typing import Any

import pytest

import leasedkeyq
from leasedkeyq import MemoryStore
from leasedkeyq.lanes import LaneConfig, QueueManager, QueueManagerBuilder
from leasedkeyq.lanes.durable.engine import StoreEngine
from leasedkeyq.lanes.presence.directory import (
    WorkerRecord,
    pause_lane,
    read_paused,
    read_workers,
    resume_lane,
)
from leasedkeyq.lanes.presence.records import MOST_RUNNING, WORKERS_QUEUE, LaneLoad
from leasedkeyq.model.edit import Edit
from leasedkeyq.model.requests import (
    Answer,
    Cancel,
    Capabilities,
    Change,
    Claim,
    Counts,
    Extend,
    Limits,
    Put,
)
from tests.lanes.durable.workers_support import PARTS, Diary, memory, worker
from tests.lanes.support import clock, now


def engine(manager: QueueManager) -> StoreEngine:
    found = manager.queue()._engine
    assert isinstance(found, StoreEngine)
    return found


async def kill(manager: QueueManager) -> None:
    """End a worker as SIGKILL does: it tells nobody."""
    for task in engine(manager)._tasks:
        task.cancel()
    await asyncio.sleep(0)


async def only(store: MemoryStore) -> WorkerRecord:
    [record] = await read_workers(store)
    return record


async def test_a_worker_tells_who_it_is_until_it_is_closed() -> None:
    store = memory()
    manager, _ = worker(store, Diary(), "", LaneConfig(1, 4, lease_time=60))
    async with manager:
        await asyncio.sleep(0.5)
        record = await only(store)
        assert record.alive
        member = record.member
        assert (member.host, member.pid) == (socket.gethostname(), os.getpid())
        assert member.version == leasedkeyq.__version__
        assert member.python == platform.python_version()
        assert member.started_at == pytest.approx(clock(), abs=1)
        assert [
            tuple(getattr(lane, name) for name in lane.__struct_fields__) for lane in member.serves
        ] == [("x", 1, 4)]
        assert member.commands == ("note",)
        # It is renewed every 10 seconds, for 30, however long the leases of its lanes are.
        await asyncio.sleep(1000)
        record = await only(store)
        assert clock() - 10.1 <= record.seen_at <= clock()
        assert record.expires_at == pytest.approx(record.seen_at + 30)
    assert await read_workers(store) == []
    assert WORKERS_QUEUE not in await store.count()


async def test_a_worker_tells_what_it_runs() -> None:
    store = memory()
    manager, note = worker(store, Diary(), "", LaneConfig(0, 4, lease_time=9))
    async with manager:
        handles = [await manager.submit("x", note(name, 100.0), key=name) for name in "ab"]
        began = clock()
        await asyncio.sleep(4)
        presence = (await only(store)).presence
        shown = [(one.queue, one.key, one.kind, one.attempt) for one in presence.running]
        assert shown == [("x", "a", "note", 1), ("x", "b", "note", 1)]
        assert [one.since for one in presence.running] == pytest.approx([began, began], abs=0.1)
        assert presence.count == 2
        assert presence.loads == {"x": LaneLoad(2)}
        assert presence.memory > 2**20
        assert presence.blocked is None
        for handle in handles:
            await handle
        await asyncio.sleep(4)
        assert (await only(store)).presence.running == ()


async def test_only_the_longest_running_are_named_and_all_are_counted() -> None:
    store = memory()
    manager, note = worker(store, Diary(), "", LaneConfig(0, 1000))
    async with manager:
        await manager.submit("x", note("first", 100.0), key="first")
        await asyncio.sleep(1)
        await manager.submit_many("x", {f"k{n}": note("more", 100.0) for n in range(299)})
        await asyncio.sleep(11)
        presence = (await only(store)).presence
        assert presence.count == 300
        assert len(presence.running) == MOST_RUNNING
        assert presence.running[0].key == "first"


async def test_what_is_told_fits_the_store() -> None:
    """Long keys, many types, and a store that takes little: then less is told."""
    store = MemoryStore(clock=clock, limits=Limits(value_size=5000))
    manager, note = worker(store, Diary(), "", LaneConfig(0, 200))
    for number in range(500):
        manager.command(f"type number {number}", noop)
    async with manager:
        for number in range(30):
            await manager.submit("x", note("a", 100.0), key=f"{number}" + "k" * 400)
        await asyncio.sleep(15)
        record = await only(store)
        assert record.alive
        assert record.member.pid == os.getpid()
        assert record.member.commands == ()


async def noop() -> None: ...


async def test_a_manager_that_only_submits_is_no_worker() -> None:
    store = memory()
    submitter, note = worker(store, Diary())
    await submitter.submit("x", note("a"))
    elsewhere = (
        QueueManagerBuilder(clock=clock)
        .with_lane("x", LaneConfig(0, 1), 0)
        .with_lane("y", PARTS, 0, owned_partitions=[])
        .with_storage(store)
        .run_only("y")
        .build()
    )
    async with asyncio.timeout(100):
        await elsewhere.start()
    await asyncio.sleep(50)
    assert set(await store.count()) == {"x"}
    await elsewhere.close()
    await submitter.close()


class Counting(MemoryStore):
    """Notes every call, but for looks by the test."""

    def __init__(self) -> None:
        super().__init__(clock=clock)
        self.asked: list[str] = []
        for verb in ("put", "claim", "edit", "sweep", "browse", "look", "count", "heads"):
            name = f"do_{verb}"
            setattr(self, name, self._noting(verb, getattr(self, name)))

    def _noting(self, verb: str, call: Any) -> Any:
        def noting(*arguments: Any, **options: Any) -> Any:
            self.asked.append(verb)
            return call(*arguments, **options)

        return noting

    async def do_settle(self, requests: Sequence[Change]) -> list[Answer]:
        self.asked += [type(request).__name__ for request in requests]
        return await super().do_settle(requests)


async def test_an_idle_worker_renews_one_lease_and_asks_for_nothing() -> None:
    store = Counting()
    workers = [worker(store, Diary())[0] for _ in range(3)]
    for manager in workers:
        await manager.start()
    await asyncio.sleep(30)
    store.asked.clear()
    await asyncio.sleep(50)  # within a minute: then the values of the minute are looked at
    assert set(store.asked) <= {"Extend", "count"}
    assert store.asked.count("Extend") == pytest.approx(3 * 50 / 3, abs=6)
    for manager in workers:
        await manager.close()


class Dear(Counting):
    """As a file, which is written anew with each change."""

    capabilities = Capabilities(durability="none", cross_process=False, minute_series=False)


async def test_a_store_that_is_dear_to_write_is_told_once_a_minute() -> None:
    store = Dear()
    manager, _ = worker(store, Diary())
    async with manager:
        await asyncio.sleep(30)
        store.asked.clear()
        await asyncio.sleep(300)
        assert (await only(store)).alive
    assert store.asked[:6].count("Extend") == 5


async def test_workers_that_come_and_go_cost_the_others_little() -> None:
    store = Counting()
    others = [worker(store, Diary())[0] for _ in range(10)]
    manager, _ = worker(store, Diary())
    await manager.start()
    await asyncio.sleep(30)
    store.asked.clear()
    for other in others:
        await other.start()
    await asyncio.sleep(0.2)
    looks = store.asked.count("browse")
    assert looks <= 4 * len(others)  # and not as many as there are pairs of them
    await asyncio.sleep(30)
    store.asked.clear()
    for other in others:
        await other.close()
    await asyncio.sleep(1)
    assert not {"claim", "sweep"} & set(store.asked)
    assert store.asked.count("browse") <= 3 * len(others)
    await manager.close()


async def test_a_worker_of_the_version_before_was_not_seen_in_the_future() -> None:
    store = memory()
    await store.put([Put(WORKERS_QUEUE, (("worker:old", b'{"lanes":{"x":2},"types":"ab"}'),))])
    await store.claim([Claim(((WORKERS_QUEUE, 1),), 1, "worker:old", 30.0)])
    record = await only(store)
    assert record.alive
    assert record.seen_at <= clock()


async def test_a_worker_that_dies_is_shown_as_dead_for_an_hour() -> None:
    store = memory()
    (first, note), (second, _) = (worker(store, Diary()) for _ in range(2))
    await first.start()
    handle = await first.submit("x", note("a", 1000.0), key="a")
    await asyncio.sleep(4)
    [alive] = await read_workers(store)
    await kill(first)
    await second.start()
    await asyncio.sleep(100)
    [other, dead] = sorted(await read_workers(store), key=lambda one: one.alive, reverse=True)
    assert (other.alive, dead.alive) == (True, False)
    assert dead.id == alive.id
    assert dead.expires_at is None
    assert dead.seen_at == pytest.approx(alive.seen_at, abs=4)
    assert [one.key for one in dead.presence.running] == ["a"]
    counts = Counts(in_flight=1, done=1, done_failed=1)
    assert (await store.count([WORKERS_QUEUE]))[WORKERS_QUEUE] == counts
    await asyncio.sleep(3600)
    assert [one.id for one in await read_workers(store)] == [other.id]
    del handle
    await second.close()
    await first.close()


async def test_a_worker_cleans_up_after_one_that_died_without_a_reader() -> None:
    store = memory()
    (first, _), (second, _) = (worker(store, Diary()) for _ in range(2))
    await first.start()
    await asyncio.sleep(4)
    await kill(first)
    await asyncio.sleep(20)
    await second.start()
    await asyncio.sleep(1)
    counts = Counts(in_flight=1, done=1, done_failed=1)
    assert (await store.count([WORKERS_QUEUE]))[WORKERS_QUEUE] == counts
    await second.close()
    await first.close()


async def test_a_worker_that_was_taken_for_dead_registers_again() -> None:
    store = memory()
    manager, _ = worker(store, Diary())
    async with manager:
        await asyncio.sleep(5)
        before = await only(store)
        await store.settle([Cancel(WORKERS_QUEUE, f"worker:{before.id}")])
        await asyncio.sleep(5)
        after = await only(store)
        assert after.alive
        assert after.id != before.id
        assert after.member.started_at == before.member.started_at


async def test_a_worker_that_drains_is_there_until_its_last_command_has_ended() -> None:
    store = memory()
    manager, note = worker(store, Diary(), "", PARTS, sharing=True)
    await manager.start()
    await manager.submit("x", note("long", 60.0), key="a")
    await asyncio.sleep(5)
    ending = asyncio.create_task(manager._end(leave=True))
    await asyncio.sleep(30)
    record = await only(store)
    assert not ending.done()
    assert record.alive
    assert record.member.lanes == {}, "it shares no partitions any more"
    assert [one.key for one in record.presence.running] == ["a"]
    await asyncio.sleep(40)
    assert ending.done()
    await manager.close()
    assert await read_workers(store) == []


async def test_partitions_that_a_worker_owns_are_told() -> None:
    store = memory()
    workers = [worker(store, Diary(), "", PARTS, sharing=True)[0] for _ in range(2)]
    for manager in workers:
        await manager.start()
    await asyncio.sleep(20)
    parts = [record.presence.loads["x"].partitions for record in await read_workers(store)]
    assert all(parts)
    assert sorted(part for some in parts for part in some or ()) == list(range(16))
    for manager in workers:
        await manager.close()


async def test_a_store_that_fails_for_a_while_does_not_lose_a_worker(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Failing(MemoryStore):
        fails = False

        async def do_settle(self, requests: Sequence[Change]) -> list[Answer]:
            if self.fails and any(isinstance(one, Extend) for one in requests):
                raise OSError("no disk")
            return await super().do_settle(requests)

    store = Failing(clock=clock)
    manager, _ = worker(store, Diary())
    async with manager:
        await asyncio.sleep(5)
        store.fails = True
        await asyncio.sleep(60)
        assert [record.alive for record in await read_workers(store)] == [False]
        store.fails = False
        await asyncio.sleep(20)
        assert sorted(record.alive for record in await read_workers(store)) == [False, True]
    assert "the other workers could not be heard, trying again" in caplog.text


# With nothing but a store


async def test_a_lane_is_paused_and_resumed_with_nothing_but_a_store() -> None:
    store, diary = memory(), Diary()
    manager, note = worker(store, diary)
    async with manager:
        await pause_lane(store, "x")
        assert await read_paused(store) == ["x"]
        await asyncio.sleep(1)
        assert (await manager.stats()).lanes["x"].paused
        handle = await manager.submit("x", note("a"))
        await asyncio.sleep(50)
        assert diary.names == []
        began = now()
        assert await resume_lane(store, "x")
        await handle
        assert now() - began < 1
        assert not await resume_lane(store, "x")
        assert await read_paused(store) == []


async def test_items_of_another_version_are_left_out() -> None:
    store = memory()
    manager, _ = worker(store, Diary())
    async with manager:
        await asyncio.sleep(1)
        await store.put([Put(WORKERS_QUEUE, (("worker:odd", b"\xff[]"),))])
        assert len(await read_workers(store)) == 1


async def test_commands_run_while_nothing_can_be_told() -> None:
    """The store refuses what a worker tells of itself, and of others that have died."""

    class Refusing(MemoryStore):
        refuses = False

        async def do_put(self, requests: Sequence[Put]) -> Any:
            if self.refuses and requests[0].queue == WORKERS_QUEUE:
                raise OSError("no disk")
            return await super().do_put(requests)

        async def do_edit(self, edit: Edit) -> Any:
            if self.refuses and edit.queue == WORKERS_QUEUE:
                raise OSError("no disk")
            return await super().do_edit(edit)

    store = Refusing(clock=clock)
    dead, _ = worker(store, Diary())
    await dead.start()
    await asyncio.sleep(4)
    await kill(dead)
    await asyncio.sleep(20)
    store.refuses = True
    manager, note = worker(store, Diary())
    await manager.start()
    handle = await manager.submit("x", note("a"))
    async with asyncio.timeout(5):
        await handle
    store.refuses = False
    await manager.close()
    await dead.close()
