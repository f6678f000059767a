"""What can be seen of the SQLite store, within one transaction."""

from collections.abc import Iterator, Sequence
from heapq import merge
from typing import Any, Final, TypeAlias, cast

import msgspec

from leasedkeyq.stores.contract import Counts, Page, StoredItem, StoredState
from leasedkeyq.stores.sqlite_moves import Moves, decode_history
from leasedkeyq.stores.sqlite_rows import Space
from leasedkeyq.stores.sqlite_schema import IN_FLIGHT

SHOWN_LIVE: Final = (
    "id, key, state, value, priority, attempt, put_at, place, due, '' AS error, history"
)
SHOWN_BUFFERED: Final = (
    "next_id, key, 3, next_value, next_priority, 0, next_put_at, 0, next_not_before, '', NULL"
)
SHOWN_BURIED: Final = "id, key, 4, value, priority, attempt, put_at, 0, NULL, error, history"
SHOWN_DONE: Final = "id, key, 5, value, priority, attempt, put_at, 0, due, '', history"
STATES: Final[tuple[StoredState, ...]] = (
    "available",
    "scheduled",
    "in_flight",
    "buffered",
    "buried",
    "done",
)


class Sweep(msgspec.Struct, frozen=True):
    """Ask for `Store.sweep`."""

    queue: str


class Count(msgspec.Struct, frozen=True):
    """Ask for `Store.count`."""

    queues: tuple[str, ...] | None


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


Read: TypeAlias = Sweep | Count | Look | Browse | Results


class Reads(Moves):
    """Shows what is stored, as of `now`."""

    def sweep(self, request: Sweep) -> float | None:
        """Deal with what is due; answer the seconds until something comes due next."""
        space = self._space(request.queue)
        self._find_earliest(space)
        return None if space.earliest is None else max(space.earliest - self._now, 0.0)

    def count(self, request: Count) -> dict[str, Counts]:
        """Count items by state."""
        names: Sequence[str] | None = request.queues
        if names is None:
            names = [name for (name,) in self._execute("SELECT name FROM queues ORDER BY name")]
        counts: dict[str, Counts] = {}
        for name in names:
            space = self._space(name)
            if request.queues is not None or any(space.sizes()):
                counts[name] = Counts(
                    available=space.available + space.buffered,
                    scheduled=space.scheduled,
                    in_flight=space.in_flight,
                    buried=space.buried,
                    done=space.done,
                )
        return counts

    def look(self, request: Look) -> list[tuple[StoredItem, ...]]:
        """Show the live items of keys."""
        space = self._space(request.queue)
        found: list[tuple[StoredItem, ...]] = []
        sql = f"SELECT {SHOWN_LIVE} FROM items WHERE queue = ? AND key = ?"
        beside = f"SELECT {SHOWN_BUFFERED} FROM items WHERE queue = ? AND key = ?"
        for key in request.keys:
            rows = self._execute(sql, (space.id, key)).fetchall()
            if rows and rows[0][2] == IN_FLIGHT:
                sql_beside = f"{beside} AND next_id IS NOT NULL"
                rows += self._execute(sql_beside, (space.id, key)).fetchall()
            found.append(tuple(_shown(request.queue, row) for row in rows))
        return found

    def browse(self, request: Browse) -> Page:
        """List items by id."""
        space = self._space(request.queue)
        parts: list[Iterator[tuple[Any, ...]]] = []
        live = [STATES.index(state) for state in request.states if STATES.index(state) <= IN_FLIGHT]
        if live:
            states = ", ".join(map(str, live))
            part = f"{SHOWN_LIVE} FROM items INDEXED BY items_by_queue"
            parts.append(self._list(part, "id", f"state IN ({states})", space, request))
        if "buffered" in request.states:
            part = f"{SHOWN_BUFFERED} FROM items INDEXED BY items_buffered"
            parts.append(self._list(part, "next_id", "next_id IS NOT NULL", space, request))
        if "buried" in request.states:
            part = f"{SHOWN_BURIED} FROM buried INDEXED BY buried_by_queue"
            parts.append(self._list(part, "id", "", space, request))
        if "done" in request.states:
            part = f"{SHOWN_DONE} FROM done INDEXED BY done_by_queue"
            parts.append(self._list(part, "id", "", space, request))
        rows = list(merge(*parts, key=lambda row: row[0]))
        page = tuple(_shown(request.queue, row) for row in rows[: request.limit])
        more = len(rows) > request.limit
        return Page(page, str(page[-1].id if page else request.after) if more else None)

    def _list(
        self, part: str, number: str, condition: str, space: Space, request: Browse
    ) -> Iterator[tuple[Any, ...]]:
        sql = f"SELECT {part} WHERE queue = ? AND {number} > ?"
        values: list[Any] = [space.id, request.after]
        if condition:
            sql += f" AND {condition}"
        if request.prefix:
            sql += " AND substr(key, 1, ?) = ?"
            values += [len(request.prefix), request.prefix]
        sql += f" ORDER BY {number} LIMIT ?"
        return iter(self._execute(sql, (*values, request.limit + 1)).fetchall())

    def results(self, request: Results) -> list[StoredItem | None]:
        """Show kept results."""
        space = self._space(request.queue)
        found: list[StoredItem | None] = []
        sql = f"SELECT {SHOWN_DONE} FROM done WHERE id = ? AND queue = ?"
        for number in request.ids:
            row = self._execute(sql, (number, space.id)).fetchone()
            found.append(None if row is None else _shown(request.queue, row))
        return found


def _shown(queue: str, row: tuple[Any, ...]) -> StoredItem:
    number, key, code, value, priority, attempt, put_at, place, due, error, history = row
    state = STATES[cast("int", code)]
    return StoredItem(
        id=number,
        queue=queue,
        key=key,
        state=state,
        value=value,
        priority=priority,
        attempt=attempt,
        put_at=put_at,
        place=place if state == "available" else 0,
        due=due if state != "available" else None,
        error=error,
        history=decode_history(history) if history else (),
    )
