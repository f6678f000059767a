"""What can be seen of the SQLite store, within one transaction."""

from collections.abc import Iterator, Sequence
from heapq import merge
from typing import Any, Final, TypeAlias, cast

import msgspec

from leasedkeyq.engines.sqlite.moves import EARLIEST_RESULT, Moves, WriteNeededError, decode_history
from leasedkeyq.engines.sqlite.rows import Space
from leasedkeyq.engines.sqlite.schema import IN_FLIGHT
from leasedkeyq.model.requests import (
    OUTCOMES,
    Counts,
    Page,
    StoredItem,
    StoredState,
)

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
PARTS_BY_KEY: Final = (
    f"SELECT {SHOWN_LIVE} FROM items WHERE queue = ? AND key = ?",
    f"SELECT {SHOWN_BUFFERED} FROM items WHERE queue = ? AND key = ? AND next_id IS NOT NULL",
    f"SELECT {SHOWN_BURIED} FROM buried INDEXED BY buried_by_key WHERE queue = ? AND key = ?",
    f"SELECT {SHOWN_DONE} FROM done INDEXED BY done_by_key WHERE queue = ? AND key = ?",
)
HEAD: Final = f"""
    SELECT {SHOWN_LIVE} FROM items INDEXED BY items_ready
    WHERE queue = ? AND state = 0 ORDER BY priority DESC, place LIMIT 1
"""
NO_LIMIT: Final = 2**62
DONE: Final = 5
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


Read: TypeAlias = Sweep | Count | Heads | Look | Browse | Results


class Reads(Moves):
    """Shows what is stored, as of `now`."""

    def sweep(self, request: Sweep) -> list[float | None]:
        """Deal with what is due; answer the seconds until something comes due next."""
        return [self._sweep(queue) for queue in request.queues]

    def _sweep(self, queue: str) -> float | None:
        space = self._space(queue)
        self._find_earliest(space)
        result = self._earliest_result(space)
        if result is not None and result <= self._now:
            if not self._writable:
                raise WriteNeededError
            self._forget(space)
            result = self._earliest_result(space)
        moments = [moment for moment in (space.earliest, result) if moment is not None]
        return max(min(moments) - self._now, 0.0) if moments else None

    def _earliest_result(self, space: Space) -> float | None:
        row = self._execute(EARLIEST_RESULT, (space.id,)).fetchone() if space.done else None
        return None if row is None else cast("float", row[0])

    def count(self, request: Count) -> dict[str, Counts]:
        """Count items by state."""
        names: Sequence[str] | None = request.queues
        if names is None:
            names = [name for (name,) in self._execute("SELECT name FROM queues ORDER BY name")]
        counts: dict[str, Counts] = {}
        for name in names:
            space = self._space(name)
            done, failed, cancelled = self._results(space)
            found = Counts(
                available=space.available + space.buffered,
                scheduled=space.scheduled,
                in_flight=space.in_flight,
                buried=space.buried,
                done=done,
                done_failed=failed,
                done_cancelled=cancelled,
            )
            if request.queues is not None or found != Counts():
                counts[name] = found
        return counts

    def heads(self, request: Heads) -> list[StoredItem | None]:
        """Show what a claim would lease next."""
        found: list[StoredItem | None] = []
        for name in request.queues:
            space = self._space(name)
            row = self._execute(HEAD, (space.id,)).fetchone() if space.available else None
            found.append(None if row is None else _shown(name, row))
        return found

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
        rows = self._listed(request)
        page = tuple(_shown(request.queue, row) for row in rows[: request.limit])
        more = len(rows) > request.limit
        return Page(page, str(page[-1].id if page else request.after) if more else None)

    def editable(self, queue: str, keys: tuple[str, ...] | None) -> list[StoredItem]:
        """All items of a queue by id, or those of `keys`, with the tokens of their leases."""
        if keys is None:
            rows = self._listed(Browse(queue, STATES, "", 0, NO_LIMIT))
        else:
            space = self._space(queue)
            rows = [
                row
                for key in keys
                for part in PARTS_BY_KEY
                for row in self._execute(part, (space.id, key))
                if row[2] != DONE or row[8] > self._now
            ]
            rows.sort(key=_id_of)
        return [_shown(queue, row, reveal=True) for row in rows]

    def _listed(self, request: Browse) -> list[tuple[Any, ...]]:
        """The rows by id, up to one more than the limit of each part."""
        space = self._space(request.queue)
        parts: list[Iterator[tuple[Any, ...]]] = []
        for code in sorted({STATES.index(state) for state in request.states}):
            if code <= IN_FLIGHT:
                part = f"{SHOWN_LIVE} FROM items INDEXED BY items_by_state"
                parts.append(self._list(part, "id", f"state = {code}", space, request))
        if "buffered" in request.states:
            part = f"{SHOWN_BUFFERED} FROM items INDEXED BY items_buffered"
            parts.append(self._list(part, "next_id", "next_id IS NOT NULL", space, request))
        if "buried" in request.states:
            part = f"{SHOWN_BURIED} FROM buried INDEXED BY buried_by_queue"
            parts.append(self._list(part, "id", "", space, request))
        if "done" in request.states:
            part = f"{SHOWN_DONE} FROM done INDEXED BY done_by_queue"
            parts.append(self._list(part, "id", "due > ?", space, request, self._now))
        return list(merge(*parts, key=_id_of))

    def _list(
        self,
        part: str,
        number: str,
        condition: str,
        space: Space,
        request: Browse,
        *more: float,
    ) -> Iterator[tuple[Any, ...]]:
        sql = f"SELECT {part} WHERE queue = ? AND {number} > ?"
        values: list[Any] = [space.id, request.after]
        if condition:
            sql += f" AND {condition}"
            values += more
        if request.prefix:
            sql += " AND substr(key, 1, ?) = ?"
            values += [len(request.prefix), request.prefix]
        sql += f" ORDER BY {number} LIMIT ?"
        return iter(self._execute(sql, (*values, request.limit + 1)).fetchall())

    def results(self, request: Results) -> list[StoredItem | None]:
        """Show kept results."""
        space = self._space(request.queue)
        found: list[StoredItem | None] = []
        sql = f"SELECT {SHOWN_DONE} FROM done WHERE id = ? AND queue = ? AND due > ?"
        for number in request.ids:
            row = self._execute(sql, (number, space.id, self._now)).fetchone()
            found.append(None if row is None else _shown(request.queue, row))
        return found


def _id_of(row: tuple[Any, ...]) -> int:
    return cast("int", row[0])


def _shown(queue: str, row: tuple[Any, ...], *, reveal: bool = False) -> StoredItem:
    number, key, code, value, priority, attempt, put_at, place, due, error, history = row[:11]
    kind, leased_at, token, deadline, outcome = row[11:]
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
        kind=kind,
        leased_at=leased_at if state == "in_flight" else None,
        token=token if reveal and token else "",
        deadline=deadline,
        outcome=None if outcome is None else OUTCOMES[cast("int", outcome)],
    )
