"""Events of lanes that workers publish in the store while somebody listens: what is written.

A program that listens leases an item in the queue in which workers tell each other things. While
there is one, each worker writes its events into a queue of the store, as kept results that end by
themselves. `leasedkeyq.operations.live.feed` listens.
"""

from typing import Any, Final

import msgspec

from leasedkeyq.lanes.events import LaneEvent
from leasedkeyq.stores.codec import UNREADABLE

EVENTS_QUEUE: Final = "leasedkeyq.events"
"""The queue of the store that has them."""
EVENTS_KEPT: Final = 60.0
"""Seconds for which they are kept."""
LISTENER: Final = "listener:"
"""How the keys of those that listen begin, in the queue of the workers."""
LISTENER_LEASE: Final = 20.0
"""Seconds for which one that listens is leased, and renewed in time; it is dead after that."""
TELL_AGAIN: Final = 10.0
"""Seconds after which a worker without events writes which queues are its own."""
LONGEST_TEXT: Final = 500
"""Characters of an error that are published."""


class ListenerWish(msgspec.Struct, omit_defaults=True):
    """What one that listens wants to hear: the value of its item."""

    events: list[str] | None = None
    """The events, such as ``"queue.command.failed"``; None for all."""
    totals: bool = False
    """Whether it wants to hear about once a second how many commands have started and ended."""


class LaneCount(msgspec.Struct, array_like=True):
    """How many commands of a lane have started and ended."""

    started: int = 0
    completed: int = 0
    failed: int = 0
    retried: int = 0


class PublishedEvent(msgspec.Struct, array_like=True, omit_defaults=True):
    """An event as it is stored."""

    at: float
    """When it happened, as Unix time by the clock of the worker."""
    event: str
    """What happened, such as ``"queue.command.completed"``."""
    lane: str = ""
    kind: str = ""
    key: str = ""
    command_id: str = ""
    attempt: int = 0
    error: str = ""
    delay: float | None = None
    pending: int | None = None


class EventBatch(msgspec.Struct, omit_defaults=True):
    """Some events of a worker."""

    worker: str
    """Tells workers apart."""
    at: float
    """When this was written, by the same clock as the events. The store tells it by its own."""
    queues: dict[str, str]
    """The queues that the worker serves, with their lanes: all of it is told by events."""
    events: list[PublishedEvent] = []
    dropped: int = 0
    """How many events were left out before these, because there were too many."""
    totals: dict[str, LaneCount] = {}
    """By lane: what the worker has counted since it was started, if that was asked for."""


def wish_of(value: bytes) -> ListenerWish:
    """What one that listens wants to hear. One of a later version is told all."""
    try:
        return msgspec.json.decode(value, type=ListenerWish)
    except UNREADABLE:
        return ListenerWish(totals=True)


def published(event: LaneEvent, at: float) -> PublishedEvent:
    """An event that happened at a moment, as it is going to be stored."""
    payload = event.payload
    return PublishedEvent(
        at,
        event.key,
        _text(payload.get("lane")),
        _text(payload.get("command_type")),
        _text(payload.get("key")),
        _text(payload.get("command_id")),
        payload.get("attempt", 0),
        _text(payload.get("error"))[:LONGEST_TEXT],
        payload.get("delay"),
        payload.get("pending"),
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
