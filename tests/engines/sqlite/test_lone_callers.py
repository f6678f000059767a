"""The event loop commits small transactions of lone callers itself, while that is quick."""

import asyncio
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from leasedkeyq.engines.sqlite import store as sqlite_store
from leasedkeyq.engines.sqlite import transaction as sqlite_transaction
from leasedkeyq.engines.sqlite.store import SqliteStore
from leasedkeyq.errors import StoreError
from leasedkeyq.model.requests import Ack, Placed, Put
from leasedkeyq.testing import ManualClock
from tests.engines.sqlite.support import claim, create, put, run

HOUR = 3600.0


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a commit takes on this machine, it counts as quick."""
    monkeypatch.setattr(sqlite_store, "QUICK", HOUR)


def threads_of(store: SqliteStore) -> list[int]:
    """The threads in which the store begins transactions from now on."""
    transact = store._transact_once
    seen: list[int] = []

    def note(*arguments: Any) -> Any:
        seen.append(threading.get_ident())
        return transact(*arguments)

    setattr(store, "_transact_once", note)  # noqa: B010  # type checkers know that it is a method
    return seen


@pytest.mark.usefixtures("quick")
def test_a_lone_caller_needs_no_thread(tmp_path: Path) -> None:
    async def use(store: SqliteStore) -> None:
        seen = threads_of(store)
        queue = store.queue("q")
        for number in range(5):
            await queue.put(f"key-{number}", number)
            _, value, lease = await queue.get()
            await queue.ack(lease)
            assert value == number
        assert set(seen) == {threading.get_ident()}
        assert store._writer._thread is None

    run(tmp_path / "q.db", use)


@pytest.mark.usefixtures("quick")
def test_many_callers_and_large_requests_go_to_the_thread(tmp_path: Path) -> None:
    async def use(store: SqliteStore) -> None:
        seen = threads_of(store)
        await asyncio.gather(*(store.put([put("q", f"key-{number}")]) for number in range(50)))
        await store.put([put("q", *(f"more-{number}" for number in range(50)))])
        await claim(store, limit=50)
        await store.edit("q", lambda items: [])
        assert threading.get_ident() not in seen
        assert len(seen) == 4

    run(tmp_path / "q.db", use)


def test_after_a_slow_commit_the_thread_commits_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_store, "QUICK", -1.0)
    monkeypatch.setattr(sqlite_store, "SHORTEST_PAUSE", HOUR)
    here = threading.get_ident()

    async def use(store: SqliteStore) -> None:
        seen = threads_of(store)
        for number in range(4):
            await store.put([put("q", f"key-{number}")])
        assert [thread == here for thread in seen] == [True, False, False, False]
        store._thread_until = 0.0  # as if an hour had passed
        while not store._writer._idle:
            await asyncio.sleep(0.001)
        await store.put([put("q", "last")])
        assert seen[-1] == here

    run(tmp_path / "q.db", use)


@pytest.mark.usefixtures("quick")
def test_an_event_loop_does_not_wait_for_another_process(tmp_path: Path) -> None:
    path = tmp_path / "q.db"

    async def use(store: SqliteStore) -> None:
        writer = sqlite3.connect(path, isolation_level=None)
        writer.execute("BEGIN IMMEDIATE")
        putting = asyncio.create_task(store.put([put("q", "a")]))
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert not putting.done()
        writer.execute("COMMIT")
        assert await putting == [(Placed(1, "added"),)]
        writer.close()

    run(path, use)


@pytest.mark.usefixtures("quick")
def test_an_event_loop_does_not_wait_until_many_items_have_expired(tmp_path: Path) -> None:
    clock = ManualClock()
    many = 2 * sqlite_transaction.EXPIRY_CHUNK + 10

    async def use(store: SqliteStore) -> None:
        await store.put([put("q", *(f"key-{number}" for number in range(many)))])
        await claim(store, limit=many, lease_time=5.0)
        while not store._writer._idle:
            await asyncio.sleep(0.001)
        seen = threads_of(store)
        clock.now += 6.0
        assert len(await claim(store)) == 1
        assert len(seen) == 2
        assert seen[0] == threading.get_ident() != seen[1]
        assert (await store.count(["q"]))["q"].available == many - 1

    run(tmp_path / "q.db", use, clock=clock)


@pytest.mark.usefixtures("quick")
def test_a_bad_request_beside_a_good_one_is_refused_alone(tmp_path: Path) -> None:
    async def use(store: SqliteStore) -> None:
        bad: Any = 17
        answers = await store.put([Put("q", (("bad", bad),)), put("q", "good")])
        assert isinstance(answers[0], StoreError)
        assert answers[1] == (Placed(1, "added"),)

    run(tmp_path / "q.db", use)


@pytest.mark.usefixtures("quick")
def test_a_failure_of_the_disk_in_the_event_loop_is_told(tmp_path: Path) -> None:
    async def use(store: SqliteStore) -> None:
        assert store._connection is not None
        store._connection.execute("PRAGMA max_page_count = 1")
        with pytest.raises(StoreError, match="the disk is full"):
            for number in range(1000):
                await store.put([put("q", f"key-{number}")])
        assert store._writer._thread is None

    run(tmp_path / "q.db", use)


@pytest.mark.usefixtures("quick")
def test_an_event_loop_does_not_wait_until_a_database_is_opened(tmp_path: Path) -> None:
    path, other = tmp_path / "q.db", tmp_path / "other.db"

    async def use(store: SqliteStore) -> None:
        opened = store._open
        seen: list[int] = []

        def note(*, create: bool) -> sqlite3.Connection:
            seen.append(threading.get_ident())
            return opened(create=create)

        setattr(store, "_open", note)  # noqa: B010  # type checkers know that it is a method
        store._disconnect()  # as after a failure of the disk
        await store.put([put("q", "a")])
        assert len(seen) == 1
        while not store._writer._idle:
            await asyncio.sleep(0.001)
        other.replace(path)
        await store.put([put("q", "b")])
        assert len(seen) == 2
        assert threading.get_ident() not in seen

    run(other, create)
    run(path, use)


@pytest.mark.usefixtures("quick")
def test_a_large_result_goes_to_the_thread(tmp_path: Path) -> None:
    async def use(store: SqliteStore) -> None:
        await store.put([put("q", "a")])
        [item] = await claim(store)
        seen = threads_of(store)
        result = bytes(sqlite_store.FEW_BYTES + 1)
        await store.settle([Ack("q", item.key, item.token, result=result, keep=60.0)])
        assert len(seen) == 1
        assert threading.get_ident() not in seen

    run(tmp_path / "q.db", use)


@pytest.mark.usefixtures("quick")
def test_the_log_is_written_back_by_the_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That may take long; so an event loop leaves it, and passes on a commit now and then."""
    monkeypatch.setattr(sqlite_store, "MOST_HERE", 5)
    log = tmp_path / "q.db-wal"
    here = threading.get_ident()

    async def use(store: SqliteStore) -> None:
        assert store._connection is not None
        store._connection.execute("PRAGMA wal_autocheckpoint = 1")
        seen = threads_of(store)
        sizes: list[int] = []
        for number in range(60):
            while not store._writer._idle:
                await asyncio.sleep(0.001)
            await store.put([put("q", f"key-{number}")])
            [pages] = store._connection.execute("PRAGMA wal_autocheckpoint").fetchone()
            assert pages == (0 if seen[-1] == here else 1)
            sizes.append(log.stat().st_size)
        assert [thread == here for thread in seen[:7]] == [True] * 5 + [False, True]
        assert len(seen) == 60
        # It is written back every sixth time, and begins anew: it does not grow for ever.
        assert max(sizes[30:]) <= max(sizes[:30])

    run(tmp_path / "q.db", use)
