"""What the server does for a call: the plans of all statements, with what they really read."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Any

import msgspec

from leasedkeyq.engines.postgres.store import PostgresStore

TABLES = "items|line|buried|done|tallies|floors|buckets|calls|inbox|inbox_floors"
SEQUENTIAL = re.compile(rf"Seq Scan on ({TABLES})\b")
REMOVED = re.compile(r"Rows Removed by (?:Join )?Filter: (\d+)")
ROWS = re.compile(r"Scan .*actual rows=([\d.]+) loops=(\d+)")
EXPLAIN = """
    LOAD 'auto_explain';
    SET auto_explain.log_min_duration = 0;
    SET auto_explain.log_nested_statements = on;
    SET auto_explain.log_analyze = on;
    SET auto_explain.log_timing = off;
    SET client_min_messages = log;
"""


class Plans:
    """The plans of the statements that a store has executed."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def hear(self, _: Any, message: Any) -> None:
        text = str(message.message)
        # The driver asks for types of its own.
        if "Query Text" in text and "typeinfo" not in text:
            self.texts.append(text)

    def check(self, *, most: int) -> None:
        """Each is a walk along an index that does not read much more than it needs."""
        assert self.texts, "no plan was heard of"
        for text in self.texts:
            assert not SEQUENTIAL.search(text), text
            for removed in REMOVED.findall(text):
                assert int(removed) <= most, text
            for rows, loops in ROWS.findall(text):
                assert float(rows) * int(loops) <= most, text
        self.texts.clear()

    def checked(self, *, most: int) -> Callable[[], Awaitable[None]]:
        """The same, to be called after each call."""

        async def check() -> None:
            self.check(most=most)

        return check


@contextmanager
def explained(store: PostgresStore) -> Generator[Plans]:
    """All connections that the store makes tell their plans."""
    plans = Plans()
    connect = store._connect

    async def telling() -> Any:
        connection = await connect()
        await connection.execute(EXPLAIN)
        connection.add_log_listener(plans.hear)
        return connection

    store._settings = msgspec.structs.replace(store._settings, connect=telling)
    yield plans


async def each_checked(
    calls: list[Callable[[], Awaitable[Any]]], check: Callable[[], Awaitable[None]]
) -> None:
    """Make calls, one after the other, and look at what each has cost."""
    for call in calls:
        await call()
        await asyncio.sleep(0)
        await check()


class RowsRead:
    """How many rows a store has the server read, by its statistics: these are on every server."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store
        self._connections: list[Any] = []
        self._seen: dict[str, int] = {}
        connect = store._connect

        async def known() -> Any:
            connection = await connect()
            self._connections.append(connection)
            return connection

        store._settings = msgspec.structs.replace(store._settings, connect=known)

    async def new(self) -> dict[str, int]:
        """The rows that were read since it was asked last, of each table and index."""
        while chores := self._store._link()._chores:  # they use a connection, too
            await asyncio.wait(chores)
        open_ones = [one for one in self._connections if not one.is_closed()]
        for connection in open_ones:
            await connection.execute("SELECT pg_stat_force_next_flush()")
        found = dict(await open_ones[0].fetch(READ, self._store.schema))
        new = {name: read - self._seen.get(name, 0) for name, read in found.items()}
        self._seen = found
        return new

    async def check(self, *, most: int) -> None:
        """No table and no index was read much more than was needed."""
        new = await self.new()
        assert max(new.values()) <= most, {name: read for name, read in new.items() if read > most}


READ = """
    SELECT relname::text, coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)
    FROM pg_stat_all_tables WHERE schemaname = $1
    UNION ALL
    SELECT indexrelname::text, idx_tup_read FROM pg_stat_all_indexes WHERE schemaname = $1
"""
