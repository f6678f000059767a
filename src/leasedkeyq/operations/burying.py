"""Giving up an item that waits: only who has leased an item can bury it."""

from collections.abc import Sequence

from leasedkeyq.lanes.durable.envelope import PARKED
from leasedkeyq.model.requests import Amend, Bury, Change, Claim, Put, Release, StoredItem
from leasedkeyq.stores.holder import this_process
from leasedkeyq.stores.store import LIVE_STATES, Store

LEASE_TIME = 60.0
"""Seconds for which an item is leased to be buried; if this process dies, it waits again then."""
CHANGED = "it has changed meanwhile, or is gone"


async def bury_waiting(store: Store, item: StoredItem, error: str) -> str:
    """Bury an item that waits; returns why that was not done, or "".

    An item that is scheduled is made available first. A command has a kind at that moment which no
    worker runs, unless other commands of its key wait behind it. A consumer that leases the item at
    that moment loses the lease again.
    """
    queue, key = item.queue, item.key
    if item.state not in ("available", "scheduled"):
        return f"only an item that is next of its key can be buried; this one is {item.state}"
    scheduled, parked = item.state == "scheduled", False
    if scheduled:
        [values] = await store.look(queue, [key])
        parked = bool(item.kind) and len(values) == 1
        kind = PARKED if parked else None
        [waits] = await store.settle([Amend(queue, key, item.id, delay=0.0, kind=kind)])
        if not waits:
            return CHANGED
    claim = Claim(((queue, 1),), 1, key, LEASE_TIME, holder=this_process())
    [claimed] = await store.claim([claim])
    if claimed and claimed[0].id != item.id:
        await store.settle([Release(queue, key, claimed[0].token, undo=True)])
        return CHANGED
    mine = claimed[0].token if claimed else ""
    reasons: list[str] = []

    def work(items: Sequence[StoredItem]) -> list[Put | Change]:
        live = [value for value in items if value.state in LIVE_STATES]
        head = live[0] if live else item
        # What was scheduled was let go by this call alone, and is buried whoever has leased it.
        if head.id != item.id or not head.token or not (scheduled or head.token == mine):
            reasons.append(CHANGED)
            return []
        bury = Bury(queue, key, head.token, error)
        if not parked:
            return [bury]
        if len(live) == 1:
            return [Put(queue, ((key, head.value),), kind=item.kind), bury]
        # A command was submitted behind it meanwhile, which a put would replace.
        reasons.append("another command of its key was submitted meanwhile; try again")
        wait = max(0.0, (item.due or 0.0) - (head.leased_at or item.due or 0.0))
        return [
            Release(queue, key, head.token, delay=wait, undo=True),
            Amend(queue, key, item.id, kind=item.kind),
        ]

    await store.edit(queue, work, keys=[key], heads_only=not parked)
    return reasons[0] if reasons else ""
