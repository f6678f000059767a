"""The fields of an item of a repository: what each may be, and what a value is made of.

A field is JSON on one line. Checking one returns it in the form in which we write it, which every
YAML reader takes for what it is: times as text with their offset, and numbers that readers of
YAML 1.1 do not take for text.
"""

import re
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import lru_cache

import msgspec

from leasedkeyq.engines.file.document.json_fields import (
    LARGEST,
    NonsenseError,
    check_text,
    decode,
    decode_time,
    encode,
    encode_mapping,
    encode_time,
    readable,
)

FIELDS = (
    "id",
    "type",
    "payload",
    "status",
    "created_at",
    "priority",
    "scheduled_at",
    "started_at",
    "completed_at",
    "retry_count",
    "max_retries",
    "error_message",
    "metadata",
)
"""The fields that every item has."""
ALL_FIELDS = (*FIELDS, "group")
"""All fields: those of an item with a group."""
NEEDED = ("type", "payload", "created_at", "max_retries", "metadata")
"""The fields in the value of an item that is not done."""
OPTIONAL = ("scheduled_at", "started_at", "completed_at", "error_message")
"""The fields that it may have besides, and `retry_count`."""
FINISHED = frozenset(("completed", "cancelled", "failed"))
STATUSES = frozenset(("pending", "processing", *FINISHED))
UTC = "+00:00"
LONGEST_NAME = 1000
"""YAML readers do not take longer names in a mapping on one line."""

_TIME = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[Tt ](\d\d:\d\d)(:\d\d)?(\.\d{1,18})?)? ?(Z|z|[+-]\d\d:?\d\d)?"
)
_EXPONENT = re.compile(r"\d[eE][+-]?\d")
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?[eE][+-]?\d+')
_LONG_NAME = re.compile(rf'"(?:[^"\\]|\\.){{{LONGEST_NAME + 1},}}":')


def check_fields(fields: dict[str, str], names: Iterable[str], where: str) -> dict[str, str]:
    """Check the fields that are among `names`.

    Raises:
        NonsenseError: One is not what it must be.
    """
    return {name: _CHECKS[name](fields[name], name, where) for name in names if name in fields}


def read_value(value: bytes, names: tuple[str, ...], where: str) -> dict[str, str]:
    """The fields in a value, which must be an object with nothing but `names`.

    Raises:
        NonsenseError: It is something else.
    """
    try:
        members = msgspec.json.decode(value, type=dict[str, msgspec.Raw])
        fields = {name: bytes(text).decode() for name, text in members.items()}
        others = fields.keys() - set(names)
        if others:
            raise NonsenseError(f"{where}: the value has the unknown field {min(others)!r}")
        for name in ("type", "payload"):
            if name not in fields:
                raise NonsenseError(f"{where}: the value has no field {name!r}")
        return check_fields(fields, names, where)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise NonsenseError(f"{where}: the value is not that of an item: {error}") from error


def make_value(fields: dict[str, str]) -> bytes:
    """The value that has these fields."""
    return msgspec.json.format(encode_mapping(fields).encode(), indent=-1)


def encode_utc(moment: float) -> str:
    """A moment as text in UTC; as a number where no text can say it."""
    return encode_time(moment, UTC)


# One for each sort of field


def _text(text: str, name: str, where: str) -> str:
    return encode(decode(text, str, name, where))


def _text_or_null(text: str, name: str, where: str) -> str:
    return text if text == "null" else _text(text, name, where)


def _group(text: str, name: str, where: str) -> str:
    if text == "null":
        return text
    group = decode(text, str, name, where)
    if not group:
        raise NonsenseError(f"{where}: group must be a text that is not empty, or null")
    check_text(group, f"{where}: group")
    return encode(group)


def _status(text: str, name: str, where: str) -> str:
    status = decode(text, str, name, where)
    if status not in STATUSES:
        raise NonsenseError(
            f"{where}: no such status: {status!r}; there are {', '.join(sorted(STATUSES))}. If it "
            f"is one of your own, say which it is: QueueRepository(path, status_map={{{status!r}: "
            '"pending"})'
        )
    return encode(status)


def _whole(least: int) -> Callable[[str, str, str], str]:
    def check(text: str, name: str, where: str) -> str:
        number = decode(text, int, name, where)
        if not least <= number <= LARGEST:
            raise NonsenseError(f"{where}: {name} is out of range: {number}")
        return str(number)

    return check


def _mapping(text: str, name: str, where: str) -> str:
    decode(text, dict[str, msgspec.Raw], name, where)
    text = readable(text.encode())
    if len(text) > LONGEST_NAME and _LONG_NAME.search(text):
        message = f"a name in {name} has more than {LONGEST_NAME} characters"
        raise NonsenseError(f"{where}: {message}, which YAML readers do not take")
    return _TOKEN.sub(_number, text) if _EXPONENT.search(text) else text


def _number(found: "re.Match[str]") -> str:
    """YAML 1.1 wants a point and a sign: it takes 1e5 for a text, and 1.0e+5 for a number."""
    token = found[0]
    if token[0] == '"':
        return token
    mantissa, exponent = re.split("[eE]", token)
    if "." not in mantissa:
        mantissa += ".0"
    return f"{mantissa}e{exponent if exponent[0] in '+-' else f'+{exponent}'}"


def _time_or_null(text: str, name: str, where: str) -> str:
    return text if text == "null" else _time(text, name, where)


def _time(text: str, name: str, where: str) -> str:
    written = _aware(text)
    decode_time(written, f"{where}: {name}")
    return written


@lru_cache(4096)
def _aware(text: str) -> str:
    """A time as text with its offset; one without is local time."""
    if text[0] != '"':
        try:
            return encode_utc(msgspec.json.decode(text, type=float))
        except msgspec.DecodeError:
            return text
    found = _TIME.fullmatch(text[1:-1])
    if found is None:
        return text
    date, clock, seconds, fraction, zone = found.groups()
    written = f"{date}T{clock or '00:00'}{seconds or ':00'}"
    if zone is None:
        zone = _local_offset(written)
    elif zone in "Zz":
        zone = UTC
    elif len(zone) == len("+0100"):
        zone = f"{zone[:3]}:{zone[3:]}"
    return f'"{written}{fraction or ""}{zone}"'


def _local_offset(written: str) -> str:
    """The offset of local time at a moment. Where the calendar does not know it, that of UTC."""
    try:
        offset = datetime.fromisoformat(written).astimezone().strftime("%z")
    except (ValueError, OverflowError, OSError):
        return UTC
    # Long ago the offsets had seconds, which ISO 8601 cannot say; here that does not matter.
    return f"{offset[:3]}:{offset[3:5]}"


_CHECKS: dict[str, Callable[[str, str, str], str]] = {
    "id": _text,
    "type": _text,
    "payload": _mapping,
    "status": _status,
    "created_at": _time,
    "priority": _whole(-LARGEST),
    "scheduled_at": _time_or_null,
    "started_at": _time_or_null,
    "completed_at": _time_or_null,
    "retry_count": _whole(-LARGEST),
    "max_retries": _whole(0),
    "error_message": _text_or_null,
    "metadata": _mapping,
    "group": _group,
}
