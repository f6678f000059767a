"""How a command and its end are written down in a store."""

import re
from typing import Any

import msgspec

from leasedkeyq.errors import describe
from leasedkeyq.lanes.errors import (
    CommandCancelledError,
    CommandPayloadError,
    RemoteCommandError,
)
from leasedkeyq.lanes.workflow.note import WorkflowNote
from leasedkeyq.lanes.workflow.outcome import read_outcomes
from leasedkeyq.model.admission import check_size
from leasedkeyq.model.requests import Limits, StoredItem
from leasedkeyq.stores.codec import UNREADABLE
from leasedkeyq.stores.finite import check_finite


class Envelope(msgspec.Struct, omit_defaults=True):
    """A command in a store: the value of its item. Its type is the kind of the item."""

    payload: msgspec.Raw
    """The arguments, as JSON."""
    at: float
    """When it was submitted, as Unix time."""
    timeout: float | None = None
    """How long it may run; None: as its lane says; 0: as long as it likes."""
    after: float = 0.0
    """How many seconds it was delayed."""
    trace: dict[str, str] | None = None
    """The trace context of its submission."""
    coalesces: bool = False
    """Whether it stands for the commands of its key that it has replaced."""
    unique_for: float = 0.0
    """Seconds for which its result is kept at least."""
    workflow: WorkflowNote | None = None
    """Its part in a chain or a gather."""


class Continuation(msgspec.Struct, frozen=True):
    """As what a chain goes on behind a step that is done."""

    lane: str
    key: str
    id: int
    type: str
    """The command type of the next step."""


class CommandEnding(msgspec.Struct, omit_defaults=True):
    """What became of a command: the result of its item."""

    result: msgspec.Raw = msgspec.Raw(b"null")
    cancelled: bool = False
    opaque: str = ""
    """The result, as text, where it cannot be written down."""
    continued: Continuation | None = None
    """The next step of its chain, which has the result of this one."""
    gathered: bool = False
    """Whether the result is the outcomes of a gather of commands of this type."""


_encoder = msgspec.json.Encoder()
_envelopes = msgspec.json.Decoder(Envelope)
_endings = msgspec.json.Decoder(CommandEnding)

_RETRY_NOTE = re.compile(r"; tried again after (\d+(?:\.\d+)?(?:e[+-]\d+)?) s$")
PARKED = "leasedkeyq.dead_letter"
"""The type of a letter on its way to the dead letters of a store. No worker knows it."""
CANCELLED = _encoder.encode(CommandEnding(cancelled=True))


def encode_envelope(envelope: Envelope, kind: str, key: str, limits: Limits) -> bytes:
    """An envelope as JSON.

    Raises:
        LimitExceededError: It is too large.
    """
    raw = _encoder.encode(envelope)
    check_size(f"command {kind!r}", key, raw, limits)
    return raw


def decode_envelope(raw: bytes) -> Envelope:
    """The envelope that a store kept.

    Raises:
        CommandPayloadError: It is none.
    """
    try:
        return _envelopes.decode(raw)
    except UNREADABLE as error:
        raise CommandPayloadError(f"this is no command: {error}: {describe(raw)}") from error


def retry_note(line: str, delay: float) -> str:
    """What the history of an item says of an attempt that failed, and is followed by another."""
    return f"{line}; tried again after {delay:.6g} s"


def available_since(item: StoredItem) -> float | None:
    """When the command of a running item could have started, after an attempt that failed.

    As Unix time of the store. None if its history says nothing.
    """
    if not item.history:
        return None
    last = item.history[-1]
    delay = _RETRY_NOTE.search(last.error)
    return last.ended_at if delay is None else last.ended_at + float(delay[1])


def plain_payload(payload: Any, kind: str, key: str) -> msgspec.Raw:
    """Arguments that are at hand as plain values, as the payload of an envelope.

    Raises:
        CommandPayloadError: They cannot be written down.
    """
    try:
        raw = _encoder.encode(payload)
        check_finite(payload, raw)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise CommandPayloadError(
            f"command {kind!r} cannot be written down: {error}", command_type=kind, key=key
        ) from error
    return msgspec.Raw(raw)


def read_payload(item: StoredItem) -> tuple[Any, float]:
    """The arguments of a stored command as plain values, and when it was submitted.

    What is no command is shown as it is stored.
    """
    try:
        envelope = decode_envelope(item.value)
        return msgspec.json.decode(envelope.payload), envelope.at
    except (CommandPayloadError, *UNREADABLE):
        return item.value, item.put_at


def coalesces(item: StoredItem) -> bool:
    """Whether the command of a stored item stands for those that it has replaced."""
    try:
        return decode_envelope(item.value).coalesces
    except CommandPayloadError:
        return False


def ending(result: Any, most: int, *, gathered: bool = False) -> bytes:
    """How a command ended that returned `result`; at least as text.

    A result with NaN or infinity in it cannot be written down, either. `gathered` says that it is
    the outcomes of a gather.
    """
    try:
        plain = _encoder.encode(result)
        if result is not None:
            check_finite(result, plain)
        raw = _encoder.encode(CommandEnding(result=msgspec.Raw(plain), gathered=gathered))
    except (TypeError, ValueError, RecursionError, OverflowError, msgspec.MsgspecError):
        return _encoder.encode(CommandEnding(opaque=describe(result)))
    if len(raw) > most:
        return _encoder.encode(CommandEnding(opaque=describe(result)))
    return raw


def continued(step: Continuation) -> bytes:
    """How a step of a chain ended that was followed by another."""
    return _encoder.encode(CommandEnding(continued=step))


def continuation(raw: bytes) -> Continuation | None:
    """The next step of its chain, if a command has ended with one."""
    if b'"continued":' not in raw:
        return None  # the usual case, at once
    try:
        return _endings.decode(raw).continued
    except UNREADABLE:
        return None


def is_cancelled(raw: bytes) -> bool:
    """Whether a command was cancelled that has ended with this."""
    try:
        return _endings.decode(raw).cancelled
    except UNREADABLE:
        return False


def outcome(
    raw: bytes, returns: Any, lane: str, kind: str, key: str
) -> tuple[Any, Exception | None]:
    """The result that a store kept, or the exception that stands for it."""
    about: dict[str, str] = {"lane": lane, "command_type": kind, "key": key}
    name = f"lane {lane!r}: command {kind!r} of key {describe(key)}"
    try:
        kept = _endings.decode(raw)
        if kept.cancelled:
            return None, CommandCancelledError(f"{name} was cancelled", **about)
        if kept.opaque:
            message = (
                f"{name} is done, but its result could not be written down: {kept.opaque}; let it "
                "return what msgspec can encode, within the limits of the store"
            )
            return None, RemoteCommandError(message, error_type="TypeError", **about)
        if kept.gathered:
            listed = msgspec.json.decode(kept.result, type=list[msgspec.Raw])
            return read_outcomes([bytes(one) for one in listed], returns), None
        return _decode(kept.result, returns), None
    except UNREADABLE as error:
        message = f"{name} is done, but its result cannot be read: {error}"
        return None, RemoteCommandError(message, error_type=type(error).__name__, **about)


def _decode(raw: msgspec.Raw, returns: Any) -> Any:
    try:
        return msgspec.json.decode(raw, type=returns)
    except TypeError:  # the annotation is beyond msgspec
        return msgspec.json.decode(raw)
