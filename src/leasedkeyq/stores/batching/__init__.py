"""Natural batching: calls that arrive while a batch is being applied form the next batch.

No timers and no added latency: a call that comes alone is applied alone, at once. Under load one
transaction, one fsync or one round trip serves all callers that wait. Begin with `batcher`, which
has what callers see and how their calls are gathered. Drivers stand around it: `thread` applies
batches in a thread of its own, for engines that block; `loop` in the event loop of the callers, for
engines that do not; `caller` is `loop` for callers that are threads without an event loop. A batch
in which one request cannot be stored is applied request by request: `spoiled_batch`.

Engines import this folder, and so does the repository; it knows the requests of the model, and
neither stores nor engines.
"""

from leasedkeyq.stores.batching.batcher import Batcher, Call, CallLine, outcomes_of, undo_claim
from leasedkeyq.stores.batching.caller import CallerBatcher
from leasedkeyq.stores.batching.loop import BatchEngine, Done, LoopBatcher
from leasedkeyq.stores.batching.spoiled_batch import SpoiledBatchError
from leasedkeyq.stores.batching.thread import ThreadBatcher

__all__ = [
    "BatchEngine",
    "Batcher",
    "Call",
    "CallLine",
    "CallerBatcher",
    "Done",
    "LoopBatcher",
    "SpoiledBatchError",
    "ThreadBatcher",
    "outcomes_of",
    "undo_claim",
]
