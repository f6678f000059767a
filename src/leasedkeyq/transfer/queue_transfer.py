"""One queue on its way from a store to another."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence

import msgspec

from leasedkeyq.errors import LeasedKeyQError, StoreError
from leasedkeyq.model.requests import (
    Ack,
    Cancel,
    Change,
    Claim,
    Claimed,
    Counts,
    Discard,
    Extend,
    Put,
    Refusal,
    Release,
    StoredItem,
    StoredState,
)
from leasedkeyq.stores.store import Store
from leasedkeyq.stores.take_back import take_back
from leasedkeyq.transfer.item_transfer import LOOK_AGAIN, ItemRecord, ItemTransfer, Newer, checksum

OWN_QUEUES = "leasedkeyq."
"""How the names of the queues begin in which leasedkeyq keeps its own affairs."""
MOVES = "leasedkeyq.moves"
"""The queue in the source with an item for each queue that is being moved."""
LEASE = 60.0
"""Seconds after which the items that a dead move had leased are free again."""

__all__ = ["MoveProgress", "Newer", "QueueMove", "QueueTransfer"]


class MoveProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far the move of a queue is."""

    queue: str
    moved: int
    """How many items have been moved so far."""
    left: int
    """How many were left in the source when it was last counted, less those moved since."""


class QueueMove(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the move of one queue."""

    available: int = 0
    scheduled: int = 0
    buried: int = 0
    results: int = 0
    """How many of them were moved."""
    superseded: int = 0
    """How many were dropped, as the target had a newer value of their key."""
    left: int = 0
    """How many are left in the source: in flight, behind an item that is, or buried while the
    target uses their key."""
    verified: int = 0
    """How many were read back from the target."""
    source_checksum: str = ""
    """Over all that was moved: key, kind, value, error and outcome, in any order."""
    target_checksum: str = ""
    """Over the items that were read back from the target."""

    @property
    def moved(self) -> int:
        """How many items were moved, in all states."""
        return self.available + self.scheduled + self.buried + self.results


class TransferNote(msgspec.Struct):
    """What an interrupted move tells the next one."""

    nonce: str = ""
    """Tells the store in which it is noted from all others."""
    buried: list[int] = []
    """Items that may have been copied and not removed."""


class QueueTransfer:
    """Moves one queue. It may run several times, as long as something is left.

    Attributes:
        left: How many items were left at the end of the last run.
    """

    def __init__(
        self,
        source: Store,
        target: Store,
        queue: str,
        *,
        newer: Newer,
        batch: int,
        progress: Callable[[MoveProgress], None] | None,
    ) -> None:
        self.left = 0
        self._source = source
        self._target = target
        self._nonce = secrets.token_hex(16)
        self._queue = queue
        self._batch = min(batch, source.limits.batch_size, target.limits.batch_size)
        self._progress = progress
        self._items = ItemTransfer(target, queue, newer)
        self._moved: dict[str, int] = {}
        self._checksum = 0
        self._expected = 0
        self._lock: Claimed | None = None
        self._renewed = 0.0
        self._ahead = 0.0
        """The clock of the source, less that of the event loop."""
        self._under_way: frozenset[int] = frozenset()
        """Buried items that an interrupted move may have copied without removing them."""

    def report(self) -> QueueMove:
        """How it went so far."""
        return QueueMove(
            **self._moved,
            superseded=self._items.superseded,
            left=self.left,
            verified=self._items.verified,
            source_checksum=f"{self._checksum:032x}",
            target_checksum=f"{self._items.checksum:032x}",
        )

    async def run(self, wait: float | None) -> None:
        """Move the items, and wait at most `wait` seconds for those in flight."""
        loop = asyncio.get_running_loop()
        changed = asyncio.Event()
        unwatch = self._source.watch(self._queue, changed.set)
        try:
            await self._begin()
            await self._move_results()
            waited = 0.0
            while True:
                changed.clear()
                self._expected = unfinished(await self._count()) + sum(self._moved.values())
                moved = await self._move_buried()
                moved += await self._move_available()
                moved += await self._move_scheduled()
                counts = await self._count()
                self.left = unfinished(counts)
                if moved:
                    continue
                if self.left == counts.buried or (wait is not None and waited >= wait):
                    break
                began = loop.time()
                await self._pause(changed, None if wait is None else wait - waited)
                waited += loop.time() - began
            await self._move_results()
            await self._end(Ack)
        except BaseException:
            # The next move need not wait for the lease to end.
            await asyncio.shield(self._let_go())
            raise
        finally:
            unwatch()

    async def _count(self) -> Counts:
        return (await self._source.count([self._queue])).get(self._queue, Counts())

    async def _pause(self, changed: asyncio.Event, most: float | None) -> None:
        """Wait until something in the source has changed, or comes due."""
        await self._renew()
        [seconds] = await self._source.sweep([self._queue])
        times = [time for time in (seconds, most, LOOK_AGAIN) if time is not None]
        try:
            async with asyncio.timeout(max(min(times), 0.001)):
                await changed.wait()
        except TimeoutError:
            pass

    # One move of a queue at a time

    async def _begin(self) -> None:
        """Wait until any other move of the queue has ended, or has been dead for long enough."""
        key = self._queue
        fresh = msgspec.json.encode(TransferNote())
        loop = asyncio.get_running_loop()

        def work(items: Sequence[StoredItem]) -> list[Put | Change]:
            # What an interrupted move has noted stays.
            return [] if items else [Put(MOVES, ((key, fresh),))]

        while self._lock is None:
            try:
                await self._source.edit(MOVES, work, keys=[key])
            except ValueError:
                # The source can hold no other queue than its own: a second move is not kept out.
                self._ahead = time.time() - loop.time()
                return
            claim = Claim(((MOVES, 1),), 1, key, LEASE)
            for claimed in (await self._source.claim([claim]))[0]:
                self._lock = claimed
                self._renewed = loop.time()
                self._ahead = (claimed.expires_at or 0.0) - LEASE - self._renewed
                note = msgspec.json.decode(claimed.value, type=TransferNote)
                self._under_way = frozenset(note.buried)
            if self._lock is None:
                await asyncio.sleep(LOOK_AGAIN)
        await self._note(())
        for item in (await self._target.look(MOVES, [key]))[0]:
            if self._nonce.encode() in item.value:
                raise ValueError("source and target are the same store")

    async def _note(self, numbers: Iterable[int]) -> None:
        """Note the buried items that are copied next, besides those that may have been copied."""
        if self._lock is not None:
            note = TransferNote(self._nonce, sorted({*numbers, *self._under_way}))
            pair = ((self._queue, msgspec.json.encode(note)),)
            for answer in await self._source.put([Put(MOVES, pair)]):
                if isinstance(answer, LeasedKeyQError):
                    raise answer

    async def _renew(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._lock is not None and now - self._renewed > LEASE / 4:
            extend = Extend(MOVES, self._queue, self._lock.token, LEASE)
            if isinstance((await self._source.settle([extend]))[0], Refusal):
                raise StoreError(
                    f"queue {self._queue!r}: this move was stopped for longer than {LEASE} s, and "
                    "another may have begun; call move again to go on"
                )
            self._renewed = now

    async def _end(self, change: type[Ack | Release]) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            await self._source.settle([change(MOVES, self._queue, lock.token)])

    async def _let_go(self) -> None:
        try:
            await self._end(Release)
        except LeasedKeyQError:
            return  # it is free again when its lease has ended

    def _remaining(self, due: float | None, now: float | None = None) -> float:
        now = self._now() if now is None else now
        return 0.0 if due is None else max(0.0, due - now)

    def _now(self) -> float:
        """The time of the source."""
        return asyncio.get_running_loop().time() + self._ahead

    def _records(self, items: Iterable[Claimed | StoredItem]) -> list[ItemRecord]:
        """Records of items. One moment is now for all: equal deadlines can be put together."""
        now = self._now()
        return [
            ItemRecord(
                item.key,
                item.value,
                item.kind,
                item.priority,
                deadline=None if item.deadline is None else self._remaining(item.deadline, now),
            )
            for item in items
        ]

    # Available items

    async def _move_available(self) -> int:
        total = 0
        while True:
            await self._renew()
            claim = Claim(((self._queue, self._batch),), self._batch, lease_time=LEASE)
            claimed = (await self._source.claim([claim]))[0]
            if not claimed:
                return total
            try:
                records = self._records(claimed)
                await self._items.add(records)
                total += await self._remove_claimed(claimed, records)
            except BaseException:
                # Consumers of the source need not wait for the leases to end.
                await asyncio.shield(self._take_back(claimed))
                raise

    async def _take_back(self, claimed: Sequence[Claimed]) -> None:
        try:
            await self._source.settle(take_back(claimed))
        except LeasedKeyQError:
            return  # they are free again when their leases have ended

    async def _remove_claimed(
        self, claimed: Sequence[Claimed], records: Sequence[ItemRecord]
    ) -> int:
        """Remove the items from the source that are as they were copied, and release the others."""
        by_key = {item.key: item for item in claimed}
        copied: set[str] = set()
        changed: set[str] = set()

        def work(items: Sequence[StoredItem]) -> list[Put | Change]:
            changes: list[Put | Change] = []
            for item in items:
                lease = by_key[item.key]
                if item.state != "in_flight" or item.token != lease.token:
                    continue
                if (item.value, item.kind, item.deadline) == (
                    lease.value,
                    lease.kind,
                    lease.deadline,
                ):
                    copied.add(item.key)
                    changes.append(Ack(item.queue, item.key, item.token))
                else:
                    # Another value was put meanwhile: that is moved next.
                    changed.add(item.key)
                    changes += take_back([item])
            return changes

        await self._source.edit(self._queue, work, keys=[*by_key])
        return await self._end_batch("available", records, copied, changed)

    async def _end_batch(
        self, part: str, records: Sequence[ItemRecord], copied: set[str], changed: set[str]
    ) -> int:
        """Count the items that were moved, and withdraw those that the source has no more.

        Returns how many have left the source or are to be looked at again.
        """
        gone = [record for record in records if record.key not in copied | changed]
        if gone:
            await self._items.withdraw(gone)
        self._items.changed = changed
        self._items.confirm(copied)
        moved = self._items.kept([record for record in records if record.key in copied])
        self._account(part, moved)
        return len(copied) + len(changed)

    def _account(self, part: str, moved: Sequence[ItemRecord]) -> None:
        """Count the records that were moved, and tell how far the move is."""
        self._checksum = checksum(self._checksum, moved)
        self._moved[part] = self._moved.get(part, 0) + len(moved)
        if self._progress is not None and moved:
            total = sum(self._moved.values())
            left = max(0, self._expected - total)
            self._progress(MoveProgress(queue=self._queue, moved=total, left=left))

    # Scheduled items

    async def _move_scheduled(self) -> int:
        total = 0
        async for items in self._pages("scheduled"):
            records = self._records(items)
            for record, item in zip(records, items, strict=True):
                record.delay = self._remaining(item.due)
            await self._items.add(records)
            total += await self._remove_scheduled(items, records)
        return total

    async def _pages(self, state: StoredState) -> AsyncIterator[tuple[StoredItem, ...]]:
        """The items of the source in a state, a batch at a time."""
        cursor: str | None = None
        while True:
            await self._renew()
            page = await self._source.browse(
                self._queue, states=(state,), cursor=cursor, limit=self._batch
            )
            if page.items:
                yield page.items
            cursor = page.cursor
            if cursor is None:
                return

    async def _remove_scheduled(
        self, scheduled: Sequence[StoredItem], records: Sequence[ItemRecord]
    ) -> int:
        by_key = {item.key: item for item in scheduled}
        copied: set[str] = set()
        changed: set[str] = set()

        def work(items: Sequence[StoredItem]) -> list[Put | Change]:
            changes: list[Put | Change] = []
            for item in items:
                old = by_key[item.key]
                if item.state not in ("scheduled", "available") or item.id != old.id:
                    continue
                same = (item.value, item.kind, item.priority, item.deadline) == (
                    old.value,
                    old.kind,
                    old.priority,
                    old.deadline,
                )
                if same and (item.state == "available" or item.due == old.due):
                    copied.add(item.key)
                    changes.append(Cancel(item.queue, item.key))
                else:
                    changed.add(item.key)
            return changes

        await self._source.edit(self._queue, work, keys=[*by_key])
        return await self._end_batch("scheduled", records, copied, changed)

    # Buried items and results

    async def _move_buried(self) -> int:
        total = 0
        async for items in self._pages("buried"):
            await self._note([item.id for item in items])
            records = [
                ItemRecord(item.key, item.value, item.kind, item.priority, item.error, item.id)
                for item in items
            ]
            moved = await self._items.bury(records, self._under_way)
            if moved:
                await self._source.settle([Discard(self._queue, record.id) for record in moved])
            self._account("buried", moved)
            total += len(moved)
        return total

    async def _move_results(self) -> None:
        self._items.begin_results()
        async for items in self._pages("done"):
            records = [
                ItemRecord(
                    item.key,
                    item.value,
                    item.kind,
                    item.priority,
                    delay=self._remaining(item.due),
                    outcome=item.outcome,
                )
                for item in items
            ]
            moved = await self._items.keep([one for one in records if one.delay])
            self._account("results", moved)


def unfinished(counts: Counts) -> int:
    """How many items of a queue are not done."""
    return counts.available + counts.scheduled + counts.in_flight + counts.buried
