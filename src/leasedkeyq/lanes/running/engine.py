"""What every engine of the scheduler has in common: running commands, and judging how they end.

An engine owns the commands of all lanes: in memory, or on a store. This class starts a command
that has its slot, keeps its time, cancels it, and decides what becomes of it. Where commands
wait and how an outcome is kept is the matter of its subclasses.
"""

import asyncio
import contextvars
import logging
import os
import signal
import time
from abc import ABC, abstractmethod
from asyncio import AbstractEventLoop, Future, Task, TimerHandle
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import timedelta
from functools import partial
from inspect import isawaitable
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import msgspec

from leasedkeyq import checks
from leasedkeyq.errors import (
    KeyAlreadyPresentError,
    LimitExceededError,
    WrongEventLoopError,
    describe,
)
from leasedkeyq.lanes import events
from leasedkeyq.lanes.commands.command import (
    BatchFunction,
    CommandCall,
    CommandFunction,
    CommandRegistry,
)
from leasedkeyq.lanes.commands.resources import RESOURCES, Resources
from leasedkeyq.lanes.commands.submit_terms import SubmitTerms
from leasedkeyq.lanes.dead_letters import DeadLetter
from leasedkeyq.lanes.errors import (
    CommandCancelledError,
    CommandExitError,
    CommandProcessError,
    CommandTimeoutError,
    LaneError,
    ManagerClosedError,
    ManagerFailedError,
    UnknownCommandError,
)
from leasedkeyq.lanes.events import EventEmitter
from leasedkeyq.lanes.running.batches import Batches
from leasedkeyq.lanes.running.command_id import CommandName, parse_command_id
from leasedkeyq.lanes.running.error_text import error_line
from leasedkeyq.lanes.running.execution.command_stacks import CommandStacks
from leasedkeyq.lanes.running.execution.loop_watch import LoopWatch
from leasedkeyq.lanes.running.execution.process_child import Failed, ProcessCall, ProcessLoad
from leasedkeyq.lanes.running.execution.processes import (
    ProcessDiedError,
    ProcessPool,
    ProcessStartError,
)
from leasedkeyq.lanes.running.execution.threads import ThreadPool
from leasedkeyq.lanes.running.job import (
    BATCH,
    CURRENT,
    CommandStatus,
    Handle,
    Interruption,
    Job,
    current_command,
)
from leasedkeyq.lanes.running.lane import Lane, Partition, Slots
from leasedkeyq.lanes.running.middleware import Middleware, surrounded
from leasedkeyq.lanes.running.pending_write import WRITTEN, PendingWrite
from leasedkeyq.lanes.running.remote_errors import failure, split
from leasedkeyq.lanes.running.tracing import GuardedTracing
from leasedkeyq.lanes.workflow.steps import WorkflowStep
from leasedkeyq.model.requests import Urgency
from leasedkeyq.model.timers import Timers
from leasedkeyq.telemetry.instrument import (
    AttemptEnd,
    AttemptStart,
    DeadLetteredCommand,
    Instrument,
    Outcome,
    SubmittedCommand,
    Tracing,
)
from leasedkeyq.telemetry.metrics import LaneMetrics
from leasedkeyq.telemetry.several import INSTRUMENT_FAILED, together
from leasedkeyq.telemetry.stats import QueueStats

logger = logging.getLogger("leasedkeyq")

Submitted: TypeAlias = tuple[str | None, str, Any]
"""A command to be submitted: its key, if it has one, its type and itself."""


FAILED = "the manager runs no more commands: "


class LaneEngine(ABC):
    """Runs the commands of lanes, in one event loop.

    Args:
        lanes: The lanes by name.
        registry: The types of commands, with their policies.
        slots: How many commands may run.
        emitter: Told of everything that happens.
        instruments: Told the numbers.
        tracing: Told the spans, where there is one.
        clock: Unix time, for tests.
    """

    def __init__(
        self,
        lanes: dict[str, Lane],
        *,
        registry: CommandRegistry,
        slots: Slots,
        emitter: EventEmitter,
        instruments: Sequence[Instrument] = (),
        tracing: Tracing | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.lanes = lanes
        self.registry = registry
        self.clock = clock
        self.slots = slots
        self.emitter = emitter
        self.running: set[Job] = set()
        self.started = False
        self.stopped = False
        self.shutting_down = False
        self.failure: ManagerClosedError | None = None
        """Why this engine runs no more commands, once one of its tasks has ended unexpectedly."""
        self._until_failure: Future[None] | None = None
        self._letting_go = False
        """Whether the engine ends its tasks itself, because it is being closed."""
        self._metrics = next((one for one in instruments if isinstance(one, LaneMetrics)), None)
        """Counted in place, which costs half as much as telling it like the others."""
        self._instrument = together([one for one in instruments if one is not self._metrics])
        self._tracing = None if tracing is None else GuardedTracing(tracing)
        self.bound_loop: AbstractEventLoop | None = None
        self.bound_process = 0
        """The process of that loop. After a fork, the loop of the old process seems to run."""
        self._context = contextvars.Context()
        self.middleware: Sequence[Middleware] = ()
        self._quiet: list[Future[None]] = []
        self._abandoned: set[Task[None]] = set()
        self._threads = ThreadPool()
        self._processes = ProcessPool()
        self._batches = Batches(
            lambda: self._loop,
            lambda: self._context,
            self._call_batch,
            self._limit_batch,
            self._batch_given_up,
        )
        self.loop_watch = LoopWatch(self.running, self._batches.calls)
        self.stacks = CommandStacks(
            self.running,
            self._batches.calls,
            self._threads,
            self._processes,
            loop_thread=lambda: self.loop_watch.loop_thread,
        )
        self._own_timeouts: WeakKeyDictionary[Job, float | None] = WeakKeyDictionary()
        """The time-outs of jobs for which a batch has a shorter one: a retry has its own again."""
        self._in_threads: set[Job] = set()
        """Jobs whose functions run in a thread now, which cannot be ended from outside."""
        self._stopping = False
        self._limits = Timers()
        """Until when commands may run, and how long to wait for those that were cancelled.

        One alarm for all is set only for the earliest: most commands end long before.
        """
        self._limit_alarm: TimerHandle | None = None
        self._looks = 0
        self.partitions: list[Partition] = []
        for lane in lanes.values():
            self.add_lane(lane)

    def add_lane(self, lane: Lane) -> None:
        """Serve one more lane.

        Raises:
            ValueError: Its priority, or that of its boost, is beyond 2**52.
        """
        urgency = Urgency(lane.priority, lane.boost.deadline, lane.boost.steps)
        for partition in lane.partitions:
            partition.urgency = urgency
        self.partitions += lane.partitions
        self.slots.add(lane)
        self.partitions.sort(
            key=lambda partition: (partition.lane.priority, partition.lane.index, partition.index)
        )

    async def submit_within(
        self, connection: Any, lane: Lane, commands: Sequence[Submitted], terms: SubmitTerms
    ) -> list[Job]:
        """Put commands in the transaction that is open on a connection of the caller.

        Raises:
            LaneError: Only a store on PostgreSQL can.
        """
        del connection, commands, terms
        raise LaneError(
            f"lane {lane.id!r}: a command can be submitted in a transaction only if the lanes are "
            "on a store on PostgreSQL; submit it without connection"
        )

    async def resubmit_held(self, lane: Lane, letter: DeadLetter, command: Any) -> bool:
        """Let a dead letter in memory that holds its key run before those that wait behind it.

        Returns whether it held its key.
        """
        del lane, letter, command
        return False

    def limit_processes(self, most: int) -> None:
        """Let at most so many processes run commands."""
        self._processes.most = most

    def add_instrument(self, instrument: Instrument) -> None:
        """Tell the numbers to one more."""
        self._instrument = together([instrument, *([self._instrument] if self._instrument else [])])

    @property
    def _loop(self) -> AbstractEventLoop:
        """The event loop that this engine belongs to: that of its first use."""
        if self.bound_loop is None:
            self.bound_loop = asyncio.get_running_loop()
            self.bound_process = os.getpid()
            self._context = contextvars.copy_context()
        return self.bound_loop

    def give_resources(self, resources: Resources) -> None:
        """Let commands that are begun from now on have these resources."""
        self.check_loop()  # the context is that of the first use
        self._context.run(RESOURCES.set, resources)

    def check_loop(self) -> None:
        """Refuse to work in another event loop than that of the first use."""
        if self._loop is not asyncio.get_running_loop():
            raise WrongEventLoopError(
                "the manager belongs to another event loop; from another thread, go through "
                "asyncio.run_coroutine_threadsafe(manager.submit(...), loop)"
            )

    def check_outside(self) -> None:
        """Refuse to let a command wait until all commands are done."""
        job = CURRENT.get(None)
        if job is None:
            job = next(iter(BATCH.get()), None)
        elif job.task is not asyncio.current_task():
            job = None
        if job is not None and job in self.running:
            lane = job.partition.lane.id
            raise LaneError(
                f"lane {lane!r}: command {job.kind!r} would wait for itself; no command can drain "
                "the manager that runs it",
                lane=lane,
            )

    # Failing

    def _spawn(
        self,
        work: Coroutine[Any, Any, None],
        name: str,
        needed: Callable[[], bool] = lambda: False,
    ) -> Task[None]:
        """Begin a task of this engine. If the task ends unexpectedly, the engine has failed.

        A task ends unexpectedly if it raises, if it is cancelled before the engine lets go of its
        tasks, or if it returns while `needed` says that the engine cannot do without it.
        """
        task = self._loop.create_task(work, name=f"leasedkeyq {name}")
        task.add_done_callback(partial(self._task_ended, needed))
        return task

    def _task_ended(self, needed: Callable[[], bool], task: Task[None]) -> None:
        if task.cancelled():
            if not self._letting_go and self.failure is None:
                self._task_failed(task, "it was cancelled")
        elif (error := task.exception()) is not None:
            self._task_failed(task, repr(error), error)
        elif needed() and self.failure is None:
            self._task_failed(task, "it has returned")

    def _task_failed(self, task: Task[None], why: str, error: BaseException | None = None) -> None:
        name = task.get_name()
        logger.error("%s has ended unexpectedly: %s", name, why, exc_info=error)
        text = f"{FAILED}its task {name!r} has ended unexpectedly: {why}"
        self.fail(ManagerFailedError(text), error)

    def fail(self, failure: ManagerClosedError, cause: BaseException | None) -> None:
        """Run no more commands, and raise `failure` to every caller that waits for one."""
        if self.failure is not None:
            return
        self.failure = failure
        failure.__cause__ = cause
        self.stopped = True
        if self._until_failure is not None and not self._until_failure.done():
            self._until_failure.set_result(None)
        for job in self._unfinished_jobs():
            job.end("lost", None, self.failure)

    @abstractmethod
    def _unfinished_jobs(self) -> list[Job]:
        """Every job of this engine that has not ended."""

    def check_failure(self) -> None:
        """Raise the failure of this engine, if it has failed."""
        if self.failure is not None:
            raise self.failure

    async def unless_failed(self, work: Awaitable[Any]) -> None:
        """Wait for something that does not come if the engine fails.

        Raises:
            ManagerClosedError: The engine has failed, before or meanwhile.
        """
        if self._until_failure is None:
            self._until_failure = self._loop.create_future()
        task = asyncio.ensure_future(work)
        try:
            self.check_failure()
            await asyncio.wait({task, self._until_failure}, return_when=asyncio.FIRST_COMPLETED)
            self.check_failure()
            await task
        finally:
            task.cancel()

    # What a subclass does

    @abstractmethod
    async def submit(self, lane: Lane, command: Submitted, terms: SubmitTerms) -> Job:
        """Take a command; returns the job that stands for it, which may be an older one."""

    @abstractmethod
    async def submit_many(
        self, lane: Lane, commands: Sequence[Submitted], terms: SubmitTerms
    ) -> list[Job]:
        """Take commands, all or nothing in each partition of the lane; no key comes twice."""

    @abstractmethod
    async def start(self) -> None:
        """Begin to run commands."""

    @abstractmethod
    def wake(self, partition: Partition | None = None) -> None:
        """Something has changed by which a command may be able to start, of `partition` or any."""

    def pause(self, lane: Lane, paused: bool) -> PendingWrite:
        """Start no more commands of a lane, or start them again."""
        lane.paused = paused
        if not paused:
            self.wake()
        return WRITTEN

    @abstractmethod
    async def cancel(self, lane: Lane, key: str) -> bool:
        """Cancel whatever there is of a key; returns whether there was anything."""

    @abstractmethod
    async def cancel_job(self, job: Job) -> bool:
        """Cancel a job, if it is not over; returns whether that was possible."""

    @abstractmethod
    async def stats(self) -> QueueStats:
        """How things stand."""

    @abstractmethod
    async def idle(self) -> None:
        """Wait until no command waits, runs or is scheduled."""

    @abstractmethod
    async def unfinished(self) -> dict[str, int]:
        """How many commands each lane has left, where it has any."""

    @abstractmethod
    async def close(self) -> None:
        """Let go of everything, once nothing runs any more."""

    @abstractmethod
    def _completed(self, job: Job, result: Any) -> None:
        """Its command is done."""

    @abstractmethod
    def _retry(self, job: Job, delay: float, error: BaseException) -> None:
        """Its command failed and shall run again."""

    @abstractmethod
    def _give_up(self, job: Job, error: BaseException) -> None:
        """Its command failed for good."""

    @abstractmethod
    def _cancelled(self, job: Job) -> None:
        """Its command was cancelled while it ran."""

    @abstractmethod
    def _take_back(self, job: Job) -> None:
        """Take back the claim of a job whose run was ended because the engine stops."""

    def _leave_to_lease(self, job: Job) -> bool:
        """The engine stops, and a thread still runs the command of a job.

        On a store the command is neither given back nor given up, or another worker would run it,
        or the next one of its key, beside that thread. It comes back when its lease expires; the
        thread ends with the process until then. Returns whether there is a lease.
        """
        del job
        return False

    # Workflows

    @abstractmethod
    async def submit_chain(
        self,
        lane: Lane,
        command: tuple[str, Any],
        steps: Sequence[WorkflowStep],
        terms: SubmitTerms,
    ) -> Job:
        """Take a command, with its type, and the steps that follow it; returns the first job."""

    @abstractmethod
    async def submit_gather(
        self,
        members: Sequence[tuple[Lane, str, Any]],
        then: tuple[Lane, WorkflowStep | None],
        within: float,
        terms: SubmitTerms,
    ) -> Job:
        """Take commands with their lanes and types; returns the job that gets their outcomes.

        Without a step, that job has them as its result. It starts after `within` seconds at the
        latest.
        """

    @abstractmethod
    async def _complete_arguments(self, job: Job) -> None:
        """Give a command the outcomes of its gather, if it waits for them."""

    @abstractmethod
    def _check_result(self, job: Job, result: Any) -> None:
        """Refuse a result that the next step of a chain cannot be given.

        Raises:
            LeasedKeyQError: It cannot.
        """

    # Running

    def _begin(self, job: Job) -> None:
        """Run the command of a job whose lease and slot have been taken."""
        loop = self.bound_loop or self._loop
        job.status = "running"
        job.begun = False
        job.interruption = None
        job.started_at = loop.time()
        if job.timeout is not None:
            self._look_again(job, job.started_at + job.timeout)
        if self.emitter.listening:
            self._emit(events.COMMAND_STARTED, job)
        if job.counts is not None:
            job.counts.waits.append(job.started_at - job.ready_at)
        if self._instrument is not None:
            waited = max(0.0, job.started_at - job.ready_at)
            lane = job.partition.lane.id
            start = AttemptStart(lane, job.kind, job.command_id, job.attempt, waited)
            try:
                self._instrument.started(start)
            except Exception:
                logger.exception(INSTRUMENT_FAILED, self._instrument)
        self.running.add(job)
        # Whatever the factory of the event loop makes of tasks, this one starts later.
        job.task = Task(self._run(job), loop=loop, context=self._context.copy())

    async def _run(self, job: Job) -> None:
        lease = job.lease
        task = job.task
        result: Any = None
        error: BaseException | None = None
        job.begun = True
        CURRENT.set(job)
        if job.interruption is None:
            try:
                if job.workflow is not None:
                    result = await self._run_part(job)
                elif self._tracing is None:
                    result = await (
                        self._execute_within(job) if self.middleware else self._execute(job)
                    )
                else:
                    result = await self._run_traced(self._tracing, job)
            except (asyncio.CancelledError, Exception) as caught:
                error = caught
            except BaseException as caught:
                if not self._loop.is_running():
                    raise  # nothing can be done any more: the event loop was closed
                ended = self._error(CommandExitError, job, f"raised {caught!r}")
                ended.__cause__ = caught
                error = ended
        if job.task is task and job.lease is lease:
            try:
                self._ended(job, result, error)
            except Exception as caught:
                name = job.name
                logger.exception("lane %r: the end of %s failed", job.partition.lane.id, name)
                failure = ManagerFailedError(f"{FAILED}the end of {name} failed: {caught!r}")
                self.fail(failure, caught)
        else:
            name = job.name
            logger.warning("lane %r: %s has ended at last", job.partition.lane.id, name)

    async def _run_traced(self, tracing: GuardedTracing, job: Job) -> Any:
        carrier = job.carrier or {}
        lane = job.partition.lane.id
        with tracing.processing(lane, job.kind, job.command_id, job.attempt, carrier):
            return await (self._execute_within(job) if self.middleware else self._execute(job))

    def _execute_within(self, job: Job) -> Awaitable[Any]:
        """Call the body of a command within the middleware."""
        return surrounded(self.middleware, current_command(), partial(self._execute, job))

    async def _run_part(self, job: Job) -> Any:
        """Run a command that is a part of a workflow.

        A result that the next step could not be given is an error of this command.
        """
        await self._complete_arguments(job)
        if self._tracing is None:
            result = await (self._execute_within(job) if self.middleware else self._execute(job))
        else:
            result = await self._run_traced(self._tracing, job)
        self._check_result(job, result)
        return result

    def _execute(self, job: Job) -> Awaitable[Any]:
        """Call the body of a command: the one place where that is done.

        No coroutine of its own: that would be a step more for each command that runs in the loop.
        """
        command: Any = job.command
        if command.__class__ is CommandCall:
            function: CommandFunction[..., Any] = command.function
            if function.run_in == "loop":
                return function.call(command.arguments)
            if function.run_in == "thread":
                return self._execute_in_thread(job, partial(function.call, command.arguments))
            if function.run_in == "batch":
                if job.timer is not None:
                    self._limits.clear(job)  # its time counts from when its batch begins
                return self._batches.run(job)
            return self._execute_in_process(job, command)
        execution: Awaitable[Any] = command.execute()
        return execution

    async def _execute_in_thread(self, job: Job, function: Callable[[], Any]) -> Any:
        """Call a plain function in a thread.

        What it returns may turn out to be a coroutine, such as that of an async function behind a
        decorator that does not look like one: then that runs here.
        """
        self._in_threads.add(job)
        try:
            result = await self._threads.run(function)
        finally:
            self._in_threads.discard(job)
        return await result if isawaitable(result) else result

    async def _execute_in_process(self, job: Job, command: CommandCall[Any]) -> Any:
        """Call a function in a process, which is killed when the run of the job is cancelled.

        The time that the command waits for a process is not part of the time that it may run.
        """
        function = command.function
        partition, key = job.partition, job.key
        lane = partition.lane.id
        load = ProcessLoad(job.kind, *function.importable)
        call = ProcessCall(
            job.kind,
            msgspec.Raw(function.encode(command)),
            job.id,
            lane,
            partition.queue,
            partition.scope,
            key,
            job.attempt,
            job.timeout,
        )
        if job.timer is not None:
            self._limits.clear(job)
        try:
            answer = await self._processes.run(
                load, call, begun=partial(self._limit_run, job), report=partial(self.report, job)
            )
        except ProcessDiedError as ended:
            raise self._process_ended(job, ended.code) from None
        except ProcessStartError as refused:
            raise _with_traceback(
                self._error(CommandProcessError, job, str(refused)), refused.traceback
            ) from refused.__cause__
        if isinstance(answer, Failed):
            error, _ = failure(
                answer.error, function.module, lane=lane, command_type=job.kind, key=key
            )
            raise _with_traceback(error, split(answer.error)[1])
        return function.decode_result(answer.result)

    def report(self, job: Job, value: Any) -> None:
        """Take what a command tells from its process while it runs: how far it has come."""
        try:
            job.tell(msgspec.json.encode(value))
        except LimitExceededError as error:
            logger.warning("%s; it was not kept", error)

    def _limit_run(self, job: Job) -> None:
        """The function of a job begins in its process."""
        if job.timeout is not None and job.interruption is None:
            self._look_again(job, self._loop.time() + job.timeout)

    def _process_ended(self, job: Job, code: int) -> CommandProcessError:
        if code >= 0:
            text, name = f"failed: its process ended with exit code {code}", ""
        else:
            name = _signal_name(-code)
            text = f"failed: its process was killed by {name}"
            if name == "SIGKILL":
                text += ", as the system does it when memory runs out"
        error: CommandProcessError = self._error(CommandProcessError, job, text)
        error.exit_code = None if name else code
        error.signal = name
        return error

    async def _call_batch(self, function: BatchFunction[Any, Any], jobs: Sequence[Job]) -> Any:
        """Call the function of a batch once, for all these jobs."""
        items = [job.command.arguments.item for job in jobs]
        if not function.blocks:
            return await function.call_batch(items)
        self._in_threads.update(jobs)
        try:
            result = await self._threads.run(partial(function.call_batch, items))
        finally:
            self._in_threads.difference_update(jobs)
        return await result if isawaitable(result) else result

    def _limit_batch(self, jobs: Sequence[Job]) -> None:
        """A batch begins: the shortest time-out of its commands is that of them all."""
        limits = [job.timeout for job in jobs if job.timeout is not None]
        if limits:
            shortest = min(limits)
            when = self._loop.time() + shortest
            for job in jobs:
                if job.timeout != shortest:
                    self._own_timeouts[job] = job.timeout
                    job.timeout = shortest
                if job.interruption is None:
                    self._look_again(job, when)

    def _batch_given_up(self, jobs: Sequence[Job]) -> None:
        """All runs of a batch were interrupted: none of them is kept by it for long any more."""
        now = self._loop.time()
        for job in jobs:
            if job in self.running and job.interruption is not None:
                if job.timer is not None:
                    self._limits.clear(job)
                self._look_again(job, now + job.partition.lane.cancel_grace)

    def _ended(self, job: Job, result: Any, error: BaseException | None) -> None:
        """A run is over: free its slot, and decide what becomes of the command."""
        self._no_longer_running(job)
        match job.interruption:
            case None:
                if error is None:
                    if job.counts is not None or self._instrument is not None:
                        self._measure(job, "completed", None)
                    self._completed(job, result)
                else:
                    self._failed(job, error)
            case "timeout":
                self._timed_out(job)
            case "cancel":
                self._measure(job, "cancelled", None)
                self._cancelled(job)
            case "lost":
                self._measure(job, "lost", None)
            case "stop":
                self._take_back(job)
        self.wake(job.partition)

    def _timed_out(self, job: Job, *, stuck: bool = False) -> None:
        job.partition.lane.timed_out += 1
        text = f"ran longer than {job.timeout} s"
        if stuck:
            text += " and did not stop when it was cancelled; it was left to itself"
        error = self._error(CommandTimeoutError, job, text)
        if self.emitter.listening:
            self._emit(events.COMMAND_TIMEOUT, job, error)
        self._failed(job, error, stuck=stuck)

    def _failed(self, job: Job, error: BaseException, *, stuck: bool = False) -> None:
        if isinstance(error, asyncio.CancelledError):
            text = "raised CancelledError, though nobody had cancelled it"
            error = self._error(CommandCancelledError, job, text)
        if self._own_timeouts and job in self._own_timeouts:
            job.timeout = self._own_timeouts.pop(job)
        delay = None if stuck else self._delay(job, error)
        timeout = job.interruption == "timeout"
        outcome: Outcome = "retry" if delay is not None else "timeout" if timeout else "failed"
        self._measure(job, outcome, error)
        if delay is None:
            job.partition.lane.failed += 1
            if self.emitter.listening:
                self._emit(events.COMMAND_FAILED, job, error)
            self._give_up(job, error)
        else:
            job.partition.lane.retried += 1
            if self.emitter.listening:
                self._emit(events.COMMAND_RETRY, job, error, delay=delay)
            self._retry(job, delay, error)

    def _delay(self, job: Job, error: BaseException) -> float | None:
        config = job.partition.lane.config
        if job.attempt >= config.max_attempts:
            return None
        options = self.registry.options.get(job.kind)
        policy = None if options is None else options.retry_policy
        try:
            delay = (config.retry_policy if policy is None else policy).delay(job.attempt, error)
            if delay is None:
                return None
            if isinstance(delay, timedelta):
                delay = delay.total_seconds()
            return checks.delay_time("delay", max(delay, 0.0))
        except Exception:
            if policy is None:
                logger.exception("lane %r: its retry policy failed", job.partition.lane.id)
            else:
                logger.exception("command %r: its retry policy failed", job.kind)
            return None

    def _default_timeout(self, lane: Lane, kind: str) -> float | None:
        """How long a command of a type may run in a lane, where its submitter has not said."""
        options = self.registry.options.get(kind)
        return lane.timeout if options is None else options.time_limit(lane.timeout)

    # Ending a run from outside

    def _look_again(self, job: Job, when: float) -> None:
        """Look at `when` whether the run of a job is over, and end it if not."""
        self._looks += 1
        self._limits.set(job, when, self._looks)
        alarm = self._limit_alarm
        if alarm is None or when < alarm.when():
            if alarm is not None:
                alarm.cancel()
            self._limit_alarm = self._loop.call_at(when, self._end_overdue)

    def _end_overdue(self) -> None:
        """Cancel the runs whose time is up, and give up those that were cancelled before."""
        self._limit_alarm = None
        limits = self._limits
        now = self._loop.time()
        while (when := limits.earliest()) is not None and when <= now:
            job: Job = limits.pop()[2]
            if job.interruption is None:
                self._interrupt(job, "timeout")
            else:
                self._abandon(job)
        if when is not None and self._limit_alarm is None:
            self._limit_alarm = self._loop.call_at(when, self._end_overdue)

    def _cancel_run(self, job: Job) -> None:
        """Cancel a run because its command was cancelled."""
        if job.interruption is None:
            self._interrupt(job, "cancel")
        elif job.interruption in ("timeout", "stop"):
            job.interruption = "cancel"  # it is being stopped, and shall not be tried again

    def _interrupt(self, job: Job, why: Interruption) -> None:
        """Cancel a run. If it does not end soon, it is left to itself."""
        if job.timer is not None:
            self._limits.clear(job)
        job.interruption = why
        self._look_again(job, self._loop.time() + job.partition.lane.cancel_grace)
        if job.begun and job.task is not None:
            job.task.cancel()

    def _abandon(self, job: Job) -> None:
        """A command goes on although it was cancelled: the engine waits for it no longer.

        It does wait for one in a thread, unless the engine stops: as long as the thread runs, no
        other command of the key may, here or elsewhere, nor a further thread in its slot. The same
        holds for one in a batch that goes on for others. Where the lease is lost, as when another
        process has cancelled the command, only the slot can be kept.
        """
        if job in self._batches.kept and not self._stopping:
            return
        name = job.name
        if job in self._in_threads and not self._stopping:
            taken = "its key and its slot stay taken until it returns"
            if job.interruption == "lost":
                taken = (
                    "its lease is gone, so the next command of its key may run beside it, and its "
                    "slot stays taken until it returns"
                )
            logger.error(
                "lane %r: %s did not stop within %s s of its cancellation, and a thread cannot be "
                "ended from outside; %s. Let it look at current_command().cancelled, or register "
                'it with run_in="process"',
                job.partition.lane.id,
                name,
                job.partition.lane.cancel_grace,
                taken,
            )
            return
        logger.error(
            "lane %r: %s did not stop within %s s of its cancellation; it was left to itself, "
            "and may still be running",
            job.partition.lane.id,
            name,
            job.partition.lane.cancel_grace,
        )
        if job.task is not None:
            self._abandoned.add(job.task)  # an event loop does not keep its tasks alive
            job.task.add_done_callback(self._abandoned.discard)
        self._no_longer_running(job)
        match job.interruption:
            case "timeout" | "stop" if job in self._in_threads and self._leave_to_lease(job):
                pass
            case "timeout":
                self._timed_out(job, stuck=True)
            case "stop":
                self._take_back(job)
            case "cancel":
                self._measure(job, "cancelled", None)
                self._cancelled(job)
            case _:
                self._measure(job, "lost", None)
        self.wake(job.partition)

    async def stop(self) -> None:
        """Start no more commands, and end those that run; their claims are taken back."""
        self.stopped = self._stopping = True
        for job in list(self.running):
            if job.interruption is None:
                self._interrupt(job, "stop")
            elif job.timer is None:  # its thread goes on after its time, and shall not for ever
                self._look_again(job, self._loop.time() + job.partition.lane.cancel_grace)
        await self.quiet()
        self._threads.close()
        await self._processes.close()
        if self._limit_alarm is not None:
            self._limit_alarm.cancel()
            self._limit_alarm = None

    async def quiet(self) -> None:
        """Start nothing more, and wait until nothing runs."""
        self.stopped = True
        if self.running:
            waiter: Future[None] = self._loop.create_future()
            self._quiet.append(waiter)
            await waiter

    def _no_longer_running(self, job: Job) -> None:
        if job.timer is not None:
            self._limits.clear(job)
        job.task = None
        self.running.discard(job)
        self.slots.give(job.partition)
        if not self.running and self._quiet:
            for waiter in self._quiet:
                if not waiter.done():
                    waiter.set_result(None)
            self._quiet.clear()

    # Telling

    def _finish(
        self,
        job: Job,
        status: CommandStatus,
        result: Any = None,
        error: BaseException | None = None,
    ) -> None:
        """The job is over, whatever came of it."""
        job.end(status, result, error)
        if self.emitter.listening:
            if status == "completed":
                self._emit(events.COMMAND_COMPLETED, job)
            elif status == "cancelled":
                self._emit(events.COMMAND_CANCELLED, job)

    def _emit(self, key: str, job: Job, error: BaseException | None = None, **more: object) -> None:
        payload: dict[str, Any] = {
            "lane": job.partition.lane.id,
            "command_id": job.command_id,
            "command_type": job.kind,
            "key": job.key,
            "attempt": job.attempt,
            **more,
        }
        if error is not None:
            payload["error"] = error_line(error)
        self.emitter.emit(key, payload)

    def _tell_pressure(self, lane: Lane, waiting: int, active: int) -> None:
        """Tell when a lane fills up, and when it is empty again."""
        threshold = lane.config.pressure_threshold
        if threshold is not None and waiting >= threshold and not lane.pressed:
            lane.pressed = True
            payload = {"lane": lane.id, "pending": waiting, "threshold": threshold}
            self.emitter.emit(events.LANE_PRESSURE, payload)
        elif lane.pressed and not waiting and not active:
            lane.pressed = False
            self.emitter.emit(events.LANE_IDLE, {"lane": lane.id})

    def _tell_submitted(self, instrument: Instrument, job: Job) -> None:
        try:
            instrument.submitted(SubmittedCommand(job.partition.lane.id, job.kind, job.command_id))
        except Exception:
            logger.exception(INSTRUMENT_FAILED, instrument)

    def _measure(self, job: Job, outcome: Outcome, error: BaseException | None) -> None:
        instrument = self._instrument
        if job.counts is None and instrument is None:
            return
        now = (self.bound_loop or self._loop).time()
        ran, total = now - job.started_at, now - job.submitted_at
        if job.counts is not None:
            job.counts.ended(outcome, ran, total)
        if instrument is None:
            return
        lane = job.partition.lane.id
        end = AttemptEnd(lane, job.kind, job.command_id, job.attempt, outcome, ran, total, error)
        try:
            instrument.ended(end)
        except Exception:
            logger.exception(INSTRUMENT_FAILED, instrument)

    @property
    def measured(self) -> bool:
        """Whether there is an instrument that may have gauges."""
        return self._instrument is not None

    def tell_gauges(self, stats: QueueStats) -> None:
        """Tell the instruments how things stand."""
        if self._instrument is not None:
            try:
                self._instrument.gauges(stats)
            except Exception:
                logger.exception(INSTRUMENT_FAILED, self._instrument)

    def _buried(self, job: Job, error: BaseException) -> None:
        """It is with the dead letters now."""
        job.partition.lane.dead_lettered += 1
        if job.counts is not None:
            job.counts.dead_lettered += 1
        if self.emitter.listening:
            self._emit(events.COMMAND_DEAD_LETTERED, job, error)
        if self._instrument is not None:
            command = DeadLetteredCommand(job.partition.lane.id, job.kind, job.command_id)
            try:
                self._instrument.dead_lettered(command)
            except Exception:
                logger.exception(INSTRUMENT_FAILED, self._instrument)

    def _error(self, kind: Any, job: Job, text: str) -> Any:
        lane = job.partition.lane.id
        return kind(
            f"lane {lane!r}: {job.name} {text}",
            lane=lane,
            command_type=job.kind,
            key=job.key,
        )

    def closed_error(self, job: Job) -> ManagerClosedError:
        """The error of handles of a command that will not run here."""
        if self.failure is not None:
            return self.failure
        lane = job.partition.lane.id
        return ManagerClosedError(
            f"lane {lane!r}: the manager was closed before {job.name} was done",
            lane=lane,
        )

    def handle(self, job: Job) -> Handle[Any]:
        """The handle of a job, for its submitter."""
        return Handle(job, self)

    def expect(self, job: Job) -> None:
        """A task waits for a job that another process may run. Here, no other process does."""
        assert not job.remote

    def name(self, job: Job) -> str:
        """The id of a job, which is going to be shown."""
        return job.command_id

    async def look_at(self, job: Job) -> None:
        """Ask the store where a job stands. Here, that is known."""
        assert not job.remote

    def find(self, id: str) -> Job:  # noqa: A002  # as in `Handle`
        """The job of the command that an id names.

        Raises:
            UnknownCommandError: There is none, or none of this engine.
        """
        place = parse_command_id(id)
        partition = next((one for one in self.partitions if one.queue == place.queue), None)
        if partition is None:
            known = ", ".join(sorted(self.lanes)) or "none"
            raise UnknownCommandError(
                f"command {describe(id)} is of the queue {place.queue!r}, which no lane of this "
                f"manager has; the lanes are: {known}",
                key=place.key,
            )
        job = self._find(partition, place)
        if job is None:
            raise UnknownCommandError(
                f"lane {partition.lane.id!r}: there is no command {describe(id)}{self.forgets}",
                lane=partition.lane.id,
                key=place.key,
            )
        return job

    forgets = ""
    """What to say of an id that is not known."""

    @abstractmethod
    def _find(self, partition: Partition, place: CommandName) -> Job | None:
        """The job of a command, if there may be such a command."""


def _with_traceback(error: Exception, traceback: str) -> Exception:
    """An exception of another process, with the place where that has raised it."""
    if traceback:
        error.add_note(f"In its process:\n{traceback}")
    return error


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def key_present(
    lane: Lane, present: Sequence[str], of: int, *, partitions: int = 1
) -> KeyAlreadyPresentError:
    """The refusal of commands some of whose keys are there, by one of so many partitions."""
    message = f"lane {lane.id!r}: a command of key {describe(present[0])} waits or runs already"
    if of > 1:
        nothing = "nothing was" if partitions == 1 else "none of its partition were"
        message = (
            f"lane {lane.id!r}: {len(present)} of {of} keys have commands already, the first is "
            f"{describe(present[0])}; {nothing} submitted"
        )
    return KeyAlreadyPresentError(message, keys=tuple(present))
