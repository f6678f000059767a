"""Forms from the types of commands: what is typed, what is wrong, what is kept."""

import json
from typing import Annotated, Literal

import msgspec
import pytest

from leasedkeyq.web.command_form import CommandForm, new_form, read_form


class Person(msgspec.Struct):
    name: str


class Arguments(msgspec.Struct, forbid_unknown_fields=True):
    to: str
    number: int
    person: Person
    size: Literal["S", "M"] = "S"
    urgent: bool = False
    share: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    note: str | None = None
    tags: list[str] = []
    maybe: int | str = 1


SCHEMA = msgspec.json.schema(Arguments)
GOOD = {"arg.to": "ann", "arg.number": "7", "arg.person": '{"name": "x"}'}


def errors(form: CommandForm) -> dict[str, str]:
    return {field.argument: field.error for field in form.fields if field.error}


def test_fields_of_types() -> None:
    fields = {field.argument: field for field in new_form(SCHEMA).fields}
    assert {name: field.kind for name, field in fields.items()} == {
        "to": "text",
        "number": "number",
        "person": "json",
        "size": "choice",
        "urgent": "choice",
        "share": "number",
        "note": "text",
        "tags": "json",
        "maybe": "json",
    }
    assert [name for name, field in fields.items() if field.required] == ["to", "number", "person"]
    assert set(fields["size"].choices) == {'"S"', '"M"'}
    assert fields["urgent"].choices == ("true", "false")
    assert fields["size"].default == '"S"'
    assert "at least 0" in fields["share"].hint


def test_what_is_left_empty_is_left_out() -> None:
    form = read_form(SCHEMA, GOOD)
    assert form.right
    assert form.arguments == '{"to": "ann", "number": 7, "person": {"name": "x"}}'


def test_all_fields() -> None:
    typed = GOOD | {
        "arg.to": "line 1\r\nline 2",
        "arg.number": "123456789012345678901234567890",
        "arg.size": '"M"',
        "arg.urgent": "true",
        "arg.share": "0.50",
        "arg.note": '""',
        "arg.tags": '["a"]',
    }
    form = read_form(SCHEMA, typed)
    assert form.right, errors(form)
    assert "0.50" in form.arguments
    decoded = json.loads(form.arguments)
    assert decoded["to"] == "line 1\nline 2"
    assert decoded["number"] == 123456789012345678901234567890
    assert (decoded["note"], decoded["urgent"], decoded["tags"]) == ("", True, ["a"])
    # What was typed is what a form for these arguments shows.
    again = {field.argument: field.value for field in new_form(SCHEMA, form.arguments).fields}
    assert again["number"] == typed["arg.number"]
    assert again["share"] == "0.50"
    assert (again["note"], again["to"]) == ('""', "line 1\nline 2")


@pytest.mark.parametrize(
    "name, typed, told",
    [
        ("to", "", "is missing"),
        ("number", "7x", "must be a whole number"),
        ("number", "7.5", "must be a whole number"),
        ("number", "\u0661", "must be a whole number"),
        ("person", "{", "not JSON"),
        ("person", "{}", "name: is missing"),
        ("person", '{"name": 1}', "name: must be a text"),
        ("size", '"XL"', 'must be one of "M", "S"'),
        ("share", "2", "at most 1"),
        ("tags", "[1]", "[0]: must be a text"),
        ("maybe", "[]", "must be a whole number or a text"),
    ],
)
def test_an_error_stands_beside_its_field(name: str, typed: str, told: str) -> None:
    form = read_form(SCHEMA, GOOD | {f"arg.{name}": typed})
    assert not form.right
    assert form.arguments == ""
    assert list(errors(form)) == [name]
    assert told in errors(form)[name]
    kept = {field.argument: field.value for field in form.fields}
    assert kept[name] == typed
    if name != "to":
        assert kept["to"] == "ann"


def test_without_types_all_arguments_are_one_document() -> None:
    form = read_form(None, {"arguments": '{"b": 1.10, "a": 2}'})
    assert form.right
    assert form.arguments == '{"b": 1.10, "a": 2}'
    assert read_form(None, {}).arguments == "{}"
    wrong = read_form(None, {"arguments": "{'a'}"})
    assert "not JSON" in wrong.fields[0].error
    assert wrong.fields[0].value == "{'a'}"


def test_types_that_are_no_object_are_one_document() -> None:
    schema = msgspec.json.schema(list[int])
    assert read_form(schema, {"arguments": "[1]"}).arguments == "[1]"
    assert (
        "[0]: must be a whole number" in read_form(schema, {"arguments": '["x"]'}).fields[0].error
    )


def test_required_null_is_written_as_json() -> None:
    class Nullable(msgspec.Struct):
        note: str | None

    schema = msgspec.json.schema(Nullable)
    assert read_form(schema, {"arg.note": "null"}).arguments == '{"note": null}'
    assert not read_form(schema, {}).right
