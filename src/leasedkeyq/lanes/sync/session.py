"""Lanes that are open in the background loop of this process, to submit to."""

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import ClassVar

from leasedkeyq.background.forkable import renew_after_fork
from leasedkeyq.background.loop_thread import BackgroundLoop
from leasedkeyq.errors import QueueClosedError
from leasedkeyq.lanes.queue import CommandQueue
from leasedkeyq.lanes.sync.calls import SyncCalls
from leasedkeyq.stores.store import Store

OWNER = "manager"


class ProcessLoop(BackgroundLoop):
    """The one event loop of this process for all managers that are used without one."""

    _here: ClassVar["ProcessLoop | None"] = None
    # Reentrant, as the garbage collector may end a session at any moment.
    _registry: ClassVar = threading.RLock()

    def __init__(self) -> None:
        super().__init__("leasedkeyq sync", OWNER)
        self._users = 0

    @classmethod
    def join(cls) -> "ProcessLoop":
        """The loop of this process. A caller that asks for it calls `leave` in the end."""
        with cls._registry:
            here = cls._here
            if here is None:
                here = cls._here = ProcessLoop()
            here._users += 1
        return here

    def leave(self, *, wait: bool) -> None:
        """End this use of the loop; with the last one the thread ends."""
        with self._registry:
            self._users -= 1
            last = not self._users
            if last:
                type(self)._here = None
        if last:
            self.end(wait=wait)

    @classmethod
    def after_fork(cls) -> None:
        """In a new process there is no thread."""
        cls._registry = threading.RLock()
        cls._here = None


renew_after_fork(ProcessLoop.after_fork)


class SyncSession:
    """Lanes on a store of their own, from its opening to its closing. They run nothing.

    Args:
        build: Builds the lanes, and opens their store.
    """

    def __init__(self, build: Callable[[], tuple[CommandQueue, Store]]) -> None:
        self.queue, self._store = build()
        self._loop = ProcessLoop.join()
        self.calls = SyncCalls(self._loop.loop, self._loop.start)

    def send_away(self, error: Exception) -> None:
        """End the calls that only wait for something."""
        with suppress(QueueClosedError):
            self._loop.start(lambda: self.calls.send_away(error))

    def end(self, error: Exception, *, wait: bool = True) -> None:
        """Send away threads that wait, let other calls finish, and close the store."""
        if self._loop.process != os.getpid():
            return
        self.send_away(error)
        closing = self._loop.submit(self._close())
        if wait:
            closing.result()
        self._loop.leave(wait=wait)

    async def _close(self) -> None:
        await self.calls.quiet()
        await self.queue.let_go()
        await self._store.close()
