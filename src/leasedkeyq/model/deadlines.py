"""The available items of a queue that have a deadline, the nearest deadline first."""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Generic, Protocol, TypeAlias, TypeVar

from leasedkeyq.model.items import Item

SMALL = 64


class HasDeadline(Protocol):
    """The value of an item that may have a deadline."""

    @property
    def id(self) -> int:
        """Tells items with the same deadline apart: lower goes first."""
        ...

    @property
    def deadline(self) -> float | None:
        """By when it should be handed out, if that was said."""
        ...


K = TypeVar("K")
D = TypeVar("D", bound=HasDeadline)
DeadlineEntry: TypeAlias = tuple[float, int, int, Item[K, D]]


class Deadlines(Generic[K, D]):
    """A heap of items by their deadlines, then by their ids.

    An item is added whenever it becomes available, and when its deadline changes while it is.
    An item that stops being available leaves its entry behind, which is passed over. The
    entry goes when it surfaces, or when most entries are of that kind.
    """

    __slots__ = ("_added", "_heap")

    def __init__(self) -> None:
        self._heap: list[DeadlineEntry[K, D]] = []
        self._added = 0

    def add(self, item: Item[K, D], available: int) -> None:
        """Add an item, if it is available and has a deadline.

        Args:
            item: The item.
            available: How many items of its queue are available.
        """
        deadline = item.value.deadline
        if deadline is None or not item.available:
            return
        self._added += 1
        heappush(self._heap, (deadline, item.value.id, self._added, item))
        if len(self._heap) > 2 * available + SMALL:
            valid = {entry[3].value.id: entry for entry in self._heap if _is_valid(entry)}
            self._heap = [*valid.values()]
            heapify(self._heap)

    def __bool__(self) -> bool:
        """Whether there may be any."""
        return bool(self._heap)

    def first(self) -> Item[K, D] | None:
        """The item with the nearest deadline, or None."""
        heap = self._heap
        while heap:
            if _is_valid(heap[0]):
                return heap[0][3]
            heappop(heap)
        return None

    def __iter__(self) -> Iterator[Item[K, D]]:
        """All items, the nearest deadline first; the first k of them cost O(k log k).

        Nothing must become available or unavailable meanwhile.
        """
        heap = self._heap
        # Of a heap, the next one is always below one that was seen.
        seen: list[tuple[float, int, int, int]] = [(*heap[0][:3], 0)] if heap else []
        before: Item[K, D] | None = None
        while seen:
            place = heappop(seen)[3]
            entry = heap[place]
            for below in (2 * place + 1, 2 * place + 2):
                if below < len(heap):
                    heappush(seen, (*heap[below][:3], below))
            # An item that came back is there twice, the second time right behind the first.
            if entry[3] is not before and _is_valid(entry):
                before = entry[3]
                yield before


def _is_valid(entry: DeadlineEntry[K, D]) -> bool:
    deadline, number, _, item = entry
    value = item.value
    return item.available and value.id == number and value.deadline == deadline
