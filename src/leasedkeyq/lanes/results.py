"""Waiting for commands that another process may run: their results come from the store."""

import asyncio
from asyncio import Task
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol
from weakref import WeakValueDictionary

from leasedkeyq.errors import StoreClosedError, describe
from leasedkeyq.lanes.command import CommandRegistry
from leasedkeyq.lanes.envelope import failure, outcome
from leasedkeyq.lanes.errors import CommandCancelledError, CommandLostError
from leasedkeyq.lanes.job import ENDED, CommandStatus, Job
from leasedkeyq.lanes.lane import Share
from leasedkeyq.lanes.outbox import FIRST_PAUSE, LONGEST_PAUSE, report
from leasedkeyq.stores.contract import StoredItem
from leasedkeyq.stores.store import Store

SHORTEST = 0.005
"""Seconds between two looks at the store."""
AT_ONCE = 500
"""Commands in one look."""


class Finish(Protocol):
    """Ends a job."""

    def __call__(
        self,
        job: Job,
        status: CommandStatus,
        result: Any = None,
        error: BaseException | None = None,
    ) -> None:
        """End `job`."""
        ...


class ResultWatch:
    """The jobs of this process on a store, and how those end that it does not run itself.

    Attributes:
        jobs: All that anybody here still refers to, by the id of their items.
    """

    def __init__(self, store: Store, registry: CommandRegistry, finish: Finish) -> None:
        self.jobs: WeakValueDictionary[int, Job] = WeakValueDictionary()
        self._store = store
        self._registry = registry
        self._finish = finish
        self._expected: dict[int, Job] = {}
        self._news = asyncio.Event()
        self._task: Task[None] | None = None
        self._closed: Callable[[Job], Exception] | None = None

    def expect(self, job: Job) -> None:
        """Somebody waits for `job`, which this process does not run at present."""
        if self._closed is not None:
            job.end("lost", None, self._closed(job))
            return
        self._expected[job.id] = job
        self._news.set()
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    def look(self) -> None:
        """Something has changed in a queue."""
        self._news.set()

    def close(self, error: Callable[[Job], Exception]) -> None:
        """Tell all who wait that nobody looks any more."""
        self._closed = error
        if self._task is not None:
            self._task.cancel()
        for job in list(self.jobs.values()):
            if job.status not in ENDED:
                job.end("lost", None, error(job))

    async def _run(self) -> None:
        """Look whenever something has changed, until nobody waits."""
        loop = asyncio.get_running_loop()
        pause = FIRST_PAUSE
        while self._expected:
            await self._news.wait()
            self._news.clear()
            began = loop.time()
            try:
                await self._look_at_all()
            except StoreClosedError as error:
                for job in list(self._expected.values()):
                    job.end("lost", None, error)
                return
            except Exception as error:
                report("results could not be read", error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                self._news.set()
                continue
            pause = FIRST_PAUSE
            # Looking takes at most a third of the time.
            await asyncio.sleep(max(SHORTEST, 2 * (loop.time() - began)))

    async def _look_at_all(self) -> None:
        by_queue: dict[Share, list[Job]] = {}
        for job in list(self._expected.values()):
            if not job.remote or job.status in ENDED or not job.waiters:
                del self._expected[job.id]
            else:
                by_queue.setdefault(job.share, []).append(job)
        for share, jobs in by_queue.items():
            for first in range(0, len(jobs), AT_ONCE):
                await self._look_at(share, jobs[first : first + AT_ONCE])

    async def _look_at(self, share: Share, jobs: list[Job]) -> None:
        found = await self._store.results(share.queue, [job.id for job in jobs])
        left: list[Job] = []
        for job, item in zip(jobs, found, strict=True):
            if item is None:
                left.append(job)
            else:
                self._end(job, item)
        if left:
            alive = await self._store.look(share.queue, [job.key for job in left])
            for job, items in zip(left, alive, strict=True):
                await self._follow(job, items)

    def _end(self, job: Job, item: StoredItem) -> None:
        if not _open(job):
            return
        returns = self._registry.returns(job.kind)
        result, error = outcome(item.value, returns, job.share.lane.id, job.kind, job.key)
        job.attempt = item.attempt
        if isinstance(error, CommandCancelledError):
            self._finish(job, "cancelled", None, error)
        else:
            self._finish(job, "completed" if error is None else "failed", result, error)

    async def _follow(self, job: Job, items: tuple[StoredItem, ...]) -> None:
        """It has no result (yet): it is alive, or buried, or a newer command took its place."""
        for item in items:
            if item.id == job.id:
                if _open(job):
                    job.attempt = item.attempt
                    job.status = _STATUS[item.state]
                return
        # Between the two looks it may have ended: look once more at what it left.
        again = (await self._store.results(job.share.queue, [job.id]))[0]
        if again is not None:
            self._end(job, again)
            return
        async for buried in self._buried(job):
            if buried.id == job.id:
                if _open(job):
                    error = failure(buried.error, job.share.lane.id, job.kind, job.key)
                    job.attempt = buried.attempt
                    self._finish(job, "failed", None, error)
                return
        if not _open(job):
            return
        newer = [item for item in items if item.id > job.id]
        if newer:
            self._succeed(job, newer[-1])
            return
        lane = job.share.lane.id
        lost = CommandLostError(
            f"lane {lane!r}: command {job.kind!r} of key {describe(job.key)} has left the store "
            "without a result: it was purged, removed, replaced by a newer command of its key, or "
            "its result was kept too short",
            lane=lane,
            command_type=job.kind,
            key=job.key,
        )
        self._finish(job, "lost", None, lost)

    def _succeed(self, job: Job, item: StoredItem) -> None:
        """The buffered command took its place: whoever waits, waits for that one."""
        successor = self.jobs.get(item.id)
        if successor is None:
            successor = Job(
                item.id, job.share, item.kind, job.key, None, job.submitted_at, 0, None, None
            )
            successor.remote = True
            self.jobs[item.id] = successor
        job.follow(successor)
        if successor.remote:
            self.expect(successor)

    async def _buried(self, job: Job) -> AsyncIterator[StoredItem]:
        cursor: str | None = None
        while True:
            page = await self._store.browse(
                job.share.queue, states=("buried",), prefix=job.key, cursor=cursor, limit=100
            )
            for item in page.items:
                if item.key == job.key:
                    yield item
            cursor = page.cursor
            if cursor is None:
                return


def _open(job: Job) -> bool:
    """Whether the store still has the say, and not a run of this process, since it was asked."""
    return job.remote and job.status not in ENDED


_STATUS: dict[str, CommandStatus] = {
    "available": "pending",
    "buffered": "pending",
    "scheduled": "scheduled",
    "in_flight": "running",
}
