"""Values on their way into a store and out of it: JSON, with types checked on the way out."""

from typing import Any, Generic, TypeVar

import msgspec

from leasedkeyq.checks import is_text
from leasedkeyq.errors import LimitExceededError, UndecodableValueError, describe
from leasedkeyq.stores.contract import Limits
from leasedkeyq.stores.finite import check_finite

V = TypeVar("V")

LARGEST_PRIORITY = 2**63 - 1


class Codec(Generic[V]):
    """Encodes values of one queue as JSON and decodes them to `value_type`."""

    __slots__ = ("_decoder", "_encoder", "_limits")

    def __init__(self, value_type: Any, limits: Limits) -> None:
        self._encoder = msgspec.json.Encoder()
        try:
            self._decoder: msgspec.json.Decoder[V] = msgspec.json.Decoder(value_type)
        except TypeError as error:
            raise TypeError(f"value_type cannot be {value_type!r}: {error}") from error
        self._limits = limits

    def encode(self, key: str, value: V) -> bytes:
        """The value as JSON; a clear error when it is none or too large."""
        try:
            raw = self._encoder.encode(value)
            check_finite(value, raw)
        except (TypeError, ValueError, RecursionError, OverflowError) as error:
            kind = type(value).__name__
            message = f"the value of key {describe(key)} cannot be stored as JSON ({kind}): {error}"
            raise TypeError(message) from error
        if len(raw) > self._limits.value_size:
            message = (
                f"the value of key {describe(key)} has {len(raw)} bytes as JSON; the limit "
                f"value_size is {self._limits.value_size}: {advice('value_size')}"
            )
            raise LimitExceededError(message, limit="value_size", most=self._limits.value_size)
        return raw

    def decode(self, key: str, raw: bytes) -> V:
        """The value; an `UndecodableValueError` when it is not of the type."""
        try:
            return self._decoder.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            message = f"the stored value of key {describe(key)} is not as expected: {error}"
            raise UndecodableValueError(message, key=key, raw=raw) from error


def advice(limit: str) -> str:
    """What to do about a limit that was met."""
    return f"use less, or open the store with limits=Limits({limit}=...)"


def check_name(name: str, value: str, limits: Limits) -> str:
    """A key or the name of a queue: a string that is not empty, not too long, and is text."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str on a store, got {describe(value)}")
    if not value:
        raise ValueError(f"{name} must not be empty")
    if len(value) > limits.key_length:
        message = (
            f"{name} has {len(value)} characters: {describe(value)}; the limit key_length is "
            f"{limits.key_length}: {advice('key_length')}"
        )
        raise LimitExceededError(message, limit="key_length", most=limits.key_length)
    if "\x00" in value or not is_text(value):
        message = f"{name} must be text without NUL characters and lone surrogates"
        raise ValueError(f"{message}, got {describe(value)}")
    return value


def check_priority(priority: int | None) -> None:
    """Refuse a priority that stores cannot keep: they have numbers of 64 bits."""
    if priority is not None and abs(priority) > LARGEST_PRIORITY:
        raise ValueError(f"priority must be below 2**63 on a store, up or down, got {priority}")
