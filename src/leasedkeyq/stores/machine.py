"""The whole store as a pure machine: every queue's state machine, and the requests of the contract.

The memory store is this with the contract around it, the file store is this with load and save, and
the conformance kit compares every other engine with it. It is told the time and does no I/O.
"""

from collections.abc import Iterator, Sequence

import msgspec

from leasedkeyq.errors import (
    InvalidLeaseError,
    KeyAlreadyInFlightError,
    LeasedKeyQError,
    LeaseEnd,
    QueueFullError,
    describe,
)
from leasedkeyq.items import Item
from leasedkeyq.lease import Lease
from leasedkeyq.state import QueueState
from leasedkeyq.stores.contract import (
    Ack,
    Answer,
    Attempt,
    Bury,
    Cancel,
    Change,
    Claim,
    Claimed,
    Counts,
    Extend,
    Limits,
    Purge,
    Put,
    Refusal,
    Release,
    Requeue,
    StoredItem,
    StoredState,
)
from leasedkeyq.types import BuriedItem


class Payload(msgspec.Struct):
    """What an item carries: its value, and what is known about it beyond its state."""

    value: bytes
    id: int
    put_at: float
    history: tuple[Attempt, ...] = ()


State = QueueState[str, Payload]


class Space:
    """One queue of a store: its state machine, and the results of what is done."""

    __slots__ = ("done", "state")

    def __init__(self, max_buried: int) -> None:
        self.state: State = QueueState(max_buried=max_buried)
        self.done: dict[int, StoredItem] = {}

    def __bool__(self) -> bool:
        return bool(self.state.items or self.state.buried or self.done)


class StoreMachine:
    """Queues by name. `now` is Unix time; requests must come with times that do not run back."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.spaces: dict[str, Space] = {}
        self.last_id = 0
        self.last_fence = 0
        self.moved: set[str] = set()
        """Queues in which something has come due, for the driver to wake those who wait."""
        self.dropped: list[StoredItem] = []
        """Buried items that had to make room, for the driver to report."""

    # Requests

    def put(self, request: Put, now: float) -> tuple[int, ...] | LeasedKeyQError:
        """Apply one `Put`."""
        space = self._at(request.queue, now)
        state = space.state
        refusal = self._refuse_put(state, request)
        if refusal is not None:
            self._tidy(request.queue)
            return refusal
        due = None if request.delay is None else now + request.delay
        ids: list[int] = []
        for key, value in request.items:
            payload = self._payload(state, key, value, request.policy == "buffer", now)
            state.put(key, payload, request.policy, request.priority, due)
            ids.append(payload.id)
        return tuple(ids)

    def _payload(self, state: State, key: str, value: bytes, buffer: bool, now: float) -> Payload:
        """A live item that is updated keeps its id, its age and its history."""
        item = state.items.get(key)
        if item is not None:
            if item.buffered is not None:
                old = item.buffered.value
                return Payload(value, old.id, old.put_at, old.history)
            if item.lease is None or not buffer:
                return Payload(value, item.value.id, item.value.put_at, item.value.history)
        self.last_id += 1
        return Payload(value, self.last_id, now)

    def _refuse_put(self, state: State, request: Put) -> LeasedKeyQError | None:
        keys = dict.fromkeys(key for key, _ in request.items)
        if request.policy == "reject":
            leased = tuple(key for key in keys if key in state.in_flight)
            if leased:
                return keys_in_flight(leased, len(keys))
        if request.max_items:
            need = 0
            for key in keys:
                item = state.items.get(key)
                if item is None:
                    need += 1
                elif item.lease is not None and item.buffered is None:
                    need += request.policy == "buffer"
            if need and state.available + state.scheduled + need > request.max_items:
                return queue_full(request.queue, request.max_items)
        return None

    def claim(self, request: Claim, now: float) -> tuple[Claimed, ...]:
        """Apply one `Claim`."""
        expires_at = None if request.lease_time is None else now + request.lease_time
        claimed: list[Claimed] = []
        for queue, most in request.queues:
            if queue not in self.spaces:
                continue
            state = self._at(queue, now).state
            room = min(most, request.limit - len(claimed))
            for _ in range(room):
                state.fence = self.last_fence
                if request.key is None:
                    item = state.claim(expires_at)
                else:
                    item = state.claim_key(request.key, expires_at)
                if item is None:
                    break
                self.last_fence = state.fence
                claimed.append(_claimed(queue, item))
        return tuple(claimed)

    def settle(self, request: Change, now: float) -> Answer:
        """Apply one of the changes."""
        state = self._at(request.queue, now).state
        try:
            answer = self._settle(request, state, now)
        except InvalidLeaseError:
            answer = Refusal(getattr(request, "key", ""))
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
                state.extend(Lease(request.token, request.key), expires_at)
                return expires_at
            case Bury():
                return self._bury(request, state, now)
            case Cancel():
                return state.remove(request.key) is not None
            case Requeue():
                return self._requeue(request, state, now)
            case Purge():
                return self._purge(request)

    def _ack(self, request: Ack, state: State, now: float) -> Answer:
        lease = Lease(request.token, request.key)
        item = state.held(lease)
        payload, priority, attempt = item.value, item.priority, item.attempt
        state.ack(lease)
        if request.keep > 0:
            self.spaces[request.queue].done[payload.id] = StoredItem(
                id=payload.id,
                queue=request.queue,
                key=request.key,
                state="done",
                value=b"null" if request.result is None else request.result,
                priority=priority,
                attempt=attempt,
                put_at=payload.put_at,
                due=now + request.keep,
                history=payload.history,
            )
        return None

    def _release(self, request: Release, state: State, now: float) -> Answer:
        lease = Lease(request.token, request.key)
        item = state.held(lease)
        if request.undo:
            state.unclaim(item.lease)
            return None
        self._remember(item, "released", request.error, now)
        due = now + request.delay if request.delay else None
        state.release(lease, front=request.front, due=due)
        return None

    def _bury(self, request: Bury, state: State, now: float) -> Answer:
        lease = Lease(request.token, request.key)
        item = state.held(lease)
        self._remember(item, "buried", request.error, now)
        buried_id = item.value.id
        _, _, dropped = state.bury(lease, request.error)
        if dropped is not None:
            self.dropped.append(_buried(request.queue, dropped))
        return buried_id

    def _requeue(self, request: Requeue, state: State, now: float) -> Answer:
        for number, buried in state.buried.items():
            if buried.value.id == request.id:
                items = ((buried.key, buried.value.value),)
                put = Put(
                    request.queue,
                    items,
                    request.policy,
                    buried.priority,
                    max_items=request.max_items,
                )
                answer = self.put(put, now)
                if isinstance(answer, LeasedKeyQError):
                    return answer
                del state.buried[number]
                return True
        return False

    def _purge(self, request: Purge) -> int:
        space = self.spaces[request.queue]
        state = space.state
        count = 0
        if request.part in ("buried", "all"):
            count += len(state.buried)
            state.buried.clear()
        if request.part in ("results", "all"):
            count += len(space.done)
            space.done.clear()
        if request.part == "all":
            count += len(state.items) + state.buffered
            for key in list(state.items):
                state.remove(key)
        return count

    # Time

    def sweep(self, queue: str, now: float) -> float | None:
        """Deal with what is due in `queue`; return the moment of what comes next."""
        if queue not in self.spaces:
            return None
        space = self._at(queue, now)
        moments = [item.due for item in space.done.values() if item.due is not None]
        earliest = space.state.earliest()
        if earliest is not None:
            moments.append(earliest)
        self._tidy(queue)
        return min(moments, default=None)

    def _at(self, queue: str, now: float) -> Space:
        """The queue as it is at `now`."""
        space = self.spaces.get(queue)
        if space is None:
            space = self.spaces[queue] = Space(self.limits.buried)
        state = space.state
        for item, lease in state.advance(now):
            self.moved.add(queue)
            if lease is not None and item.attempt == lease.attempt and lease.expires_at is not None:
                self._remember(item, "expired", "", lease.expires_at)
        if space.done:
            forgotten = [i for i, item in space.done.items() if item.due and item.due <= now]
            for number in forgotten:
                del space.done[number]
        return space

    def _remember(self, item: Item[str, Payload], how: LeaseEnd, error: str, when: float) -> None:
        attempt = Attempt(item.attempt, when, how, error)
        old = item.value
        most = self.limits.history
        history = (*old.history, attempt)[-most:] if most else ()
        item.value = Payload(old.value, old.id, old.put_at, history)

    def _tidy(self, queue: str) -> None:
        if not self.spaces[queue]:
            del self.spaces[queue]

    # Looking

    def count(self, queue: str, now: float) -> Counts:
        """How many items are in each state."""
        if queue not in self.spaces:
            return Counts()
        space = self._at(queue, now)
        state = space.state
        counts = Counts(
            available=state.available,
            scheduled=state.scheduled,
            in_flight=len(state.in_flight),
            buried=len(state.buried),
            done=len(space.done),
        )
        self._tidy(queue)
        return counts

    def look(self, queue: str, key: str, now: float) -> tuple[StoredItem, ...]:
        """The live items of a key."""
        if queue not in self.spaces:
            return ()
        item = self._at(queue, now).state.items.get(key)
        return () if item is None else tuple(_live(queue, item))

    def browse(
        self,
        queue: str,
        states: Sequence[StoredState],
        prefix: str,
        now: float,
    ) -> list[StoredItem]:
        """All items in these states whose key starts with `prefix`, by id."""
        if queue not in self.spaces:
            return []
        space = self._at(queue, now)
        found = [
            stored
            for stored in self._everything(queue, space)
            if stored.state in states and stored.key.startswith(prefix)
        ]
        return sorted(found, key=lambda stored: stored.id)

    def _everything(self, queue: str, space: Space) -> Iterator[StoredItem]:
        for item in space.state.items.values():
            yield from _live(queue, item)
        for buried in space.state.buried.values():
            yield _buried(queue, buried)
        yield from space.done.values()

    def result(self, queue: str, number: int, now: float) -> StoredItem | None:
        """The kept result of an item, or None."""
        if queue not in self.spaces:
            return None
        return self._at(queue, now).done.get(number)


def keys_in_flight(leased: Sequence[str], of: int) -> LeasedKeyQError:
    """The refusal of a put with the policy ``"reject"``."""
    message = f"{len(leased)} of {of} keys are in flight, the first is {describe(leased[0])}"
    return KeyAlreadyInFlightError(f"{message}; nothing was put", keys=tuple(leased))


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
    )


def _live(queue: str, item: Item[str, Payload]) -> Iterator[StoredItem]:
    state: StoredState = "available"
    due: float | None = None
    if item.lease is not None:
        state, due = "in_flight", item.lease.expires_at
    elif item.next is None:
        state, due = "scheduled", item.timer[0]
    payload = item.value
    yield StoredItem(
        id=payload.id,
        queue=queue,
        key=item.key,
        state=state,
        value=payload.value,
        priority=item.priority,
        attempt=item.attempt,
        put_at=payload.put_at,
        place=item.position if state == "available" else 0,
        due=due,
        history=payload.history,
    )
    if (beside := item.buffered) is not None:
        yield StoredItem(
            id=beside.value.id,
            queue=queue,
            key=item.key,
            state="buffered",
            value=beside.value.value,
            priority=beside.priority,
            put_at=beside.value.put_at,
            due=beside.not_before,
        )


def _buried(queue: str, buried: BuriedItem[str, Payload]) -> StoredItem:
    payload = buried.value
    return StoredItem(
        id=payload.id,
        queue=queue,
        key=buried.key,
        state="buried",
        value=payload.value,
        priority=buried.priority,
        attempt=buried.attempt,
        put_at=payload.put_at,
        error=buried.error,
        history=payload.history,
    )
