"""The items of a queue in the order of their ids, for listing them page by page."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")

SMALL: Final = 64
_id_of: Any = itemgetter(0)


class IdOrder(Generic[T]):
    """Ids in order, each with where its item is found.

    The order is made at the first listing; from then on `add` tells of new items. Items that are
    gone are left out as they are met, and when they are the majority the order is thrown away. So
    it costs nothing where items are never listed, and O(1) for each item where they are.

    Args:
        items: All ids and where their items are found, in any order.
        is_there: Whether the item of an id is still there.
        count: How many items there are.
    """

    __slots__ = ("_count", "_entries", "_is_there", "_items")

    def __init__(
        self,
        items: Callable[[], Iterable[tuple[int, T]]],
        is_there: Callable[[int, T], bool],
        count: Callable[[], int],
    ) -> None:
        self._items = items
        self._is_there = is_there
        self._count = count
        self._entries: list[tuple[int, T]] | None = None

    def add(self, number: int, where: T) -> None:
        """There is a new item. Its id is above most others."""
        entries = self._entries
        if entries is None:
            return
        if not entries or entries[-1][0] < number:
            entries.append((number, where))
        else:
            at = bisect_left(entries, number, key=_id_of)
            if entries[at][0] == number:
                entries[at] = number, where  # an item that was gone, and is back
            else:
                entries.insert(at, (number, where))
        if len(entries) > 2 * self._count() + SMALL:
            self._entries = None

    def find(self, number: int) -> T | None:
        """Where the item of an id is found."""
        entries = self._ordered()
        at = bisect_left(entries, number, key=_id_of)
        if at < len(entries) and entries[at][0] == number and self._is_there(*entries[at]):
            return entries[at][1]
        return None

    def behind(self, number: int) -> Iterator[tuple[int, T]]:
        """All ids above `number`, in order. Nothing may change until it is exhausted."""
        entries = self._ordered()
        first = start = bisect_right(entries, number, key=_id_of)
        while first < len(entries) and not self._is_there(*entries[first]):
            first += 1
        if first - start > SMALL:
            # The next listing that begins here does not walk over them again.
            del entries[start:first]
            first = start
        for at in range(first, len(entries)):
            if self._is_there(*entries[at]):
                yield entries[at]

    def before(self, number: int | None) -> Iterator[tuple[int, T]]:
        """All ids below `number`, or all, the highest first.

        Nothing may change until it is exhausted.
        """
        entries = self._ordered()
        end = last = len(entries) if number is None else bisect_left(entries, number, key=_id_of)
        while last > 0 and not self._is_there(*entries[last - 1]):
            last -= 1
        if end - last > SMALL:
            del entries[last:end]
        for at in range(last - 1, -1, -1):
            if self._is_there(*entries[at]):
                yield entries[at]

    def _ordered(self) -> list[tuple[int, T]]:
        if self._entries is None:
            self._entries = sorted(self._items(), key=_id_of)
        return self._entries
