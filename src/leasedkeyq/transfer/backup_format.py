"""How a backup is written: lines of JSON, each with a checksum, between a header and a trailer.

A line is an object with ``crc``, the CRC-32 of the text of its other member, and that member:
``header`` in the first line, ``item`` in those that follow, ``trailer`` in the last one. A line
that was damaged, and a file that was cut, are noticed.
"""

import base64
import binascii
import zlib
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from leasedkeyq.errors import LeasedKeyQError
from leasedkeyq.model.requests import Attempt, ResultOutcome, StoredItem, StoredState

FORMAT: Final = "leasedkeyq backup"
VERSION: Final = 1


class BackupError(LeasedKeyQError):
    """A backup cannot be read: the message says which line, and why.

    Attributes:
        line: The number of the line, beginning with 1; 0 if it is about the file as a whole.
    """

    def __init__(self, message: str, line: int = 0) -> None:
        super().__init__(f"line {line} of the backup: {message}" if line else message)
        self.line = line


class BackupHeader(msgspec.Struct, kw_only=True):
    """The first line.

    Attributes:
        format: What the file is.
        version: Of the format.
        id: Stands for this backup: an import that is begun again knows by it where it was.
        made_at: When it was begun, as Unix time.
        library: The version of leasedkeyq.
        store: From where it comes, for people.
        expected: How many items there were when it was begun.
    """

    format: str = FORMAT
    version: int = VERSION
    id: str
    made_at: float
    library: str
    store: str = ""
    expected: int = 0


class BackupItem(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A line between: one item.

    Attributes:
        queue: Its queue.
        key: Its key.
        state: Where it stood.
        value: Its value, or its result; as text, if it is UTF-8.
        base64: Whether `value` is written in base 64, as it is no text.
        kind: Its kind.
        priority: Its priority.
        delay: Seconds that were left until it would become available, or until its result would be
            forgotten, when it was written.
        deadline: Seconds that were left until it should be leased.
        error: Why it was buried.
        holds: Whether it is buried and holds its key.
        outcome: How it ended, if it is done.
        id: Its number. Like all that follows it is for people, and cannot be put back.
        put_at: When it was put.
        attempt: How often it was leased.
        history: Past attempts.
    """

    queue: str
    key: str
    state: StoredState
    value: str
    base64: bool = False
    kind: str = ""
    priority: int = 0
    delay: float | None = None
    deadline: float | None = None
    error: str = ""
    holds: bool = False
    outcome: ResultOutcome | None = None
    id: int = 0
    put_at: float = 0.0
    attempt: int = 0
    history: tuple[Attempt, ...] = ()

    @property
    def content(self) -> bytes:
        """The value as it is stored.

        Raises:
            ValueError: It says that it is in base 64, and is not.
        """
        if not self.base64:
            return self.value.encode()
        try:
            return base64.b64decode(self.value, validate=True)
        except binascii.Error as error:
            raise ValueError(f"its value is not in base 64: {error}") from error


class BackupTrailer(msgspec.Struct, kw_only=True):
    """The last line.

    Attributes:
        items: How many items there are.
        checksum: The CRC-32 of their checksums, in order.
    """

    items: int
    checksum: int


class _BackupLine(msgspec.Struct):
    crc: int
    header: msgspec.Raw = msgspec.Raw(b"")
    item: msgspec.Raw = msgspec.Raw(b"")
    trailer: msgspec.Raw = msgspec.Raw(b"")


_encoder = msgspec.json.Encoder()
_lines = msgspec.json.Decoder(_BackupLine)
_headers = msgspec.json.Decoder(BackupHeader)
_items = msgspec.json.Decoder(BackupItem)
_trailers = msgspec.json.Decoder(BackupTrailer)


def item_of(stored: StoredItem, now: float) -> BackupItem:
    """A stored item, as a backup has it.

    Args:
        stored: The item.
        now: The time, as Unix time.
    """
    try:
        value, encoded = stored.value.decode(), False
    except UnicodeDecodeError:
        value, encoded = base64.b64encode(stored.value).decode(), True
    # What is in flight has a lease, which is not a part of a backup.
    due = None if stored.state == "in_flight" else stored.due
    return BackupItem(
        queue=stored.queue,
        key=stored.key,
        state=stored.state,
        value=value,
        base64=encoded,
        kind=stored.kind,
        priority=stored.priority,
        delay=None if due is None else max(0.0, due - now),
        deadline=None if stored.deadline is None else max(0.0, stored.deadline - now),
        error=stored.error,
        holds=stored.holds,
        outcome=stored.outcome,
        id=stored.id,
        put_at=stored.put_at,
        attempt=stored.attempt,
        history=stored.history,
    )


class BackupWriter:
    """Makes the lines of a backup, in order."""

    def __init__(self) -> None:
        self.items: int = 0
        self._checksum = 0

    def header(self, header: BackupHeader) -> bytes:
        """The first line."""
        text = _encoder.encode(header)
        return _line("header", text, zlib.crc32(text))

    def item(self, item: BackupItem) -> bytes:
        """The line of an item."""
        text = _encoder.encode(item)
        crc = zlib.crc32(text)
        self.items += 1
        self._checksum = zlib.crc32(crc.to_bytes(4), self._checksum)
        return _line("item", text, crc)

    def trailer(self) -> bytes:
        """The last line."""
        text = _encoder.encode(BackupTrailer(items=self.items, checksum=self._checksum))
        return _line("trailer", text, zlib.crc32(text))


def _line(member: str, text: bytes, crc: int) -> bytes:
    return b'{"crc":%d,"%s":%s}\n' % (crc, member.encode(), text)


class BackupReader:
    """Reads the lines of a backup, and sees that they are all there and as they were written.

    Args:
        lines: The lines; they are read one at a time.

    Attributes:
        header: The header.
        line: The number of the line that was read last.

    Raises:
        BackupError: It is no backup, or one of a later version.
    """

    def __init__(self, lines: Iterable[bytes]) -> None:
        self._source = iter(lines)
        self.line: int = 0
        self.items: int = 0
        self._checksum = 0
        first = self._next()
        if first is None:
            raise BackupError("the backup is empty")
        if not bytes(first.header):
            raise BackupError("this is no backup of leasedkeyq: it has no header", 1)
        try:
            self.header: BackupHeader = _headers.decode(self._checked(first.header, first.crc))
        except msgspec.MsgspecError as error:
            raise BackupError(f"the header cannot be read: {error}", 1) from error
        if self.header.format != FORMAT or self.header.version > VERSION:
            raise BackupError(
                f"it is a {self.header.format!r} of version {self.header.version}, and this "
                f"leasedkeyq knows {FORMAT!r} up to version {VERSION}: upgrade leasedkeyq",
                1,
            )

    def __iter__(self) -> Iterator[BackupItem]:
        """The items; a `BackupError` tells which line is damaged, or that the end is missing."""
        while True:
            line = self._next()
            if line is None:
                raise BackupError(
                    f"the backup was cut: it ends after {self.items:,} items, without its last line"
                )
            if bytes(line.trailer):
                self._finish(line)
                return
            if not bytes(line.item):
                raise BackupError("it is neither an item nor the last line", self.line)
            text = self._checked(line.item, line.crc)
            try:
                item = _items.decode(text)
                _ = item.content
            except (msgspec.MsgspecError, ValueError) as error:
                raise BackupError(f"the item cannot be read: {error}", self.line) from error
            self.items += 1
            self._checksum = zlib.crc32(line.crc.to_bytes(4), self._checksum)
            yield item

    def _next(self) -> _BackupLine | None:
        text = next(self._source, None)
        if text is None:
            return None
        self.line += 1
        if not text.endswith(b"\n"):
            raise BackupError("the backup was cut in this line", self.line)
        try:
            return _lines.decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise BackupError(f"it is damaged: {error}", self.line) from error

    def _checked(self, raw: msgspec.Raw, crc: int) -> bytes:
        text = bytes(raw)
        if zlib.crc32(text) != crc:
            raise BackupError("it is damaged: its checksum does not fit", self.line)
        return text

    def _finish(self, line: _BackupLine) -> None:
        try:
            trailer = _trailers.decode(self._checked(line.trailer, line.crc))
        except msgspec.MsgspecError as error:
            raise BackupError(f"the last line cannot be read: {error}", self.line) from error
        if (trailer.items, trailer.checksum) != (self.items, self._checksum):
            raise BackupError(
                f"lines are missing or in another order: the backup was written with "
                f"{trailer.items:,} items, and {self.items:,} were read"
            )
