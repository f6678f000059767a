"""YAML that a person wrote, in whatever style: read it once, and keep the comments.

The file store writes YAML of a plain form and reads that without help, see
`leasedkeyq.stores.plain_yaml`. For anything else there is ruamel.yaml, which comes with
``pip install 'leasedkeyq[yaml]'``. It tells what the document says and on which line each thing
stands, so that every comment can be kept with what it is about when the document is next written
in the plain form.
"""

import math
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import msgspec

from leasedkeyq.errors import StoreError
from leasedkeyq.stores.document import Document, Entry, Form, Note, Section, form_of
from leasedkeyq.stores.fields import NonsenseError, check_list, check_mapping, encode

Anchor = tuple[int, int, Note, Any]
"""A line, a column, who takes the comments before it, and the value that starts there."""


def parse_freeform(body: str, forms: Sequence[Form]) -> Document:
    """Read any YAML document that is of one of these forms; if of none, of the first.

    Raises:
        NonsenseError: It is not YAML, or not a document.
        StoreError: ruamel.yaml is not installed.
    """
    body = body.replace("\r\n", "\n")
    load = _loader()
    top = load(body)
    if top is None:
        document = forms[0].parse_free({}, _Reader("", load))
        document.tail = body if body.endswith("\n") or not body else f"{body}\n"
        return document
    check_mapping(top, "the document")
    reader = _Reader(body, load)
    document = form_of(set(top), forms).parse_free(top, reader)
    reader.keep_comments(document)
    return document


def _loader() -> Callable[[str], Any]:
    try:
        main = import_module("ruamel.yaml")
        constructor = import_module("ruamel.yaml.constructor")
    except ImportError as error:
        raise StoreError(
            "this YAML is not in the plain form that leasedkeyq writes, and reading it takes "
            "ruamel.yaml: pip install 'leasedkeyq[yaml]'"
        ) from error

    class Constructor(constructor.RoundTripConstructor):  # type: ignore[name-defined,misc]
        """Leaves times as the text that they are."""

    def as_text(self: Any, node: Any) -> Any:
        return self.construct_scalar(node)

    Constructor.add_constructor("tag:yaml.org,2002:timestamp", as_text)

    def load(text: str) -> Any:
        yaml = main.YAML(typ="rt", pure=True)
        yaml.Constructor = Constructor
        try:
            return yaml.load(text)
        except (main.YAMLError, ValueError, RecursionError, AttributeError, TypeError) as error:
            message = " ".join(str(error).split())
            raise NonsenseError(f"not YAML: {message}") from error
        except NotImplementedError as error:
            raise NonsenseError(f"not YAML: {error}") from error

    return load


class _Reader:
    def __init__(self, body: str, load: Callable[[str], Any]) -> None:
        self.lines = body.split("\n")
        self.load = load
        self.anchors: list[Anchor] = []

    def above(self, mapping: Any, name: Any, note: Note) -> None:
        """As `FreeReader.above`."""
        self._anchor(mapping, name, note, None)

    def items(
        self,
        items: Any,
        section: Section,
        what: str,
        bare: Callable[[object], dict[str, str]] | None = None,
    ) -> None:
        """As `FreeReader.items`."""
        if items is None:
            return
        check_list(items, f"the items of {what}")
        for number, item in enumerate(items, 1):
            entry = Entry()
            section.entries.append(entry)
            position = getattr(items, "lc", None)
            if position is not None and position.data and number - 1 in position.data:
                line, column = position.data[number - 1][:2]
                self.anchors.append((line, column, entry.add_lead, None))
            if bare is not None and isinstance(item, str | int | float):
                entry.fields = bare(plain(item))
                continue
            check_mapping(item, f"item {number} of {what}")
            for field in item:
                self.field(item, field, entry)

    def plain(self, value: Any) -> Any:
        """As `FreeReader.plain`."""
        return plain(value)

    def field(self, mapping: Any, name: Any, entry: Entry) -> None:
        """As `FreeReader.field`."""
        if not isinstance(name, str):
            raise NonsenseError(f"the name of a field must be text: {name!r}")
        value = plain(mapping[name])
        text = encode(value)
        entry.fields[name] = msgspec.json.format(text.encode(), indent=0).decode()

        def before(lines: str) -> None:
            old, after = entry.notes.get(name, ("", ""))
            entry.notes[name] = (old + lines, after)

        line = self._anchor(mapping, name, before, mapping[name])
        if line is not None and (after := self._rest(line, name, value)):
            entry.notes[name] = ("", after)

    def _anchor(self, mapping: Any, name: Any, note: Note, value: Any) -> int | None:
        position = getattr(mapping, "lc", None)
        if position is None or not position.data or name not in position.data:
            return None
        line, column = position.data[name][:2]
        self.anchors.append((line, column, note, value))
        return int(line)

    def _rest(self, line: int, name: str, value: object) -> str:
        """The comment at the end of a field's line, where the whole field is on that line."""
        text = self.lines[line]
        at = text.find(" #")
        while at > 0:
            head = text[:at].strip().removeprefix("- ").strip()
            try:
                if plain(self.load(head)) == {name: value}:
                    return text[at + 1 :].rstrip()
            except NonsenseError:
                pass
            at = text.find(" #", at + 1)
        return ""

    def keep_comments(self, document: Document) -> None:
        """Give each comment line to what it stands before, or in."""
        anchors = sorted(self.anchors, key=lambda anchor: anchor[:2])
        after = 0
        for number, line in enumerate(self.lines):
            while after < len(anchors) and anchors[after][0] <= number:
                after += 1
            stripped = line.strip()
            if stripped and not stripped.startswith("#"):
                continue
            if not stripped and number == len(self.lines) - 1:
                continue
            if after and stripped:
                _, column, note, value = anchors[after - 1]
                if value is not None and len(line) - len(line.lstrip()) > column:
                    if not _has_block_text(value):
                        note(f"{line}\n")
                    continue
            if after < len(anchors):
                anchors[after][2](f"{line}\n")
            else:
                document.tail += f"{line}\n"


def _has_block_text(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_block_text, value.values()))  # pyright: ignore[reportUnknownArgumentType]
    if isinstance(value, list):
        return any(map(_has_block_text, value))  # pyright: ignore[reportUnknownArgumentType]
    return isinstance(value, str) and "\n" in value


def plain(value: Any, depth: int = 0) -> Any:
    """What ruamel made, as the plain data that JSON has."""
    if depth > 200:  # noqa: PLR2004
        raise NonsenseError("a value is nested too deeply, or contains itself")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise NonsenseError(f"a value cannot be {value}")
        return float(value)
    if isinstance(value, dict):
        return {_name(name): plain(inner, depth + 1) for name, inner in value.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, list):
        return [plain(inner, depth + 1) for inner in value]  # pyright: ignore[reportUnknownVariableType]
    if type(value).__name__ == "ScalarBoolean":
        return bool(value)
    raise NonsenseError(f"a value cannot be a {type(value).__name__}")


def _name(name: Any) -> str:
    if isinstance(name, str | int) and not isinstance(name, bool):
        return str(name)
    raise NonsenseError(f"a name in a value must be text: {name!r}")
