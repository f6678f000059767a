"""Values that no handler can decode, as another program may have stored them."""

import json
import random
from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple, TypeAlias

Destination: TypeAlias = Literal["dead", "waits"]
"""Where it must end: in the dead letters, or where it is, for a worker that knows its type."""
KNOWN: Final = "typed"
"""A type of command that the worker knows: it takes a number and a text."""


class PoisonedValue(NamedTuple):
    """A value of a command that cannot be run.

    Attributes:
        name: What is wrong with it.
        value: What is stored.
        kind: The type of command that it is said to be.
        destination: Where it must end.
    """

    name: str
    value: bytes
    kind: str = KNOWN
    destination: Destination = "dead"


def envelope(payload: Any = None, **more: Any) -> bytes:
    """An envelope that is whole, but for what is given."""
    fields = {"payload": {"number": 1, "text": "x"} if payload is None else payload, "at": 1e9}
    return json.dumps({**fields, **more}).encode()


def _noise(dice: random.Random) -> bytes:
    return b"\xff" + dice.randbytes(dice.randint(0, 200))  # which no JSON begins with


def _cut(dice: random.Random) -> bytes:
    whole = envelope()
    return whole[: dice.randint(0, len(whole) - 1)]


def _flipped(dice: random.Random) -> bytes:
    """A damaged envelope: what its payload was cannot be told any more."""
    damaged = bytearray(envelope({"number": "one", "text": 1}))
    for _ in range(3):
        damaged[dice.randrange(len(damaged))] ^= 1 << dice.randrange(8)
    return bytes(damaged)


def _arguments(dice: random.Random) -> bytes:
    wrong: list[Any] = [
        {"number": "one", "text": "x"},
        {"number": 1.5, "text": "x"},
        {"number": 2**70, "text": 3},
        {"number": None, "text": None},
        {"number": 1},
        {},
        {"number": 1, "text": "x", "more": 1},
        {"number": [1], "text": {"a": 1}},
        [1, "x"],
        "x",
        7,
        True,
    ]
    return envelope(dice.choice(wrong))


def _fields(dice: random.Random) -> bytes:
    wrong: list[dict[str, Any]] = [
        {"at": "now"},
        {"at": None},
        {"timeout": "1 s"},
        {"after": []},
        {"trace": {"traceparent": 1}},
        {"trace": "x"},
        {"coalesces": "yes"},
        {"unique_for": {}},
        {"workflow": "chain"},
        {"workflow": {"chain": 1}},
        {"workflow": {"steps": [{}]}},
        {"workflow": {"member": {"gather": 1}}},
    ]
    return envelope(**dice.choice(wrong))


def _nested(dice: random.Random) -> bytes:
    deep = b"[" * 100_000 + b"]" * 100_000
    return dice.choice([deep, b'{"payload":' + deep + b',"at":1}', b'{"at":1,"x":' + deep])


def _no_text(dice: random.Random) -> bytes:
    inside = dice.choice([b"\xff\xfe", b"\xc0\x80", b"\xed\xa0\x80", b"\x80"])
    return b'{"payload":{"number":1,"text":"' + inside + b'"},"at":1}'


def _numbers(dice: random.Random) -> bytes:
    number = dice.choice([b"1e400", b"-1e999", b"NaN", b"Infinity", b"0x10", b"01", b"1_0"])
    return b'{"payload":{"number":1,"text":"x"},"at":' + number + b"}"


def _other_formats(dice: random.Random) -> bytes:
    return dice.choice(
        [
            b"",
            b" ",
            b"null",
            b"[]",
            b"{}",
            b"x: 1\n",
            b"<xml/>",
            b"\x80\x04\x95\x0f\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x94\x8c\x06system\x94\x93\x94.",
            b"\x82\xa7payload\x80\xa2at\x01",
            b"\x1f\x8b\x08\x00",
            b"\xef\xbb\xbf{}",
            b'{"payload":{},"at":1}{"payload":{},"at":1}',
            b"'; DROP TABLE items; --",
        ]
    )


WRONG: Final[dict[str, Callable[[random.Random], bytes]]] = {
    "noise": _noise,
    "an envelope that was cut": _cut,
    "an envelope with flipped bits": _flipped,
    "arguments of other types": _arguments,
    "fields of other types": _fields,
    "nested too deep": _nested,
    "no text": _no_text,
    "numbers that JSON does not have": _numbers,
    "other formats": _other_formats,
}


def poisoned(dice: random.Random) -> PoisonedValue:
    """One of them."""
    if dice.random() < UNKNOWN:
        kind = f"unknown {dice.randrange(5)}"
        return PoisonedValue("an unknown type", envelope(), kind, "waits")
    name = dice.choice(list(WRONG))
    return PoisonedValue(name, WRONG[name](dice))


UNKNOWN: Final = 0.1
"""The share of commands that are whole, and of a type that no worker here knows."""
