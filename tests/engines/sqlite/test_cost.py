"""Queries of the SQLite store go by an index, and looking writes nothing."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from leasedkeyq.engines.sqlite import inspection as sqlite_inspection
from leasedkeyq.engines.sqlite import transaction as sqlite_transaction
from leasedkeyq.engines.sqlite.store import SqliteStore
from leasedkeyq.errors import StoreError
from leasedkeyq.model.requests import Ack
from leasedkeyq.testing import ManualClock
from tests.engines.sqlite.support import claim, create, plans, put, run


def listing(shown: str, table: str, number: str, rest: str) -> str:
    columns = getattr(sqlite_inspection, shown)
    return f"SELECT {columns} FROM {table} WHERE queue = ? AND {number} > ? {rest}"


@pytest.mark.parametrize(
    "sql,values,index",
    [
        (sqlite_transaction.NEXT_READY.format(""), (1, 10), "items_ready (queue=?)"),
        (
            sqlite_transaction.NEXT_READY.format("AND kind IN (?, ?)"),
            (1, "mail", "call", 10),
            "items_ready (queue=?)",
        ),
        (
            sqlite_transaction.READY_KEY.format(""),
            (1, "a"),
            "items_by_key (queue=? AND key=? AND in_line=?)",
        ),
        (sqlite_transaction.LIVE, (1, "a"), "items_by_key (queue=? AND key=? AND in_line=?)"),
        (sqlite_transaction.COMING_DUE, (1, 5.0), "items_timed (queue=? AND due"),
        (sqlite_transaction.EARLIEST, (1,), "items_timed (queue=?"),
        (sqlite_transaction.EARLIEST_RESULT, (1,), "done_by_due (queue=?)"),
        (
            sqlite_transaction.OLD_RESULTS,
            (1, 5.0),
            "COVERING INDEX done_by_due (queue=? AND due<?)",
        ),
        (sqlite_inspection.HEAD, (1,), "items_ready (queue=?)"),
        (
            sqlite_transaction.OLDEST_BURIED,
            (1,),
            "buried_by_age (queue=?)",
        ),
        (
            listing(
                "SHOWN_LIVE",
                "items INDEXED BY items_by_state",
                "id",
                "AND state = 1 ORDER BY id LIMIT ?",
            ),
            (1, 5, 100),
            "items_by_state (queue=? AND state=? AND rowid>?)",
        ),
        *((sql, (1, "a"), "_by_key (queue=? AND key=?)") for sql in sqlite_inspection.PARTS_BY_KEY),
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
    for sql, count in ((sqlite_transaction.LEASE, 6), (sqlite_transaction.MOVE, 10)):
        (plan,) = plans(tmp_path / "q.db", sql, *[1] * count)
        assert plan == "SEARCH items USING INTEGER PRIMARY KEY (rowid=?)"


def test_asking_an_empty_queue_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "q.db"

    async def ask(store: SqliteStore) -> None:
        await store.put([put("full", "a")])
        version = await commits(store)
        await claim(store, "empty")
        await store.sweep(["empty"])
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


def begins(statements: list[str]) -> list[str]:
    return [sql for sql in statements if sql.startswith("BEGIN")]


def test_a_get_on_a_queue_with_items_is_one_transaction(tmp_path: Path) -> None:
    async def get(store: SqliteStore) -> None:
        await store.put([put("q", "a", "b")])
        connection = store._connection
        assert connection is not None
        seen: list[str] = []
        connection.set_trace_callback(seen.append)
        key, _, _ = await store.queue("q").get()
        connection.set_trace_callback(None)
        assert key == "a"
        assert len(begins(seen)) == seen.count("COMMIT") == 1
        assert "ROLLBACK" not in seen
        reads = [sql.split() for sql in seen if sql.lstrip().startswith("SELECT")]
        assert len(reads) == 3  # the counters, the queue, the item
        writes = [sql.split()[1] for sql in seen if sql.lstrip().startswith("UPDATE")]
        assert writes == ["items", "queues", "counters"]

    run(tmp_path / "q.db", get)


def test_a_get_on_an_empty_queue_takes_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "q.db"

    async def get(store: SqliteStore) -> None:
        await store.put([put("q", "a")])
        await claim(store)
        connection = store._connection
        assert connection is not None
        seen: list[str] = []
        connection.set_trace_callback(seen.append)
        writer = sqlite3.connect(path, isolation_level=None)
        writer.execute("BEGIN IMMEDIATE")
        try:
            with pytest.raises(TimeoutError):
                await store.queue("q").get(timeout=0)
        finally:
            writer.close()
        assert set(begins(seen)) == {"BEGIN"}

    run(path, get, busy_timeout=0.0)


def test_a_claim_that_another_process_comes_before_is_made_once_more(tmp_path: Path) -> None:
    """With the lock this time, so that it cannot happen again."""
    path = tmp_path / "q.db"

    async def scenario(store: SqliteStore) -> None:
        await store.put([put("q", "a")])
        other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        connection = store._connection
        assert connection is not None
        seen: list[str] = []

        def write_in_between(sql: str) -> None:
            if "items_ready" in sql and len(begins(seen)) == 1:
                other.execute("UPDATE counters SET commits = commits + 1")
            seen.append(sql)

        connection.set_trace_callback(write_in_between)
        assert [item.key for item in await claim(store, limit=2)] == ["a"]
        connection.set_trace_callback(None)
        other.close()
        assert begins(seen) == ["BEGIN", "BEGIN IMMEDIATE"]

    run(path, scenario)
