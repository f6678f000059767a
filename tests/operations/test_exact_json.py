"""JSON as it was written, read and written again."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leasedkeyq.operations.items.exact_json import (
    ExactMembers,
    NotJsonError,
    Number,
    plain,
    read_exact,
    readable_exact,
    write_exact,
)


def test_numbers_keep_their_digits() -> None:
    text = '{"id":12345678901234567890123456789,"sum":0.10,"far":1e400,"less":-0}'
    value = read_exact(text)
    assert value == ExactMembers(
        [
            ("id", Number("12345678901234567890123456789")),
            ("sum", Number("0.10")),
            ("far", Number("1e400")),
            ("less", Number("-0")),
        ]
    )
    assert json.loads(write_exact(value)) == json.loads(text)
    assert "0.10" in write_exact(value)
    assert "1e400" in write_exact(value)


def test_members_keep_their_order_and_come_twice() -> None:
    assert write_exact(read_exact('{"b":1,"a":2,"b":3}')) == '{"b": 1, "a": 2, "b": 3}'


def test_a_member_to_a_line() -> None:
    told = readable_exact('{"a":[1,{}],"b":{"c":"x"},"":[]}')
    assert told == '{\n  "a": [\n    1,\n    {}\n  ],\n  "b": {\n    "c": "x"\n  },\n  "": []\n}'
    assert readable_exact("no { JSON") == "no { JSON"


def test_half_a_surrogate_pair_is_written_as_an_escape() -> None:
    assert write_exact(read_exact('"\\ud800é"')) == '"\\ud800\\u00e9"'
    assert write_exact(read_exact('"é"')) == '"é"'


@pytest.mark.parametrize("text", ["", "{", "NaN", "[1,]", "-Infinity", "'x'"])
def test_what_is_no_json_is_said_so(text: str) -> None:
    with pytest.raises(NotJsonError, match="not JSON"):
        read_exact(text)


def test_what_is_too_deep_is_said_so() -> None:
    with pytest.raises(NotJsonError, match="too deep"):
        read_exact("[" * 200_000)


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)  # fmt: skip


@given(_values, st.sampled_from([None, 0, 2]))
@settings(max_examples=60, deadline=None)
def test_nothing_is_lost_on_the_way(value: object, indent: int | None) -> None:
    exact = read_exact(json.dumps(value))
    assert json.loads(write_exact(exact, indent=indent)) == value
    assert plain(exact) == value
