"""`SyncManager`: submit commands from programs without an event loop."""

import asyncio
import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypedDict, TypeVar, Unpack, overload

from leasedkeyq.background.forkable import Forkable
from leasedkeyq.errors import WrongEventLoopError
from leasedkeyq.lanes.commands.command import Command
from leasedkeyq.lanes.errors import LaneError, ManagerClosedError
from leasedkeyq.lanes.queue import CommandQueue, KeyedCommands
from leasedkeyq.lanes.sync.calls import SentAwayError, SyncCall, SyncCalls
from leasedkeyq.lanes.sync.handle import SyncHandle
from leasedkeyq.lanes.sync.session import SyncSession
from leasedkeyq.lanes.workflow.outcome import GATHER_WITHIN, GatherOutcome
from leasedkeyq.telemetry.stats import QueueStats
from leasedkeyq.types import Duration, PresentPolicy

if TYPE_CHECKING:
    from leasedkeyq.lanes.manager import QueueManager

R = TypeVar("R")
T = TypeVar("T")

NOT_RUNNING: Final = (
    "manager.sync: the commands of this manager are in memory, or in a store object that it was "
    "given, and it does not run in this process. Give QueueManagerBuilder.with_storage the URL or "
    "the path of a store that processes share, such as sqlite:///jobs.db; or start the manager in "
    "the event loop of another thread"
)


class BatchKeywords(TypedDict, total=False):
    """How commands are submitted; see `QueueManager.submit`."""

    if_present: PresentPolicy | None
    unique_for: Duration | None
    priority: int | None
    delay: Duration | None
    at: datetime | None
    deadline: Duration | None
    timeout: Duration | None


class SubmitKeywords(BatchKeywords, total=False):
    """How a command is submitted; see `QueueManager.submit`."""

    key: str | None


class SyncManager(Forkable):
    """`QueueManager.sync`: the same manager for Flask, Django, scripts and threads.

    Any number of threads may use it. What they submit at the same time goes to the store in one
    batch. A call returns when the store has what it was given, as ``await manager.submit()`` does.

    Where the storage of the manager is named by a URL or a path that processes share, this opens a
    connection of its own at the first call, in an event loop in the background: one such loop for
    all managers of the process. The manager itself stays free for the event loop of its
    ``async with``. In a process that was forked, as by a server that loads the program first, a
    loop and a connection are opened anew by the first call there; a fork waits for the calls that
    are under way in other threads. Events and `QueueManager.metrics` of the manager do not tell of
    what is submitted here; other instruments do.

    Where the commands are in memory, or in a store object that the manager was given, the manager
    must run in an event loop of this process, and calls go through that.
    """

    def __init__(self, manager: "QueueManager") -> None:
        self._manager = manager
        self._lock = threading.Lock()
        self._session: SyncSession | None = None
        self._line: tuple[asyncio.AbstractEventLoop, SyncCalls] | None = None
        self.place = self
        self._all.add(self)

    # Commands

    @overload
    def submit(self, command: Command[R], /, **terms: Unpack[SubmitKeywords]) -> SyncHandle[R]: ...

    @overload
    def submit(
        self, lane_id: str, command: Command[R], /, **terms: Unpack[SubmitKeywords]
    ) -> SyncHandle[R]: ...

    def submit(self, *command: Any, **terms: Unpack[SubmitKeywords]) -> SyncHandle[Any]:
        """Submit a command, as `QueueManager.submit` does, with the same arguments.

        If the thread is interrupted meanwhile, the command may have been submitted all the same.

        Raises:
            WrongEventLoopError: An event loop runs in this thread: ``await manager.submit(...)``.
            LaneError: The commands are in memory, and the manager does not run.
        """

        async def submit(queue: CommandQueue) -> SyncHandle[Any]:
            return SyncHandle(await queue.submit(*command, **terms), self)

        return self.call("manager.submit(...)", submit)

    @overload
    def submit_many(
        self,
        commands: "KeyedCommands[R] | Iterable[Command[R]]",
        /,
        **terms: Unpack[BatchKeywords],
    ) -> list[SyncHandle[R]]: ...

    @overload
    def submit_many(
        self,
        lane_id: str,
        commands: "KeyedCommands[R] | Iterable[Command[R]]",
        /,
        **terms: Unpack[BatchKeywords],
    ) -> list[SyncHandle[R]]: ...

    def submit_many(self, *commands: Any, **terms: Unpack[BatchKeywords]) -> list[SyncHandle[Any]]:
        """Submit many commands in one step: all of them, or none; as `QueueManager.submit_many`.

        Raises:
            WrongEventLoopError: As `submit`.
            LaneError: As `submit`.
        """

        async def submit(queue: CommandQueue) -> list[SyncHandle[Any]]:
            handles = await queue.submit_many(*commands, **terms)
            return [SyncHandle(handle, self) for handle in handles]

        return self.call("manager.submit_many(...)", submit)

    def chain(
        self,
        first: Command[Any],
        /,
        *steps: Callable[[Any], Command[Any]],
        lane: str | Sequence[str] | None = None,
        priority: int | None = None,
        delay: Duration | None = None,
    ) -> SyncHandle[Any]:
        """Submit a command, and others that follow it, as `QueueManager.chain` does.

        Raises:
            WrongEventLoopError: As `submit`.
            LaneError: As `submit`.
        """

        async def chain(queue: CommandQueue) -> SyncHandle[Any]:
            handle = await queue.chain(first, steps, lane=lane, priority=priority, delay=delay)
            return SyncHandle(handle, self)

        return self.call("manager.chain(...)", chain)

    def gather(
        self,
        commands: Iterable[Command[Any]],
        *,
        then: Callable[[list[GatherOutcome[Any]]], Command[Any]] | None = None,
        lane: str | None = None,
        then_lane: str | None = None,
        within: Duration = GATHER_WITHIN,
        priority: int | None = None,
    ) -> SyncHandle[Any]:
        """Submit commands, and one that gets their outcomes, as `QueueManager.gather` does.

        Raises:
            WrongEventLoopError: As `submit`.
            LaneError: As `submit`.
        """

        async def gather(queue: CommandQueue) -> SyncHandle[Any]:
            handle = await queue.gather(
                commands,
                then=then,
                lane=lane,
                then_lane=then_lane,
                within=within,
                priority=priority,
            )
            return SyncHandle(handle, self)

        return self.call("manager.gather(...)", gather)

    def handle(self, id: str) -> SyncHandle[Any]:  # noqa: A002  # as in `SyncHandle`
        """The handle of a command, from its id: in any process, as `QueueManager.handle`.

        Nothing is asked of the store yet.

        Raises:
            UnknownCommandError: As `QueueManager.handle`.
            TypeError: As `QueueManager.handle`.
        """

        async def find(queue: CommandQueue) -> SyncHandle[Any]:
            return SyncHandle(queue.handle(id), self)

        return self.call("manager.handle(...)", find)

    def cancel(self, lane_id: str, key: str) -> bool:
        """Cancel all commands of a key, waiting or running; returns whether there was one."""
        return self.call("manager.cancel(...)", lambda queue: queue.cancel(lane_id, key))

    def stats(self) -> QueueStats:
        """How many commands wait and run, and what became of the others."""
        return self.call("manager.stats()", lambda queue: queue.stats())

    def close(self) -> None:
        """Close the connection. The next call opens another. No program has to call this.

        Threads that wait for results get a `ManagerClosedError`; other calls finish.
        """
        with self._gate.at(self.place):
            with self._lock:
                session, self._session = self._session, None
            if session is not None:
                self._finalizer.detach()
                session.end(ManagerClosedError("manager.sync was closed"))

    # Calls

    def call(
        self, what: str, work: Callable[[CommandQueue], Awaitable[T]], *, waits: bool = False
    ) -> T:
        """Have something awaited in the event loop of the lanes, and wait for what comes of it.

        Args:
            what: What to write behind ``await`` where an event loop runs in this thread.
            work: What to do with the lanes.
            waits: Whether it only waits for something: then a fork does not wait for it.

        Raises:
            WrongEventLoopError: An event loop runs in this thread.
            LaneError: The commands are in memory, and the manager does not run.
            SentAwayError: The process forks; call again. Only where `waits` is given.
        """
        if asyncio._get_running_loop() is not None:
            raise WrongEventLoopError(
                "manager.sync is for threads without an event loop, and would stop the one that "
                f"runs here; write: await {what}"
            )
        if not self._opens():
            queue = self._manager.queue()
            return self._line_into(queue).make(SyncCall(lambda: work(queue), waits=waits))
        with self._gate.at(self.place):
            session = self._session or self._begin()
            return session.calls.make(SyncCall(lambda: work(session.queue), waits=waits))

    def _opens(self) -> bool:
        """Whether this opens a connection of its own, to a store that processes share."""
        if self._session is not None:
            return True
        builder = self._manager.builder
        named = builder is not None and isinstance(builder.storage, str | os.PathLike)
        return named and self._manager.queue().cross_process

    def _line_into(self, queue: CommandQueue) -> SyncCalls:
        """The way into the event loop in which the manager runs."""
        loop = queue.running_loop
        if loop is None:
            raise LaneError(NOT_RUNNING)
        if self._line is None or self._line[0] is not loop:
            self._line = loop, SyncCalls(loop, loop.call_soon_threadsafe)
        return self._line[1]

    def _begin(self) -> SyncSession:
        with self._lock:
            if self._session is None:
                builder = self._manager.builder
                assert builder is not None
                session = SyncSession(builder.build_apart)
                # The thread must not outlive a manager that is gone.
                self._finalizer = weakref.finalize(self, _let_go, session)
                self._session = session
            return self._session

    # Forks

    def is_open(self) -> bool:
        """As `Forkable.is_open`."""
        return self._session is not None

    def closes_for_fork(self) -> bool:
        """As `Forkable.closes_for_fork`."""
        return self._session is not None

    def send_away(self) -> None:
        """As `Forkable.send_away`."""
        if self._session is not None:
            self._session.send_away(SentAwayError())

    def close_for_fork(self) -> None:
        """As `Forkable.close_for_fork`."""
        session, self._session = self._session, None
        if session is not None:
            self._finalizer.detach()
            session.end(SentAwayError())

    def forget(self) -> None:
        """As `Forkable.forget`."""
        self._lock = threading.Lock()
        self._line = None


def _let_go(session: SyncSession) -> None:
    if session.calls.waited_for:
        # The program ends, and threads of it wait for results. What is stored does not need us.
        return
    # In any other thread this may be the garbage collector, at a moment when waiting is not safe.
    session.end(
        ManagerClosedError("the program ends"),
        wait=threading.current_thread() is threading.main_thread(),
    )
