"""`QueueManager`: submit commands to lanes, and let them run."""

import asyncio
import logging
import signal
from asyncio import Task
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar, Unpack, overload

from leasedkeyq.lanes.commands.command import (
    BatchDecorator,
    Command,
    CommandFunction,
    CommandRegistry,
    Decorator,
)
from leasedkeyq.lanes.commands.command_options import CommandKeywords
from leasedkeyq.lanes.commands.resources import Lifespan, NamedLifespan
from leasedkeyq.lanes.commands.submit_terms import SubmitTerms
from leasedkeyq.lanes.dead_letters import DeadLetterQueue
from leasedkeyq.lanes.errors import (
    DrainTimeoutError,
    LaneConfigError,
    LifespanError,
    ManagerClosedError,
    ResourceError,
    ScheduleError,
    UnknownLaneError,
)
from leasedkeyq.lanes.events import EventEmitter, LaneEvent, Subscription
from leasedkeyq.lanes.monitor import QueueMonitor
from leasedkeyq.lanes.queue import CommandQueue, KeyedCommands
from leasedkeyq.lanes.running.job import Handle
from leasedkeyq.lanes.running.middleware import Middleware, checked_middleware
from leasedkeyq.lanes.schedules.schedule import Schedule
from leasedkeyq.lanes.sync import SyncManager
from leasedkeyq.lanes.timetable import MissedPolicy
from leasedkeyq.lanes.workflow.outcome import GATHER_WITHIN, GatherOutcome
from leasedkeyq.stores.store import Store
from leasedkeyq.telemetry.metrics import LaneMetrics
from leasedkeyq.telemetry.stats import QueueStats
from leasedkeyq.types import Duration, PresentPolicy

if TYPE_CHECKING:
    from leasedkeyq.lanes.builder import QueueManagerBuilder

P = ParamSpec("P")
R = TypeVar("R")
M = TypeVar("M", bound=Middleware)
L = TypeVar("L", bound=Lifespan)
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")
F = TypeVar("F")

logger = logging.getLogger("leasedkeyq")

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class QueueManager:
    """Runs the commands of lanes. Made by `QueueManagerBuilder`.

    ``async with manager:`` starts it, and at the end takes no more commands, waits until all are
    done (as `drain`, at most the drain time-out) and closes it: in memory and on a store alike. A
    worker that is to leave what waits to other processes is run by `run`, or ended by `close`.
    Use it in one event loop.

    Attributes:
        metrics: What was measured, if `QueueManagerBuilder.with_metrics` was called.
        drain_timeout: Seconds for which ``async with manager`` and `run` wait at their end for
            commands that are not done; None: for ever. `QueueManagerBuilder.with_drain_timeout`
            sets it, and it may be changed until then.
        dlq: The commands that were given up.
        emitter: Where events come from.
    """

    def __init__(
        self,
        queue: CommandQueue,
        *,
        metrics: LaneMetrics | None = None,
        store_to_close: Store | None = None,
        drain_timeout: float | None = 30.0,
        builder: "QueueManagerBuilder | None" = None,
        middleware: Sequence[Middleware] = (),
        lifespans: Sequence[NamedLifespan] = (),
    ) -> None:
        self._queue = queue
        self._middleware = [*middleware]
        self._lifespans = [*lifespans]
        self._store_to_close = store_to_close
        self.drain_timeout = drain_timeout
        self._builder = builder
        self._monitors: list[QueueMonitor] = []
        self._closing: Task[dict[str, int]] | None = None
        self.metrics = metrics
        self._sync: SyncManager | None = None
        self._declared: dict[str, Callable[[CommandQueue], Schedule]] = {}
        """What was declared by `schedule`, to be declared again where the lanes are replaced."""
        self._adopt(queue)

    def _adopt(self, queue: CommandQueue) -> None:
        """Let a queue know what was registered here, and its registry this manager."""
        queue.surround(self._middleware, self._lifespans)
        queue.registry.used_by(self)
        for lifespan in self._lifespans:
            queue.registry.provide(lifespan.provides)

    async def _replace_queue(self, queue: CommandQueue, store_to_close: Store | None) -> None:
        """Use other lanes and another store from now on; see `QueueManagerBuilder.rebuild`."""
        if self._store_to_close is not None:
            await self._store_to_close.close()
        if self._sync is not None:
            self._sync.close()
        self._queue = queue
        self._store_to_close = store_to_close
        self._adopt(queue)
        for declare in self._declared.values():
            declare(queue)

    @property
    def builder(self) -> "QueueManagerBuilder | None":
        """The builder that has built it, which can `QueueManagerBuilder.rebuild` it."""
        return self._builder

    @property
    def sync(self) -> SyncManager:
        """The same for threads without an event loop, as in Flask, Django and scripts.

        ``manager.sync.submit("mail", send("me"))`` submits, and ``handle.result()`` waits. It is
        for any number of threads, and for processes that are forked later.
        """
        if self._sync is None:
            self._sync = SyncManager(self)
        return self._sync

    @property
    def dlq(self) -> DeadLetterQueue:
        """The commands that were given up."""
        return self._queue.dlq

    @property
    def emitter(self) -> EventEmitter:
        """Where events come from."""
        return self._queue.emitter

    @property
    def interrupted(self) -> int:
        """How many commands still ran when it was closed, and were ended by that."""
        return self._queue.interrupted

    def queue(self) -> CommandQueue:
        """The lanes and the commands in them."""
        return self._queue

    def attach(self, monitor: QueueMonitor) -> None:
        """Start and stop a monitor together with this manager."""
        self._monitors.append(monitor)

    # Commands

    @overload
    def command(
        self, command_type: str, target: None = None, **options: Unpack[CommandKeywords]
    ) -> Decorator: ...

    @overload
    def command(
        self,
        command_type: str,
        target: Callable[P, Awaitable[R]],
        **options: Unpack[CommandKeywords],
    ) -> CommandFunction[P, R]: ...

    @overload
    def command(
        self,
        command_type: str,
        target: Callable[P, R],
        **options: Unpack[CommandKeywords],
    ) -> CommandFunction[P, R]: ...

    def command(
        self, command_type: str, target: Any = None, **options: Unpack[CommandKeywords]
    ) -> Any:
        """Register a type of command: a function, or a class with ``async execute()``.

        Used as ``@manager.command("send_email")``. A function becomes a `CommandFunction`: call it
        with its arguments for a command to submit. Arguments are checked against the annotations.
        An async function runs in the event loop, a plain one in a thread.
        Register all types before `start`: a worker takes only commands that it knows, and
        leaves the others for workers that do.

        Args:
            command_type: The name of the type. A store keeps commands under it, so it stays the
                same when the function is renamed.
            target: The function or class, where this is not used as a decorator.
            options: What holds for all commands of the type: the fields of `CommandOptions`, such
                as ``lane="mail"``, ``timeout=30``, ``retry_policy=RetryPolicy.exponential(3)``,
                ``key=lambda address: address``. The arguments of `submit` go before them.

        Raises:
            TypeError: It is neither a function nor a class whose `execute` is async, it is a
                generator function, or it has parameters that cannot be written down; or there is
                no such option, or one is not of its type.
            ValueError: An option has a value that makes no sense.
            LaneConfigError: The name is taken.
        """
        registry: CommandRegistry = self._queue.registry
        decorator = registry.decorator(command_type, options, lambda: self)
        return decorator if target is None else decorator(target)

    def batch(
        self,
        command_type: str,
        *,
        size: int,
        within: Duration = 0.0,
        **options: Unpack[CommandKeywords],
    ) -> BatchDecorator:
        """Register a function that handles many commands at once: ``@manager.batch("index", ...)``.

        ``async def index(items: list[Document])`` is called with the items of up to `size`
        commands of one lane. It returns a list with the result of each, or with an exception in
        place of a result for one that failed; or None, if all are done. If it raises, all of them
        have failed. ``index(document)`` is a command with one item: it is submitted, has a key, a
        lease, a handle and retries like any other, and each is settled by itself.

        Each command takes a slot of its lane, so that `LaneConfig.max_concurrency` is the size of
        a batch times the number of batches at a time. A batch ends as a whole: by its time-out,
        which counts from the call, and is the shortest of its commands; or when all of them are
        cancelled. A plain ``def`` runs in a thread.

        Args:
            command_type: The name of the type.
            size: How many items there are in one call, at most.
            within: How long the first item waits for more, once it is there. 0: the call has what
                came with it in one claim.
            options: As in `command`. A `key` function is called with the item.

        Raises:
            TypeError: The function does not take a list of items, or one of the options is not of
                its type.
            ValueError: One of them has a value that makes no sense.
            LaneConfigError: The name is taken.
        """
        registry: CommandRegistry = self._queue.registry
        return registry.batch_decorator(command_type, size, within, options, lambda: self)

    @overload
    async def submit(
        self,
        command: Command[R],
        /,
        *,
        key: str | None = None,
        if_present: PresentPolicy | None = None,
        unique_for: Duration | None = None,
        priority: int | None = None,
        delay: Duration | None = None,
        at: datetime | None = None,
        deadline: Duration | None = None,
        timeout: Duration | None = None,
        connection: Any = None,
    ) -> Handle[R]: ...

    @overload
    async def submit(
        self,
        lane_id: str,
        command: Command[R],
        *,
        key: str | None = None,
        if_present: PresentPolicy | None = None,
        unique_for: Duration | None = None,
        priority: int | None = None,
        delay: Duration | None = None,
        at: datetime | None = None,
        deadline: Duration | None = None,
        timeout: Duration | None = None,
        connection: Any = None,
    ) -> Handle[R]: ...

    async def submit(
        self,
        lane_id: str | Command[R],
        command: Command[R] | None = None,
        *,
        key: str | None = None,
        if_present: PresentPolicy | None = None,
        unique_for: Duration | None = None,
        priority: int | None = None,
        delay: Duration | None = None,
        at: datetime | None = None,
        deadline: Duration | None = None,
        timeout: Duration | None = None,
        connection: Any = None,
    ) -> Handle[R]:
        """Submit a command: ``submit(lane_id, command)``, or ``submit(command)`` to its own lane.

        Await the handle for its result.

        With a `key`, the commands of that key run one at a time in the lane, in the order in which
        they were submitted, each with its own result. One that failed and waits for its retry
        keeps those behind it waiting. `if_present` says otherwise.

        Args:
            lane_id: The lane. It may be left out where the type of the command has one:
                ``@manager.command(..., lane=...)``.
            command: A registered function with its arguments, or an object with
                ``async execute()`` and `command_type`.
            key: What must be done one at a time; None: the command is on its own, unless its type
                says what its key is.
            if_present: What to do when a command of the key waits or runs. ``"append"``, the
                default: run after it. ``"update"``: replace the newest one that waits, and behind
                one that runs wait as the newest; the handles of all that were replaced tell the
                one result. ``"skip"``: submit nothing, and return the handle of the newest that is
                there. ``"reject"``: raise `KeyAlreadyPresentError`.
            unique_for: With ``if_present="skip"``: a command of the key also counts as there for
                so long after it is done. The handle then tells its result, which is kept for at
                least that long.
            priority: Within the lane, lower goes first, as with the priorities of lanes; 0 by
                default. (In queues and in the repository, higher goes first: the item of the
                command in a store has the opposite number.)
            delay: Start it no earlier than after this time.
            at: Start it no earlier than at this moment, in place of a `delay`, by the clock of this
                process; a moment that has passed is now. It has a time zone:
                ``datetime(2026, 3, 1, 8, 30, tzinfo=ZoneInfo("Europe/Berlin"))``.
            deadline: By when it should be started, after the submission. As the time runs out, the
                command is lifted: in its lane above those that are up less, and with its lane
                above other lanes with which it shares a capacity. `PriorityBoostConfig` says how
                far. A `DeadlineWarning` tells if the lane has switched that off.
            timeout: How long it may run, in place of what its type and the lane say.
            connection: On PostgreSQL: an asyncpg connection with an open transaction, in which
                the command is submitted, without a `deadline`. It can start when that is
                committed, and never was if it is rolled back; its handle then stays pending. No
                other caller waits for such a transaction. What is there already is decided when
                this is called.

        Raises:
            KeyAlreadyPresentError: The key is there, and `if_present` is ``"reject"``.
            ValueError: An argument has a value that makes no sense; `at` has no time zone, or both
                `at` and `delay` are given.
            UnknownLaneError: There is no such lane.
            LaneConfigError: No lane is given, and the type of the command has none.
            ShuttingDownError: `shutdown` was called.
            UnregisteredCommandError: The store needs a registered command, and this is none.
            CommandPayloadError: The command cannot be written down, or the key function of its
                type failed.
        """
        if at is not None:
            delay = self._queue.delay_until(at, delay)
        terms = SubmitTerms.checked(
            if_present, priority, delay, deadline, timeout, unique_for=unique_for
        )
        return await self._queue.submit_on(lane_id, command, key, terms, connection)

    @overload
    async def submit_many(
        self,
        commands: "KeyedCommands[R] | Iterable[Command[R]]",
        /,
        *,
        if_present: PresentPolicy | None = None,
        unique_for: Duration | None = None,
        priority: int | None = None,
        delay: Duration | None = None,
        at: datetime | None = None,
        deadline: Duration | None = None,
        timeout: Duration | None = None,
        connection: Any = None,
    ) -> list[Handle[R]]: ...

    @overload
    async def submit_many(
        self,
        lane_id: str,
        commands: "KeyedCommands[R] | Iterable[Command[R]]",
        *,
        if_present: PresentPolicy | None = None,
        unique_for: Duration | None = None,
        priority: int | None = None,
        delay: Duration | None = None,
        at: datetime | None = None,
        deadline: Duration | None = None,
        timeout: Duration | None = None,
        connection: Any = None,
    ) -> list[Handle[R]]: ...

    async def submit_many(
        self,
        lane_id: "str | KeyedCommands[R] | Iterable[Command[R]]",
        commands: "KeyedCommands[R] | Iterable[Command[R]] | None" = None,
        *,
        if_present: PresentPolicy | None = None,
        unique_for: Duration | None = None,
        priority: int | None = None,
        delay: Duration | None = None,
        at: datetime | None = None,
        deadline: Duration | None = None,
        timeout: Duration | None = None,
        connection: Any = None,
    ) -> list[Handle[R]]:
        """Submit many commands in one step: all of them, or none on an error.

        Commands of one type take one trip to a store; those of several types are put while
        no other call can change the queue. They run in this order, as if submitted one by one. In
        a lane with partitions on a store, each partition takes all of its commands or none: an
        error tells of one that took none, and the others may have taken theirs. If this is
        cancelled, they may have been submitted all the same.

        Args:
            lane_id: The lane. It may be left out where the types of all commands have the same
                one.
            commands: Commands, each on its own; or with keys, which have the meaning of `key` in
                `submit`: a mapping of keys to commands, or pairs of a key and a command, in which
                a key may come several times.
            if_present: As in `submit`; with ``"reject"``, one key that is there is enough to
                submit nothing.
            unique_for: As in `submit`.
            priority: As in `submit`. Like `delay`, `deadline` and `timeout`, it is for all of
                them; None: each as its type says.
            delay: Start them no earlier than after this time.
            at: As in `submit`.
            deadline: By when they should be started.
            timeout: How long each of them may run.
            connection: As in `submit`.

        Returns:
            Their handles, in order.

        Raises:
            KeyAlreadyPresentError: `if_present` is ``"reject"`` and some keys are there; at least
                one of them is in the ``keys`` of the error.
            LimitExceededError: They are more than the limit ``batch_size`` of the store.
            UnknownLaneError: There is no such lane.
            LaneConfigError: No lane is given, and a type has none, or not all have the same one.
            ShuttingDownError: `shutdown` was called.
            UnregisteredCommandError: The store needs registered commands, and one is none.
            CommandPayloadError: A command cannot be written down.
        """
        if at is not None:
            delay = self._queue.delay_until(at, delay)
        terms = SubmitTerms.checked(
            if_present, priority, delay, deadline, timeout, unique_for=unique_for
        )
        return await self._queue.submit_many_on(lane_id, commands, terms, connection)

    def handle(self, id: str) -> Handle[Any]:  # noqa: A002  # as in `Handle`
        """The handle of a command, from its `Handle.id`: in any process, also after a restart.

        The manager need not be started: a web process can submit commands, show their ids, and
        look at them later. Nothing is asked of the store yet, so `Handle.status` is ``"unknown"``
        until the handle is awaited or `Handle.refresh` is: only the store can tell whether it has
        the command. One that it does not have, or no more, is ``"lost"``: its result was kept for
        `LaneConfig.keep_results`, and awaiting the handle raises `CommandLostError`.

        In memory, a command is known to the manager that has it while it waits or runs; one that
        was asked for its `Handle.id` also for `LaneConfig.keep_results` after its end.

        Raises:
            UnknownCommandError: It is not the id of a command, or of none of these lanes; in
                memory, also of a command that is not known any more. It is a `LookupError`.
            TypeError: `id` is no text.
        """
        return self._queue.handle(id)

    @overload
    async def chain(
        self,
        first: Command[A],
        /,
        *,
        lane: str | Sequence[str] | None = None,
        priority: int | None = None,
        delay: Duration | None = None,
    ) -> Handle[A]: ...

    @overload
    async def chain(
        self,
        first: Command[A],
        second: Callable[[A], Command[B]],
        /,
        *,
        lane: str | Sequence[str] | None = None,
        priority: int | None = None,
        delay: Duration | None = None,
    ) -> Handle[B]: ...

    @overload
    async def chain(
        self,
        first: Command[A],
        second: Callable[[A], Command[B]],
        third: Callable[[B], Command[C]],
        /,
        *,
        lane: str | Sequence[str] | None = None,
        priority: int | None = None,
        delay: Duration | None = None,
    ) -> Handle[C]: ...

    @overload
    async def chain(
        self,
        first: Command[A],
        second: Callable[[A], Command[B]],
        third: Callable[[B], Command[C]],
        fourth: Callable[[C], Command[D]],
        /,
        *,
        lane: str | Sequence[str] | None = None,
        priority: int | None = None,
        delay: Duration | None = None,
    ) -> Handle[D]: ...

    @overload
    async def chain(
        self,
        first: Command[A],
        second: Callable[[A], Command[B]],
        third: Callable[[B], Command[C]],
        fourth: Callable[[C], Command[D]],
        fifth: Callable[[D], Command[E]],
        /,
        *,
        lane: str | Sequence[str] | None = None,
        priority: int | None = None,
        delay: Duration | None = None,
    ) -> Handle[E]: ...

    @overload
    async def chain(
        self,
        first: Command[A],
        second: Callable[[A], Command[B]],
        third: Callable[[B], Command[C]],
        fourth: Callable[[C], Command[D]],
        fifth: Callable[[D], Command[E]],
        sixth: Callable[[E], Command[F]],
        /,
        *,
        lane: str | Sequence[str] | None = None,
        priority: int | None = None,
        delay: Duration | None = None,
    ) -> Handle[F]: ...

    @overload
    async def chain(
        self,
        first: Command[Any],
        second: Callable[[Any], Command[Any]],
        third: Callable[[Any], Command[Any]],
        fourth: Callable[[Any], Command[Any]],
        fifth: Callable[[Any], Command[Any]],
        sixth: Callable[[Any], Command[Any]],
        seventh: Callable[[Any], Command[Any]],
        /,
        *steps: Callable[[Any], Command[Any]],
        lane: str | Sequence[str] | None = None,
        priority: int | None = None,
        delay: Duration | None = None,
    ) -> Handle[Any]: ...

    async def chain(
        self,
        first: Command[Any],
        /,
        *steps: Callable[[Any], Command[Any]],
        lane: str | Sequence[str] | None = None,
        priority: int | None = None,
        delay: Duration | None = None,
    ) -> Handle[Any]:
        """Submit a command, and others that follow it: each gets the result of the one before.

        ``await manager.chain(fetch(url), parse, store, lane="pages")``. A step is a registered
        function or class, which is called with the result as its first argument, or
        `functools.partial` of one, with its other arguments. The handle has the result of the last
        step. A step that fails for good ends the chain, and the handle raises its error; when its
        dead letter is requeued, the chain goes on from there. Cancelling the handle cancels the
        step that waits or runs, and none follows.

        On a store a chain outlives every process. Each step runs at least once, as any command
        does, and begins when the one before it has been completed. A worker that is killed between
        a step and the next leaves a step that runs again; the next one is not submitted twice.
        Each step tells for a week as what its chain goes on, to handles of any process.

        The key of its type is not used: each step has a key of its own.

        Args:
            first: A command with its arguments.
            steps: What follows it.
            lane: The lane of all steps, or one for each; by default, each has that of its type.
            priority: As in `submit`, for all steps.
            delay: Start the first step no earlier than after this time.

        Raises:
            TypeError: A step is no registered command.
            CommandPayloadError: A step cannot take one more argument, or has arguments that do
                not fit or cannot be written down. Nothing was submitted.
            UnregisteredCommandError: A step is not registered with this manager.
            LaneConfigError: It is not said in which lane a step runs.
            UnknownLaneError: There is no such lane.
            ShuttingDownError: `shutdown` was called.
        """
        return await self._queue.chain(first, steps, lane=lane, priority=priority, delay=delay)

    @overload
    async def gather(
        self,
        commands: Iterable[Command[A]],
        *,
        then: None = None,
        lane: str | None = None,
        then_lane: str | None = None,
        within: Duration = GATHER_WITHIN,
        priority: int | None = None,
    ) -> Handle[list[GatherOutcome[A]]]: ...

    @overload
    async def gather(
        self,
        commands: Iterable[Command[A]],
        *,
        then: Callable[[list[GatherOutcome[A]]], Command[B]],
        lane: str | None = None,
        then_lane: str | None = None,
        within: Duration = GATHER_WITHIN,
        priority: int | None = None,
    ) -> Handle[B]: ...

    async def gather(
        self,
        commands: Iterable[Command[Any]],
        *,
        then: Callable[[list[GatherOutcome[Any]]], Command[Any]] | None = None,
        lane: str | None = None,
        then_lane: str | None = None,
        within: Duration = GATHER_WITHIN,
        priority: int | None = None,
    ) -> Handle[Any]:
        """Submit commands, and one that runs once when all of them are done.

        ``await manager.gather([fetch(url) for url in urls], then=report, lane="pages")``. The
        commands run as any others, next to each other. `then` is called with the list of their
        outcomes, in order: results, or why there is none. The handle has the result of `then`;
        without `then`, it has the list of outcomes. Cancelling the handle cancels all of them.

        A command has ended when it was completed, cancelled, or given up after its last attempt.
        The first outcome counts: a dead letter that is requeued later changes nothing. What has
        not ended after `within` is told as lost, so that a command that was removed from its lane
        by hand keeps nothing waiting for ever.

        On a store a gather outlives every process. There is one `then` command from the beginning,
        scheduled for the end of that time; the end of the last command lets it start. It runs at
        least once, as any command does. The outcomes are kept until it is done, but not for longer
        than twice that time. The keys of types are not used: each command has a key of its own.

        Commands of one lane are submitted in one step. If the store refuses those of another lane,
        all are cancelled. A process that is killed in this call may have submitted some: `then`
        runs then, at the latest after `within`, and is told that the others are lost.

        Args:
            commands: Commands with their arguments. On a store at most as many of one lane as its
                limit ``batch_size`` says.
            then: A registered command that takes a list of `GatherOutcome` as its first argument,
                or `functools.partial` of one, with its other arguments.
            lane: The lane of the commands and of `then`; by default, each has that of its type.
            then_lane: The lane of `then`, if it is another one.
            within: How long the commands may take; a week by default.
            priority: As in `submit`, for all of them.

        Raises:
            ValueError: There are no commands, and no `then` to tell that.
            TypeError: `then` is no registered command, or one of `commands` is no command.
            CommandPayloadError: `then` cannot take one more argument, or some arguments do not fit
                or cannot be written down. Nothing was submitted.
            UnregisteredCommandError: `then` or one of `commands` is not registered.
            LimitExceededError: They are too many. Nothing was submitted.
            LaneConfigError: It is not said in which lane one of them runs.
            UnknownLaneError: There is no such lane.
            ShuttingDownError: `shutdown` was called.
        """
        return await self._queue.gather(
            commands,
            then=then,
            lane=lane,
            then_lane=then_lane,
            within=within,
            priority=priority,
        )

    async def cancel(self, lane_id: str, key: str) -> bool:
        """Cancel all commands of a key, waiting or running; returns whether there was one.

        A running one is cancelled like a task. A task that waits for it gets a
        `CommandCancelledError`. A dead letter that holds the key stays, and holds it no more.
        """
        return await self._queue.cancel(lane_id, key)

    def pause(self, lane_id: str) -> Awaitable[None]:
        """Start no more commands of a lane; those that run go on.

        That holds here at once. On a store it holds for all its workers, also for those that
        start later, until `resume`: they see it within a second of the moment at which the
        store has it. Await what this returns to wait for that moment; it happens anyway. A store
        that fails is tried again until it works; one that is closed raises `StoreClosedError`,
        or is logged where no task waits.
        """
        return self._queue.pause(lane_id)

    def resume(self, lane_id: str) -> Awaitable[None]:
        """Start commands of a paused lane again: here at once, and as `pause` elsewhere."""
        return self._queue.resume(lane_id)

    # Around commands

    def middleware(self, function: M) -> M:
        """Run an async function around each attempt of each command: ``@manager.middleware``.

        ``async def middleware(command, call_next)`` is called with a `RunningCommand`, which has
        the arguments, too, and with a function that runs the rest: ``await call_next()`` returns
        what the command returns, and raises what it raises. What the middleware returns or raises
        takes the place of that. It runs in the event loop of the worker, wherever the command
        itself runs, and within the time-out of the command. The first one that is registered is
        the outermost.

        Raises:
            TypeError: It is not async, or does not take a command and a function.
        """
        self._middleware.append(checked_middleware(function))
        return function

    def lifespan(self, function: L) -> L:
        """Open resources once for this worker, and close them at its end: ``@manager.lifespan``.

        The function is an async generator with one ``yield``, or returns an async context manager.
        `start` enters it before the first command runs, and `close` leaves it after the last one
        has ended. What it yields are the resources of commands: an object, a tuple of them, or a
        mapping of names. A command gets at them by ``current_command().resources``, or by a
        parameter ``pool: Pool = resource()``. Several lifespans are entered in order, and left in
        the opposite order. A manager that runs no lane enters none.

        Raises:
            TypeError: It is no lifespan. The message says what to write.
            LaneConfigError: The manager has been started.
        """
        if self._queue.started:
            raise LaneConfigError("the manager has been started: it has entered its lifespans")
        lifespan = NamedLifespan(function)
        self._lifespans.append(lifespan)
        self._queue.registry.provide(lifespan.provides)
        return function

    # Schedules

    @overload
    def schedule(
        self,
        name: str,
        expression: str,
        command: Command[Any],
        /,
        *,
        lane: str | None = None,
        tz: str | None = None,
        missed: MissedPolicy = "once",
        jitter: Duration | None = None,
        key: str | None = None,
        if_present: PresentPolicy | None = None,
        priority: int | None = None,
        timeout: Duration | None = None,
    ) -> Schedule: ...

    @overload
    def schedule(
        self,
        name: str,
        command: Command[Any],
        /,
        *,
        every: Duration,
        lane: str | None = None,
        missed: MissedPolicy = "once",
        jitter: Duration | None = None,
        key: str | None = None,
        if_present: PresentPolicy | None = None,
        priority: int | None = None,
        timeout: Duration | None = None,
    ) -> Schedule: ...

    def schedule(
        self,
        name: str,
        expression: str | Command[Any] | None = None,
        command: Command[Any] | None = None,
        /,
        *,
        every: Duration | None = None,
        lane: str | None = None,
        tz: str | None = None,
        missed: MissedPolicy = "once",
        jitter: Duration | None = None,
        key: str | None = None,
        if_present: PresentPolicy | None = None,
        priority: int | None = None,
        timeout: Duration | None = None,
    ) -> Schedule:
        """Declare a schedule: a command that is submitted again and again, at its ticks.

        ``schedule("nightly", "0 3 * * *", report(11), tz="Europe/Berlin")``, or
        ``schedule("poll", poll(), every=timedelta(minutes=5))``.

        On a store, each tick is fired once over all workers that have the lane, whichever of them
        is first; the command is submitted and the next tick is written down in one step. (On a
        Redis cluster in two: see the guide.) The schedule survives restarts, and goes on until it
        is removed by `unschedule`. The clock of the store decides when a tick is due.

        It may be called before `start`, which writes the schedule down, and after it. A schedule
        of that name that is there already is replaced if it is another one; its next tick is then
        counted from now on. If it is the same, it goes on as it was.

        In memory, ticks begin with `start` and end with the manager.

        Args:
            name: The name of the schedule.
            expression: A cron expression with five fields: minute, hour, day of the month, month,
                day of the week. It takes cronsim: ``pip install 'leasedkeyq[schedules]'``. It may
                be left out for `every`.
            command: What is submitted at each tick. On a store it is of a registered type.
            every: The time between two ticks, in place of an expression. The first one comes after
                that time.
            lane: Where it is submitted; None: to the lane of its type.
            tz: The time zone of the expression; ``"UTC"`` by default. In the night in which an hour
                is left out, a fixed time in that hour is fired right after it; in the night in
                which an hour comes twice, it is fired once. A schedule of every hour, or every few
                minutes, goes by the real time.
            missed: What becomes of ticks that were due while no worker could fire them. ``"once"``:
                one command for all of them. ``"skip"``: none; a tick that is more than a minute
                late is missed. ``"all"``: one command for each, of the newest 1,000.
            jitter: Let each command start at a random time within so long after its tick.
            key: The key of its commands: they run one after the other. Without it each tick has a
                key of its own, ``name@tick``, unless the type of the command says what its key is.
            if_present: With a key: what to do when a command of it waits or runs, as in `submit`.
                ``"skip"`` lets no commands pile up.
            priority: As in `submit`.
            timeout: As in `submit`.

        Returns:
            The schedule, which can be paused, resumed, run by hand and removed.

        Raises:
            ScheduleError: The expression, the time zone or another argument makes no sense.
            UnknownLaneError: There is no such lane.
            LaneConfigError: No lane is given, and the type of the command has none.
            UnregisteredCommandError: The store needs a registered command, and this is none.
            CommandPayloadError: The command cannot be written down.
            ManagerClosedError: The manager was closed.
            ModuleNotFoundError: There is an expression, and cronsim is not installed.
        """
        if expression is not None and not isinstance(expression, str):
            if command is not None:
                raise TypeError(
                    f"schedule {name!r}: a cron expression is a str such as '0 3 * * *', got "
                    f"{type(expression).__name__}"
                )
            expression, command = None, expression
        declare = partial(
            CommandQueue.schedule,
            name=name,
            expression=expression,
            command=command,
            every=every,
            lane=lane,
            tz=tz,
            missed=missed,
            jitter=jitter,
            key=key,
            if_present=if_present,
            priority=priority,
            timeout=timeout,
        )
        schedule = declare(self._queue)
        self._declared[name] = declare
        return schedule

    async def schedules(self) -> list[Schedule]:
        """All schedules, by name: on a store those of all programs that use it.

        In a process that runs no worker, too. What this manager has declared is among them when it
        has started, or when `Schedule.declare` has written it down.
        """
        return await self._queue.schedules.look()

    async def unschedule(self, name: str) -> bool:
        """End a schedule, for all workers; returns whether there was one.

        Commands that were submitted stay. A program that declares it still brings it back when
        it starts the next time, so take it out there, too.
        """
        self._declared.pop(name, None)
        return await self._queue.schedules.remove(name)

    # Looking

    async def stats(self) -> QueueStats:
        """How many commands wait and run, and what became of the others."""
        return await self._queue.stats()

    def subscribe(self) -> Subscription:
        """Receive every event from now on."""
        return self.emitter.subscribe()

    def subscribe_filtered(self, predicate: Callable[[LaneEvent], bool]) -> Subscription:
        """Receive the events from now on for which `predicate` is true."""
        return self.emitter.subscribe_filtered(predicate)

    # Running

    async def start(self) -> None:
        """Begin to run commands. Does nothing if they run already.

        The lifespans are entered first. If that fails or is cancelled, nothing has been claimed.

        Raises:
            LifespanError: A lifespan failed.
            ResourceError: A command takes a resource that no lifespan provides.
            ManagerClosedError: The manager was closed, or has failed.
            LaneConfigError: A process for commands imports the module that starts this manager.
        """
        await self._queue.start()
        for monitor in self._monitors:
            await monitor.start()

    async def shutdown(self) -> None:
        """Take no more commands. What was submitted is still run.

        Raises:
            ManagerClosedError: It is not: a task of the manager failed, or its store was closed.
        """
        await self._queue.shutdown()

    def is_shutting_down(self) -> bool:
        """Whether `shutdown` was called."""
        return self._queue.is_shutting_down()

    async def drain(self, timeout: Duration | None = None) -> None:
        """Wait until no command waits, runs, is delayed or waits for a retry.

        Commands behind a dead letter that holds their key are not waited for.

        On a store, that means the commands of all processes.

        Raises:
            DrainTimeoutError: That took longer than `timeout`. It says what is left, where.
            LaneError: It was called by a command, which would wait for itself.
            ManagerClosedError: A task of the manager has failed, or its store was closed.
        """
        await self._queue.drain(timeout)

    async def close(self) -> dict[str, int]:
        """End what runs, and let go of everything; returns how many commands each lane has left.

        In memory, those are lost, and tasks that wait for them are told so. In a store, they stay
        for the next process. A cancelled call goes on by itself; further calls wait for the same
        end.

        Raises:
            LifespanError: A lifespan failed to end. Everything else has ended.
        """
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        return await asyncio.shield(self._closing)

    async def _close(self) -> dict[str, int]:
        for monitor in self._monitors:
            await monitor.stop()
        try:
            return await self._queue.close()
        finally:
            if self._store_to_close is not None:
                await self._store_to_close.close()

    async def run(self, signals: Sequence[signal.Signals] = STOP_SIGNALS) -> dict[str, int]:
        """Start, run until one of `signals` arrives, then end gracefully.

        In memory it waits until all commands are done, on a store only for those that run: the
        others stay in the store for other workers. Both at most for the drain time-out.
        A second signal ends it at once, and so does a cancellation. Returns how many commands each
        lane has left. For the main thread, as signals are.

        Raises:
            ManagerClosedError: A task of the manager has failed, or its store was closed.
        """
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        hurry = asyncio.Event()

        def heard(number: signal.Signals) -> None:
            logger.info("told to stop by %s", number.name)
            (hurry if stop.is_set() else stop).set()

        for number in signals:
            loop.add_signal_handler(number, heard, number)
        try:
            if not await self._start_unless(stop):
                return await self.close()
            await self._queue.unless_failed(stop.wait())
            ending = asyncio.ensure_future(self._end(leave=self._queue.durable))
            hurrying = asyncio.ensure_future(hurry.wait())
            try:
                await asyncio.wait({ending, hurrying}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                hurrying.cancel()
                ending.cancel()
            [ended] = await asyncio.gather(ending, return_exceptions=True)
            if isinstance(ended, ManagerClosedError):
                raise ended
        finally:
            left = await self.close()
            for number in signals:
                loop.remove_signal_handler(number)
        return left

    async def _start_unless(self, stop: asyncio.Event) -> bool:
        """Start, unless the manager is told to stop before a lifespan is open."""
        starting = asyncio.ensure_future(self.start())
        stopping = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            if not starting.done():
                starting.cancel()
                await asyncio.wait({starting})
        if starting.cancelled():
            return False
        starting.result()
        return True

    async def _end(self, *, leave: bool = False) -> None:
        """Take no more, and let commands end in time: all, or with `leave` those that run."""
        await self.shutdown()
        try:
            if leave:
                await self._queue.settle_down(self.drain_timeout)
            else:
                await self._queue.drain(self.drain_timeout)
        except DrainTimeoutError as error:
            logger.warning("%s", error)
        except TimeoutError:
            logger.warning("commands still run after %s s; they are cancelled", self.drain_timeout)

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except (
            LaneConfigError,
            LifespanError,
            ResourceError,
            ScheduleError,
            UnknownLaneError,
        ):
            # It could not run. A store that the manager has opened is closed, too.
            await self.close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            failed = isinstance(error, ManagerClosedError)
            if error is None or (isinstance(error, Exception) and not failed):
                await self._end()
        finally:
            left = await self.close()
            if left:
                where = ", ".join(f"{number} in lane {lane!r}" for lane, number in left.items())
                kept = "stay in the store" if self._queue.durable else "were not run, and are lost"
                logger.warning("%d commands %s: %s", sum(left.values()), kept, where)
