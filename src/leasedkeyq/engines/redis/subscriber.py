"""Hears of changes that others make: the script publishes them, and each event loop subscribes.

A lost connection is made anew, and every waiting `get` then asks again, as something may have been
missed. A slow poll covers what no connection tells of.
"""

import asyncio
import logging
import weakref
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, Final, cast

from leasedkeyq.engines.redis.loop_link import carry
from leasedkeyq.engines.redis.resp import NOT_YET, reader_and_pack
from leasedkeyq.engines.redis.wire import is_list
from leasedkeyq.stores.watchers import LISTENER, Watchers

logger = logging.getLogger("leasedkeyq")

RETRY: Final = 0.2
"""Seconds until a lost link is made anew."""
SILENCE: Final = 3
"""After so many polls without a word the link counts as lost."""


class RefusedError(Exception):
    """The server does not let us listen."""


class Refusals:
    """Says once that a server does not let us listen.

    Args:
        poll: Seconds after which a waiting `get` asks all the same.
    """

    def __init__(self, poll: float) -> None:
        self._poll = poll
        self._told = False

    def tell(self, error: Exception) -> None:
        """Log it, unless that was done before."""
        if not self._told:
            self._told = True
            logger.warning(
                "the server does not let us listen to changes: %s; waiting calls look every %g s",
                error,
                self._poll,
            )


class Subscribers:
    """Listens to the channels of the queues that are watched, with a `Subscriber` per event loop.

    Args:
        connection: Makes a connection of redis-py.
        channel: The channel of a queue.
        me: What the script publishes for us: our own changes are known already.
        watchers: The callbacks of watched queues.
        poll: Seconds between two times at which all watchers are woken.
    """

    def __init__(
        self,
        connection: Callable[[], Awaitable[Any]],
        *,
        channel: Callable[[str], str],
        me: str,
        watchers: Watchers,
        poll: float,
    ) -> None:
        self._new_subscriber = partial(
            Subscriber,
            connection,
            channel=channel,
            me=me.encode(),
            watchers=watchers,
            poll=poll,
            refusals=Refusals(poll),
        )
        self._by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Subscriber] = (
            weakref.WeakKeyDictionary()
        )
        self._closed = False

    def add(self, queue: str) -> Callable[[], None]:
        """Listen to a queue until the returned function is called, in this event loop."""
        subscriber = self._subscriber()
        if not self._closed:
            subscriber.add(queue)
        ended = self._closed

        def remove() -> None:
            nonlocal ended
            if not ended:
                ended = True
                subscriber.remove(queue)

        return remove

    def _subscriber(self) -> "Subscriber":
        loop = asyncio.get_running_loop()
        subscriber = self._by_loop.get(loop)
        if subscriber is None:
            for gone in [other for other in self._by_loop if other.is_closed()]:
                del self._by_loop[gone]  # its task would keep it
            subscriber = self._by_loop[loop] = self._new_subscriber()
        return subscriber

    def pass_on(self, channel: str, take: Callable[[bytes], None]) -> Callable[[], None]:
        """Pass on what comes by a channel, until the returned function is called.

        It is listened to while queues are, in this event loop.
        """
        return self._subscriber().pass_on(channel.encode(), take)

    def close(self) -> Awaitable[None]:
        """Stop listening; when that is awaited, it has ended in this event loop."""
        self._closed = True
        here = asyncio.get_running_loop()
        mine: asyncio.Task[None] | None = None
        for loop, subscriber in list(self._by_loop.items()):
            task = subscriber.task
            if task is None or loop.is_closed():
                continue
            if loop is here:
                task.cancel()
                mine = task
            else:
                with suppress(RuntimeError):  # it was closed this moment
                    loop.call_soon_threadsafe(task.cancel)
        return _ended(mine)


async def _ended(task: "asyncio.Task[None] | None") -> None:
    if task is not None:
        await asyncio.wait([task])


class Subscriber(asyncio.Protocol):
    """Listens in one event loop, while anybody there wants it.

    Attributes:
        task: Makes connections, and sees that they live.
    """

    def __init__(
        self,
        connection: Callable[[], Awaitable[Any]],
        *,
        channel: Callable[[str], str],
        me: bytes,
        watchers: Watchers,
        poll: float,
        refusals: Refusals,
    ) -> None:
        self._reader, self._pack, _ = reader_and_pack(RefusedError)
        self._connection = connection
        self._channel = channel
        self._me = me
        self._watchers = watchers
        self._poll = poll
        self._refusals = refusals
        self._wanted: dict[str, int] = {}
        self._heard: dict[bytes, str] = {}
        """The queues whose channels we have asked for, by channel."""
        self._takers: dict[bytes, Callable[[bytes], None]] = {}
        self._silence = 0
        self._transport: asyncio.Transport | None = None
        self._lost: asyncio.Future[None] | None = None
        self.task: asyncio.Task[None] | None = None

    def add(self, queue: str) -> None:
        """Listen to a queue."""
        self._wanted[queue] = self._wanted.get(queue, 0) + 1
        if self._transport is not None:
            self._subscribe([queue])
        elif self.task is None:
            loop = asyncio.get_running_loop()
            self.task = loop.create_task(self._run(), name=LISTENER)

    def remove(self, queue: str) -> None:
        """One watcher of a queue less; without any, the channel is left at the next poll."""
        self._wanted[queue] -= 1

    def pass_on(self, channel: bytes, take: Callable[[bytes], None]) -> Callable[[], None]:
        """As `Subscribers.pass_on`."""
        self._takers[channel] = take
        self._send("SUBSCRIBE", channel)

        def stop() -> None:
            if self._takers.pop(channel, None) is not None:
                self._send("UNSUBSCRIBE", channel)

        return stop

    # The connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """As `asyncio.Protocol.connection_made`."""
        self._transport = cast("asyncio.Transport", transport)
        self._reader, self._pack, _ = reader_and_pack(RefusedError)
        self._silence = 0

    def data_received(self, data: bytes) -> None:
        """As `asyncio.Protocol.data_received`."""
        self._silence = 0
        self._reader.feed(data)
        changed: list[str] = []
        while (reply := self._reader.gets()) is not NOT_YET:
            if isinstance(reply, RefusedError):
                self._end(reply)
            elif not is_list(reply):
                continue
            elif reply[0] == b"message" and reply[1] in self._takers:
                self._takers[reply[1]](reply[2])
            # When a subscription begins, something may have happened just before.
            elif reply[0] == b"subscribe" or (reply[0] == b"message" and reply[2] != self._me):
                changed.append(self._heard.get(reply[1], ""))
        self._watchers.wake(changed)

    def connection_lost(self, exc: Exception | None) -> None:
        """As `asyncio.Protocol.connection_lost`."""
        self._transport = None
        self._end(exc or ConnectionError("the connection is closed"))

    def _end(self, error: Exception) -> None:
        if self._lost is not None and not self._lost.done():
            self._lost.set_exception(error)

    def _send(self, *command: Any) -> None:
        if self._transport is not None:
            self._transport.write(self._pack(command))

    def _subscribe(self, queues: Iterable[str]) -> None:
        new = {self._channel(queue).encode(): queue for queue in queues}
        for channel in self._heard:
            new.pop(channel, None)
        if new:
            self._heard.update(new)
            self._send("SUBSCRIBE", *new)

    # The task

    async def _run(self) -> None:
        try:
            while self._wanted:
                pause = RETRY
                # Whatever goes wrong on the link, listening goes on: the poll still wakes.
                try:
                    await self._listen()
                except RefusedError as error:
                    self._refusals.tell(error)
                    pause = self._poll
                except Exception:  # The link is lost.
                    pass
                self._watchers.wake_all()
                if self._wanted:
                    await asyncio.sleep(pause)
                    self._tidy()
        finally:
            self.task = None  # it would keep the event loop

    async def _listen(self) -> None:
        """Listen until the connection is lost, or no queue is watched any more."""
        lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lost = lost
        connection = await self._connection()
        try:
            await carry(connection, self)
            if self._takers:
                self._send("SUBSCRIBE", *self._takers)
            self._subscribe(self._wanted)
            while self._wanted:
                await asyncio.wait([lost], timeout=self._poll)
                if lost.done():
                    lost.result()
                if self._silence > SILENCE:
                    raise TimeoutError
                self._silence += 1
                self._tidy()
                self._watchers.wake_all()
                self._send("PING")
        finally:
            if lost.done():
                lost.exception()  # else it would be reported as unseen
            transport, self._transport = self._transport, None
            if transport is not None:
                with suppress(RuntimeError):  # the event loop was closed without a word
                    transport.abort()
            self._lost = None
            self._heard.clear()

    def _tidy(self) -> None:
        """Leave the channels of queues that are not watched any more."""
        gone = [queue for queue, count in self._wanted.items() if not count]
        for queue in gone:
            del self._wanted[queue]
        channels = [self._channel(queue).encode() for queue in gone]
        if channels:
            for channel in channels:
                self._heard.pop(channel, None)
            self._send("UNSUBSCRIBE", *channels)
