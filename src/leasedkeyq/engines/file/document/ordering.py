"""The order in which the items of a queue stand in the file store's document."""

from collections.abc import Iterator
from itertools import pairwise

from leasedkeyq.model.items import Item
from leasedkeyq.model.queue_model import Payload, QueueModel
from leasedkeyq.model.requests import StoredItem
from leasedkeyq.types import BuriedItem

Stored = Item[str, Payload] | BuriedItem[str, Payload] | StoredItem
Signature = tuple[object, ...]


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
    """Give `placed` the numbers that whoever reads the document gives them.

    Returns whether these are not simply those of the lines.
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
