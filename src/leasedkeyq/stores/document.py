"""The file store's document: a `StoreMachine` as readable fields, and back.

An item is an `Entry`: its fields by name, each as one line of JSON, in the order in which a person
reads them. Defaults are left out, and so is the state where it is obvious:

- ``lease``: the item is in flight. ``due`` is then the earliest time it may come back.
- ``due`` without a lease: it is scheduled.
- ``state: buried`` and ``state: done`` are said.
- Otherwise it is available, in the order of the document within its priority.

Leased items keep their line, so that a claim that is undone finds its place. A ``place`` is
written where there are several priorities, and is forgotten when a person edits the document: then
the order of the lines counts. Entries remember
what a person added: fields we do not know, and comments. How entries become text is the matter
of `leasedkeyq.stores.layout`.
"""

import base64
import binascii
import math
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeVar

import msgspec

from leasedkeyq.errors import LeasedKeyQError
from leasedkeyq.items import Buffered, Item
from leasedkeyq.lease import Lease
from leasedkeyq.stores.contract import Attempt, Limits, StoredItem
from leasedkeyq.stores.machine import Payload, Space, StoreMachine
from leasedkeyq.types import BuriedItem

VERSION = 1
COUNTERS = ("version", "revision", "last_id", "last_fence")
FIELDS = (
    "key",
    "value",
    "raw",
    "state",
    "priority",
    "due",
    "lease",
    "attempt",
    "error",
    "history",
    "next",
    "place",
    "id",
    "put_at",
    "buried_at",
    "until",
)
TIMES = frozenset(("due", "put_at", "buried_at", "until"))
TIME = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{1,18}))? ?(Z|z|[+-]\d\d:?\d\d)")
LARGEST = 2**63 - 1
MICROS = 6
NANOS = 9
YEAR_10000 = 253402300800

T = TypeVar("T")
Signature = tuple[object, ...]


class NonsenseError(LeasedKeyQError):
    """The document does not say what a queue can be. The message tells where and why."""


class Entry:
    """Named fields with what a person wrote around them: one item, or the head of a part.

    Attributes:
        fields: The fields as JSON, by name.
        lead: The comment lines before it, each with its line end.
        notes: Comments by field: the lines before it, and what follows on its line.
        text: The entry as it stands in the file, or "" while that has to be made anew.
        signature: The state that `fields` describe, to see a change without writing it down.
        id: The id of the item.
    """

    __slots__ = ("fields", "id", "lead", "notes", "signature", "text")

    def __init__(self, fields: dict[str, str] | None = None) -> None:
        self.fields: dict[str, str] = {} if fields is None else fields
        self.lead = ""
        self.notes: dict[str, tuple[str, str]] = {}
        self.text = ""
        self.signature: Signature = ()
        self.id = 0

    def update(self, known: dict[str, str]) -> bool:
        """Take over the fields that are ours; those of others and all comments stay."""
        old = self.fields
        fields = {name: known[name] for name in FIELDS if name in known}
        fields.update((name, text) for name, text in old.items() if name not in FIELDS)
        for name in [name for name in self.notes if name not in fields]:
            before, after = self.notes.pop(name)
            self.lead += before + (f"{after}\n" if after else "")
        if fields == old:
            return False
        self.fields = fields
        self.text = ""
        return True


class Section:
    """One queue in the document: its items in order, and what else somebody wrote there."""

    __slots__ = ("entries", "head", "tail")

    def __init__(self) -> None:
        self.head = Entry()
        self.entries: list[Entry] = []
        self.tail = ""

    def __bool__(self) -> bool:
        return bool(self.entries or self.head.fields or self.head.lead.strip() or self.tail.strip())


class Document:
    """Everything in the file. `head` has the counters; `tail` what follows the last item."""

    def __init__(self) -> None:
        self.head = Entry()
        self.sections: dict[str, Section] = {}
        self.tail = ""
        self.lead = ""
        """Comments between the counters and the queues."""

    @property
    def revision(self) -> int:
        """How often it was written."""
        return _whole(self.head.fields, "revision", "the document")

    # From the document to the machine

    def load(self, limits: Limits, now: float, *, ours: bool) -> StoreMachine:
        """The machine that the document describes; what a person left out is filled in.

        `ours` says that the document is as this module wrote it, and needs no rewriting.

        Raises:
            NonsenseError: The document contradicts itself or the meaning of a queue.
        """
        fields = self.head.fields
        version = _whole(fields, "version", "the document") if "version" in fields else VERSION
        if version != VERSION:
            raise NonsenseError(f"version is {version}, and this program knows {VERSION}")
        machine = StoreMachine(limits)
        machine.last_id = _whole(fields, "last_id", "the document")
        machine.last_fence = _whole(fields, "last_fence", "the document")
        loader = _Loader(machine, now)
        for name, section in self.sections.items():
            _check_text(name, "the name of a queue")
            loader.queue(name, section)
        loader.number_new_items()
        if ours:
            for name, space in machine.spaces.items():
                _restore_places(self.sections[name], space)
                signatures = {number: signature for number, signature, _, _ in _in_order(space)}
                for entry in self.sections[name].entries:
                    entry.signature = signatures[entry.id]
        return machine

    # From the machine to the document

    def sync(self, machine: StoreMachine) -> bool:
        """Make the document say what `machine` is; return whether anything had to change.

        Raises:
            NonsenseError: Something in `machine` could not be read back.
        """
        changed = False
        for name, space in machine.spaces.items():
            section = self.sections.get(name)
            if section is None:
                if not space:
                    continue
                section = self.sections[name] = Section()
            changed |= _sync_section(section, name, space)
        for name in [name for name in self.sections if name not in machine.spaces]:
            section = self.sections[name]
            if section.entries:
                changed = True
                _replace(section, [])
            if not section:
                del self.sections[name]
        head = self.head
        counters = {"version": str(VERSION), "revision": head.fields.get("revision", "0")}
        counters["last_id"] = str(machine.last_id)
        counters["last_fence"] = str(machine.last_fence)
        if any(head.fields.get(name) != text for name, text in counters.items()):
            changed = True
        if changed:
            counters["revision"] = str(self.revision + 1)
            rest = {name: text for name, text in head.fields.items() if name not in COUNTERS}
            head.fields = counters | rest
            head.text = ""
        return changed


def _restore_places(section: Section, space: Space) -> None:
    places = {
        entry.id: _whole(entry.fields, "place", "an item", least=-LARGEST)
        for entry in section.entries
        if "place" in entry.fields
    }
    for item in space.state.items.values():
        item.position = places.get(item.value.id, item.position)


def _sync_section(section: Section, queue: str, space: Space) -> bool:
    old = {entry.id: entry for entry in section.entries}
    entries: list[Entry] = []
    changed = False
    for number, signature, item, place in _in_order(space):
        entry = old.get(number)
        if entry is None:
            entry = Entry()
            entry.id = number
        if entry.signature != signature:
            if entry.update(_describe(item, place)):
                changed = True
                _check(entry, queue)
            entry.signature = signature
        entries.append(entry)
    if entries != section.entries:
        changed = True
        _replace(section, entries)
    return changed


def _check(entry: Entry, queue: str) -> None:
    """Never write what we would not read: a number without bounds, a key that is no text."""
    _check_text(queue, "the name of a queue")
    try:
        _Loader(StoreMachine(), 0.0).item(Space(1), queue, entry, f"an item of queue {queue!r}")
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise NonsenseError(f"an item of queue {queue!r}: {error}") from error


def _replace(section: Section, entries: list[Entry]) -> None:
    """Comments right above an item go with it; those set off by an empty line stay."""
    kept = set(map(id, entries))
    standing = ""
    for entry in section.entries:
        if id(entry) in kept:
            if standing:
                entry.lead = standing + entry.lead
                entry.text = ""
                standing = ""
        elif "\n\n" in f"\n{entry.lead}":
            standing += entry.lead[: f"\n{entry.lead}".rindex("\n\n") + 1]
    section.tail = standing + section.tail
    section.entries = entries


Stored = Item[str, Payload] | BuriedItem[str, Payload] | StoredItem


def _in_order(space: Space) -> Iterator[tuple[int, Signature, Stored, int | None]]:
    """The items as they stand in the document, each with its place where the order does not tell.

    An item keeps its place while it is leased, even if its priority changes meanwhile. Among
    items of several priorities that place has to be written down.
    """
    state = space.state
    placed: list[Item[str, Payload]] = []
    waiting: list[Item[str, Payload]] = []
    for item in state.items.values():
        (placed if item.lease is not None or item.next is not None else waiting).append(item)
    placed.sort(key=lambda item: (-item.priority, item.position))
    waiting.sort(key=lambda item: item.timer[:2])
    mixed = _number(space, placed)
    for item in placed + waiting:
        place = item.position if mixed and (item.lease or item.next) else None
        lease, beside = item.lease, item.buffered
        signature: Signature = (
            item.value,
            item.priority,
            item.attempt,
            lease,
            lease and lease.expires_at,
            item.not_before,
            lease is None and item.timer and item.timer[0],
            beside and (beside.value, beside.priority, beside.not_before),
            place,
        )
        yield item.value.id, signature, item, place
    for buried in state.buried.values():
        yield buried.value.id, ("buried", buried), buried, None
    for done in space.done.values():
        yield done.id, ("done", done), done, None


def _number(space: Space, placed: list[Item[str, Payload]]) -> bool:
    """Give `placed` the numbers that whoever reads the document gives them.

    Returns whether these are not simply those of the lines.
    """
    ready = space.state.ready
    mixed = any(after.position < before.position for before, after in pairwise(placed))
    if mixed:
        positions = [item.position for item in placed]
        ready.back, ready._front = max(positions), min(0, *positions)
    else:
        for position, item in enumerate(placed, 1):
            item.position = position
        ready.back, ready._front = len(placed), 0
    return mixed


# Writing fields


def _describe(item: Stored, place: int | None) -> dict[str, str]:
    """The fields of an item, each as JSON."""
    if isinstance(item, StoredItem):
        fields = {"key": encode(item.key), "state": '"done"', **_value(item.value)}
        _common(fields, item.priority, item.attempt, item.history)
        fields |= {"id": str(item.id), "put_at": encode_time(item.put_at)}
        if item.due is not None:
            fields["until"] = encode_time(item.due)
        return fields
    payload = item.value
    fields = {"key": encode(item.key), **_value(payload.value)}
    _common(fields, item.priority, item.attempt, payload.history)
    fields |= {"id": str(payload.id), "put_at": encode_time(payload.put_at)}
    if isinstance(item, BuriedItem):
        fields |= {"state": '"buried"', "buried_at": encode_time(item.buried_at)}
        if item.error:
            fields["error"] = encode(item.error)
        return fields
    if place is not None:
        fields["place"] = str(place)
    lease: Lease[str] | None = item.lease
    due = item.not_before
    if lease is not None:
        parts = {"token": encode(lease.token), "fence": str(lease.fence)}
        if lease.expires_at is not None:
            parts["expires_at"] = encode_time(lease.expires_at)
        fields["lease"] = _mapping(parts)
    elif item.next is None:
        due = item.timer[0]
    if due is not None:
        fields["due"] = encode_time(due)
    if item.buffered is not None:
        fields["next"] = _mapping(_beside(item.buffered))
    return fields


def _common(
    fields: dict[str, str], priority: int, attempt: int, history: tuple[Attempt, ...]
) -> None:
    if priority:
        fields["priority"] = str(priority)
    if attempt:
        fields["attempt"] = str(attempt)
    if history:
        fields["history"] = f"[{', '.join(map(_attempt, history))}]"


def _attempt(attempt: Attempt) -> str:
    parts = {"number": str(attempt.number), "ended_at": encode_time(attempt.ended_at)}
    parts["how"] = encode(attempt.how)
    if attempt.error:
        parts["error"] = encode(attempt.error)
    return _mapping(parts)


def _beside(buffered: Buffered[Payload]) -> dict[str, str]:
    payload = buffered.value
    parts = _value(payload.value)
    if buffered.priority:
        parts["priority"] = str(buffered.priority)
    if buffered.not_before is not None:
        parts["due"] = encode_time(buffered.not_before)
    return parts | {"id": str(payload.id), "put_at": encode_time(payload.put_at)}


def _mapping(parts: dict[str, str]) -> str:
    return "{" + ", ".join(f'"{name}": {text}' for name, text in parts.items()) + "}"


def _value(value: bytes) -> dict[str, str]:
    """A value as data that one can read, or as Base64 where it is not JSON."""
    try:
        if b"\\u" in value:
            value = msgspec.json.encode(msgspec.json.decode(value))
        text = msgspec.json.format(value, indent=0).decode()
        if _same(text, value):
            return {"value": text}
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        pass
    return {"raw": encode(base64.b64encode(value).decode())}


def _same(text: str, value: bytes) -> bool:
    """Whether `text` is valid and says what `value` says, letter by letter but for spaces."""
    msgspec.json.decode(text)
    return msgspec.json.format(text.encode(), indent=-1) == msgspec.json.format(value, indent=-1)


def encode(value: object) -> str:
    """A JSON text on one line."""
    return msgspec.json.encode(value).decode()


def encode_time(moment: float) -> str:
    """A moment as ISO 8601 in UTC, with as many digits as it takes, or else as a number."""
    whole = math.floor(moment) if math.isfinite(moment) else -1
    if 0 <= whole < YEAR_10000:
        clock = datetime.fromtimestamp(whole, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        for digits in (0, MICROS, NANOS):
            fraction = f"{moment - whole:.{digits}f}"[1:] if digits else ""
            if moment == float(f"{whole}{fraction}") and moment - whole < 1 - 10.0**-NANOS:
                return f'"{clock}{fraction}Z"'
    return repr(moment)


# Reading fields


class _Loader:
    """Brings the entries of a document into a machine, and does not believe them."""

    def __init__(self, machine: StoreMachine, now: float) -> None:
        self.machine = machine
        self.now = now
        self.ids: set[int] = set()
        self.fences: set[int] = set()
        self.tokens: set[str] = set()
        self.new: list[tuple[Entry, Payload]] = []

    def queue(self, name: str, section: Section) -> None:
        if not section.entries:
            return
        space = self.machine.spaces[name] = Space(self.machine.limits.buried)
        for number, entry in enumerate(section.entries, 1):
            where = f"item {number} of queue {name!r}"
            try:
                self.item(space, name, entry, where)
            except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
                raise NonsenseError(f"{where}: {error}") from error

    def number_new_items(self) -> None:
        """Items without an id are new: they get the next ones, in the order of the document."""
        machine = self.machine
        machine.last_id = max(machine.last_id, max(self.ids, default=0))
        machine.last_fence = max(machine.last_fence, max(self.fences, default=0))
        for entry, payload in self.new:
            machine.last_id += 1
            payload.id = machine.last_id
            entry.id = entry.id or payload.id

    def item(self, space: Space, queue: str, entry: Entry, where: str) -> None:
        fields = entry.fields
        key = _key(fields, where)
        payload = self._payload(fields, where, entry)
        entry.id = payload.id
        priority = _whole(fields, "priority", where, least=-LARGEST)
        attempt = _whole(fields, "attempt", where)
        kind = _text(fields, "state", where) if "state" in fields else ""
        if kind == "done":
            if not payload.id:
                raise NonsenseError(f"{where}: a result needs the id of its item")
            due = decode_time(fields["until"], where) if "until" in fields else None
            space.done[payload.id] = StoredItem(
                id=payload.id,
                queue=queue,
                key=key,
                state="done",
                value=payload.value,
                priority=priority,
                attempt=attempt,
                put_at=payload.put_at,
                due=due,
                history=payload.history,
            )
            return
        state = space.state
        if kind == "buried":
            error = _text(fields, "error", where) if "error" in fields else ""
            moment = decode_time(fields["buried_at"], where) if "buried_at" in fields else self.now
            state._burials += 1
            state.buried[state._burials] = BuriedItem(
                state._burials, key, payload, priority, attempt, error, moment
            )
            return
        if kind not in {"", "available", "scheduled", "in_flight"}:
            raise NonsenseError(f"{where}: no such state: {kind!r}")
        if key in state.items:
            raise NonsenseError(f"{where}: the key {key!r} is there twice")
        item: Item[str, Payload] = Item(key, payload, priority)
        item.attempt = attempt
        state.items[key] = item
        due = decode_time(fields["due"], where) if "due" in fields else None
        if "lease" in fields:
            item.not_before = due
            self._lease(space, item, fields, where)
        elif "next" in fields:
            raise NonsenseError(f"{where}: 'next' is for the time after a lease, and there is none")
        elif due is not None:
            state._schedules += 1
            state.timers.set(item, due, state._schedules)
        else:
            state.ready.append(item)

    def _lease(
        self, space: Space, item: Item[str, Payload], fields: dict[str, str], where: str
    ) -> None:
        state = space.state
        lease = _parts(fields, "lease", where)
        token = _text(lease, "token", where)
        fence = _whole(lease, "fence", where, least=1, needed=True)
        expires_at = decode_time(lease["expires_at"], where) if "expires_at" in lease else None
        if token in self.tokens or fence in self.fences:
            raise NonsenseError(f"{where}: its lease is the lease of another item, too")
        if not item.attempt:
            raise NonsenseError(f"{where}: it has a lease, and attempt is 0")
        self.tokens.add(token)
        self.fences.add(fence)
        item.lease = Lease(token, item.key, fence, item.attempt, expires_at, state._issuer)
        state.ready.back = item.position = state.ready.back + 1
        state.in_flight[item.key] = item
        if expires_at is not None:
            state._expire_at(item, expires_at)
        if "next" in fields:
            parts = _parts(fields, "next", where)
            priority = _whole(parts, "priority", where, least=-LARGEST)
            item.buffered = Buffered(self._payload(parts, where), priority, None)
            if "due" in parts:
                item.buffered.not_before = decode_time(parts["due"], where)
            state.buffered += 1

    def _payload(self, fields: dict[str, str], where: str, entry: Entry | None = None) -> Payload:
        number = _whole(fields, "id", where)
        if number in self.ids:
            raise NonsenseError(f"{where}: the id {number} is there twice")
        put_at = decode_time(fields["put_at"], where) if "put_at" in fields else self.now
        history = _history(fields, where) if "history" in fields else ()
        payload = Payload(_stored_value(fields, where), number, put_at, history)
        if number:
            self.ids.add(number)
        else:
            self.new.append((entry or Entry(), payload))
        return payload


def _key(fields: dict[str, str], where: str) -> str:
    if "key" not in fields:
        raise NonsenseError(f"{where}: it has no key")
    key: Any = msgspec.json.decode(fields["key"])
    if isinstance(key, int) and not isinstance(key, bool):
        key = str(key)
    if not isinstance(key, str):
        raise NonsenseError(f"{where}: the key must be text, put it in quotes: {fields['key']}")
    _check_text(key, f"{where}: the key")
    return key


def _check_text(text: str, what: str) -> None:
    if not text:
        raise NonsenseError(f"{what} must not be empty")
    if "\x00" in text:
        raise NonsenseError(f"{what} must not have NUL characters")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise NonsenseError(f"{what} must be text without lone surrogates") from error


def _stored_value(fields: dict[str, str], where: str) -> bytes:
    if "raw" not in fields:
        return msgspec.json.format(fields.get("value", "null").encode(), indent=-1)
    if "value" in fields:
        raise NonsenseError(f"{where}: it has both a value and a raw value")
    try:
        return base64.b64decode(_text(fields, "raw", where), validate=True)
    except binascii.Error as error:
        raise NonsenseError(f"{where}: raw is not Base64: {error}") from error


def _history(fields: dict[str, str], where: str) -> tuple[Attempt, ...]:
    history: list[Attempt] = []
    for raw in _decode(fields["history"], list[dict[str, msgspec.Raw]], "history", where):
        parts = _texts(raw)
        number = _whole(parts, "number", where)
        moment = decode_time(parts.get("ended_at", "null"), where)
        how = _decode(parts.get("how", "null"), Attempt.__annotations__["how"], "how", where)
        error = _text(parts, "error", where) if "error" in parts else ""
        history.append(Attempt(number, moment, how, error))
    return tuple(history)


def _decode(text: str, kind: type[T], name: str, where: str) -> T:
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise NonsenseError(f"{where}: {name}: {error}") from error


def _whole(
    fields: dict[str, str], name: str, where: str, *, least: int = 0, needed: bool = False
) -> int:
    text = fields.get(name)
    if text is None and not needed:
        return 0
    number = _decode(text or "null", int, name, where)
    if not least <= number <= LARGEST:
        raise NonsenseError(f"{where}: {name} is out of range: {number}")
    return number


def _text(fields: dict[str, str], name: str, where: str) -> str:
    return _decode(fields.get(name, "null"), str, name, where)


def _parts(fields: dict[str, str], name: str, where: str) -> dict[str, str]:
    return _texts(_decode(fields[name], dict[str, msgspec.Raw], name, where))


def _texts(raw: dict[str, msgspec.Raw]) -> dict[str, str]:
    return {name: bytes(text).decode() for name, text in raw.items()}


def decode_time(text: str, where: str) -> float:
    """A moment from ISO 8601 with a zone, or from a number of seconds since 1970."""
    try:
        return _moment(text)
    except ValueError as error:
        advice = "a time looks like 2026-01-31T12:00:00Z (with its zone)"
        raise NonsenseError(f"{where}: {advice}, not like {text}: {error}") from error


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
