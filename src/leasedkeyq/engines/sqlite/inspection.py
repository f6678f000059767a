"""What can be seen of the items of a SQLite store, within one transaction."""

import sqlite3
from collections.abc import Iterator
from heapq import merge
from itertools import islice
from operator import itemgetter
from typing import Any, Final, TypeAlias

import msgspec

from leasedkeyq.engines.sqlite.schema import BUFFERED, HELD, IN_LINE
from leasedkeyq.model.requests import STATES, StoredItem, StoredState
from leasedkeyq.stores.item_row import item_of_row
from leasedkeyq.stores.paging import FEW_OF_A_PREFIX, prefix_end

# The same columns for items of each table, so that rows of all of them can be merged.
SHOWN_LIVE: Final = """
    id, key, state, value, priority, attempt, put_at, place, iif(in_line, not_before, due),
    '' AS error, history, kind, leased_at, token, deadline, NULL AS outcome, NULL AS ended_at,
    0 AS holds
"""
SHOWN_BURIED: Final = """
    id, key, 4, value, priority, attempt, put_at, 0, NULL, error, history, kind, NULL, NULL, NULL,
    NULL, NULL, holds
"""
SHOWN_DONE: Final = """
    id, key, 5, value, priority, attempt, put_at, 0, due, '', history, kind, NULL, NULL, NULL,
    outcome, ended_at, 0
"""
# A head that is held is the place of a buried item, and that is shown elsewhere.
HEAD_OF_KEY: Final = f"""
    SELECT {SHOWN_LIVE} FROM items INDEXED BY items_by_key
    WHERE queue = ? AND key = ? AND in_line = 0 AND id > ? AND state <> {HELD}
"""
LINE_OF_KEY: Final = f"""
    SELECT {SHOWN_LIVE} FROM items INDEXED BY items_by_key
    WHERE queue = ? AND key = ? AND in_line > ? ORDER BY in_line LIMIT ?
"""
LIVE_BY_KEY: Final = f"""
    SELECT {SHOWN_LIVE} FROM items INDEXED BY items_by_key
    WHERE queue = ? AND key = ? AND state <> {HELD}
"""
HEAD_BY_KEY: Final = f"{LIVE_BY_KEY} AND in_line = 0"
PARTS_BY_KEY: Final = (
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
PARTS: Final[dict[StoredState, tuple[str, str]]] = {
    "available": (_LIVE_PART, "AND state = 0"),
    "scheduled": (_LIVE_PART, "AND state = 1"),
    "in_flight": (_LIVE_PART, "AND state = 2"),
    "buffered": (_LIVE_PART, f"AND state = {BUFFERED}"),
    "in_line": (_LIVE_PART, f"AND state = {IN_LINE}"),
    "buried": (f"SELECT {SHOWN_BURIED} FROM buried INDEXED BY buried_by_queue", ""),
    "done": (f"SELECT {SHOWN_DONE} FROM done INDEXED BY done_by_queue", "AND due > ?"),
}
"""Where the items of each state are, and what else is said of them."""
# The same for the keys of a prefix: an index has them by key. Only ids are sorted, as values may be
# large.
_IN_RANGE: Final = "WHERE queue = ? AND key >= ? AND key < ?"
_LIVE_RANGE: Final = f"items INDEXED BY items_by_key {_IN_RANGE}"
RANGES: Final[dict[StoredState, tuple[str, str]]] = {
    state: (
        {
            "buried": f"SELECT {SHOWN_BURIED} FROM buried",
            "done": f"SELECT {SHOWN_DONE} FROM done",
        }.get(state, f"SELECT {SHOWN_LIVE} FROM items"),
        {
            "buried": f"buried INDEXED BY buried_by_key {_IN_RANGE}",
            "done": f"done INDEXED BY done_by_key {_IN_RANGE}",
        }.get(state, _LIVE_RANGE),
    )
    for state in STATES
}
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


class LinePage(msgspec.Struct, frozen=True):
    """Ask for `Store.line`."""

    queue: str
    key: str
    after: int
    limit: int


class Browse(msgspec.Struct, frozen=True):
    """Ask for `Store.browse`."""

    queue: str
    states: tuple[StoredState, ...]
    prefix: str
    after: int
    limit: int
    newest_first: bool = False


class Results(msgspec.Struct, frozen=True):
    """Ask for `Store.results`."""

    queue: str
    ids: tuple[int, ...]


ReadRequest: TypeAlias = Sweep | Count | Heads | Look | LinePage | Browse | Results


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

    def look(self, number: int, request: Look, *, lined: bool) -> list[tuple[StoredItem, ...]]:
        """Of each key its head and the first of its line.

        Args:
            number: The queue.
            request: Which keys.
            lined: Whether the queue has values in lines at all.
        """
        found: list[tuple[StoredItem, ...]] = []
        for key in request.keys:
            rows = self._execute(HEAD_OF_KEY, (number, key, 0)).fetchall()
            if lined:
                rows += self._execute(LINE_OF_KEY, (number, key, 0, 1)).fetchall()
            found.append(tuple(item_of_row(request.queue, row) for row in rows))
        return found

    def line(self, number: int, request: LinePage) -> list[StoredItem]:
        """The head of a key and its line by id, up to the limit."""
        where = (number, request.key, request.after)
        rows = self._execute(HEAD_OF_KEY, where).fetchall()
        rows += self._execute(LINE_OF_KEY, (*where, request.limit - len(rows))).fetchall()
        return [item_of_row(request.queue, row) for row in rows]

    def items_of(
        self, number: int, queue: str, keys: tuple[str, ...], *, heads_only: bool = False
    ) -> list[StoredItem]:
        """The items of keys in every state by id, with the tokens of their leases.

        With `heads_only`, without the values in lines.
        """
        live = HEAD_BY_KEY if heads_only else LIVE_BY_KEY
        rows = [
            row
            for key in keys
            for part in (live, *PARTS_BY_KEY)
            for row in self._execute(part, (number, key))
            if row[2] != DONE or row[8] > self._now
        ]
        return [item_of_row(queue, row, reveal=True) for row in sorted(rows, key=_id_of)]

    def browse(self, number: int, request: Browse, *, reveal: bool = False) -> list[StoredItem]:
        """Items by id, or from the highest id down, up to the limit.

        Args:
            number: The queue.
            request: Which items.
            reveal: Whether to show the tokens of leases.
        """
        end = prefix_end(request.prefix) if request.prefix else None
        parts = [
            self._part(number, state, request, end) for state in STATES if state in request.states
        ]
        rows = islice(merge(*parts, key=_id_of, reverse=request.newest_first), request.limit)
        return [item_of_row(request.queue, row, reveal=reveal) for row in rows]

    def _part(
        self, number: int, state: StoredState, request: Browse, end: str | None
    ) -> Iterator[Row]:
        """The items of a state. `end` is behind all keys with the prefix, if any text is."""
        select, condition = PARTS[state]
        follows, order = ("<", "DESC") if request.newest_first else (">", "ASC")
        now = [self._now] if state == "done" else []
        last = f"ORDER BY id {order} LIMIT ?"
        if end is not None:
            keys = (number, request.prefix, end)
            whole, within = RANGES[state]
            few = f"SELECT count(*) FROM (SELECT 1 FROM {within} LIMIT {FEW_OF_A_PREFIX + 1})"
            if self._execute(few, keys).fetchone()[0] <= FEW_OF_A_PREFIX:
                ids = f"SELECT id FROM {within} AND id {follows} ? {condition} {last}"
                sql = f"{whole} WHERE id IN ({ids}) ORDER BY id {order}"
                values = (*keys, request.after, *now, request.limit)
                return iter(self._execute(sql, values).fetchall())
        sql = f"{select} WHERE queue = ? AND id {follows} ? {condition}"
        searched: list[Any] = [number, request.after, *now]
        if request.prefix:
            sql += " AND substr(key, 1, ?) = ?"
            searched += [len(request.prefix), request.prefix]
        return iter(self._execute(f"{sql} {last}", (*searched, request.limit)).fetchall())

    def results(self, number: int, request: Results) -> list[StoredItem | None]:
        """Kept results that are not old; None where there is none."""
        found: list[StoredItem | None] = []
        for item in request.ids:
            row = self._execute(RESULT, (item, number, self._now)).fetchone()
            found.append(None if row is None else item_of_row(request.queue, row))
        return found
