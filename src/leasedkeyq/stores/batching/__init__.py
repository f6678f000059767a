"""Natural batching: calls that arrive while a batch is being applied form the next batch.

No timers and no added latency: a call that comes alone is applied alone, at once. Under load one
transaction, one fsync or one round trip serves all callers that wait. Begin with `batcher`, which
has what callers see and how their calls are gathered; around it stand two drivers: `thread` applies
batches in a thread of its own, `loop` in the event loop of the callers. A third one, for callers
that are threads, is in `leasedkeyq.repository.thread_batching`.
"""

from leasedkeyq.stores.batching.batcher import Batcher, Call, CallLine, outcomes_of, undo_claim
from leasedkeyq.stores.batching.loop import BatchEngine, Done, LoopBatcher
from leasedkeyq.stores.batching.thread import ThreadBatcher

__all__ = [
    "BatchEngine",
    "Batcher",
    "Call",
    "Done",
    "CallLine",
    "LoopBatcher",
    "ThreadBatcher",
    "outcomes_of",
    "undo_claim",
]
