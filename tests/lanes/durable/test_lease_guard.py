"""`LeaseGuard`: leases outlast an event loop that is blocked."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from leasedkeyq import MemoryStore, StoreError, connect
from leasedkeyq.errors import StoreClosedError
from leasedkeyq.lanes import LaneConfig, QueueManager, QueueManagerBuilder, current_command
from leasedkeyq.lanes.durable.heartbeat import Heartbeat
from leasedkeyq.lanes.durable.lease_guard import LeaseGuard
from leasedkeyq.lanes.presence.records import WORKERS_QUEUE
from leasedkeyq.lanes.running.job import Job
from leasedkeyq.lanes.running.lane import Lane
from leasedkeyq.model.requests import Answer, Capabilities, Claimed, Extend, Refusal
from leasedkeyq.stores import Store
from leasedkeyq.testing import ManualClock
from tests.servers.urls import empty_store

PATIENCE = 60.0
LEASE, HEARTBEAT = 6.0, 1.0
"""Seconds. The guard renews after 2.25 s: a machine that stands for 3 s changes nothing."""
BLOCKED = 8.0
"""Seconds for which an event loop is blocked: without the guard, all its leases end."""


@pytest.fixture(autouse=True)
def nothing_goes_on() -> Iterator[None]:
    """What threads still write to the log belongs to the test that began them."""
    yield
    for thread in threading.enumerate():
        if thread.name in ("leasedkeyq loop watch", "leasedkeyq log"):
            thread.join(PATIENCE)


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)


# In real time: two workers, one of which is blocked


class Workers:
    """Two workers of one store, each in a thread of its own, and what they have run."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.ran: list[tuple[str, str]] = []
        self.other_is_up = threading.Event()
        self.done = threading.Event()

    def build(self, name: str) -> tuple[QueueManager, dict[str, Any]]:
        config = LaneConfig(0, 8, lease_time=LEASE, heartbeat=HEARTBEAT, partitions=2)
        builder = QueueManagerBuilder().with_lane("work", config, 0).with_storage(self.url)
        # Both run all partitions: the other worker takes at once what the first one loses.
        manager = builder.with_partition_sharing(False).build()

        async def neighbour() -> str:
            self.ran.append((name, current_command().key))
            while not self.done.is_set():
                await asyncio.sleep(0.05)
            return name

        async def block() -> str:
            self.ran.append((name, current_command().key))
            while len(self.ran) < 4 or not self.other_is_up.is_set():
                await asyncio.sleep(0.05)
            time.sleep(BLOCKED)  # noqa: ASYNC251  # that is the point
            self.done.set()
            return name

        commands = {"neighbour": neighbour, "block": block}
        return manager, {kind: manager.command(kind, it) for kind, it in commands.items()}

    async def blocked(self) -> dict[str, str]:
        manager, commands = self.build("blocked")
        async with manager, asyncio.timeout(PATIENCE):
            handles = {
                key: await manager.submit("work", commands[key.split()[0]](), key=key)
                for key in ("neighbour 1", "neighbour 2", "neighbour 3", "block")
            }
            while len(self.ran) < len(handles):
                await asyncio.sleep(0.05)
            threading.Thread(target=asyncio.run, args=(self.other(),), daemon=True).start()
            return {key: await handle for key, handle in handles.items()}

    async def other(self) -> None:
        manager, _ = self.build("other")
        async with asyncio.timeout(PATIENCE):
            await manager.start()
            self.other_is_up.set()
            while not self.done.is_set():
                await asyncio.sleep(0.05)
        await manager.close()


def test_a_blocked_worker_keeps_all_its_leases_on_every_store(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with ExitStack() as stores:
        kinds = ("sqlite", "file", "postgresql", "redis")
        workers = {
            kind: Workers(stores.enter_context(empty_store(kind, tmp_path))) for kind in kinds
        }
        results: dict[str, Any] = {}

        def run(kind: str) -> None:
            results[kind] = asyncio.run(workers[kind].blocked())

        threads = [threading.Thread(target=run, args=(kind,), daemon=True) for kind in kinds]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
    keys = ["block", "neighbour 1", "neighbour 2", "neighbour 3"]
    for kind in kinds:
        assert sorted(workers[kind].ran) == [("blocked", key) for key in keys], kind
        assert results[kind] == dict.fromkeys(keys, "blocked"), kind
    assert "was lost" not in caplog.text
    # More often if the machine itself stood for a while.
    assert caplog.text.count("4 leases are renewed by another thread") >= len(kinds)
    until(lambda: caplog.text.count("command 'block' of key 'block' ran ") >= len(kinds))


def test_a_worker_on_a_store_in_memory_keeps_its_leases_too() -> None:
    store = MemoryStore()
    config = LaneConfig(0, 8, lease_time=LEASE, heartbeat=HEARTBEAT)
    manager = QueueManagerBuilder().with_lane("work", config, 0).with_storage(store).build()
    attempts: list[int] = []

    @manager.command("block")
    async def block() -> str:
        attempts.append(current_command().attempt)
        time.sleep(BLOCKED)  # noqa: ASYNC251  # that is the point
        return "done"

    @manager.command("neighbour")
    async def neighbour() -> str:
        attempts.append(current_command().attempt)
        await asyncio.sleep(0.1)
        return "done"

    async def main() -> None:
        async with manager, asyncio.timeout(PATIENCE):
            others = [await manager.submit("work", neighbour()) for _ in range(3)]
            handle = await manager.submit("work", block())
            assert await handle == "done"
            assert [await other for other in others] == ["done"] * 3

    asyncio.run(main())
    assert attempts == [1] * 4


# By hand, with a clock that is moved


class Recorded(MemoryStore):
    """Notes what is renewed, and can fail."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[list[str]] = []
        self.failure: Exception | None = None
        self.refused: set[str] = set()

    async def extend_apart(self, requests: Sequence[Extend]) -> list[Answer]:
        self.asked.append([request.key for request in requests])
        if self.failure is not None:
            raise self.failure
        return [Refusal(one.key) if one.key in self.refused else 1.0 for one in requests]


class Guarded:
    """A guard of three leases, of two lanes: 30 s, renewed every 10 s, and 60 s."""

    def __init__(self, store: MemoryStore) -> None:
        self.time = ManualClock()
        lanes = {
            "quick": Lane("quick", 0, LaneConfig(), 0),
            "slow": Lane("slow", 1, LaneConfig(lease_time=60), 0),
        }
        self.held = {key: self.job(key, lanes["slow" if key == "c" else "quick"]) for key in "abc"}
        self.membership: Extend | None = None
        self.heartbeat = Heartbeat(store, lanes, self.held, lambda _: True, lambda *_: None)
        self.heartbeat.renewed_at = self.time()
        self.guard = LeaseGuard(
            store,
            lanes,
            self.held,
            self.heartbeat,
            lambda: self.membership,
            clock=self.time,
        )

    def job(self, key: str, lane: Lane) -> Job:
        job = Job(1, lane.partitions[0], "work", key, None, 0.0, 0, None, None)
        job.lease = Claimed(lane.id, key, b"", 1, key, 1, 1, 0, None, 0.0)
        return job

    def pass_time(self, seconds: float) -> None:
        for _ in range(round(seconds / self.guard.tick)):
            self.time.advance(self.guard.tick)
            self.guard.keep()


def test_nothing_is_asked_before_a_renewal_is_overdue() -> None:
    store = Recorded()
    guarded = Guarded(store)
    # Renewed every 10 s, and expired after 30 s: overdue after 15 s.
    guarded.pass_time(14.5)
    assert store.asked == []
    guarded.pass_time(1)
    assert store.asked == [["a", "b", "c"]]
    guarded.pass_time(13.5)
    assert len(store.asked) == 1
    guarded.pass_time(16)
    assert len(store.asked) == 3
    # The event loop has gone on for a moment, and renewed them itself.
    guarded.heartbeat.renewed_at = guarded.time()
    guarded.pass_time(14.5)
    assert len(store.asked) == 3
    guarded.guard.let_go()


def test_settled_leases_and_the_membership_come_and_go() -> None:
    store = Recorded()
    guarded = Guarded(store)
    assert guarded.guard.is_needed()
    del guarded.held["b"]
    guarded.membership = Extend(WORKERS_QUEUE, "worker:1", "token", 30.0)
    guarded.pass_time(16)
    assert store.asked == [["a", "c", "worker:1"]]
    guarded.held.clear()
    assert guarded.guard.is_needed()
    guarded.membership = None
    assert not guarded.guard.is_needed()
    guarded.pass_time(100)
    assert len(store.asked) == 1
    guarded.guard.let_go()


def test_a_lease_that_has_ended_is_not_asked_for_again() -> None:
    store = Recorded()
    store.refused = {"a", "c"}
    guarded = Guarded(store)
    guarded.pass_time(31)
    assert store.asked == [["a", "b", "c"], ["b"]]
    guarded.guard.let_go()
    guarded.pass_time(31)
    assert store.asked[2] == ["a", "b", "c"]
    guarded.guard.let_go()


def test_a_store_out_of_reach_is_logged_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    store = Recorded()
    store.failure = StoreError("the server is away")
    guarded = Guarded(store)
    guarded.pass_time(21)
    tries = len(store.asked)
    # Overdue after 15 s; then after pauses of 0.1 s, 0.2 s and so on, up to 5 s.
    assert tries in range(5, 8)
    text = "3 leases could not be renewed while the event loop is blocked, trying again: the server"
    assert text in caplog.text
    store.failure = None
    guarded.pass_time(5)
    assert len(store.asked) == tries + 1
    guarded.pass_time(9)
    assert len(store.asked) == tries + 1
    guarded.guard.let_go()


def test_a_closed_store_is_not_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    store = Recorded()
    store.failure = StoreClosedError("closed")
    guarded = Guarded(store)
    guarded.pass_time(100)
    assert len(store.asked) == 1
    assert caplog.messages == []
    guarded.guard.let_go()


def test_a_store_that_cannot_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    store = Recorded()
    store.capabilities = Capabilities(durability="none", cross_process=False)
    guarded = Guarded(store)
    guarded.pass_time(50)
    guarded.guard.let_go()
    guarded.pass_time(50)
    assert store.asked == []
    [line] = caplog.messages
    assert line == (
        "3 leases are not renewed while the event loop is blocked, and their commands may be run "
        "a second time: Recorded cannot renew them from another thread (capabilities.extends_apart)"
    )


def test_a_store_says_that_it_cannot() -> None:
    class Plain(MemoryStore):
        capabilities = Capabilities(durability="none", cross_process=False)
        extend_apart = Store.extend_apart

    with pytest.raises(StoreError, match="the memory store cannot renew leases from another thre"):
        asyncio.run(Plain().extend_apart([]))


def test_a_store_that_hangs_is_given_up_in_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("leasedkeyq.lanes.durable.lease_guard.TRIP", 0.01)

    class Hanging(Recorded):
        async def extend_apart(self, requests: Sequence[Extend]) -> list[Answer]:
            await asyncio.sleep(3600)
            raise AssertionError

    guarded = Guarded(Hanging())
    guarded.pass_time(15.5)
    assert "trying again: the store did not answer within 0.01 s" in caplog.text
    guarded.guard.let_go()


def test_looks_are_as_frequent_as_short_leases_need() -> None:
    guarded = Guarded(Recorded())
    assert (guarded.guard.tick, guarded.guard.notice) == (0.25, 2.0)
    short = Lane("short", 2, LaneConfig(lease_time=0.6), 0)
    guarded.guard._lanes = {"short": short}
    assert guarded.guard.tick == pytest.approx(0.05)
    assert guarded.guard.notice == 1.0


def test_a_worker_is_not_taken_for_dead_while_it_is_blocked(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    config = LaneConfig(0, 8, lease_time=LEASE, heartbeat=HEARTBEAT, partitions=2)
    manager = QueueManagerBuilder().with_lane("work", config, 0).with_storage(url).build()

    @manager.command("block")
    async def block() -> None:
        time.sleep(BLOCKED)  # noqa: ASYNC251  # that is the point

    async def members() -> list[tuple[str, str, int]]:
        async with connect(url) as store:
            await store.sweep([WORKERS_QUEUE])
            found = (await store.browse(WORKERS_QUEUE)).items
            return [(item.key, item.state, item.attempt) for item in found]

    async def main() -> None:
        async with manager, asyncio.timeout(PATIENCE):
            await (await manager.submit("work", block()))
            # Before its own task gets a turn, another process looks.
            seen = await asyncio.to_thread(partial(asyncio.run, members()))
            [(name, state, attempt)] = seen
            assert name.startswith("worker:")
            assert (state, attempt) == ("in_flight", 1)

    asyncio.run(main())
