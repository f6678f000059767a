"""The JSON that the file store writes: an item on each line, the checksum at the end."""

import msgspec

from leasedkeyq.engines.file.document.document import Entry
from leasedkeyq.engines.file.document.json_fields import encode

Members = dict[str, msgspec.Raw]

_top = msgspec.json.Decoder(Members)
_items = msgspec.json.Decoder(list[msgspec.Raw])


def render_item(entry: Entry) -> str:
    """An item on one line."""
    if not entry.text:
        inner = ", ".join(f"{encode(name)}: {text}" for name, text in entry.fields.items())
        entry.text = f"  {{{inner}}}"
    return entry.text


def render_list(lines: list[str]) -> str:
    """A list with each of its members on a line."""
    return "[\n" + ",\n".join(lines) + "\n]" if lines else "[]"


def read_top(text: bytes) -> Members:
    """The names at the top of a document, and what they stand for."""
    text.decode()
    return _top.decode(text)


def read_item(raw: bytes) -> Entry:
    """Read an item. One that stands on a line is written as it is while it does not change."""
    members = _top.decode(raw)
    if b"\n" in raw or b"\r" in raw:
        return Entry(read_fields(members))
    entry = Entry({name: bytes(text).decode() for name, text in members.items()})
    entry.text = f"  {raw.decode()}"
    return entry


def read_items(raw: msgspec.Raw) -> list[Entry]:
    """Read a list of items."""
    return [read_item(bytes(item)) for item in _items.decode(raw)]


def read_fields(members: Members) -> dict[str, str]:
    """Fields, each on one line."""
    return {name: one_line(bytes(raw)) for name, raw in members.items()}


def one_line(raw: bytes) -> str:
    """JSON without line ends."""
    if b"\n" in raw or b"\r" in raw:
        raw = msgspec.json.format(raw, indent=0)
    return raw.decode()
