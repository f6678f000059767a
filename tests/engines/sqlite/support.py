"""Requests and scenarios for the tests of the SQLite store."""

import asyncio
import sqlite3
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from leasedkeyq.engines.sqlite.store import SqliteStore
from leasedkeyq.model.requests import Claim, Claimed, Put
from leasedkeyq.stores.store import Store
from tests.forks import Python

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


def python(code: str, *arguments: object, **options: Any) -> "subprocess.Popen[str]":
    return Python("-c", code, *map(str, arguments), **options)


def plans(path: Path, sql: str, *values: Any) -> list[str]:
    connection = sqlite3.connect(path)
    try:
        rows = connection.execute(f"EXPLAIN QUERY PLAN {sql}", values).fetchall()
    finally:
        connection.close()
    return [row[3] for row in rows]
