"""`import_backup`: the items of a backup, into a store of any engine."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from leasedkeyq.checks import storable
from leasedkeyq.errors import LeasedKeyQError, UnstorableError
from leasedkeyq.model.admission import refusal_of
from leasedkeyq.model.requests import Cancel, Change, Discard, Put, StoredItem
from leasedkeyq.stores.codec import UNREADABLE
from leasedkeyq.stores.store import Store
from leasedkeyq.transfer.backup_format import BackupError, BackupItem, BackupReader
from leasedkeyq.transfer.ended_transfer import EndedTransfer
from leasedkeyq.transfer.export import OWN_QUEUES
from leasedkeyq.transfer.item_record import ItemRecord, Tally

MARK: Final = "leasedkeyq.importing"
"""The key and the kind of the result, in each queue, that says how far an import has come."""
IMPORTS: Final = "leasedkeyq.imports"
"""The queue with a result for each backup that was imported as a whole, under its id."""
MARK_KEPT: Final = 7 * 86400.0
"""Seconds for which an import that was interrupted can be taken up again."""
MOST_ITEMS: Final = 500
MOST_BYTES: Final = 4 * 1024 * 1024
"""So many items, and bytes of values, are put at a time."""


class _ImportMark(msgspec.Struct):
    backup: str
    line: int


class ImportReport(msgspec.Struct, kw_only=True):
    """What became of an import.

    Attributes:
        items: How many items the backup has.
        restored: How many were put into the store.
        skipped: How many were there already: put by an import that was interrupted, or schedules
            that the store has.
        refused: Buried items whose keys are in use in the store, and what the store does not take:
            the line in the backup, the queue, the key and the reason, at most 100.
        refused_count: How many these are.
        dry_run: Nothing was changed: `restored` is how many there would be.
    """

    items: int = 0
    restored: int = 0
    skipped: int = 0
    refused: list[tuple[int, str, str, str]] = []
    refused_count: int = 0
    dry_run: bool = False

    def refuse(self, line: int, item: BackupItem, reason: str) -> None:
        """Note an item that is not in the store."""
        self.refused_count += 1
        if len(self.refused) < 100:  # noqa: PLR2004 - as the docstring says
            self.refused.append((line, item.queue, item.key, reason))


def check_backup(lines: Iterable[bytes]) -> int:
    """See that a backup is whole; returns how many items it has.

    Raises:
        BackupError: It is not.
    """
    return sum(1 for _ in BackupReader(lines))


async def import_backup(
    store: Store,
    lines: Iterable[bytes],
    *,
    dry_run: bool = False,
    again: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> ImportReport:
    """Put the items of a backup into a store; what is there already stays.

    It takes a bounded amount of memory. Lines of keys keep their order, and items their priorities,
    kinds, errors, outcomes, and what was left of their delays, deadlines and lifetimes when the
    backup was made. What was in flight is available. Ids, ages, attempts and history begin anew.
    A value of a key that waits in the store goes to the end of its line.

    An import that was interrupted goes on where it was when it is called again with the same
    backup within a week: nothing is put twice. So one that was done does nothing. No consumers
    should run meanwhile: what they took and ended is not put again, but buried items pass through
    the queue for a moment.

    Args:
        store: The store.
        lines: The backup.
        dry_run: Only see that it can be read, and would be taken.
        again: Put all of it, though it was imported before.
        progress: Called with the items that were dealt with, and with those that were expected when
            the backup was begun.

    Raises:
        BackupError: The backup is damaged or was cut. What stands before is in the store; call
            `check_backup` first, if the backup can be read twice.
        StoreError: The store has failed; call it again.
    """
    reader = BackupReader(lines)
    restore = _Restore(store, reader.header.id, dry_run=dry_run)
    await restore.begin(again=again)
    batch: list[tuple[int, BackupItem]] = []
    size = 0
    for item in reader:
        last = batch[-1][1] if batch else None
        full = len(batch) >= MOST_ITEMS or size + len(item.value) > MOST_BYTES
        if last is not None and (full or _part_of(item) != _part_of(last)):
            await restore.put(batch)
            batch, size = [], 0
            if progress is not None:
                progress(restore.report.items, reader.header.expected)
        batch.append((reader.line, item))
        size += len(item.value)
    await restore.put(batch)
    if progress is not None:
        progress(restore.report.items, reader.header.expected)
    await restore.finish()
    return restore.report


def _part_of(item: BackupItem) -> tuple[str, str, bool]:
    """What goes into the store in the same way."""
    ended = item.state if item.state in ("done", "buried") else ""
    return item.queue, ended, item.holds


def _put(queue: str, item: BackupItem) -> Put:
    return Put(
        queue,
        ((item.key, item.content),),
        "append",
        item.priority,
        item.delay,
        kind=item.kind,
        deadline=item.deadline,
    )


class _Restore:
    def __init__(self, store: Store, backup: str, *, dry_run: bool) -> None:
        self.report = ImportReport(dry_run=dry_run)
        self._store = store
        self._backup = backup
        self._complete = False
        """Whether all of it is in the store already."""
        self._ended: dict[str, EndedTransfer] = {}
        self._resumed: dict[str, int] = {}
        """The last line of this backup that is in each queue, when the import began."""

    async def begin(self, *, again: bool) -> None:
        """See whether all of it is there."""
        if self.report.dry_run:
            return
        number: int | None = None
        for item in (
            await self._store.browse(IMPORTS, states=("done",), prefix=self._backup)
        ).items:
            number = item.id
        if number is not None and again:
            await self._store.settle([Discard(IMPORTS, number)])
        else:
            self._complete = number is not None

    async def put(self, batch: Sequence[tuple[int, BackupItem]]) -> None:
        """Put some items of one queue, which all go the same way."""
        if not batch:
            return
        self.report.items += len(batch)
        admitted = [(line, item) for line, item in batch if self._is_admitted(line, item)]
        if not admitted:
            return
        if self.report.dry_run:
            self.report.restored += len(admitted)
            return
        first = admitted[0][1]
        queue = first.queue
        if self._complete:
            self._ended.setdefault(queue, EndedTransfer(self._store, queue, Tally()))
            self.report.skipped += len(admitted)
            return
        if queue not in self._ended:
            self._ended[queue] = EndedTransfer(self._store, queue, Tally())
            self._resumed[queue] = await self._mark_of(queue)
        if first.state == "done":
            await self._keep(queue, admitted)
        elif first.state == "buried":
            await self._bury(queue, admitted)
        else:
            await self._put_live(queue, admitted)

    def _is_admitted(self, line: int, item: BackupItem) -> bool:
        limits = self._store.limits
        value = item.content
        if len(value) > limits.value_size:
            reason = (
                f"its value has {len(value):,} bytes, and the store takes {limits.value_size:,}"
            )
        elif max(len(item.key), len(item.kind), len(item.queue)) > limits.key_length:
            reason = f"a name has more than {limits.key_length} characters"
        elif (refusal := refusal_of(_put(item.queue, item), limits)) is not None:
            reason = str(refusal)
        else:
            return True
        self.report.refuse(line, item, reason)
        return False

    async def _put_live(self, queue: str, batch: Sequence[tuple[int, BackupItem]]) -> None:
        """Put items and how far the import is, in one step: so none is put twice."""
        added = 0

        def work(found: Sequence[StoredItem]) -> list[Put | Change]:
            nonlocal added
            marks = [item for item in found if item.key == MARK]
            done = self._line_in(marks)
            present = {item.key for item in found if item.state != "done"}
            new = [item for line, item in batch if line > done]
            if queue.startswith(OWN_QUEUES):
                # Of these, what the store has stands: a second one would be one too many.
                new = [item for item in new if item.key not in present]
            added = len(new)
            changes: list[Put | Change] = [_put(queue, item) for item in new]
            return [*changes, *self._marking(queue, marks, batch[-1][0])]

        own = queue.startswith(OWN_QUEUES)
        keys = [item.key for _, item in batch] if own else []
        named = [*dict.fromkeys((*keys, MARK))]
        try:
            await self._store.edit(queue, work, keys=named, heads_only=True)
        except UnstorableError as error:
            await self._one_by_one(self._put_live, queue, batch, error)
            return
        self.report.restored += added
        self.report.skipped += len(batch) - added

    async def _one_by_one(
        self,
        put: Callable[[str, Sequence[tuple[int, BackupItem]]], Awaitable[None]],
        queue: str,
        batch: Sequence[tuple[int, BackupItem]],
        error: UnstorableError,
    ) -> None:
        """This store does not take one of a batch, of which nothing was put: find which it is."""
        if len(batch) == 1:
            [(line, item)] = batch
            self.report.refuse(line, item, str(error))
            return
        for one in batch:
            await put(queue, [one])

    async def _bury(self, queue: str, batch: Sequence[tuple[int, BackupItem]]) -> None:
        left = [(line, item) for line, item in batch if line > self._resumed[queue]]
        self.report.skipped += len(batch) - len(left)
        if not left:
            return
        # Since the last mark an import that was interrupted may have buried some of them.
        suspects = frozenset(line for line, _ in left) if self._resumed[queue] else frozenset[int]()
        records = {
            line: ItemRecord(
                item.key,
                item.content,
                item.kind,
                item.priority,
                storable(item.error),
                id=line,
                holds=item.holds,
            )
            for line, item in left
        }
        try:
            moved = await self._ended[queue].bury(list(records.values()), suspects)
        except UnstorableError as error:
            await self._one_by_one(self._bury, queue, left, error)
            return
        except LeasedKeyQError as error:
            if "buried" not in str(error):
                raise
            for line, item in left:
                self.report.refuse(line, item, str(error))
            return
        done = {record.id for record in moved}
        self.report.restored += len(done)
        for line, item in left:
            if line not in done:
                self.report.refuse(line, item, "its key is in use in the store")
        await self._mark(queue, batch[-1][0])

    async def _keep(self, queue: str, batch: Sequence[tuple[int, BackupItem]]) -> None:
        left = [(line, item) for line, item in batch if line > self._resumed[queue]]
        records = [
            ItemRecord(
                item.key,
                item.content,
                item.kind,
                item.priority,
                delay=item.delay,
                outcome=item.outcome,
            )
            for _, item in left
        ]
        # One whose time was over when the backup was made is gone.
        try:
            moved = await self._ended[queue].keep([record for record in records if record.delay])
        except UnstorableError as error:
            await self._one_by_one(self._keep, queue, left, error)
            return
        self.report.restored += len(moved)
        self.report.skipped += len(batch) - len(moved)
        await self._mark(queue, batch[-1][0])

    # How far it is

    def _line_in(self, marks: Iterable[StoredItem]) -> int:
        lines = [0]
        for item in marks:
            if item.state == "done":
                try:
                    mark = msgspec.json.decode(item.value, type=_ImportMark)
                except UNREADABLE:
                    continue
                if mark.backup == self._backup:
                    lines.append(mark.line)
        return max(lines)

    def _marking(self, queue: str, marks: Sequence[StoredItem], line: int) -> list[Put | Change]:
        # An import that is taken up again passes over lines that are behind the mark.
        note = msgspec.json.encode(_ImportMark(self._backup, max(line, self._line_in(marks))))
        return [
            *(Discard(queue, item.id) for item in marks if item.state == "done"),
            Put(queue, ((MARK, b"null"),), kind=MARK),
            Cancel(queue, MARK, note, MARK_KEPT),
        ]

    async def _mark(self, queue: str, line: int) -> None:
        def work(found: Sequence[StoredItem]) -> list[Put | Change]:
            return self._marking(queue, found, line)

        await self._store.edit(queue, work, keys=[MARK])

    async def _mark_of(self, queue: str) -> int:
        found = 0

        def work(items: Sequence[StoredItem]) -> list[Put | Change]:
            nonlocal found
            found = self._line_in(items)
            # Begin with a mark, so that a second import knows that there was a first one.
            return [] if found else self._marking(queue, items, 1)

        await self._store.edit(queue, work, keys=[MARK])
        return found

    async def finish(self) -> None:
        """Note that all is there, and then forget how far each queue was."""
        if self.report.dry_run:
            return
        key = self._backup
        if not self._complete:

            def note(_items: Sequence[StoredItem]) -> list[Put | Change]:
                return [Put(IMPORTS, ((key, b"null"),)), Cancel(IMPORTS, key, b"true", MARK_KEPT)]

            with suppress(ValueError):  # a store that can hold no other queue than its own
                await self._store.edit(IMPORTS, note, keys=[key])

        def work(items: Sequence[StoredItem]) -> list[Put | Change]:
            return [Discard(item.queue, item.id) for item in items if item.state == "done"]

        for queue in self._ended:
            await self._store.edit(queue, work, keys=[MARK])


__all__ = ["BackupError", "ImportReport", "check_backup", "import_backup"]
