"""The requests of the contract on SQLite tables, within one transaction.

It mirrors `StoreMachine`; tests compare their answers. Whatever can refuse a request is looked at
before anything is written.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias, cast

from leasedkeyq.errors import LeasedKeyQError
from leasedkeyq.stores.contract import (
    Ack,
    Bury,
    Cancel,
    Claim,
    Claimed,
    Extend,
    Purge,
    Put,
    Refusal,
    Release,
    Request,
    Requeue,
)
from leasedkeyq.stores.machine import keys_in_flight, queue_full
from leasedkeyq.stores.sqlite_moves import WriteNeededError
from leasedkeyq.stores.sqlite_reads import Browse, Count, Look, Read, Reads, Results, Sweep
from leasedkeyq.stores.sqlite_rows import Live, Space
from leasedkeyq.stores.sqlite_schema import AVAILABLE, IN_FLIGHT, SCHEDULED

TOKEN_BYTES: Final = 16

NEXT_READY: Final = """
    SELECT id, key, attempt, priority, put_at, value FROM items
    WHERE queue = ? AND state = 0 ORDER BY priority DESC, place LIMIT ?
"""
READY_KEY: Final = """
    SELECT id, key, attempt, priority, put_at, value FROM items
    WHERE queue = ? AND key = ? AND state = 0
"""
LEASE: Final = "UPDATE items SET state = 2, token = ?, attempt = ?, due = ?, turn = ? WHERE id = ?"
INSERT: Final = """
    INSERT INTO items (id, queue, key, state, priority, place, attempt, put_at, due, turn, value)
    VALUES (?, ?, ?, ?, ?, ?, 0, ?, ?, ?, ?) ON CONFLICT (queue, key) DO NOTHING
"""
DELETE_HELD: Final = """
    DELETE FROM items WHERE queue = ? AND key = ? AND token = ? AND next_id IS NULL
"""
BUFFER: Final = """
    UPDATE items SET next_id = ?, next_priority = ?, next_not_before = ?, next_put_at = ?,
    next_value = ? WHERE id = ?
"""
KEEP_BURIED: Final = """
    INSERT INTO buried (id, number, queue, key, priority, attempt, put_at, buried_at, error,
    history, value)
    SELECT id, ?, queue, key, priority, attempt, put_at, ?, ?, ?, value FROM items WHERE id = ?
"""
KEEP_RESULT: Final = """
    INSERT INTO done (id, queue, key, priority, attempt, put_at, due, history, value)
    SELECT id, queue, key, priority, attempt, put_at, ?, history, ? FROM items WHERE id = ?
"""

AnyRequest: TypeAlias = Request | Read
MAY_ONLY_READ: Final = (Claim, Sweep, Count, Look, Browse, Results)
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
    Sweep: "sweep",
    Count: "count",
    Look: "look",
    Browse: "browse",
    Results: "results",
}


class Transaction(Reads):
    """Applies requests as of `now`."""

    def apply_all(self, requests: Sequence[AnyRequest]) -> list[Any]:
        """Apply requests in order and return their answers."""
        answers: list[Any] = []
        index = 0
        while index < len(requests):
            request = requests[index]
            if isinstance(request, Claim) and (same := _run_of(requests, index)) > 1:
                answers += self._claim_together(request, same)
                index += same
            else:
                answers.append(self.apply(request))
                index += 1
        return answers

    def _claim_together(self, request: Claim, times: int) -> list[tuple[Claimed, ...]]:
        """Apply one claim so many times: read and write all at once, and share it out in order."""
        ((queue, most),) = request.queues
        each = max(min(most, request.limit), 0)
        many = each * times
        claimed = self.claim(Claim(((queue, many),), many, None, request.lease_time))
        return [claimed[each * turn : each * (turn + 1)] for turn in range(times)]

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
        now = self._now
        due = None if request.delay is None else now + request.delay
        ids: list[int] = []
        for key, value in request.items:
            number = self._put_new(space, key, value, request.priority or 0, due)
            if not number:
                live = cast("Live", self._live(space, key))
                if live.state == IN_FLIGHT:
                    number = self._put_beside(space, live, value, request, due)
                else:
                    number = self._put_again(space, live, value, request.priority, due)
            ids.append(number)
        space.changed = True
        return tuple(ids)

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
            return keys_in_flight(leased, len(keys))
        if request.max_items and need and space.waiting + need > request.max_items:
            return queue_full(request.queue, request.max_items)
        return None

    def _put_new(
        self, space: Space, key: str, value: bytes, priority: int, due: float | None
    ) -> int:
        """Put on an absent key and return the id of the item; 0 if the key is live."""
        number, now = self.last_id + 1, self._now
        queue = space.id or self._stored(space)
        if due is None or due <= now:
            row = (number, queue, key, AVAILABLE, priority, self.back + 1, now, None, 0, value)
            if not self._execute(INSERT, row).rowcount:
                return 0
            self.back += 1
            space.available += 1
        else:
            turn = self.schedules + 1
            later = (number, queue, key, SCHEDULED, priority, 0, now, due, turn, value)
            if not self._execute(INSERT, later).rowcount:
                return 0
            self.schedules = turn
            space.scheduled += 1
            space.expect(due)
        self.last_id = number
        return number

    def _put_again(
        self, space: Space, live: Live, value: bytes, priority: int | None, due: float | None
    ) -> int:
        """Put on a live item that is not in flight."""
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
        self._execute("UPDATE items SET value = ? WHERE id = ?", (value, live.id))
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
            sql = "UPDATE items SET value = ?, priority = ?, place = ?, not_before = ? WHERE id = ?"
            self._execute(sql, (value, live.priority, live.place, live.not_before, live.id))
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
                value,
                live.id,
            ),
        )
        return live.next_id

    # Claiming

    def claim(self, request: Claim) -> tuple[Claimed, ...]:
        """Lease what is available."""
        now = self._now
        expires_at = None if request.lease_time is None else now + request.lease_time
        claimed: list[Claimed] = []
        for queue, most in request.queues:
            space = self._space(queue)
            room = min(most, request.limit - len(claimed))
            if room <= 0 or not space.available:
                continue
            if not self._writable:
                raise WriteNeededError
            if request.key is None:
                rows = self._execute(NEXT_READY, (space.id, room)).fetchall()
            else:
                rows = self._execute(READY_KEY, (space.id, request.key)).fetchall()
            if rows:
                self._lease(space, rows, expires_at, claimed)
        return tuple(claimed)

    def _lease(
        self,
        space: Space,
        rows: list[tuple[int, str, int, int, float, bytes]],
        expires_at: float | None,
        claimed: list[Claimed],
    ) -> None:
        random = os.urandom(TOKEN_BYTES * len(rows)).hex()
        size = 2 * TOKEN_BYTES
        fence = self.last_fence
        queue = space.name
        updates: list[tuple[str, int, float | None, int, int]] = []
        for index, (number, key, attempt, priority, put_at, value) in enumerate(rows):
            fence += 1
            token = random[index * size : (index + 1) * size]
            updates.append((token, attempt + 1, expires_at, -fence, number))
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
            return Refusal(request.key)
        if request.keep > 0:
            due = self._now + request.keep
            value = b"null" if request.result is None else request.result
            self._execute(KEEP_RESULT, (due, value, live.id))
            space.done += 1
            space.expect(due)
        self._end(space, live)
        self._follow(space, live)
        return None

    def _follow(self, space: Space, live: Live) -> None:
        """A buffered value follows an item that has gone."""
        if live.next_id is None:
            self._delete(space, live)
        else:
            self._return(space, live, None, front=False, moment=self._now)
            self._write(space, live)

    def release(self, request: Release) -> Refusal | None:
        """End a lease: the item comes back."""
        space = self._space(request.queue)
        live = self._held(space, request.key, request.token)
        if live is None:
            return Refusal(request.key)
        self._end(space, live)
        if request.undo:
            self._restore(space, live)
        else:
            self._remember(live, "released", request.error, self._now)
            due = self._now + request.delay if request.delay else None
            self._return(space, live, due, request.front, self._now)
        self._write(space, live)
        return None

    def _restore(self, space: Space, live: Live) -> None:
        """Undo a claim: the item is where it was, and a buffered value updates it there."""
        live.attempt -= 1
        live.state = AVAILABLE
        space.available += 1
        not_before = live.not_before
        live.not_before = None
        if live.next_id is not None:
            self._replace(space, live)
            not_before = live.next_not_before
            live.priority = live.next_priority
        if not_before is not None and not_before > self._now:
            self._leave(space, live)
            self._place(space, live, not_before, self._now)

    def extend(self, request: Extend) -> Refusal | float | None:
        """Move the expiry of a lease."""
        space = self._space(request.queue)
        live = self._held(space, request.key, request.token)
        if live is None:
            return Refusal(request.key)
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
            return Refusal(request.key)
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
        """Make a key absent."""
        space = self._space(request.queue)
        live = self._live(space, request.key)
        if live is None:
            return False
        if live.state == IN_FLIGHT:
            space.in_flight -= 1
            space.buffered -= live.next_id is not None
        else:
            self._leave(space, live)
        self._delete(space, live)
        return True

    def requeue(self, request: Requeue) -> bool | LeasedKeyQError:
        """Put a buried item back."""
        space = self._space(request.queue)
        sql = "SELECT key, priority, value FROM buried WHERE id = ? AND queue = ?"
        row = self._execute(sql, (request.id, space.id)).fetchone()
        if row is None:
            return False
        key, priority, value = row
        items = ((key, value),)
        answer = self.put(
            Put(request.queue, items, request.policy, priority, max_items=request.max_items)
        )
        if isinstance(answer, LeasedKeyQError):
            return answer
        self._execute("DELETE FROM buried WHERE id = ?", (request.id,))
        space.buried -= 1
        return True

    def purge(self, request: Purge) -> int:
        """Forget a part of a queue."""
        space = self._space(request.queue)
        count = 0
        if request.part in ("buried", "all"):
            count += space.buried
            self._execute("DELETE FROM buried WHERE queue = ?", (space.id,))
            space.buried = 0
        if request.part in ("results", "all"):
            count += space.done
            self._execute("DELETE FROM done WHERE queue = ?", (space.id,))
            space.done = 0
        if request.part == "all":
            count += space.waiting + space.in_flight
            self._execute("DELETE FROM items WHERE queue = ?", (space.id,))
            space.available = space.buffered = space.scheduled = space.in_flight = 0
        space.changed = space.changed or count > 0
        return count


def _run_of(requests: Sequence[AnyRequest], start: int) -> int:
    """How many equal claims follow each other that may be applied together."""
    first = requests[start]
    assert isinstance(first, Claim)
    ends_at_once = first.lease_time is not None and first.lease_time <= 0
    if len(first.queues) != 1 or first.key is not None or ends_at_once:
        return 1
    end = start + 1
    while end < len(requests) and requests[end] == first:
        end += 1
    return end - start
