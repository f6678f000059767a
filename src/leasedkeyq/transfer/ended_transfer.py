"""Buried items and results that are moved: how they get into the target, and are read back there.

There is no request that makes one of them. So each is put, leased and settled there, for which its
key must be free for a moment.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from leasedkeyq.errors import LeasedKeyQError
from leasedkeyq.model.admission import limit_exceeded
from leasedkeyq.model.requests import (
    Ack,
    Bury,
    Cancel,
    Change,
    Claim,
    Claimed,
    Discard,
    Extend,
    Put,
    StoredItem,
    StoredState,
)
from leasedkeyq.stores.store import LIVE_STATES, Store
from leasedkeyq.stores.system.holder import this_process
from leasedkeyq.stores.take_back import take_back
from leasedkeyq.transfer.item_record import ItemRecord, Tally
from leasedkeyq.transfer.key_transfer import check_records

HIDDEN: Final = "leasedkeyq.moving"
"""The kind of an item on its way to the buried items or the results: no lane takes it."""
HOLD: Final = 30.0
"""Seconds for which such an item is leased, in which it reaches its place.

That is over before another move takes the place of a dead one.
"""

LOOK_AGAIN: Final = 1.0
"""Seconds between two looks at items in flight, at most."""


def _equal(records: Iterable[ItemRecord], others: Iterable[ItemRecord]) -> list[ItemRecord]:
    """The records that have an equal among `others`; each of those is the equal of one only."""
    left = Counter(other.digest() for other in others)
    found: list[ItemRecord] = []
    for record in records:
        digest = record.digest()
        if left[digest] > 0:
            left[digest] -= 1
            found.append(record)
    return found


class EndedTransfer:
    """Brings buried items and results to the target, and reads them back."""

    def __init__(self, target: Store, queue: str, read_back: Tally) -> None:
        self._target = target
        self._queue = queue
        self._tally = read_back
        self._results_seen: Counter[int] = Counter()

    async def bury(
        self, records: Sequence[ItemRecord], under_way: frozenset[int]
    ) -> list[ItemRecord]:
        """Add records to the buried items; returns those that are there now.

        The others wait: their keys are in use in the target. Of the records whose ids are
        `under_way`, some may have been buried by a move that was interrupted.

        Raises:
            LimitExceededError: There would be too many.
        """
        check_records(self._target, self._queue, records)
        await self._check_room(len(records))
        suspects = [record for record in records if record.id in under_way]
        moved = _equal(suspects, await self._read([record.key for record in suspects], "buried"))
        done = {record.id for record in moved}
        left = [record for record in records if record.id not in done]
        moved += await self._place(left, _burial)
        self._tally.add(found.digest() for found in await self._matching(moved, "buried"))
        return moved

    async def unbury(self, record: ItemRecord) -> None:
        """Take a record back: the source does not have it among its buried items any more."""

        def work(items: Sequence[StoredItem]) -> list[Put | Change]:
            buried = [item for item in items if item.state == "buried"]
            same = [item.id for item in buried if _found(item).digest() == record.digest()]
            return [Discard(self._queue, number) for number in same[-1:]]

        await self._target.edit(self._queue, work, keys=[record.key])

    async def _check_room(self, count: int) -> None:
        limits = self._target.limits
        there = (await self._target.count([self._queue])).get(self._queue)
        if (0 if there is None else there.buried) + count > limits.buried:
            most = f"the target keeps at most {limits.buried} buried items"
            raise limit_exceeded(f"queue {self._queue!r}: {most}", "buried", limits)

    def begin_results(self) -> None:
        """The results of the source come again from the first one."""
        self._results_seen.clear()

    async def keep(self, records: Sequence[ItemRecord]) -> list[ItemRecord]:
        """Add records to the results, unless they are there; returns those that were added."""
        check_records(self._target, self._queue, records)
        there = Counter(
            record.digest()
            for record in await self._read([record.key for record in records], "done")
        )
        new: list[ItemRecord] = []
        for record in records:
            digest = record.digest()
            self._results_seen[digest] += 1
            if self._results_seen[digest] > there[digest]:
                new.append(record)
        moved = await self._place(new, _result)
        self._tally.add(found.digest() for found in await self._matching(moved, "done"))
        return moved

    async def _place(
        self, records: Sequence[ItemRecord], change: Callable[[ItemRecord, Claimed], Change]
    ) -> list[ItemRecord]:
        """Put records, lease them, and settle each by `change`; returns those that were free."""
        moved: list[ItemRecord] = []
        waiting: list[ItemRecord] = list(records)
        patience = asyncio.get_running_loop().time() + HOLD + LOOK_AGAIN
        while waiting:
            # Of each key one at a time.
            turn: dict[str, ItemRecord] = {record.key: record for record in reversed(waiting)}
            waiting = [record for record in waiting if turn[record.key] is not record]
            leases: dict[str, Claimed] = {}
            try:
                leases, held = await self._lease(turn)
                moved += await self._settle(turn, leases, change)
            except BaseException:
                await asyncio.shield(self._take_back([*turn], leases))
                raise
            if held and asyncio.get_running_loop().time() < patience:
                waiting += [turn[key] for key in held]
                await asyncio.sleep(LOOK_AGAIN)
        return moved

    async def _settle(
        self,
        records: dict[str, ItemRecord],
        leases: dict[str, Claimed],
        change: Callable[[ItemRecord, Claimed], Change],
    ) -> list[ItemRecord]:
        """Give leased records their kinds back and settle them, both in one step."""
        settled: list[ItemRecord] = []

        def work(items: Sequence[StoredItem]) -> list[Put | Change]:
            changes: list[Put | Change] = []
            behind = {item.key for item in items if item.state in ("buffered", "in_line")}
            for item in items:
                record, lease = records[item.key], leases[item.key]
                if item.state != "in_flight" or item.token != lease.token:
                    continue
                # A value that was put under the key meanwhile is for the consumers.
                if item.kind != HIDDEN:
                    changes += take_back([item])
                elif item.key in behind:
                    changes.append(Cancel(item.queue, item.key, id=item.id))
                else:
                    settled.append(record)
                    pair = ((item.key, record.value),)
                    changes.append(Put(item.queue, pair, kind=record.kind))
                    if record.progress is not None:
                        where = item.queue, item.key, lease.token
                        changes.append(Extend(*where, HOLD, record.progress))
                    changes.append(change(record, lease))
            return changes

        if leases:
            await self._target.edit(self._queue, work, keys=[*leases])
        return settled

    async def _take_back(self, keys: Sequence[str], leases: dict[str, Claimed]) -> None:
        """Leave nothing on its way that a consumer could get."""
        tokens = {lease.token for lease in leases.values()}

        def work(items: Sequence[StoredItem]) -> list[Put | Change]:
            changes: list[Put | Change] = []
            for item in items:
                mine = item.state == "in_flight" and item.token in tokens
                if item.kind == HIDDEN and (mine or item.state == "available"):
                    changes.append(Cancel(item.queue, item.key, id=item.id))
                elif mine:
                    changes += take_back([item])
            return changes

        try:
            await self._target.edit(self._queue, work, keys=keys)
        except LeasedKeyQError:
            return  # the next move finds them

    async def _lease(self, records: dict[str, ItemRecord]) -> tuple[dict[str, Claimed], list[str]]:
        """Put records so that no lane takes them, where their keys are free, and lease them.

        Returns the leases, and the keys that are still leased by a move that was interrupted.
        """
        free: list[ItemRecord] = []

        def work(items: Sequence[StoredItem]) -> list[Put | Change]:
            heads: dict[str, StoredItem] = {}
            for item in items:
                # A buried item that holds its key has the place of its head.
                if item.state in LIVE_STATES or item.holds:
                    heads.setdefault(item.key, item)
            puts: list[Put | Change] = []
            for key, record in records.items():
                head = heads.get(key)
                if head is None:
                    pair = ((key, record.value),)
                    puts.append(Put(self._queue, pair, "reject", record.priority, kind=HIDDEN))
                if head is None or (head.kind == HIDDEN and not head.holds):
                    free.append(record)
            return puts

        await self._target.edit(self._queue, work, keys=[*records])
        queues, holder = ((self._queue, 1),), this_process()
        claims = [Claim(queues, 1, record.key, HOLD, (HIDDEN,), holder=holder) for record in free]
        answers = await self._target.claim(claims) if claims else []
        leases = {lease.key: lease for answer in answers for lease in answer}
        return leases, [record.key for record in free if record.key not in leases]

    async def _read(self, keys: Sequence[str], state: StoredState) -> list[ItemRecord]:
        """The items of the target with these keys in a state."""
        found: list[ItemRecord] = []

        def work(items: Sequence[StoredItem]) -> list[Put | Change]:
            found.extend(_found(item) for item in items if item.state == state)
            return []

        if keys:
            await self._target.edit(self._queue, work, keys=[*dict.fromkeys(keys)])
        return found

    async def _matching(
        self, records: Sequence[ItemRecord], state: StoredState
    ) -> list[ItemRecord]:
        """The items of the target that are equal to `records`."""
        return _equal(await self._read([record.key for record in records], state), records)


def _found(item: StoredItem) -> ItemRecord:
    """An item of the target."""
    return ItemRecord(
        item.key, item.value, item.kind, item.priority, item.error, outcome=item.outcome
    )


def _burial(record: ItemRecord, lease: Claimed) -> Change:
    return Bury(lease.queue, lease.key, lease.token, record.error, hold=record.holds)


def _result(record: ItemRecord, lease: Claimed) -> Change:
    keep, outcome = record.delay or 0.0, record.outcome or "completed"
    return Ack(lease.queue, lease.key, lease.token, record.value, keep, outcome)
