"""What lines cost on SQLite: the same whether they are short or long, and nothing without one."""

import asyncio
import sqlite3
import threading
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from leasedkeyq.engines.sqlite import inspection as sqlite_inspection
from leasedkeyq.engines.sqlite import store as sqlite_store
from leasedkeyq.engines.sqlite import transaction as sqlite_transaction
from leasedkeyq.engines.sqlite.store import SqliteStore
from leasedkeyq.model.requests import (
    Ack,
    Bury,
    Cancel,
    Claim,
    Claimed,
    Counts,
    Discard,
    Placed,
    Put,
    Release,
    Requeue,
)
from leasedkeyq.testing import ManualClock
from tests.engines.sqlite.support import claim, create, plans, put, run

BATCH = 10_000
KEEP = 1000.0
BY_KEY = "items_by_key (queue=? AND key=? AND in_line"


def values(key: str, count: int) -> tuple[tuple[str, bytes], ...]:
    return tuple((key, b"%d" % number) for number in range(count))


async def append(store: SqliteStore, key: str, count: int) -> list[int]:
    """Put so many values under a key, and return their ids."""
    ids: list[int] = []
    for first in range(0, count, BATCH):
        items = values(key, min(count - first, BATCH))
        [answer] = await store.put([Put("q", items, "append")])
        assert isinstance(answer, tuple)
        ids += [placed.id for placed in answer]
    return ids


async def settle(store: SqliteStore, *changes: Any) -> list[Any]:
    return await store.settle(changes)


def ask(store: SqliteStore, sql: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(store.path)) as connection:
        return connection.execute(sql).fetchall()


# What it costs

Of = Callable[[str, Awaitable[Any]], Awaitable[Any]]
"""Counts what a call costs, under a name."""


class Steps:
    """Counts the steps of SQLite's machine: the rows that it looks at, however fast."""

    def __init__(self, store: SqliteStore) -> None:
        self.taken: dict[str, int] = {}
        self._count = 0
        assert store._connection is not None
        store._connection.set_progress_handler(self._step, 1)
        store._thread_until = float("inf")  # a change of the thread takes some steps, too

    def _step(self) -> int:
        self._count += 1
        return 0

    async def of(self, name: str, call: Awaitable[Any]) -> Any:
        self._count = 0
        answer = await call
        self.taken[name] = self._count
        return answer


async def everything(store: SqliteStore, clock: ManualClock, ids: list[int]) -> dict[str, int]:
    """The steps of every request on the key "long", which has values of these ids."""
    steps = Steps(store)
    await put_and_look(store, steps.of, ids)
    await work(store, steps.of, ids, clock)
    return steps.taken


async def put_and_look(store: SqliteStore, of: Of, ids: list[int]) -> None:
    middle = ids[len(ids) // 2]
    cursor = str(middle - 1)
    await of("append", store.put([Put("q", values("long", 1), "append")]))
    await of("append some", store.put([Put("q", values("long", 40), "append")]))
    await of("update", store.put([Put("q", values("long", 1))]))
    await of("skip", store.put([Put("q", values("long", 1), "skip")]))
    await of("reject", store.put([Put("q", values("long", 1), "only_new")]))
    await of("within a limit", store.put([Put("q", values("long", 1), "append", max_items=10**6)]))
    await of("another key", store.put([put("q", "plain")]))
    await of("count", store.count(["q"]))
    await of("heads", store.heads(["q"]))
    await of("look", store.look("q", ["long", "plain"]))
    page = await of("line", store.line("q", "long", limit=3))
    assert [item.id for item in page.items] == ids[:3]
    page = await of("line from the middle", store.line("q", "long", cursor=cursor, limit=3))
    assert page.items[0].id == middle
    page = await of("browse", store.browse("q", states=["in_line"], cursor=cursor, limit=3))
    assert page.items[0].id == middle
    heads = store.browse("q", states=["buffered", "available"], limit=1)
    assert (await of("browse others", heads)).items[0].key == "long"


async def work(store: SqliteStore, of: Of, ids: list[int], clock: ManualClock) -> None:
    middle = ids[len(ids) // 2]

    async def take(name: str, **options: Any) -> Claimed:
        claimed = await of(name, store.claim([Claim((("q", 1),), 1, "long", **options)]))
        item: Claimed = claimed[0][0]
        return item

    item = await take("claim")
    await of("release", settle(store, Release("q", "long", item.token)))
    item = await take("claim to undo")
    await of("undo", settle(store, Release("q", "long", item.token, undo=True)))
    await take("claim for a while", lease_time=5.0)
    clock.now += 5.0
    await of("expire", store.sweep(["q"]))
    item = await take("claim again")
    await of("ack", settle(store, Ack("q", "long", item.token)))
    item = await take("claim the next")
    await of("ack and keep", settle(store, Ack("q", "long", item.token, b"1", KEEP)))
    await of("cancel one", settle(store, Cancel("q", "long", id=middle)))
    await of("cancel one and keep", settle(store, Cancel("q", "long", id=middle + 1, keep=KEEP)))
    await of("cancel the head", settle(store, Cancel("q", "long", id=ids[2])))
    for end in ("requeue", "discard"):
        item = await take(f"claim to hold, {end}")
        bury = Bury("q", "long", item.token, hold=True)
        [buried] = await of(f"hold, {end}", settle(store, bury))
        await of("append behind it", store.put([Put("q", values("long", 1), "append")]))
        change = Requeue("q", buried) if end == "requeue" else Discard("q", buried)
        assert await of(end, settle(store, change)) == [True]
    item = await take("claim to bury")
    await of("bury", settle(store, Bury("q", "long", item.token)))
    [[other]] = await of("claim another", store.claim([Claim((("q", 1),))]))
    assert other.key == "plain"
    await of("ack another", settle(store, Ack("q", "plain", other.token)))


def test_the_length_of_a_line_costs_nothing(tmp_path: Path) -> None:
    """Counted in steps of SQLite's machine: with 100,000 values they are those of a few."""
    taken: dict[int, dict[str, int]] = {}

    for count in (12, 100_000):
        clock = ManualClock()

        async def measure(store: SqliteStore, clock: ManualClock = clock, n: int = count) -> None:
            taken[n] = await everything(store, clock, await append(store, "long", n))

        run(tmp_path / f"{count}.db", measure, clock=clock, durability="normal")
    few, many = taken.values()
    assert set(few) == set(many)
    for name, steps in many.items():
        assert 0 < steps <= few[name] * 1.1, name


def test_the_number_of_lines_costs_nothing(tmp_path: Path) -> None:
    taken: list[dict[str, int]] = []
    for others in (2, 2_000):
        clock = ManualClock()

        async def measure(store: SqliteStore, clock: ManualClock = clock, n: int = others) -> None:
            ids = await append(store, "long", 12)
            items = tuple(pair for key in range(n) for pair in values(f"z{key}", 3))
            await store.put([Put("q", items, "append", priority=-1)])
            taken.append(await everything(store, clock, ids))

        run(tmp_path / f"{others}.db", measure, clock=clock, durability="normal")
    few, many = taken
    for name, steps in many.items():
        assert 0 < steps <= few[name] * 1.1, name


def test_a_head_is_written_once_for_many_values(tmp_path: Path) -> None:
    async def many(store: SqliteStore) -> None:
        seen = statements_of(store)
        portion = sqlite_transaction.PORTION
        await store.put([Put("q", values("a", portion + 1), "append")])
        assert kinds_of(seen).count("UPDATE items") == 1 + 1  # a portion, and the one that is left

    run(tmp_path / "q.db", many)


def statements_of(store: SqliteStore) -> list[str]:
    """What the store asks SQLite for from now on."""
    seen: list[str] = []
    assert store._connection is not None
    store._connection.set_trace_callback(seen.append)
    return seen


def kinds_of(statements: list[str]) -> list[str]:
    """What these statements do with which table, those of the whole store left out."""
    kinds: list[str] = []
    for sql in statements:
        words = sql.split()
        if words[0] == "SELECT":
            kinds.append(f"SELECT {words[words.index('FROM') + 1]}")
        elif words[0] in ("INSERT", "DELETE"):
            kinds.append(f"{words[0]} {words[2]}")
        elif words[0] == "UPDATE":
            kinds.append(f"{words[0]} {words[1]}")
    return [kind for kind in kinds if kind.split()[1] not in ("counters", "queues")]


@pytest.mark.parametrize("lined", [False, True])
def test_a_plain_key_needs_the_statements_that_it_needed_before_there_were_lines(
    tmp_path: Path, lined: bool
) -> None:
    """Also beside keys that have lines."""

    async def use(store: SqliteStore) -> None:
        if lined:
            await append(store, "long", 3)
        held = await claim(store, key="long")
        await store.put([put("q", "other")])
        # What comes due is looked for where something is leased.
        due = ["SELECT items"] if lined else []
        seen = statements_of(store)
        await store.put([put("q", "a", "b")])
        assert kinds_of(seen) == [*due, "INSERT items", "INSERT items"]
        seen.clear()
        [item] = await claim(store, key="a")
        assert kinds_of(seen) == [*due, "SELECT items", "UPDATE items"]
        seen.clear()
        await settle(store, Ack("q", "a", item.token))
        assert kinds_of(seen) == ["SELECT items", "DELETE items"]
        [item] = await claim(store, key="b")
        seen.clear()
        await settle(store, Ack("q", "b", item.token, b"1", KEEP))
        assert kinds_of(seen) == ["SELECT items", "INSERT done", "DELETE items", "DELETE done"]
        for long in held:
            seen.clear()
            await settle(store, Ack("q", "long", long.token))
            assert kinds_of(seen)[:3] == ["SELECT items", "DELETE items", "UPDATE items"]

    run(tmp_path / "q.db", use)


@pytest.mark.parametrize(
    "sql,values,index",
    [
        (sqlite_transaction.FIRST_IN_LINE, (1, "a"), f"{BY_KEY}>?)"),
        (sqlite_transaction.LAST_IN_LINE, (1, "a"), f"{BY_KEY}>?)"),
        (sqlite_transaction.NEWEST_OF_KEY, (1, "a"), "items_by_key (queue=? AND key=?)"),
        (sqlite_transaction.STATE_OF_KEY, (1, "a"), f"{BY_KEY}=?)"),
        (sqlite_transaction.STATES_OF_KEYS, (1, *"a" * sqlite_transaction.PORTION), f"{BY_KEY}=?)"),
        (sqlite_transaction.LEASES_OF_KEYS, (1, *"a" * sqlite_transaction.PORTION), f"{BY_KEY}=?)"),
        (sqlite_transaction.LENGTHEN, (1, 1, "a"), f"{BY_KEY}=?)"),
        (sqlite_transaction.DELETE_LEASED, (1, "a", "t"), f"{BY_KEY}=?)"),
        (sqlite_transaction.DELETE_WITH_LINE, (1, "a", "t"), f"{BY_KEY}=?)"),
        (sqlite_transaction.DELETE_LINE, (1, "a"), f"{BY_KEY}>?)"),
        (sqlite_transaction.IS_IN_LINE, (7, 1, "a"), "INTEGER PRIMARY KEY (rowid=?)"),
        (sqlite_transaction.HELD_HEAD, (7,), "INTEGER PRIMARY KEY (rowid=?)"),
        (sqlite_transaction.BURIED, (7, 1), "INTEGER PRIMARY KEY (rowid=?)"),
        (sqlite_transaction.DELETE_BURIED, (7, 1), "INTEGER PRIMARY KEY (rowid=?)"),
        (sqlite_transaction.HOLDING, (1,), "buried_by_age (queue=?)"),
        (
            sqlite_transaction.NEWEST_RESULT,
            (1, "a", 5.0),
            "done_by_key (queue=? AND key=? AND outcome=?)",
        ),
        (sqlite_inspection.HEAD_OF_KEY, (1, "a", 0), f"{BY_KEY}=? AND rowid>?)"),
        (sqlite_inspection.LINE_OF_KEY, (1, "a", 7, 10), f"{BY_KEY}>?)"),
    ],
)
def test_a_query_goes_by_its_index_and_sorts_nothing(
    tmp_path: Path, sql: str, values: tuple[Any, ...], index: str
) -> None:
    path = tmp_path / "q.db"

    async def fill(store: SqliteStore) -> None:
        await store.put([put("q", *(f"k{number}" for number in range(500)))])
        await append(store, "long", 500)
        [item] = await claim(store, key="long")
        await settle(store, Ack("q", "long", item.token, b"1", KEEP))

    run(path, fill)
    for analysed in (False, True):
        if analysed:
            with closing(sqlite3.connect(path)) as connection:
                connection.execute("ANALYZE")
        (plan,) = plans(path, sql, *values)
        assert plan.startswith("SEARCH ")
        assert index in plan


def test_the_next_of_a_line_is_found_by_the_index(tmp_path: Path) -> None:
    run(tmp_path / "q.db", create)
    update, _, search = plans(tmp_path / "q.db", sqlite_transaction.PROMOTE_READY, *[1] * 7)
    assert update == "SEARCH items USING INDEX items_by_key (queue=? AND key=? AND in_line=?)"
    assert search == (
        "SEARCH items USING COVERING INDEX items_by_key (queue=? AND key=? AND in_line>?)"
    )


# What it means on these tables


@pytest.mark.parametrize("keep", [0.0, KEEP])
def test_an_event_loop_does_not_wait_until_a_long_line_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: float
) -> None:
    monkeypatch.setattr(sqlite_store, "QUICK", 3600.0)
    many = sqlite_transaction.LINE_CHUNK + 10

    async def use(store: SqliteStore) -> None:
        await append(store, "a", many)
        await append(store, "b", 10)
        while not store._writer._idle:
            await asyncio.sleep(0.001)
        transact = store._transact_once
        seen: list[bool] = []

        def note(*arguments: Any) -> Any:
            seen.append(threading.get_ident() == here)
            return transact(*arguments)

        here = threading.get_ident()
        setattr(store, "_transact_once", note)  # noqa: B010  # type checkers know it is a method
        assert await settle(store, Cancel("q", "b", keep=keep)) == [10]
        assert await settle(store, Cancel("q", "a", keep=keep)) == [many]
        assert seen == [True, True, False]
        done = many + 10 if keep else 0
        assert (await store.count(["q"]))["q"] == Counts(done=done, done_cancelled=done)

    run(tmp_path / "q.db", use)


def test_a_head_that_is_held_is_stored_without_its_value(tmp_path: Path) -> None:
    """The buried item has it: a large one is not stored twice."""

    async def use(store: SqliteStore) -> None:
        value = b'"%s"' % (b"x" * 5000)
        await store.put([Put("q", (("a", value),))])
        [item] = await claim(store)
        [number] = await settle(store, Bury("q", "a", item.token, hold=True))
        assert ask(store, "SELECT id, state, length(value) FROM items") == [(number, 4, 0)]
        assert await settle(store, Requeue("q", number)) == [True]
        [again] = await claim(store)
        assert (again.id, again.value, again.attempt) == (number, value, 1)

    run(tmp_path / "q.db", use)


def test_a_put_that_is_skipped_writes_nothing(tmp_path: Path) -> None:
    async def use(store: SqliteStore) -> None:
        await store.put([put("q", "a")])
        [item] = await claim(store)
        await settle(store, Ack("q", "a", item.token, b"1", KEEP))
        await store.put([put("q", "b")])
        before = ask(store, "SELECT commits FROM counters")
        skipped = put("q", "a", "b", policy="skip", unique_for=KEEP)
        assert await store.put([skipped]) == [(Placed(1, "skipped"), Placed(2, "skipped"))]
        assert await store.put([put("q", "b", policy="skip")]) == [(Placed(2, "skipped"),)]
        assert ask(store, "SELECT commits FROM counters") == before

    run(tmp_path / "q.db", use)


def test_acks_of_keys_with_lines_and_without_go_together(tmp_path: Path) -> None:
    """The next of each line is available in the order of the acks, or scheduled."""
    clock = ManualClock()

    async def use(store: SqliteStore) -> None:
        for key in "abc":
            await append(store, key, 3)
        await store.put([put("q", "plain"), put("q", "later")])
        await store.put([put("q", "later", policy="append", delay=5.0)])
        items = {item.key: item for item in await claim(store, limit=5)}
        order = ["later", "b", "plain", "c", "a"]
        acks = [Ack("q", key, items[key].token, b"1", KEEP) for key in order]
        seen = statements_of(store)
        answers = await settle(store, *acks, acks[1], Ack("q", "a", "another"))
        assert answers[:5] == [None] * 5
        assert [type(answer).__name__ for answer in answers[5:]] == ["Refusal"] * 2
        assert not [sql for sql in seen if "SAVEPOINT" in sql]
        assert (await store.count(["q"]))["q"] == Counts(available=6, scheduled=1, done=5)
        assert [item.key for item in await claim(store, limit=9)] == ["b", "c", "a"]
        clock.now += 5.0
        assert [item.key for item in await claim(store, limit=9)] == ["later"]

    run(tmp_path / "q.db", use, clock=clock)
