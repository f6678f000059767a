"""leasedkeyq: a keyed, leased queue for asyncio, in memory or kept by a store.

One consumer per key at a time, in order, safely retried: the newest value of a key, or every one.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from leasedkeyq.connect import connect, schemes
from leasedkeyq.errors import (
    InvalidLeaseError,
    KeyAlreadyInFlightError,
    KeyAlreadyPresentError,
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
from leasedkeyq.local.queue import LeasedKeyQueue
from leasedkeyq.types import (
    BuriedItem,
    Duration,
    InFlightPolicy,
    ItemSnapshot,
    ItemState,
    PresentPolicy,
    PutOutcome,
    QueueObserver,
)

if TYPE_CHECKING:
    from leasedkeyq.engines.file.store import FileStore
    from leasedkeyq.engines.memory import MemoryStore
    from leasedkeyq.engines.postgres.queue import PostgresQueue
    from leasedkeyq.engines.postgres.store import PostgresStore
    from leasedkeyq.engines.redis.store import RedisStore
    from leasedkeyq.engines.sqlite.store import SqliteStore
    from leasedkeyq.stores.queue.store_queue import StoreQueue
    from leasedkeyq.stores.store import Store
    from leasedkeyq.transfer.move import MoveReport, move
    from leasedkeyq.transfer.queue_transfer import MoveProgress, QueueMove

    __version__: str
else:
    # A program that uses the queue in memory does not wait for the stores and what they import.
    _LAZY = {
        "FileStore": "engines.file.store",
        "MemoryStore": "engines.memory",
        "MoveProgress": "transfer.queue_transfer",
        "MoveReport": "transfer.move",
        "QueueMove": "transfer.queue_transfer",
        "PostgresQueue": "engines.postgres.queue",
        "PostgresStore": "engines.postgres.store",
        "RedisStore": "engines.redis.store",
        "SqliteStore": "engines.sqlite.store",
        "Store": "stores.store",
        "StoreQueue": "stores.queue.store_queue",
        "move": "transfer.move",
    }
    _DRIVERS = {"asyncpg", "redis"}

    def __getattr__(name):
        if name == "__version__":
            # What finds it takes longer to import than the queue.
            globals()[name] = import_module("importlib.metadata").version("leasedkeyq")
            return globals()[name]
        if name not in _LAZY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            module = import_module(f"leasedkeyq.{_LAZY[name]}")
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


__all__ = [
    # The queue
    "LeasedKeyQueue",
    # Queues on a store
    "connect",
    "schemes",
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
    "PresentPolicy",
    "PutOutcome",
    "QueueObserver",
    # Errors
    "InvalidLeaseError",
    "KeyAlreadyInFlightError",
    "KeyAlreadyPresentError",
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
