"""Kept results that are no results of items: what workers leave in the store for some time."""

from collections.abc import Mapping, Sequence

from leasedkeyq.model.requests import Cancel, Change, Put, StoredItem
from leasedkeyq.stores.store import Store


async def keep(store: Store, queue: str, results: Mapping[str, bytes], seconds: float) -> None:
    """Write kept results by their keys, all of them or none. They end by themselves.

    Keys that have one already are left alone: so a caller that does not know whether it went well
    can call it again.

    Args:
        store: Where they are kept.
        queue: In which queue.
        results: What is kept, by key.
        seconds: For how long.
    """

    def work(items: Sequence[StoredItem]) -> list[Put | Change]:
        there = {item.key for item in items}
        changes: list[Put | Change] = []
        for key, raw in results.items():
            if key not in there:
                # A result needs an item that ends: both in one step, so that no consumer sees it.
                changes.append(Put(queue, ((key, b"null"),)))
                changes.append(Cancel(queue, key, raw, seconds, outcome="completed"))
        return changes

    if results:
        await store.edit(queue, work, keys=[*results])
