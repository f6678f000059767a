"""YAML that a person wrote, in whatever style: read it once, and keep the comments.

The file store writes YAML of a plain form and reads that without help, see
`plain_yaml`. Anything else is read into a tree that knows on which line each
thing stands, see `yaml_tree`, so that every comment can be kept with what it is
about when the document is next written in the plain form. Some YAML takes ruamel.yaml, which comes
with ``pip install 'leasedkeyq[yaml]'``.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from leasedkeyq.engines.file.document.document import (
    LINE,
    Document,
    Entry,
    Form,
    Note,
    NotPlainYamlError,
    Section,
    form_of,
)
from leasedkeyq.engines.file.document.json_fields import (
    NonsenseError,
    check_list,
    check_mapping,
    encode,
)
from leasedkeyq.engines.file.document.yaml_events import read_rest, read_whole
from leasedkeyq.engines.file.document.yaml_tree import (
    DEPTH,
    BlockReader,
    CutError,
    Tree,
    UnknownYamlError,
    YamlList,
    YamlMapping,
    YamlPlace,
)
from leasedkeyq.errors import StoreError

Anchor = tuple[int, int, Note, Entry | None, str]
"""A line, a column, a taker of the comments before it, and for a field its entry and name."""

OURS = "# the store's own notes about the items"
"""How a comment begins that we write ourselves."""


def parse_handwritten(body: str, forms: Sequence[Form]) -> Document:
    """Read any YAML document that is of one of these forms; if of none, of the first.

    Raises:
        NonsenseError: It is not YAML, or not a document.
        StoreError: ruamel.yaml is not installed.
    """
    body = body.replace("\r\n", "\n")
    tree = _read(body)
    top = tree.top
    if top is None:
        document = forms[0].parse_handwritten({}, _Reader(tree))
        document.tail = body if body.endswith("\n") or not body else f"{body}\n"
        return document
    check_mapping(top, "the document")
    reader = _Reader(tree)
    document = form_of(set(top), forms).parse_handwritten(top, reader)
    document.tail += reader.keep_comments()
    return document


def read_item(block: str) -> Entry:
    """Read the lines of one item: see `document.ReadItem`."""
    section = Section()
    try:
        reader = _Reader(_read(f"items:\n{block}"))
        reader.items(reader.tree.top["items"], section, "items")
    except (NonsenseError, StoreError) as error:
        # Reading the whole document tells what is wrong, and where.
        raise NotPlainYamlError from error
    # The values of aliases are counted over the whole document, and a line has entries of its own.
    if len(section.entries) != 1 or reader.tree.aliased or reader.keep_comments().strip():
        raise NotPlainYamlError
    if LINE in section.entries[0].fields:
        raise NotPlainYamlError
    return section.entries[0]


def _read(body: str) -> Tree:
    try:
        return BlockReader(body, read_rest).read()
    except (UnknownYamlError, CutError):
        return read_whole(body)


class _Reader:
    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.anchors: list[Anchor] = []
        self.short: set[int] = set()
        """The lines on which a whole field stands."""

    def above(self, mapping: Any, name: Any, note: Note) -> None:
        """As `HandwrittenReader.above`."""
        place = _place(mapping, name)
        if place is not None:
            self.anchors.append((place.line, place.column, note, None, ""))

    def items(
        self,
        items: Any,
        section: Section,
        what: str,
        bare: Callable[[object], dict[str, str]] | None = None,
        *,
        lines: bool = False,
    ) -> None:
        """As `HandwrittenReader.items`."""
        if items is None:
            return
        check_list(items, f"the items of {what}")
        for number, item in enumerate(items, 1):
            entry = Entry()
            section.entries.append(entry)
            if isinstance(items, YamlList):
                place = items.places[number - 1]
                self.anchors.append((place.line, place.column, entry.add_lead, None, ""))
            if bare is not None and isinstance(item, str | int | float):
                entry.fields = bare(plain(item))
                continue
            check_mapping(item, f"item {number} of {what}")
            for field in item:
                if lines and field == LINE:
                    self.above(item, field, entry.add_line_note)
                    self._line(item[field], section, f"the line of {item.get('key')!r} in {what}")
                else:
                    self.field(item, field, entry)

    def _line(self, values: Any, section: Section, what: str) -> None:
        """Read the values in line of the item that was read last."""
        if values is None:
            return
        check_list(values, f"the values in {what}")
        for number, value in enumerate(values, 1):
            entry = Entry()
            entry.in_line = True
            section.entries.append(entry)
            if isinstance(values, YamlList):
                place = values.places[number - 1]
                self.anchors.append((place.line, place.column, entry.add_lead, None, ""))
            check_mapping(value, f"value {number} in {what}")
            for field in value:
                self.field(value, field, entry)

    def plain(self, value: Any) -> Any:
        """As `HandwrittenReader.plain`."""
        return plain(value)

    def field(self, mapping: Any, name: Any, entry: Entry) -> None:
        """As `HandwrittenReader.field`."""
        if not isinstance(name, str):
            raise NonsenseError(f"the name of a field must be text: {name!r}")
        text = encode(plain(mapping[name]))
        entry.fields[name] = msgspec.json.format(text.encode(), indent=0).decode()

        def before(lines: str) -> None:
            old, after = entry.notes.get(name, ("", ""))
            entry.notes[name] = (old + lines, after)

        place = _place(mapping, name)
        if place is not None:
            self.anchors.append((place.line, place.column, before, entry, name))
            if place.line == place.last_line:
                self.short.add(place.line)

    def keep_comments(self) -> str:
        """Give each comment to the entry or field that it is about; return those at the end."""
        anchors = sorted(self.anchors, key=lambda anchor: anchor[:2])
        behind = {comment.line: comment.text for comment in self.tree.behind}
        lines = self.tree.lines
        tail = ""
        after = 0
        for number, line in enumerate(lines):
            while after < len(anchors) and anchors[after][0] <= number:
                after += 1
            if number in behind:
                self._keep_behind(anchors[:after][-2:], number, behind[number])
                continue
            stripped = line.strip()
            if (stripped and not stripped.startswith("#")) or number in self.tree.covered:
                continue
            if not stripped and number == len(lines) - 1:
                continue
            if after and stripped:
                _, column, note, entry, _ = anchors[after - 1]
                if entry is not None and len(line) - len(line.lstrip()) > column:
                    note(f"{line}\n")
                    continue
            if after < len(anchors):
                anchors[after][2](f"{line}\n")
            else:
                tail += f"{line}\n"
        return tail

    def _keep_behind(self, anchors: list[Anchor], number: int, text: str) -> None:
        """Keep a comment that stands behind something."""
        if text.startswith(OURS) or not anchors:
            return
        line, column, note, entry, name = anchors[-1]
        # Of several fields on one line, none has the comment to itself.
        several = [anchor for anchor in anchors if anchor[0] == line and anchor[3] is not None]
        if entry is not None and line == number and line in self.short and len(several) == 1:
            entry.notes[name] = (entry.notes.get(name, ("", ""))[0], text)
        else:
            # It is about a part of a value that is written on one line, or about a name.
            note(f"{' ' * column}{text}\n")


def _place(mapping: Any, name: Any) -> YamlPlace | None:
    return mapping.places.get(name) if isinstance(mapping, YamlMapping) else None


def plain(value: Any, depth: int = 0) -> Any:
    """A value of a tree as the plain data that JSON has."""
    if depth > 2 * DEPTH:
        raise NonsenseError("a value is nested too deeply, or contains itself")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise NonsenseError(f"a value cannot be {value}")
        return float(value)
    if isinstance(value, dict):
        members = {_name(name): plain(inner, depth + 1) for name, inner in value.items()}  # pyright: ignore[reportUnknownVariableType]
        if len(members) < len(value):  # pyright: ignore[reportUnknownArgumentType]
            raise NonsenseError("a value has the same name twice, as a number and as text")
        return members
    if isinstance(value, list):
        return [plain(inner, depth + 1) for inner in value]  # pyright: ignore[reportUnknownVariableType]
    raise NonsenseError(f"a value cannot be a {type(value).__name__}")


def _name(name: Any) -> str:
    if isinstance(name, str | int) and not isinstance(name, bool):
        return _text(str(name))
    raise NonsenseError(f"a name in a value must be text: {name!r}")


def _text(text: str) -> str:
    """A text in which escapes for the two halves of a character, as JSON has them, are joined."""
    try:
        text.encode()
    except UnicodeEncodeError:
        try:
            return text.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError as error:
            raise NonsenseError(f"a text has half a character: {text!r}") from error
    return text
