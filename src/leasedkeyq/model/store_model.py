"""A whole store: every queue's state machine, and the requests of the contract.

The memory store is this with the contract around it, the file store is this with load and save, and
the conformance kit compares every other engine with it. It is told the time and does no I/O.
"""

from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from heapq import merge
from itertools import islice
from typing import Final, TypeVar

from msgspec.structs import replace

from leasedkeyq.errors import (
    InvalidLeaseError,
    LeasedKeyQError,
    LeaseEnd,
    QueueFullError,
    keys_in_flight,
    keys_present,
    repeated,
)
from leasedkeyq.lease import Lease
from leasedkeyq.model.caps import EVERY_KEY, Rooms, caps_of, matcher
from leasedkeyq.model.edit import Edit, apply_changes
from leasedkeyq.model.holders import holder_of, new_token
from leasedkeyq.model.id_order import IdOrder
from leasedkeyq.model.items import Item
from leasedkeyq.model.line import LineValue
from leasedkeyq.model.queue_model import Payload, QueueModel, State
from leasedkeyq.model.requests import (
    Ack,
    Amend,
    Answer,
    Attempt,
    Bury,
    Cancel,
    Change,
    Claim,
    Claimed,
    Counts,
    Discard,
    Extend,
    Limits,
    Placed,
    Purge,
    Put,
    Refusal,
    Release,
    Requeue,
    StoredItem,
    StoredState,
)
from leasedkeyq.model.urgency import Rank, in_line, most_urgent_first, rank
from leasedkeyq.types import BuriedItem

T = TypeVar("T")

LIVE: Final[frozenset[StoredState]] = frozenset(
    ("available", "scheduled", "in_flight", "buffered", "in_line")
)
IN_LINE: Final[frozenset[StoredState]] = frozenset(("buffered", "in_line"))


class StoreModel:
    """Queues by name. `now` is Unix time; requests must come with times that do not run back."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits: Limits = limits or Limits()
        self.queues: dict[str, QueueModel] = {}
        self.last_id: int = 0
        self.last_fence: int = 0
        self.moved: set[str] = set()
        """Queues in which an item came due or a lease expired, for the driver to wake watchers."""
        self.dropped: list[StoredItem] = []
        """Buried items that had to make room, for the driver to report."""

    # Requests

    def put(self, request: Put, now: float) -> tuple[Placed, ...] | LeasedKeyQError:
        """Apply one `Put`."""
        queue_model = self._at(request.queue, now)
        state = queue_model.state
        refusal = _refuse_put(queue_model, request, now)
        if refusal is not None:
            self._tidy(request.queue)
            return refusal
        due = None if request.delay is None else now + request.delay
        placed: list[Placed] = []
        for key, value in request.items:
            skipped = _skipped(queue_model, key, request, now)
            if skipped is not None:
                placed.append(Placed(skipped, "skipped"))
                continue
            payload = self._payload(queue_model, key, value, request, now)
            outcome = state.put(
                key, payload, request.policy, request.priority, due, number=payload.id
            )
            queue_model.note(state.items[key])
            placed.append(Placed(payload.id, outcome))
        if not queue_model:
            self._tidy(request.queue)
        return tuple(placed)

    def _payload(
        self, queue_model: QueueModel, key: str, value: bytes, put: Put, now: float
    ) -> Payload:
        """A value that replaces another one goes on with the id, age and history of that."""
        deadline = None if put.deadline is None else now + put.deadline
        old = _replaced(queue_model.state, key, put)
        if old is not None:
            return Payload(value, old.id, old.put_at, old.history, put.kind, deadline, old.progress)
        self.last_id += 1
        queue_model.note_put(self.last_id, key)
        return Payload(value, self.last_id, now, (), put.kind, deadline)

    def claim(self, request: Claim, now: float) -> tuple[Claimed, ...]:
        """Apply one `Claim`."""
        if request.by_turns:
            return self._claim_urgent(request, now)
        claimed: list[Claimed] = []
        for number, (queue, most) in enumerate(request.queues):
            if queue not in self.queues:
                continue
            queue_model = self._at(queue, now)
            room = min(most, request.limit - len(claimed))
            expires_at = _expiry(request, number, now)
            plain = request.kinds is None and not request.caps and not request.lifts(number)
            if request.key is None and plain:
                for _ in range(room):
                    queue_model.state.fence = self.last_fence
                    item = queue_model.state.claim(expires_at)
                    if item is None:
                        break
                    claimed.append(self._leased(request, queue, queue_model.state, item, now))
                continue
            if request.lifts(number) and queue_model.deadlines.first() is not None:
                line, rooms = _line(queue_model, request, number, room, now)
                keys = [item.key for _, item in line]
            else:
                found, rooms = _found(queue_model, request, queue, room, now)
                keys = [item.key for item in found]
            _keep_tokens(queue_model, rooms)
            claimed += [self._claim_key(request, number, key, now) for key in keys]
        return tuple(claimed)

    def _claim_urgent(self, request: Claim, now: float) -> tuple[Claimed, ...]:
        """The queues take turns, as the urgency of their next items says."""
        lines: list[Iterator[tuple[Rank, tuple[int, str]]]] = []
        taken: list[tuple[QueueModel, Rooms | None]] = []
        for number, (queue, most) in enumerate(request.queues):
            if queue in self.queues:
                queue_model = self._at(queue, now)
                line, rooms = _line(queue_model, request, number, min(most, request.limit), now)
                lines.append(_numbered(line, number))
                taken.append((queue_model, rooms))
        chosen = list(most_urgent_first(lines, request.limit))
        for queue_model, rooms in taken:
            _keep_tokens(queue_model, rooms)
        return tuple([self._claim_key(request, number, key, now) for number, key in chosen])

    def _claim_key(self, request: Claim, number: int, key: str, now: float) -> Claimed:
        """Lease a key of the queue with that number, which is available."""
        queue, _ = request.queues[number]
        state = self.queues[queue].state
        state.fence = self.last_fence
        item = state.claim_key(key, _expiry(request, number, now))
        assert item is not None
        return self._leased(request, queue, state, item, now)

    def _leased(
        self, request: Claim, queue: str, state: State, item: Item[str, Payload], now: float
    ) -> Claimed:
        self.last_fence = state.fence
        item.since = now
        if request.holder:
            item.lease._token = new_token(request.holder)
        return _claimed(queue, item)

    def settle(self, request: Change, now: float) -> Answer:
        """Apply one of the changes."""
        queue_model = self._at(request.queue, now)
        state = queue_model.state
        key = getattr(request, "key", "")
        try:
            answer = self._settle(request, state, now)
            queue_model.note(state.items.get(key))
        except InvalidLeaseError:
            answer = Refusal(key, now)
        self._tidy(request.queue)
        return answer

    def _settle(self, request: Change, state: State, now: float) -> Answer:
        match request:
            case Ack():
                return self._ack(request, state, now)
            case Release():
                return self._release(request, state, now)
            case Extend():
                expires_at = None if request.lease_time is None else now + request.lease_time
                item = state.extend(Lease(request.token, request.key), expires_at)
                if request.progress is not None:
                    item.value = replace(item.value, progress=request.progress)
                return expires_at
            case Bury():
                return self._bury(request, state, now)
            case Cancel():
                return self._cancel(request, state, now)
            case Amend():
                return _amend(request, state, now)
            case Requeue():
                return self._requeue(request, state, now)
            case Purge():
                return self._purge(request)
            case Discard():
                return self._discard(request, state)

    def _ack(self, request: Ack, state: State, now: float) -> Answer:
        lease = Lease(request.token, request.key)
        item = state.item_of(lease)
        payload, priority, attempt = item.value, item.priority, item.attempt
        state.ack(lease)
        self._keep(request, payload, priority, attempt, now)
        return None

    def _cancel(self, request: Cancel, state: State, now: float) -> Answer:
        item = state.items.get(request.key)
        if item is None:
            return 0
        held = request.key in state.held
        everything = request.id is None and not request.only_line
        head = not held and (everything or request.id == item.value.id)
        if head:
            self._keep(request, item.value, item.priority, item.attempt, now)
        removed: list[LineValue[Payload]] = []
        if not head or everything:
            removed = state.remove_from_line(request.key, request.id)
        for value in removed:
            self._keep(request, value.value, value.priority, 0, now)
        if everything:
            state.remove(request.key)
        elif head:
            state.remove_head(request.key)
        return head + len(removed)

    def _keep(
        self, request: Ack | Cancel, payload: Payload, priority: int, attempt: int, now: float
    ) -> None:
        """Keep the result of an item that has gone, if that is wanted."""
        if request.keep <= 0:
            return
        value = b"null" if request.result is None else request.result
        result = replace(payload, value=value).stored(
            request.queue,
            request.key,
            "done",
            priority,
            attempt,
            due=now + request.keep,
            outcome=request.outcome,
            ended_at=now,
        )
        self.queues[request.queue].keep(result)

    def _release(self, request: Release, state: State, now: float) -> Answer:
        lease = Lease(request.token, request.key)
        item = state.item_of(lease)
        if request.undo:
            state.unclaim(item.lease, now + request.delay if request.delay else None)
            return None
        self._remember(item, "released", request.error, now)
        due = now + request.delay if request.delay else None
        state.release(lease, front=request.front, due=due)
        return None

    def _bury(self, request: Bury, state: State, now: float) -> Answer:
        lease = Lease(request.token, request.key)
        item = state.item_of(lease)
        self._remember(item, "buried", request.error, now)
        buried_id = item.value.id
        _, buried, dropped = state.bury(lease, request.error, hold=request.hold)
        self.queues[request.queue].note_buried(buried_id, buried.id)
        if dropped is not None:
            self.dropped.append(_buried(request.queue, dropped, holds=False))
            self.queues[request.queue].note(state.items.get(dropped.key))
        return buried_id

    def _requeue(self, request: Requeue, state: State, now: float) -> Answer:
        number = self.queues[request.queue].buried_ids.find(request.id)
        if number is None:
            return False
        buried = state.buried[number]
        if state.holds_key(number):
            if request.max_items and state.waiting >= request.max_items:
                return queue_full(request.queue, request.max_items)
            anew = Payload(buried.value.value, buried.value.id, now, kind=buried.value.kind)
            item = state.requeue_head(number, anew)
            self.queues[request.queue].note_put(anew.id, item.key)
            return True
        put = Put(
            request.queue,
            ((buried.key, buried.value.value),),
            request.policy,
            buried.priority,
            max_items=request.max_items,
            kind=buried.value.kind,
        )
        answer = self.put(put, now)
        if isinstance(answer, LeasedKeyQError):
            return answer
        state.unbury(number)
        return True

    def _discard(self, request: Discard, state: State) -> bool:
        queue_model = self.queues[request.queue]
        number = queue_model.buried_ids.find(request.id)
        if number is None:
            return queue_model.forget_one(request.id)
        queue_model.note(state.unbury(number))
        return True

    def _purge(self, request: Purge) -> int:
        queue_model = self.queues[request.queue]
        state = queue_model.state
        count = 0
        if request.part in ("buried", "all"):
            count += len(state.buried)
            for number in list(state.buried):
                queue_model.note(state.unbury(number))
        if request.part in ("results", "all"):
            count += queue_model.forget_all()
        if request.part == "all":
            count += len(state.items) + state.in_line
            for key in list(state.items):
                state.remove(key)
        return count

    def edit(self, edit: Edit, now: float) -> list[Answer]:
        """Apply an edit.

        Raises:
            EditStoppedError: It does not happen, and nothing has changed.
        """
        queue = edit.queue
        queue_model = self._at(queue, now)
        for other in edit.others:
            self._at(other, now)
        try:
            found = self._everything(
                queue, queue_model, edit.keys, reveal=True, heads_only=edit.heads_only
            )
            changes = edit.changes(sorted(found, key=lambda stored: stored.id))
            # The first change is all or nothing by itself. A copy costs as much as the queue has.
            undoable = any(map(_may_be_refused, changes[1:]))
            changed = {change.queue for change in changes} if undoable else ()
            before = {name: self.queues[name].copy() for name in changed}
            last_id, dropped = self.last_id, len(self.dropped)
            try:
                return apply_changes(changes, lambda change: self._edit(change, now))
            except BaseException:
                if before:
                    self.queues |= before
                    self.last_id = last_id
                    del self.dropped[dropped:]
                raise
        finally:
            for name in edit.queues:
                if name in self.queues:
                    self._tidy(name)

    def _edit(self, change: Put | Change, now: float) -> Answer:
        return self.put(change, now) if isinstance(change, Put) else self.settle(change, now)

    # Time

    def sweep(self, queue: str, now: float) -> float | None:
        """Free due items and end expired leases of `queue`; return the seconds until the next."""
        if queue not in self.queues:
            return None
        queue_model = self._at(queue, now)
        moments = (
            queue_model.state.earliest(),
            queue_model.forget(now),
            queue_model.buckets.earliest(now),
        )
        self._tidy(queue)
        waits = [max(moment - now, 0.0) for moment in moments if moment is not None]
        return min(waits, default=None)

    def _at(self, queue: str, now: float) -> QueueModel:
        """The queue as it is at `now`."""
        queue_model = self.queues.get(queue)
        if queue_model is None:
            queue_model = self.queues[queue] = QueueModel(self.limits.buried)
        state = queue_model.state
        for item, lease in state.advance(now):
            self.moved.add(queue)
            queue_model.note(item)
            if lease is not None and lease.expires_at is not None:
                self._remember(item, "expired", "", lease.expires_at)
        if queue_model.done:
            queue_model.forget(now)
        if queue_model.buckets:
            queue_model.buckets.forget(now)
        return queue_model

    def _remember(self, item: Item[str, Payload], how: LeaseEnd, error: str, when: float) -> None:
        attempt = Attempt(item.attempt, when, how, error)
        old = item.value
        most = self.limits.history
        history = (*old.history, attempt)[-most:] if most else ()
        item.value = replace(old, history=history)

    def _tidy(self, queue: str) -> None:
        queue_model = self.queues[queue]
        if not queue_model and not queue_model.buckets:
            del self.queues[queue]

    # Looking

    def count(self, queue: str, now: float) -> Counts:
        """How many items are in each state."""
        if queue not in self.queues:
            return Counts()
        queue_model = self._at(queue, now)
        state = queue_model.state
        counts = Counts(
            available=state.available,
            scheduled=state.scheduled,
            in_flight=len(state.in_flight),
            buried=len(state.buried),
            done=len(queue_model.done),
            done_failed=queue_model.outcomes["failed"],
            done_cancelled=queue_model.outcomes["cancelled"],
            held=state.behind_held,
        )
        self._tidy(queue)
        return counts

    def head(self, queue: str, now: float) -> StoredItem | None:
        """The item that a claim would lease next, or None."""
        if queue not in self.queues:
            return None
        item = self._at(queue, now).state.ready.first()
        return None if item is None else _head(queue, item)

    def look(self, queue: str, key: str, now: float) -> tuple[StoredItem, ...]:
        """The head of a key, and the first of its line; of a held key only that."""
        held = queue in self.queues and key in self._at(queue, now).state.held
        return self.line(queue, key, now, limit=1 if held else 2)

    def line(
        self, queue: str, key: str, now: float, *, after: int = 0, limit: int | None = None
    ) -> tuple[StoredItem, ...]:
        """The head of a key and its line, in order: those behind the id `after`."""
        if queue not in self.queues:
            return ()
        queue_model = self._at(queue, now)
        state = queue_model.state
        item = state.items.get(key)
        if item is None:
            return ()
        if after < item.value.id:
            return tuple(islice(_live(queue, state, item), limit))
        values = () if item.line is None else item.line.behind(after)
        return tuple(_in_line(queue, key, value) for value in islice(values, limit))

    def browse(
        self,
        queue: str,
        states: Sequence[StoredState],
        prefix: str,
        now: float,
        *,
        after: int | None = None,
        limit: int | None = None,
        newest_first: bool = False,
    ) -> list[StoredItem]:
        """The items in these states whose key starts with `prefix`, by id.

        With `newest_first`, from the highest id down. With `limit`, the first of that order; with
        `after`, those that follow that id in it.
        """
        if queue not in self.queues:
            return []
        queue_model = self._at(queue, now)
        following = _Following(after, newest_first=newest_first)
        parts: list[Iterable[StoredItem]] = []
        live = LIVE.intersection(states)
        if live:
            parts.append(_listed(queue, queue_model, live, limit, following))
        if "buried" in states:
            all_buried = queue_model.state.buried
            numbers = following.among(queue_model.buried_ids)
            state = queue_model.state
            parts.append(
                _buried(queue, all_buried[number], holds=state.holds_key(number))
                for _, number in numbers
            )
        if "done" in states:
            parts.append(
                queue_model.done[number] for number, _ in following.among(queue_model.done_ids)
            )
        merged = merge(*parts, key=_id_of, reverse=newest_first)
        found = (stored for stored in merged if stored.key.startswith(prefix))
        return list(found if limit is None else islice(found, limit))

    def _everything(
        self,
        queue: str,
        queue_model: QueueModel,
        keys: Sequence[str] | None = None,
        *,
        reveal: bool = False,
        heads_only: bool = False,
    ) -> Iterator[StoredItem]:
        """All items, or the items of `keys`; with `heads_only` without lines."""
        state = queue_model.state
        items = state.items
        wanted = None if keys is None else frozenset(keys)
        for key in items if wanted is None else wanted:
            if key in items:
                values = _live(queue, state, items[key], reveal=reveal)
                if heads_only:
                    values = islice(values, key not in state.held)
                yield from values
        for number, buried in state.buried.items():
            if wanted is None or buried.key in wanted:
                yield _buried(queue, buried, holds=state.holds_key(number))
        for done in queue_model.done.values():
            if wanted is None or done.key in wanted:
                yield done

    def result(self, queue: str, number: int, now: float) -> StoredItem | None:
        """The kept result of an item, or None."""
        if queue not in self.queues:
            return None
        return self._at(queue, now).done.get(number)


def _refuse_put(queue_model: QueueModel, request: Put, now: float) -> LeasedKeyQError | None:
    state = queue_model.state
    keys = dict.fromkeys(key for key, _ in request.items)
    if request.policy == "reject":
        leased = tuple(key for key in keys if key in state.in_flight)
        if leased:
            return keys_in_flight(leased, len(keys))
    if request.policy == "only_new":
        present = repeated((key for key, _ in request.items), state.items)
        if present:
            return keys_present(present, len(request.items))
    if request.max_items:
        if request.policy == "append":
            need = len(request.items)
        else:
            need = sum(_adds(queue_model, key, request, now) for key in keys)
        if need and state.waiting + need > request.max_items:
            return queue_full(request.queue, request.max_items)
    return None


def _may_be_refused(change: Put | Change) -> bool:
    """Whether the state of a queue can be a reason to refuse a change."""
    match change:
        case Put() | Requeue():
            return bool(change.max_items) or change.policy in ("reject", "only_new")
        case Cancel() | Amend() | Purge() | Discard():
            return False
        case _:
            return True


def _adds(queue_model: QueueModel, key: str, request: Put, now: float) -> bool:
    """Whether the queue grows by what a put does with a key."""
    state = queue_model.state
    if key in state.items:
        return state.grows_by(key, request.policy)
    return _skipped(queue_model, key, request, now) is None


def _skipped(queue_model: QueueModel, key: str, request: Put, now: float) -> int | None:
    """The id of what a put of a key gives way to, if it does."""
    if request.policy != "skip":
        return None
    item = queue_model.state.items.get(key)
    if item is not None:
        newest = item.last_in_line
        return item.value.id if newest is None else newest.value.id
    result = queue_model.newest_result(key) if request.unique_for else None
    if result is None or result.ended_at is None or result.ended_at + request.unique_for < now:
        return None
    return result.id


def _replaced(state: State, key: str, request: Put) -> Payload | None:
    """The value that a put of a key replaces, if it does."""
    item = state.items.get(key)
    if item is None or state.grows_by(key, request.policy):
        return None
    newest = item.last_in_line
    return item.value if newest is None else newest.value


def _amend(request: Amend, state: State, now: float) -> bool:
    item = state.items.get(request.key)
    if item is None:
        return False
    in_line = None if item.line is None else item.line.get(request.id)
    if in_line is None:
        waits = item.lease is None and request.key not in state.held
        if not waits or item.value.id != request.id:
            return False
    old = item.value if in_line is None else in_line.value
    amended = replace(
        old,
        value=old.value if request.value is None else request.value,
        kind=old.kind if request.kind is None else request.kind,
    )
    due = None if request.delay is None else now + request.delay
    state.amend(item, in_line, amended, request.priority, due)
    return True


def queue_full(queue: str, maxsize: int) -> LeasedKeyQError:
    """The refusal of a put that finds no room."""
    return QueueFullError(f"the queue {queue!r} is full: maxsize is {maxsize}", maxsize=maxsize)


def _claimed(queue: str, item: Item[str, Payload]) -> Claimed:
    lease: Lease[str] = item.lease
    payload = item.value
    return Claimed(
        queue,
        item.key,
        payload.value,
        payload.id,
        lease.token,
        lease.fence,
        lease.attempt,
        item.priority,
        lease.expires_at,
        payload.put_at,
        payload.kind,
        payload.deadline,
    )


def _expiry(request: Claim, number: int, now: float) -> float | None:
    lease_time = request.lease_time_of(number)
    return None if lease_time is None else now + lease_time


def _rooms(queue_model: QueueModel, request: Claim, queue: str, now: float) -> Rooms | None:
    """How much room the caps of a claim leave in a queue; None for a claim without caps."""
    caps = caps_of(request, queue) if request.caps else ()
    if not caps:
        return None
    leased = queue_model.state.in_flight
    return Rooms(
        caps,
        lambda pattern, _: (
            len(leased) if pattern == EVERY_KEY else sum(map(matcher(pattern), leased))
        ),
        queue_model.buckets.all.get,
        now,
    )


def _found(
    queue_model: QueueModel, request: Claim, queue: str, room: int, now: float
) -> tuple[Iterator[Item[str, Payload]], Rooms | None]:
    """The items that a claim may lease in a queue, in order, and what its caps leave room for."""
    found = _wanted(queue_model.state, request)
    rooms = _rooms(queue_model, request, queue, now)
    if rooms is None:
        return islice(found, max(room, 0)), None
    return rooms.among(found, _key_of, room), rooms


def _line(
    queue_model: QueueModel, request: Claim, number: int, room: int, now: float
) -> tuple[Iterator[tuple[Rank, Item[str, Payload]]], Rooms | None]:
    """The same for the queue with that number, with deadlines that bring items forward."""
    urgency = request.urgencies[number]
    nearest: Iterable[Item[str, Payload]] = ()
    if request.lifts(number) and request.kinds != ():
        kinds = request.kinds
        nearest = (
            item for item in queue_model.deadlines if kinds is None or item.value.kind in kinds
        )

    def ranked(item: Item[str, Payload]) -> Rank:
        payload = item.value
        return rank(urgency, payload.put_at, payload.deadline, payload.id, now)

    rooms = _rooms(queue_model, request, request.queues[number][0], now)
    keyed = None if rooms is None else (rooms, _key_of)
    return in_line(_wanted(queue_model.state, request), nearest, ranked, room, keyed), rooms


def _key_of(item: Item[str, Payload]) -> str:
    return item.key


def _keep_tokens(queue_model: QueueModel, rooms: Rooms | None) -> None:
    """The tokens that were taken are gone."""
    if rooms is not None:
        for name, bucket in rooms.taken.items():
            queue_model.buckets.keep(name, bucket)


def _numbered(
    items: Iterable[tuple[Rank, Item[str, Payload]]], number: int
) -> Iterator[tuple[Rank, tuple[int, str]]]:
    """The ranks and keys of items, and the number of their queue."""
    for position, item in items:
        yield position, (number, item.key)


def _wanted(state: State, request: Claim) -> Iterator[Item[str, Payload]]:
    """The available items that a claim asks for, in order."""
    kinds = None if request.kinds is None else frozenset(request.kinds)
    items: Iterable[Item[str, Payload]] = () if request.kinds == () else state.ready
    if request.key is not None:
        item = state.items.get(request.key)
        items = [item] if item is not None and item.available else []
    return (item for item in items if kinds is None or item.value.kind in kinds)


def _live(
    queue: str, state: State, item: Item[str, Payload], *, reveal: bool = False
) -> Iterator[StoredItem]:
    """The values of a key, in order; a buried item that holds it is none of them."""
    if item.key not in state.held:
        yield _head(queue, item, reveal=reveal)
    for value in item.line or ():
        yield _in_line(queue, item.key, value)


def _head(queue: str, item: Item[str, Payload], *, reveal: bool = False) -> StoredItem:
    state: StoredState = "available"
    due: float | None = None
    leased_at: float | None = None
    token = holder = ""
    if item.lease is not None:
        state, due = "in_flight", item.lease.expires_at
        leased_at = getattr(item, "since", None)
        token = item.lease.token
        holder = holder_of(token)
    elif item.next is None:
        state, due = "scheduled", item.timer[0]
    return item.value.stored(
        queue,
        item.key,
        state,
        item.priority,
        item.attempt,
        place=item.position if state == "available" else 0,
        due=due,
        leased_at=leased_at,
        token=token if reveal else "",
        deadline=item.value.deadline,
        holder=holder,
    )


def _in_line(queue: str, key: str, value: LineValue[Payload]) -> StoredItem:
    return value.value.stored(
        queue,
        key,
        "buffered" if value.replaces else "in_line",
        value.priority,
        0,
        due=value.not_before,
        deadline=value.value.deadline,
    )


def _id_of(stored: StoredItem) -> int:
    return stored.id


class _Following:
    """The ids that follow one in the order of a listing; without one, all of them."""

    def __init__(self, after: int | None, *, newest_first: bool) -> None:
        self._after = after
        self.newest_first = newest_first

    def has(self, number: int) -> bool:
        """Whether that id is one of them."""
        if self._after is None:
            return True
        return number < self._after if self.newest_first else number > self._after

    def among(self, ids: IdOrder[T]) -> Iterator[tuple[int, T]]:
        """Those of an order, in the order of the listing."""
        if self.newest_first:
            return ids.before(self._after)
        return ids.behind(self._after or 0)


def _listed(
    queue: str,
    queue_model: QueueModel,
    states: AbstractSet[StoredState],
    limit: int | None,
    following: "_Following",
) -> Iterator[StoredItem]:
    """The live items in these states that follow an id, in the order of a listing.

    If they are few, each page looks at all of them; else the pages together look at all items.
    """
    state = queue_model.state
    found: list[tuple[int, Iterable[StoredItem]]] = []
    if "available" in states:
        found.append((len(state.ready), (_head(queue, item) for item in state.ready)))
    if "scheduled" in states:
        timers = state.timers.heap
        due = (entry[2] for entry in timers if entry[2].timer is entry and entry[2].lease is None)
        found.append((len(timers), (_head(queue, item) for item in due)))
    if "in_flight" in states:
        leased = state.in_flight.values()
        found.append((len(leased), (_head(queue, item) for item in leased)))
    if not states.isdisjoint(IN_LINE):
        lined = (
            _in_line(queue, item.key, value)
            for item in state.lines.values()
            for value in item.line or ()
        )
        found.append((state.in_line + state.behind_held, lined))
    few = sum(count for count, _ in found)
    if limit is not None and few * (few // limit + 1) < queue_model.live:
        stored = [shown for _, items in found for shown in items]
        stored.sort(key=_id_of, reverse=following.newest_first)
        yield from (i for i in stored if following.has(i.id) and i.state in states)
        return
    for number, key in following.among(queue_model.live_ids):
        item = state.items[key]
        value = None if item.line is None else item.line.get(number)
        shown = _head(queue, item) if value is None else _in_line(queue, key, value)
        if shown.state in states:
            yield shown


def _buried(queue: str, buried: BuriedItem[str, Payload], *, holds: bool) -> StoredItem:
    return buried.value.stored(
        queue,
        buried.key,
        "buried",
        buried.priority,
        buried.attempt,
        error=buried.error,
        holds=holds,
    )
