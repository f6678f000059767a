"""The items of a document that is one queue: their fields and their records.

The state of an item in the store is its ``status``:

- pending: available, or scheduled where ``scheduled_at`` lies ahead, or in line behind another item
  of its id, if its record says so,
- processing: in flight,
- failed: buried, or done where it was saved so,
- completed and cancelled: done.

The status of an item that is done is its outcome.

The value of an item that is not done has its fields as far as they do not follow from its state:
``type``, ``payload``, ``created_at``, ``max_retries``, ``metadata``, and where they are set,
``scheduled_at``, ``started_at``, ``completed_at``, ``error_message`` and ``retry_count``, which
counts what was before: the attempts that have ended come on top. The value of an item that is done
has all fields. Other values have no place in such a document.

What else the store has to know about an item is in its record. A record counts as long as the item
has the status that it was written for; after that, what the person wrote counts.
"""

import uuid
from typing import cast

from leasedkeyq.engines.file.document.document import IN_LINE, Entry, ItemFacts, LeaseFacts
from leasedkeyq.engines.file.document.json_fields import (
    LARGEST,
    NonsenseError,
    decode,
    decode_history,
    decode_key,
    decode_mapping,
    decode_moment,
    decode_outcome,
    decode_progress,
    decode_text,
    decode_time,
    decode_whole,
    encode,
    encode_history,
    encode_mapping,
    encode_progress,
    encode_time,
)
from leasedkeyq.engines.file.document.repository_fields import (
    ALL_FIELDS,
    FINISHED,
    NEEDED,
    OPTIONAL,
    check_fields,
    encode_utc,
    make_value,
    read_value,
)
from leasedkeyq.model.queue_model import Payload
from leasedkeyq.model.requests import StoredState
from leasedkeyq.stores.group_keys import group_key, group_of

LIVE_VALUE = (*NEEDED, *OPTIONAL, "retry_count")
GROUPED_VALUE = (*LIVE_VALUE, "id")
FOUND_LEASE = 300.0
"""Seconds that an item is leased which a document says is processing, without a lease."""
SAME_MOMENT = 1.0
"""Seconds by which the store's idea of `scheduled_at` may differ from what the item says."""

_STATUS: dict[str, str] = {
    "available": "pending",
    "scheduled": "pending",
    "in_flight": "processing",
    "buffered": "pending",
    "in_line": "pending",
    "buried": "failed",
}
_PENDING_OR_PROCESSING = frozenset(state for state in _STATUS if state != "buried")
_OF_ATTEMPTS = frozenset(("attempt", "history", "progress", "place", "own"))
_NOTHING = dict.fromkeys(OPTIONAL, "null")

# Writing


def write_item(facts: ItemFacts, max_retries: int) -> tuple[dict[str, str], dict[str, str]]:
    """The fields and the record of an item; `max_retries` is for one that does not tell.

    Raises:
        NonsenseError: Its value has no place in such a document.
    """
    where = f"the item {facts.key!r}"
    payload = facts.payload
    group = group_of(facts.key)
    fields = {
        "id": encode(facts.key),
        "created_at": encode_utc(payload.put_at),
        "priority": str(facts.priority),
        "retry_count": "0",
        "max_retries": str(max_retries),
        "metadata": "{}",
        **_NOTHING,
    }
    if facts.state == "done":
        value = read_value(payload.value, ALL_FIELDS, where)
        if group is None and value.get("id", fields["id"]) != fields["id"]:
            raise NonsenseError(f"{where}: its result has the id {value['id']}")
        if decode_text(value, "status", where) not in FINISHED:
            raise NonsenseError(f"{where}: its result has the status {value['status']}")
        fields |= value
        own: dict[str, str] = {}
    else:
        value = read_value(payload.value, LIVE_VALUE if group is None else GROUPED_VALUE, where)
        if group is not None and "id" in value:
            fields["group"] = encode(group)
        fields |= value
        fields |= _shown(facts, value, where)
        own = {
            name: value.get(name, default)
            for name, default in _NOTHING.items()
            if fields[name] != value.get(name, default)
        }
        count = decode_whole(value, "retry_count", where, least=-LARGEST)
        if int(fields["retry_count"]) != count + _ended(facts):
            own["retry_count"] = str(count)
    return fields, _record(facts, fields, own)


def _shown(facts: ItemFacts, value: dict[str, str], where: str) -> dict[str, str]:
    """The fields that follow from the state of an item that is not done."""
    count = decode_whole(value, "retry_count", where, least=-LARGEST) + _ended(facts)
    shown = {"status": encode(_STATUS[facts.state]), "retry_count": str(max(count, 0))}
    if (facts.state == "scheduled" or facts.state in IN_LINE) and facts.due is not None:
        said = decode_moment(value, "scheduled_at", where)
        if said is None or abs(said - facts.due) > SAME_MOMENT:
            shown["scheduled_at"] = encode_utc(facts.due)
    if facts.lease is not None and facts.lease.leased_at is not None:
        shown["started_at"] = encode_utc(facts.lease.leased_at)
    if facts.error:
        shown["error_message"] = encode(facts.error)
    elif "id" in value and "error_message" not in value and facts.payload.history:
        # The value of an item of a group is not changed by a failure.
        error = facts.payload.history[-1].error
        shown["error_message"] = encode(error) if error else "null"
    return shown


# Reading


def read_item(entry: Entry, max_retries: int, where: str, now: float) -> ItemFacts:
    """The item that an entry describes; fields that a person left out are filled in.

    Raises:
        NonsenseError: It says what an item cannot be.
    """
    fields = check_fields(entry.fields, ALL_FIELDS[1:], where)
    if fields.get("group") == "null":
        del fields["group"]
    record = decode_mapping(entry.record, "its record", where) if entry.record else {}
    state, known = _state(fields, record, where, now)
    put_at = decode_moment(record, "put_at", where)
    if put_at is None:
        put_at = decode_time(fields["created_at"], where) if "created_at" in fields else now
    decode_whole(fields, "retry_count", where)
    name = decode_key(entry.fields, "id", where)
    key = name
    joins = False
    if state != "done":
        if "group" in fields:
            key = group_key(decode_text(fields, "group", where))
        joins = _joins(state, fields, record, known=known)
        if joins:
            # What the store told of its attempts stays in its fields.
            record = {part: text for part, text in record.items() if part not in _OF_ATTEMPTS}
        if joins and state == "in_flight" and record:
            message = "it is processing, and only an item that is pending can join or leave a group"
            raise NonsenseError(f"{where}: {message}")
    fields = {
        "id": encode(name),
        "type": '"task"',
        "payload": _bare_payload(entry),
        "status": '"pending"',
        "priority": "0",
        **_NOTHING,
        "retry_count": "0",
        "max_retries": str(max_retries),
        "metadata": "{}",
        **fields,
    }
    fields.setdefault("created_at", encode_utc(put_at))
    facts = ItemFacts(
        key=key,
        state=state,
        payload=Payload(
            b"",
            decode_whole(record, "number", where),
            put_at,
            decode_history(record["history"], where) if "history" in record else (),
            decode_text(record if "kind" in record else fields, _kind(record), where),
            decode_moment(record, "deadline", where),
            decode_progress(record, where),
        ),
        priority=int(fields["priority"]),
        attempt=decode_whole(record, "attempt", where),
        name=name,
        joins=joins,
    )
    if state == "done":
        of = record if known and "outcome" in record else {"outcome": fields["status"]}
        facts.outcome = decode_outcome(of, "outcome", where)
    if not known:
        record.pop("own", None)
        _find(facts, fields, where, now)
    else:
        _recall(facts, fields, record, where, now)
    facts.payload.value = _value(facts, fields, record, where)
    return facts


def was_written_for(record: dict[str, str], entry: Entry) -> bool:
    """Whether an entry has the status that its record was written for."""
    state, status = record.get("state", "").strip('"'), entry.fields.get("status", '"pending"')
    if state == "done":
        return status.strip('"') in FINISHED
    return status == f'"{_STATUS.get(state)}"'


def _find(facts: ItemFacts, fields: dict[str, str], where: str, now: float) -> None:
    """An item in a state that the store did not bring it to."""
    if facts.state == "scheduled":
        facts.due = decode_moment(fields, "scheduled_at", where)
    elif facts.state == "in_flight":
        facts.attempt += 1
        since = decode_moment(fields, "started_at", where)
        expires_at = now + FOUND_LEASE
        facts.lease = LeaseFacts(str(uuid.uuid4()), 0, expires_at, now if since is None else since)
    elif facts.state == "buried":
        facts.error = _error(fields, where)
        facts.buried_at = now
    elif facts.state == "done":
        facts.ended_at = now
        if fields["status"] == '"completed"' and fields["completed_at"] == "null":
            fields["completed_at"] = encode_utc(now)


def _recall(
    facts: ItemFacts, fields: dict[str, str], record: dict[str, str], where: str, now: float
) -> None:
    """An item in the state for which its record was written."""
    if facts.state in IN_LINE:
        scheduled = decode_moment(fields, "scheduled_at", where)
        same = _is_schedule(scheduled, decode_moment(record, "due", where))
        facts.due = decode_moment(record, "not_before", where) if same else scheduled
    elif facts.state != "available":
        facts.due = decode_moment(record, "due", where)
    if "place" in record:
        facts.place = decode_whole(record, "place", where, least=-LARGEST)
    if facts.state == "in_flight":
        facts.lease = LeaseFacts.decode(record["lease"], where)
    if facts.state == "buried":
        moment = decode_moment(record, "buried_at", where)
        facts.buried_at = now if moment is None else moment
        facts.holds = decode(record.get("hold", "false"), bool, "hold", where)
        facts.error = _error(record if "error_message" in record else fields, where)
    if facts.state == "done":
        facts.ended_at = decode_moment(record, "ended_at", where)
        if "priority" in record:
            facts.priority = decode_whole(record, "priority", where, least=-LARGEST)


def _value(facts: ItemFacts, fields: dict[str, str], record: dict[str, str], where: str) -> bytes:
    if facts.state == "done":
        return make_value({name: fields[name] for name in ALL_FIELDS if name in fields})
    own = decode_mapping(record["own"], "own", where) if "own" in record else {}
    own = check_fields(own, LIVE_VALUE, where)
    value = {name: fields[name] for name in NEEDED}
    for name in OPTIONAL:
        text = own.get(name, fields[name])
        if text != "null":
            value[name] = text
    count = own.get("retry_count", str(int(fields["retry_count"]) - _ended(facts)))
    if count != "0":
        value["retry_count"] = count
    if "group" in fields:
        value["id"] = fields["id"]
    return make_value(value)


def _ended(facts: ItemFacts) -> int:
    """How many attempts have ended."""
    return facts.attempt - (facts.state == "in_flight")


def _error(fields: dict[str, str], where: str) -> str:
    return "" if fields["error_message"] == "null" else decode_text(fields, "error_message", where)


def _kind(record: dict[str, str]) -> str:
    return "kind" if "kind" in record else "type"


def _bare_payload(entry: Entry) -> str:
    """An item without a payload has written what it is about beside the fields that we know."""
    others = {name: text for name, text in entry.fields.items() if name not in ALL_FIELDS}
    return "{" + ", ".join(f"{encode(name)}: {text}" for name, text in others.items()) + "}"


def _state(
    fields: dict[str, str], record: dict[str, str], where: str, now: float
) -> tuple[StoredState, bool]:
    """The state of an item, and whether its record was written for that."""
    status = decode_text(fields, "status", where) if "status" in fields else "pending"
    scheduled = decode_moment(fields, "scheduled_at", where)
    if "state" in record:
        state = cast("StoredState", decode_text(record, "state", where))
        if state != "done" and state not in _STATUS:
            raise NonsenseError(f"{where}: no such state: {state!r}")
        due = decode_moment(record, "due", where)
        if state == "done":
            known = status in FINISHED
        elif _STATUS[state] != status:
            known = False
        elif status == "pending":
            known = state in IN_LINE or _is_schedule(scheduled, due)
        elif state == "buried":
            known = record.get("group") == fields.get("group")
        else:
            known = "lease" in record
        if known:
            return state, True
    if status == "pending":
        ahead = scheduled is not None and scheduled > now
        return ("scheduled" if ahead else "available"), False
    if status == "processing":
        return "in_flight", False
    return ("buried" if status == "failed" and "group" not in fields else "done"), False


def _joins(
    state: StoredState, fields: dict[str, str], record: dict[str, str], *, known: bool
) -> bool:
    """Whether a person has let an item that is not done join its group, or leave one."""
    if fields.get("group") != record.get("group"):
        return True
    was_live = record.get("state", "").strip('"') in _PENDING_OR_PROCESSING
    return "group" in fields and not known and not (was_live and state != "buried")


def _is_schedule(scheduled: float | None, due: float | None) -> bool:
    """Whether a document says of an item what the store has said of it."""
    if scheduled is None or due is None:
        return scheduled is due
    return abs(scheduled - due) <= SAME_MOMENT


def _record(facts: ItemFacts, fields: dict[str, str], own: dict[str, str]) -> dict[str, str]:
    """The record of an item: all that its fields do not tell.

    ``own`` are the fields in its value where others are shown.
    """
    payload, lease = facts.payload, facts.lease
    due = not_before = None if facts.due is None else encode_time(facts.due)
    in_line = facts.state in IN_LINE
    if (facts.state == "available" or in_line) and fields["scheduled_at"] != "null":
        # That time has come, or does not count. Another one would be the work of a person.
        due = fields["scheduled_at"]
    buried = facts.state == "buried"
    live = None if buried or facts.state == "done" else payload.deadline
    silent = buried and not facts.error and fields["error_message"] != "null"
    parts = {
        "id": fields["id"],
        "group": None if facts.state == "done" else fields.get("group"),
        "number": str(payload.id),
        "state": encode(facts.state),
        "put_at": encode_time(payload.put_at),
        "kind": _unless(encode(payload.kind), fields["type"]),
        "attempt": _unless(str(facts.attempt), "0"),
        "priority": _unless(str(facts.priority), fields["priority"]),
        "history": encode_history(payload.history) if payload.history else None,
        "progress": None if payload.progress is None else encode_progress(payload.progress),
        "outcome": _unless(encode(facts.outcome), fields["status"])
        if facts.state == "done"
        else None,
        "due": due,
        "not_before": not_before if in_line else None,
        "deadline": None if live is None else encode_time(live),
        "lease": None if lease is None else lease.encode(),
        "place": None if facts.place is None else str(facts.place),
        "buried_at": encode_time(facts.buried_at) if buried else None,
        "hold": "true" if facts.holds else None,
        "ended_at": None if facts.ended_at is None else encode_time(facts.ended_at),
        "error_message": "null" if silent else None,
        "own": encode_mapping(own) if own else None,
    }
    return {name: text for name, text in parts.items() if text is not None}


def _unless(text: str, known: str) -> str | None:
    return None if text == known else text


# Documents of version 1


def take_next(entry: Entry, where: str) -> ItemFacts | None:
    """Take the buffered value, which was a part of its record, off an item.

    Raises:
        NonsenseError: It cannot be read.
    """
    if '"next": ' not in entry.record:
        return None
    record = decode_mapping(entry.record, "its record", where)
    text = record.pop("next", None)
    if text is None:
        return None
    entry.record = encode_mapping(record)
    return _read_next(decode_key(entry.fields, "id", where), text, where)


def _read_next(key: str, text: str, where: str) -> ItemFacts:
    parts = decode_mapping(text, "next", where)
    value = read_value(parts.get("value", "null").encode(), LIVE_VALUE, where)
    put_at = decode_moment(parts, "put_at", where)
    payload = Payload(
        make_value(value),
        decode_whole(parts, "number", where),
        decode_time(value["created_at"], where) if put_at is None else put_at,
        (),
        decode_text(parts if "kind" in parts else value, _kind(parts), where),
        decode_moment(parts, "deadline", where),
    )
    return ItemFacts(
        key=key,
        state="buffered",
        payload=payload,
        priority=decode_whole(parts, "priority", where, least=-LARGEST),
        due=decode_moment(parts, "due", where),
    )
