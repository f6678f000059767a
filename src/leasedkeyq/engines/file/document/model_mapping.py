"""Between the document of a file store and the model: `load` and `sync`.

`load` reads every entry, and believes none. `sync` writes only the entries of items that have
changed. Both see the items of a queue in one order, see `in_order`.
"""

from collections.abc import Iterator
from itertools import pairwise

import msgspec

from leasedkeyq.engines.file.document.document import (
    BUCKETS,
    COUNTERS,
    VERSION,
    BufferedFacts,
    Document,
    Entry,
    Form,
    ItemFacts,
    LeaseFacts,
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
from leasedkeyq.model.items import Buffered, Item
from leasedkeyq.model.queue_model import Payload, QueueModel
from leasedkeyq.model.requests import Limits, StoredItem
from leasedkeyq.model.store_model import StoreModel
from leasedkeyq.types import BuriedItem

Stored = Item[str, Payload] | BuriedItem[str, Payload] | StoredItem
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
    version = decode_whole(fields, "version", "the document") if "version" in fields else VERSION
    if version != VERSION:
        raise NonsenseError(f"version is {version}, and this program knows {VERSION}")
    model = StoreModel(limits)
    model.last_id = decode_whole(fields, "last_id", "the document")
    model.last_fence = decode_whole(fields, "last_fence", "the document")
    loader = ModelLoader(model, document.form, now, known)
    loader.ours = ours
    for name, section in document.sections.items():
        check_text(name, "the name of a queue")
        loader.queue(name, section)
    loader.finish()
    if ours:
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
        self.done: list[tuple[QueueModel, str, ItemFacts]] = []
        self.fenceless: list[Lease[str]] = []

    def queue(self, name: str, section: Section) -> None:
        """Bring in the items of one queue."""
        if not section.entries:
            return
        queue_model = self.model.queues[name] = QueueModel(self.model.limits.buried)
        for number, entry in enumerate(section.entries, 1):
            self.item(queue_model, name, section, entry, f"item {number} of queue {name!r}")

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
            payload.id = model.last_id
            entry.id = entry.id or payload.id
        for queue_model, queue, facts in self.done:
            due, outcome = facts.due, facts.outcome
            result = facts.payload.stored(
                queue, facts.key, "done", facts.priority, facts.attempt, due=due, outcome=outcome
            )
            queue_model.keep(result)
        self.known.clear()
        self.known.update(self.seen)

    def item(
        self, queue_model: QueueModel, queue: str, section: Section, entry: Entry, where: str
    ) -> None:
        """Bring in one item."""
        try:
            facts = self._read(section, entry, where)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise NonsenseError(f"{where}: {error}") from error
        self._number(facts.payload, where, entry)
        entry.id = facts.payload.id
        entry.key = facts.key
        entry.new = not entry.id
        if facts.state == "done":
            self.done.append((queue_model, queue, facts))
        elif facts.state == "buried":
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
            )
        else:
            self._live(queue_model, facts, where)

    def _read(self, section: Section, entry: Entry, where: str) -> ItemFacts:
        mark = (entry.text, entry.record)
        facts = self.known.get(mark)
        if facts is None:
            facts = self.form.read(section, entry, where, self.now)
        if entry.text and facts.payload.id:
            self.seen[mark] = facts
        return facts

    def _live(self, queue_model: QueueModel, facts: ItemFacts, where: str) -> None:
        state = queue_model.state
        if facts.key in state.items:
            raise NonsenseError(f"{where}: the key {facts.key!r} is there twice")
        item: Item[str, Payload] = Item(facts.key, facts.payload, facts.priority)
        item.attempt = facts.attempt
        state.items[facts.key] = item
        if facts.lease is not None:
            item.not_before = facts.due
            self._lease(queue_model, item, facts, facts.lease, where)
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
        facts: ItemFacts,
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
        beside = facts.beside
        if beside is not None:
            self._number(beside.payload, where, Entry())
            item.buffered = Buffered(beside.payload, beside.priority, beside.due)
            state.buffered += 1

    def _number(self, payload: Payload, where: str, entry: Entry) -> None:
        if payload.id in self.ids:
            raise NonsenseError(f"{where}: the id {payload.id} is there twice")
        if payload.id:
            self.ids.add(payload.id)
        else:
            self.new.append((entry, payload))


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
    entries: list[Entry] = []
    changed = False
    for number, signature, item, place in in_order(queue_model):
        entry = old.get(number)
        if entry is None:
            entry = Entry()
            entry.id = number
        if entry.signature != signature:
            fields, record = form.write(section, _facts(item, place))
            if entry.update(fields, form.fields) or record != entry.record:
                changed = True
                entry.record = record
                _check(section, entry, form, queue)
            entry.signature = signature
        entries.append(entry)
    if entries != section.entries:
        changed = True
        _replace(section, entries)
    return changed


def _check(section: Section, entry: Entry, form: Form, queue: str) -> None:
    """Never write what we would not read: a number without bounds, a key that is no text."""
    check_text(queue, "the name of a queue")
    loader = ModelLoader(StoreModel(), form, 0.0)
    loader.item(QueueModel(1), queue, section, entry, f"an item of queue {queue!r}")


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


def _facts(item: Stored, place: int | None) -> ItemFacts:
    if isinstance(item, StoredItem):
        return ItemFacts(
            key=item.key,
            state="done",
            payload=Payload(item.value, item.id, item.put_at, item.history, item.kind),
            priority=item.priority,
            attempt=item.attempt,
            due=item.due,
            outcome=item.outcome or "completed",
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
    if (beside := item.buffered) is not None:
        facts.beside = BufferedFacts(beside.value, beside.priority, beside.not_before)
    return facts


# The order of items in a document


def in_order(queue_model: QueueModel) -> Iterator[tuple[int, Signature, Stored, int | None]]:
    """The items as they stand in the document, each with its place where the order does not tell.

    With each comes its id, and a signature, which is another when the item has changed.

    An item keeps its place while it is leased, even if its priority changes meanwhile. Among
    items of several priorities that place has to be written down.
    """
    state = queue_model.state
    placed: list[Item[str, Payload]] = []
    waiting: list[Item[str, Payload]] = []
    for item in state.items.values():
        (placed if item.lease is not None or item.next is not None else waiting).append(item)
    placed.sort(key=lambda item: (-item.priority, item.position))
    waiting.sort(key=lambda item: item.timer[:2])
    mixed = _number(queue_model, placed)
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
    for done in queue_model.done.values():
        yield done.id, ("done", done), done, None


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
