"""Waiting for commands that another process may run: their results come from the store."""

import asyncio
from asyncio import Task, TimerHandle
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from typing import Any, Protocol
from weakref import WeakValueDictionary

from leasedkeyq.errors import StoreClosedError
from leasedkeyq.lanes.commands.command import CommandRegistry
from leasedkeyq.lanes.durable.envelope import Continuation, coalesces, continuation, outcome
from leasedkeyq.lanes.durable.outbox import FIRST_PAUSE, LONGEST_PAUSE, report
from leasedkeyq.lanes.errors import CommandCancelledError, CommandLostError
from leasedkeyq.lanes.running.job import ENDED, CommandStatus, Job
from leasedkeyq.lanes.running.lane import Lane, Partition
from leasedkeyq.lanes.running.remote_errors import failure
from leasedkeyq.model.requests import StoredItem
from leasedkeyq.stores.store import Store

SHORTEST = 0.005
"""Seconds between two looks at the store."""
AT_ONCE = 500
"""Commands in one look."""
IN_LINE = ("buffered", "in_line")
"""The states of values behind the head of a key. `Store.look` shows the first of them only."""
UNAWAITED = 0.5
"""Seconds between two looks at commands that no task awaits, though their handles may be asked."""
UNAWAITED_AT_ONCE = 100
UNAWAITED_SHARE = 0.02
"""Of the time that such looks may take: beyond some hundred commands they become rarer."""


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

    Jobs that a task awaits are looked at whenever something has changed in their queue. Jobs
    that have only a handle are looked at more rarely, so that the handle tells soon where its
    command stands.

    Args:
        store: Where the commands are.
        registry: Their types.
        finish: Ends a job.
        watch: Has `look` called when something changes in a queue.
        spawn: Begins a task of the engine.
        lanes: The lanes by name: a chain may go on in another one.

    Attributes:
        jobs: All that a handle or a task of this process still refers to, by the id of their items.
    """

    def __init__(
        self,
        store: Store,
        registry: CommandRegistry,
        finish: Finish,
        watch: Callable[[Partition], None],
        spawn: Callable[[Coroutine[Any, Any, None], str], Task[None]],
        *,
        lanes: Mapping[str, Lane],
    ) -> None:
        self.jobs: WeakValueDictionary[int, Job] = WeakValueDictionary()
        self._store = store
        self._registry = registry
        self._finish = finish
        self._watch = watch
        self._spawn = spawn
        self._lanes = lanes
        self._expected: dict[int, Job] = {}
        self._news = asyncio.Event()
        self._task: Task[None] | None = None
        self._changed = asyncio.Event()
        self._soon: TimerHandle | None = None
        self._refreshing: Task[None] | None = None
        self._refreshed: set[Partition] = set()
        """The partitions that are looked at for jobs that no task awaits."""
        self._closed: Callable[[Job], Exception] | None = None

    def refresh(self, partition: Partition) -> None:
        """There are jobs that no task awaits yet: let their handles tell where they stand."""
        if self._refreshing is not None:
            if partition not in self._refreshed:
                self._changed.set()
        elif self._soon is None:
            # Most jobs are gone by then, or a task awaits them.
            self._soon = asyncio.get_running_loop().call_later(UNAWAITED, self._begin_to_refresh)

    def _begin_to_refresh(self) -> None:
        self._soon = None
        if self._unawaited():
            self._changed.set()
            self._refreshing = self._spawn(self._refresh(), "status of handles")

    def expect(self, job: Job) -> None:
        """A task awaits `job`, which this process does not run at present."""
        if self._closed is not None:
            job.end("lost", None, self._closed(job))
            return
        self._expected[job.id] = job
        self._news.set()
        if self._task is None or self._task.done():
            self._task = self._spawn(self._run(), "results")

    def look(self) -> None:
        """Something has changed in a queue."""
        self._news.set()
        self._changed.set()

    def close(self, error: Callable[[Job], Exception]) -> list[Task[None]]:
        """End every open job with `error`; returns the tasks that end now."""
        self._closed = error
        if self._soon is not None:
            self._soon.cancel()
        tasks = [task for task in (self._task, self._refreshing) if task is not None]
        for job in list(self.jobs.values()):
            if job.status not in ENDED:
                job.end("lost", None, error(job))
        return tasks

    async def _run(self) -> None:
        """Look whenever something has changed, as long as tasks await jobs."""
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

    async def _refresh(self) -> None:
        """Look at jobs that no task awaits, as long as there are handles of any."""
        loop = asyncio.get_running_loop()
        pause = UNAWAITED
        try:
            while partitions := {job.partition for job in self._unawaited()}:
                began = loop.time()
                try:
                    self._refreshed = partitions
                    for partition in partitions:
                        self._watch(partition)
                    await self._changed.wait()
                    self._changed.clear()
                    began = loop.time()
                    await self._look_at_unawaited()
                except StoreClosedError:
                    return
                except Exception as error:
                    report("where commands stand could not be read", error)
                    self._changed.set()
                    pause = min(2 * pause, LONGEST_PAUSE)
                else:
                    pause = max(UNAWAITED, (loop.time() - began) / UNAWAITED_SHARE)
                await asyncio.sleep(pause)
        finally:
            self._refreshing = None

    async def look_at(self, job: Job) -> None:
        """Look at one job, unless this process runs it or knows how it has ended."""
        while self._closed is None and _open(job):
            await self._look_at(job.partition, [job])
            if job.successor is None:
                return
            job = job.latest()  # the next step of a chain
        if self._closed is None and job.attempt > 1 and job.last_progress is None:
            await self._recall(job)

    async def _recall(self, job: Job) -> None:
        """Find what an attempt in another process told of a job that runs here, or has run here."""
        queue = job.partition.queue
        [alive] = await self._store.look(queue, [job.key])
        for item in (*alive, *await self._store.results(queue, [job.id])):
            if item is not None and item.id == job.id and job.last_progress is None:
                job.stored_progress = item.progress

    async def look_at_open(self) -> None:
        """Look at every job that has not ended here, though no command is left in the store."""
        seen: set[int] = set()
        while jobs := [
            job for job in list(self.jobs.values()) if _open(job) and job.id not in seen
        ]:
            # The next steps of chains come to light one after the other.
            seen.update(job.id for job in jobs)
            await self._look_at_jobs(jobs)

    async def _look_at_unawaited(self) -> None:
        by_queue: dict[Partition, list[int]] = {}
        for job in self._unawaited():
            by_queue.setdefault(job.partition, []).append(job.id)
        for partition, numbers in by_queue.items():
            for first in range(0, len(numbers), UNAWAITED_AT_ONCE):
                some = numbers[first : first + UNAWAITED_AT_ONCE]
                # Only jobs that have a handle: this must not be the last reference to one.
                found = [self.jobs.get(number) for number in some]
                jobs = [job for job in found if job and _open(job) and not job.waiters]
                if jobs:
                    await self._look_at(partition, jobs)

    def _unawaited(self) -> list[Job]:
        return [job for job in list(self.jobs.values()) if _open(job) and not job.waiters]

    async def _look_at_all(self) -> None:
        for job in list(self._expected.values()):
            if not job.remote or job.status in ENDED or not job.waiters:
                del self._expected[job.id]
        await self._look_at_jobs(self._expected.values())

    async def _look_at_jobs(self, open_jobs: Iterable[Job]) -> None:
        by_queue: dict[Partition, list[Job]] = {}
        for job in open_jobs:
            by_queue.setdefault(job.partition, []).append(job)
        for partition, jobs in by_queue.items():
            for first in range(0, len(jobs), AT_ONCE):
                await self._look_at(partition, jobs[first : first + AT_ONCE])

    async def _look_at(self, partition: Partition, jobs: list[Job]) -> None:
        found = await self._store.results(partition.queue, [job.id for job in jobs])
        left: list[Job] = []
        for job, item in zip(jobs, found, strict=True):
            if item is None or item.key != job.key:  # an id that was made up names another key
                left.append(job)
            else:
                self._end(job, item)
        if left:
            alive = await self._alive(partition, left)
            for job in left:
                await self._follow(job, alive[job.key])

    async def _alive(
        self, partition: Partition, jobs: list[Job]
    ) -> dict[str, tuple[StoredItem, ...]]:
        """By key: its head, the first of its line, and those of `jobs` that wait in its line."""
        keys = list(dict.fromkeys(job.key for job in jobs))
        found = await self._store.look(partition.queue, keys)
        alive = dict(zip(keys, found, strict=True))
        numbers: dict[str, list[int]] = {}
        for job in jobs:
            numbers.setdefault(job.key, []).append(job.id)
        for key, items in alive.items():
            if not items or items[-1].state not in IN_LINE:
                continue  # there is no line
            deeper: list[int] = sorted(n for n in numbers[key] if n > items[-1].id)
            more: list[StoredItem] = []
            while deeper:
                cursor = str(deeper[0] - 1)
                page = await self._store.line(partition.queue, key, cursor=cursor, limit=AT_ONCE)
                if not page.items:
                    break
                more += page.items
                deeper = [number for number in deeper if number > page.items[-1].id]
            alive[key] = (*items, *more)
        return alive

    def _end(self, job: Job, item: StoredItem) -> None:
        if not _open(job):
            return
        job.kind = item.kind or job.kind  # a submission of another type may have been skipped
        step = continuation(item.value)
        if step is not None:
            self._continue(job, step)
            return
        returns = self._registry.returns(job.kind)
        result, error = outcome(item.value, returns, job.partition.lane.id, job.kind, job.key)
        job.attempt = item.attempt
        _take_progress(job, item)
        if isinstance(error, CommandCancelledError):
            self._finish(job, "cancelled", None, error)
        else:
            self._finish(job, "completed" if error is None else "failed", result, error)

    def _continue(self, job: Job, step: Continuation) -> None:
        """A step of a chain is done: the next one stands for it."""
        lane = self._lanes.get(step.lane)
        if lane is None:
            lost = CommandLostError(
                f"lane {job.partition.lane.id!r}: the chain of {job.name} goes on in lane "
                f"{step.lane!r}, which this manager does not have; give it that lane, too",
                lane=step.lane,
                command_type=job.kind,
                key=job.key,
            )
            self._finish(job, "lost", None, lost)
            return
        successor = self.jobs.get(step.id)
        if successor is None:
            partition, began = lane.partition_of(step.key), job.submitted_at
            successor = Job(step.id, partition, step.type, step.key, None, began, 0, None, None)
            successor.remote = True
            self.jobs[step.id] = successor
        self.go_on(job, successor)

    def go_on(self, job: Job, successor: Job) -> None:
        """A step of a chain is done, and `successor` stands for it from now on."""
        job.follow(successor)
        self._finish(job, "completed")
        last = successor.latest()
        if _open(last):
            if last.waiters:
                self._watch(last.partition)
                self.expect(last)
            else:
                self.refresh(last.partition)

    async def _follow(self, job: Job, items: tuple[StoredItem, ...]) -> None:
        """The command has no result (yet): it is alive, buried, or a newer one took its place."""
        for item in items:
            if item.id == job.id:
                job.uncommitted = False
                if _open(job):
                    job.kind = item.kind
                    job.attempt = item.attempt
                    job.status = _STATUS[item.state]
                    _take_progress(job, item)
                return
        # Between the two looks it may have ended: look once more at what it left.
        again = (await self._store.results(job.partition.queue, [job.id]))[0]
        if again is not None and again.key == job.key:
            self._end(job, again)
            return
        async for buried in self._buried(job):
            if buried.id == job.id:
                if _open(job):
                    job.kind = buried.kind
                    error, timed_out = failure(
                        buried.error,
                        self._registry.module_of(job.kind),
                        lane=job.partition.lane.id,
                        command_type=job.kind,
                        key=job.key,
                    )
                    job.attempt = buried.attempt
                    _take_progress(job, buried)
                    self._finish(job, "timed_out" if timed_out else "failed", None, error)
                return
        if not _open(job) or job.uncommitted:
            return
        newer = next((item for item in items if item.id > job.id), None)
        if newer is not None and coalesces(newer):
            self._succeed(job, newer)
            return
        successor = self._next_of_key(job)
        if successor is not None:
            # It took the place of this one, and has ended since: its end is told for both.
            job.follow(successor)
            if _open(successor):
                self.expect(successor)
            return
        lane = job.partition.lane.id
        lost = CommandLostError(
            f"lane {lane!r}: {job.name} has left the store "
            "without a result: it was purged, removed, replaced by a newer command of its key, or "
            "its result was kept too short",
            lane=lane,
            command_type=job.kind,
            key=job.key,
        )
        self._finish(job, "lost", None, lost)

    def _succeed(self, job: Job, item: StoredItem) -> None:
        """A buffered command took the place of `job`: tasks that await `job` wait for that one."""
        successor = self.jobs.get(item.id)
        if successor is None:
            successor = Job(
                item.id, job.partition, item.kind, job.key, None, job.submitted_at, 0, None, None
            )
            successor.remote = True
            self.jobs[item.id] = successor
        job.follow(successor)
        if successor.remote:
            self.expect(successor)

    def _next_of_key(self, job: Job) -> Job | None:
        """The command of the same key that was submitted here after `job`, if it has a handle."""
        later = [
            other
            for other in list(self.jobs.values())
            if other.partition is job.partition and other.key == job.key and other.id > job.id
        ]
        following = min(later, key=lambda other: other.id, default=None)
        return following if following is not None and following.coalesces else None

    async def _buried(self, job: Job) -> AsyncIterator[StoredItem]:
        cursor: str | None = None
        while True:
            page = await self._store.browse(
                job.partition.queue, states=("buried",), prefix=job.key, cursor=cursor, limit=100
            )
            for item in page.items:
                if item.key == job.key:
                    yield item
            cursor = page.cursor
            if cursor is None:
                return


def _take_progress(job: Job, item: StoredItem) -> None:
    """What the store has of how far a command has come."""
    if item.progress is not None:
        job.progress = job.stored_progress = item.progress


def _open(job: Job) -> bool:
    """Whether the store still has the say, and not a run of this process, since it was asked."""
    return job.remote and job.status not in ENDED


_STATUS: dict[str, CommandStatus] = {
    "available": "pending",
    "buffered": "pending",
    "in_line": "pending",
    "scheduled": "scheduled",
    "in_flight": "running",
}
