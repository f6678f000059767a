"""Giving up an item that waits: only who has leased an item can bury it.

A scheduled command is made available first, and must not run then. Until it is leased, its type is
one that no worker knows, and that has its own type and its time in it: whatever ends this process
in between, nothing is lost, `bury` called again finishes it, and `doctor` tells of it.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from math import isfinite
from typing import NamedTuple

from leasedkeyq.checks import storable
from leasedkeyq.errors import LeasedKeyQError
from leasedkeyq.model.requests import Amend, Bury, Change, Claim, Put, Release, StoredItem
from leasedkeyq.stores.store import LIVE_STATES, Store
from leasedkeyq.stores.system.holder import this_process

LEASE_TIME = 60.0
"""Seconds for which an item is leased to be buried; if this process dies, it waits again then."""
CHANGED = "it has changed meanwhile, or is gone"
BURYING = "leasedkeyq.burying:"
"""How the type begins of a command that is being buried."""


class _BuryingPlan(NamedTuple):
    """What an item was before anything was done to it."""

    kind: str
    due: float
    parked: bool
    """Whether its kind is, or becomes, one that no worker knows."""
    let_go: bool
    """Whether it was scheduled, so that nobody but this call has made it available."""

    @property
    def parked_kind(self) -> str:
        return f"{BURYING}{self.due!r}:{self.kind}"


async def bury_waiting(
    store: Store, item: StoredItem, error: str, clock: Callable[[], float]
) -> str:
    """Bury an item that waits; returns why that was not done, or "".

    An item that is scheduled is made available first, and is scheduled again if this is cancelled
    or the store fails then. A consumer that leases it at that moment loses the lease again; of
    commands none does, unless others of its key wait behind it.
    """
    queue, key = item.queue, item.key
    error = storable(error)
    if item.state not in ("available", "scheduled"):
        return f"only an item that is next of its key can be buried; this one is {item.state}"
    plan = _begun(item)
    if item.state == "scheduled":
        [values] = await store.look(queue, [key])
        parked = bool(item.kind) and len(values) == 1
        plan = _BuryingPlan(item.kind, item.due or 0.0, parked, let_go=True)
    if not plan.let_go:
        return await _bury(store, item, error, plan)
    try:
        if item.state == "scheduled":
            kind = plan.parked_kind if plan.parked else None
            [waits] = await store.settle([Amend(queue, key, item.id, delay=0.0, kind=kind)])
            if isinstance(waits, LeasedKeyQError):
                return str(waits)
            if not waits:
                return CHANGED
        return await _bury(store, item, error, plan)
    except BaseException:
        await _take_back(store, item, plan, clock)
        raise


def _begun(item: StoredItem) -> _BuryingPlan:
    """An item that is available; also one that somebody has begun to bury, and has died then."""
    if item.kind.startswith(BURYING):
        due, _, kind = item.kind.removeprefix(BURYING).partition(":")
        with suppress(ValueError):  # anybody may put an item of such a kind
            if isfinite(float(due)):
                return _BuryingPlan(kind, float(due), parked=True, let_go=True)
    return _BuryingPlan(item.kind, 0.0, parked=False, let_go=False)


async def _bury(store: Store, item: StoredItem, error: str, plan: _BuryingPlan) -> str:
    """Bury an item that is available."""
    queue, key = item.queue, item.key
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
        if head.id != item.id or not head.token or not (plan.let_go or head.token == mine):
            reasons.append(CHANGED)
            return []
        bury = Bury(queue, key, head.token, error)
        if not plan.parked:
            return [bury]
        if len(live) == 1:
            return [Put(queue, ((key, head.value),), kind=plan.kind), bury]
        # A command was submitted behind it meanwhile, which a put would replace.
        reasons.append("another command of its key was submitted meanwhile; try again")
        return _scheduled_again(head, plan, head.leased_at or plan.due)

    await store.edit(queue, work, keys=[key], heads_only=not plan.parked)
    return reasons[0] if reasons else ""


async def _take_back(
    store: Store, item: StoredItem, plan: _BuryingPlan, clock: Callable[[], float]
) -> None:
    """Let a scheduled item be what it was, if it is still there and nobody works on it."""

    def work(items: Sequence[StoredItem]) -> list[Put | Change]:
        for head in items:
            if head.id == item.id and head.state in ("available", "in_flight"):
                mine = head.state == "available" or plan.parked or head.holder == this_process()
                return _scheduled_again(head, plan, clock()) if mine else []
        return []

    try:
        await store.edit(item.queue, work, keys=[item.key], heads_only=True)
    except LeasedKeyQError:
        return  # the store is away: what it has of the item tells all of it


def _scheduled_again(head: StoredItem, plan: _BuryingPlan, now: float) -> list[Put | Change]:
    queue, key = head.queue, head.key
    wait = max(0.0, plan.due - now)
    kind = plan.kind if plan.parked else None
    if not head.token:
        return [Amend(queue, key, head.id, delay=wait, kind=kind)]
    release = Release(queue, key, head.token, delay=wait, undo=True)
    return [release, Amend(queue, key, head.id, kind=kind)] if kind else [release]
