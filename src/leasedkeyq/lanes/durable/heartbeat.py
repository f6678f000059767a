"""Leases of running commands: renewed together, and watched."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from leasedkeyq.errors import StoreClosedError
from leasedkeyq.lanes.durable.outbox import report
from leasedkeyq.lanes.running.job import Job
from leasedkeyq.lanes.running.lane import Lane
from leasedkeyq.model.requests import Claimed, Extend, Refusal
from leasedkeyq.stores.store import Store

LOOK_AGAIN = 0.5
"""Seconds within which a command is stopped that was cancelled in another process."""
PROGRESS_EVERY = 1.0
"""Seconds at least between two trips that tell the store how far commands have come."""


def extensions(held: Iterable[tuple[Job, Claimed]]) -> list[Extend]:
    """The batch that renews the leases of jobs, one request for each, in order.

    All that renews leases sends this: the heartbeat, and the lease guard while the event loop is
    blocked, from another thread. So it only reads. How far a command has come goes with it, if
    the store does not know that yet.
    """
    return [
        Extend(lease.queue, lease.key, lease.token, job.partition.lane.lease_time, job.untold)
        for job, lease in held
    ]


class Heartbeat:
    """Renews the leases of an engine, and finds those that are gone.

    Args:
        store: Where the leases are.
        lanes: The lanes, with the times of their leases.
        held: Every job that is leased, by the token of its lease.
        has: Whether a job runs, or is going to.
        lose: Called with a job whose lease is gone, and with that lease.

    Attributes:
        heard: Whether something has changed in a queue since the leases were looked at.
        renewed_at: When the last renewal of all leases was begun that succeeded, by the monotonic
            clock.
    """

    def __init__(
        self,
        store: Store,
        lanes: Mapping[str, Lane],
        held: Mapping[str, Job],
        has: Callable[[Job], bool],
        lose: Callable[[Job, Claimed], None],
    ) -> None:
        self.heard = False
        self.renewed_at = time.monotonic()
        self._store = store
        self._lanes = lanes
        self._held = held
        self._has = has
        self._lose = lose

    async def run(self) -> None:
        """Renew all leases, early enough, and see soon when one was revoked.

        Raises:
            StoreClosedError: The store was closed.
        """
        last = told = asyncio.get_running_loop().time()
        while True:
            interval = min((lane.heartbeat for lane in self._lanes.values()), default=10.0)
            await asyncio.sleep(min(interval, LOOK_AGAIN))
            now = asyncio.get_running_loop().time()
            began = time.monotonic()  # an event loop may have a time of its own
            try:
                if now - last + LOOK_AGAIN >= interval:
                    await self._renew([(job, job.lease) for job in self._held.values()])
                    last = told = now
                    self.renewed_at = began
                elif (
                    now - told >= PROGRESS_EVERY
                    and last + interval - LOOK_AGAIN - now >= PROGRESS_EVERY  # else it goes with it
                    and (news := self._news())
                ):
                    await self._renew(news)
                    told = now
                elif self.heard:
                    self.heard = False
                    await self._find_revoked()
            except StoreClosedError:
                raise
            except Exception as error:
                report(f"{len(self._held)} leases could not be renewed", error)

    def _news(self) -> list[tuple[Job, Claimed]]:
        """The jobs that have told how far they have come since the store last heard of it."""
        if not any(lane.told for lane in self._lanes.values()):
            return []
        for lane in self._lanes.values():
            lane.told = False  # before the look: what is told from now on is seen the next time
        return [(job, job.lease) for job in self._held.values() if job.untold is not None]

    async def _renew(self, held: Sequence[tuple[Job, Claimed]]) -> None:
        """Renew leases, and tell the store how far the commands have come."""
        if not held:
            return
        requests = extensions(held)
        try:
            answers = await self._store.settle(requests)
        except Exception:
            for job, _ in held:
                job.partition.lane.told = True
            raise
        for (job, lease), request, answer in zip(held, requests, answers, strict=True):
            if isinstance(answer, Refusal):
                self._lose(job, lease)
            elif request.progress is not None:
                job.stored_progress = request.progress

    async def _find_revoked(self) -> None:
        """End the runs of commands that another process has cancelled."""
        by_queue: dict[str, list[tuple[Job, Claimed]]] = {}
        for job in self._held.values():
            by_queue.setdefault(job.partition.queue, []).append((job, job.lease))
        for queue, held in by_queue.items():
            found = await self._store.look(queue, [job.key for job, _ in held])
            for (job, lease), items in zip(held, found, strict=True):
                here = any(
                    item.state == "in_flight"
                    and item.id == lease.id
                    and item.attempt == lease.attempt
                    for item in items
                )
                # One that has ended meanwhile may have been settled: that tells.
                if not here and self._has(job):
                    self._lose(job, lease)
