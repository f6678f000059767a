"""What can be seen of the items of a SQLite store, within one transaction."""

import sqlite3
from collections.abc import Iterator
from heapq import merge
from itertools import islice
from operator import itemgetter
from typing import Any, Final, TypeAlias

import msgspec

from leasedkeyq.engines.sqlite.schema import IN_FLIGHT
from leasedkeyq.model.requests import STATES, StoredItem, StoredState
from leasedkeyq.stores.item_row import item_of_row

# The same columns for items of each table, so that rows of all of them can be merged.
SHOWN_LIVE: Final = """
    id, key, state, value, priority, attempt, put_at, place, due, '' AS error, history, kind,
    leased_at, token, deadline, NULL AS outcome
"""
SHOWN_BUFFERED: Final = """
    next_id, key, 3, next_value, next_priority, 0, next_put_at, 0, next_not_before, '', NULL,
    next_kind, NULL, NULL, next_deadline, NULL
"""
SHOWN_BURIED: Final = """
    id, key, 4, value, priority, attempt, put_at, 0, NULL, error, history, kind, NULL, NULL, NULL,
    NULL
"""
SHOWN_DONE: Final = """
    id, key, 5, value, priority, attempt, put_at, 0, due, '', history, kind, NULL, NULL, NULL,
    outcome
"""
LIVE_BY_KEY: Final = f"SELECT {SHOWN_LIVE} FROM items WHERE queue = ? AND key = ?"
BUFFERED_BY_KEY: Final = f"""
    SELECT {SHOWN_BUFFERED} FROM items WHERE queue = ? AND key = ? AND next_id IS NOT NULL
"""
PARTS_BY_KEY: Final = (
    LIVE_BY_KEY,
    BUFFERED_BY_KEY,
    f"SELECT {SHOWN_BURIED} FROM buried INDEXED BY buried_by_key WHERE queue = ? AND key = ?",
    f"SELECT {SHOWN_DONE} FROM done INDEXED BY done_by_key WHERE queue = ? AND key = ?",
)
HEAD: Final = f"""
    SELECT {SHOWN_LIVE} FROM items INDEXED BY items_ready
    WHERE queue = ? AND state = 0 ORDER BY priority DESC, place LIMIT 1
"""
RESULT: Final = f"SELECT {SHOWN_DONE} FROM done WHERE id = ? AND queue = ? AND due > ?"
# `INDEXED BY`: a page costs the same wherever it begins, and SQLite would rather walk over ids.
_LIVE_PART: Final = f"SELECT {SHOWN_LIVE} FROM items INDEXED BY items_by_state"
PARTS: Final[dict[StoredState, tuple[str, str, str]]] = {
    "available": (_LIVE_PART, "id", "AND state = 0"),
    "scheduled": (_LIVE_PART, "id", "AND state = 1"),
    "in_flight": (_LIVE_PART, "id", "AND state = 2"),
    "buffered": (
        f"SELECT {SHOWN_BUFFERED} FROM items INDEXED BY items_buffered",
        "next_id",
        "AND next_id IS NOT NULL",
    ),
    "buried": (f"SELECT {SHOWN_BURIED} FROM buried INDEXED BY buried_by_queue", "id", ""),
    "done": (f"SELECT {SHOWN_DONE} FROM done INDEXED BY done_by_queue", "id", "AND due > ?"),
}
"""Where the items of each state are, which column is their id, and what else is said of them."""
DONE: Final = STATES.index("done")

Row: TypeAlias = tuple[Any, ...]
_id_of = itemgetter(0)


class Sweep(msgspec.Struct, frozen=True):
    """Ask for `Store.sweep`."""

    queues: tuple[str, ...]


class Count(msgspec.Struct, frozen=True):
    """Ask for `Store.count`."""

    queues: tuple[str, ...] | None


class Heads(msgspec.Struct, frozen=True):
    """Ask for `Store.heads`."""

    queues: tuple[str, ...]


class Look(msgspec.Struct, frozen=True):
    """Ask for `Store.look`."""

    queue: str
    keys: tuple[str, ...]


class Browse(msgspec.Struct, frozen=True):
    """Ask for `Store.browse`."""

    queue: str
    states: tuple[StoredState, ...]
    prefix: str
    after: int
    limit: int


class Results(msgspec.Struct, frozen=True):
    """Ask for `Store.results`."""

    queue: str
    ids: tuple[int, ...]


ReadRequest: TypeAlias = Sweep | Count | Heads | Look | Browse | Results


class Inspection:
    """Shows items as they are stored at `now`; what has come due was dealt with before.

    Methods get the id of a queue in the database, which is 0 for a queue that is not stored.
    """

    def __init__(self, connection: sqlite3.Connection, now: float) -> None:
        self._execute = connection.execute
        self._now = now

    def head(self, number: int, queue: str) -> StoredItem | None:
        """The item that a plain claim would lease next."""
        row = self._execute(HEAD, (number,)).fetchone()
        return None if row is None else item_of_row(queue, row)

    def look(self, number: int, request: Look) -> list[tuple[StoredItem, ...]]:
        """The live items of each key."""
        found: list[tuple[StoredItem, ...]] = []
        for key in request.keys:
            rows = self._execute(LIVE_BY_KEY, (number, key)).fetchall()
            if rows and rows[0][2] == IN_FLIGHT:
                rows += self._execute(BUFFERED_BY_KEY, (number, key)).fetchall()
            found.append(tuple(item_of_row(request.queue, row) for row in rows))
        return found

    def items_of(self, number: int, queue: str, keys: tuple[str, ...]) -> list[StoredItem]:
        """The items of keys in every state by id, with the tokens of their leases."""
        rows = [
            row
            for key in keys
            for part in PARTS_BY_KEY
            for row in self._execute(part, (number, key))
            if row[2] != DONE or row[8] > self._now
        ]
        return [item_of_row(queue, row, reveal=True) for row in sorted(rows, key=_id_of)]

    def browse(self, number: int, request: Browse, *, reveal: bool = False) -> list[StoredItem]:
        """Items by id, up to the limit.

        Args:
            number: The queue.
            request: Which items.
            reveal: Whether to show the tokens of leases.
        """
        parts = [self._part(number, state, request) for state in STATES if state in request.states]
        rows = islice(merge(*parts, key=_id_of), request.limit)
        return [item_of_row(request.queue, row, reveal=reveal) for row in rows]

    def _part(self, number: int, state: StoredState, request: Browse) -> Iterator[Row]:
        select, column, condition = PARTS[state]
        sql = f"{select} WHERE queue = ? AND {column} > ? {condition}"
        values: list[Any] = [number, request.after]
        if state == "done":
            values.append(self._now)
        if request.prefix:
            sql += " AND substr(key, 1, ?) = ?"
            values += [len(request.prefix), request.prefix]
        sql += f" ORDER BY {column} LIMIT ?"
        return iter(self._execute(sql, (*values, request.limit)).fetchall())

    def results(self, number: int, request: Results) -> list[StoredItem | None]:
        """Kept results that are not old; None where there is none."""
        found: list[StoredItem | None] = []
        for item in request.ids:
            row = self._execute(RESULT, (item, number, self._now)).fetchone()
            found.append(None if row is None else item_of_row(request.queue, row))
        return found
