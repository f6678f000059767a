"""The error of a command that ran elsewhere: what is written down of it, and how it comes back.

An exception is never pickled. Its class is written down by name, with those of its arguments and
attributes that are plain values. Whoever reads that looks for the class in three places only: in
`builtins`, among the errors of this package, and in the module of the command, which is imported
already. So nothing that is in a store can have a module imported or a function called.
"""

import builtins
import sys
from collections.abc import Mapping
from math import isfinite
from types import ModuleType
from typing import Any, TypeAlias

import msgspec

from leasedkeyq.checks import is_text, storable
from leasedkeyq.errors import describe
from leasedkeyq.lanes.errors import RemoteCommandError

Plain: TypeAlias = str | int | float | bool | None

MARK = "\nraised: "
"""Stands before what is written down of an exception, behind its line and its traceback."""
LONGEST_VALUE = 1000
LONGEST = 4000
"""Characters of one value, and of all that is written down."""
OURS = ("leasedkeyq.errors", "leasedkeyq.lanes.errors")
NOT_MADE = (BaseExceptionGroup, StopIteration, StopAsyncIteration)
"""A group is nothing without its exceptions, and the others cannot come out of a coroutine."""


class Raised(msgspec.Struct, omit_defaults=True):
    """What is known of an exception beside its text."""

    type: str
    """Its class, as ``module:name``."""
    args: list[Plain]
    """Its arguments, or what it says where they are no plain values."""
    attributes: dict[str, Plain] = {}
    """Those of its attributes that are plain values."""
    timed_out: bool = False
    """Whether the command was ended because it ran too long."""


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Raised)


def join(line: str, traceback: str, error: BaseException, *, timed_out: bool) -> str:
    """All that a store keeps of an exception: a line, where it was raised, and what it was.

    What cannot be written down is replaced: names of files may have such characters in them.
    """
    kind, line, traceback = type(error), storable(line), storable(traceback)
    given: tuple[Any, ...] = error.args
    if isinstance(error, OSError) and error.filename is not None:
        given = (*given, error.filename)  # which it keeps apart
    args: list[Plain] = [arg for arg in given if _is_plain(arg)]
    if len(args) < len(given):
        args = [line.partition(": ")[2]]
    name = storable(f"{kind.__module__}:{kind.__qualname__}")
    raised = Raised(name, args, timed_out=timed_out)
    full = msgspec.structs.replace(raised, attributes=_attributes(error))
    for form in (full, raised):
        text = _encoder.encode(form).decode()
        if len(text) <= LONGEST:
            return f"{line}\n{traceback.rstrip()}{MARK}{text}"
    return f"{line}\n{traceback.rstrip()}"


def split(text: str) -> tuple[str, str, Raised | None]:
    """The line, the traceback and the rest of what a store kept of an exception."""
    told, mark, form = text.rpartition(MARK)
    raised: Raised | None = None
    if mark:
        try:
            raised = _decoder.decode(form)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            told = text  # somebody else has written this
    else:
        told = text
    line, _, traceback = told.partition("\n")
    return line, traceback, raised


def failure(
    text: str, module: str, *, lane: str, command_type: str, key: str
) -> tuple[Exception, bool]:
    """The exception of a command that was given up elsewhere, and whether it had timed out.

    Args:
        text: What the store has kept of it.
        module: The name of the module of the command, in which its class may be.
        lane: The lane of the command.
        command_type: The type of the command.
        key: Its key.
    """
    line, traceback, raised = split(text)
    remote = RemoteCommandError(
        f"lane {lane!r}: command {command_type!r} of key {describe(key)} failed: {line}",
        lane=lane,
        command_type=command_type,
        key=key,
        error_type=line.partition(":")[0],
        traceback=traceback,
    )
    if raised is None:
        return remote, False
    error = _made(raised, module)
    if error is None:
        return remote, raised.timed_out
    error.__cause__ = remote
    return error, raised.timed_out


def _made(raised: Raised, module: str) -> Exception | None:
    """The exception again, if its class is found and can be made of plain values."""
    kind = _class_of(raised.type, module)
    if kind is None:
        return None
    try:
        if kind.__module__ == "builtins":
            error: Exception = kind(*raised.args)
        else:
            # Not its `__init__`, which may want other arguments, or do something.
            base: Any = next(cls for cls in kind.__mro__ if cls.__module__ == "builtins")
            error = base.__new__(kind, *raised.args)
            error.args = tuple(raised.args)
            vars(error).update(_without_dunders(raised.attributes))
        str(error)
    except Exception:
        return None
    return error


def _class_of(name: str, module: str) -> type[Exception] | None:
    """The class of this name, if it is in a place where it may be looked for."""
    home, _, path = name.partition(":")
    if home == "builtins":
        place: Any = builtins
    else:
        place = sys.modules.get(home if home in OURS else module)
    for part in path.split("."):
        # Not by `getattr`, which may call a function of a module.
        inside: dict[str, Any] = getattr(place, "__dict__", {})
        place = inside.get(part) if isinstance(place, type | ModuleType) else None
    if not isinstance(place, type) or not issubclass(place, Exception):
        return None
    same = place.__qualname__ == path and (
        place.__module__ == home or "__main__" in {place.__module__, home}
    )
    return None if not same or issubclass(place, NOT_MADE) else place


def _attributes(error: BaseException) -> dict[str, Plain]:
    own = _without_dunders(vars(error))
    return {name: value for name, value in own.items() if is_text(name) and _is_plain(value)}


def _without_dunders(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Python's own attributes, such as ``__notes__``, are not told, nor taken from a store."""
    return {name: value for name, value in attributes.items() if not name.startswith("__")}


def _is_plain(value: object) -> bool:
    if isinstance(value, float):
        return type(value) is float and isfinite(value)
    if isinstance(value, str):
        return type(value) is str and len(value) <= LONGEST_VALUE and is_text(value)
    if isinstance(value, bool) or value is None:
        return True
    return type(value) is int and abs(value) < 2**63
