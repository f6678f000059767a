"""`SyncHandle`: a submitted command, for programs without an event loop."""

from collections.abc import Awaitable, Callable
from time import monotonic
from typing import TYPE_CHECKING, Generic, TypeVar

from leasedkeyq import checks
from leasedkeyq.lanes.queue import CommandQueue
from leasedkeyq.lanes.running.job import ENDED, CommandStatus, Handle
from leasedkeyq.lanes.running.progress import Progress
from leasedkeyq.lanes.sync.calls import SentAwayError, time_left
from leasedkeyq.types import Duration

if TYPE_CHECKING:
    from leasedkeyq.lanes.sync.manager import SyncManager

R = TypeVar("R")
T = TypeVar("T")


class SyncHandle(Generic[R]):
    """A submitted command, as `Handle`. Any thread may use it, also after a fork.

    Attributes:
        id: The id of the command, for a web page or another process: see `SyncManager.handle`.
        lane: The lane of the command.
        key: The key of the command.
        command_type: The type of the command; "" if it was found by its id, and `status` was not
            asked for yet.
    """

    __slots__ = ("__weakref__", "_handle", "_manager", "command_type", "id", "key", "lane")

    def __init__(self, handle: Handle[R], manager: "SyncManager") -> None:
        self.id: str = handle.id
        self.lane: str = handle.lane
        self.key: str = handle.key
        self.command_type: str = handle.command_type
        self._handle = handle
        self._manager = manager

    @property
    def status(self) -> CommandStatus:
        """Where the command stands now: the store is asked."""
        return self._ask("handle.refresh()", Handle[R].refresh)

    def done(self) -> bool:
        """Whether the command has ended, well or badly: the store is asked."""
        return self.status in ENDED

    def result(self, timeout: Duration | None = None) -> R:
        """Wait for the result of the command, and return it. What the command raised is raised.

        Ctrl-C ends the wait. Whatever ends the wait, the command goes on.

        Args:
            timeout: How long to wait; None: for ever. With 0 the store is asked once.

        Raises:
            TimeoutError: The command has not ended within `timeout`.
            CommandLostError: The store does not have the command, or no more.
            WrongEventLoopError: An event loop runs in this thread: await a handle of the manager.
            ManagerClosedError: `SyncManager.close` was called meanwhile.
        """
        limit = checks.wait_time("timeout", timeout)
        until = None if limit is None else monotonic() + limit
        while True:
            try:
                return self._ask(
                    "handle.result()", lambda handle: handle.result(time_left(until)), waits=True
                )
            except SentAwayError:
                continue  # the process has forked

    def progress(self) -> Progress | None:
        """How far the command has come, as it told last; None if it has told nothing."""
        return self._ask("handle.progress()", Handle[R].progress)

    def cancel(self) -> bool:
        """Cancel the command, waiting or running; returns whether that was still possible."""
        return self._ask("handle.cancel()", Handle[R].cancel)

    def _ask(
        self, what: str, ask: Callable[[Handle[R]], Awaitable[T]], *, waits: bool = False
    ) -> T:
        async def answer(queue: CommandQueue) -> T:
            if not queue.has(self._handle):
                # The lanes that it came from were closed, as for a fork, and others are open now.
                self._handle = queue.handle(self.id)
            answered = await ask(self._handle)
            self.command_type = self._handle.command_type
            return answered

        return self._manager.call(what, answer, waits=waits)

    def __repr__(self) -> str:
        kind = self.command_type or "command"
        return f"<{kind} {self.key!r} in lane {self.lane!r}: {self._handle.status}>"
