"""One queue on its way from a store to another."""

import asyncio
import secrets
import time
from collections.abc import Callable, Iterable, Sequence

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
from leasedkeyq.transfer.item_transfer import Arrivals, Newer, Record, checksum

OWN_QUEUES = "leasedkeyq."
"""How the names of the queues begin in which leasedkeyq keeps its own affairs."""
MOVES = "leasedkeyq.moves"
"""The queue in the source with an item for each queue that is being moved."""
LEASE = 60.0
"""Seconds after which what a dead mover had leased is free again."""
LOOK_AGAIN = 1.0
"""Seconds between two looks at what is in flight, at most."""

__all__ = ["MoveProgress", "Newer", "QueueMove", "QueueMover"]


class MoveProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far the move of a queue is."""

    queue: str
    moved: int
    """How many items have been moved so far."""
    left: int
    """How many were left in the source when it was last counted, less what has gone since."""


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
    """Over all that was moved: key, kind, value and error, in any order."""
    target_checksum: str = ""
    """Over what was read back from the target."""

    @property
    def moved(self) -> int:
        """How many items were moved, in all states."""
        return self.available + self.scheduled + self.buried + self.results


class Note(msgspec.Struct):
    """What a move has to know about the one before, should that have been interrupted."""

    nonce: str = ""
    """Tells the store in which it is noted from all others."""
    buried: list[int] = []
    """Items that may have been copied and not removed."""


class QueueMover:
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
        self._arrivals = Arrivals(target, queue, newer)
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
            superseded=self._arrivals.superseded,
            left=self.left,
            verified=self._arrivals.verified,
            source_checksum=f"{self._checksum:032x}",
            target_checksum=f"{self._arrivals.checksum:032x}",
        )

    async def run(self, wait: float | None) -> None:
        """Move what there is, and wait at most `wait` seconds for what is in flight."""
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
            # Whoever goes on need not wait for the lease to end.
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

    # One mover at a time

    async def _begin(self) -> None:
        """Wait for any other mover of the queue to end, or to be dead for long enough."""
        key = self._queue
        fresh = msgspec.json.encode(Note())
        loop = asyncio.get_running_loop()

        def work(items: Sequence[StoredItem]) -> list[Put | Change]:
            # What an interrupted move has noted stays.
            return [] if items else [Put(MOVES, ((key, fresh),))]

        while self._lock is None:
            try:
                await self._source.edit(MOVES, work, keys=[key])
            except ValueError:
                # It can hold no other queue than its own. So nobody is kept from a second move.
                self._ahead = time.time() - loop.time()
                return
            claim = Claim(((MOVES, 1),), 1, key, LEASE)
            for claimed in (await self._source.claim([claim]))[0]:
                self._lock = claimed
                self._renewed = loop.time()
                self._ahead = (claimed.expires_at or 0.0) - LEASE - self._renewed
                note = msgspec.json.decode(claimed.value, type=Note)
                self._under_way = frozenset(note.buried)
            if self._lock is None:
                await asyncio.sleep(LOOK_AGAIN)
        await self._note(())
        for item in (await self._target.look(MOVES, [key]))[0]:
            if self._nonce.encode() in item.value:
                raise ValueError("source and target are the same store")

    async def _note(self, numbers: Iterable[int]) -> None:
        """Note which buried items are copied next, besides those that may have been before."""
        if self._lock is not None:
            note = Note(self._nonce, sorted({*numbers, *self._under_way}))
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

    def _records(self, items: Iterable[Claimed | StoredItem]) -> list[Record]:
        """Those with one deadline are put together: so one moment is now for all of them."""
        now = self._now()
        return [
            Record(
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
                await self._arrivals.add(records)
                total += await self._remove_claimed(claimed, records)
            except BaseException:
                # Whoever consumes from the source need not wait for the leases to end.
                await asyncio.shield(self._give_back(claimed))
                raise

    async def _give_back(self, claimed: Sequence[Claimed]) -> None:
        releases = [Release(item.queue, item.key, item.token, undo=True) for item in claimed]
        try:
            await self._source.settle(releases)
        except LeasedKeyQError:
            return  # they are free again when their leases have ended

    async def _remove_claimed(self, claimed: Sequence[Claimed], records: Sequence[Record]) -> int:
        """Remove from the source what was copied as it was, and give the rest back."""
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
                    # Somebody has put another value meanwhile: that is moved next.
                    changed.add(item.key)
                    changes.append(Release(item.queue, item.key, item.token, undo=True))
            return changes

        await self._source.edit(self._queue, work, keys=[*by_key])
        return await self._account("available", records, copied, changed)

    async def _account(
        self, part: str, records: Sequence[Record], copied: set[str], changed: set[str]
    ) -> int:
        """Count what was moved, and take back what the source does not have any more.

        Returns how many have left the source or are to be looked at again.
        """
        gone = [record for record in records if record.key not in copied | changed]
        if gone:
            await self._arrivals.withdraw(gone)
        self._arrivals.changed = changed
        self._arrivals.confirm(copied)
        moved = self._arrivals.kept([record for record in records if record.key in copied])
        self._checksum = checksum(self._checksum, moved)
        self._tell(part, len(moved))
        return len(copied) + len(changed)

    def _tell(self, part: str, count: int) -> None:
        self._moved[part] = self._moved.get(part, 0) + count
        if self._progress is not None and count:
            moved = sum(self._moved.values())
            left = max(0, self._expected - moved)
            self._progress(MoveProgress(queue=self._queue, moved=moved, left=left))

    # Scheduled items

    async def _move_scheduled(self) -> int:
        total = 0
        cursor: str | None = None
        while True:
            await self._renew()
            items, cursor = await self._page("scheduled", cursor)
            if items:
                records = self._records(items)
                for record, item in zip(records, items, strict=True):
                    record.delay = self._remaining(item.due)
                await self._arrivals.add(records)
                total += await self._remove_scheduled(items, records)
            if cursor is None:
                return total

    async def _page(
        self, state: StoredState, cursor: str | None
    ) -> tuple[tuple[StoredItem, ...], str | None]:
        page = await self._source.browse(
            self._queue, states=(state,), cursor=cursor, limit=self._batch
        )
        return page.items, page.cursor

    async def _remove_scheduled(
        self, scheduled: Sequence[StoredItem], records: Sequence[Record]
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
        return await self._account("scheduled", records, copied, changed)

    # Buried items and results

    async def _move_buried(self) -> int:
        total = 0
        cursor: str | None = None
        while True:
            await self._renew()
            items, cursor = await self._page("buried", cursor)
            if items:
                await self._note([item.id for item in items])
                records = [
                    Record(item.key, item.value, item.kind, item.priority, item.error, item.id)
                    for item in items
                ]
                moved = await self._arrivals.bury(records, self._under_way)
                discards = [Discard(self._queue, record.id) for record in moved]
                if discards:
                    await self._source.settle(discards)
                self._checksum = checksum(self._checksum, moved)
                self._tell("buried", len(moved))
                total += len(moved)
            if cursor is None:
                return total

    async def _move_results(self) -> None:
        self._arrivals.begin_results()
        cursor: str | None = None
        while True:
            await self._renew()
            items, cursor = await self._page("done", cursor)
            if items:
                records = [
                    Record(
                        item.key,
                        item.value,
                        item.kind,
                        item.priority,
                        delay=self._remaining(item.due),
                        outcome=item.outcome,
                    )
                    for item in items
                ]
                moved = await self._arrivals.keep([one for one in records if one.delay])
                self._checksum = checksum(self._checksum, moved)
                self._tell("results", len(moved))
            if cursor is None:
                return


def unfinished(counts: Counts) -> int:
    """How many items of a queue are not done."""
    return counts.available + counts.scheduled + counts.in_flight + counts.buried
