"""The fields of the file store's document: each is one line of JSON, checked when it is read."""

import base64
import math
import re
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, TypeVar

import msgspec

from leasedkeyq.errors import LeasedKeyQError
from leasedkeyq.model.requests import (
    OUTCOMES,
    Attempt,
    ResultOutcome,
)

TIME = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{1,18}))? ?(Z|z|[+-]\d\d:?\d\d)")
_TEXT = re.compile(r'"([^"\\]*)"[ ]*(:?)')
LARGEST = 2**63 - 1
MICROS = 6
NANOS = 9
YEAR_10000 = 253402300800

T = TypeVar("T")


class NonsenseError(LeasedKeyQError):
    """The document does not say what a queue can be. The message tells where and why."""


# Writing


def encode(value: object) -> str:
    """A JSON text on one line."""
    return msgspec.json.encode(value).decode()


def readable(value: bytes) -> str:
    """JSON on one line as people read it: with spaces, and with letters instead of escapes."""
    if b"\\u" in value:
        value = msgspec.json.encode(msgspec.json.decode(value))
    return msgspec.json.format(value, indent=0).decode()


def encode_mapping(parts: dict[str, str]) -> str:
    """Fields as one JSON text."""
    return "{" + ", ".join(f'"{name}": {text}' for name, text in parts.items()) + "}"


def encode_history(history: tuple[Attempt, ...]) -> str:
    """Past attempts as one JSON text."""
    return f"[{', '.join(map(_attempt, history))}]"


def encode_progress(progress: bytes) -> str:
    """Progress as one JSON text: as people read it where it is text, else in Base64."""
    try:
        text = progress.decode()
    except UnicodeDecodeError:
        text = "\n"
    if text.isprintable():
        return encode(text)
    return encode_mapping({"raw": encode(base64.b64encode(progress).decode())})


def _attempt(attempt: Attempt) -> str:
    parts = {"number": str(attempt.number), "ended_at": encode_time(attempt.ended_at)}
    parts["how"] = encode(attempt.how)
    if attempt.error:
        parts["error"] = encode(attempt.error)
    return encode_mapping(parts)


def encode_time(moment: float, utc: str = "Z") -> str:
    """A moment as ISO 8601 in UTC, with as many digits as it takes, or else as a number."""
    whole = math.floor(moment) if math.isfinite(moment) else -1
    if 0 <= whole < YEAR_10000:
        clock = datetime.fromtimestamp(whole, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        for digits in (0, MICROS, NANOS):
            fraction = f"{moment - whole:.{digits}f}"[1:] if digits else ""
            if moment == float(f"{whole}{fraction}") and moment - whole < 1 - 10.0**-NANOS:
                return f'"{clock}{fraction}{utc}"'
    return repr(moment)


# Reading


def decode(text: str, kind: type[T], name: str, where: str) -> T:
    """Read a field of a given type."""
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise NonsenseError(f"{where}: {name}: {error}") from error


def decode_whole(
    fields: dict[str, str], name: str, where: str, *, least: int = 0, needed: bool = False
) -> int:
    """Read a whole number; 0 where it is missing."""
    text = fields.get(name)
    if text is None and not needed:
        return 0
    number = decode(text or "null", int, name, where)
    if not least <= number <= LARGEST:
        raise NonsenseError(f"{where}: {name} is out of range: {number}")
    return number


def decode_text(fields: dict[str, str], name: str, where: str) -> str:
    """Read a text that must be there."""
    return decode(fields.get(name, "null"), str, name, where)


def decode_outcome(fields: dict[str, str], name: str, where: str) -> ResultOutcome:
    """Read how an item ended, which must be there."""
    text = decode_text(fields, name, where)
    for outcome in OUTCOMES:
        if outcome == text:
            return outcome
    raise NonsenseError(f"{where}: no such {name}: {text!r}")


def decode_mapping(text: str, name: str, where: str) -> dict[str, str]:
    """Read fields in a field."""
    return _texts(decode(text, dict[str, msgspec.Raw], name, where))


def _texts(raw: dict[str, msgspec.Raw]) -> dict[str, str]:
    return {name: bytes(text).decode() for name, text in raw.items()}


def decode_key(fields: dict[str, str], name: str, where: str) -> str:
    """Read a key. A number is a key, too, as a person may forget the quotes."""
    if name not in fields:
        raise NonsenseError(f"{where}: it has no {name}")
    key: Any = msgspec.json.decode(fields[name])
    if isinstance(key, int) and not isinstance(key, bool):
        key = str(key)
    if not isinstance(key, str):
        raise NonsenseError(f"{where}: the {name} must be text, put it in quotes: {fields[name]}")
    check_text(key, f"{where}: the {name}")
    return key


def check_text(text: str, what: str) -> None:
    """See that `text` can be a name."""
    if not text:
        raise NonsenseError(f"{what} must not be empty")
    if "\x00" in text:
        raise NonsenseError(f"{what} must not have NUL characters")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise NonsenseError(f"{what} must be text without lone surrogates") from error


def check_mapping(value: object, what: str) -> None:
    """See that a value that was read is a mapping."""
    if not isinstance(value, dict):
        raise NonsenseError(f"{what} is not a mapping of names to values")


def check_list(value: object, what: str) -> None:
    """See that a value that was read is a list."""
    if not isinstance(value, list):
        raise NonsenseError(f"{what} are not a list")


def decode_history(text: str, where: str) -> tuple[Attempt, ...]:
    """Read past attempts."""
    history: list[Attempt] = []
    for raw in decode(text, list[dict[str, msgspec.Raw]], "history", where):
        parts = _texts(raw)
        number = decode_whole(parts, "number", where)
        moment = decode_time(parts.get("ended_at", "null"), where)
        how = decode(parts.get("how", "null"), Attempt.__annotations__["how"], "how", where)
        error = decode_text(parts, "error", where) if "error" in parts else ""
        history.append(Attempt(number, moment, how, error))
    return tuple(history)


def decode_progress(fields: dict[str, str], where: str) -> bytes | None:
    """Read progress; None where there is none."""
    if "progress" not in fields:
        return None
    kind: Any = str | dict[str, bytes]
    told: Any = decode(fields["progress"], kind, "progress", where)
    if isinstance(told, str):
        return told.encode()
    if list(told) != ["raw"]:
        raise NonsenseError(f"{where}: progress must be text, or raw in Base64")
    raw: bytes = told["raw"]
    return raw


def decode_time(text: str, where: str) -> float:
    """A moment from ISO 8601 with a zone, or from a number of seconds since 1970."""
    try:
        return _moment(text)
    except ValueError as error:
        advice = "a time looks like 2026-01-31T12:00:00Z (with its zone)"
        raise NonsenseError(f"{where}: {advice}, not like {text}: {error}") from error


def decode_moment(fields: dict[str, str], name: str, where: str) -> float | None:
    """Read a time; None where it is missing or null."""
    text = fields.get(name, "null")
    return None if text == "null" else decode_time(text, where)


@lru_cache(4096)
def _moment(text: str) -> float:
    moment: Any = msgspec.json.decode(text)
    if isinstance(moment, str):
        parts = TIME.fullmatch(moment)
        if parts is None:
            raise ValueError("not ISO 8601 with a zone")
        date, clock, fraction, zone = parts.groups()
        whole = datetime.fromisoformat(f"{date}T{clock}{zone.replace('z', 'Z')}").timestamp()
        return float(f"{math.floor(whole)}.{fraction}") if fraction else whole
    if isinstance(moment, bool) or not isinstance(moment, int | float):
        raise ValueError("neither text nor a number")  # noqa: TRY004 - it is about the document
    return float(moment)


def check_names(text: bytes) -> None:
    """Names that are there twice, of which a JSON reader silently takes one.

    Raises:
        NonsenseError: There is one.
    """
    import json  # noqa: PLC0415 - only for a file that was edited

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if len(members) != len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise NonsenseError(f"the name {twice!r} is there twice in one place")
        return members

    try:
        json.loads(text, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise NonsenseError(f"not JSON: {error}") from error


def check_names_once(json: str) -> None:
    """As `check_names`, and quick where it is plain that no name is there twice.

    Raises:
        NonsenseError: There is one.
    """
    names = [name for name, colon in _TEXT.findall(json) if colon]
    if "\\" in json or len(set(names)) < len(names):
        check_names(json.encode())
