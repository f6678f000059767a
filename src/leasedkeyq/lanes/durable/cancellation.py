"""Cancelling commands of a store: those that run here, that wait here, and all others."""

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from leasedkeyq.lanes.durable.envelope import CANCELLED
from leasedkeyq.lanes.durable.prefetch import Prefetch
from leasedkeyq.lanes.durable.results import ResultWatch
from leasedkeyq.lanes.running.job import ENDED, Interruption, Job
from leasedkeyq.lanes.running.lane import Lane, Partition
from leasedkeyq.model.requests import Cancel, Change, Put, StoredItem
from leasedkeyq.stores.store import Store

logger = logging.getLogger("leasedkeyq")

LATELY = 1000
"""Commands. So many are remembered after they were cancelled."""


class Cancels(Protocol):
    """What is needed of the engine."""

    store: Store
    running: set[Job]
    _prefetch: Prefetch
    _held: dict[str, Job]
    _results: ResultWatch

    def _cancel_run(self, job: Job) -> None: ...
    def _interrupt(self, job: Job, why: Interruption) -> None: ...
    def _end_cancelled(self, job: Job) -> None: ...
    def _give_back(self, job: Job) -> None: ...


class Cancelling:
    """Cancels commands of an engine.

    Attributes:
        lately: The ids of what was cancelled of late. A claim that is under way may bring it.
    """

    def __init__(self, engine: Cancels) -> None:
        self.lately: dict[int, None] = {}
        self._engine = engine

    async def cancel(self, lane: Lane, key: str) -> bool:
        """As `LaneEngine.cancel`."""
        partition = lane.partition_of(key)
        running = self._engine.running
        mine = {
            job.id: job
            for job in running
            if job.key == key and job.partition is partition and job.interruption != "lost"
        }
        cancelled = await self._stored(partition, key, lambda number: number not in mine)
        for job in mine.values():
            if job in running:
                self._engine._cancel_run(job)
                cancelled = True
            else:  # it has ended meanwhile, maybe to be tried again
                cancelled |= await self.cancel_job(job.latest())
        return cancelled

    async def cancel_job(self, job: Job) -> bool:
        """As `LaneEngine.cancel_job`."""
        if job.status in ENDED:
            return False
        if job in self._engine.running:
            self._engine._cancel_run(job)
            return True
        return await self._stored(job.partition, job.key, lambda number: number == job.id)

    async def elsewhere(self, job: Job) -> None:
        """Its lease was lost before it could be cancelled: somebody else has it by now."""
        try:
            await self._stored(job.partition, job.key, lambda number: number == job.id)
        except Exception as error:
            lane = job.partition.lane.id
            logger.warning("lane %r: key %r was not cancelled: %s", lane, job.key, error)

    async def _stored(self, partition: Partition, key: str, wanted: Callable[[int], bool]) -> bool:
        """Cancel those items of a key in the store whose ids are wanted.

        One that waits here for a slot does not begin meanwhile.
        """
        engine = self._engine
        cancelled: list[int] = []
        aside = [job for job in engine._prefetch.of_key(partition, key) if wanted(job.id)]

        def work(items: Sequence[StoredItem]) -> list[Put | Change]:
            live = [item.id for item in items if item.state not in ("done", "buried")]
            cancelled.extend(filter(wanted, live))
            keep = partition.lane.keep_results
            return [Cancel(partition.queue, key, CANCELLED, keep, number) for number in cancelled]

        for job in aside:
            engine._prefetch.remove(job)
        try:
            await engine.store.edit(partition.queue, work, keys=[key])
        except BaseException:
            for job in aside:
                engine._give_back(job)
            raise
        for job in aside:
            if job.id in cancelled:
                engine._held.pop(job.lease.token, None)
            else:
                engine._give_back(job)
        for number in cancelled:
            self.lately[number] = None
            found = engine._results.jobs.get(number)
            if found is not None and found.status not in ENDED:
                if found.lease is not None:  # it may have been claimed meanwhile, and have begun
                    engine._held.pop(found.lease.token, None)
                engine._prefetch.remove(found)
                if found in engine.running and found.interruption is None:
                    engine._interrupt(found, "lost")
                engine._end_cancelled(found)
        while len(self.lately) > LATELY:
            del self.lately[next(iter(self.lately))]
        return bool(cancelled)
