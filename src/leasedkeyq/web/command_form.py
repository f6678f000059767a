"""A form for the arguments of a command, made from the JSON schema of their types.

Simple types have fields of their own, everything else is written as JSON. What was typed is kept as
it was typed, numbers to the last digit, whether it is right or not; an error stands beside the
field that it is about.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias, cast

import msgspec

from leasedkeyq.operations.items.exact_json import (
    Exact,
    ExactMembers,
    NotJsonError,
    Number,
    plain,
    read_exact,
    write_exact,
)
from leasedkeyq.operations.items.schema_check import (
    Schema,
    check_value,
    definitions_of,
    listed_in,
    resolved,
    type_words,
)

InputKind: TypeAlias = Literal["text", "number", "choice", "json"]

PREFIX: Final = "arg."
"""How the names of the fields begin in the form: an argument may be called as anything else."""
WHOLE: Final = "arguments"
"""The field that has all arguments as one JSON document, if the types are not known."""
EMPTY_TEXT: Final = '""'
"""What is typed for a text without characters: an empty field is one that is left out."""
_NUMBER: Final = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")


class FormField(msgspec.Struct, frozen=True, kw_only=True):
    """A field of the form.

    Attributes:
        name: Its name in the form.
        argument: The argument that it is for.
        kind: How it is typed.
        hint: What is wanted, in words.
        description: What the schema says of it.
        required: Whether it must be filled in.
        choices: What can be chosen, each as JSON.
        default: What the argument is without it, as JSON; "" if it has no default.
        value: What was typed.
        error: What is wrong with it.
    """

    name: str
    argument: str
    kind: InputKind
    hint: str = ""
    description: str = ""
    required: bool = False
    choices: tuple[str, ...] = ()
    default: str = ""
    value: str = ""
    error: str = ""


class CommandForm(msgspec.Struct, frozen=True, kw_only=True):
    """A form, as it was made or as it was sent.

    Attributes:
        fields: The fields, in the order of the arguments.
        arguments: The arguments as a JSON document, if all is right.
        error: What is wrong with the arguments as a whole.
    """

    fields: tuple[FormField, ...]
    arguments: str = ""
    error: str = ""

    @property
    def right(self) -> bool:
        """Whether nothing is wrong."""
        return not self.error and not any(field.error for field in self.fields)


def new_form(schema: Schema | None, arguments: str = "") -> CommandForm:
    """A form to be filled in.

    Args:
        schema: What the arguments are; None if no worker has told of it.
        arguments: What stands in it already, as a JSON document.
    """
    fields = _fields(schema)
    if not arguments:
        return CommandForm(fields=fields)
    if len(fields) == 1 and fields[0].name == WHOLE:
        return CommandForm(fields=(_with(fields[0], value=arguments),))
    try:
        given = read_exact(arguments)
    except NotJsonError:
        return CommandForm(fields=fields)
    members = dict(given) if isinstance(given, ExactMembers) else {}
    return CommandForm(
        fields=tuple(
            _with(field, value=_typed(field, members[field.argument]))
            if field.argument in members
            else field
            for field in fields
        )
    )


def read_form(schema: Schema | None, given: Mapping[str, str]) -> CommandForm:
    """A form that was sent: what it says, or what is wrong with it.

    Args:
        schema: What the arguments are; None if no worker has told of it.
        given: The fields of the request by name.
    """
    fields = [
        _with(field, value=given.get(field.name, "").replace("\r\n", "\n"))
        for field in _fields(schema)
    ]
    if len(fields) == 1 and fields[0].name == WHOLE:
        return _read_whole(schema, fields[0])
    members: list[tuple[str, Exact]] = []
    for place, field in enumerate(fields):
        try:
            read = _read(field)
        except ValueError as error:
            fields[place] = _with(field, error=str(error))
        else:
            if read is not _LEFT_OUT:
                members.append((field.argument, cast("Exact", read)))
    arguments = ExactMembers(members)
    if any(field.error for field in fields) or schema is None:
        return CommandForm(fields=tuple(fields))
    others: list[str] = []
    places = {field.argument: place for place, field in enumerate(fields)}
    for problem in check_value(plain(arguments), schema):
        at = places.get(str(problem.path[0])) if problem.path else None
        if at is None:
            others.append(str(problem))
        elif not fields[at].error:
            inside = problem._replace(path=problem.path[1:])
            fields[at] = _with(fields[at], error=str(inside))
    form = CommandForm(fields=tuple(fields), error="; ".join(others))
    if not form.right:
        return form
    return msgspec.structs.replace(form, arguments=write_exact(arguments))


class _LeftOut:
    """An argument that is not given."""


_LEFT_OUT: Final = _LeftOut()


def _read_whole(schema: Schema | None, field: FormField) -> CommandForm:
    try:
        value = read_exact(field.value.strip() or "{}")
    except NotJsonError as error:
        return CommandForm(fields=(_with(field, error=str(error)),))
    problems = [] if schema is None else check_value(plain(value), schema)
    if problems:
        told = "; ".join(map(str, problems))
        return CommandForm(fields=(_with(field, error=told),))
    return CommandForm(fields=(field,), arguments=write_exact(value))


def _read(field: FormField) -> "Exact | _LeftOut":
    """What was typed into a field.

    Raises:
        ValueError: It is missing, or is none of its kind. The message is for people.
    """
    typed = field.value if field.kind == "text" else field.value.strip()
    if not typed:
        if field.required:
            hint = f"; write {EMPTY_TEXT} for an empty text" if field.kind == "text" else ""
            raise ValueError(f"is missing{hint}")
        return _LEFT_OUT
    match field.kind:
        case "text":
            return "" if typed == EMPTY_TEXT else typed
        case "number":
            if _NUMBER.fullmatch(typed) is None:
                raise ValueError(f"must be {field.hint}")
            return Number(typed)
        case "choice":
            if typed not in field.choices:
                raise ValueError(f"must be one of {', '.join(field.choices)}")
            return read_exact(typed)
        case "json":
            return read_exact(typed)


def _typed(field: FormField, value: Exact) -> str:
    """A value as somebody would have typed it into a field."""
    match value:
        case Number():
            return str(value)
        case str() if field.kind == "text":
            return value or EMPTY_TEXT
        case None if field.kind in ("text", "number"):
            return ""
        case _:
            return write_exact(value, indent=2 if field.kind == "json" else None)


def _fields(schema: Schema | None) -> tuple[FormField, ...]:
    definitions: Schema = {} if schema is None else definitions_of(schema)
    top: Schema = {} if schema is None else resolved(schema, definitions)
    properties: Any = top.get("properties")
    plain_object = isinstance(properties, Mapping) and not top.get("anyOf")
    if not plain_object:
        return (
            FormField(
                name=WHOLE,
                argument="",
                kind="json",
                hint=type_words(top, definitions) if top else "JSON",
            ),
        )
    required = listed_in(top, "required")
    return tuple(
        _field(name, said, definitions, required=name in required)
        for name, said in cast("Mapping[str, Schema]", properties).items()
    )


def _field(name: str, said: Schema, definitions: Schema, *, required: bool) -> FormField:
    one, nullable = _without_null(resolved(said, definitions), definitions)
    choices = _choices(one)
    kind: InputKind
    match one.get("type"):
        case _ if choices:
            kind = "choice"
            choices = (*choices, "null") if nullable and "null" not in choices else choices
        case "string":
            kind = "text"
        case "integer" | "number":
            kind = "number"
        case _:
            kind = "json"
    if nullable and kind in ("text", "number") and required:
        kind = "json"  # an empty field could be null or forgotten
    default = json.dumps(said["default"], ensure_ascii=False) if "default" in said else ""
    return FormField(
        name=f"{PREFIX}{name}",
        argument=name,
        kind=kind,
        hint=type_words(said, definitions),
        description=str(one.get("description", "")) if kind != "json" else "",
        required=required,
        choices=choices,
        default=default,
    )


def _without_null(schema: Schema, definitions: Schema) -> tuple[Schema, bool]:
    """The one type that a schema allows beside null, and whether null is allowed."""
    either = listed_in(schema, "anyOf")
    if not either:
        return schema, False
    listed = [resolved(one, definitions) for one in either]
    others = [one for one in listed if one.get("type") != "null"]
    if len(others) == 1:
        return others[0], len(others) < len(listed)
    return {}, len(others) < len(listed)


def _choices(schema: Schema) -> tuple[str, ...]:
    """What can be chosen, each as JSON."""
    if "const" in schema:
        return (json.dumps(schema["const"], ensure_ascii=False),)
    if listed := listed_in(schema, "enum"):
        return tuple(json.dumps(one, ensure_ascii=False) for one in listed)
    return ("true", "false") if schema.get("type") == "boolean" else ()


def _with(field: FormField, **changes: str) -> FormField:
    return msgspec.structs.replace(field, **changes)
