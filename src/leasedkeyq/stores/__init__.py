"""Stores: queues that leave the event loop, with one meaning on every engine."""

from leasedkeyq.model.requests import (
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
    ResultOutcome,
    StoredItem,
    Urgency,
)
from leasedkeyq.model.store_model import StoreModel
from leasedkeyq.stores.queue import StoreQueue
from leasedkeyq.stores.store import Claimer, Store, report_dropped

__all__ = [
    # Using it
    "Capabilities",
    "Claimer",
    "Limits",
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
    "ResultOutcome",
    "StoredItem",
    "Urgency",
    # For engines
    "StoreModel",
    "report_dropped",
]
