"""Events: what happens in the lanes, for whoever listens.

Nobody waits for a listener. Each subscription has a buffer of its own; when it is full the oldest
event is dropped, and the subscriber is told how many it has lost.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self
from weakref import ref

import msgspec

from leasedkeyq import checks
from leasedkeyq.lanes.errors import SubscriptionClosedError

logger = logging.getLogger(__name__)

COMMAND_SUBMITTED: Final = "queue.command.submitted"
"""A command waits in its lane."""
COMMAND_STARTED: Final = "queue.command.started"
"""An attempt at a command starts."""
COMMAND_COMPLETED: Final = "queue.command.completed"
"""A command is done."""
COMMAND_RETRY: Final = "queue.command.retry"
"""An attempt failed, and another one will follow."""
COMMAND_DEAD_LETTERED: Final = "queue.command.dead_lettered"
"""A command went to the dead letters."""
COMMAND_FAILED: Final = "queue.command.failed"
"""A command raised, and is given up."""
COMMAND_TIMEOUT: Final = "queue.command.timeout"
"""A command ran out of time, and is given up."""
COMMAND_CANCELLED: Final = "queue.command.cancelled"
"""A command was cancelled."""
LANE_PRESSURE: Final = "queue.lane.pressure"
"""More commands wait in a lane than its threshold of pressure."""
LANE_IDLE: Final = "queue.lane.idle"
"""A lane that was under pressure has nothing left to do."""
SHUTDOWN_STARTED: Final = "queue.shutdown.started"
"""The manager takes no more commands."""


class LaneEvent(msgspec.Struct, frozen=True):
    """Something that happened."""

    key: str
    """What happened, such as ``"queue.command.completed"``."""
    payload: Mapping[str, Any]
    """The details: ``lane``, ``command_id``, ``command_type``, ``attempt``, ``error``, as they
    apply. All subscribers share it: do not change it."""
    timestamp: float
    """When it happened, as Unix time."""


class Subscription:
    """The events of an `EventEmitter` from now on, as an asynchronous iterator.

    ``async with emitter.subscribe() as events:`` closes it at the end. A subscription that nobody
    refers to any more is forgotten. Use it in the event loop of the emitter.

    Attributes:
        missed: How many events were dropped right before the one that was received last, because
            the subscriber was too slow.
        missed_in_total: How many events were dropped so far.
    """

    def __init__(self, capacity: int, predicate: Callable[[LaneEvent], bool] | None = None) -> None:
        self._capacity = capacity
        self._predicate = predicate
        self._predicate_failed = False
        self._events: deque[LaneEvent] = deque()
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._closed = False
        self._dropped = 0
        self.missed = 0
        self.missed_in_total = 0

    @property
    def closed(self) -> bool:
        """Whether no more events come in. Those that are there can still be received."""
        return self._closed

    async def recv(self) -> LaneEvent:
        """The next event; waits for it if need be.

        A call that is cancelled takes no event with it. Several tasks may wait at a time; each
        event goes to one of them.

        Raises:
            SubscriptionClosedError: The subscription or its emitter is closed, and all events
                have been received.
        """
        while not self._events:
            if self._closed:
                raise SubscriptionClosedError("the subscription is closed")
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except BaseException:
                if waiter.done() and not waiter.cancelled():
                    self._wake_one()  # it was woken for an event that it does not take
                else:
                    with suppress(ValueError):
                        self._waiters.remove(waiter)
                raise
        # The oldest are dropped first, so the gap is right before this event.
        self.missed, self._dropped = self._dropped, 0
        return self._events.popleft()

    def close(self) -> None:
        """Receive nothing more: drop what is there, and end all waiting and iterating."""
        self._events.clear()
        self._end()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> LaneEvent:
        try:
            return await self.recv()
        except SubscriptionClosedError:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # For the emitter

    def _offer(self, event: LaneEvent) -> None:
        if self._predicate is not None and not self._wanted(self._predicate, event):
            return
        if len(self._events) >= self._capacity:
            self._events.popleft()
            self._dropped += 1
            self.missed_in_total += 1
        self._events.append(event)
        if self._waiters:
            self._wake_one()

    def _wanted(self, predicate: Callable[[LaneEvent], bool], event: LaneEvent) -> bool:
        try:
            return bool(predicate(event))
        except Exception:
            if not self._predicate_failed:
                self._predicate_failed = True
                logger.exception("the predicate of a subscription failed on %s", event.key)
            return False

    def _end(self) -> None:
        self._closed = True
        while self._waiters:
            self._wake_one()

    def _wake_one(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                try:
                    waiter.set_result(None)
                except RuntimeError:  # its event loop is closed: nobody waits there
                    continue
                return


class EventEmitter:
    """Passes events to those who listen.

    It is used in one event loop. Emitting neither waits nor raises.

    Args:
        capacity: How many events a subscription holds for its subscriber; of more, the oldest are
            dropped.
        clock: Returns the Unix time.

    Attributes:
        listening: Whether anybody listens. Look at it before you build a payload.
    """

    def __init__(self, capacity: int = 1000, *, clock: Callable[[], float] = time.time) -> None:
        self._capacity = checks.whole("capacity", capacity, 1)
        self._clock = clock
        self._closed = False
        self._subscriptions: list[ref[Subscription]] = []
        self.listening = False

    def subscribe(self) -> Subscription:
        """Receive every event from now on."""
        return self._subscribe(None)

    def subscribe_filtered(self, predicate: Callable[[LaneEvent], bool]) -> Subscription:
        """Receive the events from now on for which `predicate` is true.

        It is called while the event is emitted, so it must be quick. When it raises, the event is
        not wanted, and the first exception is logged.
        """
        if not callable(predicate):
            raise TypeError(f"predicate must be callable, got {type(predicate).__name__}")
        return self._subscribe(predicate)

    def emit(self, key: str, payload: Mapping[str, Any]) -> None:
        """Tell all subscribers. The payload is theirs from now on: do not change it."""
        if not self.listening:
            return
        event = LaneEvent(key, payload, self._clock())
        gone = False
        # A predicate may subscribe or close: that makes a new list, and this one stays.
        for reference in self._subscriptions:
            subscription = reference()
            if subscription is None or subscription.closed:
                gone = True
            else:
                subscription._offer(event)
        if gone:
            self._forget_the_gone()

    def close(self) -> None:
        """Emit nothing more. Subscriptions end when what they hold has been received."""
        self._closed = True
        for reference in self._subscriptions:
            subscription = reference()
            if subscription is not None:
                subscription._end()
        self._subscriptions = []
        self.listening = False

    def _subscribe(self, predicate: Callable[[LaneEvent], bool] | None) -> Subscription:
        subscription = Subscription(self._capacity, predicate)
        if self._closed:
            subscription._end()
        else:
            self._forget_the_gone()
            self._subscriptions.append(ref(subscription))
            self.listening = True
        return subscription

    def _forget_the_gone(self) -> None:
        here = ((reference, reference()) for reference in self._subscriptions)
        self._subscriptions = [
            reference
            for reference, subscription in here
            if subscription is not None and not subscription.closed
        ]
        self.listening = bool(self._subscriptions)
