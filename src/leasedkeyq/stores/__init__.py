"""Stores: queues that leave the event loop, with one meaning on every engine.

What all engines have in common. `store` is the contract: the verbs that check and observe, around
the inner verbs that an engine implements. `queue` has the queue on a store, and what its callers
wait with; `batching` gathers the calls of many callers, and `batched_store` is a store whose engine
works so. `system` is what stores ask of the operating system. It imports the model, the waiting
lines of `local` and telemetry, and no engine. Engines, `transfer`, `lanes`, `repository`, `testing`
and `cli` import it, and so do programs, and stores of other people: the names below are public.
Begin with `store`.
"""

from leasedkeyq.model.findings import Finding, SchemaState, Severity
from leasedkeyq.model.requests import (
    Ack,
    Amend,
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
    Placed,
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
from leasedkeyq.stores.queue.store_queue import StoreQueue
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
    "Amend",
    "Cap",
    "Claim",
    "Claimed",
    "Counts",
    "Discard",
    "Extend",
    "Finding",
    "Page",
    "Placed",
    "Purge",
    "Put",
    "Refusal",
    "Release",
    "RepairReport",
    "Requeue",
    "ResultOutcome",
    "SchemaState",
    "Severity",
    "StoredItem",
    "Urgency",
    # For engines
    "StoreModel",
    "report_dropped",
]
