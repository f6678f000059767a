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

Each item has these fields, all of them, so that a program which reads them plainly goes on; see
`repository_items` for what they mean to the store. What the store itself has to
know stands apart, at the end. There is one queue, and no other can be put into such a document.
"""

import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from leasedkeyq.engines.file.document import plain_json, repository_text
from leasedkeyq.engines.file.document.document import (
    COUNTERS,
    VERSION,
    Cache,
    Document,
    Entry,
    Facts,
    Form,
    FreeReader,
    ReadItem,
    RepositorySettings,
    Section,
)
from leasedkeyq.engines.file.document.fields import (
    NonsenseError,
    decode_key,
    decode_mapping,
    decode_whole,
    encode,
    encode_mapping,
)
from leasedkeyq.engines.file.document.plain_yaml import printable
from leasedkeyq.engines.file.document.repository_fields import FIELDS, STATUSES
from leasedkeyq.engines.file.document.repository_items import read_item, was_written_for, write_item

__all__ = ["RepositoryForm", "RepositorySettings", "StatusMap"]

StatusMap: TypeAlias = Mapping[str, str] | Callable[[str], str | None]

HEADER = """\
# A queue of leasedkeyq. You may edit this file while the program runs: add an item (`- type: ...`
# and `payload: ...` are enough), change a priority or a status, remove an item, write comments.
# Each change is checked; what cannot be read is set aside and the last good version restored.
"""


class RepositoryForm(Form):
    """One queue, with the items of a repository.

    Args:
        defaults: The settings of a new queue, and of one whose document does not tell.
        status_map: Which status it is that is none of the five, by its name or by a function of
            that; None if it is not known.
    """

    fields: tuple[str, ...] = FIELDS

    def __init__(self, defaults: RepositorySettings, status_map: StatusMap | None = None) -> None:
        self.defaults = _encoded(defaults)
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
        """Make one document of its parts; what is missing is filled in."""
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

    # Items

    def write(self, section: Section, facts: Facts) -> tuple[dict[str, str], str]:
        """As `Form.write`."""
        fields, record = write_item(facts, _max_retries(section))
        return fields, printable(encode_mapping(record))

    def read(self, section: Section, entry: Entry, where: str, now: float) -> Facts:
        """As `Form.read`."""
        where = f"{where}, the id {entry.fields['id']}"
        return read_item(entry, _max_retries(section), where, now)

    # Text

    def render_yaml(self, document: Document) -> str:
        """As `Form.render_yaml`."""
        return repository_text.render_yaml(document, _section(document))

    def parse_yaml(self, body: str, cache: Cache, read_item: ReadItem | None = None) -> Document:
        """As `Form.parse_yaml`."""
        document = Document(self)
        return self._complete(
            document, *repository_text.read_yaml(body, document, cache, read_item)
        )

    def is_form_of(self, names: set[str]) -> bool:
        """As `Form.is_form_of`."""
        return "queues" not in names and not names.isdisjoint(repository_text.NAMES)

    def parse_free(self, top: Any, reader: FreeReader) -> Document:
        """As `Form.parse_free`."""
        document = Document(self)
        return self._complete(document, *repository_text.read_free(top, document, reader))

    def render_json(self, document: Document) -> str:
        """As `Form.render_json`."""
        return repository_text.render_json(document, _section(document))

    def parse_json(self, top: plain_json.Members) -> Document:
        """As `Form.parse_json`."""
        document = Document(self)
        return self._complete(document, *repository_text.read_json(top, document))


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


def _translate(section: Section, status_map: StatusMap) -> None:
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
    # An item whose status has changed takes what is left.
    for changed in (False, True):
        for entry in entries:
            waiting = free.get(decode_key(entry.fields, "id", "an item"), [])
            fitting = [one for one in waiting if changed or was_written_for(one[1], entry)]
            if fitting and not entry.record:
                entry.record = fitting[0][0]
                waiting.remove(fitting[0])
