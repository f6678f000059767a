"""NaN and infinity: numbers that JSON does not have, and that msgspec would write as null."""

from collections.abc import Iterator
from math import isfinite
from typing import Any

import msgspec


def check_finite(value: Any, raw: bytes) -> None:
    """Refuse a value with a number in it that JSON does not have.

    Args:
        value: What was encoded: plain values, dataclasses, structs.
        raw: The same as JSON. Such a number is a ``null`` there, so most values need no search.

    Raises:
        ValueError: There is one. The message says where.
    """
    if b"null" not in raw:
        return
    for path, number in _not_finite(msgspec.to_builtins(value), ""):
        where = f"{path.removeprefix('.')} is {number!r}" if path else f"it is {number!r}"
        raise ValueError(
            f"{where}, and JSON has no such number; send None or a string instead, or leave it out"
        )


def _not_finite(value: Any, path: str) -> Iterator[tuple[str, float]]:
    inside: Any = value
    if isinstance(value, float):
        if not isfinite(value):
            yield path, value
    elif isinstance(value, dict):
        for key, each in inside.items():
            plain = isinstance(key, str) and key.isidentifier()
            yield from _not_finite(each, f"{path}.{key}" if plain else f"{path}[{key!r}]")
    elif isinstance(value, list | tuple):
        for index, each in enumerate(inside):
            yield from _not_finite(each, f"{path}[{index}]")
