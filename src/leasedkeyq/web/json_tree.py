"""A value of JSON as a tree that folds, for a template to write line by line.

The template gets a flat list of rows and escapes each text of them itself: `open` and `close` stand
around the rows of a list or an object, so that nothing recurses and a page has as many rows as it
is told, whatever was stored.
"""

from collections.abc import Iterator
from typing import Literal, TypeAlias

import msgspec

from leasedkeyq.operations.items.exact_json import (
    Exact,
    ExactMembers,
    NotJsonError,
    Number,
    read_exact,
)

RowKind: TypeAlias = Literal["open", "close", "leaf", "more"]
ValueType: TypeAlias = Literal["object", "list", "text", "number", "boolean", "null", ""]

MOST_ROWS = 300
MOST_MEMBERS = 100
LONGEST_TEXT = 2000
"""So much is shown at first: rows, members of one list or object, characters of one text."""
ALL_ROWS = 20_000
ALL_TEXT = 1_000_000
"""So much is shown if all is asked for."""
OPEN_DEPTH = 2
OPEN_MEMBERS = 20
"""Down to this depth, what has no more members than that is unfolded at first."""


class TreeRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of a tree.

    Attributes:
        kind: What it is: the beginning or the end of a list or an object, a value, or a note that
            some are left out.
        name: The name of the member of an object; None for other values.
        place: The place in a list, from 0; None for other values.
        type: The type of the value.
        text: A value as people read it: a text without quotes and escapes, a number to the digit.
        count: ExactMembers of a list or an object; members or characters that are left out.
        unfolded: Whether a list or an object is unfolded at first.
        whole: Whether `text` is all of the value, so that it can be copied.
    """

    kind: RowKind
    name: str | None = None
    place: int | None = None
    type: ValueType = ""
    text: str = ""
    count: int = 0
    unfolded: bool = False
    whole: bool = True


class JsonTree(msgspec.Struct, frozen=True, kw_only=True):
    """A value as rows.

    Attributes:
        rows: The rows; none if the value is no JSON.
        bounded: Whether something is left out that "show all" would show.
        truncated: Whether even all that is ever shown leaves something out.
        problem: Why there are no rows; empty if there are.
    """

    rows: tuple[TreeRow, ...] = ()
    bounded: bool = False
    truncated: bool = False
    problem: str = ""


def json_tree(text: str, *, show_all: bool = False) -> JsonTree:
    """The tree of a JSON document. Never raises."""
    try:
        value = read_exact(text)
    except NotJsonError as error:
        return JsonTree(problem=str(error))
    builder = _TreeBuilder(show_all=show_all)
    rows = tuple(builder.rows(value))
    return JsonTree(
        rows=rows,
        bounded=builder.left_out and not show_all,
        truncated=builder.left_out and show_all,
    )


def shown_text(text: str) -> str:
    """A text that every page can show: halves of surrogate pairs are written as escapes."""
    return text.encode(errors="backslashreplace").decode()


class _Level:
    """A list or an object that is being shown: what follows, and how many members are left."""

    __slots__ = ("left", "members")

    def __init__(self, members: Iterator[tuple[str | None, int | None, Exact]], left: int) -> None:
        self.members = members
        self.left = left


class _TreeBuilder:
    def __init__(self, *, show_all: bool) -> None:
        self.left_out = False
        self._rest = ALL_ROWS if show_all else MOST_ROWS
        self._members = ALL_ROWS if show_all else MOST_MEMBERS
        self._longest = ALL_TEXT if show_all else LONGEST_TEXT

    def rows(self, value: Exact) -> Iterator[TreeRow]:
        """All rows; without recursion, as values may be as deep as the reader of JSON goes."""
        level = _Level(iter([(None, None, value)]), 1)
        stack: list[_Level] = []
        while True:
            following = next(level.members, None) if self._rest > 0 else None
            if following is None:
                if level.left:
                    self.left_out = True
                    yield TreeRow(kind="more", count=level.left)
                if not stack:
                    return
                yield TreeRow(kind="close")
                level = stack.pop()
                continue
            self._rest -= 1
            level.left -= 1
            name, place, member = following
            shown_name = None if name is None else shown_text(name)
            if not isinstance(member, list | ExactMembers):
                yield self._leaf(shown_name, place, member)
                continue
            is_object = isinstance(member, ExactMembers)
            yield TreeRow(
                kind="open" if member else "leaf",
                name=shown_name,
                place=place,
                type="object" if is_object else "list",
                text="" if member else "{}" if is_object else "[]",
                count=len(member),
                unfolded=len(stack) < OPEN_DEPTH and 0 < len(member) <= OPEN_MEMBERS,
            )
            if member:
                stack.append(level)
                level = _Level(_members(member, self._members), len(member))

    def _leaf(self, name: str | None, place: int | None, value: Exact) -> TreeRow:
        kind: ValueType
        match value:
            case Number():
                kind, text = "number", str(value)
            case str():
                kind, text = "text", value
            case None:
                kind, text = "null", "null"
            case _:
                kind, text = "boolean", "true" if value else "false"
        cut = max(0, len(text) - self._longest)
        if cut:
            self.left_out = True
            text = text[: self._longest]
        return TreeRow(
            kind="leaf",
            name=name,
            place=place,
            type=kind,
            text=shown_text(text),
            count=cut,
            whole=not cut,
        )


def _members(
    value: "list[Exact] | ExactMembers", most: int
) -> Iterator[tuple[str | None, int | None, Exact]]:
    if isinstance(value, ExactMembers):
        for name, member in value[:most]:
            yield name, None, member
    else:
        for place, one in enumerate(value[:most]):
            yield None, place, one
