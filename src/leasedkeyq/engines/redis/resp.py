"""Commands and replies as they go over a connection: by hiredis, or, slower, without it."""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final, Protocol, TypeAlias

NOT_YET: Final = object()
"""What a reader says while there is no whole reply."""
Pack: TypeAlias = Callable[[tuple[Any, ...]], bytes]
END: Final = b"\r\n"


class ReplyReader(Protocol):
    """Reads replies from pieces of a stream."""

    def feed(self, data: bytes, /) -> None:
        """Another piece has come."""
        ...

    def gets(self) -> Any:
        """The next reply, an exception if it is an error; `NOT_YET`."""
        ...


class PlainPush(list[Any]):
    """A message of the server that no command has asked for."""


class PlainReader:
    """Reads replies without hiredis.

    Args:
        error: Makes an exception of the text of an error.
    """

    def __init__(self, error: Callable[[str], Exception]) -> None:
        self._error = error
        self._unread = bytearray()
        self._at = 0
        self._enough = 0
        """With fewer bytes there is no whole reply: a long one is not read from its start again
        with each piece."""

    def feed(self, data: bytes, /) -> None:
        """As `Reader.feed`."""
        self._unread += data

    def gets(self) -> Any:
        """As `Reader.gets`."""
        if len(self._unread) < self._enough:
            return NOT_YET
        self._at = 0
        try:
            reply = self._reply()
        except EOFError:
            return NOT_YET
        del self._unread[: self._at]
        self._enough = 0
        return reply

    def _line(self) -> bytes:
        end = self._unread.find(END, self._at)
        if end < 0:
            raise EOFError
        line = bytes(self._unread[self._at : end])
        self._at = end + len(END)
        return line

    def _bytes(self, size: int) -> bytes:
        start, end = self._at, self._at + size
        self._at = end + len(END)
        if len(self._unread) < self._at:
            self._enough = self._at
            raise EOFError
        return bytes(memoryview(self._unread)[start:end])

    def _replies(self, count: int) -> list[Any]:
        return [self._reply() for _ in range(count)]

    def _reply(self) -> Any:
        line = self._line()
        kind, text = line[:1], line[1:]
        match kind:
            case b"+":
                return text
            case b"-" | b"!":
                said = text if kind == b"-" else self._bytes(int(text))
                return self._error(said.decode(errors="replace"))
            case b":" | b"(":
                return int(text)
            case b",":
                return float(text)
            case b"#":
                return text == b"t"
            case b"_" | b"$" | b"*" if text in (b"", b"-1"):
                return None
            case b"$":
                return self._bytes(int(text))
            case b"=":
                return self._bytes(int(text))[4:]
            case b"*" | b"~":
                return self._replies(int(text))
            case b">":
                return PlainPush(self._replies(int(text)))
            case b"%":
                parts = self._replies(2 * int(text))
                return dict(zip(parts[::2], parts[1::2], strict=True))
            case _:
                raise ConnectionError(f"what answers there is no Redis server: {line[:100]!r}")


def plain_pack(command: tuple[Any, ...]) -> bytes:
    """A command as it is sent."""
    parts = [part if isinstance(part, bytes) else str(part).encode() for part in command]
    sizes = [b"$%d\r\n%b\r\n" % (len(part), part) for part in parts]
    return b"*%d\r\n%b" % (len(parts), b"".join(sizes))


def reader_and_pack(error: Callable[[str], Exception]) -> tuple[ReplyReader, Pack, type[list[Any]]]:
    """A reader, what packs commands for its connection, and the type of pushed messages.

    Args:
        error: Makes an exception of the text of an error.
    """
    if find_spec("hiredis") is None:
        return PlainReader(error), plain_pack, PlainPush
    hiredis = import_module("hiredis")
    reader: ReplyReader = hiredis.Reader(replyError=error, notEnoughData=NOT_YET)
    return reader, hiredis.pack_command, hiredis.PushNotification
