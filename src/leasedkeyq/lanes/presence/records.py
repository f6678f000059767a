"""What workers write into the store: which of them live, and what each of them does.

A worker is an item of one queue of the store that the worker has leased. The value of the item says
who the worker is, and its progress (see `Extend`) what the worker does: so that goes with the
renewal of the lease. A worker that ends takes its item away. The lease of one that has died
expires; whoever sees that first turns the item into a kept result, which shows it as dead for a
while.
"""

from collections.abc import Sequence

import msgspec

from leasedkeyq.model.requests import Cancel, Change, Put, StoredItem

WORKERS_QUEUE = "leasedkeyq.lanes"
"""The queue of the store in which workers tell each other things."""
OWN_QUEUES = "leasedkeyq."
"""How the names of the queues begin that are not for commands, but for leasedkeyq itself."""
PAUSED = "paused:"
WORKER = "worker:"
ASK = "ask:"
NEWS = "news"
"""How the keys in it begin. A worker that has changed something puts an item ``news`` and removes
it: the workers that watch the queue are woken by items that come and go."""
FOREVER = 100 * 365 * 86400.0
GRACE = 60.0
"""Seconds after which a worker is forgotten that has put its item and not leased it."""
DEAD_KEPT = 3600.0
"""Seconds for which a worker that has died is shown as dead."""
MOST_RUNNING = 200
"""Running commands that a worker tells of."""
MOST_RUNNING_TEXT = 32 * 1024
"""Characters in their names, all together."""
MOST_TYPES = 1000
"""Command types that a worker tells of."""


class ServedLane(msgspec.Struct, array_like=True, frozen=True):
    """A lane that a worker runs."""

    lane: str
    min_concurrency: int
    max_concurrency: int


class Member(msgspec.Struct, omit_defaults=True):
    """A worker: the value of its item."""

    lanes: dict[str, int]
    """The lanes whose partitions it shares, and how many of them it knows."""
    types: str
    """Stands for the command types that it knows. Workers share with those of the same types, and a
    worker that shares nothing has none: ""."""
    host: str = ""
    pid: int = 0
    version: str = ""
    """Of leasedkeyq."""
    python: str = ""
    started_at: float = 0.0
    """By the clock of the worker, as Unix time."""
    lease_time: float = 0.0
    """Seconds for which each renewal of its lease lasts."""
    serves: tuple[ServedLane, ...] = ()
    """The lanes that it runs."""
    commands: tuple[str, ...] = ()
    """The command types that it knows, at most `MOST_TYPES` of them."""


class RunningRecord(msgspec.Struct, array_like=True, frozen=True):
    """A command that a worker runs."""

    id: int
    queue: str
    key: str
    kind: str
    since: float
    """When it was started, by the clock of the store."""
    attempt: int


class LaneLoad(msgspec.Struct, array_like=True, frozen=True):
    """How a worker is busy with one lane."""

    active: int
    partitions: tuple[int, ...] | None = None
    """Which partitions it runs; None: all."""


class Presence(msgspec.Struct, omit_defaults=True):
    """What a worker does: the progress of its item."""

    running: tuple[RunningRecord, ...] = ()
    """The commands that have run the longest, at most `MOST_RUNNING`."""
    count: int = 0
    """How many commands run."""
    memory: int = 0
    """Resident bytes of the process."""
    loads: dict[str, LaneLoad] = {}
    blocked: float | None = None
    """For how many seconds the event loop has been blocked."""


def bury_dead(found: Sequence[StoredItem], before: float) -> list[Put | Change]:
    """The changes that take away workers that have died, and questions that nobody answered.

    Args:
        found: Items of the queue, in any state.
        before: Workers that were put before that, by the clock of the store, and have no lease yet,
            have died before their first one.
    """
    changes: list[Put | Change] = []
    for item in found:
        if item.state != "available":
            continue
        if item.key.startswith(ASK) and item.put_at < before:
            changes.append(Cancel(WORKERS_QUEUE, item.key, id=item.id))
        if not item.key.startswith(WORKER):
            continue
        if item.attempt and item.progress is not None:
            changes.append(
                Cancel(WORKERS_QUEUE, item.key, item.value, DEAD_KEPT, id=item.id, outcome="failed")
            )
        elif item.attempt or item.put_at < before:
            changes.append(Cancel(WORKERS_QUEUE, item.key, id=item.id))
    return changes
