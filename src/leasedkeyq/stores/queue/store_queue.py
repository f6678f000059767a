"""`StoreQueue`: the methods of `LeasedKeyQueue` on a queue of a store."""

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeAlias, TypeVar, cast

from msgspec.structs import replace

from leasedkeyq import checks
from leasedkeyq.errors import (
    LeasedKeyQError,
    LeaseEnd,
    QueueClosedError,
    StoreError,
    UndecodableValueError,
    closed_while_waiting,
    describe,
    lease_refusal,
)
from leasedkeyq.lease import Lease, LeasedItem
from leasedkeyq.local.loop_affinity import used_elsewhere
from leasedkeyq.local.observer_call import tell
from leasedkeyq.model.admission import (
    LARGEST_ID,
    check_holder,
    check_name,
    check_priority,
    refusal_of,
)
from leasedkeyq.model.requests import (
    Ack,
    Answer,
    Bury,
    Cancel,
    Change,
    Claimed,
    Counts,
    Discard,
    Extend,
    Placed,
    Purge,
    Put,
    Refusal,
    Release,
    Requeue,
    StoredItem,
    StoredState,
)
from leasedkeyq.stores.codec import Codec
from leasedkeyq.stores.queue.lease_book import LeaseBook
from leasedkeyq.stores.queue.pump import ClaimPump
from leasedkeyq.stores.queue.room import RoomLine
from leasedkeyq.types import (
    BuriedItem,
    Duration,
    InFlightPolicy,
    ItemSnapshot,
    ItemState,
    PresentPolicy,
    PutOutcome,
    QueueObserver,
)

if TYPE_CHECKING:
    from leasedkeyq.stores.store import Store

V = TypeVar("V")

logger = logging.getLogger("leasedkeyq")


class StoreQueue(Generic[V]):
    """A queue of a store: `LeasedKeyQueue` in all but its storage.

    Made by ``store.queue(name)``. Keys are strings, values anything that msgspec can encode as
    JSON. Several of these, in several processes where the store allows it, may work on one queue.
    Lease times and schedules go by the store's clock; `Lease.expires_at` is Unix time.

    A `get` or `take` that is cancelled or times out has changed nothing. A cancelled `put` may or
    may not have been stored: put again, the same key does not double.

    A queue object belongs to the event loop of its first use, until that loop is closed, as a
    `LeasedKeyQueue` does. In another loop make another one, of the same store.
    """

    def __init__(
        self,
        store: "Store",
        name: str,
        *,
        value_type: Any = Any,
        default_lease_timeout: Duration | None = None,
        maxsize: int = 0,
        max_buried: int | None = None,
        observer: QueueObserver[str] | None = None,
        holder: str = "",
    ) -> None:
        self.name: str = check_name("the name of a queue", name, store.limits)
        self._store = store
        self._codec: Codec[V] = Codec(value_type)
        self._lease_time = checks.lease_time("default_lease_timeout", default_lease_timeout)
        self._maxsize = checks.whole("maxsize", maxsize, 0)
        self._max_buried = None if max_buried is None else checks.whole("max_buried", max_buried, 0)
        self._oldest_buried: deque[tuple[int, str]] | None = None
        """Ids and keys of buried items, oldest first; None: not known."""
        self._observer = checks.is_observer(observer)
        self._holder = check_holder(holder)
        self._leases = LeaseBook()
        self._since: dict[str, float] = {}
        """When the leases were handed out, by token, for the observer."""
        self._expiries: dict[str, asyncio.TimerHandle] = {}
        """When to look whether leases have expired, by token, for the observer."""
        self._ahead: float | None = None
        """How far the store's clock is ahead of this machine's monotonic clock, once known."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pump: ClaimPump
        self._room: RoomLine
        self._chores: set[asyncio.Task[None]] = set()
        self._asking = False
        self._closed = False

    # Life

    async def start(self) -> None:
        """Bind the queue object to the running event loop. The first use does so as well."""
        self._enter("start")

    async def close(self) -> None:
        """Close this queue object, not what is stored.

        The leases that it handed out go back to the front, and everybody who waits in it gets a
        `QueueClosedError`. Looking still works as long as the store is open. If the store is being
        asked for an item, this waits for its answer, 10 s at most, and gives back what comes.

        Raises:
            StoreError: The store could not take the leases back. Call it again to try again.
        """
        if not self._closed:
            self._arrive("close")
            self._closed = True
            self._pump.close()
            self._room.close()
        elif self._loop is not asyncio.get_running_loop():
            return
        leases = sorted(self._leases, key=lambda lease: lease.fence, reverse=True)
        back: list[Change] = [
            Release(self.name, lease.key, lease.token, front=True) for lease in leases
        ]
        if back:
            await self._store.settle(back)
            for lease in reversed(leases):
                self._end(lease, "closed")
        await self._pump.ended()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    @property
    def maxsize(self) -> int:
        """How many items may wait; 0 for no limit."""
        return self._maxsize

    async def __aenter__(self) -> "StoreQueue[V]":
        await self.start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def _enter(self, method: str) -> None:
        """Before a method that changes something: the queue is open, and used in this loop."""
        if self._closed:
            raise QueueClosedError(f"{method}: the queue {self.name!r} is closed")
        self._arrive(method)

    def _arrive(self, method: str) -> None:
        """The same, but a closed queue lets everybody look."""
        loop = asyncio.get_running_loop()
        if loop is self._loop or self._closed:
            return
        if self._loop is not None and not self._loop.is_closed():
            raise used_elsewhere(method)
        # Whoever waited in a loop that is closed waits no more. Leases are good in any loop.
        self._loop = loop
        self._pump = ClaimPump(self._store, self.name, self._holder)
        self._room = RoomLine(self._store, self.name, self._maxsize, self._pump)
        self._chores.clear()
        self._asking = False

    def _look(self) -> None:
        self._arrive("looking into the queue")

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        chore = asyncio.get_running_loop().create_task(work)
        self._chores.add(chore)
        chore.add_done_callback(self._chores.discard)

    def _tell(self, event: "ObserverEvent", *arguments: Any) -> None:
        if self._observer is not None:
            tell(asyncio.get_running_loop(), getattr(self._observer, event), *arguments)

    # Putting

    async def put(
        self,
        key: str,
        value: V,
        *,
        if_in_flight: InFlightPolicy | None = None,
        if_present: PresentPolicy | None = None,
        priority: int | None = None,
        delay: Duration | None = None,
    ) -> PutOutcome:
        """As `LeasedKeyQueue.put`. On return the item is stored, as the store promises it.

        A put that is cancelled, or that an outage ends, may have happened. Where the newest value
        counts, put again: the same key does not double. With ``if_present="append"`` it would.

        The value is stored as JSON. Without the `value_type` of `Store.queue`, what comes out is
        what JSON has: bytes, dates, times, UUIDs and decimals come back as strings, tuples and sets
        as lists, objects as dicts, and the keys of dicts as strings. With
        ``value_type=`` they come back as that type, such as ``store.queue("jobs",
        value_type=tuple[bytes, datetime])``, and what does not fit it is buried.

        Raises:
            TypeError: The value cannot be stored as JSON; NaN and infinity cannot be.
            LimitExceededError: The key or the value is larger than the `Limits` of the store.
        """
        self._enter("put")
        policy = checks.put_policy(if_in_flight, if_present)
        seconds = put_options(priority, delay)
        check_name("key", key, self._store.limits)
        items = ((key, self._codec.encode(key, value)),)
        [placed] = await self._put(Put(self.name, items, policy, priority, seconds))
        return placed.outcome

    async def put_many(
        self,
        items: Mapping[str, V] | Iterable[tuple[str, V]],
        *,
        if_in_flight: InFlightPolicy | None = None,
        if_present: PresentPolicy | None = None,
        priority: int | None = None,
        delay: Duration | None = None,
    ) -> Counter[PutOutcome]:
        """As `LeasedKeyQueue.put_many`: all of them or none."""
        self._enter("put_many")
        policy = checks.put_policy(if_in_flight, if_present)
        seconds = put_options(priority, delay)
        encoded: list[tuple[str, bytes]] = []
        for key, value in checks.key_values("items", items, policy):
            check_name("key", key, self._store.limits)
            encoded.append((key, self._codec.encode(key, value)))
        if not encoded:
            return Counter()
        placed = await self._put(Put(self.name, tuple(encoded), policy, priority, seconds))
        return Counter(each.outcome for each in placed)

    async def _put(self, request: Put) -> tuple[Placed, ...]:
        keys = [key for key, _ in request.items]

        async def ask(max_items: int) -> Answer:
            await self._pump.sent()
            wanted = replace(request, max_items=max_items) if max_items else request
            return (await self._store.put([wanted]))[0]

        if self._maxsize:
            # What the store will not take need not wait for room first.
            raise_refusal(refusal_of(request, self._store.limits))
            scheduled = bool(request.delay)
            answer = await self._room.put(keys, request.policy, ask, scheduled=scheduled)
        else:
            answer = await ask(0)
        raise_refusal(answer)
        placed = cast("tuple[Placed, ...]", answer)
        if self._observer is not None:
            for key, each in zip(keys, placed, strict=True):
                if each.outcome != "skipped":
                    self._tell("on_put", key)
        return placed

    # Getting

    async def get(
        self, timeout: Duration | None = None, *, lease_timeout: Duration | None = None
    ) -> tuple[str, V, Lease[str]]:
        """As `LeasedKeyQueue.get`.

        An item whose value cannot be decoded is buried with the reason, and the next one is taken.
        """
        return (await self._get("get", None, 1, timeout, lease_timeout))[0]

    async def get_many(
        self, n: int, timeout: Duration | None = None, *, lease_timeout: Duration | None = None
    ) -> list[tuple[str, V, Lease[str]]]:
        """As `LeasedKeyQueue.get_many`, and never more than the limit `batch_size` of the store."""
        self._enter("get_many")
        many = min(checks.whole("n", n, 1), self._store.limits.batch_size)
        return await self._get("get_many", None, many, timeout, lease_timeout)

    async def take(
        self, key: str, timeout: Duration | None = None, *, lease_timeout: Duration | None = None
    ) -> tuple[str, V, Lease[str]]:
        """As `LeasedKeyQueue.take`."""
        self._enter("take")
        check_name("key", key, self._store.limits)
        return (await self._get("take", key, 1, timeout, lease_timeout))[0]

    async def _get(
        self,
        method: str,
        key: str | None,
        many: int,
        timeout: Duration | None,
        lease_timeout: Duration | None,
    ) -> list[tuple[str, V, Lease[str]]]:
        self._enter(method)
        wait = checks.wait_time("timeout", timeout)
        lease_time = self._lease_time
        if lease_timeout is not None:
            lease_time = checks.lease_time("lease_timeout", lease_timeout)
        loop = asyncio.get_running_loop()
        deadline = None if wait is None else loop.time() + wait
        while True:
            claimed = await self._pump.claim(key, wait, lease_time, many)
            batch = await self._accept(claimed, lease_time)
            if batch:
                return batch
            if deadline is not None:
                wait = max(deadline - loop.time(), 0.0)

    async def _accept(
        self, claimed: Sequence[Claimed], lease_time: float | None
    ) -> list[tuple[str, V, Lease[str]]]:
        """Decode what was claimed; bury what cannot be."""
        self._notice_time(claimed[0].expires_at, lease_time)
        good: list[tuple[Claimed, V]] = []
        bad: list[Change] = []
        for item in claimed:
            try:
                good.append((item, self._codec.decode(item.key, item.value)))
            except UndecodableValueError as error:
                logger.warning("queue %r: buried an item: %s", self.name, error)
                reason = checks.storable(str(error))
                bad.append(Bury(self.name, item.key, item.token, reason))
        batch = [(item.key, value, self._hand_out(item, lease_time)) for item, value in good]
        if bad:
            try:
                await asyncio.shield(asyncio.ensure_future(self._store.settle(bad)))
            except BaseException:
                # None of them reaches its consumer.
                for _, _, lease in batch:
                    self._end(lease, "released")
                await asyncio.shield(self._pump.unwanted.take_back(claimed))
                raise
            if self._closed:  # and has given back what was good
                raise closed_while_waiting()
        return batch

    def _hand_out(self, item: Claimed, lease_time: float | None) -> Lease[str]:
        lease, before = self._leases.add(
            item.token, item.key, item.fence, item.attempt, item.expires_at
        )
        if before is not None:
            if self._has_expired(before, self._store_now()):
                self._end(before, "expired")
            self._held_since(before)
        if self._leases.overdue() and not self._asking:
            self._asking = True
            self._in_background(self._forget_ended())
        if self._observer is not None:
            self._since[lease.token] = time.monotonic()
            waited = max(self._store_now() - item.put_at, 0.0)
            self._tell("on_claim", item.key, item.attempt, waited)
            if lease_time is not None:
                self._look_at_expiry(lease, lease_time)
        return lease

    async def _forget_ended(self) -> None:
        """Ask the store which leases are over, though nobody has ended them here."""
        try:
            leases = list(self._leases)
            for start in range(0, len(leases), LOOK_SIZE):
                some = leases[start : start + LOOK_SIZE]
                found = await self._store.look(self.name, [lease.key for lease in some])
                over = [
                    lease
                    for lease, items in zip(some, found, strict=True)
                    if not _holds(lease, items)
                ]
                self._leases.forget(over)
                for lease in over:
                    self._held_since(lease)
            self._leases.asked()
        except StoreError as error:
            logger.debug("queue %r: leases that are over stay in memory: %s", self.name, error)
        finally:
            self._asking = False

    def __aiter__(self) -> AsyncIterator[tuple[str, V, Lease[str]]]:
        """Get items for ever: ``async for key, value, lease in queue``. Ends with `close`."""
        return self

    async def __anext__(self) -> tuple[str, V, Lease[str]]:
        try:
            return await self.get()
        except QueueClosedError:
            raise StopAsyncIteration from None

    @asynccontextmanager
    async def lease(
        self,
        key: str | None = None,
        timeout: Duration | None = None,
        *,
        lease_timeout: Duration | None = None,
        requeue_front: bool = False,
        delay: Duration | None = None,
    ) -> AsyncGenerator[LeasedItem[str, V]]:
        """As `LeasedKeyQueue.lease`: acknowledges on success, releases on an exception."""
        seconds = checks.release_options(requeue_front, delay)
        if key is None:
            item = LeasedItem(*await self.get(timeout, lease_timeout=lease_timeout))
        else:
            item = LeasedItem(*await self.take(key, timeout, lease_timeout=lease_timeout))
        try:
            yield item
        except BaseException as error:
            if item.lease._ended not in SETTLED:
                try:
                    back = self.release(item.lease, requeue_front=requeue_front, delay=seconds)
                    await asyncio.shield(asyncio.ensure_future(back))
                except LeasedKeyQError as refusal:
                    error.add_note(f"leasedkeyq: the item was not released: {refusal}")
            raise
        if item.lease._ended not in SETTLED:
            await self.ack(item.lease)

    # Settling

    async def ack(self, lease: Lease[str]) -> None:
        """As `LeasedKeyQueue.ack`."""
        self._enter("ack")
        await self._settle(lease, Ack(self.name, *_names(lease)), "acknowledged")

    async def release(
        self, lease: Lease[str], *, requeue_front: bool = False, delay: Duration | None = None
    ) -> None:
        """As `LeasedKeyQueue.release`."""
        self._enter("release")
        names = _names(lease)
        seconds = checks.release_options(requeue_front, delay) or 0.0
        await self._settle(lease, Release(self.name, *names, requeue_front, seconds), "released")

    async def extend(self, lease: Lease[str], timeout: Duration | None = None) -> None:
        """As `LeasedKeyQueue.extend`."""
        self._enter("extend")
        names = _names(lease)
        lease_time = self._lease_time
        if timeout is not None:
            lease_time = checks.lease_time("timeout", timeout)
        answer = await self._settle(lease, Extend(self.name, *names, lease_time), None)
        assert answer is None or isinstance(answer, float)
        self._notice_time(answer, lease_time)
        lease._expires_at = self._leases.original(lease)._expires_at = answer

    async def bury(
        self, lease: Lease[str], error: str = "", *, hold: bool = False
    ) -> BuriedItem[str, V]:
        """As `LeasedKeyQueue.bury`.

        What cannot be stored in `error`, NUL characters and lone surrogates, is replaced.
        """
        self._enter("bury")
        names = _names(lease)
        checks.error_text(error)
        checks.is_flag("hold", hold)
        change = Bury(self.name, *names, checks.storable(error), hold)
        number = await self._settle(lease, change, "buried")
        assert isinstance(number, int)
        buried = await self._buried_item(number)
        if buried is None:
            message = f"the item of key {describe(lease.key)} was buried and dropped at once"
            raise StoreError(message)
        if self._max_buried is not None:
            await self._drop_oldest_buried(number, lease.key, self._max_buried)
        return buried

    async def _drop_oldest_buried(self, number: int, key: str, most: int) -> None:
        """Keep to `max_buried`, now that one more was buried."""
        oldest = self._oldest_buried
        if oldest is not None:
            oldest.append((number, key))
        excess = (await self._counts()).buried - most
        while excess > 0:
            if not oldest:
                found = [(item.id, item.key) for item in await self.buried()]
                self._oldest_buried = oldest = deque(found)
                excess = len(found) - most
            drop = [oldest.popleft() for _ in range(min(excess, len(oldest)))]
            answers = await self._store.settle([Discard(self.name, old) for old, _ in drop])
            for (_, dropped), was_there in zip(drop, answers, strict=True):
                if was_there:
                    excess -= 1
                    text = "max_buried is %d: dropped the oldest buried item, key %s"
                    logger.warning(text, most, describe(dropped))
        if oldest is not None and len(oldest) > 2 * most + LOOK_SIZE:
            self._oldest_buried = None  # others have dropped or requeued most of them

    async def discard(self, buried: BuriedItem[str, V]) -> None:
        """As `LeasedKeyQueue.discard`."""
        self._enter("discard")
        checks.is_buried(buried)
        await self._pump.sent()
        [answer] = await self._store.settle([Discard(self.name, buried.id)])
        raise_refusal(answer)
        if not answer:
            raise KeyError(f"no buried item {buried.id}: it was requeued, purged or dropped")

    async def requeue(
        self,
        buried: BuriedItem[str, V],
        *,
        if_in_flight: InFlightPolicy | None = None,
        if_present: PresentPolicy | None = None,
    ) -> None:
        """As `LeasedKeyQueue.requeue`."""
        self._enter("requeue")
        checks.is_buried(buried)
        policy = checks.requeue_policy(if_in_flight, if_present)

        async def ask(max_items: int) -> Answer:
            change = Requeue(self.name, buried.id, policy, max_items)
            await self._pump.sent()
            return (await self._store.settle([change]))[0]

        async def is_gone() -> bool:
            return await self._buried_item(buried.id) is None

        if self._maxsize:
            # An item that holds its key is one more, whatever the policy says of other values.
            room_policy = "append" if buried.holds else policy
            answer = await self._room.put((buried.key,), room_policy, ask, pointless=is_gone)
        else:
            answer = await ask(0)
        raise_refusal(answer)
        if not answer:
            raise KeyError(f"no buried item {buried.id}: it was requeued, purged or dropped")
        self._tell("on_put", buried.key)

    async def remove(self, key: str, *, id: int | None = None) -> bool:  # noqa: A002  # as the values show it
        """As `LeasedKeyQueue.remove`."""
        self._enter("remove")
        check_name("key", key, self._store.limits)
        if id is not None and checks.whole("id", id, 1) > LARGEST_ID:
            return False  # no value has it
        lease = self._leases.of_key(key)
        await self._pump.sent()
        revokes = lease is not None
        if revokes and id is not None:
            [found] = await self._store.look(self.name, [key])
            revokes = bool(found) and found[0].id == id
        [answer] = await self._store.settle([Cancel(self.name, key, id=id)])
        raise_refusal(answer)
        was_there = bool(answer)
        if was_there:
            self._tell("on_remove", key)
        if was_there and revokes and lease is not None and self._leases.of_key(key) is lease:
            self._end(lease, "removed")
        self._room.wake(key)
        return was_there

    async def purge_line(self, key: str) -> int:
        """As `LeasedKeyQueue.purge_line`."""
        self._enter("purge_line")
        check_name("key", key, self._store.limits)
        await self._pump.sent()
        count = (await self._store.settle([Cancel(self.name, key, only_line=True)]))[0]
        assert isinstance(count, int)
        if count:
            self._tell("on_remove", key)
        self._room.wake(key)
        return count

    async def purge_buried(self) -> int:
        """As `LeasedKeyQueue.purge_buried`."""
        self._enter("purge_buried")
        await self._pump.sent()
        answer = (await self._store.settle([Purge(self.name, "buried")]))[0]
        assert isinstance(answer, int)
        return answer

    async def _settle(self, lease: Lease[str], change: Change, end: LeaseEnd | None) -> Answer:
        """Have a lease settled; with `end`, it has ended by that."""
        ended = self._leases.ended(lease)
        elsewhere = False
        if ended is None:
            await self._pump.sent()
            answer = (await self._store.settle([change]))[0]
            if not isinstance(answer, Refusal):
                raise_refusal(answer)
                if end is not None:
                    self._end(lease, end)
                return answer
            # A call that was made before this one may have ended it meanwhile.
            ended = self._leases.ended(lease)
            if ended is None and self._leases.is_ours(lease):
                at = self._store_now() + CLOCK_MARGIN if answer.at is None else answer.at
                if self._has_expired(lease, at):
                    ended = "expired"
                else:
                    ended, elsewhere = "removed", True
                self._end(lease, ended, elsewhere=elsewhere)
        raise lease_refusal(lease.key, ended, elsewhere=elsewhere)

    def _end(self, lease: Lease[str], how: LeaseEnd, *, elsewhere: bool = False) -> None:
        """A lease has ended: remember how, and tell those who want to know."""
        if elsewhere:
            self._leases.forget([self._leases.original(lease)])
        else:
            self._leases.end(lease, how)
        since = self._held_since(lease)
        event = END_EVENTS.get(how)
        if since is not None and event is not None and not elsewhere:
            self._tell(event, lease.key, lease.attempt, time.monotonic() - since)
        if self._maxsize:
            self._room.wake(lease.key)

    def _held_since(self, lease: Lease[str]) -> float | None:
        """When a lease that is over was handed out, if an observer asks; nobody else will."""
        expiry = self._expiries.pop(lease.token, None)
        if expiry is not None:
            expiry.cancel()
        return self._since.pop(lease.token, None)

    # The store's clock

    def _notice_time(self, expires_at: float | None, lease_time: float | None) -> None:
        """A lease time has begun this moment: that tells what time it is in the store."""
        if expires_at is not None and lease_time is not None:
            self._ahead = expires_at - lease_time - time.monotonic()

    def _store_now(self) -> float:
        return time.time() if self._ahead is None else time.monotonic() + self._ahead

    def _has_expired(self, lease: Lease[str], at: float) -> bool:
        expires_at = self._leases.original(lease).expires_at
        return expires_at is not None and expires_at <= at

    def _look_at_expiry(self, lease: Lease[str], seconds: float) -> None:
        """Tell the observer when a lease has expired."""
        loop = asyncio.get_running_loop()
        self._expiries[lease.token] = loop.call_later(seconds, self._expire, lease)

    def _expire(self, lease: Lease[str]) -> None:
        self._expiries.pop(lease.token, None)
        if not self._closed and self._leases.of_key(lease.key) is lease:
            self._in_background(self._expire_if_over(lease))

    async def _end_if_over(self, lease: Lease[str], how: LeaseEnd) -> None:
        """A lease may have ended in that way: if its key is not leased any more, it has."""
        [found] = await self._store.look(self.name, [lease.key])
        if self._leases.of_key(lease.key) is lease and not _holds(lease, found):
            self._end(lease, how)

    async def _expire_if_over(self, lease: Lease[str]) -> None:
        try:
            await self._end_if_over(lease, "expired")
        except StoreError:
            self._look_at_expiry(lease, 1.0)
            return
        if self._leases.of_key(lease.key) is lease and lease.expires_at is not None:
            self._look_at_expiry(lease, max(lease.expires_at - self._store_now(), CLOCK_MARGIN))

    async def join(self) -> None:
        """As `LeasedKeyQueue.join`: until nothing is available, scheduled or in flight."""
        if self._closed and not await self._live():
            return
        self._enter("join")
        while True:
            # Watch first, then look: what happens in between is not missed.
            changed = self._pump.changed()
            try:
                if not await self._live():
                    return
                await changed
            finally:
                changed.cancel()

    async def _live(self) -> int:
        """How many items there are, buried ones left out."""
        counts = await self._counts()
        return counts.available + counts.scheduled + counts.in_flight

    # Looking

    async def peek(self, key: str) -> V | None:
        """As `LeasedKeyQueue.peek`; an unreadable value raises `UndecodableValueError`."""
        self._look()
        item = await self._waiting_value(key)
        return None if item is None else self._codec.decode(key, item.value)

    async def contains(self, key: str) -> bool:
        """As `LeasedKeyQueue.contains`."""
        self._look()
        return await self._waiting_value(key) is not None

    async def _waiting_value(self, key: str) -> StoredItem | None:
        check_name("key", key, self._store.limits)
        await self._pump.sent()
        for item in (await self._store.look(self.name, [key]))[0]:
            if item.state in WAITING:
                return item
        return None

    async def line(self, key: str) -> AsyncIterator[ItemSnapshot[str, V]]:
        """As `LeasedKeyQueue.line`, page by page; an unreadable value is shown as stored bytes.

        Values that are appended or end meanwhile may be missed; none is told twice.
        """
        self._look()
        check_name("key", key, self._store.limits)
        await self._pump.sent()
        cursor: str | None = None
        while True:
            page = await self._store.line(self.name, key, cursor=cursor, limit=LOOK_SIZE)
            for item in page.items:
                yield self._snapshot_of(item)
            cursor = page.cursor
            if cursor is None:
                return

    async def available_keys(self) -> set[str]:
        """As `LeasedKeyQueue.available_keys`."""
        self._look()
        return {item.key async for item in self._browse(*WAITING)}

    async def scheduled_keys(self) -> set[str]:
        """As `LeasedKeyQueue.scheduled_keys`."""
        self._look()
        return {item.key async for item in self._browse("scheduled")}

    async def inflight_keys(self) -> set[str]:
        """As `LeasedKeyQueue.inflight_keys`."""
        self._look()
        return {item.key async for item in self._browse("in_flight")}

    async def qsize(self) -> int:
        """As `LeasedKeyQueue.qsize`."""
        self._look()
        return (await self._counts()).available

    async def scheduled_size(self) -> int:
        """As `LeasedKeyQueue.scheduled_size`."""
        self._look()
        return (await self._counts()).scheduled

    async def inflight_size(self) -> int:
        """As `LeasedKeyQueue.inflight_size`."""
        self._look()
        return (await self._counts()).in_flight

    async def buried(self) -> list[BuriedItem[str, V]]:
        """As `LeasedKeyQueue.buried`; an unreadable value is shown as the stored bytes."""
        self._look()
        found = [self._shown_buried(item) async for item in self._browse("buried")]
        return sorted(found, key=lambda item: item.buried_at)

    async def _buried_item(self, number: int) -> BuriedItem[str, V] | None:
        """The buried item of that id, if it is there."""
        before = str(number - 1)
        page = await self._store.browse(self.name, states=("buried",), cursor=before, limit=1)
        for item in page.items:
            if item.id == number:
                return self._shown_buried(item)
        return None

    def _shown_buried(self, item: StoredItem) -> BuriedItem[str, V]:
        return BuriedItem(
            item.id,
            item.key,
            self._readable(item),
            item.priority,
            item.attempt,
            item.error,
            item.history[-1].ended_at if item.history else 0.0,
            item.holds,
        )

    async def snapshot(self) -> list[ItemSnapshot[str, V]]:
        """As `LeasedKeyQueue.snapshot`; an unreadable value is shown as the stored bytes."""
        self._look()
        items = [i async for i in self._browse(*HEADS, "buffered", "in_line")]
        places = {item.key: _order(item) for item in items if item.state in HEADS}
        for item in items:  # by id: the first of a key that is held stands for its line
            places.setdefault(item.key, (BEHIND_BURIED, item.id, 0))
        items.sort(key=lambda item: (*places[item.key], item.id))
        return [self._snapshot_of(item) for item in items]

    def _snapshot_of(self, item: StoredItem) -> ItemSnapshot[str, V]:
        return ItemSnapshot(
            item.key,
            self._readable(item),
            cast("ItemState", item.state),
            item.priority,
            item.attempt,
            item.due,
            item.id,
            item.holder,
        )

    def _readable(self, item: StoredItem) -> V:
        try:
            return self._codec.decode(item.key, item.value)
        except UndecodableValueError:
            return cast("V", item.value)

    async def _counts(self) -> Counts:
        await self._pump.sent()
        return (await self._store.count([self.name])).get(self.name, Counts())

    async def _browse(self, *states: StoredState) -> AsyncIterator[StoredItem]:
        cursor: str | None = None
        await self._pump.sent()
        while True:
            page = await self._store.browse(self.name, states=states, cursor=cursor, limit=1000)
            for item in page.items:
                yield item
            cursor = page.cursor
            if cursor is None:
                return


ObserverEvent: TypeAlias = Literal[
    "on_put", "on_claim", "on_ack", "on_release", "on_expire", "on_bury", "on_remove"
]
"""What a `QueueObserver` is told."""
END_EVENTS: Final[dict[LeaseEnd, ObserverEvent]] = {
    "acknowledged": "on_ack",
    "released": "on_release",
    "closed": "on_release",
    "buried": "on_bury",
    "expired": "on_expire",
}
SETTLED = ("acknowledged", "released", "buried")
HEADS: Final = ("available", "scheduled", "in_flight")
"""The states of the head of a key."""
WAITING: Final = ("available", "buffered", "in_line")
"""The states of values that wait to be handed out and are not scheduled."""
BEHIND_BURIED: Final = 3
"""Where the lines of keys that buried items hold stand in a snapshot."""
LOOK_SIZE: Final = 1000
"""Keys that the store is asked about at a time."""
CLOCK_MARGIN: Final = 0.25
"""Seconds by which the time of a store may be later than it seems from here."""


def put_options(priority: int | None, delay: Duration | None) -> float | None:
    """The options of a put; returns the delay in seconds."""
    seconds = checks.put_options(priority, delay)
    check_priority(priority)
    return seconds


def _order(item: StoredItem) -> tuple[float, float, float]:
    """Heads in a snapshot: available in hand-out order, scheduled by time, leased by age."""
    if item.state == "available":
        return 0, -item.priority, item.place
    if item.state == "scheduled":
        return 1, item.due or 0.0, 0
    return 2, item.leased_at or 0.0, 0


def _holds(lease: Lease[str], items: Sequence[StoredItem]) -> bool:
    """Whether these items of its key may be held by a lease."""
    return any(item.state == "in_flight" and item.attempt == lease.attempt for item in items)


def _names(lease: Lease[str]) -> tuple[str, str]:
    checks.is_lease(lease)
    key, token = lease.key, lease.token
    if not checks.is_storable(key) or not checks.is_storable(token):
        raise lease_refusal(key, None)
    return key, token


def raise_refusal(answer: object) -> None:
    """Raise what a store answered if it is an error."""
    if isinstance(answer, LeasedKeyQError):
        raise answer
