"""What was copied of a key, and the edit that removes it from the source if it is still that."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence

from leasedkeyq.model.requests import Ack, Cancel, Change, Claimed, Discard, Put, StoredItem
from leasedkeyq.stores.store import LIVE_STATES
from leasedkeyq.stores.take_back import take_back
from leasedkeyq.transfer.item_record import ItemRecord
from leasedkeyq.transfer.key_transfer import Copy


class KeyCopies(ABC):
    """What was copied of a key, in order.

    Attributes:
        key: The key.
        copies: Of its head, unless that is a buried item, and of its line.
        heads: How many of the copies are those of heads.
        due: When its head comes due, if it is scheduled.
    """

    heads: int = 1
    due: float | None = None

    def __init__(self, queue: str, key: str, number: int, copies: Iterable[Copy]) -> None:
        self.key = key
        self.copies: list[Copy] = list(copies)
        self._queue = queue
        self._number = number
        """The id of the head."""

    @property
    def last(self) -> int:
        """The id of the last value that was copied; before that, of the head."""
        return self.copies[-1].id if self.copies else self._number

    @abstractmethod
    def is_unchanged(self, head: StoredItem) -> bool | None:
        """Whether the head is still what was copied; None if it is not to be removed at all."""

    def removal(self) -> list[Put | Change]:
        """What removes the key, head and line."""
        return [Cancel(self._queue, self.key)]


class ClaimedKey(KeyCopies):
    """A key whose head the move has leased."""

    def __init__(self, head: Claimed, copy: Copy) -> None:
        super().__init__(head.queue, head.key, head.id, [copy])
        self._token = head.token

    def is_unchanged(self, head: StoredItem) -> bool | None:
        """As `KeyCopies.is_unchanged`."""
        if head.state != "in_flight" or head.token != self._token:
            return None
        return signature(head) == self.copies[0].signature

    def removal(self) -> list[Put | Change]:
        """As `KeyCopies.removal`."""
        if len(self.copies) > 1:
            return super().removal()
        return [Ack(self._queue, self.key, self._token)]


class ScheduledKey(KeyCopies):
    """A key whose head waits for its time."""

    def __init__(self, head: StoredItem, copy: Copy) -> None:
        super().__init__(head.queue, head.key, head.id, [copy])
        self.due = head.due

    def is_unchanged(self, head: StoredItem) -> bool | None:
        """As `KeyCopies.is_unchanged`."""
        if head.state not in ("scheduled", "available") or head.id != self._number:
            return None
        same = signature(head) == self.copies[0].signature
        return same and (head.state == "available" or head.due == self.due)


class HeldKey(KeyCopies):
    """A key that is held by a buried item, which is not among its copies."""

    heads = 0

    def __init__(self, queue: str, buried: ItemRecord) -> None:
        super().__init__(queue, buried.key, buried.id, [])

    def is_unchanged(self, head: StoredItem) -> bool | None:
        """As `KeyCopies.is_unchanged`."""
        return True if head.holds and head.id == self._number else None

    def removal(self) -> list[Put | Change]:
        """As `KeyCopies.removal`."""
        return [*super().removal(), Discard(self._queue, self._number)]


class Removal:
    """The edit that removes keys from the source that were copied; and what it finds.

    A key leaves the source as a whole. One that has values which were not copied stays, so that
    nobody gets the next of its line there before the values that are in the target.

    Attributes:
        removed: Keys that are removed.
        changed: Keys whose heads have another value now; they can be moved next. With each, where
            the copy of the head is in the target.
        grown: Keys with values that were not copied, or not as they are now.
        withdrawn: Copies of what the source does not have any more, by key.
    """

    def __init__(self, keys: Mapping[str, KeyCopies]) -> None:
        self.removed: list[str] = []
        self.changed: dict[str, int] = {}
        self.grown: list[str] = []
        self.withdrawn: dict[str, list[Copy]] = {}
        self._keys = keys

    def work(self, items: Sequence[StoredItem]) -> list[Put | Change]:
        """What is to be done, where `items` are what the source has of the keys."""
        found: dict[str, list[StoredItem]] = {key: [] for key in self._keys}
        for item in items:
            if item.state in LIVE_STATES or item.holds:
                found[item.key].append(item)
        changes: list[Put | Change] = []
        for key, values in found.items():
            changes += self._remove(self._keys[key], values)
        return changes

    def _remove(self, mine: KeyCopies, items: Sequence[StoredItem]) -> list[Put | Change]:
        unchanged = mine.is_unchanged(items[0]) if items else None
        if unchanged is None:
            self._withdraw(mine, mine.copies)
            return []
        if not unchanged:
            # Another value was put meanwhile: that is moved next.
            self.changed[mine.key] = mine.copies[0].target
            self._withdraw(mine, mine.copies[mine.heads :])
            return [*take_back(item for item in items if item.state == "in_flight")]
        if self._is_copied(mine, items[1:]):
            self.removed.append(mine.key)
            return mine.removal()
        self.grown.append(mine.key)
        return []

    def _is_copied(self, mine: KeyCopies, line: Sequence[StoredItem]) -> bool:
        """Whether the line is what was copied; if not, what does not fit is no copy any more."""
        there = {item.id for item in line}
        copies = mine.copies[mine.heads :]
        left = [copy for copy in copies if copy.id in there]
        same = 0
        for copy, item in zip(left, line, strict=False):
            if (copy.id, copy.signature) != (item.id, signature(item)):
                break
            same += 1
        self._withdraw(mine, [copy for copy in copies if copy.id not in there] + left[same:])
        mine.copies[mine.heads :] = left[:same]
        return same == len(line)

    def _withdraw(self, mine: KeyCopies, copies: Sequence[Copy]) -> None:
        if copies:
            self.withdrawn.setdefault(mine.key, []).extend(copies)


def signature(item: Claimed | StoredItem) -> int:
    """A number that is another one when a value was updated in the source."""
    due: float | None = None
    if isinstance(item, StoredItem) and item.state in ("buffered", "in_line"):
        due = item.due
    return hash((item.value, item.kind, item.priority, item.deadline, due))
