"""Edits where the conformance kit cannot look: threads, locks, failures, and going back."""

import asyncio
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from leasedkeyq.engines.file.store import FileStore
from leasedkeyq.engines.memory import MemoryStore
from leasedkeyq.engines.sqlite.store import SqliteStore
from leasedkeyq.errors import LeasedKeyQError, StoreClosedError, StoreError
from leasedkeyq.model.requests import (
    Ack,
    Bury,
    Cancel,
    Change,
    Claim,
    Extend,
    Placed,
    Put,
    Refusal,
    Release,
    StoredItem,
)
from leasedkeyq.stores.store import Store
from leasedkeyq.testing import ManualClock
from leasedkeyq.testing.differential import Differential
from leasedkeyq.testing.site import SMALL_LIMITS

PATIENCE = 60.0
"""Seconds until a test gives up waiting for something that must come."""

Changes = list[Put | Change]
Opener = Callable[[Path], Store]


def put(*keys: str, **options: Any) -> Put:
    return Put("q", tuple((key, b"1") for key in keys), **options)


class Work:
    """The work of an edit, which waits inside until it is let go, if asked to."""

    def __init__(self, *changes: Put | Change, waits: bool = False) -> None:
        self.changes = list(changes)
        self.seen: list[list[StoredItem]] = []
        self.inside = threading.Event()
        self.go = threading.Event()
        if not waits:
            self.go.set()

    def __call__(self, items: Sequence[StoredItem]) -> Changes:
        self.seen.append(list(items))
        self.inside.set()
        assert self.go.wait(PATIENCE)
        return self.changes

    @property
    def calls(self) -> int:
        return len(self.seen)


async def until(event: threading.Event) -> None:
    async with asyncio.timeout(PATIENCE):
        while not event.is_set():
            await asyncio.sleep(0.001)


async def keys_in(store: Store) -> list[str]:
    return [item.key for item in (await store.browse("q")).items]


def run(opener: Opener, folder: Path, scenario: Callable[[Any], Awaitable[None]]) -> None:
    async def main() -> None:
        store = opener(folder)
        try:
            await scenario(store)
        finally:
            await store.close()

    asyncio.run(main())


def sqlite_store(folder: Path) -> SqliteStore:
    return SqliteStore(folder / "q.db")


def yaml_store(folder: Path) -> FileStore:
    return FileStore(folder / "q.yaml")


def json_store(folder: Path) -> FileStore:
    return FileStore(folder / "q.json")


def memory_store(_: Path) -> MemoryStore:
    return MemoryStore()


every_store = pytest.mark.parametrize(
    "opener", [memory_store, sqlite_store, yaml_store, json_store]
)
with_thread = pytest.mark.parametrize("opener", [sqlite_store, yaml_store])


# Going back


@pytest.mark.parametrize("seed", range(8))
def test_a_copy_of_a_queue_goes_on_as_the_queue_does(seed: int) -> None:
    async def main() -> None:
        clock = ManualClock()
        store = MemoryStore(limits=SMALL_LIMITS, clock=clock)
        differential = Differential([store], clock, seed)
        for _ in range(30):
            await differential.run(20)
            model = store._model
            model.queues = {name: queue_model.copy() for name, queue_model in model.queues.items()}

    asyncio.run(main())


def test_what_comes_after_a_lease_is_not_forgotten_when_an_edit_is_undone() -> None:
    async def main() -> None:
        clock = ManualClock()
        store = MemoryStore(clock=clock)
        await store.put([put("a", "b")])
        [[a, b]] = await store.claim([Claim((("q", 2),), 2, None, 50.0)])
        await store.put([put("a", delay=10.0)])
        with pytest.raises(Refusal):
            await store.edit("q", lambda _: [put("a", delay=0), Ack("q", "b", "nobody")])
        await store.settle([Release("q", "a", a.token), Extend("q", "b", b.token, 20.0)])
        assert [item.state for item in (await store.browse("q")).items] == [
            "scheduled",
            "in_flight",
        ]
        clock.now += 10
        assert await store.claim([Claim((("q", 2),), 2)]) != [()]
        clock.now += 10
        [[back]] = await store.claim([Claim((("q", 2),), 2)])
        assert (back.key, back.attempt) == ("b", 2)

    asyncio.run(main())


def test_an_undone_burial_drops_and_reports_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        store = MemoryStore(limits=SMALL_LIMITS)
        keys = [f"k{number}" for number in range(SMALL_LIMITS.buried + 2)]
        await store.put([put(*keys)])
        await store.claim([Claim((("q", 99),), 99)])

        def bury(items: Sequence[StoredItem]) -> Changes:
            return [*(Bury("q", item.key, item.token) for item in items), Ack("q", "x", "nobody")]

        with pytest.raises(Refusal):
            await store.edit("q", bury)
        assert (await store.count(["q"]))["q"].in_flight == len(keys)
        await store.settle([Cancel("q", "k0")])

    asyncio.run(main())
    assert not caplog.records


# What the work raises


@every_store
@pytest.mark.parametrize(
    "error",
    [StopIteration(7), KeyboardInterrupt(), sqlite3.OperationalError("locked"), OSError(28)],
)
def test_whatever_the_work_raises_is_told_and_breaks_nothing(
    tmp_path: Path, opener: Opener, error: BaseException
) -> None:
    def work(_: Sequence[StoredItem]) -> Changes:
        raise error

    async def scenario(store: Store) -> None:
        await store.put([put("a")])
        # A coroutine cannot raise StopIteration: Python makes a RuntimeError of it.
        expected = RuntimeError if isinstance(error, StopIteration) else type(error)
        with pytest.raises(expected) as found:
            await store.edit("q", work)
        assert error in (found.value, found.value.__cause__)
        assert await store.edit("q", Work(put("b"))) == [(Placed(2, "added"),)]

    run(opener, tmp_path, scenario)


@every_store
def test_what_cannot_be_stored_is_refused_as_a_whole(tmp_path: Path, opener: Opener) -> None:
    async def scenario(store: Store) -> None:
        wrong: Any = Put("q", (("c", "not bytes"),))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        if isinstance(store, MemoryStore):
            wrong = Put("q", (("c", b"1"),), delay="soon")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        with pytest.raises((StoreError, TypeError)):
            await store.edit("q", Work(put("a"), put("b"), wrong))
        assert await keys_in(store) == []
        assert await store.put([put("a")]) == [(Placed(1, "added"),)]

    run(opener, tmp_path, scenario)


@pytest.mark.parametrize("kind", ["lone \ud800 surrogate"])
@with_thread
def test_a_kind_that_is_no_text_is_refused(tmp_path: Path, opener: Opener, kind: str) -> None:
    async def scenario(store: Store) -> None:
        [answer] = await store.put([put("a", kind=kind)])
        assert isinstance(answer, StoreError)
        with pytest.raises(StoreError):
            await store.edit("q", Work(put("b"), put("a", kind=kind)))
        assert await keys_in(store) == []

    run(opener, tmp_path, scenario)


# In its turn, alone


@with_thread
def test_others_wait_for_an_edit_and_none_of_them_is_harmed(tmp_path: Path, opener: Opener) -> None:
    async def scenario(store: Store) -> None:
        first = Work(put("b"), waits=True)
        failing = Work(put("d"), Ack("q", "a", "nobody"))
        last = Work()
        calls: list[Awaitable[Any]] = [
            store.put([put("a")]),
            store.edit("q", first),
            store.put([put("c")]),
            store.edit("q", failing),
            store.put([put("e")]),
            store.edit("q", last),
        ]
        tasks = [asyncio.ensure_future(call) for call in calls]
        await until(first.inside)
        assert [task.done() for task in tasks[1:]] == [False] * 5
        assert not failing.inside.is_set()
        first.go.set()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(answers[3], Refusal)
        assert [a for a in answers if not isinstance(a, Refusal)] == [
            [(Placed(1, "added"),)],
            [(Placed(2, "added"),)],
            [(Placed(3, "added"),)],
            [(Placed(4, "added"),)],
            [],
        ]
        seen = [[item.key for item in work.seen[0]] for work in (first, failing, last)]
        assert seen == [["a"], ["a", "b", "c"], ["a", "b", "c", "e"]]

    run(opener, tmp_path, scenario)


@with_thread
def test_an_edit_that_is_cancelled_in_its_work_happens(tmp_path: Path, opener: Opener) -> None:
    async def scenario(store: Store) -> None:
        running, waiting = Work(put("a"), put("b"), waits=True), Work(put("c"))
        tasks = [asyncio.create_task(store.edit("q", work)) for work in (running, waiting)]
        await until(running.inside)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        running.go.set()
        assert await keys_in(store) == ["a", "b"]
        assert (running.calls, waiting.calls) == (1, 0)

    run(opener, tmp_path, scenario)


@with_thread
def test_closing_waits_for_an_edit(tmp_path: Path, opener: Opener) -> None:
    async def scenario(store: Store) -> None:
        work = Work(put("a"), waits=True)
        edit = asyncio.create_task(store.edit("q", work))
        await until(work.inside)
        closing = asyncio.create_task(store.close())
        await asyncio.sleep(0)
        late = Work()
        with pytest.raises(StoreClosedError):
            await store.edit("q", late)
        work.go.set()
        assert await edit == [(Placed(1, "added"),)]
        await closing
        assert late.calls == 0

    run(opener, tmp_path, scenario)


# SQLite


class Refusing:
    """A connection on which one statement fails."""

    def __init__(self, connection: sqlite3.Connection, statement: str, code: int) -> None:
        self._connection = connection
        self._statement = statement
        self._code = code

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def execute(self, sql: str, *values: Any) -> Any:
        if sql == self._statement:
            error = sqlite3.OperationalError("planted")
            error.sqlite_errorcode = self._code
            raise error
        return self._connection.execute(sql, *values)


@pytest.mark.parametrize("code", [sqlite3.SQLITE_BUSY, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR])
def test_a_commit_that_fails_does_not_call_the_work_again(tmp_path: Path, code: int) -> None:
    async def scenario(store: SqliteStore) -> None:
        await store.put([put("a")])
        connection = store._connection
        assert connection is not None
        store._connection = Refusing(connection, "COMMIT", code)  # type: ignore[assignment]  # pyright: ignore[reportAttributeAccessIssue]
        work = Work(put("b"), Cancel("q", "a"))
        with pytest.raises(StoreError, match="planted"):
            await store.edit("q", work)
        assert work.calls == 1
        if store._connection is not None:  # After a failure of the disk it begins with a new one.
            store._connection = connection
        assert await keys_in(store) == ["a"]
        assert await store.edit("q", work) == [(Placed(2, "added"),), 1]

    run(sqlite_store, tmp_path, scenario)


def test_an_edit_that_waits_for_another_process_calls_its_work_once(tmp_path: Path) -> None:
    async def scenario(store: SqliteStore) -> None:
        other = sqlite3.connect(tmp_path / "q.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        work = Work(put("a"))
        edit = asyncio.create_task(store.edit("q", work))
        await asyncio.sleep(0.1)
        assert work.calls == 0
        other.execute("ROLLBACK")
        other.close()
        assert await edit == [(Placed(1, "added"),)]
        assert work.calls == 1

    run(sqlite_store, tmp_path, scenario)


def test_an_edit_that_cannot_begin_does_not_call_its_work(tmp_path: Path) -> None:
    async def scenario(store: SqliteStore) -> None:
        other = sqlite3.connect(tmp_path / "q.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        work = Work(put("a"))
        with pytest.raises(StoreError, match="locked"):
            await store.edit("q", work)
        other.close()
        (tmp_path / "q.db").rename(tmp_path / "away.db")
        with pytest.raises(StoreError, match="deleted or moved"):
            await store.edit("q", work)
        (tmp_path / "away.db").rename(tmp_path / "q.db")
        assert work.calls == 0
        assert await store.edit("q", work) == [(Placed(1, "added"),)]

    def impatient(folder: Path) -> SqliteStore:
        return SqliteStore(folder / "q.db", busy_timeout=0.05)

    run(impatient, tmp_path, scenario)


# The file


@pytest.mark.parametrize("opener", [yaml_store, json_store])
def test_an_edit_that_is_stopped_leaves_the_file_byte_by_byte(
    tmp_path: Path, opener: Opener
) -> None:
    def failing(_: Sequence[StoredItem]) -> Changes:
        raise LookupError

    def files() -> list[tuple[Path, bytes, int]]:
        found = sorted(path for path in tmp_path.iterdir() if path.suffix != ".lock")
        return [(path, path.read_bytes(), path.stat().st_ino) for path in found]

    async def scenario(store: FileStore) -> None:
        await store.put([put("a", "b", kind="mail")])
        await store.claim([Claim((("q", 1),), 1, None, 0.001)])
        before = files()
        works: list[Any] = [
            failing,
            Work(put("c"), Ack("q", "b", "nobody")),
            Work(put("c"), put("\x00")),
        ]
        for work in works:
            with pytest.raises((LookupError, LeasedKeyQError)):
                await store.edit("q", work)
            assert files() == before
        assert await store.edit("q", Work(put("c"))) == [(Placed(3, "added"),)]
        assert await keys_in(store) == ["a", "b", "c"]

    run(opener, tmp_path, scenario)


def test_what_fails_after_the_work_is_told_and_the_work_is_not_called_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(store: FileStore) -> None:
        await store.put([put("a")])
        work = Work(put("b"))

        def full(*_: Any) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(store.engine.file._ops, "write", full)
            with pytest.raises(StoreError, match="free some space"):
                await store.edit("q", work)
        assert work.calls == 1
        assert await keys_in(store) == ["a"]
        assert await store.edit("q", work) == [(Placed(2, "added"),)]

    run(yaml_store, tmp_path, scenario)
