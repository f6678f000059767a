"""The available items of a queue, in the order in which they are handed out."""

import heapq
from collections.abc import Iterator
from typing import Any, Generic, TypeVar, cast

from leasedkeyq.model.items import Item
from leasedkeyq.model.linkedlist import DoublyLinkedList

K = TypeVar("K")
V = TypeVar("V")

SMALL = 64


class ReadyItems(Generic[K, V]):
    """Higher priority first, then first in, first out.

    One list per priority that is in use. Priority 0, which most queues never leave, has its list
    at hand; the others are found through a heap. An operation costs O(1) for any number of items,
    and O(log p) for p priorities in use.

    Attributes:
        normal: The items of priority 0.
        others: The lists of the other priorities; none of them is empty.
        back: The position of the last item that was appended.
    """

    __slots__ = ("_front", "_heap", "_others_size", "_restored", "back", "normal", "others")

    def __init__(self) -> None:
        self.normal: DoublyLinkedList[K, V] = DoublyLinkedList()
        self.others: dict[int, DoublyLinkedList[K, V]] = {}
        self.back = 0
        self._front = 0
        self._heap: list[int] = []
        self._others_size = 0
        self._restored: Item[K, V] | None = None

    def __len__(self) -> int:
        return self.normal.size + self._others_size

    def append(self, item: Item[K, V]) -> None:
        """Put `item` at the back of its priority."""
        self.back = item.position = self.back + 1
        self._join(item.priority).append(item)

    def appendleft(self, item: Item[K, V]) -> None:
        """Put `item` at the front of its priority."""
        self._front = item.position = self._front - 1
        self._join(item.priority).appendleft(item)

    def restore(self, item: Item[K, V]) -> None:
        """Put `item` back where it was before it was taken out.

        The search starts at whatever is nearest: an end of the list, or the item restored last,
        so that restoring many neighbours does not walk over them again and again.
        """
        line = self._join(item.priority)
        # Everything in the list is an item, but for the tail, which is behind every position.
        successor: Any = line.tail
        if line:
            starts: list[Any] = [line.head.next, line.tail.prev]
            hint = self._restored
            if hint is not None and hint.available and hint.priority == item.priority:
                starts.append(hint)
            successor = min(starts, key=lambda start: abs(start.position - item.position))
            while successor is not line.tail and successor.position < item.position:
                successor = successor.next
            while successor.prev is not line.head and successor.prev.position > item.position:
                successor = successor.prev
        line.insert_before(successor, item)
        self._restored = item

    def remove(self, item: Item[K, V]) -> None:
        """Take `item` out, wherever it stands."""
        if not item.priority:
            self.normal.remove(item)
            return
        line = self.others[item.priority]
        line.remove(item)
        self._others_size -= 1
        if not line:
            del self.others[item.priority]
            if len(self._heap) > 2 * len(self.others) + SMALL:
                self._heap = [-priority for priority in self.others]
                heapq.heapify(self._heap)

    def first(self) -> Item[K, V] | None:
        """The item that is next, or None."""
        line = self.normal
        if self.others:
            heap = self._heap
            while -heap[0] not in self.others:
                heapq.heappop(heap)
            if heap[0] < 0 or not line:
                line = self.others[-heap[0]]
        if not line:
            return None
        return cast("Item[K, V]", line.head.next)

    def _join(self, priority: int) -> DoublyLinkedList[K, V]:
        """The list that an item of `priority` is about to enter."""
        if not priority:
            return self.normal
        self._others_size += 1
        line = self.others.get(priority)
        if line is None:
            line = self.others[priority] = DoublyLinkedList()
            heapq.heappush(self._heap, -priority)
        return line

    def __iter__(self) -> Iterator[Item[K, V]]:
        """All items in the order in which they will be handed out."""
        lines = {**self.others, 0: self.normal}
        for priority in sorted(lines, reverse=True):
            for node in lines[priority]:
                yield cast("Item[K, V]", node)
