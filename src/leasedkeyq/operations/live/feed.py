"""`Feed`: what happens in the queues and lanes of a store, as it happens."""

import asyncio
import logging
import secrets
import time
from asyncio import Task
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import partial
from types import TracebackType
from typing import Final, Self

import msgspec

from leasedkeyq.errors import LeasedKeyQError, StoreClosedError
from leasedkeyq.lanes.durable.reports.event_batches import (
    EVENTS_QUEUE,
    LISTENER,
    LISTENER_LEASE,
    TELL_AGAIN,
    EventBatch,
    LaneCount,
    ListenerWish,
    PublishedEvent,
)
from leasedkeyq.lanes.presence.records import WORKERS_QUEUE
from leasedkeyq.model.requests import Ack, Claim, Claimed, Counts, Extend, Put, Refusal
from leasedkeyq.operations.items.kept_results import KeptResults
from leasedkeyq.operations.live.queue_looks import QueueLooks
from leasedkeyq.operations.store_layout import is_internal
from leasedkeyq.operations.views import FeedEvent, FeedOutcome
from leasedkeyq.stores.codec import UNREADABLE
from leasedkeyq.stores.store import Store

logger = logging.getLogger("leasedkeyq")

POLL: Final = 2.0
"""Seconds after which the store is looked at though it has not told of a change."""
GAP: Final = 0.1
"""Seconds at least between two looks."""
FIRST_LOOK: Final = 1.5
"""Seconds that workers have to tell which queues are theirs, before queues are compared."""
HELD: Final = 10_000
"""Events that wait for the caller; of more, the oldest are dropped and counted."""
AT_ONCE: Final = 20
"""Plain queues that are compared in one look."""
TWICE: Final = 10.0
"""Seconds within which the end of a command is told once.

The worker that ran it tells of it, and so does the one through which it was submitted.
"""
_OUTCOMES: Final[dict[str, FeedOutcome]] = {
    "queue.command.submitted": "submitted",
    "queue.command.started": "started",
    "queue.command.completed": "completed",
    "queue.command.retry": "retry",
    "queue.command.dead_lettered": "dead_lettered",
    "queue.command.failed": "failed",
    "queue.command.timeout": "timeout",
    "queue.command.cancelled": "cancelled",
    "queue.lane.pressure": "pressure",
    "queue.lane.idle": "idle",
    "queue.shutdown.started": "shutdown",
}


class Feed:
    """The events of a store from now on, as an asynchronous iterator.

    ``async with Feed(store) as feed: async for event in feed: ...``. While it is open, the workers
    of the store publish what happens in their lanes; they begin within a moment, and stop when the
    last feed is closed, or some seconds after the program has died. Queues that no worker serves
    are compared by looks at them: see `QueueLooks` for what that cannot see. Commands that are
    submitted by programs that run no lanes are told when they start.

    The iteration ends when the feed is closed. It raises a `StoreClosedError` if the store is
    closed; while the store cannot be reached, nothing is told, and it goes on when it can.

    Args:
        store: The store.
        queues: Names of queues and lanes; None for all but internal ones.
        kinds: Command types, or kinds of items; empty for all.
        keys: Patterns of keys, as in a shell: ``order-*``; empty for all.
        outcomes: What shall be told; empty for all. Workers publish nothing else then.
        totals: Whether workers shall tell about once a second how much they have done; `counts`
            has it.
        clock: Unix time.

    Attributes:
        counts: By lane: how many commands have started and ended since the feed was opened, in all
            workers; no event is missing in it. Empty without `totals`.
    """

    def __init__(
        self,
        store: Store,
        queues: Collection[str] | None = None,
        *,
        kinds: Collection[str] = (),
        keys: Collection[str] = (),
        outcomes: Collection[FeedOutcome] = (),
        totals: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._queues = None if queues is None else frozenset(queues)
        self._kinds = frozenset(kinds)
        self._keys = tuple(keys)
        self._outcomes = frozenset(outcomes)
        self.counts: dict[str, LaneCount] = {}
        self._counted: dict[tuple[str, str], LaneCount] = {}
        """What each worker has told last of each lane."""
        wanted = [event for event, outcome in _OUTCOMES.items() if outcome in self._outcomes]
        self._wish = msgspec.json.encode(ListenerWish(wanted if outcomes else None, totals))
        self._clock = clock
        self._name = LISTENER + secrets.token_hex(8)
        self._lease: Claimed | None = None
        self._results = KeptResults(store, EVENTS_QUEUE)
        self._events: deque[FeedEvent] = deque()
        self._dropped = 0
        self._arrived = asyncio.Event()
        self._changed = asyncio.Event()
        self._tasks: list[Task[None]] = []
        self._failure: BaseException | None = None
        self._closed = False
        self._told_at: dict[str, tuple[float, dict[str, str]]] = {}
        """When each worker told something last, by the clock of the loop, and its queues."""
        self._ends: dict[tuple[str, FeedOutcome], float] = {}
        self._looks: dict[str, QueueLooks] = {}
        self._counts: dict[str, Counts | None] = {}
        self._first: frozenset[str] | None = None
        """The plain queues that were there at the first look."""
        self._unwatch: dict[str, Callable[[], None]] = {}
        self._woken: set[str] = set()

    async def __aenter__(self) -> Self:
        """Begin to listen.

        Raises:
            StoreError: The store cannot be reached.
        """
        async for _ in self._results.new():
            pass  # what another feed was told before
        await self._listen()
        self._unwatch[EVENTS_QUEUE] = self._store.watch(EVENTS_QUEUE, self._changed.set)
        for work in (self._renew(), self._read()):
            task = asyncio.create_task(work)
            task.add_done_callback(self._task_ended)
            self._tasks.append(task)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """As `close`."""
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> FeedEvent:
        """The next event; a call that is cancelled takes none with it."""
        while True:
            if self._dropped:
                dropped, self._dropped = self._dropped, 0
                return FeedEvent(at=self._clock(), outcome="dropped", count=dropped)
            if self._events:
                return self._events.popleft()
            if self._failure is not None:
                raise self._failure
            if self._closed:
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()

    @property
    def workers(self) -> int:
        """How many workers tell of their lanes now."""
        return len(self._told_at)

    async def close(self) -> None:
        """Stop listening, and end the iteration. Closing again does nothing."""
        self._closed = True
        self._arrived.set()
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for unwatch in self._unwatch.values():
            unwatch()
        self._unwatch.clear()
        lease, self._lease = self._lease, None
        if lease is not None:
            try:
                await self._store.settle([Ack(WORKERS_QUEUE, lease.key, lease.token)])
            except LeasedKeyQError as error:
                logger.info("the lease of a feed ends by itself: %s", error)

    def _task_ended(self, task: Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failure = error
            self._arrived.set()

    # Listening

    async def _listen(self) -> None:
        """Lease an item that tells the workers that somebody listens."""
        answer = (await self._store.put([Put(WORKERS_QUEUE, ((self._name, self._wish),))]))[0]
        if isinstance(answer, LeasedKeyQError):
            raise answer
        claim = Claim(((WORKERS_QUEUE, 1),), 1, self._name, LISTENER_LEASE)
        for claimed in (await self._store.claim([claim]))[0]:
            self._lease = claimed

    async def _renew(self) -> None:
        """Keep that lease."""
        while True:
            await asyncio.sleep(LISTENER_LEASE / 4)
            try:
                if self._lease is None:
                    await self._listen()
                    continue
                extend = Extend(WORKERS_QUEUE, self._name, self._lease.token, LISTENER_LEASE)
                [answer] = await self._store.settle([extend])
                if isinstance(answer, Refusal):
                    self._lease = None  # this program was taken for dead
                    await self._listen()
            except StoreClosedError:
                raise
            except LeasedKeyQError as error:
                logger.warning("the feed of events could not be kept up, trying again: %s", error)

    # Reading

    async def _read(self) -> None:
        """Pass on what is new, whenever the store has changed."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while True:
            self._changed.clear()
            try:
                await self._read_batches()
                if loop.time() - began >= FIRST_LOOK:
                    await self._compare_queues()
            except StoreClosedError:
                raise
            except LeasedKeyQError as error:
                logger.warning("events could not be read, trying again: %s", error)
                await asyncio.sleep(POLL)
            await asyncio.sleep(GAP)
            until = loop.time() + POLL
            if loop.time() < began + FIRST_LOOK:
                until = min(until, began + FIRST_LOOK)
            with suppress(TimeoutError):
                async with asyncio.timeout_at(until):
                    await self._changed.wait()

    async def _read_batches(self) -> None:
        now = asyncio.get_running_loop().time()
        async for page in self._results.new():
            for item in page:
                try:
                    batch = msgspec.json.decode(item.value, type=EventBatch)
                except UNREADABLE:
                    continue  # a worker of a later version
                self._told_at[batch.worker] = now, batch.queues
                ahead = 0.0 if item.ended_at is None else item.ended_at - batch.at
                for lane, count in batch.totals.items():
                    self._add(batch.worker, lane, count)
                if batch.dropped:
                    at = batch.at + ahead
                    dropped = FeedEvent(
                        at=at, outcome="dropped", count=batch.dropped, worker=batch.worker
                    )
                    self._pass(dropped)
                for event in batch.events:
                    self._tell(event, batch.worker, ahead)
        for worker, (told, _) in list(self._told_at.items()):
            if now - told > 3 * TELL_AGAIN:
                del self._told_at[worker]
                for known in [known for known in self._counted if known[0] == worker]:
                    del self._counted[known]
        for end, when in list(self._ends.items()):
            if now - when > TWICE:
                del self._ends[end]

    def _add(self, worker: str, lane: str, count: LaneCount) -> None:
        """Take how much a worker has done; what it had done before the feed does not count."""
        before = self._counted.get((worker, lane), count)
        self._counted[worker, lane] = count
        total = self.counts.setdefault(lane, LaneCount())
        total.started += count.started - before.started
        total.completed += count.completed - before.completed
        total.failed += count.failed - before.failed
        total.retried += count.retried - before.retried

    def _tell(self, event: PublishedEvent, worker: str, ahead: float) -> None:
        outcome = _OUTCOMES.get(event.event)
        if outcome is None:
            return  # an event of the program's own
        if event.command_id and outcome in ("completed", "failed", "timeout", "cancelled"):
            end = event.command_id, outcome
            known = end in self._ends
            self._ends[end] = asyncio.get_running_loop().time()
            if known:
                return
        self._pass(
            FeedEvent(
                at=event.at + ahead,
                outcome=outcome,
                queue=event.lane,
                lane=event.lane or None,
                key=event.key,
                kind=event.kind,
                command_id=event.command_id,
                attempt=event.attempt,
                error=event.error,
                delay=event.delay,
                count=event.pending,
                worker=worker,
            )
        )

    def _pass(self, event: FeedEvent) -> None:
        """Let the caller have an event, if it is one that he wants."""
        if not self._wanted(event):
            return
        if len(self._events) >= HELD:
            self._events.popleft()
            self._dropped += 1
        self._events.append(event)
        self._arrived.set()

    def _wanted(self, event: FeedEvent) -> bool:
        if event.outcome == "dropped":
            return True
        if self._queues is not None and event.queue not in self._queues:
            return False
        if self._outcomes and event.outcome not in self._outcomes:
            return False
        if self._kinds and event.kind not in self._kinds:
            return False
        return not self._keys or any(fnmatchcase(event.key, pattern) for pattern in self._keys)

    # Queues that no worker tells of

    async def _compare_queues(self) -> None:
        told = {queue for _, queues in self._told_at.values() for queue in queues}
        told |= {lane for _, queues in self._told_at.values() for lane in queues.values()}
        counts = await self._store.count(None if self._queues is None else [*self._queues])
        for name in [name for name in self._looks if name in told]:
            self._forget(name)
        plain = {name for name in counts if not is_internal(name) and name not in told}
        plain |= self._looks.keys()  # one that is empty now is not counted any more
        if self._first is None:
            self._first = frozenset(plain)
        changed = [
            name
            for name in sorted(plain)
            if name not in self._looks
            or name in self._woken
            or counts.get(name) != self._counts.get(name)
        ]
        for name in changed[:AT_ONCE]:
            if name not in self._looks:
                new = name not in self._first
                self._looks[name] = QueueLooks(self._store, name, new=new, clock=self._clock)
                self._unwatch[name] = self._store.watch(name, partial(self._wake, name))
            self._woken.discard(name)
            self._counts[name] = counts.get(name)
            for event in await self._looks[name].compare():
                self._pass(event)
        if len(changed) > AT_ONCE:
            self._changed.set()

    def _wake(self, queue: str) -> None:
        self._woken.add(queue)
        self._changed.set()

    def _forget(self, queue: str) -> None:
        del self._looks[queue]
        self._counts.pop(queue, None)
        self._woken.discard(queue)
        self._unwatch.pop(queue)()
