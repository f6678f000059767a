"""A network between a store and its server, in which one request after the other can be disturbed.

Unlike `tests.servers.proxy.Proxy`, it knows where requests and replies end.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

from tests.torture.network.frames import Frames

Kind = Literal[
    "request cut before it arrives",
    "request cut in the middle",
    "connection cut when the request has arrived",
    "reply cut before it arrives",
    "reply cut in the middle",
    "request delayed",
    "reply delayed",
    "request late: its connection is cut, and it arrives afterwards",
    "request doubled",
    "request doubled, the second time behind the next one",
    "connection silent from a request on",
    "connection silent from a reply on",
    "all connections silent for a while",
]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
GONE: Final = (OSError, EOFError, asyncio.LimitOverrunError)
"""One side of a connection has gone; an incomplete read is an `EOFError`."""
IDLE: Final = 0.2
"""Seconds after which a request arrives for the second time though no other one came."""


@dataclass
class Fault:
    """What is to be done to a request, or to its reply.

    Attributes:
        kind: What is done.
        skip: How many requests pass before.
        seconds: Of delays and of silence.
        refuses: Seconds for which no new connection can be made afterwards.
        happened: Whether it has met a request.
    """

    kind: Kind
    skip: int
    seconds: float
    refuses: float = 0.0
    happened: threading.Event = field(default_factory=threading.Event)


class Network:
    """A thread in which proxies run."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="network", daemon=True)
        self._thread.start()

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Have work done in the thread, and return what it returns."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def close(self) -> None:
        """End all connections, and the thread."""
        self.do(_end_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()


async def _end_all() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


class FaultyNetwork:
    """Listens on a port of its own, and passes on what is said to and by the server at another.

    Attributes:
        port: Where it listens.
        applied: Called when the server has answered a request that is disturbed.
    """

    def __init__(self, network: Network, target: int, frames: Frames) -> None:
        self._network = network
        self._target = target
        self.frames = frames
        self.applied: Callable[[], None] = lambda: None
        self.port = 0
        self.listeners = 0
        """Connections on which the server sends what it likes."""
        self.under_way = 0
        """Disturbed requests that have not come to their end."""
        self._armed: Fault | None = None
        self._silent_until = 0.0
        self._refuses_until = 0.0
        self._open: set[Connection] = set()
        self._server: asyncio.Server
        network.do(self._listen())

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def arm(self, fault: Fault) -> None:
        """Have the next request that counts be disturbed, or one behind it."""
        self._armed = fault

    def disarm(self) -> None:
        """Let all requests pass."""
        self._armed = None

    def disturb_all(self, kind: Literal["cut", "silent"]) -> None:
        """Cut all connections, or let them be silent from now on."""

        async def disturb() -> None:
            for connection in self._open:
                connection.silent = True
                if kind == "cut":
                    connection.cut()

        self._network.do(disturb())

    def close(self) -> None:
        """Stop listening, and cut all connections."""

        async def end() -> None:
            self._server.close()

        self._network.do(end())
        self.disturb_all("cut")

    def draw(self) -> Fault | None:
        """The fault that hits the request which is here now, if one does."""
        fault = self._armed
        if fault is None:
            return None
        if fault.skip:
            fault.skip -= 1
            return None
        self._armed = None
        self.under_way += 1
        self._refuses_until = time.monotonic() + fault.refuses
        fault.happened.set()
        return fault

    async def be_silent(self, seconds: float) -> None:
        """No connection carries anything for a while; those that are there never will."""
        for connection in self._open:
            connection.silent = True
        self._silent_until = max(self._silent_until, time.monotonic() + seconds)
        await asyncio.sleep(seconds)

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        if time.monotonic() < self._refuses_until:
            to_client.transport.abort()
            return
        connection = Connection(self, client, to_client)
        self._open.add(connection)
        try:
            # A connection that is made while nothing gets through is made when it does again.
            while (left := self._silent_until - time.monotonic()) > 0:
                await asyncio.sleep(left)
            await connection.run(*await asyncio.open_connection("127.0.0.1", self._target))
        except GONE:
            pass
        finally:
            self._open.discard(connection)
            connection.cut()


class Connection:
    """One connection of a client, and the one to the server that belongs to it."""

    def __init__(
        self,
        network: FaultyNetwork,
        client: asyncio.StreamReader,
        to_client: asyncio.StreamWriter,
    ) -> None:
        self._network = network
        self._frames = network.frames
        self._client = client
        self._to_client = to_client
        self._server = client
        self._to_server: asyncio.StreamWriter = to_client
        self._connected = False
        self._again = b""
        """A request that arrives a second time, behind the next one."""
        self.silent = False
        """Whether nothing gets through any more, in either direction, and no side is told."""
        self._disturb: dict[Kind, Callable[[bytes, Fault], Coroutine[Any, Any, None]]] = {
            "request cut before it arrives": self._cut_before,
            "request cut in the middle": self._cut_request,
            "connection cut when the request has arrived": self._cut_at_arrival,
            "reply cut before it arrives": self._lose_reply,
            "reply cut in the middle": self._cut_reply,
            "request delayed": self._delay_request,
            "reply delayed": self._delay_reply,
            "request late: its connection is cut, and it arrives afterwards": self._be_late,
            "request doubled": self._double,
            "request doubled, the second time behind the next one": self._double_later,
            "connection silent from a request on": self._swallow_request,
            "connection silent from a reply on": self._swallow_reply,
            "all connections silent for a while": self._swallow_all,
        }

    def cut(self) -> None:
        """End it, on both sides."""
        self._to_client.transport.abort()
        if self._connected:
            self._to_server.transport.abort()

    async def run(self, server: asyncio.StreamReader, to_server: asyncio.StreamWriter) -> None:
        """Pass requests and replies on, until one side has gone."""
        self._server, self._to_server = server, to_server
        self._connected = True
        frames = self._frames
        await frames.begin(self._client, self._to_client, server, to_server)
        while True:
            request = await self._next_request()
            if self.silent:
                continue
            if frames.listens(request):
                await self._listen(request)
                return
            fault = self._network.draw() if frames.counts(request) else None
            if fault is None:
                self._to_server.write(request)
                self._answer(await frames.reply(server, request))
                continue
            try:
                await self._disturb[fault.kind](request, fault)
            finally:
                self._network.under_way -= 1

    async def _next_request(self) -> bytes:
        """The next request. The one that arrives twice does so behind it, or when none comes."""
        coming = asyncio.ensure_future(self._frames.request(self._client))
        try:
            if self._again:
                await asyncio.wait([coming], timeout=IDLE)
                if coming.done():
                    request = coming.result()
                    self._to_server.write(request)
                    self._answer(await self._frames.reply(self._server, request))
                    coming = asyncio.ensure_future(self._frames.request(self._client))
                self._to_server.write(self._again)
                await self._frames.reply(self._server, self._again)
        except BaseException:
            coming.cancel()
            raise
        finally:
            if self._again:
                self._again = b""
                self._network.under_way -= 1
        return await coming

    def _answer(self, reply: bytes) -> None:
        if not self.silent:
            self._to_client.write(reply)

    async def _listen(self, request: bytes) -> None:
        """From here on, both sides say what they like."""
        self._network.listeners += 1
        self._to_server.write(request)
        try:
            await asyncio.gather(
                self._pass_while_heard(self._client, self._to_server),
                self._pass_while_heard(self._server, self._to_client),
            )
        finally:
            self._network.listeners -= 1

    async def _pass_while_heard(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while data := await reader.read(1 << 16):
            if not self.silent:
                writer.write(data)
        raise EOFError

    async def _reply(self, request: bytes) -> bytes:
        reply = await self._frames.reply(self._server, request)
        self._network.applied()
        return reply

    # Faults

    async def _cut_before(self, request: bytes, fault: Fault) -> None:
        raise EOFError

    async def _cut_request(self, request: bytes, fault: Fault) -> None:
        self._to_server.write(request[: len(request) // 2])
        await self._to_server.drain()
        raise EOFError

    async def _cut_at_arrival(self, request: bytes, fault: Fault) -> None:
        self._to_server.write(request)
        await self._to_server.drain()
        self._to_client.transport.abort()
        self._to_server.write_eof()
        with suppress(*GONE):
            await self._reply(request)
        raise EOFError

    async def _lose_reply(self, request: bytes, fault: Fault) -> None:
        self._to_server.write(request)
        await self._reply(request)
        raise EOFError

    async def _cut_reply(self, request: bytes, fault: Fault) -> None:
        self._to_server.write(request)
        reply = await self._reply(request)
        self._to_client.write(reply[: len(reply) // 2])
        await self._to_client.drain()
        self._to_client.close()
        with suppress(*GONE):
            await self._to_client.wait_closed()
        raise EOFError

    async def _delay_request(self, request: bytes, fault: Fault) -> None:
        await asyncio.sleep(fault.seconds)
        self._to_server.write(request)
        self._answer(await self._reply(request))

    async def _delay_reply(self, request: bytes, fault: Fault) -> None:
        self._to_server.write(request)
        reply = await self._reply(request)
        await asyncio.sleep(fault.seconds)
        self._answer(reply)

    async def _be_late(self, request: bytes, fault: Fault) -> None:
        self._to_client.transport.abort()
        await asyncio.sleep(fault.seconds)
        self._to_server.write(request)
        await self._reply(request)
        raise EOFError

    async def _double(self, request: bytes, fault: Fault) -> None:
        if not self._frames.can_double(request):
            self._to_server.write(request)
            self._answer(await self._reply(request))
            return
        self._to_server.write(request + request)
        self._answer(await self._reply(request))
        await self._frames.reply(self._server, request)

    async def _double_later(self, request: bytes, fault: Fault) -> None:
        self._to_server.write(request)
        self._answer(await self._reply(request))
        if self._frames.can_double(request):
            self._network.under_way += 1
            self._again = request

    async def _swallow_request(self, request: bytes, fault: Fault) -> None:
        self.silent = True

    async def _swallow_reply(self, request: bytes, fault: Fault) -> None:
        self._to_server.write(request)
        await self._reply(request)
        self.silent = True

    async def _swallow_all(self, request: bytes, fault: Fault) -> None:
        await self._network.be_silent(fault.seconds)
