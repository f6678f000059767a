"""Values on their way into a store and out of it: JSON, with types checked on the way out."""

from typing import Any, Final, Generic, TypeVar

import msgspec

from leasedkeyq.errors import UndecodableValueError, describe
from leasedkeyq.stores.finite import check_finite

V = TypeVar("V")

UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What decoding raises for what is not the JSON that is expected, no text, or nested too deep."""


class Codec(Generic[V]):
    """Encodes values of one queue as JSON and decodes them to `value_type`."""

    __slots__ = ("_decoder", "_encoder")

    def __init__(self, value_type: Any) -> None:
        self._encoder = msgspec.json.Encoder()
        try:
            self._decoder: msgspec.json.Decoder[V] = msgspec.json.Decoder(value_type)
        except TypeError as error:
            raise TypeError(f"value_type cannot be {value_type!r}: {error}") from error

    def encode(self, key: str, value: V) -> bytes:
        """The value as JSON; a clear error when it cannot be that."""
        try:
            raw = self._encoder.encode(value)
            check_finite(value, raw)
        except (TypeError, ValueError, RecursionError, OverflowError) as error:
            kind = type(value).__name__
            message = f"the value of key {describe(key)} cannot be stored as JSON ({kind}): {error}"
            raise TypeError(message) from error
        return raw

    def decode(self, key: str, raw: bytes) -> V:
        """The value; an `UndecodableValueError` when it is not of the type."""
        try:
            return self._decoder.decode(raw)
        except UNREADABLE as error:
            message = f"the stored value of key {describe(key)} is not as expected: {error}"
            raise UndecodableValueError(message, key=key, raw=raw) from error
