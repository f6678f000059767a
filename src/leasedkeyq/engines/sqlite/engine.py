"""The requests of the contract on SQLite tables, within one transaction.

It mirrors `StoreModel`; tests compare their answers. Whatever can refuse a request is looked at
before anything is written.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, TypeAlias, cast

from leasedkeyq.engines.sqlite.caps import Candidate, Capped
from leasedkeyq.engines.sqlite.moves import WriteNeededError
from leasedkeyq.engines.sqlite.reads import Browse, Count, Heads, Look, Read, Results, Sweep
from leasedkeyq.engines.sqlite.rows import Live, Space
from leasedkeyq.engines.sqlite.schema import AVAILABLE, IN_FLIGHT, SCHEDULED
from leasedkeyq.errors import LeasedKeyQError, keys_in_flight
from leasedkeyq.model.caps import Rooms, caps_of
from leasedkeyq.model.edit import Edit, apply_changes
from leasedkeyq.model.requests import (
    OUTCOMES,
    Ack,
    Answer,
    Bury,
    Cancel,
    Claim,
    Claimed,
    Discard,
    Extend,
    Purge,
    Put,
    Refusal,
    Release,
    Request,
    Requeue,
)
from leasedkeyq.model.store_model import queue_full
from leasedkeyq.model.urgency import Rank, in_line, most_urgent_first, rank

TOKEN_BYTES: Final = 16

Row: TypeAlias = tuple[int, str, int, int, float, str, float | None, bytes]
"""What a claim reads of an item."""
KIND: Final = 5

ROW: Final = "SELECT id, key, attempt, priority, put_at, kind, deadline, value FROM items"
NEXT_READY: Final = f"""
    {ROW} WHERE queue = ? AND state = 0 ORDER BY priority DESC, place LIMIT ?
"""
NEXT_OF_KINDS: Final = f"""
    {ROW} INDEXED BY items_ready
    WHERE queue = ? AND state = 0 AND kind IN ({{}}) ORDER BY priority DESC, place LIMIT ?
"""
READY_KEY: Final = f"{ROW} WHERE queue = ? AND key = ? AND state = 0"
READY_ID: Final = f"{ROW} WHERE id = ?"
LEASE: Final = """
    UPDATE items SET state = 2, token = ?, attempt = ?, due = ?, turn = ?, leased_at = ?
    WHERE id = ?
"""
INSERT_INTO: Final = """
    INSERT INTO items
    (id, queue, key, state, priority, place, attempt, put_at, deadline, due, turn, kind, value)
    VALUES
"""
NEW: Final = "(?, ?, ?, ?, ?, ?, 0, ?, ?, ?, ?, ?, ?)"
INSERT: Final = f"{INSERT_INTO} {NEW} ON CONFLICT (queue, key) DO NOTHING"
DELETE_HELD: Final = """
    DELETE FROM items WHERE queue = ? AND key = ? AND token = ? AND next_id IS NULL
"""
UPDATE_HELD: Final = """
    UPDATE items SET value = ?, kind = ?, deadline = ?, priority = ?, place = ?, not_before = ?
    WHERE id = ?
"""
BUFFER: Final = """
    UPDATE items SET next_id = ?, next_priority = ?, next_not_before = ?, next_put_at = ?,
    next_deadline = ?, next_kind = ?, next_value = ? WHERE id = ?
"""
KEEP_BURIED: Final = """
    INSERT INTO buried (id, number, queue, key, priority, attempt, put_at, buried_at, error,
    history, kind, value)
    SELECT id, ?, queue, key, priority, attempt, put_at, ?, ?, ?, kind, value FROM items
    WHERE id = ?
"""
KEEP_RESULT: Final = """
    INSERT INTO done (id, queue, key, priority, attempt, put_at, due, outcome, history, kind,
    value)
    SELECT id, queue, key, priority, attempt, put_at, ?, ?, history, kind, ? FROM items
    WHERE id = ?
"""
KEEP_HELD: Final = """
    INSERT INTO done (id, queue, key, priority, attempt, put_at, due, outcome, history, kind,
    value)
    SELECT id, queue, key, priority, attempt, put_at, ?, ?, history, kind, ? FROM items
    WHERE queue = ? AND key = ? AND token = ? AND next_id IS NULL ON CONFLICT DO NOTHING
"""
UNBUFFER: Final = """
    UPDATE items SET next_id = NULL, next_priority = NULL, next_not_before = NULL,
    next_put_at = NULL, next_deadline = NULL, next_kind = NULL, next_value = NULL WHERE id = ?
"""
KEEP_RESULT_BESIDE: Final = """
    INSERT INTO done (id, queue, key, priority, attempt, put_at, due, outcome, kind, value)
    SELECT next_id, queue, key, next_priority, 0, next_put_at, ?, ?, next_kind, ? FROM items
    WHERE id = ?
"""

AnyRequest: TypeAlias = Request | Read | Edit
MAY_ONLY_READ: Final = (Claim, Sweep, Count, Heads, Look, Browse, Results)
"""Requests that often have nothing to write."""
VERBS: Final[dict[type[AnyRequest], str]] = {
    Put: "put",
    Claim: "claim",
    Ack: "ack",
    Release: "release",
    Extend: "extend",
    Bury: "bury",
    Cancel: "cancel",
    Requeue: "requeue",
    Purge: "purge",
    Discard: "discard",
    Edit: "edit",
    Sweep: "sweep",
    Count: "count",
    Heads: "heads",
    Look: "look",
    Browse: "browse",
    Results: "results",
}


class Transaction(Capped):
    """Applies requests as of `now`."""

    def apply(self, request: AnyRequest) -> Any:
        """Apply one request and return its answer, or the error that refuses it."""
        verb: Callable[[Any], Any] = getattr(self, VERBS[type(request)])
        return verb(request)

    # Putting

    def put(self, request: Put) -> tuple[int, ...] | LeasedKeyQError:
        """Put items, all of them or none."""
        space = self._space(request.queue)
        refusal = self._refuse_put(space, request)
        if refusal is not None:
            return refusal
        due = None if request.delay is None else self._now + request.delay
        space.changed = True
        return tuple(
            [self._put_one(space, key, value, request, due) for key, value in request.items]
        )

    def _put_one(
        self, space: Space, key: str, value: bytes, request: Put, due: float | None
    ) -> int:
        """Put one item and return its id."""
        number = self._put_new(space, key, value, request, due)
        if number:
            return number
        live = cast("Live", self._live(space, key))
        if live.state == IN_FLIGHT:
            return self._put_beside(space, live, value, request, due)
        return self._put_again(space, live, value, request, due)

    def deadline(self, request: Put) -> float | None:
        """By when the items of a put should be leased."""
        return None if request.deadline is None else self._now + request.deadline

    def _refuse_put(self, space: Space, request: Put) -> LeasedKeyQError | None:
        reject = request.policy == "reject" and space.in_flight
        if not reject and not request.max_items:
            return None
        keys = dict.fromkeys(key for key, _ in request.items)
        leased: list[str] = []
        need = 0
        sql = "SELECT state, next_id FROM items WHERE queue = ? AND key = ?"
        for key in keys:
            row = self._execute(sql, (space.id, key)).fetchone() if space.id else None
            if row is None:
                need += 1
            elif row[0] == IN_FLIGHT:
                leased.append(key)
                need += row[1] is None and request.policy == "buffer"
        if reject and leased:
            return keys_in_flight(tuple(leased), len(keys))
        if request.max_items and need and space.waiting + need > request.max_items:
            return queue_full(request.queue, request.max_items)
        return None

    def _put_new(
        self, space: Space, key: str, value: bytes, request: Put, due: float | None
    ) -> int:
        """Put on an absent key and return the id of the item; 0 if the key is live."""
        number, now = self.last_id + 1, self._now
        queue = space.id or self._stored(space)
        priority, kind, until = request.priority or 0, request.kind, self.deadline(request)
        if due is None or due <= now:
            place = self.back + 1
            row = (number, queue, key, AVAILABLE, priority, place, now, until, None, 0, kind, value)
            if not self._execute(INSERT, row).rowcount:
                return 0
            self.back += 1
            space.available += 1
        else:
            turn = self.schedules + 1
            later = (number, queue, key, SCHEDULED, priority, 0, now, until, due, turn, kind, value)
            if not self._execute(INSERT, later).rowcount:
                return 0
            self.schedules = turn
            space.scheduled += 1
            space.expect(due)
        self.last_id = number
        return number

    def _put_again(
        self, space: Space, live: Live, value: bytes, request: Put, due: float | None
    ) -> int:
        """Put on a live item that is not in flight."""
        priority = request.priority
        moved = False
        if priority is not None and priority != live.priority:
            live.priority = priority
            moved = True
            if live.state == AVAILABLE:
                self.back += 1
                live.place = self.back
        if due is not None and (live.state == SCHEDULED or due > self._now):
            self._leave(space, live)
            self._place(space, live, due, self._now)
            moved = True
        if moved:
            self._write(space, live)
        sql = "UPDATE items SET kind = ?, deadline = ?, value = ? WHERE id = ?"
        self._execute(sql, (request.kind, self.deadline(request), value, live.id))
        return live.id

    def _put_beside(
        self, space: Space, live: Live, value: bytes, request: Put, due: float | None
    ) -> int:
        """Put on an item that is in flight."""
        priority = request.priority
        until = due if due is not None and due > self._now else None
        if live.next_id is None and request.policy != "buffer":
            if priority is not None and priority != live.priority:
                live.priority = priority
                self.back += 1
                live.place = self.back
            live.not_before = live.not_before if due is None else until
            order = (live.priority, live.place, live.not_before)
            row = (value, request.kind, self.deadline(request), *order, live.id)
            self._execute(UPDATE_HELD, row)
            return live.id
        if live.next_id is None:
            self.last_id += 1
            live.next_id = self.last_id
            live.next_put_at = self._now
            live.next_priority = live.priority
            live.next_not_before = live.not_before
            space.buffered += 1
        if priority is not None and priority != live.next_priority:
            live.next_priority = priority
            self.back += 1
            live.place = self.back
            self._execute("UPDATE items SET place = ? WHERE id = ?", (live.place, live.id))
        if due is not None:
            live.next_not_before = until
        self._execute(
            BUFFER,
            (
                live.next_id,
                live.next_priority,
                live.next_not_before,
                live.next_put_at,
                self.deadline(request),
                request.kind,
                value,
                live.id,
            ),
        )
        return live.next_id

    # Claiming

    def claim(self, request: Claim) -> tuple[Claimed, ...]:
        """Lease what is available."""
        if request.by_turns:
            return self._claim_urgent(request)
        claimed: list[Claimed] = []
        for number, (queue, most) in enumerate(request.queues):
            space = self._space(queue)
            room = min(most, request.limit - len(claimed))
            if room <= 0 or not space.available:
                continue
            caps = caps_of(request, queue) if request.caps else ()
            if request.lifts(number) and request.kinds != () and self.any_hurried(space):
                numbers = self._in_a_hurry(space, request, number, room)
                rows = [self._execute(READY_ID, (item,)).fetchone() for item in numbers]
            elif caps:
                numbers = self.with_room(space, request, room, caps)
                rows = [self._execute(READY_ID, (number,)).fetchone() for number in numbers]
            else:
                rows = self._ready(space, request, room)
            if rows:
                if not self._writable:
                    raise WriteNeededError
                self._lease(space, rows, self._expiry(request, number), claimed)
        return tuple(claimed)

    def _expiry(self, request: Claim, number: int) -> float | None:
        lease_time = request.lease_time_of(number)
        return None if lease_time is None else self._now + lease_time

    def _claim_urgent(self, request: Claim) -> tuple[Claimed, ...]:
        """The queues take turns, as the urgency of their next items says."""
        lines: list[Iterator[tuple[Rank, tuple[int, int]]]] = []
        limited: list[tuple[Space, Rooms]] = []
        spaces = [self._space(queue) for queue, _ in request.queues]
        with ExitStack() as cursors:
            for number, (space, (_, most)) in enumerate(zip(spaces, request.queues, strict=True)):
                if not space.available or request.kinds == ():
                    continue
                line, rooms = self._line(space, request, number, min(most, request.limit), cursors)
                if rooms is not None:
                    limited.append((space, rooms))
                lines.append(_numbered(line, number))
            chosen = list(most_urgent_first(lines, request.limit))
        if chosen and not self._writable:
            raise WriteNeededError
        for space, rooms in limited:
            self.keep_tokens(space, rooms)
        claimed: list[Claimed] = []
        for number, run in groupby(chosen, lambda entry: entry[0]):
            rows = [self._execute(READY_ID, (item,)).fetchone() for _, item in run]
            self._lease(spaces[number], rows, self._expiry(request, number), claimed)
        return tuple(claimed)

    def _in_a_hurry(self, space: Space, request: Claim, number: int, room: int) -> list[int]:
        """The ids of what a claim leases in one queue, where deadlines bring items forward."""
        with ExitStack() as cursors:
            line, rooms = self._line(space, request, number, room, cursors)
            chosen = [item for _, (item, *_) in line]
        if chosen and not self._writable:
            raise WriteNeededError
        if rooms is not None:
            self.keep_tokens(space, rooms)
        return chosen

    def _line(
        self, space: Space, request: Claim, number: int, room: int, cursors: ExitStack
    ) -> tuple[Iterator[tuple[Rank, Candidate]], Rooms | None]:
        """What a claim leases in the queue with that number, and what its caps leave room for."""
        urgency, now = request.urgencies[number], self._now

        def ranked(item: Candidate) -> Rank:
            number, _, put_at, due = item
            return rank(urgency, put_at, due, number, now)

        found = self.candidates(space, request)
        cursors.callback(found.close)
        hurried: Iterable[Candidate] = ()
        if request.lifts(number):
            nearest = hurried = self.hurried(space, request)
            cursors.callback(nearest.close)
        caps = caps_of(request, request.queues[number][0])
        rooms = self.rooms(space, caps) if caps else None
        keyed = None if rooms is None else (rooms, itemgetter(1))
        return in_line(found, hurried, ranked, room, keyed), rooms

    def _ready(self, space: Space, request: Claim, room: int) -> list[Row]:
        """What a claim may lease, in order."""
        kinds = request.kinds
        if request.key is not None:
            rows: list[Row] = self._execute(READY_KEY, (space.id, request.key)).fetchall()
            return [row for row in rows if kinds is None or row[KIND] in kinds]
        if kinds is not None:
            if not kinds:
                return []
            sql = NEXT_OF_KINDS.format(", ".join("?" * len(kinds)))
            return self._execute(sql, (space.id, *kinds, room)).fetchall()
        if not self._writable:
            raise WriteNeededError  # There is something, so do not look twice.
        return self._execute(NEXT_READY, (space.id, room)).fetchall()

    def _lease(
        self,
        space: Space,
        rows: list[Row],
        expires_at: float | None,
        claimed: list[Claimed],
    ) -> None:
        random = os.urandom(TOKEN_BYTES * len(rows)).hex()
        size = 2 * TOKEN_BYTES
        fence = self.last_fence
        queue = space.name
        now = self._now
        updates: list[tuple[str, int, float | None, int, float, int]] = []
        for index, (number, key, attempt, priority, put_at, kind, due, value) in enumerate(rows):
            fence += 1
            token = random[index * size : (index + 1) * size]
            updates.append((token, attempt + 1, expires_at, -fence, now, number))
            claimed.append(
                Claimed(
                    queue,
                    key,
                    value,
                    number,
                    token,
                    fence,
                    attempt + 1,
                    priority,
                    expires_at,
                    put_at,
                    kind,
                    due,
                )
            )
        if len(updates) == 1:
            self._execute(LEASE, updates[0])
        else:
            self._many(LEASE, updates)
        self.last_fence = fence
        space.available -= len(rows)
        space.in_flight += len(rows)
        space.changed = True
        if expires_at is not None:
            space.expect(expires_at)

    # Settling

    def ack(self, request: Ack) -> Refusal | None:
        """End a lease: the work is done."""
        space = self._space(request.queue)
        if request.keep <= 0 and request.token:
            # The usual case in one step: no result to keep, nothing buffered.
            held = (space.id, request.key, request.token)
            if self._execute(DELETE_HELD, held).rowcount:
                space.in_flight -= 1
                space.changed = True
                return None
        live = self._held(space, request.key, request.token)
        if live is None:
            return Refusal(request.key, self._now)
        self._keep(space, live, request, KEEP_RESULT)
        self._end(space, live)
        self._follow(space, live)
        return None

    def _keep(self, space: Space, live: Live, request: Ack | Cancel, sql: str) -> None:
        """Keep the result of an item that goes, if that is wanted."""
        if request.keep > 0:
            due = self._now + request.keep
            value = b"null" if request.result is None else request.result
            outcome = OUTCOMES.index(request.outcome)
            self._execute(sql, (due, outcome, value, live.id))
            space.count_result(outcome, 1)
            self.forgettable += 1

    def _follow(self, space: Space, live: Live) -> None:
        """A buffered value follows an item that has gone, and begins anew."""
        if live.next_id is None:
            self._delete(space, live)
        else:
            live.attempt, live.history = 0, None
            self._return(space, live, None, front=False, moment=self._now)
            self._write(space, live)

    def release(self, request: Release) -> Refusal | None:
        """End a lease: the item comes back."""
        space = self._space(request.queue)
        live = self._held(space, request.key, request.token)
        if live is None:
            return Refusal(request.key, self._now)
        self._end(space, live)
        due = self._now + request.delay if request.delay else None
        if request.undo:
            self._restore(space, live, due)
        else:
            self._remember(live, "released", request.error, self._now)
            self._return(space, live, due, request.front, self._now)
        self._write(space, live)
        return None

    def _restore(self, space: Space, live: Live, due: float | None) -> None:
        """Undo a claim: the item is where it was, and a buffered value updates it there.

        With `due`, it is scheduled for then, or for a later time of its own.
        """
        live.attempt -= 1
        live.state = AVAILABLE
        space.available += 1
        not_before = live.not_before
        live.not_before = None
        if live.next_id is not None:
            self._replace(space, live)
            not_before = live.next_not_before
            live.priority = live.next_priority
        if due is not None and (not_before is None or due > not_before):
            not_before = due
        if not_before is not None and not_before > self._now:
            self._leave(space, live)
            self._place(space, live, not_before, self._now)

    def extend(self, request: Extend) -> Refusal | float | None:
        """Move the expiry of a lease."""
        space = self._space(request.queue)
        live = self._held(space, request.key, request.token)
        if live is None:
            return Refusal(request.key, self._now)
        due = None if request.lease_time is None else self._now + request.lease_time
        self._execute("UPDATE items SET due = ? WHERE id = ?", (due, live.id))
        space.changed = True
        if due is not None:
            space.expect(due)
        return due

    def bury(self, request: Bury) -> Refusal | int:
        """End a lease: the item is set aside."""
        space = self._space(request.queue)
        live = self._held(space, request.key, request.token)
        if live is None:
            return Refusal(request.key, self._now)
        self._remember(live, "buried", request.error, self._now)
        self.burials += 1
        self._execute(KEEP_BURIED, (self.burials, self._now, request.error, live.history, live.id))
        space.buried += 1
        while space.buried > self._limits.buried:
            self._drop_oldest(space)
        number = live.id
        self._end(space, live)
        self._follow(space, live)
        return number

    def _drop_oldest(self, space: Space) -> None:
        sql = "SELECT id, key FROM buried WHERE queue = ? ORDER BY number LIMIT 1"
        number, key = self._execute(sql, (space.id,)).fetchone()
        self._execute("DELETE FROM buried WHERE id = ?", (number,))
        space.buried -= 1
        self.dropped.append((space.name, key))

    def cancel(self, request: Cancel) -> bool:
        """Make a key absent, or one of its two items."""
        space = self._space(request.queue)
        live = self._live(space, request.key)
        if live is None:
            return False
        first = request.id in {None, live.id}
        second = live.next_id is not None and request.id in {None, live.next_id}
        if first:
            self._keep(space, live, request, KEEP_RESULT)
        if second:
            self._keep(space, live, request, KEEP_RESULT_BESIDE)
            self._execute(UNBUFFER, (live.id,))
            space.buffered -= 1
            space.changed = True
            live.next_id = None
        if not first:
            return second
        if live.state == IN_FLIGHT:
            self._end(space, live)
            self._follow(space, live)
        else:
            self._leave(space, live)
            self._delete(space, live)
        return True

    def requeue(self, request: Requeue) -> bool | LeasedKeyQError:
        """Put a buried item back."""
        space = self._space(request.queue)
        sql = "SELECT key, priority, kind, value FROM buried WHERE id = ? AND queue = ?"
        row = self._execute(sql, (request.id, space.id)).fetchone()
        if row is None:
            return False
        key, priority, kind, value = row
        items = ((key, value),)
        put = Put(
            request.queue, items, request.policy, priority, max_items=request.max_items, kind=kind
        )
        answer = self.put(put)
        if isinstance(answer, LeasedKeyQError):
            return answer
        self._execute("DELETE FROM buried WHERE id = ?", (request.id,))
        space.buried -= 1
        return True

    def discard(self, request: Discard) -> bool:
        """Forget a buried item, or a result that is not old."""
        space = self._space(request.queue)
        sql = "DELETE FROM buried WHERE id = ? AND queue = ?"
        if self._execute(sql, (request.id, space.id)).rowcount:
            space.buried -= 1
            space.changed = True
            return True
        sql = "DELETE FROM done WHERE id = ? AND queue = ? AND due > ? RETURNING outcome"
        for (outcome,) in self._execute(sql, (request.id, space.id, self._now)).fetchall():
            space.count_result(outcome, -1)
            space.changed = True
            return True
        return False

    def purge(self, request: Purge) -> int:
        """Forget a part of a queue."""
        space = self._space(request.queue)
        count = 0
        if request.part in ("buried", "all"):
            count += space.buried
            self._execute("DELETE FROM buried WHERE queue = ?", (space.id,))
            space.buried = 0
        if request.part in ("results", "all"):
            count += self._results(space)[0]
            self._execute("DELETE FROM done WHERE queue = ?", (space.id,))
            space.forgot = space.forgot or space.done > 0
            space.done = space.done_failed = space.done_cancelled = 0
        if request.part == "all":
            count += space.waiting + space.in_flight
            self._execute("DELETE FROM items WHERE queue = ?", (space.id,))
            space.available = space.buffered = space.scheduled = space.in_flight = 0
        space.changed = space.changed or count > 0
        return count

    def edit(self, edit: Edit) -> list[Answer]:
        """Apply an edit. What stops it leaves it half done, and has to end the transaction."""
        return apply_changes(edit.changes(self.editable(edit.queue, edit.keys)), self.apply)


def _numbered(
    items: Iterable[tuple[Rank, Candidate]], number: int
) -> Iterator[tuple[Rank, tuple[int, int]]]:
    """The ranks and ids of items, and the number of their queue."""
    for position, (item, *_) in items:
        yield position, (number, item)
