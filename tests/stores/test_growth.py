"""Every verb costs the same, however much a queue holds. Redis and PostgreSQL are tested apart."""

import asyncio
import sqlite3
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from leasedkeyq import MemoryStore
from leasedkeyq.engines.sqlite import schema as sqlite_schema
from leasedkeyq.engines.sqlite.store import SqliteStore
from leasedkeyq.stores.store import Store
from tests.stores.growth import (
    LENGTHS,
    LIMITS,
    LINES,
    SIZES,
    Counted,
    fill,
    fill_line,
    fill_lines,
    grown,
    line_verbs,
    verbs,
)

Fill = Callable[[Store, int], Awaitable[None]]
Verbs = Callable[[Store, Counted], Awaitable[None]]
GROWING: list[tuple[tuple[int, int], Fill, Verbs]] = [
    (SIZES, fill, verbs),
    (LENGTHS, fill_line, line_verbs),
    (LINES, fill_lines, line_verbs),
]
"""What is put twice, little and much, and what is done then."""


@pytest.mark.parametrize("sizes, filled, done", GROWING, ids=["items", "a line", "lines"])
def test_in_memory(sizes: tuple[int, int], filled: Fill, done: Verbs) -> None:
    """In calls of functions."""

    async def costs(size: int) -> dict[str, int]:
        store = MemoryStore(limits=LIMITS)
        await filled(store, size)
        found: dict[str, int] = {}

        async def counted(name: str, call: Awaitable[Any]) -> Any:
            calls = 0

            def count(*_: object) -> None:
                nonlocal calls
                calls += 1

            sys.setprofile(count)
            try:
                return await call
            finally:
                sys.setprofile(None)
                found[name] = calls

        await done(store, counted)
        await store.close()
        return found

    few, much = [asyncio.run(costs(size)) for size in sizes]
    assert grown(few, much) == {}


@pytest.mark.parametrize("sizes, filled, done", GROWING, ids=["items", "a line", "lines"])
def test_on_sqlite(
    sizes: tuple[int, int],
    filled: Fill,
    done: Verbs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
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

    async def costs(size: int) -> dict[str, int]:
        store = SqliteStore(tmp_path / f"{size}.db", durability="normal", limits=LIMITS)
        await filled(store, size)
        found: dict[str, int] = {}

        async def counted(name: str, call: Awaitable[Any]) -> Any:
            before = steps
            answer = await call
            found[name] = steps - before
            return answer

        await done(store, counted)
        await store.close()
        return found

    few, much = [asyncio.run(costs(size)) for size in sizes]
    assert grown(few, much) == {}
