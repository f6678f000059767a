"""A queue for programs without an event loop: items, a queue of them, a repository, a service.

`repository` is the front door, `items` its data, `mapping` says how an item is stored and which
requests a change takes, `changes` and `claims` make them. `connection` opens the store and keeps it
over a fork, `session` asks it for a thread that waits, `change_edits` makes one edit
of what many threads ask for, `loop_thread` runs its event loop, `leases` knows what this process
holds. The folder uses the contract of stores, and `connect`. Programs import it; of the folders
only `testing` and `cli` may. Begin with `repository`, then `mapping`.
"""

from leasedkeyq.errors import (
    InvalidLeaseError,
    LeaseExpiredError,
    QueueClosedError,
    QueueFullError,
)
from leasedkeyq.repository.backoff import Backoff
from leasedkeyq.repository.errors import (
    DuplicateItemError,
    InvalidItemError,
    InvalidTransitionError,
    ItemNotFoundError,
    QueueConflictError,
    TransactionError,
)
from leasedkeyq.repository.items import Queue, QueueItem
from leasedkeyq.repository.repository import QueueRepository, RecoveryReport
from leasedkeyq.repository.service import QueueService
from leasedkeyq.repository.status import QueueItemStatus

__all__ = [
    # The front doors
    "QueueRepository",
    "QueueService",
    # What they hold
    "Queue",
    "QueueItem",
    "QueueItemStatus",
    # What they are told, and what they tell
    "Backoff",
    "RecoveryReport",
    # Errors
    "DuplicateItemError",
    "InvalidItemError",
    "InvalidTransitionError",
    "ItemNotFoundError",
    "QueueConflictError",
    "TransactionError",
    # Errors of the package that these raise, too
    "InvalidLeaseError",
    "LeaseExpiredError",
    "QueueClosedError",
    "QueueFullError",
]
