"""Any YAML, read by ruamel.yaml, into a tree that knows where everything stands.

The tree is built from the events of the parser, one at a time: so a text that is nested without
end, or that a few aliases would make into millions of values, is refused before that is built.
"""

from collections import defaultdict
from importlib import import_module
from typing import Any

from leasedkeyq.engines.file.document.json_fields import NonsenseError
from leasedkeyq.engines.file.document.yaml_tree import (
    DEPTH,
    Comment,
    Cut,
    CutError,
    Tree,
    YamlList,
    YamlMapping,
    YamlPlace,
)
from leasedkeyq.errors import StoreError

ALIASED = 100_000
"""How many values all aliases of a document may stand for."""
LONG = 50
"""A text counts as one value more for each so many characters."""

_CORE = "tag:yaml.org,2002:"
_NUMBERS = {f"{_CORE}int": "construct_yaml_int", f"{_CORE}float": "construct_yaml_float"}
_TEXTS = frozenset(f"{_CORE}{kind}" for kind in ("str", "timestamp", "value"))
_MERGE = f"{_CORE}merge"
_PLAIN_DATA = frozenset((None, "!", f"{_CORE}map", f"{_CORE}seq"))


def read_whole(text: str) -> Tree:
    """Read any YAML.

    Raises:
        NonsenseError: It is not YAML, or too much when its aliases are written out.
        StoreError: ruamel.yaml is not installed.
    """
    tree = Tree(text.split("\n"))
    tree.top = _Builder(tree, 0, 0, len(tree.lines)).build(text)
    return tree


def read_rest(tree: Tree, cut: Cut) -> Any:
    """Read the value in some lines of a tree: see `yaml_tree.ReadRest`."""
    first, *others = tree.lines[cut.first : cut.stop]
    # It must be what it can be behind a name or a dash, and its columns stay what they are.
    lead = f"{' ' * max(cut.indent, 0)}{cut.behind}".ljust(cut.column)
    # Each line has its end, but for the last one of the document.
    end = "" if cut.stop == len(tree.lines) else "\n"
    text = "\n".join((lead + first[cut.column :], *others)) + end
    try:
        value = _Builder(tree, cut.first, cut.column, cut.stop).build(text)
        if not cut.behind:
            return value
        (inner,) = value.values() if isinstance(value, YamlMapping) else value
    except (NonsenseError, ValueError) as error:
        raise CutError from error
    return inner


class _Open:
    """A mapping or list whose end has not come yet."""

    __slots__ = ("anchor", "column", "line", "merged", "name", "named", "size", "value")

    def __init__(self, value: YamlMapping | YamlList, anchor: str | None, line: int, column: int):
        self.value = value
        self.anchor = anchor
        self.line = line
        self.column = column
        self.size = 1
        self.name: Any = None
        self.named: tuple[int, int] | None = None
        """Where the name stands that waits for its value."""
        self.merged: list[tuple[Any, YamlPlace]] = []


class _Builder:
    """Builds the value in some lines of a tree."""

    def __init__(self, tree: Tree, line: int, column: int, stop: int) -> None:
        self._tree = tree
        self._first = line
        self._column = column
        self._stop = stop
        self._stack: list[_Open] = []
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._last_line = line
        self._top: list[Any] = []
        self._spans: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        """The columns of each line that belong to words and texts."""

    def build(self, text: str) -> Any:
        """Read the text; note its comments in the tree."""
        main, nodes = _library()
        self._yaml = main.YAML(typ="safe", pure=True)
        self._node = nodes.ScalarNode
        try:
            for event in self._yaml.parse(text):
                self._take(event)
        except (main.YAMLError, ValueError, RecursionError, AttributeError, TypeError) as error:
            message = " ".join(str(error).split())
            raise NonsenseError(f"not YAML: {message}") from error
        except NotImplementedError as error:
            raise NonsenseError(f"not YAML: {error}") from error
        self._find_comments()
        return self._top[0] if self._top else None

    def _take(self, event: Any) -> None:
        kind = type(event).__name__
        line = event.start_mark.line + self._first
        column = event.start_mark.column
        if kind == "ScalarEvent":
            last = self._cover(event, line, column)
            value = self._scalar(event, line)
            size = 1 + len(event.value) // LONG
            if event.anchor:
                self._anchors[event.anchor] = (value, size)
            self._add(value, size, YamlPlace(line, column, last))
        elif kind in ("MappingStartEvent", "SequenceStartEvent"):
            if len(self._stack) >= DEPTH:
                raise NonsenseError(f"line {line + 1}: a value is nested too deeply")
            tag = _tag(event)
            if tag not in _PLAIN_DATA:
                raise NonsenseError(f"line {line + 1}: a value cannot be a {tag}")
            made = YamlMapping() if kind == "MappingStartEvent" else YamlList()
            self._stack.append(_Open(made, event.anchor, line, column))
        elif kind in ("MappingEndEvent", "SequenceEndEvent"):
            self._close(line)
        elif kind == "AliasEvent":
            self._alias(event.anchor, line, column)
        elif kind == "DocumentStartEvent" and self._top:
            raise NonsenseError(f"line {line + 1}: a second document begins")

    def _scalar(self, event: Any, line: int) -> Any:
        """The value of a word or text, as YAML 1.2 has it. Times are texts."""
        tag = _tag(event)
        if tag is None or tag == "!":
            found = self._yaml.resolver.resolve(self._node, event.value, event.implicit)
            tag = str(found)
        if tag in _TEXTS:
            return event.value
        if tag == f"{_CORE}null":
            return None
        if tag == f"{_CORE}bool":
            return event.value.lower() in ("true", "yes", "on", "y")
        if tag == _MERGE:
            return _MERGED
        if tag in _NUMBERS:
            node = self._node(tag, event.value, event.start_mark, event.end_mark)
            return getattr(self._yaml.constructor, _NUMBERS[tag])(node)
        raise NonsenseError(f"line {line + 1}: a value cannot be a {tag}")

    def _close(self, line: int) -> None:
        done = self._stack.pop()
        if done.anchor:
            self._anchors[done.anchor] = (done.value, done.size)
        if isinstance(done.value, YamlMapping):
            for value, place in done.merged:
                _merge(done.value, value, place)
        # A bracket ends on a line of its own; a block ends with the last word in it.
        text = self._tree.lines[line] if line < len(self._tree.lines) else ""
        if line > self._last_line and text.lstrip(" ")[:1] in ("]", "}"):
            self._last_line = line
        self._add(done.value, done.size, YamlPlace(done.line, done.column, self._last_line))

    def _alias(self, name: str, line: int, column: int) -> None:
        if name not in self._anchors:
            held = any(opened.anchor == name for opened in self._stack)
            what = "contains itself" if held else "is not there"
            raise NonsenseError(f"line {line + 1}: the value of *{name} {what}")
        value, size = self._anchors[name]
        self._tree.aliased += size
        if self._tree.aliased > ALIASED:
            raise NonsenseError(f"line {line + 1}: aliases stand for more than {ALIASED} values")
        self._add(value, size, YamlPlace(line, column, line))

    def _add(self, value: Any, size: int, place: YamlPlace) -> None:
        self._last_line = max(self._last_line, place.last_line)
        if not self._stack:
            self._top.append(value)
            return
        parent = self._stack[-1]
        parent.size += size
        if isinstance(parent.value, YamlList):
            parent.value.add(value, place)
        elif parent.named is None:
            if isinstance(value, YamlMapping | YamlList):
                raise NonsenseError(f"line {place.line + 1}: a name must be text")
            parent.name, parent.named = value, place[:2]
        else:
            place = YamlPlace(*parent.named, self._last_line)
            if parent.name is _MERGED:
                parent.merged.append((value, place))
            else:
                parent.value.add(parent.name, value, place)
            parent.name = parent.named = None

    # Comments

    def _cover(self, event: Any, line: int, column: int) -> int:
        """Note where a word or text stands; return its last line."""
        end: int = event.end_mark.line + self._first
        end_column: int = event.end_mark.column
        block = event.style in ("|", ">")
        if block:
            # What follows on the line of the bar can be a comment.
            self._spans[line].append((column, column + 1))
            line, column = line + 1, 0
        if end > line and not end_column:
            end, end_column = end - 1, len(self._tree.lines[end - 1])
        for number in range(line, end + 1):
            begin = column if number == line else 0
            stop = end_column if number == end else len(self._tree.lines[number])
            self._spans[number].append((begin, stop))
            if number > line or block:
                self._tree.covered.add(number)
        return max(line, end)

    def _find_comments(self) -> None:
        for number in range(self._first, self._stop):
            text = self._tree.lines[number]
            at = text.find("#", self._column if number == self._first else 0)
            while at >= 0:
                if (not at or text[at - 1] in " \t") and not any(
                    begin <= at < end for begin, end in self._spans.get(number, ())
                ):
                    if text[:at].strip():
                        self._tree.behind.append(Comment(number, text[at:].rstrip()))
                    break
                at = text.find("#", at + 1)


class _Merged:
    """Stands for the name ``<<``."""


_MERGED = _Merged()


def _tag(event: Any) -> str | None:
    return None if event.tag is None else str(event.tag)


def _merge(mapping: YamlMapping, value: Any, place: YamlPlace) -> None:
    """Add the names of other mappings that this one does not have."""
    others: list[Any] = value if isinstance(value, YamlList) else [value]
    for other in others:
        if not isinstance(other, YamlMapping):
            raise NonsenseError(f"line {place.line + 1}: only mappings can be merged")
        for name, inner in other.items():
            if name not in mapping:
                mapping.add(name, inner, place)


def _library() -> tuple[Any, Any]:
    try:
        return import_module("ruamel.yaml"), import_module("ruamel.yaml.nodes")
    except ImportError as error:
        raise StoreError(
            "this YAML is not in the plain form that leasedkeyq writes, and reading it takes "
            "ruamel.yaml: pip install 'leasedkeyq[yaml]'"
        ) from error
