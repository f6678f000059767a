"""Databases of older versions are brought up to date; newer ones are refused."""

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from leasedkeyq.engines.sqlite import schema as sqlite_schema
from leasedkeyq.engines.sqlite.store import SqliteStore
from leasedkeyq.errors import StoreError
from leasedkeyq.model.requests import (
    Ack,
    Attempt,
    Bury,
    Claim,
    Counts,
    Placed,
    Put,
    Release,
    Requeue,
    StoredItem,
    StoredState,
)
from leasedkeyq.testing import ManualClock
from leasedkeyq.testing.shorthand import EVERY_STATE
from leasedkeyq.testing.site import SMALL_LIMITS

OLDER = range(1, sqlite_schema.VERSION)
THEN = 1_700_000_002.0
"""When the older databases were left."""


def database(folder: Path, version: int) -> Path:
    """A database as that version left it."""
    script = Path(__file__).with_name(f"version_{version}.sql").read_text()
    path = folder / "q.db"
    connection = sqlite3.connect(path)
    connection.executescript(script)
    connection.close()
    return path


def schema(connection: sqlite3.Connection) -> list[tuple[str, str, str]]:
    """Every table and index, without regard to how its text is broken into lines."""
    rows = connection.execute(
        "SELECT type, name, ifnull(sql, '') FROM sqlite_master WHERE name NOT LIKE 'sqlite_%' "
        "ORDER BY type, name"
    )
    return [(kind, name, " ".join(sql.split())) for kind, name, sql in rows]


def schema_of(path: Path) -> list[tuple[str, str, str]]:
    connection = sqlite3.connect(path)
    try:
        return schema(connection)
    finally:
        connection.close()


def migrated(versions: int) -> list[tuple[str, str, str]]:
    """The sum of the first migrations."""
    connection = sqlite3.connect(":memory:")
    for statements in sqlite_schema.MIGRATIONS[:versions]:
        for statement in statements:
            connection.execute(statement)
    found = schema(connection)
    connection.close()
    return found


def item(number: int, key: str, state: StoredState, value: bytes, **rest: Any) -> StoredItem:
    fields: dict[str, Any] = {"put_at": THEN, "queue": "mail", **rest}
    return StoredItem(id=number, key=key, state=state, value=value, **fields)


def past(how: Any, error: str) -> tuple[Attempt, ...]:
    return (Attempt(1, THEN - 1, how, error),)


FIRST = THEN - 2
LEFT = [
    item(
        1,
        "gone",
        "buried",
        b'"gone"',
        put_at=FIRST,
        priority=3,
        attempt=1,
        error="it broke",
        history=past("buried", "it broke"),
    ),
    item(
        2,
        "ready",
        "done",
        b'"result"',
        put_at=FIRST,
        attempt=1,
        due=THEN + 999,
        outcome="completed",
    ),
    item(
        3,
        "again",
        "available",
        b'"again"',
        put_at=FIRST,
        attempt=1,
        place=6,
        history=past("released", "not now"),
    ),
    item(4, "held", "in_flight", b'"held"', put_at=FIRST, attempt=1, due=THEN + 50),
    item(5, "both", "in_flight", b'"both"', put_at=FIRST, attempt=1, due=THEN + 60),
    item(6, "both", "buffered", b'"newer"', priority=2),
    item(7, "free", "available", b'{"to":"ann"}', place=8),
    item(8, "urgent", "available", b"[1,2]", priority=5, place=9),
    item(9, "later", "scheduled", b"2.5", due=THEN + 100),
]
"""What is in the queue "mail" of the older databases."""


async def everything(store: SqliteStore) -> list[StoredItem]:
    return list((await store.browse("mail", states=EVERY_STATE)).items)


async def keys_of(store: SqliteStore, **options: Any) -> list[str]:
    (claimed,) = await store.claim([Claim((("mail", 9),), 9, **options)])
    return [found.key for found in claimed]


def test_there_is_a_database_of_every_earlier_version() -> None:
    kept = Path(__file__).parent.glob("version_*.sql")
    assert sorted(path.stem for path in kept) == [f"version_{n}" for n in OLDER]


@pytest.mark.parametrize("version", OLDER)
def test_a_released_migration_has_not_changed(tmp_path: Path, version: int) -> None:
    assert schema_of(database(tmp_path, version)) == migrated(version)


@pytest.mark.parametrize("version", OLDER)
def test_the_schema_is_the_sum_of_the_migrations(tmp_path: Path, version: int) -> None:
    async def open_and_close(path: Path) -> None:
        await SqliteStore(path).close()

    old = database(tmp_path, version)
    new = tmp_path / "new.db"
    for path in (old, new):
        asyncio.run(open_and_close(path))
        assert schema_of(path) == migrated(sqlite_schema.VERSION)
        connection = sqlite3.connect(path)
        assert sqlite_schema.version_of(connection) == sqlite_schema.VERSION
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        connection.close()


@pytest.mark.parametrize("version", OLDER)
def test_all_that_an_older_version_stored_is_there_and_works(tmp_path: Path, version: int) -> None:
    async def main() -> None:
        clock = ManualClock(THEN)
        store = SqliteStore(database(tmp_path, version), clock=clock, limits=SMALL_LIMITS)
        assert await everything(store) == LEFT
        assert dict(await store.count()) == {
            "mail": Counts(available=4, scheduled=1, in_flight=2, buried=1, done=1),
            "other": Counts(available=1),
        }
        # The leases hold, and a buffered value follows.
        answers = await store.settle(
            [Ack("mail", "held", "token of held"), Release("mail", "both", "token of both")]
        )
        assert answers == [None, None]
        # Requeued, numbered and ordered behind what was there.
        assert await store.settle([Requeue("mail", 1)]) == [True]
        assert await store.put([Put("mail", (("new", b"1"),), kind="call")]) == [
            (Placed(12, "added"),)
        ]
        assert await keys_of(store, kinds=("call",)) == ["new"]
        assert await keys_of(store, kinds=("",)) == ["urgent", "gone", "both", "again", "free"]
        live = {found.key: found for found in await everything(store)}
        assert live["both"].id == 6
        assert live["both"].leased_at == THEN
        assert live["both"].kind == ""
        # Time goes on.
        clock.now += 100
        assert await keys_of(store) == ["later"]
        seen: list[StoredItem] = []

        def work(items: Any) -> list[Any]:
            seen.extend(items)
            return [Bury("mail", "later", found.token) for found in items if found.token]

        assert await store.edit("mail", work, keys=["later", "ready"]) == [9]
        assert [(found.id, found.state) for found in seen] == [(2, "done"), (9, "in_flight")]
        clock.now += 1000
        assert (await store.count())["mail"] == Counts(in_flight=6, buried=1)
        await store.close()

    asyncio.run(main())


@pytest.mark.parametrize("version", [version for version in OLDER if version < 6])
def test_results_of_before_have_the_outcome_that_they_say(tmp_path: Path, version: int) -> None:
    results = {
        20: (b'{"status":"failed","payload":{}}', "failed"),
        21: (b'{"status":"cancelled"}', "cancelled"),
        22: (b'{"status":"completed"}', "completed"),
        23: (b'{"status":{"failed":1}}', "completed"),
        24: (b'["failed"]', "completed"),
        25: (b'\xff{"status":"failed"}', "completed"),
    }
    path = database(tmp_path, version)
    connection = sqlite3.connect(path)
    connection.executemany(
        "INSERT INTO done (id, queue, key, priority, attempt, put_at, due, value) "
        "VALUES (?, 2, 'old', 0, 1, ?, ?, ?)",
        [(number, THEN, THEN + 100, value) for number, (value, _) in results.items()],
    )
    connection.execute("UPDATE queues SET done = 6 WHERE id = 2")
    connection.commit()
    connection.close()

    async def main() -> None:
        clock = ManualClock(THEN)
        store = SqliteStore(path, clock=clock)
        found = await store.results("other", list(results))
        assert [one and one.outcome for one in found] == [said for _, said in results.values()]
        expected = Counts(available=1, done=6, done_failed=1, done_cancelled=1)
        assert (await store.count(["other"]))["other"] == expected
        clock.now += 100
        assert (await store.count(["other"]))["other"] == Counts(available=1)
        await store.close()

    asyncio.run(main())


@pytest.mark.parametrize("version", OLDER)
def test_results_of_before_do_not_say_when_their_items_ended(tmp_path: Path, version: int) -> None:
    """So they do not stand in the way of a put that is to be unique for some time."""

    async def main() -> None:
        store = SqliteStore(database(tmp_path, version), clock=ManualClock(THEN))
        [result] = await store.results("mail", [2])
        assert result is not None
        assert result.ended_at is None
        unique = Put("mail", (("ready", b"1"),), "skip", unique_for=1000.0)
        assert await store.put([unique]) == [(Placed(11, "added"),)]
        [[item]] = await store.claim([Claim((("mail", 1),), key="ready")])
        await store.settle([Ack("mail", "ready", item.token, b"2", 1000.0)])
        assert await store.put([unique]) == [(Placed(11, "skipped"),)]
        await store.close()

    asyncio.run(main())


@pytest.mark.parametrize("version", OLDER)
def test_a_buffered_value_of_before_is_a_line_of_one(tmp_path: Path, version: int) -> None:
    path = database(tmp_path, version)
    connection = sqlite3.connect(path)
    # Since version 7 it has a row of its own.
    prefix, row = ("next_", "key = 'both'") if version < 7 else ("", "id = 6")
    connection.execute(f"UPDATE items SET {prefix}not_before = ? WHERE {row}", (THEN + 7,))
    if version >= 2:
        connection.execute(f"UPDATE items SET {prefix}kind = 'call' WHERE {row}")
    if version >= 4:
        connection.execute(f"UPDATE items SET {prefix}deadline = ? WHERE {row}", (THEN + 9,))
    connection.commit()
    connection.close()
    newer = item(
        6,
        "both",
        "buffered",
        b'"newer"',
        priority=2,
        due=THEN + 7,
        kind="call" if version >= 2 else "",
        deadline=THEN + 9 if version >= 4 else None,
    )

    async def main() -> None:
        clock = ManualClock(THEN)
        store = SqliteStore(path, clock=clock)
        leased, buffered = (await store.line("mail", "both")).items
        assert (leased.id, leased.state) == (5, "in_flight")
        assert buffered == newer
        # What is appended stands behind it.
        put = Put("mail", (("both", b"3"),), "append")
        assert await store.put([put]) == [(Placed(11, "appended"),)]
        assert (await store.count(["mail"]))["mail"].available == 5
        # It replaces the released one, and waits for its own time.
        assert await store.settle([Release("mail", "both", "token of both")]) == [None]
        head, last = (await store.line("mail", "both")).items
        assert (head.id, head.state, head.due, head.attempt) == (6, "scheduled", THEN + 7, 1)
        assert (last.id, last.state) == (11, "in_line")
        clock.now += 7
        [[claimed]] = await store.claim([Claim((("mail", 1),), key="both")])
        assert (claimed.id, claimed.attempt, claimed.kind) == (6, 2, newer.kind)
        assert claimed.deadline == newer.deadline
        assert await store.settle([Ack("mail", "both", claimed.token)]) == [None]
        [[claimed]] = await store.claim([Claim((("mail", 1),), key="both")])
        assert (claimed.id, claimed.attempt, claimed.value) == (11, 1, b"3")
        await store.close()

    asyncio.run(main())


@pytest.mark.parametrize("version", OLDER)
def test_a_migration_that_fails_leaves_the_database_as_it_was(
    tmp_path: Path, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = database(tmp_path, version)
    *released, last = sqlite_schema.MIGRATIONS
    broken = (*released, (*last, "CREATE TABLE items (id INTEGER)"))
    monkeypatch.setattr(sqlite_schema, "MIGRATIONS", broken)
    with pytest.raises(StoreError, match="already exists"):
        SqliteStore(path)
    assert schema_of(path) == migrated(version)
    monkeypatch.undo()

    async def look() -> None:
        store = SqliteStore(path, clock=ManualClock(THEN))
        assert await everything(store) == LEFT
        await store.close()

    asyncio.run(look())


@pytest.mark.parametrize("version", OLDER)
def test_fences_of_before_are_not_given_out_again(tmp_path: Path, version: int) -> None:
    async def main() -> None:
        store = SqliteStore(database(tmp_path, version), clock=ManualClock(THEN))
        (claimed,) = await store.claim([Claim((("mail", 2),), 2)])
        assert [found.fence for found in claimed] == [6, 7]
        await store.close()

    asyncio.run(main())


def test_a_newer_version_is_refused_with_advice(tmp_path: Path) -> None:
    path = database(tmp_path, 1)
    newer = sqlite_schema.VERSION + 1
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {newer}")
    connection.close()
    known = f"version {newer}, this leasedkeyq knows versions up to {newer - 1}: upgrade leasedkeyq"
    with pytest.raises(StoreError, match=known):
        SqliteStore(path)
    assert schema_of(path) == migrated(1)


def test_a_store_that_is_open_while_a_newer_program_migrates_says_so(tmp_path: Path) -> None:
    """It could misread the new tables, or leave rows behind that the newer program misreads."""
    newer = sqlite_schema.VERSION + 1
    path = tmp_path / "q.db"

    def look() -> list[tuple[Any, ...]]:
        connection = sqlite3.connect(path)
        try:
            return connection.execute("SELECT * FROM items").fetchall()
        finally:
            connection.close()

    async def main() -> None:
        store = SqliteStore(path)
        await store.put([Put("mail", (("a", b"1"),))])
        [[held]] = await store.claim([Claim((("mail", 1),))])
        connection = sqlite3.connect(path)
        connection.execute("ALTER TABLE items ADD COLUMN something INTEGER")
        connection.execute(f"PRAGMA user_version = {newer}")
        connection.close()
        left = look()
        known = f"version {newer}, this leasedkeyq knows versions up to {newer - 1}: upgrade"
        for request in (
            store.put([Put("mail", (("b", b"1"),))]),
            store.put([Put("mail", (("c", bytes(100_000)),))] * 9),
            store.claim([Claim((("mail", 1),))]),
            store.settle([Ack("mail", "a", held.token)]),
            store.count(["mail"]),
        ):
            with pytest.raises(StoreError, match=known):
                await request
        assert look() == left
        await store.close()

    asyncio.run(main())
