"""What moves inside a `LeasedKeyQueue`: the state machine, the event loop, and those who wait."""

from asyncio import BaseEventLoop, TimerHandle, _get_running_loop
from collections.abc import Callable, Sequence
from math import inf
from time import monotonic
from typing import Any, Generic, TypeVar

from leasedkeyq import checks
from leasedkeyq.errors import (
    QueueClosedError,
    QueueFullError,
    WrongEventLoopError,
    describe,
)
from leasedkeyq.lease import Lease, LeaseIssuer
from leasedkeyq.local.loop_affinity import NOWHERE, here, home_of, used_elsewhere
from leasedkeyq.local.waiters import Consumers, Line, Producer, Producers, Turn
from leasedkeyq.model.items import Item
from leasedkeyq.model.state import QueueState
from leasedkeyq.types import Duration, InFlightPolicy, QueueObserver

K = TypeVar("K")
V = TypeVar("V")

ANY: Any = object()
"""Stands for the key where a consumer takes any."""


class QueueMechanics(Generic[K, V]):
    """A `QueueState` driven by the clock of an event loop, with lines of consumers and producers.

    No method here but the waiting ones has an `await`, so each is one step for the event loop.
    While consumers wait for any item none is available: items are handed over as they come.
    """

    def __init__(
        self,
        lease_time: float | None,
        maxsize: int,
        max_buried: int,
        observer: QueueObserver[K] | None,
    ) -> None:
        self._lease_time = lease_time
        self._maxsize = maxsize
        self._observer = observer
        self._special = bool(maxsize) or observer is not None
        self._state: QueueState[K, V] = QueueState(max_buried=max_buried, issuer=LeaseIssuer())
        self._consumers: Consumers[K] = Consumers()
        self._any_line = self._consumers.for_any
        self._key_lines = self._consumers.for_key
        self._producers: Producers[K] = Producers()
        self._producer_line = self._producers.line
        self._joiners: set[Turn] = set()
        self._home = NOWHERE
        self._loop: Any = None
        self._time: Callable[[], float] = float
        self._closed = False
        self._alarm: TimerHandle | None = None
        self._alarm_at = inf

    # The event loop and its clock

    def _enter(self, method: str) -> None:
        """Let in the first event loop, and others when that one is closed; refuse the rest."""
        if self._closed:
            raise QueueClosedError(f"{method}: the queue is closed")
        loop = _get_running_loop()
        if loop is None:
            raise WrongEventLoopError(
                f"{method} was called outside a running event loop; a queue belongs to one event "
                "loop, use asyncio.run_coroutine_threadsafe to reach it from another thread"
            )
        if self._loop is not None and not self._loop.is_closed():
            raise used_elsewhere(method)
        moved = self._loop is not None
        self._home = home_of(loop)
        self._loop = loop
        # asyncio's own loops wrap this clock; without the wrapping it takes half the time.
        plain = isinstance(loop, BaseEventLoop) and type(loop).time is BaseEventLoop.time
        self._time = monotonic if plain else loop.time
        if moved:
            self._forget_waiters()
            self._alarm = None
            self._alarm_at = inf
            self._set_alarm()

    def _forget_waiters(self) -> None:
        """Whoever waited in an event loop that is closed waits no more."""
        self._any_line.clear()
        self._key_lines.clear()
        self._producer_line.clear()
        self._producers.by_key.clear()
        self._joiners.clear()

    def _look(self) -> None:
        """Before a method that only looks: the same, but a closed queue lets everybody look."""
        if not self._closed:
            if here() != self._home._thread_id:
                self._enter("looking into the queue")
            self._advance()

    def _advance(self) -> None:
        """Deal with what has come due: expired leases, scheduled items."""
        # The alarm is set for the earliest moment at the latest.
        if self._alarm is not None and self._alarm_at <= (now := self._time()):
            self._advance_to(now)

    def _catch_up(self) -> None:
        """The same, and tell the state what time it is, which it asks when an item comes back."""
        now = self._time()
        if self._alarm_at <= now:
            self._advance_to(now)
        elif now > self._state.now:
            self._state.now = now

    def _advance_to(self, now: float) -> None:
        try:
            moved = self._state.advance(now)
            if self._observer is not None:
                self._tell_of_expiries(self._observer, moved, now)
            if self._key_lines:
                for item, _ in moved:
                    self._give_to_taker(item)
            if self._any_line:
                self._give_to_getters()
            if self._producer_line:
                self._wake_producers(*(item.key for item, _ in moved))
        finally:
            if self._alarm is not None:
                self._alarm.cancel()
                self._alarm = None
                self._alarm_at = inf
            self._set_alarm()

    def _tell_of_expiries(
        self,
        observer: QueueObserver[K],
        moved: list[tuple[Item[K, V], Lease[K] | None]],
        now: float,
    ) -> None:
        held = [now - item.since if lease is not None else 0.0 for item, lease in moved]
        for item, _ in moved:
            item.since = now
        for (item, lease), seconds in zip(moved, held, strict=True):
            if lease is not None:
                self._tell(observer.on_expire, item.key, lease.attempt, seconds)

    def _set_alarm(self) -> None:
        """Have the event loop call at the earliest moment that something comes due."""
        when = self._state.earliest()
        if when is not None and when < self._alarm_at:
            if self._alarm is not None:
                self._alarm.cancel()
            self._alarm = self._loop.call_at(when, self._ring)
            self._alarm_at = when

    def _ring(self) -> None:
        # An event loop may call a little early. The moment has come, whatever its clock says.
        self._advance_to(max(self._time(), self._alarm_at))

    def _tell(self, notice: Callable[..., None], *arguments: Any) -> None:
        """Call the observer; what it raises is the event loop's business, not the caller's."""
        try:
            notice(*arguments)
        except Exception as error:
            context = {"message": "the observer of a LeasedKeyQueue failed", "exception": error}
            self._loop.call_exception_handler(context)

    # Putting

    def _put(
        self,
        key: K,
        value: V,
        policy: InFlightPolicy,
        priority: int | None,
        delay: float | None,
    ) -> None:
        """Put, as of the time that the queue has been advanced to."""
        # What lies in the past is now, and needs no clock.
        due = None if delay is None else self._time() + delay if delay else -inf
        try:
            item = self._state.put(key, value, policy, priority, due)
        except TypeError:
            checks.hashable(key)
            raise
        if self._observer is not None:
            if item is not None:
                item.since = self._time()
            self._tell(self._observer.on_put, key)
        if item is not None:
            if self._any_line or self._key_lines:
                self._offer(item)
        elif delay:
            self._set_alarm()

    async def _wait_for_room(
        self, keys: Sequence[K], policy: InFlightPolicy, scheduled: bool
    ) -> None:
        """Return when the keys may be put; nothing may come between that and the put."""
        for key in keys:
            checks.hashable(key)
        self._advance()
        if policy == "reject" and self._any_leased(keys):
            return  # The put is refused, and does not wait for that.
        producer = Producer(keys, policy, scheduled)
        if self._has_room(producer):
            return
        if len(keys) > self._maxsize:
            message = f"{len(keys)} keys do not fit into the queue: maxsize is {self._maxsize}"
            raise QueueFullError(message, maxsize=self._maxsize)
        self._producers.enter(producer)
        try:
            while True:
                turn: Turn = self._loop.create_future()
                producer.turn = turn
                await turn
                if self._closed:
                    raise QueueClosedError("the queue was closed while waiting")
                if self._has_room(producer):
                    return
        finally:
            # What waited in an event loop that is closed may end much later; see _forget_waiters.
            if producer.turn is None or producer.turn.get_loop() is self._loop:
                self._producers.leave(producer)
                if not self._closed and not self._loop.is_closed():
                    self._wake_producers(*keys)

    def _any_leased(self, keys: Sequence[K]) -> bool:
        in_flight = self._state.in_flight
        return any(key in in_flight for key in keys)

    def _has_room(self, producer: Producer[K]) -> bool:
        """Whether it is this producer's turn, be it in line or new, and its items fit.

        Nobody overtakes a producer of the same key. What adds nothing, or is awaited by somebody
        who takes that very key, waits for nobody else. What a consumer of any key takes at once
        needs no room.
        """
        producers = self._producers
        for key in producer.keys:
            if producers.first_for(key) not in (None, producer):
                return False
        offered = staying = 0
        for key in producer.keys:
            item = self._state.items.get(key)
            if item is None:
                if producer.scheduled:
                    staying += 1
                elif not self._consumers.awaits(key):
                    offered += 1
            elif item.lease is not None and item.buffered is None:
                staying += producer.policy == "buffer"
        producer.need = offered + staying
        if not producer.need:
            return True
        if producers.first() not in (None, producer):
            return False
        need = staying + offered - self._consumers.count_for_any(offered)
        state = self._state
        return not need or need <= self._maxsize - state.available - state.scheduled

    def _wake_producers(self, *keys: K) -> None:
        """Something happened, with these keys or with the room: wake whoever can put now."""
        producers = self._producers
        candidates = {producers.first_for(key) for key in keys}
        first = producers.first()
        if first is not None:
            # What it needs changes only with its keys: do not count again while it cannot fit.
            state = self._state
            room = self._maxsize - state.available - state.scheduled
            if first.need - len(self._any_line) <= max(room, 0):
                candidates.add(first)
        for producer in candidates:
            if producer is not None and self._has_room(producer):
                producer.wake()

    # Handing out

    def _claimed(self, item: Item[K, V]) -> tuple[K, V, Lease[K]]:
        """What follows a claim; returns what the consumer gets."""
        lease: Lease[K] = item.lease
        if lease._expires_at is not None and lease._expires_at < self._alarm_at:
            self._set_alarm()
        if self._observer is not None:
            self._tell_moved(self._observer.on_claim, item, lease.attempt)
        if self._producer_line:
            self._wake_producers(item.key)
        return item.key, item.value, lease

    def _offer(self, item: Item[K, V]) -> None:
        """Hand an item that has become available to somebody who waits."""
        if not self._give_to_taker(item) and self._any_line:
            self._give_to_getters()

    def _give_to_taker(self, item: Item[K, V]) -> bool:
        line = self._key_lines.get(item.key)
        while line and item.available:
            turn, lease_time = line.popitem(last=False)
            if not turn.done():
                self._state.claim_key(item.key, self._expiry(lease_time))
                turn.set_result((item.key, item.value, item.lease))
                self._claimed(item)
                return True
        return False

    def _give_to_getters(self) -> None:
        line = self._any_line
        while line and self._state.ready:
            turn, lease_time = line.popitem(last=False)
            if not turn.done() and (item := self._state.claim(self._expiry(lease_time))):
                turn.set_result((item.key, item.value, item.lease))
                self._claimed(item)

    def _lease_time_or_default(
        self, value: Duration | None, name: str = "lease_timeout"
    ) -> float | None:
        return self._lease_time if value is None else checks.lease_time(name, value)

    def _expiry(self, lease_time: float | None) -> float | None:
        return None if lease_time is None else self._time() + lease_time

    async def _wait(
        self, line: Line, key: K, timeout: float | None, lease_time: float | None
    ) -> tuple[K, V, Lease[K]]:
        """Stand in `line` until an item is handed over."""
        if timeout == 0:
            raise _too_late(key, timeout)
        turn: Turn = self._loop.create_future()
        line[turn] = lease_time
        alarm: TimerHandle | None = None
        if timeout is not None:
            alarm = self._loop.call_later(timeout, _give_up, turn, key, timeout)
        if self._producer_line:
            self._wake_producers(key)
        try:
            claimed: tuple[K, V, Lease[K]] = await turn
        except BaseException:
            line.pop(turn, None)
            handed_over = turn.done() and not turn.cancelled() and turn.exception() is None
            if handed_over and turn.get_loop() is self._loop:
                self._give_back(turn.result()[2])
            raise
        finally:
            if alarm is not None:
                alarm.cancel()
        if self._closed:
            raise QueueClosedError("the queue was closed while waiting")
        return claimed

    def _give_back(self, lease: Lease[K]) -> None:
        """The consumer that was handed `lease` is gone: all is as if it had never come."""
        if self._closed or self._loop.is_closed():
            return
        self._catch_up()
        item = self._state.unclaim(lease)
        if item is not None:
            if self._observer is not None:
                self._tell_moved(self._observer.on_release, item, lease.attempt)
            self._came_back(item)

    # Settling

    def _tell_moved(
        self, notice: Callable[[K, int, float], None], item: Item[K, V], attempt: int
    ) -> None:
        now = self._time()
        self._tell(notice, item.key, attempt, now - item.since)
        item.since = now

    def _came_back(self, item: Item[K, V]) -> None:
        """What follows when the lease on `item` has ended, or `item` was removed."""
        if item.available:
            if self._any_line or self._key_lines:
                self._offer(item)
        elif item.timer is not None:
            self._set_alarm()
            self._advance()
        elif self._joiners:
            self._finish_join()
        if self._producer_line:
            self._wake_producers(item.key)

    def _finish_join(self) -> None:
        if not self._state.items:
            for turn in self._joiners:
                if not turn.done():
                    turn.set_result(None)


def _too_late(key: object, timeout: float) -> TimeoutError:
    what = "no item became" if key is ANY else f"key {describe(key)} did not become"
    return TimeoutError(f"{what} available within {timeout:g} s")


def _give_up(turn: Turn, key: object, timeout: float) -> None:
    if not turn.done():
        turn.set_exception(_too_late(key, timeout))
