"""One queue on its way from a store to another."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence

import msgspec

from leasedkeyq.errors import LeasedKeyQError, StoreError
from leasedkeyq.model.requests import (
    Ack,
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
from leasedkeyq.stores.system.holder import this_process
from leasedkeyq.stores.take_back import take_back
from leasedkeyq.transfer.ended_transfer import LOOK_AGAIN, EndedTransfer
from leasedkeyq.transfer.item_record import ItemRecord, Tally
from leasedkeyq.transfer.key_copies import (
    ClaimedKey,
    HeldKey,
    KeyCopies,
    Removal,
    ScheduledKey,
    signature,
)
from leasedkeyq.transfer.key_transfer import MARK, Copy, KeyTransfer, Newer

OWN_QUEUES = "leasedkeyq."
"""How the names of the queues begin in which leasedkeyq keeps its own affairs."""
MOVES = "leasedkeyq.moves"
"""The queue in the source with an item for each queue that is being moved."""
LEASE = 60.0
"""Seconds after which the items that a dead move had leased are free again."""
SOON = 5.0
"""A scheduled head that is due within so many seconds is not moved with its line until it is.

Nobody can lease a scheduled item, so it might be handed out in the source while it is copied.
"""
INTERRUPTIONS = 20
"""How many moves in a row may be interrupted so that the next one knows what they have copied."""

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
    in_line: int = 0
    """Values in the lines of keys, which wait behind another value of their key."""
    buried: int = 0
    results: int = 0
    """How many of them were moved."""
    superseded: int = 0
    """How many were dropped, as the target had a newer value of their key."""
    left: int = 0
    """How many are left in the source: in flight, behind an item that is, or buried while the
    target uses their key, and behind such an item if it holds its key."""
    verified: int = 0
    """How many were read back from the target."""
    source_checksum: str = ""
    """Over all that was moved: key, kind, value, error and outcome, in any order."""
    target_checksum: str = ""
    """Over the items that were read back from the target."""

    @property
    def moved(self) -> int:
        """How many items were moved, in all states."""
        return self.available + self.scheduled + self.in_line + self.buried + self.results


class TransferNote(msgspec.Struct):
    """What an interrupted move tells the next one."""

    nonce: str = ""
    """Tells the store in which it is noted from all others."""
    earlier: list[str] = []
    """The same of moves before, which were interrupted."""
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
        newer: Newer | None,
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
        read_back = Tally()
        self._keys = KeyTransfer(target, queue, newer, read_back)
        self._ended = EndedTransfer(target, queue, read_back)
        self._moved: dict[str, int] = {}
        self._tally = Tally()
        self._claimed: Sequence[Claimed] = ()
        """The items of the source that are leased by this move."""
        self._claims_renewed = 0.0
        self._due_soon = 0
        """How many keys wait until their heads are due, as these are next."""
        self._expected = 0
        self._lock: Claimed | None = None
        self._renewed = 0.0
        self._ahead = 0.0
        """The clock of the source, less that of the event loop."""
        self._earlier: list[str] = []
        """The nonces of moves of this queue that were interrupted."""
        self._under_way: frozenset[int] = frozenset()
        """Buried items that an interrupted move may have copied without removing them."""

    def report(self) -> QueueMove:
        """How it went so far."""
        return QueueMove(
            **self._moved,
            superseded=self._keys.superseded,
            left=self.left,
            verified=self._keys.read_back.count,
            source_checksum=f"{self._tally.checksum:032x}",
            target_checksum=f"{self._keys.read_back.checksum:032x}",
        )

    async def run(self, wait: float | None) -> None:
        """Move the items, and wait at most `wait` seconds for those in flight."""
        loop = asyncio.get_running_loop()
        changed = asyncio.Event()
        unwatch = self._source.watch(self._queue, changed.set)
        try:
            await self._begin()
            await self._move_results()
            waited = waited_for_due = 0.0
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
                began = loop.time()
                if self._due_soon and waited_for_due < 2 * SOON:
                    await self._pause(changed, SOON)
                    waited_for_due += loop.time() - began
                    continue
                stuck = counts.buried + counts.held
                if self.left == stuck or (wait is not None and waited >= wait):
                    break
                await self._pause(changed, None if wait is None else wait - waited)
                waited += loop.time() - began
            await self._move_results()
            await self._keys.forget()
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
        await self._keys.forget()
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
        earlier: list[str] = []
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
            claim = Claim(((MOVES, 1),), 1, key, LEASE, holder=this_process())
            for claimed in (await self._source.claim([claim]))[0]:
                self._lock = claimed
                self._renewed = loop.time()
                self._ahead = (claimed.expires_at or 0.0) - LEASE - self._renewed
                note = msgspec.json.decode(claimed.value, type=TransferNote)
                self._under_way = frozenset(note.buried)
                earlier = [nonce for nonce in (*note.earlier, note.nonce) if nonce]
            if self._lock is None:
                await asyncio.sleep(LOOK_AGAIN)
        self._earlier = earlier[-INTERRUPTIONS:]
        await self._note(())
        for item in (await self._target.look(MOVES, [key]))[0]:
            if self._nonce.encode() in item.value:
                raise ValueError("source and target are the same store")
        await self._keys.begin(self._nonce, self._earlier)

    async def _note(self, numbers: Iterable[int]) -> None:
        """Note the buried items that are copied next, besides those that may have been copied."""
        if self._lock is not None:
            buried = sorted({*numbers, *self._under_way})
            note = TransferNote(self._nonce, self._earlier, buried)
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

    def _records(
        self, items: Iterable[Claimed | StoredItem], lined: Collection[str] = ()
    ) -> list[ItemRecord]:
        """Records of values. One moment is now for all: equal times can be put together."""
        now = self._now()
        records: list[ItemRecord] = []
        for item in items:
            due = item.due if isinstance(item, StoredItem) else None
            record = ItemRecord(
                item.key,
                item.value,
                item.kind,
                item.priority,
                id=item.id,
                delay=None if due is None else self._remaining(due, now),
                deadline=None if item.deadline is None else self._remaining(item.deadline, now),
                lined=item.key in lined,
                signature=signature(item),
            )
            records.append(record)
        return records

    # Keys: heads and their lines

    async def _move_available(self) -> int:
        total = 0
        while True:
            await self._renew()
            some = ((self._queue, self._batch),)
            claim = Claim(some, self._batch, lease_time=LEASE, holder=this_process())
            claimed = (await self._source.claim([claim]))[0]
            if not claimed:
                return total
            self._claimed, self._claims_renewed = claimed, asyncio.get_running_loop().time()
            try:
                total += await self._move_keys("available", claimed, await self._lined(claimed))
            except BaseException:
                # Consumers of the source need not wait for the leases to end.
                await asyncio.shield(self._take_back(claimed))
                raise
            finally:
                self._claimed = ()

    async def _take_back(self, claimed: Sequence[Claimed]) -> None:
        try:
            await self._source.settle(take_back(claimed))
        except LeasedKeyQError:
            return  # they are free again when their leases have ended

    async def _move_scheduled(self) -> int:
        total = 0
        self._due_soon = 0
        async for items in self._pages("scheduled"):
            lined = await self._lined(items)
            soon = {
                item.key for item in items if item.key in lined and self._remaining(item.due) < SOON
            }
            self._due_soon += len(soon)
            heads = [item for item in items if item.key not in soon]
            total += await self._move_keys("scheduled", heads, lined - soon)
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

    async def _lined(self, heads: Sequence[Claimed | StoredItem]) -> set[str]:
        """The keys of those that have a line."""
        keys = [head.key for head in heads]
        looked = await self._source.look(self._queue, keys)
        return {key for key, found in zip(keys, looked, strict=True) if len(found) > 1}

    async def _move_keys(
        self, part: str, heads: Sequence[Claimed | StoredItem], lined: set[str]
    ) -> int:
        """Copy heads and their lines, and then remove them from the source.

        Returns how many have left the source or are to be looked at again.
        """
        if not heads:
            return 0
        self._keys.begin_batch()
        copies = await self._keys.add(self._records(heads, lined))
        left: dict[str, KeyCopies] = {}
        for head, copy in zip(heads, copies, strict=True):
            if isinstance(head, Claimed):
                left[head.key] = ClaimedKey(head, copy)
            else:
                left[head.key] = ScheduledKey(head, copy)
        total = 0
        while left:
            for key in lined:
                if not await self._copy_line(left[key]):
                    self._due_soon += 1
                    await self._keys.withdraw({key: left.pop(key).copies})
            removal = Removal(left)
            await self._source.edit(self._queue, removal.work, keys=[*left])
            await self._keys.withdraw(removal.withdrawn)
            self._keys.changed |= removal.changed
            for key in removal.removed:
                self._account(part, left[key].copies[:1])
                self._account("in_line", left[key].copies[1:])
                self._keys.confirm(key, left[key].copies)
            total += len(removal.removed) + len(removal.changed)
            left = {key: left[key] for key in removal.grown}
            lined = {*left}
        return total

    async def _copy_line(self, mine: KeyCopies) -> bool:
        """Copy the values behind those of a key that were copied already.

        Returns whether there was time for it: not if the head is due too soon.
        """
        cursor: str | None = str(mine.last)
        while cursor is not None:
            await self._renew()
            await self._renew_claims()
            if mine.due is not None and self._remaining(mine.due) < SOON / 2:
                return False
            page = await self._source.line(self._queue, mine.key, cursor=cursor, limit=self._batch)
            if page.items:
                mine.copies += await self._keys.append(self._records(page.items))
            cursor = page.cursor
        return True

    async def _renew_claims(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._claimed and now - self._claims_renewed > LEASE / 4:
            self._claims_renewed = now
            await self._source.settle(
                [Extend(item.queue, item.key, item.token, LEASE) for item in self._claimed]
            )

    def _account(self, part: str, copies: Sequence[Copy]) -> None:
        """Count the values that were moved, and tell how far the move is."""
        moved = [copy.digest for copy in copies if not copy.superseded]
        self._count_moved(part, moved)

    def _count_moved(self, part: str, digests: Sequence[int]) -> None:
        self._tally.add(digests)
        self._moved[part] = self._moved.get(part, 0) + len(digests)
        if self._progress is not None and digests:
            total = sum(self._moved.values())
            left = max(0, self._expected - total)
            self._progress(MoveProgress(queue=self._queue, moved=total, left=left))

    # Buried items and results

    async def _move_buried(self) -> int:
        total = 0
        async for items in self._pages("buried"):
            await self._note([item.id for item in items])
            records = [
                ItemRecord(
                    item.key,
                    item.value,
                    item.kind,
                    item.priority,
                    item.error,
                    item.id,
                    holds=item.holds,
                    progress=item.progress,
                )
                # One that holds its key must be the last of that.
                for item in sorted(items, key=lambda item: item.holds)
            ]
            moved = await self._ended.bury(records, self._under_way)
            free = [record for record in moved if not record.holds]
            if free:
                await self._source.settle([Discard(self._queue, record.id) for record in free])
            self._count_moved("buried", [record.digest() for record in free])
            total += len(free)
            for record in moved:
                if record.holds:
                    total += await self._move_held(record)
        return total

    async def _move_held(self, record: ItemRecord) -> int:
        """Move the line behind a buried item that holds its key, and then remove both."""
        self._keys.begin_batch()
        held = HeldKey(self._queue, record)
        while True:
            await self._copy_line(held)
            removal = Removal({record.key: held})
            await self._source.edit(self._queue, removal.work, keys=[record.key])
            await self._keys.withdraw(removal.withdrawn)
            if not removal.grown:
                break
        if not removal.removed:
            await self._ended.unbury(record)
            return 0
        self._count_moved("buried", [record.digest()])
        self._account("in_line", held.copies)
        self._keys.confirm(record.key, held.copies)
        return 1 + len(held.copies)

    async def _move_results(self) -> None:
        self._ended.begin_results()
        async for items in self._pages("done"):
            records = [
                ItemRecord(
                    item.key,
                    item.value,
                    item.kind,
                    item.priority,
                    delay=self._remaining(item.due),
                    outcome=item.outcome,
                    progress=item.progress,
                )
                for item in items
                if item.key != MARK
            ]
            moved = await self._ended.keep([one for one in records if one.delay])
            self._count_moved("results", [record.digest() for record in moved])


def unfinished(counts: Counts) -> int:
    """How many items of a queue are not done."""
    waiting = counts.available + counts.scheduled + counts.held
    return waiting + counts.in_flight + counts.buried
