"""`MinuteWriter`: a worker keeps in the store what it did in each minute, for charts."""

import asyncio
import logging
import random
import secrets
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from leasedkeyq.errors import LeasedKeyQError, StoreClosedError
from leasedkeyq.lanes.durable.reports.kept import keep
from leasedkeyq.lanes.durable.reports.minutes import (
    COUNTERS,
    GAUGES_HOLD,
    MINUTE,
    SERIES_KEPT,
    SERIES_QUEUE,
    DurationBuckets,
    LaneGauges,
    LaneMinute,
    WorkerMinute,
)
from leasedkeyq.lanes.durable.stats import lane_counts
from leasedkeyq.lanes.running.job import Job
from leasedkeyq.lanes.running.lane import Lane
from leasedkeyq.stores.store import Store

logger = logging.getLogger("leasedkeyq")

FOLD = 512
"""Durations that are put into buckets at once."""
SPREAD = 3.0
"""Seconds over which the workers of a store write a minute that has ended."""
UNWRITTEN = 120
"""Minutes that are kept while the store cannot be reached; of more, the oldest are dropped."""


class LaneTally:
    """What is known of a lane since its last minute was taken.

    Attributes:
        waits: How long first attempts have waited.
        runs: How long attempts have run.
        ended: How many attempts have ended.
        before: The counters of the lane when its last minute was taken.
        active: How many of its commands ran then.
        gauges: What was written of it last.
        gauges_at: When that was, by the clock of the event loop.
    """

    __slots__ = ("active", "before", "ended", "gauges", "gauges_at", "runs", "waits")

    def __init__(self) -> None:
        self.waits = DurationBuckets()
        self.runs = DurationBuckets()
        self.ended = 0
        self.before = dict.fromkeys(COUNTERS, 0)
        self.active = 0
        self.gauges = LaneGauges()
        self.gauges_at = 0.0

    def take(self, lane: Lane) -> LaneMinute | None:
        """What was counted since the last call; None if that is nothing."""
        now = _counters(lane)
        counted: dict[str, Any] = {name: count - self.before[name] for name, count in now.items()}
        counted["started"] = self.ended + lane.active - self.active
        self.before, self.active, self.ended = now, lane.active, 0
        waited, waited_total = self.waits.take()
        ran, ran_total = self.runs.take()
        if not any(counted.values()) and not ran:
            return None
        return LaneMinute(
            **counted, waited=waited, waited_total=waited_total, ran=ran, ran_total=ran_total
        )


class MinuteWriter:
    """Counts what a worker does, and writes it once a minute.

    On the path of a command this adds two numbers to lists. A minute in which nothing happened is
    not written.

    Args:
        store: Where it is written.
        lanes: The lanes of the worker.
        clock: The time of the store as far as it is known, until a claim has told it.

    Attributes:
        ahead: The clock of the store, less that of the event loop, as the last claim told; None
            before that.
    """

    def __init__(self, store: Store, lanes: Mapping[str, Lane], clock: Callable[[], float]) -> None:
        self.ahead: float | None = None
        self._store = store
        self._lanes = lanes
        self._clock = clock
        self._tallies: dict[Lane, LaneTally] = {}
        self._worker = secrets.token_hex(6)
        self._begin: float | None = None
        """When the minute began that is being counted, by the clock of the store."""
        self._unwritten: dict[str, WorkerMinute] = {}
        """The minutes that the store does not have yet, by their keys in it, oldest first."""
        self._number = 0
        self._writing = asyncio.Lock()

    @property
    def kept(self) -> bool:
        """Whether the store keeps minutes."""
        return self._store.capabilities.minute_series

    def ended(self, job: Job, ran: float) -> None:
        """An attempt at a command is over."""
        lane = job.partition.lane
        tally = self._tallies.get(lane)
        if tally is None:
            tally = self._tallies[lane] = LaneTally()
        tally.ended += 1
        runs = tally.runs.fresh
        runs.append(ran)
        if job.attempt == 1:  # since when others could have started is not known
            tally.waits.fresh.append(job.started_at - job.ready_at)
        if len(runs) >= FOLD:
            tally.runs.fold()
            tally.waits.fold()

    def _now(self) -> float:
        """The time by the clock of the store, as far as it is known."""
        if self.ahead is None:
            return self._clock()
        return asyncio.get_running_loop().time() + self.ahead

    async def run(self) -> None:
        """Write each minute when it has ended, without end.

        Raises:
            StoreClosedError: The store was closed.
        """
        self._begin = self._now()
        while True:
            await asyncio.sleep(MINUTE - self._now() % MINUTE + 0.01)
            self._take()
            await asyncio.sleep(random.uniform(0, SPREAD))  # spreads the load
            await self._write()

    async def flush(self) -> None:
        """Write the minute that has not ended: the worker is being closed."""
        if self.kept:
            self._take()
            await self._write(last=True)

    def _take(self) -> None:
        """Set apart what was counted since the last call, as a minute to be written."""
        now = self._now()
        begin = now if self._begin is None else self._begin
        self._begin = now
        # The clock of the worker is known before that of the store, and may be far ahead of it.
        at = int(min(begin, now) // MINUTE) * MINUTE
        lanes: dict[str, LaneMinute] = {}
        for lane in self._lanes.values():
            tally = self._tallies.get(lane)
            if tally is None:
                tally = self._tallies[lane] = LaneTally()
            minute = tally.take(lane)
            if minute is not None:
                lanes[lane.id] = minute
        if len(self._unwritten) == UNWRITTEN:
            logger.warning(
                "the store has kept none of the last %d minute values of lanes; the oldest of them "
                "is dropped, and charts will have a gap",
                UNWRITTEN,
            )
            del self._unwritten[next(iter(self._unwritten))]
        self._number += 1
        self._unwritten[f"{self._worker}:{self._number}"] = WorkerMinute(at, self._worker, lanes)

    async def _write(self, *, last: bool = False) -> None:
        """Write the minutes that are not written yet, the newest with the gauges of its lanes."""
        async with self._writing:
            if not self._unwritten:
                return
            minutes = dict(self._unwritten)
            newest = minutes[next(reversed(minutes))]
            try:
                await self._gauge(newest, only_counted=last)
                await self._keep({key: one for key, one in minutes.items() if one.lanes})
            except StoreClosedError:
                if not last:
                    raise
            except Exception as error:
                unforeseen = None if isinstance(error, LeasedKeyQError) else error
                text = "minute values of lanes could not be written: %s"
                logger.warning(text, error, exc_info=unforeseen)
                return
            for key in minutes:
                self._unwritten.pop(key, None)  # the oldest may have been dropped meanwhile

    async def _gauge(self, minute: WorkerMinute, *, only_counted: bool) -> None:
        """Add to a minute how its lanes stand, and those in which somebody else did something."""
        now = asyncio.get_running_loop().time()
        lanes = list(self._lanes.values())
        if only_counted:
            lanes = [lane for lane in lanes if lane.id in minute.lanes]
        if not lanes:
            return
        counts = await lane_counts(self._store, lanes)
        waiting = [lane for lane, count in counts.items() if count.available]
        queues = {partition.queue: lane for lane in waiting for partition in lane.partitions}
        oldest: dict[Lane, float] = {}
        for head in await self._store.heads([*queues]) if queues else ():
            if head is not None:
                lane, age = queues[head.queue], max(0.0, self._now() - head.put_at)
                oldest[lane] = max(oldest.get(lane, 0.0), round(age, 3))
        for lane, count in counts.items():
            tally = self._tallies.get(lane)
            if tally is None:
                continue  # it was added meanwhile
            gauges = LaneGauges(
                count.available,
                count.scheduled,
                count.in_flight,
                count.buried,
                count.held,
                oldest.get(lane),
            )
            changed = msgspec.structs.replace(gauges, oldest=tally.gauges.oldest) != tally.gauges
            again = gauges != LaneGauges() and now - tally.gauges_at >= GAUGES_HOLD - MINUTE / 2
            if changed or again or lane.id in minute.lanes:
                minute.lanes.setdefault(lane.id, LaneMinute()).gauges = gauges
                tally.gauges, tally.gauges_at = gauges, now

    async def _keep(self, minutes: Mapping[str, WorkerMinute]) -> None:
        """Write minutes as kept results, all of them or none, each once."""
        most = self._store.limits.value_size
        results = {
            f"{key}:{part}" if part else key: raw
            for key, minute in minutes.items()
            for part, raw in enumerate(_written(minute, most))
        }

        await keep(self._store, SERIES_QUEUE, results, SERIES_KEPT)


def _counters(lane: Lane) -> dict[str, int]:
    return {
        "submitted": lane.submitted,
        "completed": lane.completed,
        "failed": lane.failed,
        "retried": lane.retried,
        "timed_out": lane.timed_out,
        "cancelled": lane.cancelled,
        "dead_lettered": lane.dead_lettered,
    }


def _written(minute: WorkerMinute, most: int) -> list[bytes]:
    """A minute as it is stored, in as many parts as the store's limit of a value asks for."""
    raw = msgspec.json.encode(minute)
    if len(raw) <= most:
        return [raw]
    lanes = list(minute.lanes.items())
    if len(lanes) == 1:
        logger.warning(
            "the minute value of lane %r has %d bytes, and is not kept: the limit value_size of "
            "the store is %d",
            *minute.lanes,
            len(raw),
            most,
        )
        return []
    half = len(lanes) // 2
    parts = (dict(lanes[:half]), dict(lanes[half:]))
    return [
        part
        for some in parts
        for part in _written(msgspec.structs.replace(minute, lanes=some), most)
    ]
