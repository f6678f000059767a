"""From a stored item to what people see of it: `item_view`."""

from contextlib import suppress
from typing import Any

import msgspec

from leasedkeyq.lanes.durable.envelope import CommandEnding, Envelope, decode_envelope
from leasedkeyq.lanes.errors import CommandPayloadError
from leasedkeyq.lanes.running.command_id import command_id
from leasedkeyq.lanes.running.remote_errors import split
from leasedkeyq.lanes.workflow.note import WorkflowNote
from leasedkeyq.model.requests import StoredItem
from leasedkeyq.operations.store_layout import is_internal
from leasedkeyq.operations.views import ItemView
from leasedkeyq.stores.codec import UNREADABLE

_endings = msgspec.json.Decoder(CommandEnding)
_TRACE_PARTS = 4


def item_view(item: StoredItem, lane: str | None = None) -> ItemView:
    """What people see of an item.

    Args:
        item: The item.
        lane: Its lane, if its queue is known to be that of one. Without it, an item with a kind
            and the value of a command is shown as a command, too.
    """
    envelope = envelope_of(item, lane)
    done = item.state == "done"
    command = is_command(item, lane)
    raw, value, readable = ("", None, True) if done else _shown(item.value)
    if envelope is not None:
        raw, value, readable = _shown(bytes(envelope.payload))
    raw_result, result = _result(item, command=command) if done else ("", None)
    progress: Any = None
    if item.progress is not None:
        _, progress, decoded = _shown(item.progress)
        progress = progress if decoded else item.progress.decode("utf-8", "backslashreplace")
    return ItemView(
        id=item.id,
        command_id=command_id(item.id, item.queue, item.key) if command else "",
        queue=item.queue,
        lane=lane,
        key=item.key,
        state=item.state,
        kind=item.kind,
        value=value,
        raw=raw,
        readable=readable,
        size=len(item.value),
        priority=item.priority,
        attempt=item.attempt,
        put_at=item.put_at,
        due=item.due,
        error=error_of(item),
        history=item.history,
        leased_at=item.leased_at,
        holder=item.holder,
        deadline=item.deadline,
        outcome=item.outcome,
        ended_at=item.ended_at,
        result=result,
        raw_result=raw_result,
        progress=progress,
        holds=item.holds,
        submitted_at=None if envelope is None else envelope.at,
        trace_id="" if envelope is None else _trace_id(envelope),
        timeout=None if envelope is None else envelope.timeout,
        workflow="" if envelope is None else workflow_words(envelope.workflow),
    )


def envelope_of(item: StoredItem, lane: str | None = None) -> Envelope | None:
    """The envelope of a command that is not done; None if the item is no command."""
    if item.state != "done" and is_command(item, lane):
        with suppress(CommandPayloadError):
            return decode_envelope(item.value)
    return None


def is_command(item: StoredItem, lane: str | None = None) -> bool:
    """Whether an item is a command of a lane: plain queues have no kinds."""
    return not is_internal(item.queue) and bool(lane is not None or item.kind)


def error_of(item: StoredItem) -> str:
    """Why an item was buried, or how its last attempt failed: a line, and maybe a traceback."""
    text = item.error
    if not text and item.state != "buried" and item.history:
        text = item.history[-1].error
    if not text:
        return ""
    line, traceback, _ = split(text)
    return f"{line}\n{traceback}" if traceback else line


def workflow_words(note: WorkflowNote | None) -> str:
    """What part a command has in a chain or a gather."""
    if note is None:
        return ""
    parts: list[str] = []
    if note.chain:
        last = note.position + len(note.steps) + 1
        parts.append(f"step {note.position + 1} of {last} of {note.chain}")
    if note.member is not None:
        parts.append(f"member {note.member.number + 1} of {note.member.gather}")
    if note.gathered is not None:
        gathered = note.gathered
        parts.append(f"gets the outcomes of {gathered.gather}, which has {gathered.size} members")
    return "; ".join(parts)


def _shown(raw: bytes) -> tuple[str, Any, bool]:
    """A value as text, decoded, and whether it is JSON."""
    text = raw.decode("utf-8", "backslashreplace")
    try:
        return text, msgspec.json.decode(raw), True
    except UNREADABLE:
        return text, None, False


def _result(item: StoredItem, *, command: bool) -> tuple[str, Any]:
    """The result of an item that is done: as text, and decoded."""
    if command:
        with suppress(*UNREADABLE):
            ending = _endings.decode(item.value)
            if ending.cancelled:
                return "", None
            if ending.opaque:
                return ending.opaque, ending.opaque
            if ending.continued is not None:
                step = ending.continued
                lane = step.lane
                after = f"the chain goes on with {step.type!r} of key {step.key!r} in lane {lane!r}"
                return after, after
            text, value, _ = _shown(bytes(ending.result))
            return text, value
    text, value, readable = _shown(item.value)
    return text, value if readable else text


def _trace_id(envelope: Envelope) -> str:
    """The trace id in a carrier of the W3C trace context."""
    parts = (envelope.trace or {}).get("traceparent", "").split("-")
    return parts[1] if len(parts) >= _TRACE_PARTS else ""
