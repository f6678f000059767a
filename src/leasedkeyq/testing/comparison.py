"""A store and the model are asked the same at the same time, and must answer the same."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from leasedkeyq.errors import LeasedKeyQError
from leasedkeyq.lease import Lease
from leasedkeyq.model.edit import Edit, EditStoppedError
from leasedkeyq.model.requests import (
    Ack,
    Amend,
    Bury,
    Cancel,
    Change,
    Claim,
    Claimed,
    Counts,
    Discard,
    Extend,
    Put,
    Release,
    Requeue,
    StoredItem,
    StoredState,
)
from leasedkeyq.model.store_model import StoreModel
from leasedkeyq.stores.store import Store
from leasedkeyq.testing.likeness import Id, Likeness, in_order
from leasedkeyq.testing.menu import ABSENT, QUEUES, STALE, plan
from leasedkeyq.testing.model_time import ModelTime
from leasedkeyq.testing.shorthand import EVERY_STATE

REMEMBERED = 30
"""Leases that requests may speak of."""
PAGES = (1, 2, 100)


class LeasePair(NamedTuple):
    """A lease, by the token of the model and the token of the store."""

    queue: str
    key: str
    mine: str
    yours: str


class Comparison:
    """Asks a store and a model the same, and compares all that they answer.

    Several store objects on the same items take turns, as `choose` says.
    """

    queues: Sequence[str] = QUEUES
    remembered = REMEMBERED

    def __init__(
        self,
        stores: Sequence[Store],
        time: ModelTime,
        choose: Callable[[Sequence[Any]], Any] = lambda options: options[0],
    ) -> None:
        self.stores = list(stores)
        self.time = time
        self.model = StoreModel(self.stores[0].limits)
        self.log: list[str] = []
        self._choose = choose
        self._held: list[LeasePair] = []
        self._likeness = Likeness(time.tolerance)
        self._fence = 0
        self._newest_first = False

    @property
    def store(self) -> Store:
        """One of the store objects."""
        store: Store = self._choose(self.stores)
        return store

    # Requests

    async def put(self, requests: Sequence[Put]) -> None:
        """Put."""
        now = await self.time.before()
        mine = [self.model.put(request, now) for request in requests]
        yours = await self.store.put(requests)
        self.time.after()
        self.same(now, requests, mine, yours)

    async def claim(self, requests: Sequence[Claim]) -> None:
        """Claim, and remember the leases."""
        now = await self.time.before()
        mine = [self.model.claim(request, now) for request in requests]
        yours = await self.store.claim(requests)
        self.time.after()
        self.same(now, requests, mine, yours)
        for ours, theirs in zip(mine, yours, strict=True):
            for one, other in zip(ours, theirs, strict=True):
                self._held.append(LeasePair(one.queue, one.key, one.token, other.token))
            self._fences_grow(theirs)
        del self._held[: -self.remembered]

    def _fences_grow(self, claimed: Sequence[Claimed]) -> None:
        """From claim to claim, and within one in each queue."""
        last = dict.fromkeys([item.queue for item in claimed], self._fence)
        for item in claimed:
            if item.fence <= last[item.queue]:
                raise AssertionError(
                    f"{self._past()}\nthe fence of {item} is not above the last one"
                )
            last[item.queue] = item.fence
        self._fence = max(last.values(), default=self._fence)

    async def settle(self, requests: Sequence[Change]) -> None:
        """Settle; what the tokens and ids in `requests` mean, the menu says."""
        now = await self.time.before()
        pairs = [self._resolved(request) for request in requests]
        mine = [self.model.settle(one, now) for one, _ in pairs]
        yours = await self.store.settle([other for _, other in pairs])
        self.time.after()
        self.same(now, [one for one, _ in pairs], map(_with_ids, requests, mine), yours)

    def _resolved(self, change: Change) -> tuple[Change, Change]:
        """The change, for the model and for the store."""
        if isinstance(change, Ack | Release | Extend | Bury):
            number = int(change.token.removeprefix(STALE))
            all_held = [held for held in self._held if self._holds(held)]
            if change.token.startswith(STALE) or not all_held:
                all_held = self._held
            if not all_held:
                return change, change
            held = all_held[-1 - number % len(all_held)]
            mine = msgspec.structs.replace(change, queue=held.queue, key=held.key, token=held.mine)
            return mine, msgspec.structs.replace(mine, token=held.yours)
        if isinstance(change, Requeue | Discard):
            queue_model = self.model.queues.get(change.queue)
            ids = (
                [buried.value.id for buried in queue_model.state.buried.values()]
                if queue_model
                else []
            )
            if queue_model and isinstance(change, Discard):
                ids += queue_model.done
            return self._identified(change, change.id, ids)
        if isinstance(change, Cancel | Amend) and change.id is not None:
            return self._identified(change, change.id, self._values_of(change.queue, change.key))
        return change, change

    def _identified(
        self, change: Requeue | Discard | Cancel | Amend, number: int, ids: Sequence[int]
    ) -> tuple[Change, Change]:
        """The change of one of the ids, for the model and for the store."""
        # An item that was requeued, and that nobody has seen since, has an id nobody knows.
        known = [each for each in ids if self._likeness.knows(each)]
        mine = known[number % len(known)] if known and number != ABSENT else 10**6
        theirs = self._likeness.theirs(mine)
        return msgspec.structs.replace(change, id=mine), msgspec.structs.replace(change, id=theirs)

    def _values_of(self, queue: str, key: str) -> list[int]:
        """The ids of the head of a key and of its line; of a held key, also of what holds it."""
        queue_model = self.model.queues.get(queue)
        item = queue_model.state.items.get(key) if queue_model else None
        if item is None:
            return []
        return [item.value.id, *(value.number for value in item.line or ())]

    def _holds(self, held: LeasePair) -> bool:
        """Whether a lease is the last one of its key, though it may be due."""
        queue_model = self.model.queues.get(held.queue)
        item = queue_model.state.items.get(held.key) if queue_model else None
        lease: Lease[str] | None = item.lease if item else None
        return lease is not None and lease.token == held.mine

    async def edit(self, queue: str, keys: Sequence[str] | None, number: int) -> None:
        """Edit, by the plan of that number."""
        now = await self.time.before()
        seen: list[list[StoredItem]] = []
        wanted: list[list[Put | Change]] = []

        def work(items: Sequence[StoredItem]) -> list[Put | Change]:
            seen.append([*items])
            wanted.append(plan(queue, items, number, self.time.durations))
            return wanted[-1]

        mine: Any
        yours: Any
        try:
            answers = self.model.edit(Edit(queue, work, keys, self.model.limits), now)
            mine = [*map(_with_ids, wanted[0], answers)]
        except EditStoppedError as stopped:
            mine = stopped.error
        try:
            yours = await self.store.edit(queue, work, keys=keys)
        except (LeasedKeyQError, ZeroDivisionError, ValueError) as error:
            yours = error
        self.time.after()
        if len(seen) != 2:  # noqa: PLR2004 - the model and the store
            raise AssertionError(f"{self._past()}\nan edit called its work {len(seen) - 1} times")
        self._same_items(now, ("an edit sees", queue, keys), *seen)
        self.same(now, [("edit", queue, keys, number)], [mine], [yours])
        if isinstance(mine, Exception):
            await self.compare()

    async def wait(self, seconds: float) -> None:
        """Let time pass."""
        await self.time.wait(seconds)

    # Looking

    async def sweep(self, queues: Sequence[str]) -> None:
        """Sweep some queues."""
        now = await self.time.before()
        mine = [self.model.sweep(queue, now) for queue in queues]
        yours = await self.store.sweep(queues)
        self.time.after()
        if len(self.stores) > 1 and 0 in yours:
            return  # what one has seen come due, another may have to look at once more
        self.same(now, [("sweep", queue) for queue in queues], mine, yours)

    async def look(self, queue: str, keys: Sequence[str]) -> None:
        """Look at some keys."""
        now = await self.time.before()
        mine = [self.model.look(queue, key, now) for key in keys]
        yours = await self.store.look(queue, keys)
        self.time.after()
        asked = [("look", queue, key) for key in keys]
        self.same(now, asked, mine, yours)
        for key in keys:
            await self._compare_line(queue, key)

    async def _compare_line(self, queue: str, key: str) -> None:
        """Page by page."""
        now = await self.time.before()
        mine = [*self.model.line(queue, key, now)]
        limit = self._choose(PAGES)
        yours: list[StoredItem] = []
        cursor: str | None = None
        while True:
            page = await self.store.line(queue, key, cursor=cursor, limit=limit)
            self.time.after()
            yours += page.items
            cursor = page.cursor
            if cursor is None or len(yours) > len(mine):
                break
        self.same(now, [("line", queue, key)], [mine], [yours])

    async def compare(self) -> None:
        """All that can be seen is the same."""
        queues = [*self.queues, "nowhere"]
        for queue in queues:
            items = await self._compare_listing(queue, EVERY_STATE, "")
            states = [self._choose(EVERY_STATE), self._choose(EVERY_STATE)]
            await self._compare_listing(queue, states, self._choose(("", "a", "%", "ö")))
            await self._compare_results(queue, [item.id for item in items[:5]])
        await self._compare_heads(queues)
        await self._compare_counts()

    async def _compare_heads(self, queues: Sequence[str]) -> None:
        now = await self.time.before()
        mine = [self.model.head(queue, now) for queue in queues]
        yours = await self.store.heads(queues)
        self.time.after()
        asked = [("head", queue) for queue in queues]
        self.same(now, asked, mine, yours)

    async def _compare_listing(
        self, queue: str, states: Sequence[StoredState], prefix: str
    ) -> list[StoredItem]:
        """Page by page. Nothing comes due between two pages, whatever the clock."""
        now = await self.time.before()
        # In turn, and not by chance: what is asked for later does not depend on it.
        newest_first = self._newest_first = not self._newest_first
        mine = self.model.browse(queue, states, prefix, now, newest_first=newest_first)
        limit = self._choose(PAGES)
        yours: list[StoredItem] = []
        cursor: str | None = None
        while True:
            page = await self.store.browse(
                queue,
                states=states,
                prefix=prefix,
                cursor=cursor,
                limit=limit,
                newest_first=newest_first,
            )
            self.time.after()
            yours += page.items
            cursor = page.cursor
            if cursor is None or len(yours) > len(mine):
                break
        asked = ("browse", queue, states, prefix, newest_first)
        self._same_items(now, asked, mine, yours)
        return mine

    async def _compare_results(self, queue: str, ids: list[int]) -> None:
        now = await self.time.before()
        mine = [self.model.result(queue, number, now) for number in ids]
        yours = await self.store.results(queue, [*map(self._likeness.theirs, ids)])
        self.time.after()
        self.same(now, [("result", queue, number) for number in ids], mine, yours)

    async def _compare_counts(self) -> None:
        now = await self.time.before()
        mine = {queue: self.model.count(queue, now) for queue in self.queues}
        yours = await self.store.count(self.queues)
        everywhere = await self.store.count()
        self.time.after()
        for queue, counts in mine.items():
            asked = [("count", queue), ("count of all", queue)]
            found = [theirs.get(queue, Counts()) for theirs in (yours, everywhere)]
            self.same(now, asked, [counts, counts], found)
        strange = {queue for queue, counts in everywhere.items() if counts != Counts()}
        if not strange <= set(self.queues):
            raise AssertionError(f"{self._past()}\nthere are queues that nobody uses: {strange}")

    # The outcome

    def same(
        self, now: float, requests: Iterable[Any], mine: Iterable[Any], yours: Iterable[Any]
    ) -> None:
        """Compare answers, one by one."""
        for request, one, other in zip(requests, mine, yours, strict=True):
            self.log.append(f"{now:.3f}: {request} -> {one}")
            if not self._likeness.same(one, other):
                raise AssertionError(f"{self._past()}\nexpected {one!r}\n     got {other!r}")

    def _same_items(
        self, now: float, asked: object, mine: list[StoredItem], yours: list[StoredItem]
    ) -> None:
        """Compare items, and the order in which they would be handed out."""
        self.same(now, [asked, "in order"], [mine, in_order(mine)], [yours, in_order(yours)])

    def _past(self) -> str:
        return "\n".join(self.log[-30:])


def _with_ids(request: object, answer: Any) -> Any:
    """The answer of the model, with its ids marked as such."""
    if isinstance(request, Bury) and isinstance(answer, int):
        return Id(answer)
    return answer
