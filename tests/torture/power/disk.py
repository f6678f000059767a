"""What may be on a disk after a loss of power.

Certain is what was synced. Of everything else any part may have got there, in any order: whole
writes, single sectors of them, or rubbish where something was to be written.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from random import Random
from typing import NamedTuple, TypeAlias, TypeVar

SECTOR = 512
Op = TypeVar("Op")


class Write(NamedTuple):
    file: int
    offset: int
    data: bytes


class Truncate(NamedTuple):
    file: int
    size: int


class Sync(NamedTuple):
    file: int


class Name(NamedTuple):
    """A name is given to a file, or taken away."""

    name: str
    file: int | None


class Names(NamedTuple):
    """Several names change, all at once or none of them: a rename is such a step."""

    names: tuple[Name, ...]


class SyncFolder(NamedTuple):
    pass


Change: TypeAlias = Write | Truncate
Step: TypeAlias = Change | Sync | Name | Names | SyncFolder


class Disk:
    """Follows the steps of a program, and loses power as often as asked.

    With `syncs` or `folder_syncs` off, it only says that it has synced.
    """

    def __init__(
        self, files: Mapping[str, bytes], *, syncs: bool = True, folder_syncs: bool = True
    ) -> None:
        self._syncs = syncs
        self._folder_syncs = folder_syncs
        self._names = {name: number for number, name in enumerate(files)}
        self._contents = {number: bytearray(data) for number, data in enumerate(files.values())}
        self._changes: dict[int, list[Change]] = {}
        self._renames: list[Names] = []

    def do(self, step: Step) -> None:
        if isinstance(step, Write | Truncate):
            self._changes.setdefault(step.file, []).append(step)
        elif isinstance(step, Name):
            self._renames.append(Names((step,)))
        elif isinstance(step, Names):
            self._renames.append(step)
        elif isinstance(step, Sync):
            if self._syncs:
                changes = self._changes.pop(step.file, [])
                _change(self._contents.setdefault(step.file, bytearray()), changes)
        elif self._folder_syncs:
            _rename(self._names, self._renames)
            self._renames = []

    def least(self) -> dict[str, bytes]:
        """Nothing but what is certain."""
        return {name: bytes(self._contents.get(file, b"")) for name, file in self._names.items()}

    def most(self, *, names: bool) -> dict[str, bytes]:
        """All that was written, as after the end of a process; or all but the names."""
        found = dict(self._names)
        if names:
            _rename(found, self._renames)
        return {
            name: self._content(file, self._changes.get(file, ())) for name, file in found.items()
        }

    def any(self, dice: Random) -> dict[str, bytes]:
        """Something in between."""
        names = dict(self._names)
        _rename(names, dice.choice((_all, _some))(dice, self._renames))
        return {
            name: self._content(file, dice.choice(FATES)(dice, self._changes.get(file, ())))
            for name, file in names.items()
        }

    def outcome(self, dice: Random, number: int) -> dict[str, bytes]:
        """The number-th outcome: first the ends, then anything in between."""
        if number == 0:
            return self.least()
        if number in (1, 2):
            return self.most(names=number == 1)
        return self.any(dice)

    def _content(self, file: int, changes: Iterable[Change]) -> bytes:
        content = bytearray(self._contents.get(file, b""))
        _change(content, changes)
        return bytes(content)


def _rename(names: dict[str, int], changes: Iterable[Names]) -> None:
    for change in changes:
        for name, file in change.names:
            if file is None:
                names.pop(name, None)
            else:
                names[name] = file


def _change(content: bytearray, changes: Iterable[Change]) -> None:
    for change in changes:
        if isinstance(change, Truncate):
            del content[change.size :]
            content.extend(bytes(change.size - len(content)))
        else:
            content.extend(bytes(max(0, change.offset - len(content))))
            content[change.offset : change.offset + len(change.data)] = change.data


# What becomes of the changes of a file that were not synced


def _none(dice: Random, changes: Sequence[Op]) -> Sequence[Op]:
    return ()


def _all(dice: Random, changes: Sequence[Op]) -> Sequence[Op]:
    return changes


def _some(dice: Random, changes: Sequence[Op]) -> Sequence[Op]:
    chance = dice.random()
    return [change for change in changes if dice.random() < chance]


def _last(dice: Random, changes: Sequence[Op]) -> Sequence[Op]:
    return changes[dice.randint(0, len(changes)) :]


def _first(dice: Random, changes: Sequence[Change]) -> Iterator[Change]:
    """The changes up to one that is torn."""
    whole = dice.randint(0, len(changes))
    yield from changes[:whole]
    for torn in changes[whole : whole + 1]:
        if isinstance(torn, Write):
            sectors = list(_sectors(torn))
            yield from sectors[: dice.randint(0, len(sectors))]


def _some_sectors(dice: Random, changes: Sequence[Change]) -> Iterator[Change]:
    chance = dice.random()
    for change in changes:
        for sector in _sectors(change) if isinstance(change, Write) else (change,):
            if dice.random() < chance:
                yield sector


def _rubbish(dice: Random, changes: Sequence[Change]) -> Iterator[Change]:
    """Some sectors were just being written."""
    for change in _some_sectors(dice, changes):
        if isinstance(change, Write) and dice.random() < 0.3:
            yield change._replace(data=dice.randbytes(len(change.data)))
        else:
            yield change


def _sectors(write: Write) -> Iterator[Write]:
    start = write.offset
    end = start + len(write.data)
    while start < end:
        stop = min(end, (start // SECTOR + 1) * SECTOR)
        yield Write(write.file, start, write.data[start - write.offset : stop - write.offset])
        start = stop


FATES = (_none, _all, _some, _last, _first, _some_sectors, _rubbish)
