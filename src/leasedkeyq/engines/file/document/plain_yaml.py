"""The YAML that the file store writes: every field on one line, its value as JSON.

JSON is YAML as well, so a document of ours needs no YAML library: it is read line by line, with
comments, and anything else raises `NotPlainYamlError` and is then the matter of `handwritten_yaml`.
An entry that did not change is written as it was read, letter by letter.
"""

import re
from typing import NamedTuple

import msgspec

from leasedkeyq.engines.file.document.document import Cache, Entry, NotPlainYamlError, ReadItem
from leasedkeyq.engines.file.document.json_fields import TIME, NonsenseError, encode

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./@+-]*(?::[A-Za-z0-9_./@+-]+)*")
_RESERVED = frozenset(["true", "false", "null", "yes", "no", "on", "off", "y", "n", "nan", "inf"])
_UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
_CONTROL = re.compile("[\x01-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
"""What may not stand in YAML, or ends a line for some readers; not a carriage return.

Nor zero: no person writes that; it is a disk that did not get to write the rest.
"""
_COMMENT = re.compile(r"^[ \t]*#|[ \t]#")
_FIELD = re.compile(r"([A-Za-z_][A-Za-z0-9_-]*): (.+)")
_BLOCK_TEXT = re.compile(r"[|>][-+0-9]*[ ]*(?:[ ]#.*)?$", re.MULTILINE)
_NAME = re.compile(r'([A-Za-z][A-Za-z0-9_./@+-]*|"(?:[^"\\]|\\.)*"):')


class Style(NamedTuple):
    """How entries are written."""

    item: str
    """The text before the first field of an item."""
    member: str
    """The text before its other fields."""
    words: frozenset[str]
    """The fields in which a plain word is written without quotes."""
    times: frozenset[str]
    """The fields in which a time is written without quotes."""
    line: str = ""
    """How the line of text begins that is above the values in line of an item."""


# Writing


def scalar(name: str, text: str, style: Style) -> str:
    """A field's JSON as YAML: the same, but for plain words and times, which need no quotes."""
    if text[0] == '"':
        inner = text[1:-1]
        if name in style.times:
            if TIME.fullmatch(inner):
                return inner
        elif name in style.words and is_plain(inner):
            return inner
    return printable(text)


def printable(text: str) -> str:
    """JSON without characters that may not stand in YAML."""
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def is_plain(text: str) -> bool:
    """Whether every YAML reader takes `text` for itself without quotes."""
    return _PLAIN.fullmatch(text) is not None and text.lower() not in _RESERVED


def title(name: str) -> str:
    """The name of a queue, or of another part of the document."""
    return name if is_plain(name) and ":" not in name else printable(encode(name))


def render_item(entry: Entry, style: Style) -> str:
    """An item, as it was read if it is still the same."""
    if not entry.text:
        entry.text = render_fields(entry, style, style.item, style.member)
    return entry.text


def render_fields(entry: Entry, style: Style, first: str, other: str, *, lead: bool = True) -> str:
    """The fields of an entry, with comments; `first` stands before the first one."""
    parts = [entry.lead] if lead and entry.lead else []
    indent = first
    notes = entry.notes
    for name, text in entry.fields.items():
        after = ""
        if name in notes:
            before, after = notes[name]
            after = f" {after}" if after else ""
            if before and indent is first and first != other:
                # Nothing can stand between the dash and its first field.
                parts.insert(0, before)
            else:
                parts.append(before)
        label = name if _FIELD.fullmatch(f"{name}: x") else encode(name)
        parts.append(f"{indent}{label}: {scalar(name, text, style)}{after}\n")
        indent = other
    return "".join(parts)


# Reading

FREE_ITEMS = 100
"""Where more items than these are in the style of a person, it is quicker to read all at once."""


class ItemReader:
    """Reads the items in some lines. Items that are in `cache` from the last time are known."""

    def __init__(
        self, lines: list[str], style: Style, cache: Cache, read_item: ReadItem | None = None
    ) -> None:
        self._lines = lines
        self._style = style
        self._cache = cache
        self._read_item = read_item
        self._free = 0
        self._seen: Cache = {}

    def read(self, at: int, comments: str, style: Style | None = None) -> tuple[Entry, int]:
        """Read the item that begins at a line; return it and where it ends."""
        style = style or self._style
        end = _end_of_item(self._lines, at, style)
        block = "".join(self._lines[at:end])
        entry = Entry()
        found = self._cache.get(block)
        if found is None:
            try:
                read_fields(f"{style.member}{block[len(style.item) :]}", style, style.member, entry)
            except NotPlainYamlError:
                self._free += 1
                if self._read_item is None or self._free > FREE_ITEMS:
                    raise
                if is_comment("".join(self._lines[end : end + 1])) and _BLOCK_TEXT.search(block):
                    # The lines behind it may be the end of its text, and no comment.
                    raise
                entry = self._read_item(block)
                entry.lead = comments + entry.lead
                return entry, end
            found = (entry.fields, entry.notes)
        self._seen[block] = found
        entry.fields, entry.notes = found[0], dict(found[1])
        entry.lead = comments
        entry.text = comments + block
        return entry, end

    def close(self) -> None:
        """Remember the items that were read, and no others."""
        self._cache.clear()
        self._cache.update(self._seen)


def _end_of_item(lines: list[str], at: int, style: Style) -> int:
    end = at + 1
    while end < len(lines) and (lines[end].startswith(style.member) or is_comment(lines[end])):
        if style.line and lines[end].startswith(style.line):
            break
        end += 1
    # Comments behind the last field are about the next item.
    while is_comment(lines[end - 1]):
        end -= 1
    return end


def read_fields(text: str, style: Style, indent: str, entry: Entry) -> None:
    """Read fields of one line each; comments after the last one are noted under ""."""
    comments = ""
    for line in split_lines(text):
        if is_comment(line):
            comments += line
            continue
        found = _FIELD.fullmatch(line[len(indent) : -1])
        if not line.startswith(indent) or line[-1] != "\n" or found is None:
            raise NotPlainYamlError
        name, rest = found.groups()
        if name in entry.fields:
            raise NonsenseError(f"the field {name!r} is there twice")
        json, after = _split(name, rest, style)
        entry.fields[name] = json
        if comments or after:
            entry.notes[name] = (comments, after)
            comments = ""
    if comments:
        entry.notes[""] = (comments, "")


def loose_comments(entry: Entry) -> str:
    """The comments after the last field of `entry`, taken off it."""
    return entry.notes.pop("", ("", ""))[0]


def _split(name: str, rest: str, style: Style) -> tuple[str, str]:
    """The value of a field as JSON, and the comment after it."""
    json = _json(name, rest, style)
    if json is not None:
        return json, ""
    at = rest.find(" #")
    while at > 0:
        json = _json(name, rest[:at].rstrip(" "), style)
        if json is not None:
            return json, rest[at + 1 :]
        at = rest.find(" #", at + 1)
    raise NotPlainYamlError


def _json(name: str, text: str, style: Style) -> str | None:
    """A scalar or flow value as JSON, or None where JSON and YAML may not agree."""
    if name in style.times and TIME.fullmatch(text):
        return f'"{text}"'
    if is_plain(text):
        return f'"{text}"' if name in style.words else None
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return text


def read_title(line: str) -> str:
    """The name in a line that has nothing but a name and its colon."""
    found = _NAME.fullmatch(line)
    if found is None:
        raise NotPlainYamlError
    name = found[1]
    if name[0] == '"':
        try:
            return msgspec.json.decode(name, type=str)
        except (msgspec.DecodeError, UnicodeError) as error:
            raise NotPlainYamlError from error
    if not is_plain(name):
        raise NotPlainYamlError
    return name


def split_lines(text: str) -> list[str]:
    """The lines with their ends. Only a line feed ends a line, unlike in `str.splitlines`."""
    lines = [f"{line}\n" for line in text.split("\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


def is_comment(line: str) -> bool:
    """Whether a line has nothing but a comment, if that."""
    line = line.lstrip(" ")
    return line[:1] in {"#", "\n", ""}


def only_comments(text: str) -> bool:
    """Whether a text has nothing but comments."""
    return all(map(is_comment, split_lines(text)))


def printable_comments(text: str) -> tuple[str, set[str]]:
    """The text with signs for the control characters in its comments, and which signs these are.

    A comment with one is not refused, and every YAML reader can read our text.
    """
    if not _CONTROL.search(text):
        return text, set()
    signs: set[str] = set()

    def sign(found: re.Match[str]) -> str:
        code = ord(found[0])
        made = "\u2421" if code == _DELETE else chr(_SIGNS + code) if code < _SPACE else "\ufffd"
        signs.add(made)
        return made

    lines = text.split("\n")
    for number, line in enumerate(lines):
        found = _COMMENT.search(line)
        if found is not None:
            lines[number] = line[: found.start()] + _CONTROL.sub(sign, line[found.start() :])
    return "\n".join(lines), {made for made in signs if made not in text}


_SIGNS, _SPACE, _DELETE = 0x2400, 0x20, 0x7F
