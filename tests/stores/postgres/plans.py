"""What the server does for a call: the plans of all statements, with what they really read."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Any

import msgspec

from leasedkeyq.stores.postgres import PostgresStore

TABLES = "items|buried|done|tallies|floors|buckets|calls|inbox"
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


async def each_explained(
    plans: Plans, calls: list[Callable[[], Awaitable[Any]]], most: int
) -> None:
    """Make calls, one after the other, and look at the plans of each."""
    for call in calls:
        await call()
        await asyncio.sleep(0)
        plans.check(most=most)
