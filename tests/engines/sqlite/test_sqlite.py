"""The SQLite store: it means what the machine means, shares its file, and loses nothing."""

import asyncio
import sqlite3
import subprocess
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from leasedkeyq.engines.sqlite import schema as sqlite_schema
from leasedkeyq.engines.sqlite import transaction as sqlite_transaction
from leasedkeyq.engines.sqlite.store import SqliteStore
from leasedkeyq.errors import StoreClosedError, StoreError
from leasedkeyq.model.requests import Ack, Claim, Claimed, Counts, Placed, Refusal, Release
from leasedkeyq.stores.store import Store
from leasedkeyq.testing import ManualClock
from leasedkeyq.testing.differential import Differential
from leasedkeyq.testing.site import SMALL_LIMITS
from tests.engines.sqlite.support import claim, create, put, python, run


async def ack(store: Store, item: Claimed) -> Any:
    return (await store.settle([Ack(item.queue, item.key, item.token)]))[0]


# The meaning


@pytest.mark.parametrize("seed", range(2))
def test_it_answers_as_the_model_does(tmp_path: Path, seed: int) -> None:
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
    many = sqlite_transaction.EXPIRY_CHUNK * 2 + 50
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
        assert (good, also_good) == ((Placed(1, "added"),), (Placed(2, "added"),))
        for refusal in (bad, worse):
            assert isinstance(refusal, StoreError)
            assert "cannot be stored" in str(refusal)
        assert (await store.count())["q"] == Counts(available=2)
        with pytest.raises(StoreError):
            await store.look("q", ["\ud800"])

    run(tmp_path / "q.db", mix)


def test_what_is_committed_is_not_done_again_whatever_fails_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("nobody could be told")

    async def put_and_claim(store: SqliteStore) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(store._watchers, "wake", fail)
            with pytest.raises(StoreError, match="ValueError: nobody could be told"):
                await store.put([put("q", "a"), put("q", "b")])
            with pytest.raises(StoreError, match="ValueError: nobody could be told"):
                await store.claim([Claim((("q", 1),))])
        [first, second] = (await store.browse("q")).items
        assert (first.id, second.id) == (1, 2)
        assert (first.attempt, second.attempt) == (1, 0)

    run(tmp_path / "q.db", put_and_claim)


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
        assert await store.put([put("q", "new")]) == [(Placed(4, "added"),)]

    run(path, before)
    assert not Path(f"{path}-wal").exists()
    run(path, after)


@pytest.mark.parametrize("name", ["q.db", "a b%20?c#d.db", "ä.db"])
def test_a_path_is_taken_as_it_is(tmp_path: Path, name: str) -> None:
    # Two slashes at the beginning are one.
    run(Path(f"/{tmp_path / name}"), create)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        store = SqliteStore(tmp_path / "q.db")
        await store.close()
        await store.close()
        for call in (store.put([]), store.sweep(["q"]), store.count()):
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


# Other processes


CONSUMER = """
import asyncio, sys
from leasedkeyq.model.requests import Ack, Claim
from leasedkeyq.engines.sqlite.store import SqliteStore

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
from leasedkeyq.model.requests import Put
from leasedkeyq.engines.sqlite.store import SqliteStore

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
