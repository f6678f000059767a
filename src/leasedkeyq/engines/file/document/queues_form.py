"""The form of a document that holds any number of queues.

It looks like this::

    version: 2
    revision: 7
    last_id: 3
    last_fence: 1
    queues:
      emails:
        items:
          - key: ann
            value: {"subject": "Welcome"}
            id: 1
            put_at: 2026-01-31T12:00:00Z
            line:
              - value: {"subject": "Your first week"}
                id: 2
                put_at: 2026-01-31T12:00:05Z
              - value: {"subject": "How was it?"}
                due: 2026-02-07T09:00:00Z
                id: 3
                put_at: 2026-01-31T12:00:06Z

The values of a key that wait for their turn behind an item are its ``line``, in order. They have no
lease and no attempts, and may have a kind, a priority, a due time and a deadline of their own.

Defaults are left out, and so is the state where it is obvious:

- ``lease``: the item is in flight. ``due`` is then the earliest time it may come back.
- ``due`` without a lease: it is scheduled.
- ``state: buried`` and ``state: done`` are said, and of what is done the ``outcome`` if it is not
  ``completed``. A buried item with ``hold: true`` holds its key: its line waits.
- ``state: buffered`` is said of a value in line that replaces that of the item when its lease ends
  before it is done.
- Otherwise it is available, in the order of the document within its priority.

While tokens of rate limits are missing, ``buckets`` after the counters says so.
"""

import base64
import binascii
from typing import Any

import msgspec

from leasedkeyq.engines.file.document import plain_json
from leasedkeyq.engines.file.document.document import (
    COUNTERS,
    IN_LINE,
    LINE,
    VERSION,
    Cache,
    Document,
    Entry,
    Form,
    HandwrittenReader,
    ItemFacts,
    LeaseFacts,
    NotPlainYamlError,
    ReadItem,
    Section,
    by_key,
)
from leasedkeyq.engines.file.document.json_fields import (
    LARGEST,
    NonsenseError,
    check_mapping,
    decode,
    decode_history,
    decode_key,
    decode_mapping,
    decode_moment,
    decode_outcome,
    decode_progress,
    decode_text,
    decode_whole,
    encode,
    encode_history,
    encode_progress,
    encode_time,
    readable,
)
from leasedkeyq.engines.file.document.plain_yaml import (
    ItemReader,
    Style,
    is_comment,
    loose_comments,
    only_comments,
    read_fields,
    read_title,
    render_fields,
    render_item,
    split_lines,
    title,
)
from leasedkeyq.model.queue_model import Payload
from leasedkeyq.model.requests import Attempt, StoredState

FIELDS = (
    "key",
    "kind",
    "value",
    "raw",
    "state",
    "outcome",
    "priority",
    "due",
    "deadline",
    "lease",
    "attempt",
    "hold",
    "error",
    "history",
    "progress",
    "place",
    "id",
    "put_at",
    "buried_at",
    "ended_at",
    "until",
)
NOT_IN_LINE = frozenset(FIELDS) - frozenset(
    ("key", "kind", "value", "raw", "state", "priority", "due", "deadline", "id", "put_at")
)
"""Those that no value in line can have."""
NEXT = "next"
"""In documents of version 1 the field with the buffered value behind an item."""
HEADER = """\
# The queues of leasedkeyq. You may edit this file while the program runs: add an item
# (`- key: ...` and `value: ...` are enough), change a priority, remove an item, write comments.
# What waits behind an item of the same key is its `line`, in order; `- value: ...` adds to it.
# Each change is checked; what cannot be read is set aside and the last good version restored.
"""
STYLE = Style(
    item="      - ",
    member="        ",
    words=frozenset(FIELDS) - {"value"},
    times=frozenset(("due", "deadline", "put_at", "buried_at", "ended_at", "until")),
    line=f"        {LINE}:",
)
LINE_STYLE = STYLE._replace(item="          - ", member="            ", line="")

_EMPTY = "    items: []\n"
_queues = msgspec.json.Decoder(dict[str, plain_json.Members])


class QueuesForm(Form):
    """Any number of queues, with values of any kind."""

    fields: tuple[str, ...] = FIELDS
    nests: bool = True

    def __str__(self) -> str:
        return "a document of several queues"

    def start(self) -> Document:
        """As `Form.start`."""
        document = Document(self)
        document.head.fields = dict.fromkeys(COUNTERS, "0") | {"version": str(VERSION)}
        document.head.notes["version"] = (HEADER, "")
        return document

    def open_section(self, document: Document, queue: str) -> Section:
        """As `Form.open_section`."""
        return Section()

    # Fields

    def write(self, section: Section, facts: ItemFacts) -> tuple[dict[str, str], str]:
        """As `Form.write`."""
        payload = facts.payload
        fields = _value(payload.value)
        if payload.kind:
            fields["kind"] = encode(payload.kind)
        if facts.priority:
            fields["priority"] = str(facts.priority)
        fields |= {"id": str(payload.id), "put_at": encode_time(payload.put_at)}
        if facts.due is not None:
            fields["until" if facts.state == "done" else "due"] = encode_time(facts.due)
        if facts.state in ("buried", "done"):
            fields |= _ended(facts)
        elif payload.deadline is not None:
            fields["deadline"] = encode_time(payload.deadline)
        if facts.state == "buffered":
            fields["state"] = encode(facts.state)
        if facts.state not in IN_LINE:
            fields |= _head(facts)
        return fields, ""

    def read(self, section: Section, entry: Entry, where: str, now: float) -> ItemFacts:
        """As `Form.read`."""
        fields = entry.fields
        if entry.in_line:
            return _read_in_line(fields, where, now)
        if NEXT in fields:
            message = f"{NEXT!r} was before version 2: write it as the first value of its {LINE!r}"
            raise NonsenseError(f"{where}: {message}")
        facts = ItemFacts(
            key=decode_key(fields, "key", where),
            state=_state(fields, where),
            payload=_payload(fields, where, now),
            priority=decode_whole(fields, "priority", where, least=-LARGEST),
            attempt=decode_whole(fields, "attempt", where),
        )
        if facts.state == "done":
            if not facts.payload.id:
                raise NonsenseError(f"{where}: a result needs the id of its item")
            facts.due = decode_moment(fields, "until", where)
            facts.ended_at = decode_moment(fields, "ended_at", where)
            if "outcome" in fields:
                facts.outcome = decode_outcome(fields, "outcome", where)
            return facts
        if facts.state == "buried":
            facts.error = decode_text(fields, "error", where) if "error" in fields else ""
            moment = decode_moment(fields, "buried_at", where)
            facts.buried_at = now if moment is None else moment
            facts.holds = decode(fields.get("hold", "false"), bool, "hold", where)
            return facts
        facts.due = decode_moment(fields, "due", where)
        if "place" in fields:
            facts.place = decode_whole(fields, "place", where, least=-LARGEST)
        if "lease" in fields:
            facts.lease = LeaseFacts.decode(fields["lease"], where)
        return facts

    def upgrade(self, section: Section, where: str) -> None:
        """As `Form.upgrade`: a buffered value is the first of a line."""
        if not any(NEXT in entry.fields for entry in section.entries):
            return
        entries: list[Entry] = []
        for entry in section.entries:
            entries.append(entry)
            if NEXT in entry.fields:
                text = entry.fields.pop(NEXT)
                entry.text = ""
                place = f"the item {entry.fields.get('key')} of {where}"
                parts = decode_mapping(text, NEXT, place)
                entries.append(Entry(parts | {"state": encode("buffered")}))
                entries[-1].in_line = True
        section.entries = entries

    def place(self, entry: Entry, *, in_line: bool) -> None:
        """As `Form.place`. Its comments stand where those of such entries do."""
        super().place(entry, in_line=in_line)
        style = LINE_STYLE if in_line else STYLE
        entry.text = ""
        entry.lead = _indented(entry.lead, len(style.item) - len("- "))
        for name, (before, after) in entry.notes.items():
            entry.notes[name] = (_indented(before, len(style.member)), after)

    def arrange(self, entries: list[Entry]) -> list[Entry]:
        """As `Form.arrange`: each line below the head of its key, or below its own first value."""
        lines = by_key(entry for entry in entries if entry.in_line)
        if not lines:
            return entries
        arranged: list[Entry] = []
        for entry in entries:
            if not entry.in_line:
                arranged.append(entry)
                if entry.key in lines and _heads_line(entry):
                    arranged += lines.pop(entry.key)
        for key, values in lines.items():
            self.place(values[0], in_line=False)
            values[0].fields.pop("state", None)
            values[0].fields = {"key": encode(key), **values[0].fields}
            arranged += values
        return arranged

    # YAML

    def render_yaml(self, document: Document) -> str:
        """As `Form.render_yaml`."""
        parts = [render_fields(document.head, STYLE, "", ""), document.lead]
        parts.append("queues:\n" if document.sections else "queues: {}\n")
        for name, section in document.sections.items():
            head = section.head
            if not head.text:
                rest = render_fields(head, STYLE, "    ", "    ", lead=False)
                head.text = f"{head.lead}  {title(name)}:\n{rest}"
            parts.append(head.text)
            parts.append("    items:\n" if section.entries else _EMPTY)
            above: Entry | None = None
            for entry in section.entries:
                if not entry.in_line:
                    above = entry
                    parts.append(render_item(entry, STYLE))
                    continue
                if above is not None:
                    parts.append(_line_title(above))
                    above = None
                parts.append(render_item(entry, LINE_STYLE))
            parts.append(section.tail)
        parts.append(document.tail)
        return "".join(parts)

    def parse_yaml(self, body: str, cache: Cache, read_item: ReadItem | None = None) -> Document:
        """As `Form.parse_yaml`."""
        if "\r" in body or not body.endswith("\n"):
            raise NotPlainYamlError
        document = Document(self)
        head, found, rest = f"\n{body}".partition("\nqueues:\n")
        if not found:
            head, found, rest = f"\n{body}".partition("\nqueues: {}\n")
            if not found or not only_comments(rest):
                raise NotPlainYamlError
            document.tail, rest = rest, ""
        read_fields(f"{head[1:]}\n" if head[1:] else "", STYLE, "", document.head)
        # Comments after the last counter belong to the list of queues.
        document.lead = loose_comments(document.head)
        lines = split_lines(rest)
        _read_queues(document, ItemReader(lines, STYLE, cache, read_item), lines)
        return document

    # YAML that a person wrote, and JSON

    def is_form_of(self, names: set[str]) -> bool:
        """As `Form.is_form_of`."""
        return "queues" in names

    def parse_handwritten(self, top: Any, reader: HandwrittenReader) -> Document:
        """As `Form.parse_handwritten`."""
        document = Document(self)
        for name in top:
            if name == "queues":
                reader.above(top, name, document.add_lead)
                _read_free_queues(top[name], document, reader)
            else:
                reader.field(top, name, document.head)
        return document

    def render_json(self, document: Document) -> str:
        """As `Form.render_json`."""
        fields = document.head.fields
        parts = ["{\n", *(f"{encode(name)}: {text},\n" for name, text in fields.items())]
        parts.append('"queues": {')
        between = "\n"
        for name, section in document.sections.items():
            parts.append(f"{between}{encode(name)}: {{")
            parts.extend(
                f"{encode(field)}: {text}, " for field, text in section.head.fields.items()
            )
            items = plain_json.render_items(section.entries)
            parts.append(f'"items": {plain_json.render_list(items)}}}')
            between = ",\n"
        parts.append("\n},\n" if document.sections else "},\n")
        return "".join(parts)

    def parse_json(self, top: plain_json.Members) -> Document:
        """As `Form.parse_json`."""
        document = Document(self)
        queues = _queues.decode(top.pop("queues", msgspec.Raw(b"{}")))
        document.head.fields = plain_json.read_fields(top)
        for name, members in queues.items():
            section = document.sections[name] = Section()
            items = members.pop("items", msgspec.Raw(b"[]"))
            section.entries = plain_json.read_items_with_lines(items, f"queue {name!r}")
            section.head.fields = plain_json.read_fields(members)
        return document


def _head(facts: ItemFacts) -> dict[str, str]:
    """The fields that an item has and a value in line has not."""
    fields = {"key": encode(facts.key)}
    if facts.attempt:
        fields["attempt"] = str(facts.attempt)
    if facts.payload.history:
        fields["history"] = encode_history(facts.payload.history)
    if facts.payload.progress is not None:
        fields["progress"] = encode_progress(facts.payload.progress)
    if facts.error:
        fields["error"] = encode(facts.error)
    if facts.place is not None:
        fields["place"] = str(facts.place)
    if facts.lease is not None:
        fields["lease"] = facts.lease.encode()
    return fields


def _heads_line(entry: Entry) -> bool:
    """Whether the line of its key waits behind an item: if it is live, or buried and holds it."""
    state = entry.fields.get("state")
    return state != '"done"' and (state != '"buried"' or entry.fields.get("hold") == "true")


def _ended(facts: ItemFacts) -> dict[str, str]:
    """The fields of an item that is buried or done."""
    fields = {"state": encode(facts.state)}
    if facts.state == "buried":
        fields["buried_at"] = encode_time(facts.buried_at)
        if facts.holds:
            fields["hold"] = "true"
        return fields
    if facts.outcome != "completed":
        fields["outcome"] = encode(facts.outcome)
    if facts.ended_at is not None:
        fields["ended_at"] = encode_time(facts.ended_at)
    return fields


def _read_in_line(fields: dict[str, str], where: str, now: float) -> ItemFacts:
    """A value in line; its key is that of the item above, and may be said again."""
    if not NOT_IN_LINE.isdisjoint(fields):
        name = min(NOT_IN_LINE.intersection(fields))
        message = f"a value in line has no {name!r}; only the first value of a key can have it"
        raise NonsenseError(f"{where}: {message}")
    if LINE in fields:
        raise NonsenseError(f"{where}: a value in line has no line of its own")
    if "value" not in fields and "raw" not in fields:
        raise NonsenseError(f"{where}: it has no value; write it as `- value: ...`")
    state = decode_text(fields, "state", where) if "state" in fields else "in_line"
    if state not in IN_LINE:
        raise NonsenseError(f"{where}: no such state in a line: {state!r}")
    return ItemFacts(
        key=decode_key(fields, "key", where) if "key" in fields else "",
        state="buffered" if state == "buffered" else "in_line",
        payload=_payload(fields, where, now),
        priority=decode_whole(fields, "priority", where, least=-LARGEST),
        due=decode_moment(fields, "due", where),
    )


def _line_title(head: Entry) -> str:
    """The line of text above the values in line of an item, with its comments."""
    before, after = head.notes.get(LINE, ("", ""))
    return f"{before}{STYLE.line}{f' {after}' if after else ''}\n"


def _indented(lines: str, columns: int) -> str:
    """Comment lines that begin in another column. Empty lines stay empty."""
    return "".join(
        f"{' ' * columns}{line.lstrip(' ')}" if line.strip() else line
        for line in split_lines(lines)
    )


def _value(value: bytes) -> dict[str, str]:
    """A value as data that one can read, or as Base64 where it is not JSON."""
    try:
        text = readable(value)
        if b"\\u" in value or _same(text, value):
            return {"value": text}
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        pass
    return {"raw": encode(base64.b64encode(value).decode())}


def _same(text: str, value: bytes) -> bool:
    """Whether `text` is valid and says what `value` says, letter by letter but for spaces."""
    msgspec.json.decode(text)
    return msgspec.json.format(text.encode(), indent=-1) == msgspec.json.format(value, indent=-1)


def _state(fields: dict[str, str], where: str) -> StoredState:
    state = decode_text(fields, "state", where) if "state" in fields else ""
    if state == "done":
        return "done"
    if state == "buried":
        return "buried"
    if state not in {"", "available", "scheduled", "in_flight"}:
        raise NonsenseError(f"{where}: no such state: {state!r}")
    if "lease" in fields:
        return "in_flight"
    return "scheduled" if "due" in fields else "available"


def _payload(fields: dict[str, str], where: str, now: float) -> Payload:
    put_at = decode_moment(fields, "put_at", where)
    history: tuple[Attempt, ...] = ()
    if "history" in fields:
        history = decode_history(fields["history"], where)
    return Payload(
        _stored_value(fields, where),
        decode_whole(fields, "id", where),
        now if put_at is None else put_at,
        history,
        decode_text(fields, "kind", where) if "kind" in fields else "",
        decode_moment(fields, "deadline", where),
        decode_progress(fields, where),
    )


def _stored_value(fields: dict[str, str], where: str) -> bytes:
    if "raw" not in fields:
        return msgspec.json.format(fields.get("value", "null").encode(), indent=-1)
    if "value" in fields:
        raise NonsenseError(f"{where}: it has both a value and a raw value")
    try:
        return base64.b64decode(decode_text(fields, "raw", where), validate=True)
    except binascii.Error as error:
        raise NonsenseError(f"{where}: raw is not Base64: {error}") from error


def _read_queues(document: Document, items: ItemReader, lines: list[str]) -> None:
    section: Section | None = None
    comments = ""
    at = 0
    while at < len(lines):
        line = lines[at]
        if is_comment(line):
            comments += line
            at += 1
            continue
        if line.startswith(STYLE.item):
            if section is None or (not section.entries and lines[at - 1] == _EMPTY):
                raise NotPlainYamlError
            at = _read_item(section, items, at, comments)
        elif line.startswith(STYLE.line):
            if section is None:
                raise NotPlainYamlError
            at = _read_line(section, items, lines, at, comments)
        else:
            section, at = _read_title(document, lines, at, comments)
        comments = ""
    document.tail += comments
    items.close()


def _read_item(
    section: Section, items: ItemReader, at: int, comments: str, style: Style = STYLE
) -> int:
    entry, at = items.read(at, comments, style)
    if LINE in entry.fields:
        raise NotPlainYamlError
    entry.in_line = style is LINE_STYLE
    section.entries.append(entry)
    return at


def _read_line(
    section: Section, items: ItemReader, lines: list[str], at: int, comments: str
) -> int:
    """Read the values in line of the item before; return where they end."""
    rest = lines[at][len(STYLE.line) :]
    if rest[0] not in " \n" or not is_comment(rest):
        raise NotPlainYamlError
    if not section.entries or section.entries[-1].in_line:
        raise NotPlainYamlError
    known = len(section.entries)
    after = rest.strip()
    if comments or after:
        section.entries[-1].notes[LINE] = (comments, after)
    comments = ""
    at += 1
    behind = at
    while behind < len(lines):
        if is_comment(lines[behind]):
            comments += lines[behind]
            behind += 1
        elif lines[behind].startswith(LINE_STYLE.item):
            at = behind = _read_item(section, items, behind, comments, LINE_STYLE)
            comments = ""
        else:
            break
    if len(section.entries) == known:
        raise NotPlainYamlError
    # Comments behind the last value are about the next item.
    return at


def _read_title(
    document: Document, lines: list[str], at: int, comments: str
) -> tuple[Section, int]:
    """Read the name of a queue and its fields before the items."""
    line = lines[at]
    if not line.startswith("  ") or line[2] == " ":
        raise NotPlainYamlError
    name = read_title(line[2:-1])
    if name in document.sections:
        raise NonsenseError(f"the queue {name!r} is there twice")
    section = document.sections[name] = Section()
    section.head.lead = comments
    end = at + 1
    while end < len(lines) and not lines[end].startswith("    items:"):
        if not lines[end].startswith("    ") and not is_comment(lines[end]):
            raise NotPlainYamlError
        end += 1
    if end == len(lines) or lines[end] not in {_EMPTY, "    items:\n"}:
        raise NotPlainYamlError
    read_fields("".join(lines[at + 1 : end]), STYLE, "    ", section.head)
    if loose_comments(section.head):
        raise NotPlainYamlError
    return section, end + 1


def _read_free_queues(queues: Any, document: Document, reader: HandwrittenReader) -> None:
    if queues is None:
        return
    check_mapping(queues, "queues")
    for name, members in queues.items():
        queue = str(name) if isinstance(name, int) and not isinstance(name, bool) else name
        if not isinstance(queue, str):
            raise NonsenseError(f"the name of a queue must be text: {name!r}")
        section = document.sections[queue] = Section()
        reader.above(queues, name, section.head.add_lead)
        if isinstance(members, list) or members is None:
            reader.items(members, section, f"queue {queue!r}", lines=True)
            continue
        check_mapping(members, f"the queue {queue!r}")
        for field in members:
            if field == "items":
                reader.above(members, field, section.head.add_lead)
                reader.items(members[field], section, f"queue {queue!r}", lines=True)
            else:
                reader.field(members, field, section.head)
