"""The SQLite store: it means what the machine means, shares its file, and loses nothing."""

import asyncio
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from leasedkeyq.errors import StoreClosedError, StoreError
from leasedkeyq.stores import sqlite_engine, sqlite_moves, sqlite_reads, sqlite_schema
from leasedkeyq.stores.contract import Ack, Claim, Claimed, Counts, Put, Refusal, Release
from leasedkeyq.stores.sqlite import SqliteStore
from leasedkeyq.stores.store import Store
from leasedkeyq.testing import ManualClock
from leasedkeyq.testing.differential import Differential
from leasedkeyq.testing.site import SMALL_LIMITS

Scenario = Callable[[SqliteStore], Awaitable[None]]


def run(path: Path, scenario: Scenario, **options: Any) -> None:
    """Open a store, do something with it, close it."""

    async def main() -> None:
        store = SqliteStore(path, **options)
        try:
            await scenario(store)
        finally:
            await store.close()

    asyncio.run(main())


async def create(store: SqliteStore) -> None:
    """Opening is all."""


def put(queue: str, *keys: str, **options: Any) -> Put:
    return Put(queue, tuple((key, b"1") for key in keys), **options)


async def claim(store: Store, queue: str = "q", limit: int = 1, **options: Any) -> list[Claimed]:
    (claimed,) = await store.claim([Claim(((queue, limit),), limit, **options)])
    return list(claimed)


async def ack(store: Store, item: Claimed) -> Any:
    return (await store.settle([Ack(item.queue, item.key, item.token)]))[0]


def python(code: str, *arguments: object, **options: Any) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, text=True, **options)


def delete(path: Path) -> None:
    """Remove a database with its log."""
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink()


# The meaning


@pytest.mark.parametrize("seed", range(6))
def test_it_answers_as_the_machine_does(tmp_path: Path, seed: int) -> None:
    clock = ManualClock()

    async def compare(store: SqliteStore) -> None:
        await Differential([store], clock, seed).run(600)

    run(tmp_path / "q.db", compare, durability="normal", limits=SMALL_LIMITS, clock=clock)


def test_several_store_objects_on_one_file_answer_as_one_machine_does(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        stores: list[Store] = [
            SqliteStore(tmp_path / "q.db", durability="normal", limits=SMALL_LIMITS, clock=clock)
            for _ in range(3)
        ]
        differential = Differential(stores, clock, 77)
        for _ in range(10):
            await differential.run(60)
            # One of them closes and another one opens what it left.
            await differential.stores.pop(0).close()
            again = SqliteStore(
                tmp_path / "q.db", durability="normal", limits=SMALL_LIMITS, clock=clock
            )
            differential.stores.append(again)
        for store in differential.stores:
            await store.close()

    asyncio.run(main())


def test_many_expiries_at_once_keep_their_order(tmp_path: Path) -> None:
    clock = ManualClock()
    many = sqlite_moves.EXPIRY_CHUNK * 2 + 50
    keys = [f"k{number:04}" for number in range(many)]

    async def expire(store: SqliteStore) -> None:
        await store.put([put("q", *keys)])
        assert [item.key for item in await claim(store, limit=many, lease_time=5)] == keys
        await store.put([put("q", "k0000", delay=7.0)])
        clock.now += 10
        found = [item.key for item in await claim(store, limit=many)]
        assert found == [*keys[1:], "k0000"]

    run(tmp_path / "q.db", expire, clock=clock)


def test_the_clock_never_runs_back(tmp_path: Path) -> None:
    clock = ManualClock(1000.0)

    async def step(store: SqliteStore) -> None:
        await store.put([put("q", "a")])
        clock.now = 10.0
        (item,) = await claim(store, lease_time=5.0)
        assert item.expires_at == 1005.0

    run(tmp_path / "q.db", step, clock=clock)


def test_a_request_that_cannot_be_stored_spoils_no_other(tmp_path: Path) -> None:
    async def mix(store: SqliteStore) -> None:
        requests = [put("q", "a"), put("q", "b", "\ud800"), put("q", "c", priority=2**70)]
        good, bad, worse, also_good = await store.put([*requests, put("q", "d")])
        assert (good, also_good) == ((1,), (2,))
        for refusal in (bad, worse):
            assert isinstance(refusal, StoreError)
            assert "cannot be stored" in str(refusal)
        assert (await store.count())["q"] == Counts(available=2)
        with pytest.raises(StoreError):
            await store.look("q", ["\ud800"])

    run(tmp_path / "q.db", mix)


def test_a_cancelled_claim_leaves_the_queue_as_it_was(tmp_path: Path) -> None:
    async def cancel(store: SqliteStore) -> None:
        keys = [f"k{number}" for number in range(20)]
        await store.put([put("q", *keys)])
        for delay in range(60):
            task = asyncio.create_task(claim(store, limit=2))
            await asyncio.sleep(delay / 20_000)
            if task.cancel():
                with pytest.raises(asyncio.CancelledError):
                    await task
            else:
                for item in await task:
                    await store.settle([Release("q", item.key, item.token, undo=True)])
        await store.settle([])
        items = await claim(store, limit=100)
        assert [item.key for item in items] == keys
        assert {item.attempt for item in items} == {1}

    run(tmp_path / "q.db", cancel, durability="normal")


# Cost


def plans(path: Path, sql: str, *values: Any) -> list[str]:
    connection = sqlite3.connect(path)
    try:
        rows = connection.execute(f"EXPLAIN QUERY PLAN {sql}", values).fetchall()
    finally:
        connection.close()
    return [row[3] for row in rows]


def listing(shown: str, table: str, number: str, rest: str) -> str:
    columns = getattr(sqlite_reads, shown)
    return f"SELECT {columns} FROM {table} WHERE queue = ? AND {number} > ? {rest}"


@pytest.mark.parametrize(
    "sql,values,index",
    [
        (sqlite_engine.NEXT_READY, (1, 10), "items_ready (queue=?)"),
        (
            sqlite_engine.NEXT_OF_KINDS.format("?, ?"),
            (1, "mail", "call", 10),
            "items_ready (queue=?)",
        ),
        (sqlite_engine.READY_KEY, (1, "a"), "items_by_key (queue=? AND key=?)"),
        (sqlite_moves.LIVE, (1, "a"), "items_by_key (queue=? AND key=?)"),
        (sqlite_moves.COMING_DUE, (1, 5.0), "items_timed (queue=? AND due"),
        (sqlite_moves.EARLIEST, (1,), "items_timed (queue=?"),
        (sqlite_moves.EARLIEST_RESULT, (1,), "done_by_due (queue=?)"),
        (sqlite_moves.OLD_RESULTS, (1, 5.0), "COVERING INDEX done_by_due (queue=? AND due<?)"),
        (sqlite_reads.HEAD, (1,), "items_ready (queue=?)"),
        (
            "SELECT id, key FROM buried WHERE queue = ? ORDER BY number LIMIT 1",
            (1,),
            "buried_by_age (queue=?)",
        ),
        (
            listing(
                "SHOWN_LIVE",
                "items INDEXED BY items_by_queue",
                "id",
                "AND state IN (0, 1) ORDER BY id LIMIT ?",
            ),
            (1, 5, 100),
            "items_by_queue (queue=? AND rowid>?)",
        ),
        (
            listing(
                "SHOWN_BUFFERED",
                "items INDEXED BY items_buffered",
                "next_id",
                "AND next_id IS NOT NULL ORDER BY next_id LIMIT ?",
            ),
            (1, 5, 100),
            "items_buffered (queue=? AND next_id>?)",
        ),
        *((sql, (1, "a"), "_by_key (queue=? AND key=?)") for sql in sqlite_reads.PARTS_BY_KEY),
        (
            listing(
                "SHOWN_BURIED", "buried INDEXED BY buried_by_queue", "id", "ORDER BY id LIMIT ?"
            ),
            (1, 5, 100),
            "buried_by_queue (queue=? AND rowid>?)",
        ),
    ],
)
def test_a_query_goes_by_its_index_and_sorts_nothing(
    tmp_path: Path, sql: str, values: tuple[Any, ...], index: str
) -> None:
    path = tmp_path / "q.db"

    async def fill(store: SqliteStore) -> None:
        await store.put([put("q", *(f"k{number}" for number in range(500)))])
        await store.put([put("q", *(f"s{number}" for number in range(500)), delay=60.0)])
        await claim(store, limit=100, lease_time=60.0)

    run(path, fill)
    for analysed in (False, True):
        if analysed:
            connection = sqlite3.connect(path)
            connection.execute("ANALYZE")
            connection.close()
        (plan,) = plans(path, sql, *values)
        assert plan.startswith("SEARCH ")
        assert index in plan


def test_the_writes_by_row_use_the_row(tmp_path: Path) -> None:
    run(tmp_path / "q.db", create)
    for sql, count in ((sqlite_engine.LEASE, 6), (sqlite_moves.MOVE, 10)):
        (plan,) = plans(tmp_path / "q.db", sql, *[1] * count)
        assert plan == "SEARCH items USING INTEGER PRIMARY KEY (rowid=?)"


def test_asking_an_empty_queue_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "q.db"

    async def ask(store: SqliteStore) -> None:
        await store.put([put("full", "a")])
        version = await commits(store)
        await claim(store, "empty")
        await store.sweep("empty")
        await store.count()
        await store.settle([Ack("empty", "a", "token"), Ack("full", "a", "token")])
        await store.put([put("empty", "a", "b", max_items=1)])
        assert await commits(store) == version

    async def commits(store: SqliteStore) -> int:
        connection = sqlite3.connect(path)
        count: int = connection.execute("SELECT commits FROM counters").fetchone()[0]
        connection.close()
        return count

    run(path, ask)


def test_heads_are_shown_while_somebody_writes(tmp_path: Path) -> None:
    """Looking takes no lock, unless something has come due."""
    path = tmp_path / "q.db"
    clock = ManualClock()

    async def look(store: SqliteStore) -> None:
        await store.put([put("q", "a", "b"), put("later", "c", delay=5.0)])
        writer = sqlite3.connect(path, isolation_level=None)
        writer.execute("BEGIN IMMEDIATE")
        try:
            assert [head and head.key for head in await store.heads(["q", "later"])] == ["a", None]
            clock.now += 5.0
            with pytest.raises(StoreError, match="keeps the database locked"):
                await store.heads(["q", "later"])
        finally:
            writer.close()
        assert [head and head.key for head in await store.heads(["q", "later"])] == ["a", "c"]

    run(path, look, clock=clock, busy_timeout=0.2)


# The file


def test_what_was_put_is_there_when_the_file_is_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "q.db"
    leased: list[Claimed] = []

    async def before(store: SqliteStore) -> None:
        await store.put([put("q", "a", "b"), put("other", "c")])
        leased.extend(await claim(store))

    async def after(store: SqliteStore) -> None:
        assert dict(await store.count()) == {
            "q": Counts(available=1, in_flight=1),
            "other": Counts(available=1),
        }
        assert await ack(store, leased[0]) is None
        assert isinstance(await ack(store, leased[0]), Refusal)
        (item,) = await claim(store)
        assert item.fence > leased[0].fence
        assert await store.put([put("q", "new")]) == [(4,)]

    run(path, before)
    assert not Path(f"{path}-wal").exists()
    run(path, after)


@pytest.mark.parametrize("name", ["q.db", "a b%20?c#d.db", "ä.db"])
def test_a_path_is_taken_as_it_is(tmp_path: Path, name: str) -> None:
    # Two slashes at the beginning, as in sqlite:////tmp/q.db, are one.
    run(Path(f"/{tmp_path / name}"), create)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        store = SqliteStore(tmp_path / "q.db")
        await store.close()
        await store.close()
        for call in (store.put([]), store.sweep("q"), store.count()):
            with pytest.raises(StoreClosedError, match=r"q\.db is closed"):
                await call
        with pytest.raises(StoreClosedError):
            store.watch("q", lambda: None)

    asyncio.run(main())


@pytest.mark.parametrize("version", range(1, sqlite_schema.VERSION + 1))
def test_a_database_of_every_version_opens(
    tmp_path: Path, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "q.db"
    connection = sqlite3.connect(path, isolation_level=None)
    with monkeypatch.context() as patch:
        patch.setattr(sqlite_schema, "VERSION", version)
        patch.setattr(sqlite_schema, "MIGRATIONS", sqlite_schema.MIGRATIONS[:version])
        sqlite_schema.migrate(connection, path)
        assert sqlite_schema.version_of(connection) == version
    connection.close()

    async def use(store: SqliteStore) -> None:
        await store.put([put("q", "a")])
        assert len(await claim(store)) == 1

    run(path, use)


def test_a_database_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE items (name TEXT)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="not one of leasedkeyq"):
        SqliteStore(path)
    assert path.read_bytes() == before


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "q.db"
    path.write_bytes(b"queue:\n- not a database\n" * 100)
    with pytest.raises(StoreError, match="not a SQLite database"):
        SqliteStore(path)
    with pytest.raises(StoreError, match="folder must exist"):
        SqliteStore(tmp_path / "nowhere" / "q.db")
    with pytest.raises(ValueError, match="durability"):
        SqliteStore(tmp_path / "new.db", durability="much")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert not (tmp_path / "new.db").exists()


@pytest.mark.parametrize("rubbish", [b"table\xd1\xd1unters", b"\xd1blecounters"])
def test_a_damaged_database_says_so(tmp_path: Path, rubbish: bytes) -> None:
    path = tmp_path / "q.db"
    run(path, create)
    path.write_bytes(path.read_bytes().replace(b"tablecounters", rubbish))
    with pytest.raises(StoreError, match=r"q\.db: the database is damaged; restore a copy"):
        SqliteStore(path)


@pytest.mark.parametrize(
    "durability,level,synchronous", [("full", "power", 2), ("normal", "process", 1)]
)
def test_what_the_store_promises(
    tmp_path: Path, durability: str, level: str, synchronous: int
) -> None:
    async def look(store: SqliteStore) -> None:
        assert store.capabilities.durability == level
        assert store.capabilities.cross_process
        connection = store._connection
        assert connection is not None
        assert connection.execute("PRAGMA synchronous").fetchone() == (synchronous,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        old = sqlite3.sqlite_version_info < (3, 51, 3)
        assert len(store.warnings) == old
        tables = connection.execute("SELECT sql FROM sqlite_master WHERE type = 'table'")
        assert all(sql.rstrip().endswith("STRICT") for (sql,) in tables)

    run(tmp_path / "q.db", look, durability=durability)


# Trouble


def test_a_deleted_file_is_an_error_until_it_is_back(tmp_path: Path) -> None:
    path = tmp_path / "q.db"

    async def lose(store: SqliteStore) -> None:
        await store.put([put("q", "a")])
        path.rename(tmp_path / "elsewhere.db")
        for _ in range(2):
            with pytest.raises(StoreError, match=r"q\.db: the database file was deleted"):
                await store.put([put("q", "b")])
        (tmp_path / "elsewhere.db").rename(path)
        await store.put([put("q", "c")])
        assert [item.key for item in await claim(store, limit=5)] == ["a", "c"]
        # Another file takes its place: it is the store from now on.
        delete(path)
        other = SqliteStore(path)
        await other.put([put("q", "d")])
        assert [item.key for item in await claim(store, limit=5)] == ["d"]
        await other.close()

    run(path, lose)


def test_a_locked_database_is_an_error_that_passes(tmp_path: Path) -> None:
    path = tmp_path / "q.db"

    async def lock(store: SqliteStore) -> None:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match=r"q\.db: another process keeps the database locked"):
            await store.put([put("q", "a")])
        other.execute("ROLLBACK")
        other.close()
        assert await store.put([put("q", "a")]) == [(1,)]

    run(path, lock, busy_timeout=0.05)


def test_short_locks_of_others_are_waited_out(tmp_path: Path) -> None:
    path = tmp_path / "q.db"

    async def lock(store: SqliteStore) -> None:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        waiting = asyncio.create_task(store.put([put("q", "a")]))
        await asyncio.sleep(0.1)
        other.execute("ROLLBACK")
        other.close()
        assert await waiting == [(1,)]

    run(path, lock)


def test_looking_needs_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "q.db"

    async def lock(store: SqliteStore) -> None:
        await store.put([put("q", "a")])
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        assert (await store.count())["q"] == Counts(available=1)
        assert len(await store.look("q", ["a"])) == 1
        assert len((await store.browse("q")).items) == 1
        assert await store.sweep("q") is None
        assert await claim(store, "empty") == []
        assert await claim(store, kinds=("mail",)) == []
        assert await claim(store, key="absent") == []
        ways: list[dict[str, Any]] = [{}, {"kinds": ("",)}, {"key": "a"}]
        for wanted in ways:
            with pytest.raises(StoreError, match="locked"):
                await claim(store, **wanted)
        other.close()
        assert len(await claim(store)) == 1

    run(path, lock, busy_timeout=0.05)


def test_a_full_disk_is_an_error_that_passes_and_leaves_nothing_half_done(tmp_path: Path) -> None:
    async def fill(store: SqliteStore) -> None:
        await store.put([put("q", "a")])
        connection = store._connection
        assert connection is not None
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")
        large = Put("q", tuple((f"k{number}", b"x" * 1000) for number in range(100)))
        with pytest.raises(StoreError, match="the disk is full"):
            await store.put([put("q", "b"), large])
        assert (await store.count())["q"] == Counts(available=1)
        connection.execute("PRAGMA max_page_count = 1000000")
        await store.put([put("q", "b"), large])
        assert (await store.count())["q"] == Counts(available=102)

    run(tmp_path / "q.db", fill)


def test_writes_that_fail_in_the_system_are_errors_that_pass(tmp_path: Path) -> None:
    code = """
import asyncio, resource, signal, sys
from leasedkeyq.errors import StoreError
from leasedkeyq.stores.contract import Put
from leasedkeyq.stores.sqlite import SqliteStore

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

async def main():
    store = SqliteStore(sys.argv[1])
    put = Put("q", tuple((f"k{n}", b"x" * 1000) for n in range(200)))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, hard))
    for _ in range(2):
        try:
            await store.put([put])
        except StoreError as error:
            assert sys.argv[1] in str(error), error
        else:
            raise AssertionError("the write did not fail")
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not await store.count(), await store.count()
    await store.put([put])
    assert (await store.count())["q"].available == 200
    await store.close()

asyncio.run(main())
"""
    assert python(code, tmp_path / "q.db").wait(60) == 0


@pytest.fixture
def folder_of_nobody() -> Iterator[Path]:
    """A folder that everybody can reach, unlike those of pytest: root may write anywhere."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        yield folder


def test_a_file_without_the_right_to_write_is_an_error_that_passes(folder_of_nobody: Path) -> None:
    code = """
import asyncio, os, sys
from leasedkeyq.errors import StoreError
from leasedkeyq.stores.contract import Put
from leasedkeyq.stores.sqlite import SqliteStore

folder = sys.argv[1]
path = folder + "/q.db"

async def main():
    store = SqliteStore(path)
    await store.put([Put("q", (("a", b"1"),))])
    await store.close()
    os.chmod(path, 0o444)
    os.chmod(folder, 0o555)
    if os.getuid() == 0:  # root may write anything
        os.chown(path, 65534, 65534)
        os.chown(folder, 65534, 65534)
        os.setuid(65534)
    for name in (path, folder + "/new.db"):
        try:
            SqliteStore(name)
        except StoreError as error:
            assert name in str(error) and "writ" in str(error), error
        else:
            raise AssertionError("opened")
    os.chmod(path, 0o644)
    os.chmod(folder, 0o755)
    store = SqliteStore(path)
    assert (await store.count())["q"].available == 1
    await store.close()

asyncio.run(main())
"""
    assert python(code, folder_of_nobody).wait(60) == 0


def test_a_file_that_becomes_read_only_is_an_error_that_passes(folder_of_nobody: Path) -> None:
    code = """
import asyncio, os, sys
from pathlib import Path
from leasedkeyq.errors import StoreError
from leasedkeyq.stores.contract import Ack, Claim, Counts, Put
from leasedkeyq.stores.sqlite import SqliteStore

folder = Path(sys.argv[1])
if os.getuid() == 0:
    os.chown(folder, 65534, 65534)
    os.setuid(65534)

def allow(file_mode, folder_mode):
    folder.chmod(0o755)
    for file in folder.iterdir():
        file.chmod(file_mode)
    folder.chmod(folder_mode)

async def main():
    store = SqliteStore(folder / "q.db")
    await store.put([Put("q", (("a", b"1"), ("b", b"1")))])
    ((leased,),) = await store.claim([Claim((("q", 1),))])
    allow(0o444, 0o555)
    # A file that is open stays as it was opened: let the store open it anew.
    store._connection.execute("PRAGMA query_only = ON")
    for call in (
        lambda: store.put([Put("q", (("c", b"1"),))]),
        lambda: store.claim([Claim((("q", 1),))]),
        lambda: store.settle([Ack("q", "a", leased.token)]),
    ):
        try:
            await call()
        except StoreError as error:
            assert "q.db: the file or its folder cannot be written" in str(error), error
        else:
            raise AssertionError("written")
        assert (await store.count())["q"] == Counts(available=1, in_flight=1)
    allow(0o644, 0o755)
    assert await store.settle([Ack("q", "a", leased.token)]) == [None]
    assert await store.put([Put("q", (("c", b"1"),))]) == [(3,)]
    assert (await store.count())["q"] == Counts(available=2)
    await store.close()

asyncio.run(main())
"""
    assert python(code, folder_of_nobody).wait(60) == 0


def test_a_store_from_before_a_fork_is_refused_in_the_child(tmp_path: Path) -> None:
    code = """
import asyncio, os, sys
from leasedkeyq.errors import StoreError
from leasedkeyq.stores.contract import Put
from leasedkeyq.stores.sqlite import SqliteStore

store = SqliteStore(sys.argv[1])
asyncio.run(store.put([Put("q", (("a", b"1"),))]))
child = os.fork()
try:
    asyncio.run(store.put([Put("q", (("b", b"1"),))]))
except StoreError as error:
    assert not child and "fork" in str(error)
    os._exit(0)
assert child
assert os.waitpid(child, 0)[1] == 0
assert asyncio.run(store.count())["q"].available == 2
asyncio.run(store.close())
"""
    assert python(code, tmp_path / "q.db").wait(60) == 0


# Other processes

CONSUMER = """
import asyncio, sys
from leasedkeyq.stores.contract import Ack, Claim
from leasedkeyq.stores.sqlite import SqliteStore

async def main(path, lease_time):
    store = SqliteStore(path)
    async def consume():
        while True:
            (claimed,) = await store.claim([Claim((("q", 2),), 2, None, float(lease_time))])
            if not claimed:
                return
            for item in claimed:
                print("got", item.key, item.fence, flush=True)
                (answer,) = await store.settle([Ack("q", item.key, item.token)])
                print("ack" if answer is None else "refused", item.key, item.fence, flush=True)
    await asyncio.gather(*(consume() for _ in range(10)))
    await store.close()

asyncio.run(main(*sys.argv[1:]))
"""


def test_processes_share_a_queue_and_each_key_is_held_once(tmp_path: Path) -> None:
    path = tmp_path / "q.db"
    keys = [f"k{number}" for number in range(3000)]

    async def fill(store: SqliteStore) -> None:
        await store.put([put("q", *keys)])

    run(path, fill)
    consumers = [python(CONSUMER, path, 60, stdout=subprocess.PIPE) for _ in range(3)]
    outputs = [consumer.communicate(timeout=100)[0] for consumer in consumers]
    lines = [line for output in outputs for line in output.split("\n")]
    assert all(consumer.returncode == 0 for consumer in consumers)
    done = Counter(line.split()[1] for line in lines if line.startswith("ack"))
    assert done == Counter(keys)
    fences = [line.split()[2] for line in lines if line.startswith("got")]
    assert len(set(fences)) == len(keys)
    run(path, _assert_empty)


async def _assert_empty(store: SqliteStore) -> None:
    assert not await store.count()


def test_many_processes_create_one_file_together(tmp_path: Path) -> None:
    code = """
import asyncio, sys
from leasedkeyq.stores.contract import Put
from leasedkeyq.stores.sqlite import SqliteStore

async def main(path, name):
    store = SqliteStore(path)
    await store.put([Put("q", ((name, b"1"),))])
    await store.close()

asyncio.run(main(*sys.argv[1:]))
"""
    processes = [python(code, tmp_path / "q.db", number) for number in range(6)]
    assert [process.wait(60) for process in processes] == [0] * 6

    async def check(store: SqliteStore) -> None:
        assert (await store.count())["q"].available == 6

    run(tmp_path / "q.db", check)


def test_opening_waits_for_another_process_that_creates_the_file(tmp_path: Path) -> None:
    path = tmp_path / "q.db"
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="another process keeps the database locked"):
        SqliteStore(path, busy_timeout=0.01)
    later = threading.Timer(0.05, other.execute, ["ROLLBACK"])
    later.start()
    run(path, create)
    later.join()
    other.close()
