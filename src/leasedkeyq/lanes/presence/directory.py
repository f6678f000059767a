"""Reading what workers have told, and pausing lanes, with nothing but a store.

For tools that run no lane: they have no manager, and no command types. Every function takes a few
trips to the store, however much is in its queues.
"""

import time
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from leasedkeyq.errors import LeasedKeyQError, StoreError
from leasedkeyq.lanes.presence.catalog_records import (
    CATALOG_QUEUE,
    LANE,
    TYPE,
    LaneRecord,
    TypeRecord,
    decode_lane,
    decode_type,
    read_records,
)
from leasedkeyq.lanes.presence.records import (
    FOREVER,
    GRACE,
    NEWS,
    PAUSED,
    WORKER,
    WORKERS_QUEUE,
    Member,
    Presence,
    bury_dead,
)
from leasedkeyq.model.requests import Cancel, Change, Discard, Put, StoredItem, StoredState
from leasedkeyq.stores.codec import UNREADABLE
from leasedkeyq.stores.store import Store

AT_A_TIME = 500
"""Items that are read in one trip."""
MOST_WORKERS = 5000
"""Workers that are read at most."""


class WorkerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A worker, as it told of itself last.

    Attributes:
        id: Its name among all workers of the store.
        member: Who it is.
        presence: What it does, or did last.
        alive: Whether its lease holds. One that has died is shown for an hour.
        seen_at: When it told last, by the clock of the store.
        expires_at: When it is taken for dead, if it does not tell again; None: it is dead.
    """

    id: str
    member: Member
    presence: Presence
    alive: bool
    seen_at: float
    expires_at: float | None = None


async def read_workers(store: Store) -> list[WorkerRecord]:
    """The workers of a store, those that live and those that died of late, oldest first.

    What is seen to be dead for the first time is noted as such: that is the one thing that is
    written, and it may fail without harm.
    """
    items = await _browse(store, ("available", "in_flight", "done"), WORKER)
    if any(item.state == "available" and item.attempt for item in items):
        with suppress(StoreError):
            await forget_dead(store, items, time.time() - GRACE)
    return [record for item in items if (record := _worker(item)) is not None]


async def forget_dead(store: Store, found: Sequence[StoredItem], before: float) -> None:
    """Take away the items of workers that have died; see `bury_dead`."""
    keys = [change.key for change in bury_dead(found, before) if isinstance(change, Cancel)]
    if keys:
        await store.edit(WORKERS_QUEUE, lambda items: bury_dead(items, before), keys=keys)


def _worker(item: StoredItem) -> WorkerRecord | None:
    """The worker of an item; None: it has not begun, or is of another version."""
    alive = item.state == "in_flight"
    if not alive and item.progress is None:
        return None
    try:
        member = msgspec.json.decode(item.value, type=Member)
        presence = (
            Presence()
            if item.progress is None
            else msgspec.json.decode(item.progress, type=Presence)
        )
    except UNREADABLE:
        return None
    if alive:
        seen_at = item.put_at
        if item.due is not None and member.lease_time:  # an older version does not tell the latter
            seen_at = item.due - member.lease_time
    else:
        ended = [attempt.ended_at for attempt in item.history] or [item.put_at]
        seen_at = ended[-1] - member.lease_time
    return WorkerRecord(
        id=item.key.removeprefix(WORKER),
        member=member,
        presence=presence,
        alive=alive,
        seen_at=seen_at,
        expires_at=item.due if alive else None,
    )


async def read_lanes(store: Store) -> list[LaneRecord]:
    """The lanes that workers of a store have told of within a month, by priority and name."""
    found = [decode_lane(item) for item in await read_records(store, LANE)]
    lanes = {record.name: record for record in found if record is not None}
    return sorted(lanes.values(), key=lambda record: (record.priority, record.name))


async def read_types(store: Store) -> list[TypeRecord]:
    """The command types that workers of a store have told of within a month, by name."""
    found = [decode_type(item) for item in await read_records(store, TYPE)]
    types = {record.name: record for record in found if record is not None}
    return [types[name] for name in sorted(types)]


async def read_paused(store: Store) -> list[str]:
    """The names of the lanes that are paused, in order."""
    items = await _browse(store, ("scheduled",), PAUSED)
    return sorted(item.key.removeprefix(PAUSED) for item in items)


async def pause_lane(store: Store, lane: str) -> None:
    """Let no worker of the store start commands of a lane, as `QueueManager.pause`.

    Raises:
        LimitExceededError: The name of the lane is too long for the store.
    """
    _check(await store.put([Put(WORKERS_QUEUE, ((PAUSED + lane, b"null"),), delay=FOREVER)]))
    await tell_workers(store)


async def resume_lane(store: Store, lane: str) -> bool:
    """Let the workers start commands of a lane again; returns whether it was paused."""
    [answer] = await store.settle([Cancel(WORKERS_QUEUE, PAUSED + lane)])
    _check([answer])
    await tell_workers(store)
    return bool(answer)


async def tell_workers(store: Store) -> None:
    """Let all workers of a store look at what they tell each other."""
    _check(await store.put([Put(WORKERS_QUEUE, ((NEWS, b"null"),))]))
    await store.settle([Cancel(WORKERS_QUEUE, NEWS)])


async def forget_lane(store: Store, lane: str) -> bool:
    """Forget what was told of a lane, but not its commands; returns whether anything was.

    A worker that runs the lane tells of it again.
    """
    return await _forget(store, LANE + lane)


async def forget_type(store: Store, name: str) -> bool:
    """Forget what was told of a command type; as `forget_lane`."""
    return await _forget(store, TYPE + name)


async def _forget(store: Store, key: str) -> bool:
    def work(items: Sequence[StoredItem]) -> list[Put | Change]:
        return [Discard(CATALOG_QUEUE, item.id) for item in items if item.state == "done"]

    return any(await store.edit(CATALOG_QUEUE, work, keys=[key]))


async def _browse(store: Store, states: Sequence[StoredState], prefix: str) -> list[StoredItem]:
    found: list[StoredItem] = []
    cursor: str | None = None
    while len(found) < MOST_WORKERS:
        page = await store.browse(
            WORKERS_QUEUE,
            states=states,
            prefix=prefix,
            cursor=cursor,
            limit=AT_A_TIME,
        )
        found += page.items
        cursor = page.cursor
        if cursor is None:
            break
    return found


def _check(answers: Sequence[object]) -> None:
    for answer in answers:
        if isinstance(answer, LeasedKeyQError):
            raise answer
