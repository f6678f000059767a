"""`CommandStacks`: where the running commands of an engine are, wherever they run.

Nothing is done until somebody asks for a stack. From then on the stack of that command is looked at
twice a second for a minute, so that the next answer can say for how long it has been the same.
"""

import time
from asyncio import Task
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec

from leasedkeyq.lanes.running.execution.processes import PoolProcess, ProcessPool
from leasedkeyq.lanes.running.execution.stacks import (
    StackFrame,
    awaitable_stack,
    thread_stack,
    told,
)
from leasedkeyq.lanes.running.execution.threads import ThreadCall, ThreadPool
from leasedkeyq.lanes.running.job import BATCH, CURRENT, Job
from leasedkeyq.telemetry.process_memory import resident_memory

SAMPLED_FOR = 60.0
"""Seconds for which a stack is looked at after somebody has asked for it."""
SAMPLED_EVERY = 0.5
"""Seconds between two such looks."""
INNERMOST = 5
"""Frames that are compared."""
MOST_SAMPLED = 20
"""Commands whose stacks are looked at."""


class TakenStack(msgspec.Struct, frozen=True):
    """The stack of a command at a moment.

    Attributes:
        where: ``"task"``, ``"thread"`` or ``"process"``.
        frames: The stack, the outermost frame first.
        memory: Resident bytes of the process.
        note: What else is to be said.
    """

    where: str
    frames: tuple[StackFrame, ...]
    memory: int
    note: str = ""


class StackSample:
    """Since when the stack of a command is what it is.

    Attributes:
        innermost: The innermost frames.
        since: When they were first seen, by the monotonic clock.
        wanted_until: When nobody wants to know any more.
    """

    __slots__ = ("innermost", "since", "wanted_until")

    def __init__(self, innermost: tuple[StackFrame, ...], now: float) -> None:
        self.innermost = innermost
        self.since = now
        self.wanted_until = now + SAMPLED_FOR


class CommandStacks:
    """Takes the stacks of commands.

    Args:
        running: The jobs whose commands run.
        batches: The calls of handlers of batches that are under way, with their jobs.
        threads: Where plain functions run.
        processes: Where functions run that compute.
        loop_thread: The thread of the event loop.
        clock: A clock that never goes back, for tests.
    """

    def __init__(
        self,
        running: Collection[Job],
        batches: Mapping[Task[Any], Sequence[Job]],
        threads: ThreadPool,
        processes: ProcessPool,
        *,
        loop_thread: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._running = running
        self._batches = batches
        self._threads = threads
        self._processes = processes
        self._loop_thread = loop_thread
        self._clock = clock
        self._samples: dict[Job, StackSample] = {}

    def find(self, queue: str, number: int) -> Job | None:
        """The job of a command that runs here, by the queue and the number of its item."""
        for job in list(self._running):
            if job.id == number and job.partition.queue == queue:
                return job
        return None

    def in_process(self, job: Job) -> PoolProcess | None:
        """The process in which a command runs; to take its stack then takes some time."""
        return self._processes.process_of(job.partition.queue, job.id)

    def take(self, job: Job) -> TakenStack:
        """The stack of a command, right now. Any thread may ask.

        For a command in a process, this waits for the answer of that, for a second at most.
        """
        process = self.in_process(job)
        if process is not None:
            answer = process.ask_stack()
            if answer is None:
                note = "its process does not answer: it may run code that is not Python's"
                return TakenStack("process", (), 0, note)
            return TakenStack("process", answer.frames, answer.memory)
        call = self._thread_call(job)
        if call is not None:
            frames = told(thread_stack(call.thread))
            return TakenStack("thread", frames, resident_memory(), self._batch_note(job))
        task = self._task(job)
        frames = told(awaitable_stack(task, self._loop_thread()))
        return TakenStack("task", frames, resident_memory(), self._batch_note(job))

    def _thread_call(self, job: Job) -> ThreadCall | None:
        for call in list(self._threads.calls):
            context = call.context
            if call.thread and (context.get(CURRENT) is job or job in context.get(BATCH, ())):
                return call
        return None

    def _task(self, job: Job) -> Task[Any] | None:
        for task, jobs in list(self._batches.items()):
            if job in jobs:
                return task
        return job.task

    def _batch_note(self, job: Job) -> str:
        for jobs in list(self._batches.values()):
            if job in jobs:
                return f"it is one of {len(jobs)} commands of a batch"
        return ""

    # For how long

    def unchanged_for(self, job: Job, stack: TakenStack) -> float | None:
        """For how many seconds the innermost frames have been the same; None: not known yet.

        Somebody has asked: from now on the stack is looked at for a while.
        """
        known = job in self._samples
        seconds = self._note(job, stack)
        sample = self._samples.get(job)
        if sample is not None:
            sample.wanted_until = self._clock() + SAMPLED_FOR
        return seconds if known else None

    def _note(self, job: Job, stack: TakenStack) -> float:
        now = self._clock()
        innermost = stack.frames[-INNERMOST:]
        sample = self._samples.get(job)
        if sample is None:
            if len(self._samples) < MOST_SAMPLED:
                self._samples[job] = StackSample(innermost, now)
            return 0.0
        if sample.innermost != innermost:
            sample.innermost = innermost
            sample.since = now
        return now - sample.since

    def sampled(self) -> list[Job]:
        """The jobs whose stacks are to be looked at now and then."""
        now = self._clock()
        for job, sample in list(self._samples.items()):
            if now > sample.wanted_until or job not in self._running:
                self._samples.pop(job, None)
        return list(self._samples)

    def look_again(self, job: Job) -> None:
        """Look at the stack of a command for which somebody has asked."""
        if job in self._samples:
            self._note(job, self.take(job))
