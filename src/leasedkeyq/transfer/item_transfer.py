"""Items of a queue that is moved: how they get into the target, and are read back there."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import Literal, TypeAlias

import msgspec

from leasedkeyq.errors import LeasedKeyQError
from leasedkeyq.model.admission import limit_exceeded, refusal_of
from leasedkeyq.model.requests import (
    Ack,
    Bury,
    Cancel,
    Change,
    Claim,
    Claimed,
    Put,
    ResultOutcome,
    StoredItem,
    StoredState,
)
from leasedkeyq.stores.store import Store
from leasedkeyq.stores.take_back import take_back
from leasedkeyq.types import InFlightPolicy

Newer: TypeAlias = Literal["source", "target"]
"""Where a key that waits in both stores was put last."""

HIDDEN = "leasedkeyq.moving"
"""The kind of an item on its way to the buried items or the results: no lane takes it."""
HOLD = 30.0
"""Seconds for which such an item is leased, in which it reaches its place.

That is over before another move takes the place of a dead one.
"""

LOOK_AGAIN = 1.0
"""Seconds between two looks at items in flight, at most."""


class ItemRecord(msgspec.Struct):
    """An item of the source.

    `delay` is what is left of its schedule, or of its lifetime, and `deadline` of the time within
    which it should be leased. `outcome` is that of a result.
    """

    key: str
    value: bytes
    kind: str
    priority: int
    error: str = ""
    id: int = 0
    delay: float | None = None
    deadline: float | None = None
    outcome: ResultOutcome | None = None

    def digest(self) -> int:
        """A number that stands for the key, kind, value, error and outcome of the item."""
        texts = (self.key, self.kind, self.error, self.outcome or "")
        parts = (self.value, *(text.encode() for text in texts))
        sizes = ",".join(str(len(part)) for part in parts)
        return int.from_bytes(blake2b(b"".join((sizes.encode(), *parts)), digest_size=16).digest())


def checksum(total: int, records: Iterable[ItemRecord]) -> int:
    """A checksum with some more records in it, in whatever order they came."""
    return (total + sum(record.digest() for record in records)) % 2**128


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


def _holds(item: StoredItem, record: ItemRecord) -> bool:
    return (item.value, item.kind) == (record.value, record.kind)


class ItemTransfer:
    """Puts records into their place in the target, and reads them back.

    Attributes:
        changed: Keys that were put before, and have changed in the source meanwhile.
        superseded: How many were not put, as the target had something newer.
        verified: How many were read back.
        checksum: Over the records that were read back.
    """

    def __init__(self, target: Store, queue: str, newer: Newer) -> None:
        self.changed: set[str] = set()
        self.superseded = 0
        self.verified = 0
        self.checksum = 0
        self._target = target
        self._queue = queue
        self._newer = newer
        self._put: set[str] = set()
        self._stood: set[str] = set()
        self._read_back: dict[str, ItemRecord] = {}
        self._results_seen: Counter[int] = Counter()

    # Live items

    async def add(self, records: Sequence[ItemRecord]) -> None:
        """Put records, in their order, as available or scheduled items; and read them back.

        Raises:
            LimitExceededError: The target does not take one of them. None was put.
        """
        self._check(records)
        keys = [record.key for record in records]
        put: set[str] = set()
        stood: set[str] = set()

        def work(items: Sequence[StoredItem]) -> list[Put | Change]:
            live = [item for item in items if item.state not in ("buried", "done")]
            leased = {item.key: item for item in live if item.state == "in_flight"}
            waiting = {item.key: item for item in live if item.state != "in_flight"}
            puts: list[tuple[ItemRecord, InFlightPolicy]] = []
            for record in records:
                there = waiting.get(record.key)
                ours = there is not None and record.key in self.changed
                if there is not None and not ours and _holds(there, record):
                    continue  # an interrupted move has brought it already
                # One that is leased may be an older one, however equal: so this one goes behind it.
                elsewhere = (there or leased.get(record.key)) is not None
                if elsewhere and not ours and self._newer == "target":
                    stood.add(record.key)
                    continue
                put.add(record.key)
                puts.append((record, "buffer" if record.key in leased else "update"))
            return [*self._puts(puts, waiting)]

        await self._target.edit(self._queue, work, keys=keys)
        self._put, self._stood = put, stood
        found = await self._target.look(self._queue, keys)
        self._read_back = {
            record.key: ItemRecord(record.key, item.value, item.kind, item.priority)
            for record, items in zip(records, found, strict=True)
            for item in items
            if _holds(item, record)
        }

    def _puts(
        self, records: Sequence[tuple[ItemRecord, InFlightPolicy]], waiting: dict[str, StoredItem]
    ) -> list[Put]:
        """As few requests as they can be put with."""
        puts: list[Put] = []
        for record, policy in records:
            # An item that is scheduled in the target must not wait longer than it did here.
            delay = 0.0 if record.delay is None and record.key in waiting else record.delay
            one = Put(
                self._queue,
                ((record.key, record.value),),
                policy,
                record.priority,
                delay,
                kind=record.kind,
                deadline=record.deadline,
            )
            if puts and msgspec.structs.replace(puts[-1], items=one.items) == one:
                puts[-1] = msgspec.structs.replace(one, items=puts[-1].items + one.items)
            else:
                puts.append(one)
        return puts

    def _check(self, records: Sequence[ItemRecord]) -> None:
        for record in records:
            put = Put(self._queue, ((record.key, record.value),), kind=record.kind)
            refusal = refusal_of(put, self._target.limits)
            if refusal is not None:
                refusal.add_note(f"leasedkeyq: the target refuses an item of queue {self._queue!r}")
                raise refusal

    def confirm(self, keys: set[str]) -> None:
        """These records of the last call of `add` have left the source."""
        self.superseded += len(self._stood & keys)
        read = [record for key, record in self._read_back.items() if key in keys]
        self._count(read)

    def kept(self, records: Sequence[ItemRecord]) -> list[ItemRecord]:
        """The records of the last call of `add` that are in the target now."""
        return [record for record in records if record.key not in self._stood]

    def _count(self, read: Sequence[ItemRecord]) -> None:
        self.verified += len(read)
        self.checksum = checksum(self.checksum, read)

    async def withdraw(self, records: Sequence[ItemRecord]) -> None:
        """Take records of the last call of `add` back: the source does not have them any more.

        They were cancelled there, or their leases have ended and a consumer works on them.
        """
        mine = {record.key: record for record in records if record.key in self._put}

        def work(items: Sequence[StoredItem]) -> list[Put | Change]:
            return [
                Cancel(self._queue, item.key)
                for item in items
                if item.state in ("available", "scheduled") and _holds(item, mine[item.key])
            ]

        if mine:
            await self._target.edit(self._queue, work, keys=[*mine])

    # Buried items and results

    async def bury(
        self, records: Sequence[ItemRecord], under_way: frozenset[int]
    ) -> list[ItemRecord]:
        """Add records to the buried items; returns those that are there now.

        The others wait: their keys are in use in the target. Of the records whose ids are
        `under_way`, some may have been buried by a move that was interrupted.

        Raises:
            LimitExceededError: There would be too many.
        """
        self._check(records)
        await self._check_room(len(records))
        suspects = [record for record in records if record.id in under_way]
        moved = _equal(suspects, await self._read([record.key for record in suspects], "buried"))
        done = {record.id for record in moved}
        left = [record for record in records if record.id not in done]
        moved += await self._place(left, _burial)
        self._count(await self._matching(moved, "buried"))
        return moved

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
        self._check(records)
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
        self._count(await self._matching(moved, "done"))
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
            buffered = {item.key for item in items if item.state == "buffered"}
            for item in items:
                record, lease = records[item.key], leases[item.key]
                if item.state != "in_flight" or item.token != lease.token:
                    continue
                # A value that was put under the key meanwhile is for the consumers.
                if item.kind != HIDDEN:
                    changes += take_back([item])
                elif item.key in buffered:
                    changes.append(Cancel(item.queue, item.key, id=item.id))
                else:
                    settled.append(record)
                    pair = ((item.key, record.value),)
                    changes += (Put(item.queue, pair, kind=record.kind), change(record, lease))
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
            live = {item.key: item for item in items if item.state not in ("buried", "done")}
            puts: list[Put | Change] = []
            for key, record in records.items():
                item = live.get(key)
                if item is None:
                    pair = ((key, record.value),)
                    puts.append(Put(self._queue, pair, "reject", record.priority, kind=HIDDEN))
                if item is None or item.kind == HIDDEN:
                    free.append(record)
            return puts

        await self._target.edit(self._queue, work, keys=[*records])
        claims = [Claim(((self._queue, 1),), 1, record.key, HOLD, (HIDDEN,)) for record in free]
        answers = await self._target.claim(claims) if claims else []
        leases = {lease.key: lease for answer in answers for lease in answer}
        return leases, [record.key for record in free if record.key not in leases]

    async def _read(self, keys: Sequence[str], state: StoredState) -> list[ItemRecord]:
        """The items of the target with these keys in a state."""
        found: list[ItemRecord] = []

        def work(items: Sequence[StoredItem]) -> list[Put | Change]:
            found.extend(
                ItemRecord(
                    item.key,
                    item.value,
                    item.kind,
                    item.priority,
                    item.error,
                    outcome=item.outcome,
                )
                for item in items
                if item.state == state
            )
            return []

        if keys:
            await self._target.edit(self._queue, work, keys=[*dict.fromkeys(keys)])
        return found

    async def _matching(
        self, records: Sequence[ItemRecord], state: StoredState
    ) -> list[ItemRecord]:
        """The items of the target that are equal to `records`."""
        return _equal(await self._read([record.key for record in records], state), records)


def _burial(record: ItemRecord, lease: Claimed) -> Change:
    return Bury(lease.queue, lease.key, lease.token, record.error)


def _result(record: ItemRecord, lease: Claimed) -> Change:
    keep, outcome = record.delay or 0.0, record.outcome or "completed"
    return Ack(lease.queue, lease.key, lease.token, record.value, keep, outcome)
