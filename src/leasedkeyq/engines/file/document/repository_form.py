"""The form of a document that is one queue, as `leasedkeyq.repository` keeps it.

It looks like this::

    name: default
    max_size: null
    default_max_retries: 3
    items:
    - id: 01899f4e
      type: task
      payload: {"task_id": "T1"}
      status: pending
      created_at: "2026-11-16T00:31:33.123456+00:00"
      priority: 0
      scheduled_at: null
      started_at: null
      completed_at: null
      retry_count: 0
      max_retries: 3
      error_message: null
      metadata: {}

An item of a group has ``group``, too. Otherwise each item has these fields, all of them and no
others, so that a program which reads them plainly goes on; see
`repository_items` for what they mean to the store. What the store itself has to know, the counters
and a record for each item, stands in one mapping at the end. Older documents have their items under
``queue``. There is one queue, and no other can be put into such a document.

The values in line of an id are items of that id, too, behind its head and in order.
"""

import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, TypeAlias

import msgspec

from leasedkeyq.engines.file.document import plain_json
from leasedkeyq.engines.file.document.document import (
    COUNTERS,
    VERSION,
    Cache,
    Document,
    Entry,
    Form,
    HandwrittenReader,
    ItemFacts,
    NotPlainYamlError,
    ReadItem,
    ReadValue,
    RepositorySettings,
    Section,
)
from leasedkeyq.engines.file.document.json_fields import (
    NonsenseError,
    check_list,
    check_mapping,
    decode_key,
    decode_mapping,
    decode_whole,
    encode,
    encode_mapping,
)
from leasedkeyq.engines.file.document.plain_yaml import (
    ItemReader,
    Style,
    is_comment,
    loose_comments,
    only_comments,
    printable,
    read_fields,
    render_fields,
    render_item,
    split_lines,
)
from leasedkeyq.engines.file.document.repository_fields import ALL_FIELDS, STATUSES
from leasedkeyq.engines.file.document.repository_groups import arrange_groups
from leasedkeyq.engines.file.document.repository_items import (
    read_item,
    take_next,
    was_written_for,
    write_item,
)

__all__ = ["RepositoryForm", "RepositorySettings", "StatusTranslation"]

StatusTranslation: TypeAlias = Mapping[str, str] | Callable[[str], str | None]
"""From the words of another program for a status to ours."""

HEADER = """\
# A queue of leasedkeyq. You may edit this file while the program runs: add an item (`- type: ...`
# and `payload: ...` are enough), change a priority or a status, remove an item, write comments.
# Each change is checked; what cannot be read is set aside and the last good version restored.
"""


LABELS = ("items", "queue")
BOOKS = "leasedkeyq"
NAMES = (*LABELS, BOOKS)
"""What such a document has at its top, and no other."""
STYLE = Style(
    item="- ",
    member="  ",
    words=frozenset(("name", "id", "type", "status", "group")),
    times=frozenset(),
)

_BOOKS = f"{BOOKS}: # the store's own notes about the items; leave them to the program\n"
_RECORDS = "  items:\n"
_NO_RECORDS = "  items: []\n"
_RECORD = "  - "
_LISTS = {f"{label}:{rest}\n": label for label in LABELS for rest in ("", " []")}

Parts = tuple[Section, list[str]]
"""The section with the items, and the records."""


class RepositoryForm(Form):
    """One queue, with the items of a repository.

    Args:
        defaults: The settings of a new queue, and of one whose document does not tell.
        status_map: Which status it is that is none of the five, by its name or by a function of
            that; None if it is not known.
    """

    fields: tuple[str, ...] = ALL_FIELDS
    nests: bool = False

    def __init__(
        self, defaults: RepositorySettings, status_map: StatusTranslation | None = None
    ) -> None:
        self.defaults: dict[str, str] = _encoded(defaults)
        self._status_map = status_map

    def __str__(self) -> str:
        return "a document of one queue"

    def start(self) -> Document:
        """As `Form.start`."""
        document = Document(self)
        section = Section()
        section.head.notes["name"] = (HEADER, "")
        document.head.fields = dict.fromkeys(COUNTERS, "0") | {"version": str(VERSION)}
        self._complete(document, section, [])
        return document

    def open_section(self, document: Document, queue: str) -> Section:
        """As `Form.open_section`."""
        name = next(iter(document.sections))
        raise NonsenseError(f"the document is the queue {name!r}, and cannot hold {queue!r}")

    def _complete(self, document: Document, section: Section, records: list[str]) -> Document:
        """Make one document of its parts; missing settings and ids are filled in."""
        fields = self.defaults | section.head.fields
        section.head.fields = fields
        document.settings = RepositorySettings(
            name=decode_key(fields, "name", "the document"),
            max_size=_number_or_none(fields, "max_size"),
            default_max_retries=decode_whole(fields, "default_max_retries", "the document"),
        )
        document.sections = {document.settings.name: section}
        if self._status_map is not None:
            _translate(section, self._status_map)
        _give_ids(document, section)
        _give_records(section, records)
        return document

    def upgrade(self, section: Section, where: str) -> None:
        """As `Form.upgrade`: a buffered value is an item like the others."""
        entries: list[Entry] = []
        for entry in section.entries:
            entries.append(entry)
            buffered = take_next(entry, f"the item {entry.fields['id']} of {where}")
            if buffered is not None:
                fields, record = self.write(section, buffered)
                entries.append(Entry(fields))
                entries[-1].record = record
        section.entries = entries

    def arrange_lines(self, found: list[ReadValue]) -> list[ReadValue]:
        """As `Form.arrange_lines`."""
        return arrange_groups(found)

    def by_name(self, entries: Sequence[Entry], numbers: AbstractSet[int]) -> dict[str, Entry]:
        """As `Form.by_name`."""
        return {entry.fields["id"]: entry for entry in entries if entry.id not in numbers}

    # Items

    def write(self, section: Section, facts: ItemFacts) -> tuple[dict[str, str], str]:
        """As `Form.write`."""
        fields, record = write_item(facts, _max_retries(section))
        return fields, printable(encode_mapping(record))

    def read(self, section: Section, entry: Entry, where: str, now: float) -> ItemFacts:
        """As `Form.read`."""
        where = f"{where}, the id {entry.fields['id']}"
        return read_item(entry, _max_retries(section), where, now)

    # Text

    def render_yaml(self, document: Document) -> str:
        """As `Form.render_yaml`."""
        return _render_yaml(document, _section(document))

    def parse_yaml(self, body: str, cache: Cache, read_item: ReadItem | None = None) -> Document:
        """As `Form.parse_yaml`."""
        document = Document(self)
        return self._complete(document, *_read_yaml(body, document, cache, read_item))

    def is_form_of(self, names: set[str]) -> bool:
        """As `Form.is_form_of`."""
        return "queues" not in names and not names.isdisjoint(NAMES)

    def parse_handwritten(self, top: Any, reader: HandwrittenReader) -> Document:
        """As `Form.parse_handwritten`."""
        document = Document(self)
        return self._complete(document, *_read_handwritten(top, document, reader))

    def render_json(self, document: Document) -> str:
        """As `Form.render_json`."""
        return _render_json(document, _section(document))

    def parse_json(self, top: plain_json.Members) -> Document:
        """As `Form.parse_json`."""
        document = Document(self)
        return self._complete(document, *_read_json(top, document))


# The document


def _encoded(settings: RepositorySettings) -> dict[str, str]:
    return {name: encode(value) for name, value in msgspec.structs.asdict(settings).items()}


def _section(document: Document) -> Section:
    """The one queue, with its settings."""
    (section,) = document.sections.values()
    assert document.settings is not None
    section.head.fields |= _encoded(document.settings)
    return section


def _number_or_none(fields: dict[str, str], name: str) -> int | None:
    return None if fields[name] == "null" else decode_whole(fields, name, "the document")


def _max_retries(section: Section) -> int:
    return decode_whole(section.head.fields, "default_max_retries", "the document")


def _translate(section: Section, status_map: StatusTranslation) -> None:
    """Say each status that is none of ours in our words. It is written like that next time."""
    for entry in section.entries:
        text = entry.fields.get("status", '"pending"')
        if text[:1] != '"' or text.strip('"') in STATUSES:
            continue
        status = msgspec.json.decode(text, type=str)
        ours = status_map(status) if callable(status_map) else status_map.get(status)
        if ours is not None:
            entry.fields["status"] = encode(ours)
            entry.text = ""


def _give_ids(document: Document, section: Section) -> None:
    """An item without an id gets one.

    It is the same one when the same text is read again, so that an editor that saves an old
    version once more does not add its new items twice.
    """
    same: defaultdict[str, int] = defaultdict(int)
    for entry in section.entries:
        if "id" not in entry.fields:
            content = encode([document.revision, *sorted(entry.fields.items())])
            same[content] += 1
            number = uuid.uuid5(uuid.NAMESPACE_OID, f"{same[content]} {content}")
            entry.fields = {"id": encode(str(number)), **entry.fields}
            entry.text = ""


def _give_records(section: Section, records: list[str]) -> None:
    """Give each item its record. There can be several items of an id, of which one is live."""
    entries = section.entries
    if len(records) == len(entries) and all(
        record.startswith(f'{{"id": {entry.fields["id"]}, ')
        for record, entry in zip(records, entries, strict=True)
    ):
        for record, entry in zip(records, entries, strict=True):
            entry.record = record
        return
    free: defaultdict[str, list[tuple[str, dict[str, str]]]] = defaultdict(list)
    for record in records:
        parts = decode_mapping(record, "a record", "the document")
        free[decode_key(parts, "id", "a record")].append((record, parts))
    # An item whose status has changed takes a record that is left.
    for changed in (False, True):
        for entry in entries:
            waiting = free.get(decode_key(entry.fields, "id", "an item"), [])
            fitting = [one for one in waiting if changed or was_written_for(one[1], entry)]
            if fitting and not entry.record:
                entry.record = fitting[0][0]
                waiting.remove(fitting[0])


# YAML


def _render_yaml(document: Document, section: Section) -> str:
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


def _read_yaml(
    body: str, document: Document, cache: Cache, read_item: ReadItem | None = None
) -> Parts:
    """Read YAML that we wrote, or that looks like it."""
    if "\r" in body or not body.endswith("\n"):
        raise NotPlainYamlError
    lines = split_lines(body)
    at = next((at for at, line in enumerate(lines) if line in _LISTS), None)
    if at is None:
        raise NotPlainYamlError
    section = Section()
    read_fields("".join(lines[:at]), STYLE, "", section.head)
    # Comments after the last field belong to the list of items.
    document.lead = loose_comments(section.head)
    document.label = _LISTS[lines[at]]
    empty = lines[at].endswith("[]\n")
    items = ItemReader(lines, STYLE, cache, read_item)
    at = _read_items(lines, at + 1, section, items)
    if empty and section.entries:
        raise NotPlainYamlError
    return section, _read_books(lines, at, document)


def _read_items(lines: list[str], at: int, section: Section, items: ItemReader) -> int:
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
            raise NotPlainYamlError
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
        raise NotPlainYamlError
    read_fields("".join(lines[at:end]), STYLE, "  ", document.head)
    if loose_comments(document.head):
        raise NotPlainYamlError
    records: list[str] = []
    at = end + 1
    if lines[end] == _RECORDS:
        while at < len(lines) and lines[at].startswith(_RECORD):
            records.append(lines[at][len(_RECORD) : -1])
            _check_record(records[-1])
            at += 1
    document.tail = "".join(lines[at:])
    if not only_comments(document.tail):
        raise NotPlainYamlError
    return records


def _check_record(record: str) -> None:
    try:
        msgspec.json.decode(record, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise NotPlainYamlError from error


# YAML that a person wrote


def _read_handwritten(top: Any, document: Document, reader: HandwrittenReader) -> Parts:
    """Read any YAML."""
    section = Section()
    records: list[str] = []
    document.label = _label(top)
    for name in top:
        if name == document.label:
            reader.above(top, name, document.add_lead)
            reader.items(top[name], section, name, _bare_item)
        elif name == BOOKS:
            reader.above(top, name, section.add_tail)
            records = _read_free_books(top[name], document, reader)
        else:
            reader.field(top, name, section.head)
    return section, records


def _read_free_books(books: Any, document: Document, reader: HandwrittenReader) -> list[str]:
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


def _bare_item(value: object) -> dict[str, str]:
    """The fields of an item that is nothing but a name or a number."""
    return {"payload": encode({"task_id": value})}


def _label(names: Any) -> str:
    found = next((label for label in LABELS if label in names), None)
    if found is None and BOOKS in names:
        raise NonsenseError("it has no list of items any more")
    return found or LABELS[0]


# JSON


def _render_json(document: Document, section: Section) -> str:
    """The document as JSON with an item on each line, open at its end for the checksum."""
    items = list(map(plain_json.render_item, section.entries))
    records = [f"  {entry.record}" for entry in section.entries]
    parts = ["{\n", *(f"{encode(name)}: {text},\n" for name, text in section.head.fields.items())]
    parts.append(f'"{document.label}": {plain_json.render_list(items)},\n"{BOOKS}": {{')
    parts.extend(f"{encode(name)}: {text}, " for name, text in document.head.fields.items())
    parts.append(f'"items": {plain_json.render_list(records)}}},\n')
    return "".join(parts)


def _read_json(top: plain_json.Members, document: Document) -> Parts:
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
            entry = Entry(_bare_item(msgspec.json.decode(text, type=str | int | float)))
        section.entries.append(entry)
    records = books.pop("items", msgspec.Raw(b"[]"))
    document.head.fields = plain_json.read_fields(books)
    members = msgspec.json.decode(records, type=list[msgspec.Raw])
    return section, [plain_json.one_line(bytes(record)) for record in members]
