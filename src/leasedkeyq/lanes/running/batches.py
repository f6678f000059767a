"""`Batches`: commands that wait for each other, to be handled by one call.

Each command of a batch is a run of its own: it has its slot, its lease, its handle and its
attempts. Its run waits here until the batch is called, and ends when the call has ended.
"""

import asyncio
from asyncio import AbstractEventLoop, Future, Task, TimerHandle
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from contextvars import Context
from typing import Any

from leasedkeyq.lanes.commands.command import BatchFunction
from leasedkeyq.lanes.running.job import BATCH, Job


class CommandBatch:
    """Commands that one call handles.

    Attributes:
        waiting: Each job, in order, with what its run waits for.
        task: The call, once it has begun.
        alarm: When the batch is called, full or not.
    """

    __slots__ = ("alarm", "function", "left", "task", "waiting")

    def __init__(self, function: BatchFunction[Any, Any]) -> None:
        self.function = function
        self.waiting: dict[Job, Future[Any]] = {}
        self.task: Task[None] | None = None
        self.alarm: TimerHandle | None = None
        self.left = 0
        """How many runs were interrupted."""


class Batches:
    """Gathers the runs of an engine into batches, by lane and type of command.

    Args:
        loop: Asked for the event loop.
        context: Asked for the context in which a batch is called.
        call: Calls the function of a batch with its items, for these jobs.
        limit: Told the jobs of a batch that begins now: from now on, their time counts.
        given_up: Told the jobs of a batch whose call is cancelled now: it should end soon.

    Attributes:
        calls: The calls under way, with their jobs.
        kept: Jobs whose runs were interrupted, and whose batch goes on for other jobs.
    """

    def __init__(
        self,
        loop: Callable[[], AbstractEventLoop],
        context: Callable[[], Context],
        call: Callable[[BatchFunction[Any, Any], Sequence[Job]], Awaitable[Any]],
        limit: Callable[[Sequence[Job]], None],
        given_up: Callable[[Sequence[Job]], None],
    ) -> None:
        self._loop = loop
        self._context = context
        self._call = call
        self._limit = limit
        self._given_up = given_up
        self._open: dict[tuple[str, str], CommandBatch] = {}
        self.calls: dict[Task[Any], Sequence[Job]] = {}
        self.kept: set[Job] = set()

    async def run(self, job: Job) -> Any:
        """Wait for a batch that handles a job, and for its end. Returns the result of the job.

        A run that is interrupted waits for the end of its batch all the same: until then, nothing
        else may run for its key. When all runs of a batch were interrupted, its call is cancelled:
        that is so when its time is up, which is the same for all, and when the engine stops.
        """
        batch = self._join(job)
        waiter = batch.waiting[job]
        try:
            return await waiter
        except asyncio.CancelledError:
            if batch.task is None:
                self._withdraw(job, batch)
            elif not batch.task.done():
                await self._leave(job, batch, batch.task)
            raise

    async def _leave(self, job: Job, batch: CommandBatch, call: Task[None]) -> None:
        """The run of a job was interrupted: wait for the end of its batch."""
        batch.left += 1
        self.kept.add(job)
        if batch.left == len(batch.waiting):
            call.cancel()
            self.kept.difference_update(batch.waiting)
            self._given_up(tuple(batch.waiting))
        while not call.done():
            with suppress(asyncio.CancelledError):  # middleware may have interrupted it before
                await asyncio.wait({call})
        self.kept.discard(job)

    def _join(self, job: Job) -> CommandBatch:
        """The batch that a job waits in. It begins if it is full."""
        function = job.command.function
        lane = job.partition.lane
        name = lane.id, job.kind
        batch = self._open.get(name)
        if batch is None or batch.function is not function:
            batch = self._open[name] = CommandBatch(function)
            batch.alarm = self._loop().call_later(function.within, self._begin, name, batch)
        batch.waiting[job] = self._loop().create_future()
        number = len(batch.waiting)
        # No more can come to it while it has all slots of the lane.
        if number >= function.size or number >= lane.most:
            self._begin(name, batch)
        return batch

    def _withdraw(self, job: Job, batch: CommandBatch) -> None:
        """A run was interrupted before its batch has begun: the batch does without it."""
        del batch.waiting[job]
        name = job.partition.lane.id, job.kind
        if not batch.waiting and self._open.get(name) is batch:
            del self._open[name]
            assert batch.alarm is not None
            batch.alarm.cancel()

    def _begin(self, name: tuple[str, str], batch: CommandBatch) -> None:
        if self._open.get(name) is batch:
            del self._open[name]
        assert batch.alarm is not None
        batch.alarm.cancel()
        jobs = tuple(batch.waiting)
        context = self._context().copy()
        context.run(BATCH.set, jobs)
        self._limit(jobs)
        batch.task = Task(self._handle(batch, jobs), loop=self._loop(), context=context)
        self.calls[batch.task] = jobs
        batch.task.add_done_callback(self.calls.pop)

    async def _handle(self, batch: CommandBatch, jobs: Sequence[Job]) -> None:
        """Call the function once, and tell each job what came of it."""
        outcomes: Sequence[Any]
        try:
            returned = await self._call(batch.function, jobs)
            outcomes = batch.function.outcomes(returned, len(jobs))
        except GeneratorExit:
            raise  # nothing can be done any more: the event loop was closed
        except BaseException as error:  # the runs of the jobs know what to do with it
            outcomes = [error] * len(jobs)
        for waiter, outcome in zip(batch.waiting.values(), outcomes, strict=True):
            if waiter.done():
                continue
            if isinstance(outcome, StopIteration):  # which no future takes
                failure = RuntimeError(f"its batch returned {outcome!r} for it")
                failure.__cause__ = outcome
                waiter.set_exception(failure)
            elif isinstance(outcome, BaseException):
                waiter.set_exception(outcome)
            else:
                waiter.set_result(outcome)
