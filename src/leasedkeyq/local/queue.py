"""`LeasedKeyQueue`: the keyed, leased queue for one event loop.

It is a `QueueState` driven by the clock of an event loop, with lines of waiting consumers and
producers. No method but the waiting ones has an `await`, so each is one step for the event loop.
While a consumer waits for any item none is available: an item is handed over as it comes.
"""

import logging
from asyncio import BaseEventLoop, TimerHandle, _get_running_loop
from collections import Counter
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from math import inf
from time import monotonic
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from leasedkeyq import checks
from leasedkeyq.errors import (
    InvalidLeaseError,
    KeyAlreadyInFlightError,
    KeyAlreadyPresentError,
    KeyNotAvailableError,
    QueueClosedError,
    QueueEmptyError,
    QueueFullError,
    WrongEventLoopError,
    closed_while_waiting,
    describe,
    keys_in_flight,
    keys_present,
    repeated,
)
from leasedkeyq.lease import Lease, LeasedItem, LeaseIssuer
from leasedkeyq.local.loop_affinity import UNBOUND, affinity_of, here, used_elsewhere
from leasedkeyq.local.observer_call import tell
from leasedkeyq.local.waiters import ConsumerLine, Consumers, Producer, Producers, Turn
from leasedkeyq.model.items import Item
from leasedkeyq.model.state import QueueState
from leasedkeyq.types import (
    BuriedItem,
    Duration,
    InFlightPolicy,
    ItemSnapshot,
    PresentPolicy,
    PutOutcome,
    PutPolicy,
    QueueObserver,
)

K = TypeVar("K")
V = TypeVar("V")

ANY: Any = object()
"""Stands for the key where a consumer takes any."""

_SETTLED = ("acknowledged", "released", "buried")

logger = logging.getLogger("leasedkeyq")


class LeasedKeyQueue(Generic[K, V]):
    """A queue of keyed items, each worked on by one consumer at a time.

    A key has one value, the newest, or a line of values that are handed out one after the other
    (``if_present="append"``). Consumers get items in order (`get`) or by key (`take`), and
    hold a `Lease` on the key until they `ack` it, `release` it, or it expires; meanwhile nobody
    else gets that key. Items are handed out by priority, then first in, first out.

    The queue belongs to the event loop of its first use and needs no lock there. Calls from
    elsewhere raise `WrongEventLoopError`, until that loop is closed: several ``asyncio.run``, one
    after the other, may use one queue. Putting, getting and settling cost the same however many
    items, keys and waiters there are; delays, mixed lease times and priorities add the logarithm
    of their number.

    Waiting is safe under cancellation: a `get`, `take` or `put` that is cancelled or times out
    has changed nothing. Waiting callers are served first come, first served; a waiting `take`
    goes before waiting `get`s.

    Durations are seconds or `datetime.timedelta`.

    Args:
        default_lease_timeout: How long a lease lasts before its item goes back to the front of
            the queue, for calls that do not say. None: for ever.
        maxsize: How many items may wait, scheduled ones included and leased ones not. A `put`
            of a new key waits for room; released items always get in. 0: no limit.
        max_buried: How many buried items are kept; beyond it the oldest is dropped.
        observer: Told of every put, claim, acknowledgement, release and expiry.
    """

    def __init__(
        self,
        *,
        default_lease_timeout: Duration | None = None,
        maxsize: int = 0,
        max_buried: int = 1000,
        observer: QueueObserver[K] | None = None,
    ) -> None:
        self._lease_time = checks.lease_time("default_lease_timeout", default_lease_timeout)
        self._maxsize = checks.whole("maxsize", maxsize, 0)
        checks.whole("max_buried", max_buried, 0)
        self._observer = checks.is_observer(observer)
        self._special = bool(maxsize) or observer is not None
        self._state: QueueState[K, V] = QueueState(max_buried=max_buried, issuer=LeaseIssuer())
        self._consumers: Consumers[K] = Consumers()
        self._any_line = self._consumers.for_any
        self._key_lines = self._consumers.for_key
        self._producers: Producers[K] = Producers()
        self._producer_line = self._producers.line
        self._joiners: set[Turn] = set()
        self._affinity = UNBOUND
        self._loop: Any = None
        self._time: Callable[[], float] = float
        self._closed = False
        self._alarm: TimerHandle | None = None
        self._alarm_at = inf

    # Life

    async def start(self) -> None:
        """Bind the queue to the running event loop. The first use does so as well.

        Raises:
            QueueClosedError: The queue is closed.
        """
        if here() != self._affinity._thread_id:
            self._enter("start")

    async def close(self) -> None:
        """Close the queue, for good.

        Leased items go back to the front, and their leases end. Every waiting call gets a
        `QueueClosedError`, as does every later call that would change something. The methods
        that only look keep working, from any event loop. Closing twice is harmless.
        """
        if self._closed:
            return
        if here() != self._affinity._thread_id:
            self._enter("close")
        self._catch_up()
        if self._observer is not None:
            for item in self._state.in_flight.values():
                self._tell_moved(self._observer.on_release, item, item.lease.attempt)
        self._closed = True
        self._affinity = UNBOUND
        if self._alarm is not None:
            self._alarm.cancel()
        self._state.recall()
        producers = [p.turn for p in self._producers.line if p.turn is not None]
        for turn in [*self._consumers, *producers, *self._joiners]:
            if not turn.done():
                turn.set_exception(closed_while_waiting())

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    @property
    def maxsize(self) -> int:
        """How many items may wait; 0 for no limit."""
        return self._maxsize

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    # Putting

    async def put(
        self,
        key: K,
        value: V,
        *,
        if_in_flight: InFlightPolicy | None = None,
        if_present: PresentPolicy | None = None,
        priority: int | None = None,
        delay: Duration | None = None,
    ) -> PutOutcome:
        """Put `value` under `key`.

        A new key goes to the back of the queue. A key that already waits gets the new value and
        keeps its place, and for a key that is leased `if_in_flight` decides; or `if_present` says
        for both what happens.

        Waits while the queue is full, unless nothing is added (the newest value is replaced) or a
        waiting consumer takes the item at once. A cancelled `put` has put nothing.

        Args:
            key: Anything hashable.
            value: Anything.
            if_in_flight: ``"update"``, the default, replaces the value of the leased item,
                ``"reject"`` raises, ``"buffer"`` keeps the value behind the leased one until its
                lease has ended. Where a value waits there already, both replace that one: the
                newest is kept.
            if_present: ``"append"`` lets the value wait at the end of the key's line, so that every
                value is handed out, in order, one at a time. ``"update"`` replaces the newest value
                that waits; behind a leased one it waits its turn. ``"skip"`` puts nothing if the
                key is there, ``"reject"`` raises. It excludes `if_in_flight`.
            priority: Higher goes first. None: 0 for a new value, no change for one that replaces
                another.
            delay: Not available before this time has passed; 0 means now. None: now for a new
                value, no change for one that replaces another, so that a retry that waits is not
                cut short.

        Returns:
            What it did: ``"added"``, ``"updated"``, ``"buffered"``, ``"appended"`` or
            ``"skipped"``.

        Raises:
            KeyAlreadyInFlightError: The key is leased and `if_in_flight` is ``"reject"``.
            KeyAlreadyPresentError: The key is there and `if_present` is ``"reject"``.
            QueueClosedError: The queue is closed.
        """
        if here() != self._affinity._thread_id:
            self._enter("put")
        if (
            if_present is not None
            or if_in_flight is not None
            or priority is not None
            or delay is not None
            or self._special
        ):
            policy = checks.put_policy(if_in_flight, if_present)
            delay = checks.put_options(priority, delay)
            if self._maxsize:
                await self._wait_for_room((key,), policy, bool(delay))
            self._advance()
            outcome = self._put(key, value, policy, priority, delay)
            if self._producer_line:
                self._wake_producers(key)
            return outcome
        if self._alarm is not None and self._alarm_at <= self._time():
            self._advance()
        try:
            outcome = self._state.put(key, value)
        except TypeError:
            checks.hashable(key)
            raise
        if self._any_line or self._key_lines:
            self._offer(self._state.items[key])
        return outcome

    def put_nowait(
        self,
        key: K,
        value: V,
        *,
        if_in_flight: InFlightPolicy | None = None,
        if_present: PresentPolicy | None = None,
        priority: int | None = None,
        delay: Duration | None = None,
    ) -> PutOutcome:
        """`put` without waiting.

        Raises:
            KeyAlreadyInFlightError: The key is leased and `if_in_flight` is ``"reject"``.
            KeyAlreadyPresentError: The key is there and `if_present` is ``"reject"``.
            QueueFullError: There is no room, or others wait for it.
            QueueClosedError: The queue is closed.
        """
        if here() != self._affinity._thread_id:
            self._enter("put_nowait")
        policy = checks.put_policy(if_in_flight, if_present)
        delay = checks.put_options(priority, delay)
        self._advance()
        if self._maxsize:
            checks.hashable(key)
            refused = self._is_refused((key,), policy)
            if not refused and not self._has_room(Producer((key,), policy, bool(delay))):
                message = f"the queue is full: maxsize is {self._maxsize}"
                raise QueueFullError(message, maxsize=self._maxsize)
        outcome = self._put(key, value, policy, priority, delay)
        if self._producer_line:
            self._wake_producers(key)
        return outcome

    async def put_many(
        self,
        items: Mapping[K, V] | Iterable[tuple[K, V]],
        *,
        if_in_flight: InFlightPolicy | None = None,
        if_present: PresentPolicy | None = None,
        priority: int | None = None,
        delay: Duration | None = None,
    ) -> Counter[PutOutcome]:
        """Put many values in one step: all of them, or none on an error or a cancellation.

        Waits until there is room for all of them. Of several values for one key the last counts;
        with ``if_present="append"`` each of them does, in order, and with ``"skip"`` the first.

        Returns:
            How many of them did what: see `put`.

        Raises:
            KeyAlreadyInFlightError: `if_in_flight` is ``"reject"`` and some keys are leased; they
                are in the ``keys`` of the error.
            KeyAlreadyPresentError: `if_present` is ``"reject"`` and some keys are there, or come
                twice; they are in the ``keys`` of the error.
            QueueFullError: They are more than `maxsize`, and cannot be put without waiting.
            QueueClosedError: The queue is closed.
        """
        if here() != self._affinity._thread_id:
            self._enter("put_many")
        policy = checks.put_policy(if_in_flight, if_present)
        delay = checks.put_options(priority, delay)
        values = checks.key_values("items", items, policy)
        keys = tuple(key for key, _ in values)
        if self._maxsize:
            await self._wait_for_room(keys, policy, bool(delay))
        # Time stands still from here on: no key of the batch may come due in the middle of it.
        self._advance()
        self._refuse(keys, policy)
        outcomes: Counter[PutOutcome] = Counter(
            self._put(key, value, policy, priority, delay) for key, value in values
        )
        if self._producer_line:
            self._wake_producers(*keys)
        return outcomes

    def _refuse(self, keys: Sequence[K], policy: PutPolicy) -> None:
        """Raise what a put of these keys is refused with, if it is."""
        if policy == "reject":
            if leased := tuple(key for key in keys if key in self._state.in_flight):
                raise keys_in_flight(leased, len(keys))
        elif policy == "only_new" and (present := repeated(keys, self._state.items)):
            raise keys_present(present, len(keys))

    def _is_refused(self, keys: Sequence[K], policy: PutPolicy) -> bool:
        try:
            self._refuse(keys, policy)
        except (KeyAlreadyInFlightError, KeyAlreadyPresentError):
            return True
        return False

    # Getting

    async def get(
        self, timeout: Duration | None = None, *, lease_timeout: Duration | None = None
    ) -> tuple[K, V, Lease[K]]:
        """Lease the item that is next; wait until there is one.

        If this is cancelled or times out, the queue is as if it had not been called.

        Args:
            timeout: How long to wait at most, in total. None: for ever. 0: not at all.
            lease_timeout: How long the lease lasts. None: the queue's ``default_lease_timeout``.

        Returns:
            The key, the value and the lease.

        Raises:
            TimeoutError: Nothing became available in time.
            QueueClosedError: The queue is closed, or was closed while waiting.
        """
        if here() != self._affinity._thread_id:
            self._enter("get")
        if timeout is not None:
            timeout = checks.wait_time("timeout", timeout)
        lease_time = self._lease_time
        if lease_timeout is not None:
            lease_time = checks.lease_time("lease_timeout", lease_timeout)
        if lease_time is None:
            expires_at = None
            if self._alarm is not None and self._alarm_at <= self._time():
                self._advance()
        else:
            now = self._time()
            if self._alarm_at <= now:
                self._advance()
            expires_at = now + lease_time
        item = self._state.claim(expires_at)
        if item is not None:
            if (
                self._observer is None
                and not self._producer_line
                and (expires_at is None or expires_at >= self._alarm_at)
            ):
                return item.key, item.value, item.lease
            return self._claimed(item)
        return await self._wait(self._any_line, ANY, timeout, lease_time)

    def get_nowait(self, *, lease_timeout: Duration | None = None) -> tuple[K, V, Lease[K]]:
        """`get` without waiting.

        Raises:
            QueueEmptyError: Nothing is available.
            QueueClosedError: The queue is closed.
        """
        if here() != self._affinity._thread_id:
            self._enter("get_nowait")
        lease_time = self._lease_time_or_default(lease_timeout)
        self._advance()
        item = self._state.claim(self._expiry(lease_time))
        if item is None:
            raise QueueEmptyError("no item is available")
        return self._claimed(item)

    async def get_many(
        self, n: int, timeout: Duration | None = None, *, lease_timeout: Duration | None = None
    ) -> list[tuple[K, V, Lease[K]]]:
        """Lease up to `n` items: wait until there is one, then take the others that are available.

        Arguments and the effect of a cancellation are as in `get`; errors are those of `get`.
        """
        if here() != self._affinity._thread_id:
            self._enter("get_many")
        checks.whole("n", n, 1)
        batch = [await self.get(timeout, lease_timeout=lease_timeout)]
        lease_time = self._lease_time_or_default(lease_timeout)
        expires_at = self._expiry(lease_time)
        while len(batch) < n and (item := self._state.claim(expires_at)) is not None:
            batch.append(self._claimed(item))
        return batch

    async def take(
        self, key: K, timeout: Duration | None = None, *, lease_timeout: Duration | None = None
    ) -> tuple[K, V, Lease[K]]:
        """Lease the item of `key`; wait while it is absent, scheduled or in flight.

        If this is cancelled or times out, the queue is as if it had not been called.

        Args:
            key: The key to wait for.
            timeout: How long to wait at most, in total. None: for ever. 0: not at all.
            lease_timeout: How long the lease lasts. None: the queue's ``default_lease_timeout``.

        Returns:
            The key, the value and the lease.

        Raises:
            TimeoutError: The key did not become available in time.
            QueueClosedError: The queue is closed, or was closed while waiting.
        """
        if here() != self._affinity._thread_id:
            self._enter("take")
        checks.hashable(key)
        timeout = checks.wait_time("timeout", timeout)
        lease_time = self._lease_time_or_default(lease_timeout)
        self._advance()
        item = self._state.claim_key(key, self._expiry(lease_time))
        if item is not None:
            return self._claimed(item)
        line = self._consumers.line_for(key)
        try:
            return await self._wait(line, key, timeout, lease_time)
        finally:
            self._consumers.close_line(key)

    def take_nowait(
        self, key: K, *, lease_timeout: Duration | None = None
    ) -> tuple[K, V, Lease[K]]:
        """`take` without waiting.

        Raises:
            KeyNotAvailableError: The key is absent, scheduled or in flight.
            QueueClosedError: The queue is closed.
        """
        if here() != self._affinity._thread_id:
            self._enter("take_nowait")
        checks.hashable(key)
        lease_time = self._lease_time_or_default(lease_timeout)
        self._advance()
        item = self._state.claim_key(key, self._expiry(lease_time))
        if item is None:
            state = "absent"
            if key in self._state.items:
                state = "in_flight" if key in self._state.in_flight else "scheduled"
            if key in self._state.held:
                state = "held"
            message = f"key {describe(key)} is not available: it is {state.replace('_', ' ')}"
            raise KeyNotAvailableError(message, key=key, state=state)
        return self._claimed(item)

    def __aiter__(self) -> AsyncIterator[tuple[K, V, Lease[K]]]:
        """Get items for ever: ``async for key, value, lease in queue``. Ends with `close`."""
        return self

    async def __anext__(self) -> tuple[K, V, Lease[K]]:
        try:
            return await self.get()
        except QueueClosedError:
            raise StopAsyncIteration from None

    @asynccontextmanager
    async def lease(
        self,
        key: K | None = None,
        timeout: Duration | None = None,
        *,
        lease_timeout: Duration | None = None,
        requeue_front: bool = False,
        delay: Duration | None = None,
    ) -> AsyncGenerator[LeasedItem[K, V]]:
        """Work on one item: ``async with queue.lease() as item``.

        Leaving the block acknowledges the item. Leaving it by an exception, whatever its kind,
        releases the item and lets the exception pass. A lease that was settled inside the block
        is left alone.

        Args:
            key: The key to `take`. None: `get` the item that is next.
            timeout: How long to wait for the item, as in `get`.
            lease_timeout: How long the lease lasts, as in `get`.
            requeue_front: Where a failed item goes, as in `release`.
            delay: How long a failed item stays back, as in `release`.

        Raises:
            TimeoutError: Nothing became available in time.
            LeaseExpiredError: The lease expired inside the block, which otherwise went well.
            InvalidLeaseError: The key was removed inside the block, which otherwise went well.
            QueueClosedError: The queue is closed, or was closed while waiting or inside the block.
        """
        delay = checks.release_options(requeue_front, delay)
        if key is None:
            item = LeasedItem(*await self.get(timeout, lease_timeout=lease_timeout))
        else:
            item = LeasedItem(*await self.take(key, timeout, lease_timeout=lease_timeout))
        lease = item.lease
        try:
            yield item
        except BaseException as error:
            try:
                if lease._ended not in _SETTLED:
                    await self.release(lease, requeue_front=requeue_front, delay=delay)
            except (InvalidLeaseError, QueueClosedError) as refusal:
                error.add_note(f"leasedkeyq: the item was not released: {refusal}")
            raise
        if lease._ended not in _SETTLED:
            await self.ack(lease)

    # Settling

    async def ack(self, lease: Lease[K]) -> None:
        """The work is done: the item leaves the queue, and the next of its line can be leased.

        Raises:
            LeaseAlreadyAcknowledgedError: It was acknowledged before.
            LeaseExpiredError: The lease has expired; another consumer may have the item.
            InvalidLeaseError: The lease has ended otherwise, or is not of this queue.
            QueueClosedError: The queue is closed.
        """
        if here() != self._affinity._thread_id:
            self._enter("ack")
        if self._alarm is not None and self._alarm_at <= self._time():
            self._advance()
        try:
            if (observer := self._observer) is None:
                item = self._state.ack(lease)
            else:
                held = self._state.item_of(lease)
                item = self._state.ack(lease)
                self._tell_moved(observer.on_ack, held, lease.attempt)
        except (AttributeError, TypeError):
            checks.is_lease(lease)
            raise
        if item is not None:
            self._came_back(item)
            return
        if self._joiners:
            self._finish_join()
        if self._producer_line:
            self._wake_producers(lease.key)

    async def release(
        self, lease: Lease[K], *, requeue_front: bool = False, delay: Duration | None = None
    ) -> None:
        """Give the item back, to be handed out again; its line waits until it is done.

        If a newer value was buffered, that takes the item's place, at the back.

        Args:
            lease: The lease to end.
            requeue_front: Go to the front of the queue (of its priority) and not to the back.
            delay: Stay back for this time, then go to the back.

        Raises:
            LeaseAlreadyAcknowledgedError: It was acknowledged before.
            LeaseExpiredError: The lease has expired; the item went back already.
            InvalidLeaseError: The lease has ended otherwise, or is not of this queue.
            QueueClosedError: The queue is closed.
        """
        if here() != self._affinity._thread_id:
            self._enter("release")
        checks.is_lease(lease)
        delay = checks.release_options(requeue_front, delay)
        self._catch_up()
        item = self._state.release(lease, front=requeue_front, due=self._expiry(delay))
        if self._observer is not None:
            self._tell_moved(self._observer.on_release, item, lease.attempt)
        self._came_back(item)

    async def extend(self, lease: Lease[K], timeout: Duration | None = None) -> None:
        """Let the lease last `timeout` from now; ``lease.expires_at`` follows.

        Args:
            lease: The lease to extend.
            timeout: How long from now. None: the queue's ``default_lease_timeout``, and without
                one the lease does not expire any more.

        Raises:
            LeaseAlreadyAcknowledgedError: It was acknowledged before.
            LeaseExpiredError: It is too late.
            InvalidLeaseError: The lease has ended otherwise, or is not of this queue.
            QueueClosedError: The queue is closed.
        """
        if here() != self._affinity._thread_id:
            self._enter("extend")
        checks.is_lease(lease)
        lease_time = self._lease_time_or_default(timeout, "timeout")
        self._advance()
        self._state.extend(lease, self._expiry(lease_time))
        self._set_alarm()

    async def bury(
        self, lease: Lease[K], error: str = "", *, hold: bool = False
    ) -> BuriedItem[K, V]:
        """Give the item up and keep it aside with the reason; its key is free for a new item.

        The first of its line takes its place. With `hold` the line waits instead, and nothing of
        the key is handed out, until the buried item is requeued, as the head of its line, or is
        dropped, or the key is removed: for values whose order matters more than progress. Beyond
        the queue's ``max_buried``, the oldest buried item is dropped and logged as a warning.

        Raises:
            LeaseAlreadyAcknowledgedError: It was acknowledged before.
            LeaseExpiredError: The lease has expired; another consumer may have the item.
            InvalidLeaseError: The lease has ended otherwise, or is not of this queue.
            QueueClosedError: The queue is closed.
        """
        if here() != self._affinity._thread_id:
            self._enter("bury")
        checks.is_lease(lease)
        checks.error_text(error)
        checks.is_flag("hold", hold)
        self._catch_up()
        item, buried, dropped = self._state.bury(lease, error, hold=hold)
        if self._observer is not None:
            self._tell_moved(self._observer.on_bury, item, lease.attempt)
        if dropped is not None:
            text = "max_buried is %d: dropped the oldest buried item, key %s"
            logger.warning(text, self._state.max_buried, describe(dropped.key))
            if dropped.holds:
                # A waiting `take` of either key goes before those who wait for any.
                self._give_to_taker(item)
            self._was_unburied(dropped)
        self._came_back(item)
        return buried

    async def discard(self, buried: BuriedItem[K, V]) -> None:
        """Forget a buried item; a line that it holds goes on.

        Raises:
            KeyError: It is not among the buried items of this queue (any more).
            QueueClosedError: The queue is closed.
        """
        if here() != self._affinity._thread_id:
            self._enter("discard")
        checks.is_buried(buried)
        self._check_buried(buried)
        self._advance()
        found = self._state.buried[buried.id]
        self._state.unbury(found.id)
        self._was_unburied(found)

    def _was_unburied(self, buried: BuriedItem[K, V]) -> None:
        """A buried item was forgotten: its key goes on, if it held that."""
        item = self._state.items.get(buried.key) if buried.holds else None
        if item is not None:
            if self._observer is not None and item.available:
                item.since = self._time()
            self._came_back(item)
        elif self._producer_line:
            # A requeue of it need not wait for room any more.
            self._wake_producers(buried.key)

    def _is_buried(self, buried: BuriedItem[K, V]) -> bool:
        """Whether an item that `buried` or `bury` has shown is still there."""
        found = self._state.buried.get(buried.id)
        if found is None or found is buried:
            return found is not None
        # One that held its key is another object since that was removed.
        same = found.key is buried.key and found.value is buried.value
        return same and found.buried_at == buried.buried_at

    def _check_buried(self, buried: BuriedItem[K, V]) -> None:
        if not self._is_buried(buried):
            raise KeyError(f"no buried item {buried.id}: it was requeued, purged or dropped")

    async def requeue(
        self,
        buried: BuriedItem[K, V],
        *,
        if_in_flight: InFlightPolicy | None = None,
        if_present: PresentPolicy | None = None,
    ) -> None:
        """Put a buried item back with its priority, by the rules of `put`; it starts anew.

        If its key is there, it goes to the end of the line, unless `if_in_flight` or `if_present`
        say otherwise. An item that holds its key is the head of its line again.

        Waits for room as `put` does; a cancelled `requeue` leaves the item buried.

        Raises:
            KeyError: It is not among the buried items of this queue (any more).
            KeyAlreadyInFlightError: Its key is leased and `if_in_flight` is ``"reject"``.
            KeyAlreadyPresentError: Its key is there and `if_present` is ``"reject"``.
            ValueError: `if_present` is ``"skip"``: then the item would be lost.
            QueueClosedError: The queue is closed.
        """
        if here() != self._affinity._thread_id:
            self._enter("requeue")
        checks.is_buried(buried)
        policy = checks.requeue_policy(if_in_flight, if_present)
        if self._maxsize and self._is_buried(buried):
            # An item that holds its key is one more, whatever the policy says of other values. If
            # its hold ends while it waits, its key is absent, and the policy says nothing either.
            room_policy = "append" if self._state.holds_key(buried.id) else policy
            await self._wait_for_room(
                (buried.key,), room_policy, False, lambda: not self._is_buried(buried)
            )
        self._check_buried(buried)
        self._advance()
        if self._state.holds_key(buried.id):
            item = self._state.requeue_head(buried.id, buried.value)
            if self._observer is not None:
                item.since = self._time()
                tell(self._loop, self._observer.on_put, buried.key)
            self._came_back(item)
            return
        self._put(buried.key, buried.value, policy, buried.priority, None)
        self._state.unbury(buried.id)
        if self._producer_line:
            self._wake_producers(buried.key)

    async def remove(self, key: K, *, id: int | None = None) -> bool:  # noqa: A002  # as the values show it
        """Make `key` absent: drop its item and its line, and revoke a lease on it.

        With `id`, only the value with that number goes, as `line` and `snapshot` show it. If it is
        the head, its lease is revoked and the first of the line takes its place.

        Returns:
            Whether there was anything to remove.

        Raises:
            QueueClosedError: The queue is closed.
        """
        if here() != self._affinity._thread_id:
            self._enter("remove")
        checks.hashable(key)
        if id is not None:
            checks.whole("id", id, 1)
        self._advance()
        state = self._state
        item = state.items.get(key)
        if item is None:
            return False
        if id is None:
            only_held = key in state.held and item.line is None
            state.remove(key)
            if only_held:
                if self._producer_line:
                    self._wake_producers(key)
                return False
        elif not state.remove_from_line(key, id):
            if key in state.held or state.number_of(item) != id:
                return False
            state.remove_head(key)
            item.since = self._time()
        if self._observer is not None:
            tell(self._loop, self._observer.on_remove, key)
        self._came_back(item)
        return True

    async def purge_line(self, key: K) -> int:
        """Drop the values that wait behind the head of `key`; return how many there were.

        The head stays, and so does a lease on it.

        Raises:
            QueueClosedError: The queue is closed.
        """
        if here() != self._affinity._thread_id:
            self._enter("purge_line")
        checks.hashable(key)
        self._advance()
        count = len(self._state.remove_from_line(key))
        if count and self._observer is not None:
            tell(self._loop, self._observer.on_remove, key)
        if self._producer_line:
            self._wake_producers(key)
        return count

    async def purge_buried(self) -> int:
        """Forget all buried items; return how many there were.

        Raises:
            QueueClosedError: The queue is closed.
        """
        if here() != self._affinity._thread_id:
            self._enter("purge_buried")
        buried = list(self._state.buried.values())
        self._advance()
        for item in buried:
            self._state.unbury(item.id)
            self._was_unburied(item)
        return len(buried)

    async def join(self) -> None:
        """Wait until the queue holds nothing: nothing available, scheduled or in flight.

        Lines behind buried items that hold their keys are not waited for.

        Raises:
            QueueClosedError: The queue is closed, or was closed while waiting, with items left.
        """
        if self._closed and self._is_done():
            return
        if here() != self._affinity._thread_id:
            self._enter("join")
        self._advance()
        if self._is_done():
            return
        turn: Turn = self._loop.create_future()
        self._joiners.add(turn)
        try:
            await turn
        finally:
            self._joiners.discard(turn)

    def _is_done(self) -> bool:
        """Whether nothing is left but buried items and the lines behind them."""
        return len(self._state.items) == len(self._state.held)

    # Inspection: changes nothing, and works on a closed queue too

    async def peek(self, key: K) -> V | None:
        """The next value that waits under `key`, be it available or in line; None otherwise."""
        checks.hashable(key)
        self._look()
        item = self._state.items.get(key)
        if item is None:
            return None
        if item.available:
            return item.value
        following = item.first_in_line
        return None if following is None else following.value

    async def contains(self, key: K) -> bool:
        """Whether a value waits under `key`, be it available or in line."""
        checks.hashable(key)
        self._look()
        item = self._state.items.get(key)
        return item is not None and (item.available or item.line is not None)

    async def line(self, key: K) -> AsyncIterator[ItemSnapshot[K, V]]:
        """All values of `key` in order: ``async for value in queue.line(key)``.

        The head comes first, whatever its state, then its line, as they were when this began.
        """
        checks.hashable(key)
        self._look()
        item = self._state.items.get(key)
        if item is not None:
            for value in list(self._state.snapshot_of(item)):
                yield value

    async def available_keys(self) -> set[K]:
        """The keys with a value that waits, be it available or in line."""
        self._look()
        items = self._state.items.values()
        return {i.key for i in items if i.available or i.line is not None}

    async def scheduled_keys(self) -> set[K]:
        """The keys whose items wait for their time."""
        self._look()
        return {item.key for item in self._state.scheduled_items()}

    async def inflight_keys(self) -> set[K]:
        """The keys that are leased."""
        self._look()
        return set(self._state.in_flight)

    async def qsize(self) -> int:
        """How many values wait to be handed out; those in lines count, scheduled ones do not.

        Nor do values behind a buried item that holds their key.
        """
        self._look()
        return self._state.available

    async def scheduled_size(self) -> int:
        """How many items wait for their time."""
        self._look()
        return self._state.scheduled

    async def inflight_size(self) -> int:
        """How many items are leased."""
        self._look()
        return len(self._state.in_flight)

    async def buried(self) -> list[BuriedItem[K, V]]:
        """The items that were given up, oldest first."""
        self._look()
        return list(self._state.buried.values())

    async def snapshot(self) -> list[ItemSnapshot[K, V]]:
        """All live items: the available in order, the scheduled by time, the leased by age."""
        self._look()
        return list(self._state.snapshot())

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
        self._affinity = affinity_of(loop)
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
        """Drop the waiting calls of an event loop that is closed: they never go on."""
        self._any_line.clear()
        self._key_lines.clear()
        self._producer_line.clear()
        self._producers.by_key.clear()
        self._joiners.clear()

    def _look(self) -> None:
        """Before a method that only looks: bring the queue up to date, unless it is closed."""
        if not self._closed:
            if here() != self._affinity._thread_id:
                self._enter("looking into the queue")
            self._advance()

    def _advance(self) -> None:
        """End the leases that have expired and free the scheduled items that are due."""
        # The alarm is set for the earliest moment at the latest.
        if self._alarm is not None and self._alarm_at <= (now := self._time()):
            self._advance_to(now)

    def _catch_up(self) -> None:
        """As `_advance`, and tell the state the time, which it needs when an item comes back."""
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
                tell(self._loop, observer.on_expire, item.key, lease.attempt, seconds)

    def _set_alarm(self) -> None:
        """Have the event loop call at the next expiry or schedule."""
        when = self._state.earliest()
        if when is not None and when < self._alarm_at:
            if self._alarm is not None:
                self._alarm.cancel()
            self._alarm = self._loop.call_at(when, self._ring)
            self._alarm_at = when

    def _ring(self) -> None:
        # An event loop may call a little early. The moment has come, whatever its clock says.
        self._advance_to(max(self._time(), self._alarm_at))

    # Room for producers

    def _put(
        self,
        key: K,
        value: V,
        policy: PutPolicy,
        priority: int | None,
        delay: float | None,
    ) -> PutOutcome:
        """Put, as of the time that the queue has been advanced to."""
        # A delay of 0 is a time in the past, which means now and needs no clock.
        due = None if delay is None else self._time() + delay if delay else -inf
        state = self._state
        try:
            before = state.items.get(key)
            was_available = before is not None and before.available
            outcome = state.put(key, value, policy, priority, due)
        except TypeError:
            checks.hashable(key)
            raise
        item = state.items[key]
        if self._observer is not None and outcome != "skipped":
            if item.available and not was_available:
                item.since = self._time()
            tell(self._loop, self._observer.on_put, key)
        if self._any_line or self._key_lines:
            self._offer(item)
        if delay:
            self._set_alarm()
        return outcome

    async def _wait_for_room(
        self,
        keys: Sequence[K],
        policy: PutPolicy,
        scheduled: bool,
        pointless: Callable[[], bool] | None = None,
    ) -> None:
        """Return when the keys may be put; nothing may come between that and the put."""
        for key in keys:
            checks.hashable(key)
        self._advance()
        if self._is_refused(keys, policy):
            return  # The put does not wait for its refusal.
        producer = Producer(keys, policy, scheduled, pointless)
        if self._has_room(producer):
            return
        if producer.most > self._maxsize:
            message = (
                f"{producer.most} values do not fit into the queue: maxsize is {self._maxsize}"
            )
            raise QueueFullError(message, maxsize=self._maxsize)
        self._producers.enter(producer)
        try:
            while True:
                turn: Turn = self._loop.create_future()
                producer.turn = turn
                await turn
                if self._closed:
                    raise closed_while_waiting()
                if self._has_room(producer):
                    return
        finally:
            # A put that waited in a closed event loop may end much later; see _forget_waiters.
            if producer.turn is None or producer.turn.get_loop() is self._loop:
                self._producers.leave(producer)
                if not self._closed and not self._loop.is_closed():
                    self._wake_producers(*keys)

    def _has_room(self, producer: Producer[K]) -> bool:
        """Whether it is this producer's turn, be it in line or new, and its items fit.

        No producer overtakes another one of the same key. A put that adds no item, or whose key
        a waiting `take` wants, does not wait for other producers. An item that a waiting `get`
        takes at once needs no room.
        """
        producers = self._producers
        for key in producer.keys:
            if producers.first_for(key) not in (None, producer):
                return False
        if producer.pointless is not None and producer.pointless():
            return True
        offered = staying = 0
        if producer.policy == "append":
            staying = producer.values - len(producer.keys)
        for key in producer.keys:
            if self._state.items.get(key) is not None:
                staying += self._state.grows_by(key, producer.policy)
            elif producer.scheduled:
                staying += 1
            elif not self._consumers.awaits(key):
                offered += 1
        producer.need = offered + staying
        if not producer.need:
            return True
        if producers.first() not in (None, producer):
            return False
        need = staying + offered - self._consumers.count_for_any(offered)
        state = self._state
        return not need or need <= self._maxsize - state.waiting

    def _wake_producers(self, *keys: K) -> None:
        """These keys, or the room, have changed: wake the producers that can put now."""
        producers = self._producers
        candidates = {producers.first_for(key) for key in keys}
        first = producers.first()
        if first is not None:
            # Its need changes only with its keys: do not count again while it cannot fit.
            state = self._state
            room = self._maxsize - state.waiting
            if first.need - len(self._any_line) <= max(room, 0):
                candidates.add(first)
        for producer in candidates:
            if producer is not None and self._has_room(producer):
                producer.wake()

    # Handing out

    def _claimed(self, item: Item[K, V]) -> tuple[K, V, Lease[K]]:
        """After a claim: set the alarm, tell the observer; return the triple for the consumer."""
        lease: Lease[K] = item.lease
        if lease._expires_at is not None and lease._expires_at < self._alarm_at:
            self._set_alarm()
        if self._observer is not None:
            self._tell_moved(self._observer.on_claim, item, lease.attempt)
        if self._producer_line:
            self._wake_producers(item.key)
        return item.key, item.value, lease

    def _offer(self, item: Item[K, V]) -> None:
        """Hand an item that has become available to a waiting consumer."""
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
        self, line: ConsumerLine, key: K, timeout: float | None, lease_time: float | None
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
                self._take_back(turn.result()[2])
            raise
        finally:
            if alarm is not None:
                alarm.cancel()
        if self._closed:
            raise closed_while_waiting()
        return claimed

    def _take_back(self, lease: Lease[K]) -> None:
        """Undo the claim of a consumer that was cancelled after it was handed `lease`."""
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
        tell(self._loop, notice, item.key, attempt, now - item.since)
        item.since = now

    def _came_back(self, item: Item[K, V]) -> None:
        """After the lease on `item` has ended, or `item` was removed: wake the waiting calls."""
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
        if self._is_done():
            for turn in self._joiners:
                if not turn.done():
                    turn.set_result(None)


def _too_late(key: object, timeout: float) -> TimeoutError:
    what = "no item became" if key is ANY else f"key {describe(key)} did not become"
    return TimeoutError(f"{what} available within {timeout:g} s")


def _give_up(turn: Turn, key: object, timeout: float) -> None:
    if not turn.done():
        turn.set_exception(_too_late(key, timeout))
