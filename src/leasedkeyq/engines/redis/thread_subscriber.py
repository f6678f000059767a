"""Hears of changes in a cluster: as `leasedkeyq.engines.redis.subscriber`, by a thread.

The client of redis-py that finds the servers of a cluster blocks.
"""

import asyncio
import select
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from leasedkeyq.engines.redis.subscriber import RETRY, SILENCE, Refusals
from leasedkeyq.stores.watching import Watchers


class ThreadSubscriber:
    """A thread that listens to the channels of the queues that are watched.

    Args:
        pubsub: Makes a `PubSub` of redis-py.
        channel: The channel of a queue.
        me: What the script publishes for us: our own changes are known already.
        watchers: The callbacks of watched queues.
        poll: Seconds between two times at which everybody is woken.
        refused: What `PubSub` raises if the server does not let us listen.
        refusals: Told then.
    """

    def __init__(
        self,
        pubsub: Callable[[], Any],
        *,
        channel: Callable[[str], str],
        me: str,
        watchers: Watchers,
        poll: float,
        refused: type[Exception],
        refusals: Refusals,
    ) -> None:
        self._pubsub = pubsub
        self._channel = channel
        self._me = me.encode()
        self._watchers = watchers
        self._poll = poll
        self._refused = refused
        self._refusals = refusals
        self._lock = threading.Lock()
        self._wanted: dict[str, int] = {}
        self._thread: threading.Thread | None = None
        self._closed = False
        self._bell: socket.socket
        self._button: socket.socket

    def add(self, queue: str) -> Callable[[], None]:
        """Listen to a queue until the returned function is called."""
        ended = False

        def remove() -> None:
            nonlocal ended
            with self._lock:
                if not ended:
                    ended = True
                    self._wanted[queue] -= 1

        with self._lock:
            known = self._wanted.get(queue)
            self._wanted[queue] = (known or 0) + 1
            if self._thread is None and not self._closed:
                self._bell, self._button = socket.socketpair()
                self._bell.setblocking(False)
                self._button.setblocking(False)
                self._thread = threading.Thread(
                    target=self._run, name="leasedkeyq Redis subscriber", daemon=True
                )
                self._thread.start()
        if known is None:
            self._ring()
        return remove

    def close(self) -> Awaitable[None]:
        """Stop listening; when that is awaited, it has ended."""
        with self._lock:
            self._closed = True
            thread = self._thread
        if thread is not None:
            self._ring()
        return _ended(thread)

    def _ring(self) -> None:
        with suppress(OSError):
            self._button.send(b"!")

    # The thread

    def _run(self) -> None:
        try:
            while not self._closed:
                pause = RETRY
                # Whatever goes wrong on the link, listening goes on: the poll still wakes.
                try:
                    self._listen()
                except self._refused as error:
                    pause = self._poll
                    self._refusals.tell(error)
                except Exception:  # The link is lost.
                    pass
                self._watchers.wake_all()
                if not self._closed:
                    self._wait(pause)
        finally:
            self._bell.close()
            self._button.close()

    def _listen(self) -> None:
        """Listen until the link is lost or the store is closed."""
        names: dict[bytes, str] = {}
        pubsub = self._pubsub()
        try:
            heard = polled = time.monotonic()
            while not self._closed:
                self._subscribe(pubsub, names)
                now = time.monotonic()
                if now >= polled + self._poll:
                    polled = now
                    self._tidy(pubsub, names)
                    self._watchers.wake_all()
                    if names:
                        pubsub.ping()
                    if now > heard + SILENCE * self._poll:
                        raise TimeoutError
                if self._take_messages(pubsub, names):
                    heard = time.monotonic()
                link = [pubsub.connection._sock] if names else []
                self._wait(polled + self._poll - time.monotonic(), *link)
        finally:
            pubsub.close()

    def _take_messages(self, pubsub: Any, names: dict[bytes, str]) -> bool:
        """Wake whom the messages that have arrived concern; returns whether there were any."""
        changed: set[str] = set()
        heard = False
        while names and (message := pubsub.get_message(timeout=0)) is not None:
            heard = True
            kind = message["type"]
            # When a subscription begins, something may have happened just before.
            if kind == "subscribe" or (kind == "message" and message["data"] != self._me):
                changed.add(names.get(message["channel"], ""))
        self._watchers.wake(changed)
        return heard

    def _subscribe(self, pubsub: Any, names: dict[bytes, str]) -> None:
        with self._lock:
            wanted = list(self._wanted)
        new = {self._channel(queue).encode(): queue for queue in wanted}
        for channel in names:
            new.pop(channel, None)
        if new:
            pubsub.subscribe(*new)
            names.update(new)

    def _tidy(self, pubsub: Any, names: dict[bytes, str]) -> None:
        """Leave the channels of queues that are not watched any more."""
        with self._lock:
            gone = [queue for queue, count in self._wanted.items() if not count]
            for queue in gone:
                del self._wanted[queue]
        channels = [self._channel(queue).encode() for queue in gone]
        if channels:
            pubsub.unsubscribe(*channels)
            for channel in channels:
                names.pop(channel, None)

    def _wait(self, seconds: float, *sources: Any) -> None:
        """Wait for the bell or for one of these."""
        # Not select: that knows no file numbers above 1023.
        poll = select.poll()
        for source in (self._bell, *sources):
            poll.register(source, select.POLLIN)
        poll.poll(max(seconds, 0.0) * 1000)
        self._quieten()

    def _quieten(self) -> None:
        with suppress(BlockingIOError):
            while self._bell.recv(4096):
                pass


async def _ended(thread: threading.Thread | None) -> None:
    if thread is not None:
        await asyncio.to_thread(thread.join)
