"""`EventPublisher`: a worker publishes its events in the store while somebody listens."""

import asyncio
import logging
import secrets
import time
from asyncio import Task
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from math import inf
from typing import Any

import msgspec

from leasedkeyq.errors import LeasedKeyQError, StoreClosedError
from leasedkeyq.lanes.durable.reports.event_batches import (
    EVENTS_KEPT,
    EVENTS_QUEUE,
    LISTENER,
    TELL_AGAIN,
    EventBatch,
    LaneCount,
    ListenerWish,
    PublishedEvent,
    published,
    wish_of,
)
from leasedkeyq.lanes.durable.reports.kept import keep
from leasedkeyq.lanes.events import EventEmitter, LaneEvent, Subscription
from leasedkeyq.lanes.running.lane import Lane
from leasedkeyq.model.requests import Cancel, Change, Put, StoredItem
from leasedkeyq.stores.store import Store

logger = logging.getLogger("leasedkeyq")

PAUSE = 0.2
"""Seconds for which events are gathered."""
MOST = 400
"""Events that are gathered in that time: of more, the newer ones are dropped and counted."""
IN_ONE = 200
"""Events in one result."""
TOTALS_EVERY = 1.0
"""Seconds after which it tells how many commands have started and ended, if that is asked for."""
LOOK_AGAIN = 5.0
"""Seconds after which it looks whether anybody still listens."""


class EventPublisher:
    """Writes the events of an emitter into the store, from when somebody listens until nobody does.

    As long as nobody listens, nothing is subscribed to the emitter, and nothing runs.

    Args:
        store: Where they are written.
        workers_queue: The queue in which those that listen are leased items.
        lanes: The lanes of the worker.
        emitter: Tells the events.
        spawn: Begins a task of the engine.
        clock: Unix time.
    """

    def __init__(
        self,
        store: Store,
        workers_queue: str,
        *,
        lanes: Mapping[str, Lane],
        emitter: EventEmitter,
        spawn: Callable[[Coroutine[Any, Any, None], str], Task[None]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._workers_queue = workers_queue
        self._lanes = lanes
        self._emitter = emitter
        self._spawn = spawn
        self._clock = clock
        self._worker = secrets.token_hex(6)
        self._number = 0
        self._subscription: Subscription | None = None
        self._events: list[PublishedEvent] = []
        self._dropped = 0
        self._news = asyncio.Event()
        self._task: Task[None] | None = None
        self._unclaimed: set[int] = set()
        """Those that listened at the last look, and had not leased their item yet."""
        self._wanted: frozenset[str] | None = frozenset()
        """The events that somebody wants to hear; None for all."""
        self._totals = False
        self._told_totals: dict[str, LaneCount] = {}
        self._closed = False

    def look(self, found: Sequence[StoredItem]) -> None:
        """See whether anybody listens, among all items of the queue of the workers."""
        heard = [item for item in found if item.key.startswith(LISTENER)]
        self._wish([wish_of(item.value) for item in heard])
        if heard and self._task is None and not self._closed:
            self._unclaimed.clear()
            # The predicate takes the event itself: so the buffer is this one's, with its own limit.
            self._subscription = self._emitter.subscribe_filtered(self._take)
            self._task = self._spawn(self._run(), "events")
            self._task.add_done_callback(self._ended)
        elif not heard and self._task is not None:
            self._news.set()  # it looks, and ends

    def _wish(self, wishes: Sequence[ListenerWish]) -> None:
        self._totals = any(wish.totals for wish in wishes)
        wanted: set[str] = set()
        for wish in wishes:
            if wish.events is None:
                self._wanted = None
                return
            wanted.update(wish.events)
        self._wanted = frozenset(wanted)

    def _take(self, event: LaneEvent) -> bool:
        if self._wanted is not None and event.key not in self._wanted:
            return False
        if len(self._events) < MOST:
            # By the clock of the engine: that of the emitter may be another one.
            self._events.append(published(event, self._clock()))
            self._news.set()
        else:
            self._dropped += 1
        return False

    def _ended(self, task: Task[None]) -> None:
        del task
        if self._subscription is not None:
            self._subscription.close()
        self._subscription = self._task = None
        self._events.clear()
        self._dropped = 0

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        looked = told = loop.time()
        try:
            if not await self._listened():
                return
            await self._write(hello=True)
            while True:
                self._news.clear()
                if not self._events:
                    try:
                        until = told + TOTALS_EVERY if self._totals else looked + LOOK_AGAIN
                        async with asyncio.timeout_at(until):
                            await self._news.wait()
                    except TimeoutError:
                        pass
                    else:
                        if not self._events:  # one that listened has gone
                            looked = -inf
                await asyncio.sleep(PAUSE)
                if loop.time() - looked >= LOOK_AGAIN:
                    looked = loop.time()
                    if not await self._listened():
                        return
                hello = loop.time() - told >= TELL_AGAIN or self._counted()
                if hello or self._events:
                    told = loop.time()
                    await self._write(hello=hello)
        except StoreClosedError:
            return  # the engine tells of it

    async def _listened(self) -> bool:
        """Whether anybody listens. Those that died are forgotten."""
        try:
            await self._store.sweep([self._workers_queue])
            page = await self._store.browse(self._workers_queue, prefix=LISTENER)
            self._wish([wish_of(item.value) for item in page.items])
            free = {item.id for item in page.items if item.state == "available"}
            dead = {
                item.key: item.id
                for item in page.items
                if item.id in free and (item.attempt or item.id in self._unclaimed)
            }
            self._unclaimed = free
            if dead:
                await self._forget(dead)
        except StoreClosedError:
            raise
        except LeasedKeyQError as error:
            logger.warning("whether anybody listens to events could not be seen: %s", error)
            return True
        return len(page.items) > len(dead)

    def _counts(self) -> dict[str, LaneCount]:
        return {
            lane.id: LaneCount(
                lane.completed + lane.failed + lane.retried + lane.active,
                lane.completed,
                lane.failed,
                lane.retried,
            )
            for lane in self._lanes.values()
        }

    def _counted(self) -> bool:
        """Whether there is something new to be told of how much was done."""
        return self._totals and self._told_totals != self._counts()

    async def _forget(self, dead: Mapping[str, int]) -> None:
        def work(items: Sequence[StoredItem]) -> list[Put | Change]:
            return [
                Cancel(self._workers_queue, item.key, id=item.id)
                for item in items
                if item.state == "available" and dead.get(item.key) == item.id
            ]

        await self._store.edit(self._workers_queue, work, keys=[*dead])

    async def _write(self, *, hello: bool = False) -> None:
        """Write the events that have been gathered; if that fails, they are dropped and counted."""
        events, self._events = self._events, []
        dropped, self._dropped = self._dropped, 0
        lost = len(events) + dropped
        queues = {
            partition.queue: lane.id
            for lane in self._lanes.values()
            for partition in lane.partitions
        }
        totals = self._told_totals = self._counts() if self._totals else {}
        most = self._store.limits.value_size
        results: dict[str, bytes] = {}
        for begin in range(0, max(len(events), 1 if hello or dropped else 0), IN_ONE):
            part = events[begin : begin + IN_ONE]
            batch = EventBatch(self._worker, self._clock(), queues, part, dropped, totals)
            dropped, totals = 0, {}
            for raw in _written(batch, most):
                self._number += 1
                results[f"{self._worker}:{self._number}"] = raw
        try:
            await keep(self._store, EVENTS_QUEUE, results, EVENTS_KEPT)
        except StoreClosedError:
            raise
        except Exception as error:
            self._dropped += lost
            unforeseen = None if isinstance(error, LeasedKeyQError) else error
            logger.warning("%d events could not be published: %s", lost, error, exc_info=unforeseen)

    async def flush(self) -> None:
        """Write the last events: the worker is being closed."""
        self._closed = True
        if self._task is not None and self._events:
            with suppress(StoreClosedError):
                await self._write()

    def close(self) -> list[Task[None]]:
        """Publish nothing more; returns what is to be cancelled."""
        self._closed = True
        return [] if self._task is None else [self._task]


def _written(batch: EventBatch, most: int) -> list[bytes]:
    """A batch as it is stored, in as many parts as the store's limit of a value asks for."""
    raw = msgspec.json.encode(batch)
    events = batch.events
    if len(raw) <= most:
        return [raw]
    if len(events) <= 1:
        lost = msgspec.structs.replace(batch, events=[], dropped=batch.dropped + len(events))
        raw = msgspec.json.encode(lost)
        return [raw] if len(raw) <= most else []
    half = len(events) // 2
    first = msgspec.structs.replace(batch, events=events[:half])
    second = msgspec.structs.replace(batch, events=events[half:], dropped=0)
    return _written(first, most) + _written(second, most)
