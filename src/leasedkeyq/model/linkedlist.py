"""An intrusive doubly-linked list: every operation is O(1), given the node."""

from collections.abc import Iterator
from typing import Any, Generic, TypeVar, cast

K = TypeVar("K")
V = TypeVar("V")


class Node(Generic[K, V]):
    """A key and a value that can be linked into one `DoublyLinkedList` at a time.

    `prev` and `next` are None exactly while the node is in no list.
    """

    __slots__ = ("key", "next", "prev", "value")

    def __init__(self, key: K, value: V) -> None:
        self.key = key
        self.value = value
        self.prev: Node[K, V] | None = None
        self.next: Node[K, V] | None = None


class DoublyLinkedList(Generic[K, V]):
    """A list of nodes between two sentinels, so that no operation has an edge case.

    A node must be in no list when it is added, and in this list when it is removed: the list
    does not pay for checking that.
    """

    __slots__ = ("head", "size", "tail")

    def __init__(self) -> None:
        self.head: Node[K, V] = cast("Any", Node)(None, None)
        self.tail: Node[K, V] = cast("Any", Node)(None, None)
        self.head.next = self.tail
        self.tail.prev = self.head
        self.size = 0

    def append(self, node: Node[K, V]) -> None:
        """Add `node` at the back."""
        self.insert_before(self.tail, node)

    def appendleft(self, node: Node[K, V]) -> None:
        """Add `node` at the front."""
        self.insert_before(cast("Node[K, V]", self.head.next), node)

    def insert_before(self, successor: Node[K, V], node: Node[K, V]) -> None:
        """Add `node` right before `successor`, which is in this list or is its tail sentinel."""
        predecessor = cast("Node[K, V]", successor.prev)
        node.prev = predecessor
        node.next = successor
        predecessor.next = successor.prev = node
        self.size += 1

    def remove(self, node: Node[K, V]) -> None:
        """Take `node` out of the list."""
        predecessor = cast("Node[K, V]", node.prev)
        successor = cast("Node[K, V]", node.next)
        predecessor.next = successor
        successor.prev = predecessor
        node.prev = node.next = None
        self.size -= 1

    def popleft(self) -> Node[K, V] | None:
        """Take the node at the front out of the list and return it, or None when empty."""
        if not self.size:
            return None
        node = cast("Node[K, V]", self.head.next)
        self.remove(node)
        return node

    def __len__(self) -> int:
        return self.size

    def __bool__(self) -> bool:
        return self.size > 0

    def __iter__(self) -> Iterator[Node[K, V]]:
        """Walk from the front to the back. The list must not change meanwhile."""
        node = self.head.next
        while node is not None and node is not self.tail:
            yield node
            node = node.next
