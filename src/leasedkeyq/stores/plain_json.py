"""The JSON that the file store writes: an item on each line, the checksum at the end."""

import re
from typing import Any

import msgspec

from leasedkeyq.stores.document import Entry
from leasedkeyq.stores.fields import NonsenseError, encode

Members = dict[str, msgspec.Raw]

_top = msgspec.json.Decoder(Members)
_items = msgspec.json.Decoder(list[msgspec.Raw])
_TEXT = re.compile(r'"([^"\\]*)"[ ]*(:?)')


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


def check_names(text: bytes) -> None:
    """Names that are there twice, of which a JSON reader silently takes one.

    Raises:
        NonsenseError: There is one.
    """
    import json  # noqa: PLC0415 - only where somebody edited the file

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if len(members) != len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise NonsenseError(f"the name {twice!r} is there twice in one place")
        return members

    try:
        json.loads(text, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise NonsenseError(f"not JSON: {error}") from error


def check_names_once(json: str) -> None:
    """As `check_names`, and quick where it is plain that no name is there twice.

    Raises:
        NonsenseError: There is one.
    """
    names = [name for name, colon in _TEXT.findall(json) if colon]
    if "\\" in json or len(set(names)) < len(names):
        check_names(json.encode())
