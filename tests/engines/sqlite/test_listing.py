"""Pages of a SQLite store: a prefix is a range of an index by key, if not too many keys have it."""

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from leasedkeyq.engines.sqlite import inspection
from leasedkeyq.engines.sqlite import schema as sqlite_schema
from leasedkeyq.engines.sqlite.store import SqliteStore
from leasedkeyq.stores import Ack, Bury, Claim, Put, Store, StoredItem
from leasedkeyq.testing.shorthand import EVERY_STATE

LAST = "\U0010ffff"


async def fill(store: Store) -> None:
    """Something in every state, of a few prefixes."""
    keys = [f"{start}{number}" for number in range(6) for start in ("a", "ab", "ä", LAST)]
    await store.put([Put("q", tuple((key, b"1") for key in keys))])
    [items] = await store.claim([Claim((("q", 12),), 12, None, 600.0)])
    await store.settle([Bury("q", item.key, item.token) for item in items[:4]])
    await store.settle([Ack("q", item.key, item.token, b"2", 600.0) for item in items[4:8]])
    await store.put([Put("q", tuple((key, b"3") for key in keys), "append")])
    await store.put([Put("q", (("a9", b"4"), ("ab9", b"4")), delay=600.0)])


def test_a_prefix_is_found_either_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By key, or along the ids: the same items in the same order, on the same pages."""

    async def listed(store: Store, prefix: str, newest_first: bool) -> list[StoredItem]:
        found: list[StoredItem] = []
        cursor: str | None = None
        while True:
            page = await store.browse(
                "q",
                states=EVERY_STATE,
                prefix=prefix,
                cursor=cursor,
                limit=3,
                newest_first=newest_first,
            )
            found += page.items
            cursor = page.cursor
            if cursor is None:
                return found

    async def main() -> None:
        async with SqliteStore(tmp_path / "jobs.db", durability="normal") as store:
            await fill(store)
            everything = await listed(store, "", False)
            for prefix in ("a", "ab", "ä", LAST, "a1", "b"):
                expected = [item for item in everything if item.key.startswith(prefix)]
                for few in (5000, 2, -1):
                    monkeypatch.setattr(inspection, "FEW_OF_A_PREFIX", few)
                    assert await listed(store, prefix, False) == expected, (prefix, few)
                    assert await listed(store, prefix, True) == expected[::-1], (prefix, few)

    asyncio.run(main())


def test_a_rare_prefix_costs_the_same_however_many_items_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In steps of SQLite's machine."""
    steps = 0
    connect = sqlite_schema.connect

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    def counting(*args: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*args, **options)
        connection.set_progress_handler(count, 10)
        return connection

    monkeypatch.setattr(sqlite_schema, "connect", counting)

    async def cost(size: int) -> int:
        async with SqliteStore(tmp_path / f"{size}.db", durability="normal") as store:
            keys = [f"k{number:05}" for number in range(size)]
            await store.put([Put("q", tuple((key, b"1") for key in keys))])
            before = steps
            page = await store.browse("q", states=EVERY_STATE, prefix="k00007")
            assert [item.key for item in page.items] == ["k00007"]
            page = await store.browse("q", prefix="nothing", newest_first=True)
            assert page.items == ()
            return steps - before

    assert asyncio.run(cost(5000)) < asyncio.run(cost(100)) + 100
