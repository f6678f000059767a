"""Values against the JSON schemas of msgspec: what fits passes, what does not is named."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
import pytest

from leasedkeyq.operations.items.schema_check import check_value, definitions_of, type_words


class Address(msgspec.Struct, forbid_unknown_fields=True):
    street: str
    lines: list[str] = []


class Card(msgspec.Struct, tag=True):
    number: str


class Cash(msgspec.Struct, tag=True):
    coins: int


class Order(msgspec.Struct):
    number: int
    address: Address
    amount: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    size: Literal["S", "M"] | None = None
    at: datetime | None = None
    tags: dict[str, int] = {}
    pair: tuple[int, str] = (1, "x")
    paid: Card | Cash | None = None
    code: Annotated[str, msgspec.Meta(pattern="^[a-z]+$", max_length=3)] = "a"


SCHEMA: Mapping[str, Any] = msgspec.json.schema(Order)
GOOD: dict[str, Any] = {"number": 1, "address": {"street": "x"}}


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"number": 10**40, "amount": 2, "size": "M", "at": None, "tags": {"a": 1}},
        {"pair": [1, "y"], "paid": {"type": "Cash", "coins": 3}, "code": "abc"},
        {"address": {"street": "", "lines": ["a", "b"]}, "unknown": 1},
    ],
)
def test_what_fits_passes(more: dict[str, Any]) -> None:
    value = GOOD | more
    assert check_value(value, SCHEMA) == []
    msgspec.convert(value, Order)  # as msgspec sees it


@pytest.mark.parametrize(
    "more, told",
    [
        ({"number": "1"}, 'number: must be a whole number, got "1"'),
        ({"number": True}, "number: must be a whole number, got true"),
        ({"number": 1.5}, "number: must be a whole number, got 1.5"),
        ({"address": {}}, "address.street: is missing"),
        ({"address": {"street": "x", "y": 1}}, "address.y: is not known"),
        (
            {"address": {"street": "x", "lines": ["a", 2]}},
            "address.lines[1]: must be a text, got 2",
        ),
        ({"amount": 0}, "amount: must be more than 0"),
        ({"size": "XL"}, 'size: must be one of "M", "S" or null, got "XL"'),
        ({"tags": {"a": "b"}}, 'tags.a: must be a whole number, got "b"'),
        ({"pair": [1]}, "pair: must have at least 2 items, has 1"),
        ({"pair": ["x", "y"]}, 'pair[0]: must be a whole number, got "x"'),
        ({"paid": {"type": "Cash", "coins": "x"}}, 'paid.coins: must be a whole number, got "x"'),
        ({"code": "ABC"}, "code: must match ^[a-z]+$"),
        ({"code": "abcd"}, "code: must have at most 3 characters"),
    ],
)
def test_what_does_not_fit_is_named(more: dict[str, Any], told: str) -> None:
    value = GOOD | more
    problems = [str(problem) for problem in check_value(value, SCHEMA)]
    assert problems == [told]
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(value, Order)


def test_the_whole_value() -> None:
    assert [str(problem) for problem in check_value([], SCHEMA)] == [
        "must be an object, got a list"
    ]
    assert check_value({"anything": 1}, {}) == []


def test_problems_are_bounded() -> None:
    schema = msgspec.json.schema(list[int])
    assert len(check_value(["x"] * 1000, schema)) == 20


def test_a_type_that_holds_itself_ends() -> None:
    schema = {"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}}
    assert check_value(1, schema) == []


def test_types_in_words() -> None:
    kinds = {
        int: "a whole number",
        list[str]: "a list of texts",
        str | None: "a text or null",
        Annotated[int, msgspec.Meta(ge=1, lt=5)]: "a whole number, at least 1, less than 5",
        Literal["a", 1]: 'one of 1, "a"',
        Annotated[datetime, msgspec.Meta(tz=True)]: "a text, as date-time",
        Any: "anything",
    }
    for kind, words in kinds.items():
        schema = msgspec.json.schema(kind)
        assert type_words(schema, definitions_of(schema)) == words
