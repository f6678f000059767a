"""One look at a store for all who have a page of it open."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable
from typing import Any, Final, TypeVar

T = TypeVar("T")

MOST_LOOKS: Final = 500
SHARE: Final = 10
"""A look that takes long is taken more rarely: it takes at most one in so many seconds."""
LONGEST_PAUSE: Final = 60.0
"""Seconds: one look that hung, while a server failed over, must not make a page old for long."""


class _SharedLook:
    """A look that is under way, or done, and until when it is good."""

    def __init__(self, task: "asyncio.Task[Any]", until: float) -> None:
        self.task = task
        self.until = until


class Poller:
    """Looks at a store at most once in each interval, and only while somebody wants to see it.

    Args:
        interval: Seconds between two looks at the same thing.
    """

    def __init__(self, interval: float = 2.0) -> None:
        self.interval = interval
        self._looks: dict[Hashable, _SharedLook] = {}
        self._tick = 0
        self._ticker: asyncio.Task[None] | None = None
        self._next: asyncio.Future[None] | None = None
        self.open_pages = 0

    async def look(self, key: Hashable, make: Callable[[], Awaitable[T]]) -> T:
        """What `make` finds, or has found for somebody else within the interval.

        Whoever asks meanwhile waits for the same look. A caller that is cancelled leaves it to the
        others. What it raises is raised for all of them.

        Args:
            key: What is looked at: the same key means the same look.
            make: Looks.
        """
        loop = asyncio.get_running_loop()
        now = loop.time()
        shared = self._looks.get(key)
        if shared is None or (shared.task.done() and shared.until <= now):
            shared = None
        elif not shared.task.done() and shared.task.get_loop() is not loop:
            shared = None  # its event loop has ended before it
        if shared is None:
            shared = self._begin(key, make)
        return await asyncio.shield(shared.task)

    def forget(self) -> None:
        """Look anew: something was changed here."""
        self._looks.clear()

    async def ticks(self) -> AsyncGenerator[int, None]:
        """Tell when it is worth looking again, while this is iterated.

        All who iterate are told by one clock, which stands still when nobody does.
        """
        self.open_pages += 1
        try:
            while True:
                await asyncio.shield(self._tick_to_come())
                yield self._tick
        finally:
            self.open_pages -= 1
            if not self.open_pages:
                self.stop()

    def stop(self) -> None:
        """Stop the clock. It starts again with the next page."""
        if self._ticker is not None:
            self._ticker.cancel()
        self._ticker = None
        self._next = None

    @property
    def running(self) -> bool:
        """Whether the clock ticks."""
        return self._ticker is not None and not self._ticker.done()

    def _begin(self, key: Hashable, make: Callable[[], Awaitable[T]]) -> _SharedLook:
        loop = asyncio.get_running_loop()
        began = loop.time()
        self._looks = {
            known: look
            for known, look in self._looks.items()
            if look.until > began or not look.task.done()
        }
        if len(self._looks) >= MOST_LOOKS:
            self._looks.clear()

        async def run() -> T:
            # After an error: the store may be back soon, however long the error took to come.
            pause = self.interval * 0.9
            try:
                found = await make()
                pause = min((loop.time() - began) * SHARE, LONGEST_PAUSE)
                return found
            finally:
                now = loop.time()
                # A little less than the interval: a tick must not find the look before its own.
                shared.until = max(began + self.interval * 0.9, now + pause)

        task = loop.create_task(run(), name="leasedkeyq web: look at a store")
        task.add_done_callback(_read_error)
        shared = self._looks[key] = _SharedLook(task, began + self.interval)
        return shared

    def _tick_to_come(self) -> "asyncio.Future[None]":
        loop = asyncio.get_running_loop()
        if self._ticker is None or self._ticker.done() or self._next is None:
            self._next = loop.create_future()
            self._ticker = loop.create_task(self._run(), name="leasedkeyq web: poller")
        return self._next

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self.interval)
            self._tick += 1
            told, self._next = self._next, loop.create_future()
            if told is not None and not told.done():
                told.set_result(None)


def _read_error(task: "asyncio.Task[Any]") -> None:
    """A look that nobody waits for any more may have failed; that is nothing to warn of."""
    if not task.cancelled():
        task.exception()
