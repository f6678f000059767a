"""How far a command has come: what it tells, and how that is written down."""

from math import isfinite
from typing import Any

import msgspec

from leasedkeyq.errors import describe
from leasedkeyq.lanes.errors import CommandPayloadError
from leasedkeyq.stores.codec import UNREADABLE
from leasedkeyq.stores.finite import check_finite


class Progress(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a command has come, as it told by `RunningCommand.progress`."""

    value: Any = None
    """What it told: a fraction from 0 to 1, or any other value as JSON has it."""
    text: str = ""
    """What it said about that, for people."""
    at: float = 0.0
    """When it told, as Unix time, by the clock of its worker."""
    attempt: int = 0
    """Which attempt told, from 1. A later one may run, and have told nothing yet."""

    @property
    def fraction(self) -> float | None:
        """`value` as a fraction from 0 to 1; None if it is something else."""
        value = self.value
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            return None
        return float(value)


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Progress)


def encode_progress(value: object, text: str, at: float, attempt: int, name: str) -> bytes:
    """What a command tells, as it is stored; `name` is what errors call the command.

    Raises:
        ValueError: A float is not from 0 to 1.
        TypeError: The text is no text.
        CommandPayloadError: The value cannot be written as JSON.
    """
    if isinstance(value, float) and not (isfinite(value) and 0 <= value <= 1):
        raise ValueError(
            f"{name}: a float is a fraction of the work, from 0 to 1, got {value!r}; pass a count "
            "as an int, or anything else as a mapping"
        )
    if not isinstance(text, str):
        raise TypeError(f"{name}: text must be a str, got {type(text).__name__}")
    try:
        raw = _encoder.encode(Progress(value, text, at, attempt))
        if not isinstance(value, float | int | str):
            check_finite(value, raw)
    except (TypeError, ValueError, RecursionError, OverflowError, msgspec.MsgspecError) as error:
        raise CommandPayloadError(
            f"{name}: its progress cannot be written down: {error}; tell what JSON has: numbers, "
            f"texts, lists, mappings; got {describe(value)}"
        ) from error
    return raw


def decode_progress(raw: bytes | None) -> Progress | None:
    """What was stored; None for nothing. What another program has stored is shown as text."""
    if raw is None:
        return None
    try:
        return _decoder.decode(raw)
    except UNREADABLE:
        return Progress(text=raw.decode(errors="replace"))
