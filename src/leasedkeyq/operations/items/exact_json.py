"""JSON as it was written: numbers to their last digit, members in their order and all of them.

A number of JSON may have more digits than a float, and an integer more than a script in a browser
can hold. What people see, copy and edit must be what is stored, so numbers stay the text that they
are in the document, and an object stays its list of members, those that occur twice included.
"""

import json
from collections.abc import Callable
from typing import Any, TypeAlias, cast

LONGEST_NUMBER = 4000
"""Characters of a number that becomes one of Python's."""


class Number(str):
    """A number, as it is written in the document."""

    __slots__ = ()


class ExactMembers(tuple[tuple[str, "Exact"], ...]):
    """The members of an object, in order."""

    __slots__ = ()


Exact: TypeAlias = "str | Number | bool | list[Exact] | ExactMembers | None"
"""A value of JSON: a `Number`, a text, true, false, null, a list, or the members of an object."""


class NotJsonError(ValueError):
    """A text is not JSON, or goes deeper than can be read. The message says where."""


def _constant(name: str) -> Number:
    raise NotJsonError(f"{name} is not JSON: a number is finite")


_decoder = json.JSONDecoder(
    object_pairs_hook=ExactMembers, parse_int=Number, parse_float=Number, parse_constant=_constant
)


def read_exact(text: str) -> Exact:
    """The value of a JSON document.

    Raises:
        NotJsonError: It is none. The message is for people: what was expected, in which line.
    """
    try:
        return cast("Exact", _decoder.decode(text))
    except json.JSONDecodeError as error:
        raise NotJsonError(
            f"not JSON: {error.msg} in line {error.lineno}, column {error.colno}"
        ) from error
    except RecursionError as error:
        raise NotJsonError("not readable: lists and objects in it go too deep") from error


def write_exact(value: Exact, *, indent: int | None = None) -> str:
    """A value as a JSON document, with every number as it was read.

    Args:
        value: What `read_exact` has returned.
        indent: Spaces for each level, with one member to a line. None: all in one line.
    """
    parts: list[str] = []
    _write(value, parts.append, indent, "\n")
    return "".join(parts)


def readable_exact(text: str) -> str:
    """A document with a member to a line, for people; a text that is no JSON stays as it is."""
    try:
        return write_exact(read_exact(text), indent=2)
    except (NotJsonError, RecursionError):
        return text


def plain(value: Exact) -> Any:
    """A value with Python's numbers, as far as these can hold it."""
    match value:
        case Number():
            # A number of thousands of digits stays text: Python refuses to read it.
            return value if len(value) > LONGEST_NUMBER else json.loads(value)
        case ExactMembers():
            return {name: plain(member) for name, member in value}
        case list():
            return [plain(member) for member in value]
        case _:
            return value


def _write(value: Exact, add: Callable[[str], None], indent: int | None, line: str) -> None:
    match value:
        case Number():
            add(value)
        case str():
            add(json.dumps(value, ensure_ascii=not _is_encodable(value)))
        case True:
            add("true")
        case False:
            add("false")
        case None:
            add("null")
        case ExactMembers():
            _write_all("{}", [(_text(name), member) for name, member in value], add, indent, line)
        case _:
            _write_all("[]", [("", member) for member in value], add, indent, line)


def _write_all(
    brackets: str,
    members: list[tuple[str, Exact]],
    add: Callable[[str], None],
    indent: int | None,
    line: str,
) -> None:
    deeper = line if indent is None else line + " " * indent
    add(brackets[0])
    for place, (name, member) in enumerate(members):
        if place:
            add("," if indent is not None else ", ")
        if indent is not None:
            add(deeper)
        if name:
            add(name)
            add(": ")
        _write(member, add, indent, deeper)
    if members and indent is not None:
        add(line)
    add(brackets[1])


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=not _is_encodable(text))


def _is_encodable(text: str) -> bool:
    """Whether a text has no half of a surrogate pair, which no page and no file can show."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
