"""The JSON that the file store writes: an item on each line, the checksum at the end.

The values in line of an item stand on lines of their own, too.
"""

from collections.abc import Iterable

import msgspec

from leasedkeyq.engines.file.document.document import LINE, Entry
from leasedkeyq.engines.file.document.json_fields import NonsenseError, encode

Members = dict[str, msgspec.Raw]

_ITEM = "  "
_VALUE = "    "
_END_OF_LINE = f"\n{_ITEM}]}}"
_top = msgspec.json.Decoder(Members)
_items = msgspec.json.Decoder(list[msgspec.Raw])


def render_item(entry: Entry, indent: str = _ITEM) -> str:
    """An item, or a value in line, on one line of text."""
    if not entry.text:
        inner = ", ".join(f"{encode(name)}: {text}" for name, text in entry.fields.items())
        entry.text = f"{indent}{{{inner}}}"
    return entry.text


def render_items(entries: Iterable[Entry]) -> list[str]:
    """Items, each with the values in its line as members of a list in it."""
    lines: list[str] = []
    in_line = False
    for entry in entries:
        text = render_item(entry, _VALUE if entry.in_line else _ITEM)
        if entry.in_line and not in_line:
            lines[-1] = f'{lines[-1][:-1]}, "{LINE}": [\n{text}'
        else:
            if in_line and not entry.in_line:
                lines[-1] += _END_OF_LINE
            lines.append(text)
        in_line = entry.in_line
    if in_line:
        lines[-1] += _END_OF_LINE
    return lines


def render_list(lines: list[str]) -> str:
    """A list with each of its members on a line."""
    return "[\n" + ",\n".join(lines) + "\n]" if lines else "[]"


def read_top(text: bytes) -> Members:
    """The names at the top of a document, and what they stand for."""
    text.decode()
    return _top.decode(text)


def read_item(raw: bytes) -> Entry:
    """Read an item. One that stands on a line is written as it is while it does not change."""
    return _entry(_top.decode(raw), raw)


def _entry(members: Members, raw: bytes, indent: str = _ITEM) -> Entry:
    if b"\n" in raw or b"\r" in raw:
        return Entry(read_fields(members))
    entry = Entry({name: bytes(text).decode() for name, text in members.items()})
    entry.text = f"{indent}{raw.decode()}"
    return entry


def read_items(raw: msgspec.Raw) -> list[Entry]:
    """Read a list of items."""
    return [read_item(bytes(item)) for item in _items.decode(raw)]


def read_items_with_lines(raw: msgspec.Raw, what: str) -> list[Entry]:
    """Read a list of items that may have values in line, each behind its item."""
    entries: list[Entry] = []
    for item in _items.decode(raw):
        members = _top.decode(item)
        line = members.pop(LINE, None)
        if line is None:
            entries.append(_entry(members, bytes(item)))
        else:
            entries.append(Entry(read_fields(members)))
            key = bytes(members.get("key", b"null")).decode()
            entries += _read_line(line, f"the line of {key} in {what}")
    return entries


def _read_line(raw: msgspec.Raw, what: str) -> list[Entry]:
    try:
        values = [] if bytes(raw) == b"null" else _items.decode(raw)
    except msgspec.DecodeError as error:
        raise NonsenseError(f"the values in {what} are not a list: {error}") from error
    entries: list[Entry] = []
    for number, value in enumerate(values, 1):
        try:
            entry = _entry(_top.decode(value), bytes(value), _VALUE)
        except msgspec.DecodeError as error:
            raise NonsenseError(f"value {number} in {what}: {error}") from error
        entry.in_line = True
        entries.append(entry)
    return entries


def read_fields(members: Members) -> dict[str, str]:
    """Fields, each on one line."""
    return {name: one_line(bytes(raw)) for name, raw in members.items()}


def one_line(raw: bytes) -> str:
    """JSON without line ends."""
    if b"\n" in raw or b"\r" in raw:
        raw = msgspec.json.format(raw, indent=0)
    return raw.decode()
