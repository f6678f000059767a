"""One queue of a `StoreModel`: its state machine, its kept results and its buckets."""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Any

import msgspec

from leasedkeyq.lease import Lease
from leasedkeyq.model.caps import Buckets
from leasedkeyq.model.deadlines import Deadlines
from leasedkeyq.model.id_order import IdOrder
from leasedkeyq.model.items import Item
from leasedkeyq.model.line import Line, LineValue
from leasedkeyq.model.requests import (
    OUTCOMES,
    Attempt,
    ResultOutcome,
    StoredItem,
    StoredState,
)
from leasedkeyq.model.state import QueueState


class Payload(msgspec.Struct, gc=False):
    """The value of an item in a `QueueState`: the stored bytes, its id, age and history."""

    value: bytes
    id: int
    put_at: float
    history: tuple[Attempt, ...] = ()
    kind: str = ""
    deadline: float | None = None
    """By when it should be leased."""
    progress: bytes | None = None
    """How far the work on it has come. It goes where the history goes."""

    def stored(
        self, queue: str, key: str, state: StoredState, priority: int, attempt: int, **rest: Any
    ) -> StoredItem:
        """The item with this value as a store shows it; `rest` are the fields of its state."""
        return StoredItem(
            id=self.id,
            queue=queue,
            key=key,
            state=state,
            value=self.value,
            priority=priority,
            attempt=attempt,
            put_at=self.put_at,
            history=self.history,
            kind=self.kind,
            progress=self.progress,
            **rest,
        )


State = QueueState[str, Payload]


def _take_over(old: Payload, new: Payload) -> Payload:
    """A buffered value that replaces one that failed goes on with its history and progress."""
    return msgspec.structs.replace(new, history=old.history, progress=old.progress)


class QueueModel:
    """One queue of a store: its state machine, its kept results and its buckets.

    `keep` adds to `done`, and the methods that forget results take out of it: they count the
    results in `outcomes`, too.
    """

    __slots__ = (
        "_buried_ids",
        "_deadlines",
        "_done_ids",
        "_forgetting",
        "_live_ids",
        "buckets",
        "completed_of",
        "done",
        "outcomes",
        "state",
    )

    def __init__(self, max_buried: int) -> None:
        self.state: State = QueueState(max_buried=max_buried, take_over=_take_over)
        self.done: dict[int, StoredItem] = {}
        self.completed_of: dict[str, dict[int, None]] = {}
        """The ids of the completed results of each key, by their ends and then by id."""
        self.outcomes: dict[ResultOutcome | None, int] = dict.fromkeys(OUTCOMES, 0)
        """How many of `done` have each outcome."""
        self.buckets = Buckets()
        self._deadlines: Deadlines[str, Payload] | None = None
        """The deadlines of available items; None until they are first asked for."""
        self._forgetting: list[tuple[float, int]] | None = None
        """When which result is forgotten, as a heap; None: not known yet."""
        self._live_ids: IdOrder[str] | None = None
        self._buried_ids: IdOrder[int] | None = None
        self._done_ids: IdOrder[int] | None = None

    # The orders of ids, each made when it is first asked for

    @property
    def live_ids(self) -> IdOrder[str]:
        """The keys of live values, those in lines included, in the order of their ids."""
        if self._live_ids is None:
            self._live_ids = IdOrder(self._all_live, self._is_live, lambda: self.live)
        return self._live_ids

    @property
    def buried_ids(self) -> IdOrder[int]:
        """The numbers of buried items in the order of their ids."""
        if self._buried_ids is None:
            self._buried_ids = IdOrder(
                lambda: ((buried.value.id, number) for number, buried in self.state.buried.items()),
                lambda _, number: number in self.state.buried,
                lambda: len(self.state.buried),
            )
        return self._buried_ids

    @property
    def done_ids(self) -> IdOrder[int]:
        """The results in the order of their ids."""
        if self._done_ids is None:
            self._done_ids = IdOrder(
                lambda: ((number, number) for number in self.done),
                lambda number, _: number in self.done,
                lambda: len(self.done),
            )
        return self._done_ids

    def note_put(self, number: int, key: str) -> None:
        """There is a new live item with that id."""
        if self._live_ids is not None:
            self._live_ids.add(number, key)

    def note_buried(self, number: int, burial: int) -> None:
        """The item with that id was buried."""
        if self._buried_ids is not None:
            self._buried_ids.add(number, burial)

    def _all_live(self) -> Iterator[tuple[int, str]]:
        for key, item in self.state.items.items():
            if key not in self.state.held:
                yield item.value.id, key
            for value in item.line or ():
                yield value.number, key

    def _is_live(self, number: int, key: str) -> bool:
        item = self.state.items.get(key)
        if item is None:
            return False
        if item.line is not None and number in item.line:
            return True
        return item.value.id == number and key not in self.state.held

    @property
    def live(self) -> int:
        """How many live values there are, those in lines included."""
        state = self.state
        return len(state.items) - len(state.held) + state.in_line + state.behind_held

    def __bool__(self) -> bool:
        """Whether it has items."""
        return bool(self.state.items or self.state.buried or self.done)

    @property
    def deadlines(self) -> Deadlines[str, Payload]:
        """The available items that have a deadline of their own."""
        if self._deadlines is None:
            self._deadlines = Deadlines()
            for item in self.state.ready:
                self._deadlines.add(item, len(self.state.ready))
        return self._deadlines

    def note(self, item: Item[str, Payload] | None) -> None:
        """An item may have become available, or have another deadline."""
        if self._deadlines is not None and item is not None:
            self._deadlines.add(item, len(self.state.ready))

    def keep(self, result: StoredItem) -> None:
        """Keep a result until it is due."""
        self.done[result.id] = result
        if result.outcome == "completed":
            ids = self.completed_of.setdefault(result.key, {})
            later: list[int] = []
            while ids and self._end_of(next(reversed(ids))) > self._end_of(result.id):
                later.append(ids.popitem()[0])
            ids[result.id] = None
            ids.update(dict.fromkeys(reversed(later)))
        self.outcomes[result.outcome] += 1
        if self._done_ids is not None:
            self._done_ids.add(result.id, result.id)
        if self._forgetting is not None and result.due is not None:
            heappush(self._forgetting, (result.due, result.id))

    def _end_of(self, number: int) -> tuple[float, int]:
        """By what the results of a key are ordered."""
        ended_at = self.done[number].ended_at
        return float("-inf") if ended_at is None else ended_at, number

    def newest_result(self, key: str) -> StoredItem | None:
        """The kept result of the value of a key that was completed last.

        Of several that were completed at one moment, it is that of the highest id.
        """
        ids = self.completed_of.get(key)
        return None if ids is None else self.done[next(reversed(ids))]

    def forget(self, now: float) -> float | None:
        """Forget the results that are due; return the moment of the next one."""
        due = self._forgetting
        if due is None:
            due = [
                (result.due, number)
                for number, result in self.done.items()
                if result.due is not None
            ]
            heapify(due)
            self._forgetting = due
        # Discarded results are still in the heap.
        while due and (due[0][0] <= now or due[0][1] not in self.done):
            self.forget_one(heappop(due)[1])
        return due[0][0] if due else None

    def forget_one(self, number: int) -> bool:
        """Forget the result of this id; return whether there was one."""
        result = self.done.pop(number, None)
        if result is None:
            return False
        self.outcomes[result.outcome] -= 1
        others = self.completed_of.get(result.key, {})
        others.pop(number, None)
        if not others:
            self.completed_of.pop(result.key, None)
        return True

    def forget_all(self) -> int:
        """Forget all results; return how many."""
        count = len(self.done)
        self.done.clear()
        self.completed_of.clear()
        self.outcomes = dict.fromkeys(OUTCOMES, 0)
        self._forgetting = None
        return count

    def copy(self) -> "QueueModel":
        """Another one in the same state, for an edit; it shares only the buckets with it.

        No edit changes those.
        """
        state = self.state
        other = QueueModel(state.max_buried)
        twin = other.state
        twin.now, twin.fence = state.now, state.fence
        twin.in_line, twin.behind_held = state.in_line, state.behind_held
        twin._schedules, twin._burials = state._schedules, state._burials
        twin.items = {key: _copy_item(item, twin) for key, item in state.items.items()}
        twin.in_flight = {key: twin.items[key] for key in state.in_flight}
        twin.lines = {key: twin.items[key] for key in state.lines}
        twin.held = {key: (twin.items[key], number) for key, (_, number) in state.held.items()}
        for item in state.ready:
            twin.ready._join(item.priority).append(twin.items[item.key])
        twin.ready.back, twin.ready._front = state.ready.back, state.ready._front
        for node in state.expiring:
            twin.expiring.append(twin.items[node.key])
        twin.buried = state.buried.copy()
        other.done, other.outcomes = self.done.copy(), self.outcomes.copy()
        other.completed_of = {key: ids.copy() for key, ids in self.completed_of.items()}
        other.buckets = self.buckets
        return other


def _copy_item(item: Item[str, Payload], state: State) -> Item[str, Payload]:
    """An item for `state`, with its timer there, and in no list yet."""
    twin = Item(item.key, item.value, item.priority)
    twin.position, twin.attempt, twin.not_before = item.position, item.attempt, item.not_before
    if hasattr(item, "since"):
        twin.since = item.since
    lease: Lease[str] | None = item.lease
    if lease is not None:
        twin.lease = Lease(
            lease.token, item.key, lease.fence, lease.attempt, lease.expires_at, state._issuer
        )
    if item.line is not None:
        twin.line = Line()
        for value in item.line:
            twin.line.add(_copy_value(value))
    if item.timer is not None:
        when, order, _ = item.timer
        state.timers.set(twin, when, order)
    return twin


def _copy_value(value: LineValue[Payload]) -> LineValue[Payload]:
    return LineValue(
        value.number, value.value, value.priority, value.not_before, replaces=value.replaces
    )
