"""The moves of the state machine on SQLite tables, within one transaction.

It mirrors `leasedkeyq.model.state` step by step; tests compare their answers.
"""

import sqlite3
from typing import Final, cast

import msgspec

from leasedkeyq.engines.sqlite.rows import CANCELLED, FAILED, SIZES, Live, Space
from leasedkeyq.engines.sqlite.schema import AVAILABLE, SCHEDULED
from leasedkeyq.errors import LeaseEnd
from leasedkeyq.model.requests import Attempt, Limits

EXPIRY_CHUNK: Final = 200
FORGET_CHUNK: Final = 500
"""So many old results are deleted in one transaction, and as many more as are kept in it."""

_FIELDS: Final = """
    id, key, state, priority, place, attempt, put_at, due, turn, not_before, token, history,
    next_id, next_priority, next_not_before, next_put_at
"""
LIVE: Final = f"SELECT {_FIELDS} FROM items WHERE queue = ? AND key = ?"
COMING_DUE: Final = f"""
    SELECT {_FIELDS} FROM items WHERE queue = ? AND due <= ? AND due IS NOT NULL
    ORDER BY due, turn LIMIT {EXPIRY_CHUNK}
"""
EARLIEST: Final = """
    SELECT due FROM items WHERE queue = ? AND due IS NOT NULL ORDER BY due LIMIT 1
"""
EARLIEST_RESULT: Final = "SELECT due FROM done WHERE queue = ? ORDER BY due LIMIT 1"
OLD_RESULTS: Final = f"""
    SELECT count(*), count(*) FILTER (WHERE outcome = {FAILED}),
    count(*) FILTER (WHERE outcome = {CANCELLED}) FROM done WHERE queue = ? AND due <= ?
"""
FORGET: Final = """
    DELETE FROM done WHERE id IN
    (SELECT id FROM done WHERE queue = ? AND due <= ? ORDER BY due LIMIT ?) RETURNING outcome
"""
MOVE: Final = """
    UPDATE items SET state = ?, priority = ?, place = ?, attempt = ?, due = ?, turn = ?,
    not_before = ?, token = ?, history = ? WHERE id = ?
"""
MOVE_AND_REPLACE: Final = """
    UPDATE items SET state = ?, priority = ?, place = ?, attempt = ?, due = ?, turn = ?,
    not_before = ?, token = ?, history = ?, id = next_id, put_at = next_put_at,
    deadline = next_deadline, kind = next_kind, value = next_value, next_id = NULL,
    next_priority = NULL, next_not_before = NULL, next_put_at = NULL, next_deadline = NULL,
    next_kind = NULL, next_value = NULL WHERE id = ?
"""
COUNTERS: Final = ("last_id", "last_fence", "back", "front", "schedules", "burials", "commits")

_encode_history = msgspec.json.Encoder().encode
decode_history = msgspec.json.Decoder(tuple[Attempt, ...]).decode


class WriteNeededError(Exception):
    """A transaction that was begun for reading must write. Nothing was done."""


class Moves:
    """The queues as of `now`, within a transaction that others begin and end.

    One that is not `writable` raises `WriteNeededError` when there is something to write.
    """

    def __init__(
        self, connection: sqlite3.Connection, limits: Limits, now: float, *, writable: bool = True
    ) -> None:
        self._writable = writable
        self._execute = connection.execute
        self._many = connection.executemany
        self._limits = limits
        self._now = now
        self._spaces: dict[str, Space] = {}
        self.dropped: list[tuple[str, str]] = []
        """Queue and key of buried items that had to make room."""
        self.forgettable: int = FORGET_CHUNK
        """How many old results this transaction may still delete."""
        self.changed = False
        row = self._execute(f"SELECT {', '.join(COUNTERS)} FROM counters").fetchone()
        self.last_id: int
        self.last_fence: int
        self.back: int
        self.front: int
        self.schedules: int
        self.burials: int
        self.commits: int
        (
            self.last_id,
            self.last_fence,
            self.back,
            self.front,
            self.schedules,
            self.burials,
            self.commits,
        ) = row

    def finish(self) -> set[str]:
        """Write the counters before the commit; return the names of the queues that changed.

        Nobody waits for a result to be forgotten: that alone is no change.
        """
        touched: set[str] = set()
        for space in self._spaces.values():
            if space.changed:
                touched.add(space.name)
                self._forget(space)
            elif not space.forgot:
                continue
            sizes = space.sizes()
            if any(sizes):
                columns = ", ".join(f"{name} = ?" for name in SIZES)
                self._execute(f"UPDATE queues SET {columns} WHERE id = ?", (*sizes, space.id))
            elif space.id:
                self._execute("DELETE FROM queues WHERE id = ?", (space.id,))
        if touched:
            self.changed = True
            columns = ", ".join(f"{name} = ?" for name in COUNTERS)
            self._execute(
                f"UPDATE counters SET {columns}",
                (
                    self.last_id,
                    self.last_fence,
                    self.back,
                    self.front,
                    self.schedules,
                    self.burials,
                    self.commits + 1,
                ),
            )
        return touched

    # Queues and time

    def _space(self, name: str) -> Space:
        """The queue as it is at `now`."""
        space = self._spaces.get(name)
        if space is None:
            sql = f"SELECT id, {', '.join(SIZES)} FROM queues WHERE name = ?"
            space = Space(name, self._execute(sql, (name,)).fetchone())
            self._spaces[name] = space
            self._find_earliest(space)
        if space.earliest is not None and space.earliest <= self._now:
            self._advance(space)
        return space

    def _stored(self, space: Space) -> int:
        """The id of the queue, which is stored if it was not."""
        if not space.id:
            row = self._execute("INSERT INTO queues (name) VALUES (?)", (space.name,))
            space.id = cast("int", row.lastrowid)
        return space.id

    def _find_earliest(self, space: Space) -> None:
        space.earliest = None
        if space.scheduled or space.in_flight:
            for (due,) in self._execute(EARLIEST, (space.id,)):
                space.expect(due)

    def _advance(self, space: Space) -> None:
        """Deal with what has come due, each as of its own moment."""
        if not self._writable:
            raise WriteNeededError
        now = self._now
        again = True
        while again:
            rows = self._execute(COMING_DUE, (space.id, now)).fetchall()
            again = len(rows) == EXPIRY_CHUNK
            for row in rows:
                live = Live(row)
                moment = cast("float", live.due)
                if live.state == SCHEDULED:
                    space.scheduled -= 1
                    self._place(space, live, None, moment)
                else:
                    self._remember(live, "expired", "", moment)
                    self._end(space, live)
                    self._return(space, live, None, front=True, moment=moment)
                self._write(space, live)
                if live.due is not None and live.due <= now:
                    # It is scheduled for a moment that has come, too: its turn is among the rest.
                    again = True
                    break
        self._find_earliest(space)

    def _forget(self, space: Space) -> None:
        """Delete old results, the oldest first, as many as this transaction may.

        The rest has its turn in later ones. Nobody sees it until then.
        """
        if space.done and self.forgettable:
            values = (space.id, self._now, self.forgettable)
            forgotten = self._execute(FORGET, values).fetchall()
            self.forgettable -= len(forgotten)
            for (outcome,) in forgotten:
                space.count_result(outcome, -1)
            space.forgot = space.forgot or bool(forgotten)

    def _results(self, space: Space) -> tuple[int, int, int]:
        """How many results are not old: all, those that failed, and those that were cancelled."""
        if not space.done:
            return 0, 0, 0
        old, failed, cancelled = self._execute(OLD_RESULTS, (space.id, self._now)).fetchone()
        return space.done - old, space.done_failed - failed, space.done_cancelled - cancelled

    # Moves

    def _place(
        self, space: Space, live: Live, due: float | None, moment: float, front: bool = False
    ) -> None:
        """Give an item its place, or schedule it."""
        if due is not None and due > moment:
            self.schedules += 1
            live.state, live.due, live.turn = SCHEDULED, due, self.schedules
            space.scheduled += 1
            space.expect(due)
            return
        live.state, live.due = AVAILABLE, None
        space.available += 1
        if front:
            self.front -= 1
            live.place = self.front
        else:
            self.back += 1
            live.place = self.back

    def _leave(self, space: Space, live: Live) -> None:
        """Take an item that is not in flight out of its place."""
        if live.state == AVAILABLE:
            space.available -= 1
        else:
            space.scheduled -= 1

    def _end(self, space: Space, live: Live) -> None:
        """End the lease; the item is then given its place."""
        space.in_flight -= 1
        live.token = live.due = None

    def _replace(self, space: Space, live: Live) -> None:
        """The buffered value becomes the value, and takes over the attempts and the history."""
        live.replaced = True
        space.buffered -= 1

    def _return(
        self, space: Space, live: Live, due: float | None, front: bool, moment: float
    ) -> None:
        """Bring an item back whose lease has ended before it was done."""
        not_before = live.not_before
        live.not_before = None
        if live.next_id is not None:
            self._replace(space, live)
            live.priority = live.next_priority
            not_before = live.next_not_before
            front = False
        if due is None or (not_before is not None and not_before > due):
            due = not_before
        self._place(space, live, due, moment, front)

    def _write(self, space: Space, live: Live) -> None:
        space.changed = True
        self._execute(
            MOVE_AND_REPLACE if live.replaced else MOVE,
            (
                live.state,
                live.priority,
                live.place,
                live.attempt,
                live.due,
                live.turn,
                live.not_before,
                live.token,
                live.history,
                live.id,
            ),
        )

    def _delete(self, space: Space, live: Live) -> None:
        space.changed = True
        self._execute("DELETE FROM items WHERE id = ?", (live.id,))

    def _remember(self, live: Live, how: LeaseEnd, error: str, when: float) -> None:
        most = self._limits.history
        past = decode_history(live.history) if live.history else ()
        kept = (*past, Attempt(live.attempt, when, how, error))[-most:] if most > 0 else ()
        live.history = _encode_history(kept) if kept else None

    def _live(self, space: Space, key: str) -> Live | None:
        if not space.id:
            return None
        row = self._execute(LIVE, (space.id, key)).fetchone()
        return None if row is None else Live(row)

    def _held(self, space: Space, key: str, token: str) -> Live | None:
        """The item that the token holds."""
        live = self._live(space, key)
        return live if live is not None and live.token == token and token else None
