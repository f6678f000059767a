"""Counters and latencies of the calls of a store, in memory."""

from collections import Counter
from collections.abc import Mapping
from threading import Lock

import msgspec

from leasedkeyq.telemetry.instrument import ItemOutcome, StoreCall, StoreVerb
from leasedkeyq.telemetry.metrics import Histogram, LatencySnapshot
from leasedkeyq.telemetry.series import KnownNames


class VerbSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of one verb."""

    requests: int = 0
    """Requests in all calls; divided by the number of calls, the mean size of a batch."""
    most_requests: int = 0
    """The size of the largest batch."""
    errors: Mapping[str, int] = {}
    """Calls that raised, by the name of the error."""
    seconds: LatencySnapshot = LatencySnapshot()
    """How long the callers have waited; its count is that of the calls."""


class StoreSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of a store at one moment."""

    verbs: Mapping[StoreVerb, VerbSnapshot]
    """By verb; those that nobody has called are not in it."""
    items: Mapping[str, Mapping[ItemOutcome, int]]
    """By queue: how many items were put, claimed, acknowledged and so on."""


class _VerbCounts:
    """What is measured of one verb."""

    __slots__ = ("errors", "most_requests", "requests", "seconds")

    def __init__(self) -> None:
        self.requests = self.most_requests = 0
        self.errors: Counter[str] = Counter()
        self.seconds = Histogram()


class StoreMetrics:
    """Counts what the calls of a store have done, and measures how long they take.

    A `StoreInstrument` that keeps everything in memory, for `Store.instrument`. Safe for threads;
    several stores may share it.

    Args:
        most: How many queues are told apart. Those beyond it are counted together, as the queue
            ``"(other)"``.
    """

    def __init__(self, *, most: int = 10_000) -> None:
        self._most = most
        self._lock = Lock()
        self.reset()

    def reset(self) -> None:
        """Forget everything and start at zero."""
        with self._lock:
            self._queues = KnownNames(self._most)
            self._verbs: dict[StoreVerb, _VerbCounts] = {}
            self._items: dict[str, Counter[ItemOutcome]] = {}

    def snapshot(self) -> StoreSnapshot:
        """What was measured so far."""
        with self._lock:
            verbs: dict[StoreVerb, VerbSnapshot] = {
                verb: VerbSnapshot(
                    requests=counts.requests,
                    most_requests=counts.most_requests,
                    errors=dict(counts.errors),
                    seconds=counts.seconds.snapshot(),
                )
                for verb, counts in self._verbs.items()
            }
            items = {queue: dict(counts) for queue, counts in self._items.items()}
            return StoreSnapshot(verbs=verbs, items=items)

    # What the store calls

    def called(self, call: StoreCall) -> None:
        """Count a call."""
        with self._lock:
            if not call.given:
                self._count(call)
            for queue, outcomes in call.items.items():
                self._items.setdefault(self._queues.known(queue), Counter()).update(outcomes)

    def _count(self, call: StoreCall) -> None:
        counts = self._verbs.get(call.verb)
        if counts is None:
            counts = self._verbs[call.verb] = _VerbCounts()
        counts.requests += call.requests
        counts.most_requests = max(counts.most_requests, call.requests)
        counts.seconds.record(call.seconds)
        if call.error is not None:
            counts.errors[type(call.error).__name__] += 1
