"""The way to a server from an event loop, without a thread between: half the time of a call.

One server is reached by it, also behind Sentinels, a unix socket or TLS. A cluster is not: which
server has a queue, and where it has moved to, is known to the cluster client of redis-py, which
blocks. So a thread does the asking there (`RedisLink.drive`).
"""

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, TypeAlias, cast

from leasedkeyq.engines.redis.engine import RedisEngine
from leasedkeyq.engines.redis.link import AskServer, Patience, RedisLink, ServerStep, Steps
from leasedkeyq.engines.redis.resp import NOT_YET, reader_and_pack
from leasedkeyq.errors import StoreClosedError
from leasedkeyq.stores.batching import BatchEngine, Done

OnReply: TypeAlias = Callable[[list[Any] | Exception], None]
"""Takes the answers to a call, or the first error among them or of the connection."""
RECEIVED: Final = 256 * 1024
"""Bytes that are taken from a connection at a time."""


class TlsTransport(asyncio.Transport):
    """Carries a connection whose TLS was agreed on already, by redis-py.

    An event loop's own transport wants to agree on TLS itself, before anything is said; by then
    redis-py has authenticated and chosen the database.

    Args:
        place: The socket, which does not block.
        protocol: Is told what comes.
    """

    def __init__(self, place: ssl.SSLSocket, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._place = place
        self._protocol = protocol
        self._loop = asyncio.get_running_loop()
        self._unsent = bytearray()
        self._file = place.fileno()
        self._loop.add_reader(self._file, self._ready)
        protocol.connection_made(self)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """As `asyncio.WriteTransport.write`."""
        self._unsent += data
        self._send()

    def abort(self) -> None:
        """As `asyncio.WriteTransport.abort`."""
        self._end(None)

    def _end(self, error: Exception | None) -> None:
        if self._file >= 0:
            self._loop.remove_reader(self._file)
            self._loop.remove_writer(self._file)
            self._file = -1
            self._place.close()
            self._loop.call_soon(self._protocol.connection_lost, error)

    def _send(self) -> None:
        try:
            while self._unsent and self._file >= 0:
                del self._unsent[: self._place.send(self._unsent)]
        except ssl.SSLWantReadError:
            pass  # The two sides agree on new keys: `_ready` goes on.
        except ssl.SSLWantWriteError:
            self._loop.add_writer(self._file, self._send_rest)
        except OSError as error:
            self._end(error)

    def _send_rest(self) -> None:
        self._loop.remove_writer(self._file)
        self._send()

    def _ready(self) -> None:
        if self._unsent:
            self._send()
        # The event loop does not see what was decrypted together with the first part of a record.
        waiting = 1
        while waiting and self._file >= 0:
            try:
                data = self._place.recv(RECEIVED)
                waiting = self._place.pending()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            except OSError as error:
                self._end(error)
                return
            if not data:
                self._end(None)
                return
            self._protocol.data_received(data)


async def carry(connection: Any, protocol: asyncio.Protocol) -> None:
    """Have the running event loop carry a connection that was made by redis-py."""
    place = connection._sock
    place.setblocking(False)
    if isinstance(place, ssl.SSLSocket):
        TlsTransport(place, protocol)
    else:
        await asyncio.get_running_loop().create_connection(lambda: protocol, sock=place)


class LoopConnection(asyncio.Protocol):
    """A connection that was made and authenticated by redis-py. One call at a time.

    Args:
        connection: The connection of redis-py, which owns the socket.
        timeout: Seconds after which a server that does not answer counts as lost.
    """

    def __init__(self, connection: Any, timeout: float | None) -> None:
        self._made = connection  # which would close its socket, if it were let go
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()
        self._reader, self._pack, self._message = reader_and_pack(connection._parser.parse_error)
        self._replies: list[Any] = []
        self._wanted = 0
        self._told: OnReply | None = None
        self._late_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        self._lost: Exception = ConnectionError("the connection is closed")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """As `asyncio.Protocol.connection_made`."""
        # One of uvloop is no `asyncio.Transport`, and does the same.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """As `asyncio.Protocol.data_received`."""
        self._reader.feed(data)
        replies = self._replies
        while (reply := self._reader.gets()) is not NOT_YET:
            # A server may push messages that no command has asked for.
            if not isinstance(reply, self._message):
                replies.append(reply)
        if self._told is not None and len(replies) >= self._wanted:
            told, self._told = self._told, None
            self._replies = []
            for reply in replies:
                if isinstance(reply, Exception):
                    told(reply)
                    return
            told(replies)

    def connection_lost(self, exc: Exception | None) -> None:
        """As `asyncio.Protocol.connection_lost`."""
        self._fail(self._lost if exc is None else ConnectionError(str(exc)))

    def send(self, commands: list[tuple[Any, ...]], told: OnReply) -> None:
        """Send commands; `told` gets their answers, or what went wrong.

        Raises:
            Exception: The connection was lost before.
        """
        if self._transport is None:
            raise self._lost
        packed = b"".join(map(self._pack, commands))
        self._told = told
        self._wanted = len(commands)
        if self._timeout is not None:
            self._late_at = self._loop.time() + self._timeout
            if self._timer is None:
                self._timer = self._loop.call_at(self._late_at, self._look_at_the_time)
        self._transport.write(packed)

    def close(self) -> None:
        """Close the connection at once; the call under way is not told."""
        self._told = None
        self._fail(self._lost)

    def _fail(self, error: Exception) -> None:
        self._lost = error
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None:
            self._transport.abort()
            self._transport = None
        told, self._told = self._told, None
        if told is not None:
            told(error)

    def _look_at_the_time(self) -> None:
        """One timer for many calls: nearly all are answered long before it rings."""
        self._timer = None
        if self._told is None:
            return
        if self._loop.time() < self._late_at:
            self._timer = self._loop.call_at(self._late_at, self._look_at_the_time)
        else:
            self._fail(TimeoutError("the server did not answer in time"))


class LoopLink(BatchEngine):
    """Batches of one event loop, one at a time, by calls that survive a lost connection.

    As long as all goes well, the event loop calls back and no task is needed; a task waits for
    whatever else there is to wait for.

    Args:
        link: The link of the store, which makes the connections.
        engine: Says what to ask of the server.
    """

    def __init__(self, link: RedisLink, engine: RedisEngine) -> None:
        self._link = link
        self._engine = engine
        self._connection: LoopConnection | None = None
        self._steps: Steps[Any]
        self._done: Callable[[Any], None]
        self._commands: list[tuple[Any, ...]] = []
        self._whole = False
        self._changes = False
        self._asking = False
        """Whether the answer of the server is to call us back."""
        self._task: asyncio.Task[None] | None = None

    def apply(self, requests: list[Any], done: Done) -> None:
        """Apply a batch: do what the engine asks for until it has the answers."""
        steps = self._engine.apply(requests)
        self._steps, self._done = steps, done
        loop = asyncio.get_running_loop()
        try:
            step = steps.send(None)
        except StopIteration as end:
            loop.call_soon(done, end.value)
        except Exception as error:
            loop.call_soon(done, error)
        else:
            self._do(step)

    def abandon(self) -> None:
        """Let go of the connection, at once; what is under way fails."""
        self._disconnect()
        if self._task is not None:
            self._task.cancel()
        elif self._asking:
            self._go_on(StoreClosedError(f"{self._link.address}: closed before it answered"))

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _go_on(self, answer: Any) -> None:
        self._commands = []
        self._asking = False
        try:
            if isinstance(answer, Exception):
                step = self._steps.throw(answer)
            else:
                step = self._steps.send(answer)
        except StopIteration as end:
            self._done(end.value)
        except Exception as error:
            self._done(error)
        else:
            self._do(step)

    def _do(self, step: ServerStep) -> None:
        if isinstance(step, AskServer):
            self._whole, self._commands = True, self._link.commands(step)
            self._changes = step.changes
        elif isinstance(step, tuple):
            self._whole, self._commands = False, [step]
            self._changes = False
        else:
            self._wait_for(self._pause(step))
            return
        if self._connection is None:
            self._wait_for(self._ask(None))
            return
        self._asking = True
        try:
            self._connection.send(self._commands, self._told)
        except Exception as error:
            self._wait_for(self._ask(error))

    def _told(self, said: list[Any] | Exception) -> None:
        if isinstance(said, Exception):
            self._wait_for(self._ask(said))
            return
        if self._link.lost_since is not None:
            self._link.found()
        self._go_on(said if self._whole else said[0])

    def _wait_for(self, waiting: Coroutine[Any, Any, Any]) -> None:
        self._asking = False
        self._task = asyncio.get_running_loop().create_task(self._go_on_after(waiting))

    async def _go_on_after(self, waiting: Coroutine[Any, Any, Any]) -> None:
        try:
            answer = await waiting
        except Exception as error:
            answer = error
        except BaseException as error:
            self._task = None
            self._disconnect()  # an answer that comes later is not the one to the next call
            self._steps.close()
            self._done(error)
            raise
        self._task = None
        self._go_on(answer)

    async def _pause(self, step: float | Callable[[], Any]) -> Any:
        if callable(step):
            return await self._link.in_thread(step)
        await asyncio.sleep(step)
        return self._link.stopped

    async def _ask(self, error: Exception | None) -> Any:
        """Ask until the server answers, after an error or without a connection."""
        patience: Patience | None = None
        while True:
            sent = error is not None
            try:
                connection = (
                    self._connection if error or self._connection else await self._connect()
                )
                sent = True
                replies = await self._ask_once(connection, error)
            except self._link.failures as failure:
                error = None
                if self._link.forgot_the_script(failure):
                    self._commands[0] = self._link.in_full(self._commands[0])
                    continue
                patience = patience or Patience(self._link, self._changes)
                pause = patience.after(failure, sent=sent)
                self._disconnect()
                self._engine.forget()
            else:
                self._link.found()
                return replies if self._whole else replies[0]
            await asyncio.sleep(pause)

    async def _ask_once(
        self, connection: LoopConnection | None, error: Exception | None
    ) -> list[Any]:
        if error is not None:
            raise error
        assert connection is not None
        turn: asyncio.Future[list[Any] | Exception] = asyncio.get_running_loop().create_future()
        connection.send(self._commands, partial(_unless_done, turn))
        said = await turn
        if isinstance(said, Exception):
            raise said
        return said

    async def _connect(self) -> LoopConnection:
        made = await self._link.in_thread(self._link.new_connection)
        connection = LoopConnection(made, self._link.call_timeout)
        await carry(made, connection)
        self._connection = connection
        return connection


def _unless_done(turn: "asyncio.Future[Any]", replies: list[Any] | Exception) -> None:
    if not turn.done():
        turn.set_result(replies)
