"""A YAML document as a tree that knows where everything stands, comments included.

`BlockReader` reads the YAML that people and programs mostly write: mappings and lists by
indentation, and on one line plain words, numbers, quoted texts and values in braces. It is some ten
times as fast as a complete reader, and needs no library. YAML that it does not know it leaves to a
complete one, see `yaml_events`: just the value that is unknown, where that can be
cut out.
"""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from leasedkeyq.engines.file.document.json_fields import NonsenseError, check_names_once

DEPTH = 100
"""How deeply values can be nested."""


class YamlPlace(NamedTuple):
    """Where a name and its value stand; lines count from 0."""

    line: int
    column: int
    last_line: int


class YamlMapping(dict[Any, Any]):
    """A mapping, with the places of its names."""

    __slots__ = ("places",)

    def __init__(self) -> None:
        super().__init__()
        self.places: dict[Any, YamlPlace] = {}

    def add(self, name: Any, value: Any, place: YamlPlace) -> None:
        """Add a name that is not there yet."""
        if name in self:
            message = f"the name {name!r} is there twice, in lines {self.places[name].line + 1} and"
            raise NonsenseError(f"{message} {place.line + 1}")
        self[name] = value
        self.places[name] = place


class YamlList(list[Any]):
    """A list, with the places of its members."""

    __slots__ = ("places",)

    def __init__(self) -> None:
        super().__init__()
        self.places: list[YamlPlace] = []

    def add(self, value: Any, place: YamlPlace) -> None:
        """Add a member."""
        self.append(value)
        self.places.append(place)


class Comment(NamedTuple):
    """A comment behind something on a line."""

    line: int
    text: str


class Tree:
    """The values of a YAML text, its lines and its comments.

    Attributes:
        lines: The lines of the text.
        top: The document; None where there is nothing but comments.
        behind: The comments that stand behind something.
        covered: The lines that look like a comment or an empty line, and are a part of a text.
        aliased: How many values its aliases stand for.
    """

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines
        self.top: Any = None
        self.behind: list[Comment] = []
        self.covered: set[int] = set()
        self.aliased = 0


class UnknownYamlError(Exception):
    """The YAML is more than this reader knows. It may be good YAML all the same."""


class CutError(Exception):
    """A value cannot be read by itself: it is no YAML, or needs another part of the text."""


class Cut(NamedTuple):
    """The lines of a value that is left to the complete reader."""

    first: int
    stop: int
    column: int
    """Where it begins in the first line."""
    indent: int
    """Where the name or dash begins before which it stands."""
    behind: str
    """What it stands behind: ``k:`` for a name, ``-``, or nothing."""


ReadRest = Callable[[Tree, Cut], Any]
"""Reads the value in some lines of a tree. Raises `CutError` where it cannot."""

Token = tuple[int, int, str]
"""A line that is not empty: its number, its indent, and its text."""

_KEY = re.compile(
    r"""("(?:[^"\\]|\\["\\/bfnrt])*"|'(?:[^']|'')*'|[A-Za-z_][\w./@+-]*(?:[ ][\w./@+-]+)*)"""
    r"[ ]*:(?:[ ]+|$)"
)
_DOUBLE = re.compile(r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u(?![dD][89a-fA-F])[0-9a-fA-F]{4}))*"')
_SINGLE = re.compile(r"'(?:[^']|'')*'")
_PLAIN_IN_FLOW = re.compile(r"[A-Za-z0-9_./+-][\w./@+-]*(?:[ ]+[\w./@+-]+)*")
_COMMENT = re.compile(r"[ ]+#")
_STRANGE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
"""Line ends that only some readers take for such, and what may not stand in YAML."""
_WHOLE = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")
_DECIMAL = re.compile(r"-?(?:0|[1-9][0-9]*)\.[0-9]+")
_NUMBER = re.compile(
    r"[-+]?(?:0b[01_]+|0o?[0-7_]+|[0-9_]+|0x[0-9a-fA-F_]+"
    r"|[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|[0-9][0-9_]*[eE][-+]?[0-9]+"
    r"|\.[0-9_]+(?:[eE][-+]?[0-9]+)?|\.(?:inf|Inf|INF|nan|NaN|NAN))"
)
"""Numbers in all ways of writing them. An id that begins with a digit is none."""
_WORDS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_NOT_FIRST = frozenset("-?:,[]{}#&*!|>'\"%@`=<")


class BlockReader:
    """Reads a text into a tree; `read_rest` reads what this reader does not know.

    Raises:
        UnknownYamlError: The text as a whole is more than this reader knows.
        CutError: A part of it cannot be read by itself.
        NonsenseError: A name is there twice, or values are nested too deeply.
    """

    def __init__(self, text: str, read_rest: ReadRest) -> None:
        if _STRANGE.search(text):
            raise UnknownYamlError
        self.tree = Tree(text.split("\n"))
        self._rest = read_rest
        self._tokens = self._tokenize()
        if self._tokens and self._tokens[0][2] == "---":
            del self._tokens[0]
        self._behind = self.tree.behind

    def read(self) -> Tree:
        """Read the text."""
        if self._tokens:
            first = self._tokens[0][1]
            value, at = self._block(0, first, 0)
            if at < len(self._tokens) or not isinstance(value, YamlMapping):
                raise UnknownYamlError
            self.tree.top = value
        return self.tree

    def _tokenize(self) -> list[Token]:
        tokens: list[Token] = []
        for number, line in enumerate(self.tree.lines):
            content = line.lstrip(" ")
            if not content or content[0] == "#":
                continue
            if content[0] == "\t":
                raise UnknownYamlError
            tokens.append((number, len(line) - len(content), content.rstrip(" ")))
        return tokens

    def _indent(self, at: int) -> int:
        return self._tokens[at][1] if at < len(self._tokens) else -1

    def _last_line(self, at: int) -> int:
        """The line of the last token before one."""
        return self._tokens[at - 1][0]

    def _block(self, at: int, indent: int, depth: int) -> tuple[Any, int]:
        """Read the mapping or list that begins with a token; return it and where it ends."""
        if depth > DEPTH:
            raise NonsenseError("a value is nested too deeply")
        if self._begins_list(at):
            return self._list(at, indent, depth)
        return self._mapping(at, indent, depth)

    def _mapping(self, at: int, indent: int, depth: int) -> tuple[YamlMapping, int]:
        mapping = YamlMapping()
        tokens = self._tokens
        while at < len(tokens) and tokens[at][1] == indent:
            line, _, content = tokens[at]
            found = _KEY.match(content)
            if found is None or "\t" in content:
                raise UnknownYamlError
            name = _scalar(found[1])
            begin = found.end()
            value, at = self._value(at, indent + begin, content[begin:], indent, depth)
            mapping.add(name, value, YamlPlace(line, indent, self._last_line(at)))
        if self._indent(at) > indent:
            raise UnknownYamlError
        return mapping, at

    def _list(self, at: int, indent: int, depth: int) -> tuple[YamlList, int]:
        listing = YamlList()
        tokens = self._tokens
        while at < len(tokens) and tokens[at][1] == indent:
            if not self._begins_list(at):
                break
            line, _, content = tokens[at]
            if "\t" in content:
                raise UnknownYamlError
            rest = content[1:].lstrip(" ")
            column = indent + len(content) - len(rest)
            if rest and (_KEY.match(rest) or rest[:2] == "- "):
                # What stands behind the dash is a block whose first line begins there.
                tokens[at] = (line, column, rest)
                value, at = self._inner_block(at, column, indent, depth)
            else:
                value, at = self._value(at, column, rest, indent, depth, dash=True)
            listing.add(value, YamlPlace(line, indent, self._last_line(at)))
        if self._indent(at) > indent:
            raise UnknownYamlError
        return listing, at

    def _value(
        self, at: int, column: int, text: str, indent: int, depth: int, *, dash: bool = False
    ) -> tuple[Any, int]:
        """Read the value behind a name or a dash, in a token or in the lines below it."""
        line = self._tokens[at][0]
        if not text or text[0] == "#":
            if text:
                self._behind.append(Comment(line, text))
            below = self._indent(at + 1)
            # A list below a name needs no indent.
            dashes = below == indent and not dash and self._begins_list(at + 1)
            if below > indent or dashes:
                return self._inner_block(at + 1, below, indent, depth, dashes=dashes)
            return None, at + 1
        behind = "-" if dash else "k:"
        begin = at
        if self._indent(at + 1) > indent:
            at, text = self._joined(at, text, indent)
        try:
            value, end = _read_value(text, 0, depth)
            if end < len(text):
                found = _COMMENT.match(text, end)
                if found is None:
                    return self._unknown(begin, column, indent, behind)
                self._behind.append(Comment(line, text[found.end() - 1 :]))
        except UnknownYamlError:
            return self._unknown(begin, column, indent, behind)
        return value, at + 1

    def _joined(self, at: int, text: str, indent: int) -> tuple[int, str]:
        """The last token of a value on several lines, and the value as if it stood on one."""
        parts = [text]
        while self._indent(at + 1) > indent:
            at += 1
            line, _, content = self._tokens[at]
            if line != self._tokens[at - 1][0] + 1:
                return at, ""
            parts.append(content)
        joined = " ".join(parts)
        return at, "" if "#" in joined or "\t" in joined else joined

    def _inner_block(
        self, at: int, below: int, indent: int, depth: int, *, dashes: bool = False
    ) -> tuple[Any, int]:
        known = len(self._behind)
        line, column, content = self._tokens[at]
        try:
            value, end = self._block(at, below, depth + 1)
            if self._indent(end) <= indent:
                return value, end
        except UnknownYamlError:
            pass
        del self._behind[known:]
        self._tokens[at] = (line, column, content)
        return self._unknown(at, below, indent, dashes=dashes)

    def _begins_list(self, at: int) -> bool:
        content = self._tokens[at][2]
        return content[0] == "-" and content[1:2] in ("", " ")

    def _unknown(
        self, at: int, column: int, indent: int, behind: str = "", *, dashes: bool = False
    ) -> tuple[Any, int]:
        """Leave a value to the complete reader: all lines that are indented more."""
        end = at + 1
        while self._indent(end) > indent or (
            dashes and self._indent(end) == indent and self._begins_list(end)
        ):
            end += 1
        stop = self._tokens[end][0] if end < len(self._tokens) else len(self.tree.lines)
        cut = Cut(self._tokens[at][0], stop, column, indent, behind)
        return self._rest(self.tree, cut), end


def _read_value(text: str, at: int, depth: int) -> tuple[Any, int]:
    """Read a value on one line; return it and where it ends."""
    first = text[at : at + 1]
    if not first:
        raise UnknownYamlError
    if first in "\"'":
        found = (_DOUBLE if first == '"' else _SINGLE).match(text, at)
        if found is None:
            raise UnknownYamlError
        return _scalar(found[0]), found.end()
    if first in ("[", "{"):
        try:
            # Most of it is JSON, and then this is quick.
            value = msgspec.json.decode(text[at:])
            check_names_once(text[at:])
            return value, len(text)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return _read_flow(text, at, depth)
    found = _COMMENT.search(text, at)
    end = len(text) if found is None else found.start()
    word = text[at:end].rstrip(" ")
    if ": " in word or word[-1] == ":":
        raise UnknownYamlError
    return _scalar(word), at + len(word)


def _read_flow(text: str, at: int, depth: int) -> tuple[Any, int]:
    """Read a value in braces or brackets."""
    if depth > DEPTH:
        raise NonsenseError("a value is nested too deeply")
    closing = "]" if text[at] == "[" else "}"
    mapping: dict[Any, Any] = {}
    listing: list[Any] = []
    at = _skip(text, at + 1)
    while text[at : at + 1] != closing:
        value, at = _read_flow_value(text, at, depth)
        at = _skip(text, at)
        if closing == "}":
            if text[at : at + 2] != ": ":
                raise UnknownYamlError
            if not isinstance(value, str):
                raise UnknownYamlError
            if value in mapping:
                raise NonsenseError(f"the name {value!r} is there twice")
            at = _skip(text, at + 1)
            mapping[value], at = _read_flow_value(text, at, depth)
            at = _skip(text, at)
        else:
            listing.append(value)
        if text[at : at + 1] == ",":
            at = _skip(text, at + 1)
        elif text[at : at + 1] != closing:
            raise UnknownYamlError
    return (mapping if closing == "}" else listing), at + 1


def _read_flow_value(text: str, at: int, depth: int) -> tuple[Any, int]:
    first = text[at : at + 1]
    if first in ("[", "{"):
        return _read_flow(text, at, depth + 1)
    if first in ('"', "'"):
        return _read_value(text, at, depth)
    found = _PLAIN_IN_FLOW.match(text, at)
    if found is None:
        raise UnknownYamlError
    end = _skip(text, found.end())
    if text[end : end + 1] not in (",", "]", "}") and text[end : end + 2] != ": ":
        raise UnknownYamlError
    return _scalar(found[0]), found.end()


def _skip(text: str, at: int) -> int:
    while text[at : at + 1] == " ":
        at += 1
    return at


def _scalar(text: str) -> Any:
    """The value of a text on one line, as YAML 1.2 has it. Times are texts."""
    first = text[:1]
    if first == '"':
        try:
            return msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeError) as error:
            raise UnknownYamlError from error
    if first == "'":
        return text[1:-1].replace("''", "'")
    if text in _WORDS:
        return _WORDS[text]
    if _WHOLE.fullmatch(text):
        return int(text)
    if _DECIMAL.fullmatch(text):
        return float(text)
    if first in _NOT_FIRST or _NUMBER.fullmatch(text):
        raise UnknownYamlError
    return text
