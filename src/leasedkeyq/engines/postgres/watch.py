"""Hears of changes by others: NOTIFY, and a look from time to time."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

import msgspec

from leasedkeyq.engines.postgres.errors import LOST, asyncpg
from leasedkeyq.engines.postgres.link import LISTENING, PAUSES, PostgresLink
from leasedkeyq.errors import StoreError
from leasedkeyq.stores.watchers import LISTENER, Watchers

ANSWER_TIMEOUT: Final = 10.0
"""Seconds after which a connection that does not answer is taken to be broken."""

_decode = msgspec.json.Decoder(list[str]).decode


class NewsWatch:
    """Wakes the watchers of one event loop when their queues have changed.

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
        link: PostgresLink,
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
        self._looked = float("-inf")

    def start(self) -> None:
        """Watch from now on."""
        if self._task is None or self._task.done():
            loop = asyncio.get_running_loop()
            self._task = loop.create_task(self._run(), name=LISTENER)

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
        """Run until the last watcher has gone, and some time longer: the next often comes soon."""
        pause = PAUSES[0]
        while self._watchers:
            connection = None
            try:
                if self._channel is not None:
                    connection = await self._connect()
                    self._lost.clear()
                    connection.add_termination_listener(self._end)
                    async with asyncio.timeout(ANSWER_TIMEOUT):
                        await connection.add_listener(self._channel, self._hear)
                    if self._link.outage is not None:
                        self._link.found(LISTENING)
                pause = PAUSES[0]
                await self._look(connection)
            except (*LOST, asyncpg.PostgresError, StoreError) as error:
                self._link.lost(LISTENING, error)
                # Calls may get through all the same.
                if asyncio.get_running_loop().time() >= self._looked + self._poll:
                    self._wake_all()
                await asyncio.sleep(random.uniform(0, min(pause, self._poll)))
                pause = min(pause * 2, PAUSES[1])
            finally:
                if connection is not None:
                    connection.terminate()

    async def _look(self, connection: Any) -> None:
        """While the connection holds."""
        while self._watchers:
            # The watchers look for what was changed before this listened, and later for what was
            # changed without being told.
            self._wake_all()
            try:
                async with asyncio.timeout(self._poll):
                    await self._lost.wait()
            except TimeoutError:
                if connection is not None:
                    # One that broke without a word would be silent for ever.
                    await connection.execute("SELECT", timeout=ANSWER_TIMEOUT)
                continue
            return

    def _wake_all(self) -> None:
        self._looked = asyncio.get_running_loop().time()
        self._watchers.wake_all()

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
