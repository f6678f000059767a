"""`StoreLayout`: which lanes a store has, and which queues belong to them."""

import re
from collections.abc import Iterable, Mapping
from zlib import crc32

from leasedkeyq.operations.views import QueueKind

INTERNAL = "leasedkeyq."
"""How the names of queues begin that leasedkeyq has for itself."""
_PARTITION = re.compile(r"(.+)#(\d+)", re.DOTALL)


class StoreLayout:
    """The lanes of a store, and their queues.

    A lane that a worker has told of is known with the number of its partitions. A store that only
    older workers have used tells of none; there, a queue whose next item has a kind is taken for
    that of a lane, and ``x#0``, ``x#1`` for partitions of a lane ``x``.

    Args:
        known: The lanes that workers have told of, with the number of their partitions.
        seen: Other queues that look like those of lanes.
        queues: The queues that hold anything, but for internal ones.

    Attributes:
        lanes: The queues of each lane.
        known: The queues that hold anything.
    """

    def __init__(
        self, known: Mapping[str, int], seen: Iterable[str] = (), queues: Iterable[str] = ()
    ) -> None:
        self.lanes: dict[str, tuple[str, ...]] = {
            lane: (lane,) if parts < 2 else tuple(f"{lane}#{part}" for part in range(parts))  # noqa: PLR2004
            for lane, parts in known.items()
        }
        self._lane_of = {queue: lane for lane, queues in self.lanes.items() for queue in queues}
        guessed: dict[str, list[tuple[int, str]]] = {}
        for queue in seen:
            if queue not in self._lane_of and not is_internal(queue):
                match = _PARTITION.fullmatch(queue)
                lane, part = (match[1], int(match[2])) if match else (queue, 0)
                self._lane_of[queue] = lane
                guessed.setdefault(lane, []).append((part, queue))
        for lane, parts in guessed.items():
            known_queues = self.lanes.get(lane, ())
            self.lanes[lane] = (*known_queues, *(queue for _, queue in sorted(parts)))
        self.known: tuple[str, ...] = tuple(sorted(queues))

    def lane_of(self, queue: str) -> str | None:
        """The lane that a queue belongs to; None if it is none of a lane, as far as is known."""
        return self._lane_of.get(queue)

    def kind_of(self, queue: str) -> QueueKind:
        """What a queue is for."""
        if is_internal(queue):
            return "internal"
        return "lane" if queue in self._lane_of else "queue"

    def queues_of(self, name: str) -> tuple[str, ...]:
        """The queues that a name means: those of a lane, or the queue itself."""
        return self.lanes.get(name, (name,))

    def queue_of(self, name: str, key: str) -> str:
        """The queue that has a key, if `name` is a lane; otherwise the queue itself."""
        queues = self.queues_of(name)
        if len(queues) == 1:
            return queues[0]
        # As `Lane.partition_of` does it, in every process alike.
        return queues[crc32(key.encode("utf-8", "surrogatepass")) % len(queues)]


def is_internal(queue: str) -> bool:
    """Whether leasedkeyq has a queue for itself."""
    return queue.startswith(INTERNAL)
