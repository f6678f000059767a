"""Between the document of a file store and the model: `load` and `sync`.

`load` reads every entry, and believes none. `sync` writes only the entries of items that have
changed. Both see the items of a queue in one order, see `in_order`.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import msgspec

from leasedkeyq.engines.file.document.document import (
    BUCKETS,
    COUNTERS,
    IN_LINE,
    LINE,
    VERSION,
    Document,
    Entry,
    Form,
    ItemFacts,
    LeaseFacts,
    ReadValue,
    Section,
    Signature,
)
from leasedkeyq.engines.file.document.json_fields import (
    NonsenseError,
    check_text,
    decode,
    decode_whole,
    encode,
)
from leasedkeyq.engines.file.document.plain_yaml import printable
from leasedkeyq.lease import Lease
from leasedkeyq.model.caps import Bucket, BucketName
from leasedkeyq.model.items import Item
from leasedkeyq.model.line import Line, LineValue
from leasedkeyq.model.queue_model import Payload, QueueModel
from leasedkeyq.model.requests import Limits, StoredItem
from leasedkeyq.model.store_model import StoreModel
from leasedkeyq.types import BuriedItem

Stored = Item[str, Payload] | LineValue[Payload] | BuriedItem[str, Payload] | StoredItem
Known = dict[tuple[str, str], ItemFacts]
"""What entries say, by their text and record: most of them are as they were at the last look."""
BucketRow = tuple[str, bool, str, float, float, float, float]
"""A bucket in the document: its `BucketName` and its `Bucket`."""


# From the document to the model


def load(
    document: Document, limits: Limits, now: float, *, ours: bool, known: Known | None = None
) -> StoreModel:
    """The model that the document describes; fields that a person left out are filled in.

    `ours` says that the document is as we wrote it, and needs no rewriting. What is in `known` from
    the last time is not read again.

    Raises:
        NonsenseError: The document contradicts itself or the meaning of a queue.
    """
    fields = document.head.fields
    version = decode_whole(fields, "version", "the document") if "version" in fields else 1
    if not 1 <= version <= VERSION:
        raise NonsenseError(f"version is {version}, and this program knows {VERSION}")
    model = StoreModel(limits)
    model.last_id = decode_whole(fields, "last_id", "the document")
    model.last_fence = decode_whole(fields, "last_fence", "the document")
    loader = ModelLoader(model, document.form, now, known)
    loader.ours = ours
    for name, section in document.sections.items():
        check_text(name, "the name of a queue")
        if version < VERSION:
            document.form.upgrade(section, f"queue {name!r}")
        loader.queue(name, section)
    loader.finish()
    if ours and version == VERSION:
        for name, queue_model in model.queues.items():
            signatures = {number: signature for number, signature, _, _ in in_order(queue_model)}
            for entry in document.sections[name].entries:
                entry.signature = signatures[entry.id]
    _load_buckets(model, fields.get(BUCKETS, "{}"))
    return model


def _load_buckets(model: StoreModel, text: str) -> None:
    rows = decode(text, dict[str, list[BucketRow]], BUCKETS, "the document")
    for queue, buckets in rows.items():
        check_text(queue, "the name of a queue")
        queue_model = model.queues.get(queue)
        if queue_model is None:
            queue_model = model.queues[queue] = QueueModel(model.limits.buried)
        for pattern, each, key, *bucket in buckets:
            queue_model.buckets.keep(BucketName(pattern, each, key), Bucket(*bucket))


class ModelLoader:
    """Brings the entries of a document into a model."""

    def __init__(
        self, model: StoreModel, form: Form, now: float, known: Known | None = None
    ) -> None:
        self.model = model
        self.form = form
        self.now = now
        self.ours = False
        self.known: Known = {} if known is None else known
        self.seen: Known = {}
        self.ids: set[int] = set()
        self.fences: set[int] = set()
        self.tokens: set[str] = set()
        self.new: list[tuple[Entry, Payload]] = []
        self.lines: list[tuple[QueueModel, Item[str, Payload], list[LineValue[Payload]]]] = []
        self.done: list[tuple[QueueModel, str, ItemFacts]] = []
        self.fenceless: list[Lease[str]] = []

    def queue(self, name: str, section: Section) -> None:
        """Bring in the items of one queue."""
        if not section.entries:
            return
        queue_model = self.model.queues[name] = QueueModel(self.model.limits.buried)
        found: list[ReadValue] = []
        items = values = 0
        key, state = "", ""
        for entry in section.entries:
            if entry.in_line and self.form.nests:
                values += 1
                where = f"value {values} in the line of {key!r} in queue {name!r}"
                if state == "done":
                    raise NonsenseError(f"{where}: a result has no line")
            else:
                items += 1
                values = 0
                where = f"item {items} of queue {name!r}"
            facts = self.read(section, entry, where, key)
            found.append(ReadValue(facts, entry, where))
            if facts.state not in IN_LINE:
                key, state = entry.key, facts.state
        lines: dict[str, list[ReadValue]] = {}
        for one in self.form.arrange_lines(found):
            facts, entry, where = one
            if facts.state in IN_LINE:
                self._check_id(facts.payload, where)
                lines.setdefault(facts.key or entry.key, []).append(one)
            else:
                self.item(queue_model, name, facts, entry, where)
        for key, line in lines.items():
            self._line(queue_model, name, key, line)

    def finish(self) -> None:
        """Items without an id are new: they get the next ones, in the order of the document."""
        model = self.model
        model.last_id = max(model.last_id, max(self.ids, default=0))
        model.last_fence = max(model.last_fence, max(self.fences, default=0))
        for lease in self.fenceless:
            model.last_fence += 1
            lease._fence = model.last_fence
        for entry, payload in self.new:
            model.last_id += 1
            entry.id = payload.id = model.last_id
        for queue_model, item, values in self.lines:
            _form_line(queue_model, item, values)
        for queue_model, queue, facts in self.done:
            result = facts.payload.stored(
                queue,
                facts.key,
                "done",
                facts.priority,
                facts.attempt,
                due=facts.due,
                outcome=facts.outcome,
                ended_at=facts.ended_at,
            )
            queue_model.keep(result)
        self.known.clear()
        self.known.update(self.seen)

    def read(self, section: Section, entry: Entry, where: str, head: str) -> ItemFacts:
        """What an entry says; `head` is the key of the item before it."""
        try:
            facts = self._read(section, entry, where)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise NonsenseError(f"{where}: {error}") from error
        entry.id = entry.written_id = facts.payload.id
        entry.key = facts.name or facts.key
        entry.in_line = facts.state in IN_LINE
        if entry.in_line and self.form.nests:
            if facts.key and facts.key != head:
                raise NonsenseError(f"{where}: its key is {facts.key!r}; a line has one key")
            entry.key = head
        return facts

    def item(
        self, queue_model: QueueModel, queue: str, facts: ItemFacts, entry: Entry, where: str
    ) -> None:
        """Bring in one item that is not in a line."""
        self._check_id(facts.payload, where)
        if not facts.payload.id:
            self.new.append((entry, facts.payload))
        if facts.state == "done":
            self.done.append((queue_model, queue, facts))
        elif facts.state == "buried":
            self._buried(queue_model, facts, where)
        else:
            self._live(queue_model, facts, where)

    def _buried(self, queue_model: QueueModel, facts: ItemFacts, where: str) -> None:
        state = queue_model.state
        state._burials += 1
        state.buried[state._burials] = BuriedItem(
            state._burials,
            facts.key,
            facts.payload,
            facts.priority,
            facts.attempt,
            facts.error,
            facts.buried_at,
            facts.holds,
        )
        if facts.holds:
            state.held[facts.key] = self._head(queue_model, facts, where), state._burials

    def _line(
        self, queue_model: QueueModel, queue: str, key: str, values: Sequence[ReadValue]
    ) -> None:
        """Bring in the line of a key.

        Ids rise along a line. Where they do not, a person has changed the order or added a value:
        from there on they are others, as those in use before stay what they were.
        """
        if key not in queue_model.state.items:
            # Its head is gone, so the first one is that.
            first = values[0]
            state = "available" if first.facts.due is None else "scheduled"
            self.ids.discard(first.facts.payload.id)
            facts = msgspec.structs.replace(first.facts, key=key, state=state)
            self.item(queue_model, queue, facts, first.entry, first.where)
            values = values[1:]
        item = queue_model.state.items[key]
        last = item.value.id
        rising = bool(last)
        line: list[LineValue[Payload]] = []
        for facts, entry, where in values:
            payload = facts.payload
            replaces = facts.state == "buffered"
            if replaces and (line or item.lease is None):
                message = "a buffered value is a newer value of a key that is leased"
                raise NonsenseError(
                    f"{where}: {message}, and the first behind that; take away its state, and it "
                    "waits its turn"
                )
            rising = rising and payload.id > last
            if rising:
                last = payload.id
            else:
                payload = msgspec.structs.replace(payload, id=0)
                self.new.append((entry, payload))
            line.append(LineValue(0, payload, facts.priority, facts.due, replaces=replaces))
        if line:
            self.lines.append((queue_model, item, line))

    def _read(self, section: Section, entry: Entry, where: str) -> ItemFacts:
        mark = (entry.text, entry.record)
        facts = self.known.get(mark)
        if facts is None:
            facts = self.form.read(section, entry, where, self.now)
        if entry.text and facts.payload.id:
            self.seen[mark] = facts
        return facts

    def _head(self, queue_model: QueueModel, facts: ItemFacts, where: str) -> Item[str, Payload]:
        """The head of a key, which has no place yet."""
        state = queue_model.state
        if facts.key in state.items:
            message = f"the key {facts.key!r} is there twice"
            if facts.holds or facts.key in state.held:
                message += ", and held by a buried item; more of its values go to its line"
            raise NonsenseError(f"{where}: {message}")
        item: Item[str, Payload] = Item(facts.key, facts.payload, facts.priority)
        item.attempt = facts.attempt
        state.items[facts.key] = item
        return item

    def _live(self, queue_model: QueueModel, facts: ItemFacts, where: str) -> None:
        state = queue_model.state
        item = self._head(queue_model, facts, where)
        if facts.lease is not None:
            item.not_before = facts.due
            self._lease(queue_model, item, facts.lease, where)
        elif facts.due is not None:
            state._schedules += 1
            state.timers.set(item, facts.due, state._schedules)
        else:
            state.ready.append(item)
        if self.ours and facts.place is not None:
            item.position = facts.place

    def _lease(
        self,
        queue_model: QueueModel,
        item: Item[str, Payload],
        lease: LeaseFacts,
        where: str,
    ) -> None:
        state = queue_model.state
        if lease.token in self.tokens or (lease.fence and lease.fence in self.fences):
            raise NonsenseError(f"{where}: its lease is the lease of another item, too")
        if not item.attempt:
            raise NonsenseError(f"{where}: it has a lease, and attempt is 0")
        item.lease = Lease(
            lease.token, item.key, lease.fence, item.attempt, lease.expires_at, state._issuer
        )
        self.tokens.add(lease.token)
        if lease.fence:
            self.fences.add(lease.fence)
        else:
            self.fenceless.append(item.lease)
        if lease.leased_at is not None:
            item.since = lease.leased_at
        state.ready.back = item.position = state.ready.back + 1
        state.in_flight[item.key] = item
        if lease.expires_at is not None:
            state._expire_at(item, lease.expires_at)

    def _check_id(self, payload: Payload, where: str) -> None:
        if payload.id in self.ids:
            raise NonsenseError(f"{where}: the id {payload.id} is there twice")
        if payload.id:
            self.ids.add(payload.id)


def _form_line(
    queue_model: QueueModel, item: Item[str, Payload], values: Sequence[LineValue[Payload]]
) -> None:
    """Let values, which have their ids now, wait behind an item."""
    item.line = Line()
    for value in values:
        value.number = value.value.id
        item.line.add(value)
    state = queue_model.state
    state.lines[item.key] = item
    if item.key in state.held:
        state.behind_held += len(values)
    else:
        state.in_line += len(values)


# From the model to the document


def sync(document: Document, model: StoreModel) -> bool:
    """Make the document say what `model` is; return whether anything had to change.

    Raises:
        NonsenseError: Something in `model` could not be read back.
    """
    changed, document.touched = document.touched, False
    form = document.form
    filled = {name: queue_model for name, queue_model in model.queues.items() if queue_model}
    for name, queue_model in filled.items():
        section = document.sections.get(name)
        if section is None:
            section = document.sections[name] = form.open_section(document, name)
        changed |= _sync_section(section, form, name, queue_model)
    for name in [name for name in document.sections if name not in filled]:
        section = document.sections[name]
        if section.entries:
            changed = True
            _replace(section, [])
        if not section:
            del document.sections[name]
    head = document.head
    counters = {"version": str(VERSION), "revision": head.fields.get("revision", "0")}
    counters["last_id"] = str(model.last_id)
    counters["last_fence"] = str(model.last_fence)
    buckets = _buckets(model)
    if any(head.fields.get(name) != text for name, text in counters.items()):
        changed = True
    if changed or head.fields.get(BUCKETS, "") != buckets:
        changed = True
        counters["revision"] = str(document.revision + 1)
        ours = (*COUNTERS, BUCKETS)
        rest = {name: text for name, text in head.fields.items() if name not in ours}
        head.fields = counters | rest | ({BUCKETS: buckets} if buckets else {})
        head.text = ""
    return changed


def _buckets(model: StoreModel) -> str:
    """The buckets of all queues as JSON, or nothing if there are none."""
    rows: dict[str, list[tuple[object, ...]]] = {
        name: [(*bucket_name, *bucket) for bucket_name, bucket in queue_model.buckets.all.items()]
        for name, queue_model in model.queues.items()
        if queue_model.buckets
    }
    return printable(encode(rows)) if rows else ""


def _sync_section(section: Section, form: Form, queue: str, queue_model: QueueModel) -> bool:
    old = {entry.id: entry for entry in section.entries}
    in_new_order = list(in_order(queue_model))
    gone = form.by_name(section.entries, {number for number, _, _, _ in in_new_order})
    entries: list[Entry] = []
    changed = False
    key = ""
    for number, signature, item, place in in_new_order:
        in_line = isinstance(item, LineValue)
        if not isinstance(item, LineValue):
            key = item.key
        entry = old.get(number)
        if entry is None:
            entry = Entry()
            if gone:
                fields, _ = form.write(section, _facts(queue_model, key, item, place))
                entry = gone.pop(fields["id"], entry)
            entry.id = number
        if entry.in_line is not in_line:
            form.place(entry, in_line=in_line)
            changed = True
        if entry.signature != signature:
            fields, record = form.write(section, _facts(queue_model, key, item, place))
            if entry.update(fields, form.fields) or record != entry.record:
                changed = True
                entry.record = record
                _check(section, entry, form, queue, key)
            entry.signature = signature
        entries.append(entry)
    if form.nests:
        changed |= _keep_line_notes(section.entries, entries)
    if entries != section.entries:
        changed = True
        _replace(section, entries)
    return changed


def _check(section: Section, entry: Entry, form: Form, queue: str, key: str) -> None:
    """Never write what we would not read: a number without bounds, a key that is no text."""
    check_text(queue, "the name of a queue")
    loader = ModelLoader(StoreModel(), form, 0.0)
    where = f"an item of queue {queue!r}"
    facts = loader.read(section, entry, where, key)
    if not entry.in_line:
        loader.item(QueueModel(1), queue, facts, entry, where)


def _keep_line_notes(old: Sequence[Entry], new: Sequence[Entry]) -> bool:
    """Comments on the line of a key stay with the line, whatever item is its head.

    Where no line is left, they are on the item.
    """
    noted = [entry for entry in old if entry.notes and LINE in entry.notes]
    if not noted:
        return False
    items: dict[str, Entry] = {}
    for entry in new:
        if not entry.in_line:
            items.setdefault(entry.key, entry)
    heads = {head.key: head for head, value in pairwise(new) if value.in_line and not head.in_line}
    changed = False
    for entry in noted:
        head = heads.get(entry.key)
        item = head or items.get(entry.key)
        if item is None or head is entry:
            continue
        item.notes[LINE] = entry.notes.pop(LINE)
        if head is None:
            item.drop_note(LINE)
        changed = True
    return changed


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


def _facts(queue_model: QueueModel, key: str, item: Stored, place: int | None) -> ItemFacts:
    if isinstance(item, LineValue):
        return ItemFacts(
            key=key,
            state="buffered" if item.replaces else "in_line",
            payload=item.value,
            priority=item.priority,
            due=item.not_before,
        )
    if isinstance(item, StoredItem):
        return ItemFacts(
            key=item.key,
            state="done",
            payload=Payload(
                item.value,
                item.id,
                item.put_at,
                item.history,
                item.kind,
                progress=item.progress,
            ),
            priority=item.priority,
            attempt=item.attempt,
            due=item.due,
            outcome=item.outcome or "completed",
            ended_at=item.ended_at,
        )
    facts = ItemFacts(
        key=item.key,
        state="available",
        payload=item.value,
        priority=item.priority,
        attempt=item.attempt,
    )
    if isinstance(item, BuriedItem):
        facts.state = "buried"
        facts.error = item.error
        facts.buried_at = item.buried_at
        facts.holds = queue_model.state.holds_key(item.id)
        return facts
    facts.place = place
    lease: Lease[str] | None = item.lease
    if lease is not None:
        facts.state = "in_flight"
        since: float | None = getattr(item, "since", None)
        facts.lease = LeaseFacts(lease.token, lease.fence, lease.expires_at, since)
        facts.due = item.not_before
    elif item.next is None:
        facts.state = "scheduled"
        facts.due = item.timer[0]
    return facts


# The order of items in a document


def in_order(queue_model: QueueModel) -> Iterator[tuple[int, Signature, Stored, int | None]]:
    """The items as they stand in the document, each with its place where the order does not tell.

    With each comes its id, and a signature, which is another when the item has changed.

    An item keeps its place while it is leased, even if its priority changes meanwhile. Among
    items of several priorities that place has to be written down. The line of an item follows it;
    that of a key which a buried item holds follows that.
    """
    state = queue_model.state
    placed: list[Item[str, Payload]] = []
    waiting: list[Item[str, Payload]] = []
    for item in state.items.values():
        if item.lease is not None or item.next is not None:
            placed.append(item)
        elif item.key not in state.held:
            waiting.append(item)
    placed.sort(key=lambda item: (-item.priority, item.position))
    waiting.sort(key=lambda item: item.timer[:2])
    mixed = _number(queue_model, placed)
    for item in placed + waiting:
        place = item.position if mixed and (item.lease or item.next) else None
        lease = item.lease
        signature: Signature = (
            item.value,
            item.priority,
            item.attempt,
            lease,
            lease and lease.expires_at,
            item.not_before,
            lease is None and item.timer and item.timer[0],
            place,
        )
        yield item.value.id, signature, item, place
        if item.line is not None:
            yield from _line_in_order(item)
    for number, buried in state.buried.items():
        held = state.holds_key(number)
        yield buried.value.id, ("buried", buried, held), buried, None
        if held and (item := state.items[buried.key]).line is not None:
            yield from _line_in_order(item)
    for done in queue_model.done.values():
        yield done.id, ("done", done), done, None


def _line_in_order(
    item: Item[str, Payload],
) -> Iterator[tuple[int, Signature, LineValue[Payload], None]]:
    for value in item.line or ():
        signature = (value.value, value.priority, value.not_before, value.replaces)
        yield value.number, signature, value, None


def _number(queue_model: QueueModel, placed: list[Item[str, Payload]]) -> bool:
    """Give `placed` the positions that they get when the document is read.

    Returns whether these are others than the numbers of their lines.
    """
    ready = queue_model.state.ready
    mixed = any(after.position < before.position for before, after in pairwise(placed))
    if mixed:
        positions = [item.position for item in placed]
        ready.back, ready._front = max(positions), min(0, *positions)
    else:
        for position, item in enumerate(placed, 1):
            item.position = position
        ready.back, ready._front = len(placed), 0
    return mixed
