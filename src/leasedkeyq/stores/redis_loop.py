"""The way to a server from an event loop, without a thread between: half the time of a call."""

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

from leasedkeyq.stores.redis_engine import Engine
from leasedkeyq.stores.redis_link import Ask, Link, Patience, Step, Steps, T

NOT_YET: Final = object()


class Wire(asyncio.Protocol):
    """A connection that was made and authenticated by redis-py. One call at a time.

    Args:
        connection: The connection of redis-py, which owns the socket.
    """

    def __init__(self, connection: Any) -> None:
        hiredis = import_module("hiredis")
        self._connection = connection
        self._pack: Callable[[tuple[Any, ...]], bytes] = hiredis.pack_command
        self._reader: Any = hiredis.Reader(
            replyError=connection._parser.parse_error, notEnoughData=NOT_YET
        )
        self._message: type[Any] = hiredis.PushNotification
        self._replies: deque[Any] = deque()
        self._wanted = 0
        self._turn: asyncio.Future[list[Any]] | None = None
        self._transport: asyncio.Transport | None = None
        self._lost = ConnectionError("the connection is closed")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """As `asyncio.Protocol.connection_made`."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """As `asyncio.Protocol.data_received`."""
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not NOT_YET:
            # A server may have something to say that nobody has asked for.
            if not isinstance(reply, self._message):
                self._replies.append(reply)
        turn = self._turn
        if turn is not None and len(self._replies) >= self._wanted and not turn.done():
            turn.set_result([self._replies.popleft() for _ in range(self._wanted)])

    def connection_lost(self, exc: Exception | None) -> None:
        """As `asyncio.Protocol.connection_lost`."""
        self._transport = None
        if exc is not None:
            self._lost = ConnectionError(str(exc))
        if self._turn is not None and not self._turn.done():
            self._turn.set_exception(self._lost)

    async def call(self, commands: list[tuple[Any, ...]]) -> list[Any]:
        """Send commands and return their answers; errors among them are returned."""
        if self._transport is None:
            raise self._lost
        self._turn = asyncio.get_running_loop().create_future()
        self._wanted = len(commands)
        self._transport.write(b"".join([self._pack(command) for command in commands]))
        return await self._turn

    def close(self) -> None:
        """Let go of it, at once."""
        if self._transport is not None:
            self._transport.abort()
            self._transport = None


class LoopLink:
    """Calls from one event loop, one at a time, that survive a lost connection.

    Args:
        link: The link of the store, which makes the connections.
        when_lost: Called when the link was lost: what is known about the server may be wrong.
    """

    def __init__(self, link: Link, when_lost: Callable[[], None]) -> None:
        self._link = link
        self._when_lost = when_lost
        self._wire: Wire | None = None

    async def drive(self, steps: Steps[T]) -> T:
        """Do what `steps` ask for until they return."""
        answer: Any = None
        error: BaseException | None = None
        while True:
            try:
                step = steps.send(answer) if error is None else steps.throw(error)
            except StopIteration as end:
                result: T = end.value
                return result
            answer, error = None, None
            try:
                answer = await self._do(step)
            except asyncio.CancelledError:
                raise
            except BaseException as failure:
                error = failure

    async def _do(self, step: Step) -> Any:
        if isinstance(step, Ask):
            return await self._ask(self._link.commands(step))
        if isinstance(step, tuple):
            return (await self._ask([step]))[0]
        if callable(step):
            return await asyncio.to_thread(step)
        await asyncio.sleep(step)
        return self._link.stopped

    def abandon(self) -> None:
        """Let go of the connection, at once."""
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()

    async def _ask(self, commands: list[tuple[Any, ...]]) -> list[Any]:
        patience: Patience | None = None
        while True:
            try:
                return await self._ask_once(commands)
            except self._link.failures as error:
                if self._link.forgot_the_script(error):
                    commands = [self._link.in_full(commands[0]), *commands[1:]]
                    continue
                patience = patience or Patience(self._link)
                pause = patience.after(error)
                self.abandon()
                self._when_lost()
            await asyncio.sleep(pause)

    async def _ask_once(self, commands: list[tuple[Any, ...]]) -> list[Any]:
        wire = self._wire or await self._connect()
        try:
            async with asyncio.timeout(self._link.call_timeout):
                replies = await wire.call(commands)
        except BaseException:
            self.abandon()  # an answer that comes later is not the one to the next call
            raise
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies

    async def _connect(self) -> Wire:
        loop = asyncio.get_running_loop()
        connection = await asyncio.to_thread(self._link.new_connection)
        place: socket.socket = connection._sock
        place.setblocking(False)
        _, wire = await loop.create_connection(lambda: Wire(connection), sock=place)
        self._wire = wire
        return wire


class LoopEngine:
    """An engine in one event loop."""

    def __init__(self, link: Link, engine: Engine) -> None:
        self._engine = engine
        self._link = LoopLink(link, engine.forget)

    async def apply(self, requests: list[Any]) -> list[Any]:
        """Apply a batch."""
        return await self._link.drive(self._engine.apply(requests))

    def abandon(self) -> None:
        """Let go of the connection, at once."""
        self._link.abandon()
