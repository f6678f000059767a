"""leasedkeyq: a keyed, leased queue for asyncio, in memory or kept by a store.

One item per key, one consumer per key at a time, in order, safely retried.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING

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
    StoreDamagedError,
    StoreError,
    StoreUnavailableError,
    UndecodableValueError,
    UnstorableError,
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

if TYPE_CHECKING:
    from leasedkeyq.stores.connect import connect
    from leasedkeyq.stores.file import FileStore
    from leasedkeyq.stores.memory import MemoryStore
    from leasedkeyq.stores.mover import MoveProgress, QueueMove
    from leasedkeyq.stores.moving import MoveReport, move
    from leasedkeyq.stores.postgres import PostgresStore
    from leasedkeyq.stores.postgres_queue import PostgresQueue
    from leasedkeyq.stores.queue import StoreQueue
    from leasedkeyq.stores.redis import RedisStore
    from leasedkeyq.stores.sqlite import SqliteStore
    from leasedkeyq.stores.store import Store
else:
    # Who uses the queue in memory does not wait for the stores and what they import.
    _LAZY = {
        "FileStore": "file",
        "MemoryStore": "memory",
        "MoveProgress": "mover",
        "MoveReport": "moving",
        "QueueMove": "mover",
        "PostgresQueue": "postgres_queue",
        "PostgresStore": "postgres",
        "RedisStore": "redis",
        "SqliteStore": "sqlite",
        "Store": "store",
        "StoreQueue": "queue",
        "connect": "connect",
        "move": "moving",
    }
    _DRIVERS = {"asyncpg", "redis"}

    def __getattr__(name):
        if name not in _LAZY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            module = import_module(f"leasedkeyq.stores.{_LAZY[name]}")
        except ModuleNotFoundError as error:
            if error.name not in _DRIVERS:
                raise
            return _without_driver(name, str(error))
        globals()[name] = getattr(module, name)
        return globals()[name]

    def _without_driver(name, advice):
        """Stand in for a class whose driver is not installed: there, but of no use."""

        def refuse(*_, **__):
            raise ModuleNotFoundError(advice)

        names = {"__new__": refuse, "__init_subclass__": classmethod(refuse), "__doc__": advice}
        return type(name, (), {**names, "__module__": __name__})

    def __dir__():
        return sorted({*globals(), *_LAZY})


__version__ = version("leasedkeyq")

__all__ = [
    # The queue
    "LeasedKeyQueue",
    # Queues on a store
    "connect",
    "FileStore",
    "MemoryStore",
    "PostgresQueue",
    "PostgresStore",
    "RedisStore",
    "SqliteStore",
    "Store",
    "StoreQueue",
    # From one store to another
    "move",
    "MoveProgress",
    "MoveReport",
    "QueueMove",
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
    "StoreDamagedError",
    "StoreError",
    "StoreUnavailableError",
    "UndecodableValueError",
    "UnstorableError",
]
