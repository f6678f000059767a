"""One submitted command on its way, and the handle by which its submitter follows it."""

import asyncio
import time
from asyncio import Future, Task
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeAlias, TypeVar, cast

import msgspec

from leasedkeyq import checks
from leasedkeyq.errors import describe
from leasedkeyq.lanes.commands.resources import RESOURCES, Resources
from leasedkeyq.lanes.running.command_id import command_id
from leasedkeyq.lanes.running.progress import Progress, decode_progress, encode_progress
from leasedkeyq.model.admission import limit_exceeded
from leasedkeyq.telemetry.metrics import SeriesCounts
from leasedkeyq.types import Duration

if TYPE_CHECKING:
    from leasedkeyq.lanes.running.lane import Partition

R_co = TypeVar("R_co", covariant=True)

CommandStatus: TypeAlias = Literal[
    "pending",
    "scheduled",
    "running",
    "completed",
    "failed",
    "timed_out",
    "cancelled",
    "lost",
    "unknown",
]
"""Where a command stands. ``"scheduled"``: its time has not come, or it waits for a retry.

``"lost"``: it has left the store without a result. ``"unknown"``: its handle was made from its id,
and the store has not been asked yet: see `Handle.refresh`.
"""

Interruption: TypeAlias = Literal["timeout", "cancel", "lost", "stop"]
"""Why the scheduler itself ended a run."""

ENDED: frozenset[CommandStatus] = frozenset(
    ("completed", "failed", "timed_out", "cancelled", "lost")
)


class Job:
    """A submitted command, its state, and the tasks that wait for its result.

    It has at most one run at a time; `task` is that run. `remote` says that another process may
    run it. `priority` is its place in its lane: lower goes first. `ready_at` is when it could have
    started. One that `coalesces` stands for those that it has replaced. One that is `uncommitted`
    was submitted in a transaction of its caller, which may not be committed yet. `unique_for` is
    for how many seconds its result is kept at least. `workflow` is its part in a workflow, if it
    has one. `progress` is how far it has come, as it told last, and `stored_progress` what the
    store has of that: the same object if it has all, or what an attempt in another process told.
    """

    __slots__ = (
        "__weakref__",
        "attempt",
        "begun",
        "carrier",
        "coalesces",
        "command",
        "counts",
        "deadline",
        "ended_at",
        "error",
        "id",
        "interruption",
        "key",
        "kind",
        "lease",
        "partition",
        "priority",
        "progress",
        "ready_at",
        "remote",
        "result",
        "started_at",
        "status",
        "stored_progress",
        "submitted_at",
        "successor",
        "task",
        "timeout",
        "timer",
        "uncommitted",
        "unique_for",
        "waiters",
        "workflow",
    )

    def __init__(  # noqa: PLR0917  # made once for each command, and keywords cost time
        self,
        id: int,  # noqa: A002  # it is what it is
        partition: "Partition",
        kind: str,
        key: str,
        command: Any,
        submitted_at: float,
        priority: int,
        timeout: float | None,
        deadline: float | None,
    ) -> None:
        self.id = id
        self.partition = partition
        self.kind = kind
        self.key = key
        self.command = command
        self.counts: SeriesCounts | None = None
        self.submitted_at = self.ready_at = submitted_at
        self.priority = priority
        self.timeout = timeout
        self.deadline = deadline
        self.status: CommandStatus = "pending"
        self.attempt = 0
        self.begun = False
        self.started_at = 0.0
        self.task: Task[None] | None = None
        self.timer: Any = None
        self.lease: Any = None
        self.interruption: Interruption | None = None
        self.result: Any = None
        self.error: BaseException | None = None
        self.waiters: list[Future[None]] | None = None
        self.successor: Job | None = None
        self.carrier: dict[str, str] | None = None
        self.workflow: Any = None
        self.remote = False
        self.coalesces = self.uncommitted = False
        self.ended_at = self.unique_for = 0.0
        self.progress: bytes | None = None
        self.stored_progress: bytes | None = None

    @property
    def name(self) -> str:
        """What errors and logs call the command."""
        kind = f"command {self.kind!r}" if self.kind else f"command {self.command_id!r}"
        return f"{kind} of key {describe(self.key)}"

    def tell(self, progress: bytes) -> None:
        """Take how far the command has come. May be called from any thread.

        Raises:
            LimitExceededError: It is more than the store takes.
        """
        lane = self.partition.lane
        if len(progress) > lane.limits.value_size:
            message = f"lane {lane.id!r}: the progress of {self.name} has {len(progress)} bytes"
            raise limit_exceeded(message, "value_size", lane.limits)
        self.progress = progress
        lane.told = True
        if WORKER.tell is not None:
            WORKER.tell(msgspec.Raw(progress))

    @property
    def untold(self) -> bytes | None:
        """The progress that the store does not have yet."""
        progress = self.progress
        return None if progress is self.stored_progress else progress

    @property
    def last_progress(self) -> bytes | None:
        """How far the command has come, as an attempt told last, here or in another process."""
        progress = self.progress
        return self.stored_progress if progress is None else progress

    @property
    def command_id(self) -> str:
        """The id by which every process knows the command."""
        partition = self.partition
        return command_id(self.id, partition.queue, self.key, partition.scope)

    def end(self, status: CommandStatus, result: Any, error: BaseException | None) -> None:
        """The command is over; wake every task that awaits its handle."""
        self.status = status
        self.result = result
        self.error = error
        waiters = self.waiters
        if waiters is not None:
            self.waiters = None
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def follow(self, successor: "Job") -> None:
        """A newer command of the key has taken the place of this one, for waiting tasks, too."""
        self.successor = successor
        waiters, self.waiters = self.waiters, None
        if waiters:
            successor.waiters = (successor.waiters or []) + waiters
        last = successor.latest()
        if last.status in ENDED:
            last.end(last.status, last.result, last.error)

    def forget(self, waiter: "Future[None]") -> None:
        """A task that waited for the result was cancelled."""
        if self.waiters is not None and waiter in self.waiters:
            self.waiters.remove(waiter)

    def latest(self) -> "Job":
        """The job that stands for this one."""
        job = self
        while job.successor is not None:
            job = job.successor
        return job


CURRENT: ContextVar[Job] = ContextVar("leasedkeyq.command")
BATCH: ContextVar[Sequence[Job]] = ContextVar("leasedkeyq.batch", default=())
"""The jobs whose batch runs in the current task."""
UPDATES_EVERY = 1.0
"""Seconds between two looks at how far a command has come."""


class WorkerLink:
    """How code that runs in a process of the pool of a worker reaches the worker.

    Attributes:
        tell: Sends plain values to `LaneEngine.report` of the worker, for the command that runs
            here. None: this is no such process.
    """

    tell: Callable[[Any], None] | None = None


WORKER = WorkerLink()


@dataclass(frozen=True)
class RunningCommand:
    """What a command can know about itself while it runs."""

    id: str
    """As `Handle.id`."""
    lane: str
    key: str
    command_type: str
    attempt: int
    """Which attempt this is, from 1."""
    timeout: float | None
    """How long it may run, in seconds."""
    _job: Job | None = field(default=None, repr=False, compare=False)

    @property
    def command(self) -> Any:
        """The command itself: what was submitted, or what was read from the store."""
        return None if self._job is None else self._job.command

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the command by name, or its fields where its type is a class."""
        command = self.command
        arguments: Any = getattr(command, "arguments", command)
        if isinstance(arguments, msgspec.Struct):
            return msgspec.structs.asdict(arguments)
        if is_dataclass(command):
            return {one.name: getattr(command, one.name) for one in fields(command)}
        return dict(getattr(command, "__dict__", {}))

    @property
    def resources(self) -> Resources:
        """What the lifespans of the worker have yielded, for the command that runs now."""
        return RESOURCES.get()

    @property
    def cancelled(self) -> bool:
        """Whether this run shall end: it was cancelled, its time is up, or the manager stops.

        A coroutine is cancelled like a task, and need not look. A plain function in a thread
        cannot be ended from outside: one that runs for long looks at this from time to time, and
        returns when it is true. What it returns then does not count.
        """
        return self._job is not None and self._job.interruption is not None

    def progress(self, value: object, text: str = "") -> None:
        """Tell how far the command has come, for `Handle.progress` and `Handle.updates`.

        It may be called as often as one likes, in a coroutine, a thread or a process: it writes
        nothing itself. The newest is kept in the store with the next renewal of the lease, at the
        latest about a second later, and together with that of all other commands. One that is
        told right before an attempt fails is kept, too. When the command is done, its result tells
        all, and what was told within the last second may not have been kept.

        Args:
            value: A float is the fraction of the work that is done, from 0 to 1. Anything else
                that JSON has means what you like: a count, a mapping.
            text: What to tell people, as ``"page 4 of 10"``.

        Raises:
            ValueError: A float is not from 0 to 1.
            CommandPayloadError: JSON has no such value.
            LimitExceededError: It is larger than the limit ``value_size`` of the store.
        """
        job = self._job
        if job is not None:
            job.tell(encode_progress(value, text, time.time(), self.attempt, job.name))


def current_command() -> RunningCommand:
    """The command that runs in the current task or thread, and in tasks that it started.

    Raises:
        LookupError: None does.
    """
    job = CURRENT.get(None)
    if job is not None:
        return _running(job)
    if BATCH.get():
        raise LookupError("a batch has several commands: current_batch tells them")
    raise LookupError("current_command is for code that runs as a command of a lane")


def current_batch() -> list[RunningCommand]:
    """The commands of the batch that runs in the current task or thread, as its items are.

    Raises:
        LookupError: No batch does.
    """
    jobs = BATCH.get()
    if not jobs:
        raise LookupError("current_batch is for code that runs as a batch of commands of a lane")
    return [_running(job) for job in jobs]


def _running(job: Job) -> RunningCommand:
    return RunningCommand(
        job.command_id, job.partition.lane.id, job.key, job.kind, job.attempt, job.timeout, job
    )


class Follows(Protocol):
    """What a handle needs of the engine."""

    async def cancel_job(self, job: Job) -> bool:
        """Cancel a job; returns whether that was possible."""
        ...

    def expect(self, job: Job) -> None:
        """A task waits for a job that another process may run."""
        ...

    def name(self, job: Job) -> str:
        """The id of a job, which is going to be shown."""
        ...

    async def look_at(self, job: Job) -> None:
        """Ask the store where a job stands, and how far it has come."""
        ...


class Handle(Generic[R_co]):
    """A submitted command. Await it for its result; what the command raised is raised.

    Several tasks may await it, any number of times; a cancelled wait does not cancel the command.
    `QueueManager.handle` makes one from an `id`, in any process.
    """

    __slots__ = ("_engine", "_job")

    def __init__(self, job: Job, engine: "Follows") -> None:
        self._job = job
        self._engine = engine

    @property
    def engine(self) -> "Follows":
        """What runs or follows the command in this process."""
        return self._engine

    @property
    def id(self) -> str:
        """The id of the command, for a web page or another process: see `QueueManager.handle`.

        It has only characters that a URL takes as they are. Events, `current_command` and dead
        letters tell the same id. Take it as a whole: how it is built may change.
        """
        return self._engine.name(self._job.latest())

    @property
    def lane(self) -> str:
        """The lane of the command."""
        return self._job.partition.lane.id

    @property
    def key(self) -> str:
        """The key of the command."""
        return self._job.key

    @property
    def command_type(self) -> str:
        """The type of the command; "" as long as `status` is ``"unknown"``."""
        return self._job.kind

    @property
    def status(self) -> CommandStatus:
        """Where the command stands.

        Of a command that another process runs, it tells what the store said when something last
        changed in its lane: about a second ago, or longer where a process has many such handles.
        Call `refresh` first to have it as it is now.
        """
        return self._job.latest().status

    @property
    def attempt(self) -> int:
        """How often it has been started so far; see `status`."""
        return self._job.latest().attempt

    def done(self) -> bool:
        """Whether it has ended, well or badly; see `status`."""
        return self._job.latest().status in ENDED

    async def refresh(self) -> CommandStatus:
        """Ask the store where the command stands now, and return that `status`.

        Afterwards `status`, `attempt` and `done` are those of this moment. In memory they always
        are.

        Raises:
            StoreError: The store cannot be asked.
        """
        await self._engine.look_at(self._job.latest())
        return self.status

    async def progress(self) -> Progress | None:
        """How far the command has come, as it told last; None if it has told nothing.

        It may be asked from any process, also after the end. A command that is tried again shows
        how far the last attempt came, until the new one tells: see `Progress.attempt`.

        Raises:
            StoreError: The store cannot be asked.
        """
        await self._engine.look_at(self._job.latest())
        return decode_progress(self._job.latest().last_progress)

    async def updates(self) -> AsyncGenerator[Progress]:
        """How far the command has come, each time that is new: ``async for`` until it has ended.

        The first is what is known at once, if anything is. At most one comes per second, as the
        store is asked so often: of what is told in between, only the newest comes. It may be used
        from any process. Await the handle afterwards for the result.

        Raises:
            StoreError: The store cannot be asked.
        """
        seen: bytes | None = None
        while True:
            await self._engine.look_at(self._job.latest())
            job = self._job.latest()
            ended = job.status in ENDED
            told = job.last_progress
            if told is not None and told != seen:
                seen = told
                yield cast("Progress", decode_progress(seen))
            if ended:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(UPDATES_EVERY):
                    await _Ended(self)

    async def cancel(self) -> bool:
        """Cancel the command, waiting or running, for all tasks that wait for it.

        Returns whether that was still possible. A running command is cancelled like a task: it
        may take its time to clean up.
        """
        return await self._engine.cancel_job(self._job.latest())

    def __await__(self) -> Generator[Any, None, R_co]:
        job = yield from self._until_ended()
        if job.error is not None:
            raise job.error
        result: R_co = job.result
        return result

    def _until_ended(self) -> Generator[Any, None, Job]:
        job = self._job.latest()
        while job.status not in ENDED:
            waiter = asyncio.get_running_loop().create_future()
            if job.waiters is None:
                job.waiters = [waiter]
            else:
                job.waiters.append(waiter)
            if job.remote:
                self._engine.expect(job)
            try:
                yield from waiter
            except BaseException:
                job.latest().forget(waiter)
                raise
            job = job.latest()
        return job

    async def result(self, timeout: Duration | None = None) -> R_co:
        """The result of the command; what the command raised is raised.

        Args:
            timeout: How long to wait for its end; None: for ever. With 0 the store is asked once.

        Raises:
            TimeoutError: The command has not ended within `timeout`. It goes on. (What a command
                raises that ran too long is a `CommandTimeoutError`: then `done` is true.)
        """
        limit = checks.wait_time("timeout", timeout)
        if limit is not None and not self.done():
            if limit:
                with suppress(TimeoutError):
                    async with asyncio.timeout(limit):
                        await _Ended(self)
            else:
                await self.refresh()
            if not self.done():
                raise TimeoutError(
                    f"lane {self.lane!r}: {self._job.latest().name} is not done after {limit:g} s; "
                    f"it goes on, and manager.handle({self.id!r}) tells its result later"
                )
        return await self

    async def wait(self) -> R_co:
        """The same as awaiting the handle, as a coroutine: for `asyncio.wait_for` and friends."""
        return await self

    def __repr__(self) -> str:
        job = self._job.latest()
        return (
            f"<{job.kind or 'command'} {job.key!r} in lane {job.partition.lane.id!r}: {job.status}>"
        )


class _Ended:
    """Await it until the command of a handle has ended; what the command raised is not raised."""

    __slots__ = ("_handle",)

    def __init__(self, handle: Handle[Any]) -> None:
        self._handle = handle

    def __await__(self) -> Generator[Any, None, Job]:
        return self._handle._until_ended()
