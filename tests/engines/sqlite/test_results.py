"""Kept results in the SQLite store: their number costs nothing, and old ones go bit by bit."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from leasedkeyq.engines.sqlite import transaction as sqlite_transaction
from leasedkeyq.engines.sqlite.store import SqliteStore
from leasedkeyq.model.requests import Ack, Claim, Counts, Purge, Put, StoredItem
from leasedkeyq.testing import ManualClock
from leasedkeyq.testing.shorthand import EVERY_STATE

CHUNK = 5


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_transaction, "FORGET_CHUNK", CHUNK)


def run(path: Path, scenario: Callable[[SqliteStore, ManualClock], Awaitable[None]]) -> None:
    async def main() -> None:
        clock = ManualClock()
        store = SqliteStore(path, durability="normal", clock=clock)
        try:
            await scenario(store, clock)
        finally:
            await store.close()

    asyncio.run(main())


def ask(store: SqliteStore, sql: str) -> int:
    """A number from the database, past the store."""
    with closing(sqlite3.connect(store.path)) as connection:
        number: int = connection.execute(sql).fetchone()[0]
    return number


def rows(store: SqliteStore) -> int:
    return ask(store, "SELECT count(*) FROM done")


def commits(store: SqliteStore) -> int:
    return ask(store, "SELECT commits FROM counters")


def log(store: SqliteStore) -> bytes:
    """All that was written since the store was opened."""
    return Path(f"{store.path}-wal").read_bytes()


async def finish(store: SqliteStore, many: int, keep: float, queue: str = "q") -> list[int]:
    """Keep so many results, by one batch; return their ids."""
    await store.put([Put(queue, tuple((f"k{number}", b"1") for number in range(many)))])
    [items] = await store.claim([Claim(((queue, many),), many)])
    answers = await store.settle([Ack(queue, i.key, i.token, b"2", keep) for i in items])
    assert answers == [None] * many
    return [item.id for item in items]


def nothing(items: Sequence[StoredItem]) -> list[Put]:
    assert items == []
    return []


def test_old_results_are_not_to_be_seen_and_looking_deletes_none(tmp_path: Path) -> None:
    async def look(store: SqliteStore, clock: ManualClock) -> None:
        ids = await finish(store, 3 * CHUNK, 10.0)
        [last] = await finish(store, 1, 20.0)
        clock.now += 10.0
        before = log(store)
        assert await store.results("q", [*ids, last]) == [None] * len(ids) + [
            (await store.browse("q", states=["done"])).items[0]
        ]
        assert await store.count(["q"]) == {"q": Counts(done=1)}
        assert await store.heads(["q"]) == [None]
        assert await store.look("q", ["k0"]) == [()]
        assert await store.claim([Claim((("q", 1),))]) == [()]
        clock.now += 10.0
        assert dict(await store.count()) == {}
        assert (await store.browse("q", states=EVERY_STATE)).items == ()
        assert await store.edit("q", nothing) == []
        assert await store.edit("q", nothing, keys=["k0", "k1"]) == []
        assert rows(store) == 3 * CHUNK + 1
        assert log(store) == before

    run(tmp_path / "q.db", look)


def test_a_sweep_forgets_some_and_asks_to_come_again(tmp_path: Path) -> None:
    async def sweep(store: SqliteStore, clock: ManualClock) -> None:
        await finish(store, 2 * CHUNK + 1, 10.0)
        await finish(store, 1, 30.0)
        assert await store.sweep(["q"]) == [10.0]
        clock.now += 10.0
        before = commits(store)
        assert [(await store.sweep(["q"]))[0] for _ in range(4)] == [0.0, 0.0, 20.0, 20.0]
        assert rows(store) == 1
        clock.now += 20.0
        assert await store.sweep(["q"]) == [None]
        assert ask(store, "SELECT count(*) FROM queues") == 0
        assert commits(store) == before, "nobody waits for that, and all were woken"

    run(tmp_path / "q.db", sweep)


def test_a_change_takes_some_old_results_along(tmp_path: Path) -> None:
    async def change(store: SqliteStore, clock: ManualClock) -> None:
        await finish(store, 4 * CHUNK, 10.0)
        await finish(store, CHUNK, 10.0, "other")
        clock.now += 10.0
        await store.put([Put("q", (("a", b"1"),)), Put("q", (("b", b"1"),))])
        assert rows(store) == 4 * CHUNK, "one transaction, one chunk, however many requests"
        await store.put([Put("other", (("a", b"1"),)), Put("q", (("c", b"1"),))])
        assert rows(store) == 3 * CHUNK, "one transaction, one chunk, however many queues"
        assert await store.count() == {"q": Counts(available=3), "other": Counts(available=1)}

    run(tmp_path / "q.db", change)


def test_more_old_results_go_than_new_ones_come(tmp_path: Path) -> None:
    """However many are kept in one transaction, they do not pile up."""

    async def change(store: SqliteStore, clock: ManualClock) -> None:
        many = 4 * CHUNK
        await finish(store, 3 * many, 10.0)
        clock.now += 10.0
        old: list[int] = []
        for _ in range(3):
            await finish(store, many, 100.0)
            old.append(ask(store, f"SELECT count(*) FROM done WHERE due <= {clock.now}"))
        # Of each round the put, the claim and the acknowledgement.
        assert old == [max(3 * many - n * (many + 3 * CHUNK), 0) for n in (1, 2, 3)]

    run(tmp_path / "q.db", change)


def test_old_results_are_not_purged_but_forgotten(tmp_path: Path) -> None:
    async def purge(store: SqliteStore, clock: ManualClock) -> None:
        await finish(store, CHUNK + 2, 10.0)
        await finish(store, 3, 20.0)
        clock.now += 10.0
        assert await store.settle([Purge("q", "results"), Purge("q", "results")]) == [3, 0]
        assert rows(store) == 0
        await finish(store, 1, 10.0)
        clock.now += 10.0
        assert await store.settle([Purge("q", "results")]) == [0]
        assert rows(store) == ask(store, "SELECT count(*) FROM queues") == 0

    run(tmp_path / "q.db", purge)


def test_forgetting_goes_by_the_index(tmp_path: Path) -> None:
    path = tmp_path / "q.db"

    async def fill(store: SqliteStore, _: ManualClock) -> None:
        await finish(store, 500, 10.0)

    run(path, fill)
    for analysed in (False, True):
        with closing(sqlite3.connect(path)) as connection:
            if analysed:
                connection.execute("ANALYZE")
            sql = f"EXPLAIN QUERY PLAN {sqlite_transaction.FORGET}"
            plan = [row[3] for row in connection.execute(sql, (1, 5.0, 10))]
        assert plan[0] == "SEARCH done USING INTEGER PRIMARY KEY (rowid=?)"
        assert plan[-1] == "SEARCH done USING COVERING INDEX done_by_due (queue=? AND due<?)"
        assert len(plan) == 3


def test_the_number_of_results_costs_nothing(tmp_path: Path) -> None:
    """Counted in steps of SQLite's machine: with fifty times the results they are the same."""
    few = _steps(tmp_path / "few.db", 20)
    many = _steps(tmp_path / "many.db", 1000)
    assert set(few) == set(many)
    for name, steps in many.items():
        assert 0 < steps <= few[name] * 1.2, name


def _steps(path: Path, kept: int) -> dict[str, int]:
    counts: dict[str, int] = {}

    async def measure(store: SqliteStore, clock: ManualClock) -> None:
        ids = await finish(store, kept, 10.0)
        clock.now += 5.0
        await finish(store, 1, 1.0)  # It is old in a moment: there is something to forget.
        clock.now += 1.0
        assert store._connection is not None
        taken = 0

        def step() -> int:
            nonlocal taken
            taken += 1
            return 0

        store._connection.set_progress_handler(step, 1)

        async def count(name: str, call: Awaitable[Any]) -> Any:
            nonlocal taken
            taken = 0
            answer = await call
            counts[name] = taken
            return answer

        await count("results", store.results("q", ids[:1]))
        await count("count", store.count(["q"]))
        await count("heads", store.heads(["q"]))
        await count("put", store.put([Put("q", (("a", b"1"),))]))
        assert rows(store) == kept
        [[item]] = await count("claim", store.claim([Claim((("q", 1),))]))
        done = Ack("q", item.key, item.token, b"2", 1.0)
        assert await count("ack", store.settle([done])) == [None]
        clock.now += 1.0
        assert await count("sweep", store.sweep(["q"])) == [3.0]
        assert rows(store) == kept

    run(path, measure)
    return counts
