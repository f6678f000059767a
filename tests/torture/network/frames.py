"""Where a request ends and where its reply ends, in what clients and servers say to each other."""

import asyncio
from typing import Final, Protocol

END: Final = b"\r\n"


class Frames(Protocol):
    """Takes the bytes of a connection apart. Each request is answered before the next one."""

    async def begin(
        self,
        client: asyncio.StreamReader,
        to_client: asyncio.StreamWriter,
        server: asyncio.StreamReader,
        to_server: asyncio.StreamWriter,
    ) -> None:
        """Let all pass that is said before the first request."""
        ...

    async def request(self, client: asyncio.StreamReader) -> bytes:
        """The next request as a whole."""
        ...

    async def reply(self, server: asyncio.StreamReader, request: bytes) -> bytes:
        """The reply to a request as a whole."""
        ...

    def listens(self, request: bytes) -> bool:
        """Whether the server sends what it likes after this request."""
        ...

    def counts(self, request: bytes) -> bool:
        """Whether this is part of a call of the store, and no greeting or the like."""
        ...

    def can_double(self, request: bytes) -> bool:
        """Whether a request may arrive twice: the server answers both, and goes on."""
        ...


class RedisFrames:
    """RESP: a request is a list of strings; a reply may be of any type."""

    async def begin(
        self,
        client: asyncio.StreamReader,
        to_client: asyncio.StreamWriter,
        server: asyncio.StreamReader,
        to_server: asyncio.StreamWriter,
    ) -> None:
        """Greetings are requests, too."""

    async def request(self, client: asyncio.StreamReader) -> bytes:
        return await self._value(client)

    async def reply(self, server: asyncio.StreamReader, request: bytes) -> bytes:
        return await self._value(server)

    async def _value(self, reader: asyncio.StreamReader) -> bytes:
        line = await reader.readuntil(END)
        kind, size = line[:1], line[1:-2]
        if kind in b"$=!" and int(size) >= 0:
            return line + await reader.readexactly(int(size) + len(END))
        if kind in b"*~>%|" and int(size) > 0:
            many = int(size) * (2 if kind in b"%|" else 1)
            return line + b"".join([await self._value(reader) for _ in range(many)])
        return line

    def listens(self, request: bytes) -> bool:
        return b"SUBSCRIBE" in _command(request)

    def counts(self, request: bytes) -> bool:
        return _command(request) in (b"EVALSHA", b"EVAL")

    def can_double(self, request: bytes) -> bool:
        return True


def _command(request: bytes) -> bytes:
    return request.split(END, 3)[2].upper()


class PostgresFrames:
    """Messages with a letter and a length. A request is a group of them, up to a Sync or query."""

    SSL_REQUEST: Final = 80877103
    ENDS: Final = b"SQHX"
    """Sync, a simple query, Flush, and the end of the connection."""

    async def begin(
        self,
        client: asyncio.StreamReader,
        to_client: asyncio.StreamWriter,
        server: asyncio.StreamReader,
        to_server: asyncio.StreamWriter,
    ) -> None:
        """The greeting, up to the word that the server is ready for a query."""
        first = await client.readexactly(8)
        to_server.write(first)
        if int.from_bytes(first[4:]) == self.SSL_REQUEST:
            to_client.write(await server.readexactly(1))
        passing = asyncio.ensure_future(pass_on(client, to_server))
        try:
            while True:
                message = await self._message(server)
                if message[:1] == b"Z":
                    break
                to_client.write(message)
        finally:
            passing.cancel()
            await asyncio.gather(passing, return_exceptions=True)
        # The client says nothing before it has this.
        to_client.write(message)

    async def request(self, client: asyncio.StreamReader) -> bytes:
        parts = [await self._message(client)]
        while parts[-1][:1] not in self.ENDS:
            parts.append(await self._message(client))
        return b"".join(parts)

    async def reply(self, server: asyncio.StreamReader, request: bytes) -> bytes:
        if request[:1] == b"X":
            await server.read()
            raise EOFError("the client has said goodbye")
        # A Flush asks what a statement looks like: the description of its rows is the last word.
        ends = b"TnE" if request.endswith(b"H\x00\x00\x00\x04") else b"Z"
        parts = [await self._message(server)]
        while parts[-1][:1] not in ends:
            parts.append(await self._message(server))
        return b"".join(parts)

    async def _message(self, reader: asyncio.StreamReader) -> bytes:
        head = await reader.readexactly(5)
        return head + await reader.readexactly(int.from_bytes(head[1:]) - 4)

    def listens(self, request: bytes) -> bool:
        return b"LISTEN" in request

    def counts(self, request: bytes) -> bool:
        return request[:1] != b"X"

    def can_double(self, request: bytes) -> bool:
        return request.endswith(b"S\x00\x00\x00\x04") or request[:1] == b"Q"


async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass everything on, until one side has gone."""
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
