"""Stores: queues that leave the event loop, with one meaning on every engine."""

from leasedkeyq.stores.connect import connect, schemes
from leasedkeyq.stores.contract import (
    Ack,
    Attempt,
    Bury,
    Cancel,
    Cap,
    Capabilities,
    Claim,
    Claimed,
    Counts,
    Discard,
    Extend,
    Limits,
    Page,
    Purge,
    Put,
    Refusal,
    Release,
    RepairReport,
    Requeue,
    StoreContract,
    StoredItem,
    Urgency,
)
from leasedkeyq.stores.memory import MemoryStore
from leasedkeyq.stores.queue import StoreQueue
from leasedkeyq.stores.store import Claimer, Store

__all__ = [
    # Opening a store
    "connect",
    "schemes",
    # Using it
    "Capabilities",
    "Claimer",
    "Limits",
    "MemoryStore",
    "Store",
    "StoreQueue",
    # The contract
    "Ack",
    "Attempt",
    "Bury",
    "Cancel",
    "Cap",
    "Claim",
    "Claimed",
    "Counts",
    "Discard",
    "Extend",
    "Page",
    "Purge",
    "Put",
    "Refusal",
    "Release",
    "RepairReport",
    "Requeue",
    "StoreContract",
    "StoredItem",
    "Urgency",
]
