"""The id of a command: a text that names it in every process, also after a restart.

An id names the queue, the key and the number of a command, so a store finds the command without
an index of ids. It has only characters that a URL takes as they are: letters, digits and
``-._~``. Everything else of a name is written as ``~`` and two hexadecimal digits for each byte.
"""

import re
from typing import NamedTuple

from leasedkeyq.errors import describe
from leasedkeyq.lanes.errors import UnknownCommandError

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_-]*")
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_.-]*")
_NUMBER = re.compile(r"[0-9]{1,16}")
_ID = re.compile(r"([0-9]{1,16})(?:-([0-9a-f]+))?\.([A-Za-z0-9_~-]+)\.([A-Za-z0-9_.~-]+)")
_ESCAPE = re.compile(r"~([0-9a-f]{2})")

LARGEST_NUMBER = 2**53
"""Stores count items with numbers below it."""


class CommandName(NamedTuple):
    """What the id of a command names.

    Attributes:
        number: The number of the command: on a store, the id of its item.
        queue: The queue of its lane, or of a partition of that.
        key: Its key.
        scope: Which manager has it, if it is in memory; "" on a store.
    """

    number: int
    queue: str
    key: str
    scope: str = ""


def command_id(number: int, queue: str, key: str, scope: str = "") -> str:
    """The id of a command; see `CommandName`."""
    if _PLAIN_NAME.fullmatch(queue) is None:
        queue = _escaped(queue, _PLAIN_NAME)
    if _PLAIN_KEY.fullmatch(key) is None:
        key = _escaped(key, _PLAIN_KEY)
    return f"{number}-{scope}.{queue}.{key}" if scope else f"{number}.{queue}.{key}"


def parse_command_id(text: str) -> CommandName:
    """What an id names.

    Raises:
        UnknownCommandError: It is not the id of a command.
        TypeError: It is no text.
    """
    if not isinstance(text, str):
        raise TypeError(f"id must be a str, got {type(text).__name__}")
    match = _ID.fullmatch(text)
    if match is not None:
        try:
            place = CommandName(
                int(match[1]), _unescaped(match[3]), _unescaped(match[4]), match[2] or ""
            )
        except UnicodeDecodeError:
            pass
        else:
            # A command has one id, and not several spellings of it.
            if place.number < LARGEST_NUMBER and command_id(*place) == text:
                return place
    raise UnknownCommandError(
        f"{describe(text)} is not the id of a command; pass what handle.id or "
        "current_command().id told, unchanged"
    )


def number_of(text: str) -> int | None:
    """The number of the command that an id names; an older version wrote the number alone."""
    if _NUMBER.fullmatch(text) is not None:
        return int(text)
    try:
        return parse_command_id(text).number
    except UnknownCommandError:
        return None


def _escaped(text: str, plain: re.Pattern[str]) -> str:
    return "".join(
        character
        if plain.fullmatch(character)
        else "".join(f"~{byte:02x}" for byte in character.encode("utf-8", "surrogatepass"))
        for character in text
    )


def _unescaped(text: str) -> str:
    if "~" not in text:
        return text
    raw = _ESCAPE.sub(lambda found: chr(int(found[1], 16)), text)
    return raw.encode("latin-1").decode("utf-8", "surrogatepass")
