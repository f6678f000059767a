"""leasedkeyq: a keyed, leased queue for asyncio.

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
    QueueClosedError,
    QueueEmptyError,
    QueueFullError,
    WrongEventLoopError,
)
from leasedkeyq.lease import Lease, LeasedItem, LeaseRecord
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
    # What it hands out and shows
    "BuriedItem",
    "ItemSnapshot",
    "Lease",
    "LeaseRecord",
    "LeasedItem",
    # What it is told
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
]
