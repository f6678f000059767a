"""leasedkeyq: a keyed, leased queue for asyncio, in memory or kept by a store.

One item per key, one consumer per key at a time, in order, safely retried.
"""

from importlib.metadata import version

from leasedkeyq.core import LeasedKeyQueue
from leasedkeyq.errors import (
    InvalidLeaseError,
    KeyAlreadyInFlightError,
    KeyNotAvailableError,
    LeaseAlreadyAcknowledgedError,
    LeasedKeyQError,
    LeaseExpiredError,
    LimitExceededError,
    QueueClosedError,
    QueueEmptyError,
    QueueFullError,
    StoreClosedError,
    StoreError,
    UndecodableValueError,
    WrongEventLoopError,
)
from leasedkeyq.lease import Lease, LeasedItem, LeaseRecord
from leasedkeyq.stores.connect import connect
from leasedkeyq.types import (
    BuriedItem,
    Duration,
    InFlightPolicy,
    ItemSnapshot,
    ItemState,
    QueueObserver,
)

__version__ = version("leasedkeyq")

__all__ = [
    # The queue
    "LeasedKeyQueue",
    # A store of queues
    "connect",
    # What queues hand out and show
    "BuriedItem",
    "ItemSnapshot",
    "Lease",
    "LeaseRecord",
    "LeasedItem",
    # What they are told
    "Duration",
    "InFlightPolicy",
    "ItemState",
    "QueueObserver",
    # Errors
    "InvalidLeaseError",
    "KeyAlreadyInFlightError",
    "KeyNotAvailableError",
    "LeaseAlreadyAcknowledgedError",
    "LeaseExpiredError",
    "LeasedKeyQError",
    "QueueClosedError",
    "QueueEmptyError",
    "QueueFullError",
    "WrongEventLoopError",
    # Errors of stores
    "LimitExceededError",
    "StoreClosedError",
    "StoreError",
    "UndecodableValueError",
]
