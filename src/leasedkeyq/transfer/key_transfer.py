"""The values of keys that are moved: how they get into the target, and are read back there.

A key is copied as a whole: its head with `KeyTransfer.add`, its line behind that with
`KeyTransfer.append`, page by page. Only then the source gives it up, all at once, so that no value
of it can be handed out in both stores, nor before another that was put earlier.

**The mark.** A move that is interrupted leaves values in both stores. Of equal values nobody could
tell which ones are copies. So each step that puts values into the target notes there, in the same
step, how far the line of each key of the batch has been copied. The note is a result of the queue,
under a key of its own, and is gone when the move has ended.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, Literal, TypeAlias, cast

import msgspec
from msgspec.structs import replace

from leasedkeyq.errors import LimitExceededError
from leasedkeyq.model.admission import refusal_of
from leasedkeyq.model.requests import (
    Answer,
    Cancel,
    Change,
    Discard,
    EditWork,
    Placed,
    Put,
    StoredItem,
)
from leasedkeyq.stores.store import LIVE_STATES, Store
from leasedkeyq.transfer.item_record import ItemRecord, Tally
from leasedkeyq.types import PutPolicy

Newer: TypeAlias = Literal["source", "target"]
"""Where a key that waits in both stores was put last, if only its newest value counts."""

MARK: Final = "leasedkeyq.moving"
"""The key of the mark. It is a kind, too: no lane takes such an item."""
MARK_KEPT: Final = 7 * 86400.0
"""Seconds after an interruption in which the next move knows what was copied."""


class Mark(msgspec.Struct):
    """How far keys have been copied."""

    nonce: str
    """Of the move that has copied them."""
    copied: dict[str, tuple[int, str]] = {}
    """By key: the id in the source of the last value that was copied, and its digest."""


class Copy(msgspec.Struct):
    """A value of the source that is in the target, or gives way to what is there."""

    id: int
    """In the source."""
    digest: int
    signature: int
    target: int = 0
    """Its id in the target. 0 where that is not known: an interrupted move has brought it."""
    superseded: bool = False
    read_back: bool = False


def check_records(target: Store, queue: str, records: Iterable[ItemRecord]) -> None:
    """See that the target takes records.

    Raises:
        LimitExceededError: It does not take one of them.
    """
    for record in records:
        put = Put(queue, ((record.key, record.value),), kind=record.kind)
        refusal = refusal_of(put, target.limits)
        if refusal is not None:
            refusal.add_note(f"leasedkeyq: the target refuses an item of queue {queue!r}")
            raise refusal


class Requests:
    """The changes of an edit of the target, as few as they can be, and whose copies they make."""

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._changes: list[Put | Cancel] = []
        """A `Put` is without its items, so that those can be added."""
        self._pairs: list[list[tuple[str, bytes]]] = []
        self._copies: list[list[Copy]] = []

    @property
    def changes(self) -> list[Put | Change]:
        """The requests, in order."""
        return [
            replace(change, items=tuple(pairs)) if isinstance(change, Put) else change
            for change, pairs in zip(self._changes, self._pairs, strict=True)
        ]

    def put(
        self, record: ItemRecord, copy: Copy, policy: PutPolicy, there: Sequence[StoredItem] = ()
    ) -> None:
        """Put a record, where `there` are the values that it may replace."""
        one = Put(
            self._queue,
            (),
            policy,
            record.priority,
            # An item that is scheduled in the target must not wait longer than in the source.
            0.0 if record.delay is None and there else record.delay,
            kind=record.kind,
            deadline=record.deadline,
        )
        if not self._changes or self._changes[-1] != one:
            self._add(one)
        self._pairs[-1].append((record.key, record.value))
        self._copies[-1].append(copy)

    def cancel(self, item: StoredItem) -> None:
        """Take a value out of the target."""
        self._add(Cancel(self._queue, item.key, id=item.id))

    def _add(self, change: Put | Cancel) -> None:
        self._changes.append(change)
        self._pairs.append([])
        self._copies.append([])

    def place(self, answers: Sequence[Answer]) -> None:
        """Note the ids that the copies have got; the answers may be to more requests."""
        for change, copies, answer in zip(self._changes, self._copies, answers, strict=False):
            if isinstance(change, Put):
                for copy, placed in zip(copies, cast("tuple[Placed, ...]", answer), strict=True):
                    copy.target = placed.id


class KeyTransfer:
    """Copies the values of keys into the target, and reads them back.

    Attributes:
        changed: Heads that were copied, and have changed in the source meanwhile: by key the id of
            the copy in the target.
        superseded: How many were not put, as the target had something newer.
        read_back: Those that were read back.
    """

    def __init__(self, target: Store, queue: str, newer: Newer | None, read_back: Tally) -> None:
        self.changed: dict[str, int] = {}
        self.superseded = 0
        self.read_back = read_back
        self._target = target
        self._queue = queue
        self._newer = newer
        self._marks = False
        """Whether the target can keep a mark."""
        self._marked = False
        """Whether it may have one."""
        self._mark = Mark("")
        self._arrived: dict[str, tuple[int, str]] = {}
        """What an interrupted move has copied, as far as it has not left the source."""

    # The mark

    async def begin(self, nonce: str, earlier: Collection[str]) -> None:
        """Find out what the moves with the nonces `earlier`, which were interrupted, have copied.

        Without a nonce, the source cannot tell which moves there were, and no mark is made.
        """
        self._mark = Mark(nonce)

        def work(items: Sequence[StoredItem]) -> list[Put | Change]:
            for item in items:
                if item.state == "done":
                    mark = msgspec.json.decode(item.value, type=Mark)
                    self._arrived = mark.copied if mark.nonce in earlier else {}
            return self._marking(items)

        self._marks = bool(nonce)
        if self._marks:
            try:
                await self._target.edit(self._queue, work, keys=[MARK])
            except (ValueError, LimitExceededError):
                # It keeps other values only, as a repository does, or shorter keys.
                self._marks = self._marked = False

    def begin_batch(self) -> None:
        """What was copied so far has left the source, or is taken back."""
        self._mark.copied = {}

    async def forget(self) -> None:
        """Nothing is in both stores now: take the mark away."""
        if self._marked:
            await self._target.edit(self._queue, _discard, keys=[MARK])
            self._marked = False

    def _marking(self, items: Sequence[StoredItem]) -> list[Put | Change]:
        """Replaces the mark, which is among `items`."""
        if not self._marks:
            return []
        copied = self._arrived | {
            key: last
            for key, last in self._mark.copied.items()
            # Of a line that has arrived, the head alone may have been looked at again.
            if last[0] >= self._arrived.get(key, last)[0]
        }
        mark = Mark(self._mark.nonce, copied)
        note = msgspec.json.encode(mark)
        if len(note) > self._target.limits.value_size:
            return []
        self._marked = True
        put = Put(self._queue, ((MARK, b"null"),), kind=MARK)
        return [*_discard(items), put, Cancel(self._queue, MARK, note, MARK_KEPT)]

    def _has_arrived(self, record: ItemRecord, digest: int) -> bool:
        last, last_digest = self._arrived.get(record.key, (0, ""))
        return record.id < last or (record.id == last and f"{digest:x}" == last_digest)

    # Copying

    async def add(self, records: Sequence[ItemRecord]) -> list[Copy]:
        """Put the heads of keys, in their order, as available or scheduled items.

        Raises:
            LimitExceededError: The target does not take one of them. None was put.
        """
        copies = [_copy(record) for record in records]
        requests = Requests(self._queue)

        def work(items: Sequence[StoredItem]) -> list[Put | Change]:
            there: defaultdict[str, list[StoredItem]] = defaultdict(list)
            for item in items:
                if item.state in LIVE_STATES:
                    there[item.key].append(item)
            for record, copy in zip(records, copies, strict=True):
                self._plan(record, copy, there[record.key], requests)
            return [*requests.changes, *self._marking([i for i in items if i.key == MARK])]

        await self._put(records, copies, requests, work, [record.key for record in records])
        return copies

    async def append(self, records: Sequence[ItemRecord]) -> list[Copy]:
        """Put values at the end of the line of their key. Raises as `add` does."""
        copies = [_copy(record) for record in records]
        requests = Requests(self._queue)
        for record, copy in zip(records, copies, strict=True):
            if not self._has_arrived(record, copy.digest):
                requests.put(record, copy, "append")

        def work(items: Sequence[StoredItem]) -> list[Put | Change]:
            return [*requests.changes, *self._marking(items)]

        await self._put(records, copies, requests, work, [])
        return copies

    async def _put(
        self,
        records: Sequence[ItemRecord],
        copies: Sequence[Copy],
        requests: Requests,
        work: EditWork,
        keys: Sequence[str],
    ) -> None:
        check_records(self._target, self._queue, records)
        for record, copy in zip(records, copies, strict=True):
            self._mark.copied[record.key] = (record.id, f"{copy.digest:x}")
        answers = await self._target.edit(self._queue, work, keys=[*dict.fromkeys((*keys, MARK))])
        requests.place(answers)
        await self._read_back(records, copies)

    def _plan(
        self, record: ItemRecord, copy: Copy, there: Sequence[StoredItem], requests: Requests
    ) -> None:
        """Decide how a head gets into the target, where `there` are the values of its key."""
        old = self.changed.pop(record.key, None)
        mine = next((item for item in there if item.id == old and _waits(item)), None)
        newest = there[-1] if there else None
        if mine is not None and len(there) == 1:
            requests.put(record, copy, "update", there)
        elif mine is not None:
            requests.cancel(mine)
            requests.put(record, copy, "append")
        elif self._has_arrived(record, copy.digest):
            pass
        elif newest is not None and _waits(newest) and self._is_copy(newest, record):
            copy.target = newest.id
        elif newest is None or record.lined or len(there) > 1 or self._newer is None:
            # A key that has a line in one of the stores is one of which every value counts.
            requests.put(record, copy, "append")
        elif self._newer == "target":
            copy.superseded = True
        else:
            # One that is leased may be an older one, however equal: so this one goes behind it.
            requests.put(record, copy, "update" if _waits(newest) else "buffer", there)

    def _is_copy(self, item: StoredItem, record: ItemRecord) -> bool:
        """Whether an interrupted move may have brought a record, where there is no mark to tell."""
        if self._newer is None and self._marks:
            return False
        return not record.lined and (item.value, item.kind) == (record.value, record.kind)

    async def _read_back(self, records: Sequence[ItemRecord], copies: Sequence[Copy]) -> None:
        """Look in the target for what was copied."""
        unknown: defaultdict[str, list[Copy]] = defaultdict(list)
        behind: dict[str, dict[int, Copy]] = {}
        for record, copy in zip(records, copies, strict=True):
            if copy.target:
                behind.setdefault(record.key, {})[copy.target] = copy
            elif not copy.superseded:
                unknown[record.key].append(copy)
        heads = [key for key, found in behind.items() if len(found) == 1]
        looked = await self._target.look(self._queue, heads) if heads else []
        for key, items in zip(heads, looked, strict=True):
            [(number, copy)] = behind[key].items()
            copy.read_back = any(i.id == number and _digest(i) == copy.digest for i in items)
            # Maybe it stands further back in the line; else a consumer has taken it.
            if copy.read_back or not items or items[-1].id >= number:
                del behind[key]
        for key, wanted in behind.items():
            await self._read_line(key, wanted)
        for key, missing in unknown.items():
            await self._find_in_line(key, missing)

    async def _read_line(self, key: str, copies: Mapping[int, Copy]) -> None:
        """Look for copies whose ids are known: they stand behind each other."""
        after = str(min(copies) - 1)
        page = await self._target.line(self._queue, key, cursor=after, limit=len(copies))
        for item in page.items:
            copy = copies.get(item.id)
            if copy is not None:
                copy.read_back = _digest(item) == copy.digest

    async def _find_in_line(self, key: str, copies: Sequence[Copy]) -> None:
        """Look for copies of an interrupted move, anywhere in the line of their key."""
        found: Counter[int] = Counter()
        cursor: str | None = None
        while True:
            page = await self._target.line(self._queue, key, cursor=cursor, limit=1000)
            found.update(map(_digest, page.items))
            cursor = page.cursor
            if cursor is None:
                break
        for copy in copies:
            copy.read_back = found[copy.digest] > 0
            found[copy.digest] -= 1

    # When the source has answered

    def confirm(self, key: str, copies: Iterable[Copy]) -> None:
        """These values of a key have left the source."""
        self._arrived.pop(key, None)
        self.superseded += sum(copy.superseded for copy in copies)
        self.read_back.add(copy.digest for copy in copies if copy.read_back)

    async def withdraw(self, copies: Mapping[str, Sequence[Copy]]) -> None:
        """Take copies back, by key: the source does not have these values any more, or others.

        They were cancelled or updated there, or a lease has ended and a consumer works on it. A
        copy that a consumer of the target works on stays.
        """
        mine = {copy.target: copy for found in copies.values() for copy in found if copy.target}

        def work(items: Sequence[StoredItem]) -> list[Put | Change]:
            # The last one first: so none is handed out that is to go.
            changes: list[Put | Change] = [
                Cancel(self._queue, item.key, id=item.id)
                for item in reversed(items)
                if item.id in mine and _waits(item) and _digest(item) == mine[item.id].digest
            ]
            return [*changes, *self._marking([item for item in items if item.key == MARK])]

        for key, found in copies.items():
            # From the first of them on, the source may have what is not in the target.
            self._arrived.pop(key, None)
            self._mark.copied[key] = (min(copy.id for copy in found), "")
        if mine:
            await self._target.edit(self._queue, work, keys=[*copies, MARK])


def _copy(record: ItemRecord) -> Copy:
    return Copy(record.id, record.digest(), record.signature)


def _waits(item: StoredItem) -> bool:
    return item.state != "in_flight"


def _digest(item: StoredItem) -> int:
    return ItemRecord(item.key, item.value, item.kind, item.priority).digest()


def _discard(items: Sequence[StoredItem]) -> list[Put | Change]:
    """Forgets the mark."""
    return [Discard(item.queue, item.id) for item in items if item.state == "done"]
