"""The text of the file store's document, as YAML and as JSON.

Both have the same shape::

    version: 1
    revision: 7
    last_id: 2
    last_fence: 1
    queues:
      emails:
        items:
          - key: welcome-42
            value: {"to": "ann@example.org"}
            id: 1
            put_at: 2026-01-31T12:00:00Z

We write every field on one line, its value as JSON, which is YAML as well. So a document of ours
needs no YAML library: `parse_yaml` reads that form line by line, with comments, and raises
`FreeFormError` at anything else, which is then the matter of `leasedkeyq.stores.freeform`. An entry
that did not change is written as it was read, letter by letter.

The last line carries a checksum of the text above it (`seal`). Where it fits, the text is what we
wrote. Where it does not, somebody edited or damaged it, and the file store finds out which.
"""

import hashlib
import re
from typing import Any

import msgspec

from leasedkeyq.stores.document import FIELDS, TIME, TIMES, Document, Entry, NonsenseError, Section

HEADER = """\
# The queues of leasedkeyq. You may edit this file while the program runs: add an item
# (`- key: ...` and `value: ...` are enough), change a priority, remove an item, write comments.
# Each change is checked; what cannot be read is set aside and the last good version restored.
"""
SUM_NOTE = "of the text above; delete this line if you change single characters"

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./@+-]*(?::[A-Za-z0-9_./@+-]+)*")
_RESERVED = frozenset(["true", "false", "null", "yes", "no", "on", "off", "y", "n", "nan", "inf"])
_UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
_FIELD = re.compile(r"([A-Za-z_][A-Za-z0-9_-]*): (.+)")
_NAME = re.compile(r'([A-Za-z][A-Za-z0-9_./@+-]*|"(?:[^"\\]|\\.)*"):')
_YAML_SUM = re.compile(rb"# sum: ([0-9a-f]{32}) %s\n\Z" % SUM_NOTE.encode())
_JSON_SUM = re.compile(rb'"sum": "([0-9a-f]{32})"\n\}\n\Z')

_ITEM = "      - "
_MEMBER = "        "
_EMPTY = "    items: []\n"

_Known = tuple[dict[str, str], dict[str, tuple[str, str]]]


class FreeFormError(Exception):
    """The YAML is not in the form in which we write it."""


# The checksum


def checksum(body: bytes) -> bytes:
    """128 bits over the text above the last line."""
    return hashlib.blake2b(body, digest_size=16).hexdigest().encode()


def seal(body: bytes, *, yaml: bool) -> bytes:
    """The text of the file: `body` and the line with its checksum."""
    if yaml:
        return b"%s# sum: %s %s\n" % (body, checksum(body), SUM_NOTE.encode())
    return b'%s"sum": "%s"\n}\n' % (body, checksum(body))


def unseal(text: bytes, *, yaml: bool) -> tuple[bytes, bool | None]:
    """The body of a file, and whether its checksum fits; None where there is no checksum."""
    found = (_YAML_SUM if yaml else _JSON_SUM).search(text)
    if found is None:
        return text, None
    body = text[: found.start()]
    return body, checksum(body) == found[1]


# YAML


def scalar(name: str, text: str) -> str:
    """A field's JSON as YAML: the same, but for plain words and times, which need no quotes."""
    if text[0] == '"':
        inner = text[1:-1]
        if name in TIMES:
            if TIME.fullmatch(inner):
                return inner
        elif name in FIELDS and name != "value" and is_plain(inner):
            return inner
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def is_plain(text: str) -> bool:
    """Whether every YAML reader takes `text` for itself without quotes."""
    return _PLAIN.fullmatch(text) is not None and text.lower() not in _RESERVED


def render_yaml(document: Document) -> bytes:
    """The document as YAML, without its checksum."""
    parts = [_entry(document.head, "", ""), document.lead]
    parts.append("queues:\n" if document.sections else "queues: {}\n")
    for name, section in document.sections.items():
        head = section.head
        if not head.text:
            rest = _entry(head, "    ", "    ", lead=False)
            title = name if is_plain(name) and ":" not in name else scalar("", _quote(name))
            head.text = f"{head.lead}  {title}:\n{rest}"
        parts.append(head.text)
        parts.append("    items:\n" if section.entries else "    items: []\n")
        for entry in section.entries:
            if not entry.text:
                entry.text = _entry(entry, _ITEM, _MEMBER)
            parts.append(entry.text)
        parts.append(section.tail)
    parts.append(document.tail)
    return "".join(parts).encode()


def _quote(text: str) -> str:
    return msgspec.json.encode(text).decode()


def _entry(entry: Entry, first: str, other: str, *, lead: bool = True) -> str:
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
        title = name if _FIELD.fullmatch(f"{name}: x") else _quote(name)
        parts.append(f"{indent}{title}: {scalar(name, text)}{after}\n")
        indent = other
    return "".join(parts)


class YamlReader:
    """Reads the YAML that we write. Keeps the entries it has seen, so that it reads them once."""

    def __init__(self) -> None:
        self._seen: dict[str, _Known] = {}

    def parse(self, body: str) -> Document:
        """Read a document.

        Raises:
            FreeFormError: It is not in our form. It may be good YAML all the same.
        """
        if "\r" in body or not body.endswith("\n"):
            raise FreeFormError
        document = Document()
        head, found, rest = f"\n{body}".partition("\nqueues:\n")
        if not found:
            head, found, rest = f"\n{body}".partition("\nqueues: {}\n")
            if not found or not _only_comments(rest):
                raise FreeFormError
            document.tail, rest = rest, ""
        _fields(f"{head[1:]}\n" if head[1:] else "", "", document.head)
        # Comments after the last counter belong to the list of queues.
        document.lead = _loose(document.head)
        self._queues(document, rest)
        return document

    def _queues(self, document: Document, rest: str) -> None:
        seen: dict[str, _Known] = {}
        section: Section | None = None
        comments = ""
        lines = split_lines(rest)
        at = 0
        while at < len(lines):
            line = lines[at]
            if _is_comment(line):
                comments += line
                at += 1
                continue
            if not line.startswith(_ITEM):
                section, at = _open_section(document, lines, at, comments)
            elif section is None or (not section.entries and lines[at - 1] == _EMPTY):
                raise FreeFormError
            else:
                end = _end_of_item(lines, at)
                block = "".join(lines[at:end])
                entry = Entry()
                known = self._seen.get(block)
                if known is None:
                    _fields(f"{_MEMBER}{block[len(_ITEM) :]}", _MEMBER, entry)
                    known = (entry.fields, entry.notes)
                seen[block] = known
                entry.fields, entry.notes = known[0], dict(known[1])
                entry.lead = comments
                entry.text = comments + block
                section.entries.append(entry)
                at = end
            comments = ""
        document.tail += comments
        self._seen = seen


def _open_section(
    document: Document, lines: list[str], at: int, comments: str
) -> tuple[Section, int]:
    """Read the name of a queue and what stands before its items."""
    line = lines[at]
    title = _NAME.fullmatch(line[2:-1])
    if not line.startswith("  ") or line[2] == " " or title is None:
        raise FreeFormError
    name = title[1]
    if name[0] == '"':
        name = _decode_string(name)
    elif not is_plain(name):
        raise FreeFormError
    if name in document.sections:
        raise NonsenseError(f"the queue {name!r} is there twice")
    section = document.sections[name] = Section()
    section.head.lead = comments
    end = at + 1
    while end < len(lines) and not lines[end].startswith("    items:"):
        if not lines[end].startswith("    ") and not _is_comment(lines[end]):
            raise FreeFormError
        end += 1
    if end == len(lines) or lines[end] not in {_EMPTY, "    items:\n"}:
        raise FreeFormError
    _fields("".join(lines[at + 1 : end]), "    ", section.head)
    if _loose(section.head):
        raise FreeFormError
    return section, end + 1


def _end_of_item(lines: list[str], at: int) -> int:
    end = at + 1
    while end < len(lines) and (lines[end].startswith(_MEMBER) or _is_comment(lines[end])):
        end += 1
    # What follows the last field is a comment on the next thing.
    while _is_comment(lines[end - 1]):
        end -= 1
    return end


def split_lines(text: str) -> list[str]:
    """The lines with their ends. Only a line feed ends a line, unlike in `str.splitlines`."""
    lines = [f"{line}\n" for line in text.split("\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


def _loose(entry: Entry) -> str:
    """The comments after the last field of `entry`, taken off it."""
    return entry.notes.pop("", ("", ""))[0]


def _is_comment(line: str) -> bool:
    line = line.lstrip(" ")
    return line[:1] in {"#", "\n", ""}


def _only_comments(text: str) -> bool:
    return all(map(_is_comment, split_lines(text)))


def _decode_string(text: str) -> str:
    try:
        return msgspec.json.decode(text, type=str)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise FreeFormError from error


def _fields(text: str, indent: str, entry: Entry) -> None:
    """Read fields of one line each; comments after the last one are noted under ""."""
    comments = ""
    for line in split_lines(text):
        if _is_comment(line):
            comments += line
            continue
        found = _FIELD.fullmatch(line[len(indent) : -1])
        if not line.startswith(indent) or line[-1] != "\n" or found is None:
            raise FreeFormError
        name, rest = found.groups()
        if name in entry.fields:
            raise NonsenseError(f"the field {name!r} is there twice")
        json, after = _split(name, rest)
        entry.fields[name] = json
        if comments or after:
            entry.notes[name] = (comments, after)
            comments = ""
    if comments:
        entry.notes[""] = (comments, "")


def _split(name: str, rest: str) -> tuple[str, str]:
    """What stands behind a field's name as JSON, and the comment after it."""
    json = _json(name, rest)
    if json is not None:
        return json, ""
    at = rest.find(" #")
    while at > 0:
        json = _json(name, rest[:at].rstrip(" "))
        if json is not None:
            return json, rest[at + 1 :]
        at = rest.find(" #", at + 1)
    raise FreeFormError


def _json(name: str, text: str) -> str | None:
    """A scalar or flow value as JSON, or None where JSON and YAML may not agree."""
    if name in TIMES and TIME.fullmatch(text):
        return f'"{text}"'
    if is_plain(text):
        return f'"{text}"' if name in FIELDS and name != "value" else None
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return text


# JSON


def render_json(document: Document) -> bytes:
    """The document as JSON with an item on each line, open at its end for the checksum."""
    parts = ["{\n", *(f'"{name}": {text},\n' for name, text in _members(document.head))]
    parts.append('"queues": {')
    between = "\n"
    for name, section in document.sections.items():
        parts.append(f"{between}{_quote(name)}: {{")
        parts.extend(f'"{field}": {text}, ' for field, text in _members(section.head))
        parts.append('"items": [\n')
        for entry in section.entries:
            if not entry.text:
                inner = ", ".join(f'"{field}": {text}' for field, text in _members(entry))
                entry.text = f"  {{{inner}}}"
        parts.append(",\n".join(entry.text for entry in section.entries))
        parts.append("\n]}" if section.entries else "]}")
        between = ",\n"
    parts.append("\n},\n" if document.sections else "},\n")
    return "".join(parts).encode()


def _members(entry: Entry) -> list[tuple[str, str]]:
    return [(_quote(name)[1:-1], text) for name, text in entry.fields.items()]


_Members = dict[str, msgspec.Raw]
_top = msgspec.json.Decoder(_Members)
_queues = msgspec.json.Decoder(dict[str, _Members])
_items = msgspec.json.Decoder(list[_Members])


def parse_json(text: bytes) -> Document:
    """Read a document.

    Raises:
        NonsenseError: It is not JSON, or not of our shape.
    """
    document = Document()
    try:
        text.decode()
        top = _top.decode(text)
        queues = _queues.decode(top.pop("queues", msgspec.Raw(b"{}")))
        top.pop("sum", None)
        document.head.fields = _flat(top)
        for name, members in queues.items():
            section = document.sections[name] = Section()
            items = _items.decode(members.pop("items", msgspec.Raw(b"[]")))
            section.head.fields = _flat(members)
            section.entries = [Entry(_flat(item)) for item in items]
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise NonsenseError(f"not a queue document in JSON: {error}") from error
    return document


def _flat(members: _Members) -> dict[str, str]:
    return {name: _one_line(bytes(raw)) for name, raw in members.items()}


def _one_line(raw: bytes) -> str:
    if b"\n" in raw or b"\r" in raw:
        raw = msgspec.json.format(raw, indent=0)
    return raw.decode()


def check_json_names(text: bytes) -> None:
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
