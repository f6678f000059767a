"""The text of a document that is one queue, see `repository_form`.

The items stand under ``items``, or under ``queue`` in older documents. What the store itself has to
know, the counters and a record for each item, stands in one mapping at the end.
"""

from typing import Any

import msgspec

from leasedkeyq.engines.file.document import plain_json
from leasedkeyq.engines.file.document.document import (
    Cache,
    Document,
    Entry,
    FreeFormError,
    FreeReader,
    ReadItem,
    Section,
)
from leasedkeyq.engines.file.document.fields import NonsenseError, check_list, check_mapping, encode
from leasedkeyq.engines.file.document.plain_yaml import (
    Items,
    Style,
    is_comment,
    loose_comments,
    only_comments,
    read_fields,
    render_fields,
    render_item,
    split_lines,
)

LABELS = ("items", "queue")
BOOKS = "leasedkeyq"
NAMES = (*LABELS, BOOKS)
"""What such a document has at its top, and no other."""
STYLE = Style(
    item="- ", member="  ", words=frozenset(("name", "id", "type", "status")), times=frozenset()
)

_BOOKS = f"{BOOKS}: # the store's own notes about the items; leave them to the program\n"
_RECORDS = "  items:\n"
_NO_RECORDS = "  items: []\n"
_RECORD = "  - "
_LISTS = {f"{label}:{rest}\n": label for label in LABELS for rest in ("", " []")}

Parts = tuple[Section, list[str]]
"""The items with what stands above them, and the records."""


# YAML


def render_yaml(document: Document, section: Section) -> str:
    """The document as YAML, without its checksum."""
    empty = "" if section.entries else " []"
    parts = [
        render_fields(section.head, STYLE, "", ""),
        document.lead,
        f"{document.label}:{empty}\n",
        *(render_item(entry, STYLE) for entry in section.entries),
        section.tail,
        _BOOKS,
        render_fields(document.head, STYLE, "  ", "  "),
        _RECORDS if section.entries else _NO_RECORDS,
        *(f"{_RECORD}{entry.record}\n" for entry in section.entries),
        document.tail,
    ]
    return "".join(parts)


def read_yaml(
    body: str, document: Document, cache: Cache, read_item: ReadItem | None = None
) -> Parts:
    """Read YAML that we wrote, or that looks like it."""
    if "\r" in body or not body.endswith("\n"):
        raise FreeFormError
    lines = split_lines(body)
    at = next((at for at, line in enumerate(lines) if line in _LISTS), None)
    if at is None:
        raise FreeFormError
    section = Section()
    read_fields("".join(lines[:at]), STYLE, "", section.head)
    # Comments after the last field belong to the list of items.
    document.lead = loose_comments(section.head)
    document.label = _LISTS[lines[at]]
    empty = lines[at].endswith("[]\n")
    items = Items(lines, STYLE, cache, read_item)
    at = _read_items(lines, at + 1, section, items)
    if empty and section.entries:
        raise FreeFormError
    return section, _read_books(lines, at, document)


def _read_items(lines: list[str], at: int, section: Section, items: Items) -> int:
    """Read the items; return the line after what begins the books."""
    comments = ""
    while at < len(lines) and not _begins_books(lines[at]):
        if is_comment(lines[at]):
            comments += lines[at]
            at += 1
        elif lines[at].startswith(STYLE.item):
            entry, at = items.read(at, comments)
            section.entries.append(entry)
            comments = ""
        else:
            raise FreeFormError
    section.tail = comments
    items.close()
    return at + 1


def _begins_books(line: str) -> bool:
    return line.startswith((f"{BOOKS}: ", f"{BOOKS}:\n")) and is_comment(line[len(BOOKS) + 1 :])


def _read_books(lines: list[str], at: int, document: Document) -> list[str]:
    if at >= len(lines):
        return []
    end = at
    while end < len(lines) and lines[end] not in {_RECORDS, _NO_RECORDS}:
        end += 1
    if end == len(lines):
        raise FreeFormError
    read_fields("".join(lines[at:end]), STYLE, "  ", document.head)
    if loose_comments(document.head):
        raise FreeFormError
    records: list[str] = []
    at = end + 1
    if lines[end] == _RECORDS:
        while at < len(lines) and lines[at].startswith(_RECORD):
            records.append(lines[at][len(_RECORD) : -1])
            _check_record(records[-1])
            at += 1
    document.tail = "".join(lines[at:])
    if not only_comments(document.tail):
        raise FreeFormError
    return records


def _check_record(record: str) -> None:
    try:
        msgspec.json.decode(record, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise FreeFormError from error


# YAML that a person wrote


def read_free(top: Any, document: Document, reader: FreeReader) -> Parts:
    """Read any YAML."""
    section = Section()
    records: list[str] = []
    document.label = _label(top)
    for name in top:
        if name == document.label:
            reader.above(top, name, document.add_lead)
            reader.items(top[name], section, name, bare_item)
        elif name == BOOKS:
            reader.above(top, name, section.add_tail)
            records = _read_free_books(top[name], document, reader)
        else:
            reader.field(top, name, section.head)
    return section, records


def _read_free_books(books: Any, document: Document, reader: FreeReader) -> list[str]:
    check_mapping(books, BOOKS)
    records: list[str] = []
    for name in books:
        if name != "items":
            reader.field(books, name, document.head)
            continue
        listed = reader.plain(books[name])
        check_list(listed, f"the items of {BOOKS}")
        for record in listed:
            check_mapping(record, f"a record in {BOOKS}")
            records.append(encode(record))
    return records


def bare_item(value: object) -> dict[str, str]:
    """The fields of an item that is nothing but a name or a number."""
    return {"payload": encode({"task_id": value})}


def _label(names: Any) -> str:
    found = next((label for label in LABELS if label in names), None)
    if found is None and BOOKS in names:
        raise NonsenseError("it has no list of items any more")
    return found or LABELS[0]


# JSON


def render_json(document: Document, section: Section) -> str:
    """The document as JSON with an item on each line, open at its end for the checksum."""
    items = list(map(plain_json.render_item, section.entries))
    records = [f"  {entry.record}" for entry in section.entries]
    parts = ["{\n", *(f"{encode(name)}: {text},\n" for name, text in section.head.fields.items())]
    parts.append(f'"{document.label}": {plain_json.render_list(items)},\n"{BOOKS}": {{')
    parts.extend(f"{encode(name)}: {text}, " for name, text in document.head.fields.items())
    parts.append(f'"items": {plain_json.render_list(records)}}},\n')
    return "".join(parts)


def read_json(top: plain_json.Members, document: Document) -> Parts:
    """Read JSON."""
    section = Section()
    document.label = _label(top)
    listed = top.pop(document.label, msgspec.Raw(b"[]"))
    books = msgspec.json.decode(top.pop(BOOKS, msgspec.Raw(b"{}")), type=plain_json.Members)
    section.head.fields = plain_json.read_fields(top)
    for raw in msgspec.json.decode(listed, type=list[msgspec.Raw]):
        text = bytes(raw)
        if text[:1] in b"{[":
            entry = plain_json.read_item(text)
        else:
            entry = Entry(bare_item(msgspec.json.decode(text, type=str | int | float)))
        section.entries.append(entry)
    records = books.pop("items", msgspec.Raw(b"[]"))
    document.head.fields = plain_json.read_fields(books)
    members = msgspec.json.decode(records, type=list[msgspec.Raw])
    return section, [plain_json.one_line(bytes(record)) for record in members]
