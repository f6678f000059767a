"""The status of an item, and how it may change."""

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final


class QueueItemStatus(Enum):
    """Where an item stands."""

    PENDING = "pending"
    """It waits for a worker, or for its time."""
    PROCESSING = "processing"
    """A worker has it."""
    COMPLETED = "completed"
    """The work is done."""
    FAILED = "failed"
    """It was tried and given up."""
    CANCELLED = "cancelled"
    """It is not wanted any more."""


ARROWS: Final[Mapping[QueueItemStatus, frozenset[QueueItemStatus]]] = MappingProxyType(
    {
        QueueItemStatus.PENDING: frozenset(
            {QueueItemStatus.PROCESSING, QueueItemStatus.CANCELLED},
        ),
        QueueItemStatus.PROCESSING: frozenset(
            {
                QueueItemStatus.PENDING,
                QueueItemStatus.COMPLETED,
                QueueItemStatus.FAILED,
                QueueItemStatus.CANCELLED,
            }
        ),
        QueueItemStatus.COMPLETED: frozenset(),
        QueueItemStatus.FAILED: frozenset(
            {QueueItemStatus.PENDING, QueueItemStatus.CANCELLED},
        ),
        QueueItemStatus.CANCELLED: frozenset(),
    }
)
"""Which status may follow which."""

FINISHED: Final = frozenset(
    {QueueItemStatus.COMPLETED, QueueItemStatus.FAILED, QueueItemStatus.CANCELLED}
)


def can_become(before: QueueItemStatus, after: QueueItemStatus) -> bool:
    """Whether `after` can be reached from `before`, in one step or several."""
    # Where there is a way at all, there is one to PENDING, and from there to everything.
    return before is after or bool(ARROWS[before])
