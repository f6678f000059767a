"""Whether a value is what a JSON schema says, as far as msgspec writes schemas.

A worker leaves the schema of the arguments of its commands in the store. Whoever submits or edits a
command without the program itself (the command line, the web page) has it checked by this. A
keyword that is not known here lets everything pass: the worker checks again, and knows the types.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, cast

Schema: TypeAlias = Mapping[str, Any]

MOST_PROBLEMS: Final = 20
DEEPEST: Final = 50
_REFERENCE: Final = re.compile(r"#/\$defs/(.+)")
_NAMES: Final[Mapping[str, str]] = {
    "string": "a text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}

_PLURALS: Final[Mapping[str, str]] = {
    "a text": "texts",
    "a whole number": "whole numbers",
    "a number": "numbers",
    "a list": "lists",
    "an object": "objects",
}


class Problem(NamedTuple):
    """What is wrong with a value.

    Attributes:
        path: Where: names of members and places in lists, from the top.
        message: What is wrong, without the place.
    """

    path: tuple[str | int, ...]
    message: str

    @property
    def where(self) -> str:
        """The place in one text: ``address.lines[2]``; empty for the whole value."""
        told = ""
        for step in self.path:
            told += f"[{step}]" if isinstance(step, int) else f".{step}" if told else step
        return told

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" if self.path else self.message


def check_value(value: Any, schema: Schema) -> list[Problem]:
    """What is wrong with a decoded value, at most 20 things; empty if nothing is.

    Args:
        value: As `json.loads` returns it.
        schema: As `msgspec.json.schema` returns it: with the types that it refers to in ``$defs``.
    """
    found: list[Problem] = []
    for problem in _problems(value, schema, _definitions(schema), ()):
        found.append(problem)
        if len(found) == MOST_PROBLEMS:
            break
    return found


def resolved(schema: Schema, definitions: Schema) -> Schema:
    """A schema without the reference that it may be, with what is said beside the reference."""
    for _ in range(DEEPEST):
        match = _REFERENCE.fullmatch(str(schema.get("$ref", "")))
        target = definitions.get(match[1]) if match else None
        if not isinstance(target, Mapping):
            break
        beside = {name: said for name, said in schema.items() if name not in ("$ref", "$defs")}
        schema = {**cast("Schema", target), **beside}
    return schema


def definitions_of(schema: Schema) -> Schema:
    """The types that a schema refers to, by name."""
    return _definitions(schema)


def type_words(schema: Schema, definitions: Schema) -> str:
    """What a schema wants, for people: ``"a whole number, at least 1, or null"``."""
    schema = resolved(schema, definitions)
    if (either := _either(schema)) is not None:
        words = [type_words(one, definitions) for one in either]
        return " or ".join(dict.fromkeys(words))
    if "const" in schema:
        return _shown(schema["const"])
    if choices := listed_in(schema, "enum"):
        told = ", ".join(map(_shown, choices))
        return f"one of {told}" if len(choices) > 1 else told
    kinds = _kinds(schema)
    told = " or ".join(_NAMES.get(kind, kind) for kind in kinds) or "anything"
    if kinds == ("array",) and isinstance(schema.get("items"), Mapping):
        inner = type_words(schema["items"], definitions)
        told += f" of {_PLURALS.get(inner, inner)}"
    extra = [
        words.format(schema[name])
        for name, words in (
            ("minimum", "at least {}"),
            ("exclusiveMinimum", "more than {}"),
            ("maximum", "at most {}"),
            ("exclusiveMaximum", "less than {}"),
            ("minLength", "at least {} characters"),
            ("maxLength", "at most {} characters"),
            ("format", "as {}"),
        )
        if name in schema
    ]
    return ", ".join([told, *extra])


def _problems(
    value: Any, schema: Schema, definitions: Schema, path: tuple[str | int, ...]
) -> Iterator[Problem]:
    schema = resolved(schema, definitions)
    if len(path) > DEEPEST:
        return
    if (either := _either(schema)) is not None:
        yield from _problems_of_either(value, schema, either, definitions, path)
        return
    if "const" in schema and not _equal(value, schema["const"]):
        yield Problem(path, f"must be {_shown(schema['const'])}")
        return
    choices = listed_in(schema, "enum")
    if choices and not any(_equal(value, one) for one in choices):
        yield Problem(path, f"must be {type_words(schema, definitions)}")
        return
    kinds = _kinds(schema)
    if kinds and not any(_is(value, kind) for kind in kinds):
        wanted = " or ".join(_NAMES.get(kind, kind) for kind in kinds)
        yield Problem(path, f"must be {wanted}, got {_shown(value)}")
        return
    if isinstance(value, bool):
        return
    if isinstance(value, str):
        yield from _problems_of_text(value, schema, path)
    elif isinstance(value, int | float):
        yield from _problems_of_number(value, schema, path)
    elif _is(value, "array"):
        yield from _problems_of_list(value, schema, definitions, path)
    elif _is(value, "object"):
        yield from _problems_of_object(value, schema, definitions, path)


def _problems_of_either(
    value: Any,
    schema: Schema,
    either: Sequence[Schema],
    definitions: Schema,
    path: tuple[str | int, ...],
) -> Iterator[Problem]:
    """One of several types fits, or the one that is meant says what is wrong."""
    tried = [list(_problems(value, one, definitions, path)) for one in either]
    if not all(tried):
        return
    # The type that goes deepest before it fails, at the fewest places, is the one that was meant.
    deepest = max(
        tried,
        key=lambda problems: (max(len(problem.path) for problem in problems), -len(problems)),
    )
    if max(len(problem.path) for problem in deepest) > len(path):
        yield from deepest
        return
    told = [problem for problems in tried for problem in problems]
    if len({problem.message for problem in told}) == 1:
        yield told[0]
        return
    yield Problem(path, f"must be {type_words(schema, definitions)}, got {_shown(value)}")


def _problems_of_text(value: str, schema: Schema, path: tuple[str | int, ...]) -> Iterator[Problem]:
    if len(value) < schema.get("minLength", 0):
        yield Problem(path, f"must have at least {schema['minLength']} characters")
    if len(value) > schema.get("maxLength", len(value)):
        yield Problem(path, f"must have at most {schema['maxLength']} characters")
    pattern = schema.get("pattern")
    if isinstance(pattern, str) and len(value) <= 1000:  # noqa: PLR2004  # patterns may be slow
        try:
            fits = re.search(pattern, value) is not None
        except re.error:
            return  # a pattern of another dialect: the worker decides
        if not fits:
            yield Problem(path, f"must match {pattern}")


def _problems_of_number(
    value: float, schema: Schema, path: tuple[str | int, ...]
) -> Iterator[Problem]:
    limits: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
        ("minimum", lambda limit: value >= limit, "at least"),
        ("exclusiveMinimum", lambda limit: value > limit, "more than"),
        ("maximum", lambda limit: value <= limit, "at most"),
        ("exclusiveMaximum", lambda limit: value < limit, "less than"),
    )
    for name, holds, words in limits:
        limit = schema.get(name)
        if _is(limit, "number") and not holds(limit):
            yield Problem(path, f"must be {words} {limit}")
    step = schema.get("multipleOf")
    if isinstance(step, int | float) and step and value % step:
        yield Problem(path, f"must be a multiple of {step}")


def _problems_of_list(
    value: list[Any], schema: Schema, definitions: Schema, path: tuple[str | int, ...]
) -> Iterator[Problem]:
    if len(value) < schema.get("minItems", 0):
        yield Problem(path, f"must have at least {schema['minItems']} items, has {len(value)}")
    if len(value) > schema.get("maxItems", len(value)):
        yield Problem(path, f"must have at most {schema['maxItems']} items, has {len(value)}")
    first = listed_in(schema, "prefixItems")
    rest = schema.get("items")
    for place, member in enumerate(value):
        if place < len(first):
            yield from _problems(member, first[place], definitions, (*path, place))
        elif isinstance(rest, Mapping):
            yield from _problems(member, cast("Schema", rest), definitions, (*path, place))


def _problems_of_object(
    value: dict[str, Any], schema: Schema, definitions: Schema, path: tuple[str | int, ...]
) -> Iterator[Problem]:
    known = cast("Mapping[str, Schema]", schema.get("properties", {}))
    for name in listed_in(schema, "required"):
        if name not in value:
            yield Problem((*path, name), "is missing")
    others = schema.get("additionalProperties", True)
    for name, member in value.items():
        if name in known:
            yield from _problems(member, known[name], definitions, (*path, name))
        elif others is False:
            yield Problem((*path, name), "is not known")
        elif isinstance(others, Mapping):
            yield from _problems(member, cast("Schema", others), definitions, (*path, name))


def _definitions(schema: Schema) -> Schema:
    found = schema.get("$defs", {})
    return cast("Schema", found) if isinstance(found, Mapping) else {}


def _either(schema: Schema) -> Sequence[Schema] | None:
    for name in ("anyOf", "oneOf"):
        if found := listed_in(schema, name):
            return found
    return None


def listed_in(schema: Schema, name: str) -> Sequence[Any]:
    """A list that a schema has; empty if it has none."""
    found: Any = schema.get(name, ())
    return cast("Sequence[Any]", found) if isinstance(found, list | tuple) else ()


def _kinds(schema: Schema) -> tuple[str, ...]:
    kind = schema.get("type", ())
    return (kind,) if isinstance(kind, str) else tuple(cast("Sequence[str]", kind))


def _is(value: Any, kind: str) -> bool:
    match kind:
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "null":
            return value is None
        case "integer":
            whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
            return whole and not isinstance(value, bool)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "array":
            return isinstance(value, list)
        case "object":
            return isinstance(value, dict)
        case _:
            return True


def _equal(value: Any, other: Any) -> bool:
    """Equal as JSON has it: true is not 1."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def _shown(value: Any) -> str:
    """A value in a few words, for messages."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return f'"{value}"' if len(value) <= 40 else "a long text"  # noqa: PLR2004
        case int() | float():
            return str(value) if abs(value) < 1e30 else "a large number"  # noqa: PLR2004
        case list():
            return "a list"
        case _:
            return "an object"
