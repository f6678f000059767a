"""The moments at which something happens to an item, earliest first."""

import heapq
from typing import Any, Protocol, TypeAlias

TimerEntry: TypeAlias = tuple[float, int, Any]
SMALL = 64


class Timed(Protocol):
    """Something that waits for at most one moment at a time."""

    timer: Any


class Timers:
    """A heap of moments. Setting and clearing are O(log n), and cleared entries do not pile up.

    A cleared entry stays in the heap until it surfaces or until cleared entries are the
    majority; then the heap is rebuilt, which costs O(1) per cleared entry.
    """

    __slots__ = ("heap", "live")

    def __init__(self) -> None:
        self.heap: list[TimerEntry] = []
        self.live = 0

    def set(self, timed: Timed, when: float, order: int) -> None:
        """Wake `timed`, which has no timer now, at `when`; ties go by `order`."""
        entry = timed.timer = (when, order, timed)
        heapq.heappush(self.heap, entry)
        self.live += 1

    def clear(self, timed: Timed) -> None:
        """Forget the moment of `timed`, which has one."""
        timed.timer = None
        self.live -= 1
        if len(self.heap) > 2 * self.live + SMALL:
            self.heap = [entry for entry in self.heap if entry[2].timer is entry]
            heapq.heapify(self.heap)

    def earliest(self) -> float | None:
        """The first moment, or None."""
        heap = self.heap
        while heap:
            when, _, timed = entry = heap[0]
            if timed.timer is entry:
                return when
            heapq.heappop(heap)
        return None

    def pop(self) -> TimerEntry:
        """Take out the entry whose moment `earliest` has just told."""
        entry = heapq.heappop(self.heap)
        entry[2].timer = None
        self.live -= 1
        return entry
