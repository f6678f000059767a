"""From the file store's document to the model: every entry is read, and none is believed."""

import msgspec

from leasedkeyq.engines.file.document.document import (
    BUCKETS,
    VERSION,
    Document,
    Entry,
    Facts,
    Form,
    Held,
    Section,
)
from leasedkeyq.engines.file.document.fields import NonsenseError, check_text, decode, decode_whole
from leasedkeyq.engines.file.document.ordering import in_order
from leasedkeyq.lease import Lease
from leasedkeyq.model.caps import Bucket, BucketName
from leasedkeyq.model.items import Buffered, Item
from leasedkeyq.model.queue_model import Payload, QueueModel
from leasedkeyq.model.requests import Limits, StoredItem
from leasedkeyq.model.store_model import StoreModel
from leasedkeyq.types import BuriedItem

Known = dict[tuple[str, str], Facts]
"""What entries say, by their text and record: most of them are as they were at the last look."""
BucketRow = tuple[str, bool, str, float, float, float, float]
"""A bucket in the document: its `BucketName` and its `Bucket`."""


def load(
    document: Document, limits: Limits, now: float, *, ours: bool, known: Known | None = None
) -> StoreModel:
    """The model that the document describes; what a person left out is filled in.

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
    loader = Loader(model, document.form, now, known)
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


class Loader:
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
        self.done: list[tuple[QueueModel, str, Facts]] = []
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
            queue_model.keep(_done(queue, facts))
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

    def _read(self, section: Section, entry: Entry, where: str) -> Facts:
        mark = (entry.text, entry.record)
        facts = self.known.get(mark)
        if facts is None:
            facts = self.form.read(section, entry, where, self.now)
        if entry.text and facts.payload.id:
            self.seen[mark] = facts
        return facts

    def _live(self, queue_model: QueueModel, facts: Facts, where: str) -> None:
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
        facts: Facts,
        lease: Held,
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


def _done(queue: str, facts: Facts) -> StoredItem:
    payload = facts.payload
    return StoredItem(
        id=payload.id,
        queue=queue,
        key=facts.key,
        state="done",
        value=payload.value,
        priority=facts.priority,
        attempt=facts.attempt,
        put_at=payload.put_at,
        due=facts.due,
        history=payload.history,
        kind=payload.kind,
        outcome=facts.outcome,
    )
