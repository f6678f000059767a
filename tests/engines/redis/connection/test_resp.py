"""Replies are read in the same way with hiredis and without it."""

from typing import Any

import hiredis
import pytest

from leasedkeyq.engines.redis.resp import NOT_YET, PlainPush, PlainReader, plain_pack

REPLIES = [
    b"+OK\r\n",
    b":-12\r\n",
    b"$5\r\na\r\nbc\r\n",
    b"$0\r\n\r\n",
    b"$-1\r\n",
    b"*-1\r\n",
    b"_\r\n",
    b"#t\r\n",
    b",1.5\r\n",
    b"=7\r\ntxt:abc\r\n",
    b"*3\r\n:1\r\n*2\r\n$1\r\na\r\n*0\r\n$-1\r\n",
    b"%1\r\n+a\r\n:1\r\n",
    b">2\r\n+message\r\n$1\r\nx\r\n",
]


def read(reader: Any, pieces: list[bytes]) -> list[Any]:
    found: list[Any] = []
    for piece in pieces:
        reader.feed(piece)
        while (reply := reader.gets()) is not NOT_YET:
            found.append(reply)
    return found


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_as_hiredis_does(size: int) -> None:
    stream = b"".join(REPLIES)
    pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
    expected = read(hiredis.Reader(notEnoughData=NOT_YET), pieces)
    found = read(PlainReader(ValueError), pieces)
    assert found == expected
    assert isinstance(found[-1], PlainPush)


def test_a_long_reply_is_not_read_from_its_start_again_with_each_piece() -> None:
    lines: list[bytes] = []

    class Counting(PlainReader):
        def _line(self) -> bytes:
            lines.append(super()._line())
            return lines[-1]

    value = b"x" * 100_000
    stream = b"*3\r\n:1\r\n$%d\r\n%b\r\n:2\r\n" % (len(value), value)
    pieces = [stream[at : at + 100] for at in range(0, len(stream), 100)]
    assert read(Counting(ValueError), pieces) == [[1, value, 2]]
    assert len(lines) < 10


@pytest.mark.parametrize("said", [b"-ERR no\r\n", b"!6\r\nERR no\r\n"])
def test_errors(said: bytes) -> None:
    [found] = read(PlainReader(ValueError), [said])
    assert isinstance(found, ValueError)
    assert str(found) == "ERR no"


def test_what_is_no_reply() -> None:
    with pytest.raises(ConnectionError, match="no Redis server"):
        read(PlainReader(ValueError), [b"HTTP/1.1 400 Bad Request\r\n"])


def test_commands() -> None:
    command: Any = ("SET", "ä", b"\x00\r\n", 12)
    assert plain_pack(command) == hiredis.pack_command(command)
