"""Hears of changes by others: NOTIFY, and a look from time to time."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import asyncpg
import msgspec

from leasedkeyq.stores.postgres_link import LOST, PAUSES, Link
from leasedkeyq.stores.watching import Watchers

_decode = msgspec.json.Decoder(list[str]).decode


class NewsWatch:
    """Wakes those who watch in one event loop.

    Args:
        watchers: Whom to wake.
        link: The connections whose own changes are known already.
        connect: Makes a connection.
        channel: Where the server tells of changes; None: look from time to time only.
        poll: Seconds between two looks.
    """

    def __init__(
        self,
        watchers: Watchers,
        link: Link,
        *,
        connect: Callable[[], Awaitable[Any]],
        channel: str | None,
        poll: float,
    ) -> None:
        self._watchers = watchers
        self._link = link
        self._connect = connect
        self._channel = channel
        self._poll = poll
        self._task: asyncio.Task[None] | None = None
        self._lost = asyncio.Event()

    def start(self) -> None:
        """Watch from now on."""
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        """End it; for the event loop that it belongs to."""
        if self._task is not None:
            self._task.cancel()

    async def close(self) -> None:
        """End it, and let go of the connection."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _run(self) -> None:
        """Until nobody watches any more, and some time after: the next one often comes soon."""
        pause = PAUSES[0]
        while self._watchers:
            connection = None
            try:
                if self._channel is not None:
                    connection = await self._connect()
                    self._lost.clear()
                    connection.add_termination_listener(self._end)
                    await connection.add_listener(self._channel, self._hear)
                pause = PAUSES[0]
                await self._look()
            except (*LOST, asyncpg.PostgresError):
                await asyncio.sleep(random.uniform(0, pause))
                pause = min(pause * 2, PAUSES[1])
            finally:
                if connection is not None:
                    connection.terminate()

    async def _look(self) -> None:
        """While the connection holds."""
        while self._watchers:
            # What was changed before somebody listened is seen now, and what nobody told of later.
            self._watchers.wake_all()
            try:
                await asyncio.wait_for(self._lost.wait(), self._poll)
            except TimeoutError:
                continue
            return

    def _end(self, _: Any) -> None:
        self._lost.set()

    def _hear(self, _: Any, process: int, __: str, said: object) -> None:
        if process in self._link.own:
            return
        queues = _decode(str(said))
        if queues:
            self._watchers.wake(queues)
        else:
            self._watchers.wake_all()
