"""From the model to the file store's document: only what has changed is written anew."""

from leasedkeyq.engines.file.document.document import (
    BUCKETS,
    COUNTERS,
    VERSION,
    Beside,
    Document,
    Entry,
    Facts,
    Form,
    Held,
    Section,
)
from leasedkeyq.engines.file.document.fields import check_text, encode
from leasedkeyq.engines.file.document.ordering import Stored, in_order
from leasedkeyq.engines.file.document.plain_yaml import printable
from leasedkeyq.engines.file.loading import Loader
from leasedkeyq.lease import Lease
from leasedkeyq.model.queue_model import Payload, QueueModel
from leasedkeyq.model.requests import StoredItem
from leasedkeyq.model.store_model import StoreModel
from leasedkeyq.types import BuriedItem


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
    loader = Loader(StoreModel(), form, 0.0)
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


def _facts(item: Stored, place: int | None) -> Facts:
    if isinstance(item, StoredItem):
        return Facts(
            key=item.key,
            state="done",
            payload=Payload(item.value, item.id, item.put_at, item.history, item.kind),
            priority=item.priority,
            attempt=item.attempt,
            due=item.due,
            outcome=item.outcome or "completed",
        )
    facts = Facts(
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
        facts.lease = Held(lease.token, lease.fence, lease.expires_at, since)
        facts.due = item.not_before
    elif item.next is None:
        facts.state = "scheduled"
        facts.due = item.timer[0]
    if (beside := item.buffered) is not None:
        facts.beside = Beside(beside.value, beside.priority, beside.not_before)
    return facts
