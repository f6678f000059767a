"""`StoreQueue`: the methods of `LeasedKeyQueue` on a queue of a store."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Generic, TypeVar, cast

from leasedkeyq import checks
from leasedkeyq.errors import (
    LeasedKeyQError,
    LeaseEnd,
    LimitExceededError,
    QueueClosedError,
    QueueFullError,
    StoreError,
    UndecodableValueError,
    describe,
    lease_refusal,
)
from leasedkeyq.lease import Lease, LeasedItem
from leasedkeyq.stores.codec import Codec, advice, check_name, check_priority
from leasedkeyq.stores.contract import (
    Ack,
    Answer,
    Bury,
    Cancel,
    Change,
    Claimed,
    Counts,
    Extend,
    Purge,
    Put,
    Refusal,
    Release,
    Requeue,
    StoreContract,
    StoredItem,
    StoredState,
)
from leasedkeyq.stores.pump import ClaimPump
from leasedkeyq.types import BuriedItem, Duration, InFlightPolicy, ItemSnapshot, ItemState

V = TypeVar("V")

logger = logging.getLogger("leasedkeyq")


class StoreQueue(Generic[V]):
    """A queue of a store: `LeasedKeyQueue` in all but its storage.

    Made by ``store.queue(name)``. Keys are strings, values anything that msgspec can encode as
    JSON. Several of these, in several processes where the store allows it, may work on one queue.
    Lease times and schedules go by the store's clock; `Lease.expires_at` is Unix time.

    A `get` or `take` that is cancelled or times out has changed nothing. A cancelled `put` may or
    may not have been stored: put again, the same key does not double.
    """

    def __init__(
        self,
        store: StoreContract,
        name: str,
        *,
        value_type: Any = Any,
        default_lease_timeout: Duration | None = None,
        maxsize: int = 0,
    ) -> None:
        self.name: str = check_name("the name of a queue", name, store.limits)
        self._store = store
        self._codec: Codec[V] = Codec(value_type, store.limits)
        self._lease_time = checks.lease_time("default_lease_timeout", default_lease_timeout)
        self._maxsize = checks.whole("maxsize", maxsize, 0)
        self._pump = ClaimPump(store, name)
        self._issuer = object()
        self._held: dict[str, Lease[str]] = {}
        self._most_held = MANY_HELD
        self._producing = asyncio.Lock()
        self._closed = False

    # Life

    async def start(self) -> None:
        """Nothing to do; here for code that starts its queues."""
        self._check_open("start")

    async def close(self) -> None:
        """Close this queue object, not what is stored.

        The leases that it handed out go back to the front, and everybody who waits in it gets a
        `QueueClosedError`. Looking still works as long as the store is open.
        """
        if self._closed:
            return
        self._closed = True
        self._pump.close()
        leases = sorted(self._held.values(), key=lambda lease: lease.fence, reverse=True)
        self._held.clear()
        back: list[Change] = []
        for lease in leases:
            lease._ended = "closed"
            back.append(Release(self.name, lease.key, lease.token, front=True))
        if back:
            await self._store.settle(back)

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

    def _check_open(self, method: str) -> None:
        if self._closed:
            raise QueueClosedError(f"{method}: the queue {self.name!r} is closed")

    # Putting

    async def put(
        self,
        key: str,
        value: V,
        *,
        if_in_flight: InFlightPolicy = "update",
        priority: int | None = None,
        delay: Duration | None = None,
    ) -> None:
        """As `LeasedKeyQueue.put`. On return the item is stored, as the store promises it.

        The value is stored as JSON. Without the `value_type` of `Store.queue`, what comes out is
        what JSON has: bytes, dates, times, UUIDs and decimals come back as strings, tuples and sets
        as lists, objects as dicts, and the keys of dicts as strings; NaN is null. With
        ``value_type=`` they come back as that type, such as ``store.queue("jobs",
        value_type=tuple[bytes, datetime])``, and what does not fit it is buried.

        Raises:
            TypeError: The value cannot be stored as JSON.
            LimitExceededError: The key or the value is larger than the `Limits` of the store.
        """
        self._check_open("put")
        seconds = put_options(if_in_flight, priority, delay)
        check_name("key", key, self._store.limits)
        items = ((key, self._codec.encode(key, value)),)
        await self._put(Put(self.name, items, if_in_flight, priority, seconds, self._maxsize))

    async def put_many(
        self,
        items: Mapping[str, V] | Iterable[tuple[str, V]],
        *,
        if_in_flight: InFlightPolicy = "update",
        priority: int | None = None,
        delay: Duration | None = None,
    ) -> None:
        """As `LeasedKeyQueue.put_many`: all of them or none."""
        self._check_open("put_many")
        seconds = put_options(if_in_flight, priority, delay)
        encoded: list[tuple[str, bytes]] = []
        for key, value in checks.key_values("items", items).items():
            check_name("key", key, self._store.limits)
            encoded.append((key, self._codec.encode(key, value)))
        most = self._store.limits.batch_size
        if len(encoded) > most:
            message = (
                f"{len(encoded)} items in one put_many on queue {self.name!r}; the limit "
                f"batch_size is {most}: {advice('batch_size')}"
            )
            raise LimitExceededError(message, limit="batch_size", most=most)
        if self._maxsize and len(encoded) > self._maxsize:
            message = f"{len(encoded)} keys do not fit into the queue: maxsize is {self._maxsize}"
            raise QueueFullError(message, maxsize=self._maxsize)
        if encoded:
            put = Put(self.name, tuple(encoded), if_in_flight, priority, seconds, self._maxsize)
            await self._put(put)

    async def _put(self, request: Put) -> None:
        if not self._maxsize:
            raise_refusal((await self._store.put([request]))[0])
            return
        async with self._producing:
            while True:
                # Watch first, then ask: room that is made in between is not missed.
                changed = self._pump.changed()
                try:
                    answer = (await self._store.put([request]))[0]
                    if not isinstance(answer, QueueFullError):
                        break
                    await changed
                    self._check_open("put")
                finally:
                    changed.cancel()
        raise_refusal(answer)

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
        many = min(checks.whole("n", n, 1), self._store.limits.batch_size)
        return await self._get("get_many", None, many, timeout, lease_timeout)

    async def take(
        self, key: str, timeout: Duration | None = None, *, lease_timeout: Duration | None = None
    ) -> tuple[str, V, Lease[str]]:
        """As `LeasedKeyQueue.take`."""
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
        self._check_open(method)
        wait = checks.wait_time("timeout", timeout)
        lease_time = self._lease_time
        if lease_timeout is not None:
            lease_time = checks.lease_time("lease_timeout", lease_timeout)
        loop = asyncio.get_running_loop()
        deadline = None if wait is None else loop.time() + wait
        while True:
            claimed = await self._pump.claim(key, wait, lease_time, many)
            if self._closed:
                # It was closed after this was claimed and before it got here.
                await asyncio.shield(self._pump.give_back(claimed))
                raise QueueClosedError("the queue was closed while waiting")
            self._forget_expired(claimed, lease_time)
            batch = await self._accept(claimed)
            if batch:
                return batch
            if deadline is not None:
                wait = max(deadline - loop.time(), 0.0)

    async def _accept(self, claimed: Sequence[Claimed]) -> list[tuple[str, V, Lease[str]]]:
        """Decode what was claimed; bury what cannot be."""
        batch: list[tuple[str, V, Lease[str]]] = []
        bad: list[Change] = []
        for item in claimed:
            try:
                value = self._codec.decode(item.key, item.value)
            except UndecodableValueError as error:
                logger.warning("queue %r: buried an item: %s", self.name, error)
                bad.append(Bury(self.name, item.key, item.token, str(error)))
                continue
            lease = Lease(
                item.token, item.key, item.fence, item.attempt, item.expires_at, self._issuer
            )
            self._held[item.token] = lease
            batch.append((item.key, value, lease))
        if bad:
            try:
                await asyncio.shield(asyncio.ensure_future(self._store.settle(bad)))
            except BaseException:
                # The others do not reach their consumer.
                left = [item for item in claimed if self._held.pop(item.token, None)]
                await asyncio.shield(self._pump.give_back(left))
                raise
        return batch

    def _forget_expired(self, claimed: Sequence[Claimed], lease_time: float | None) -> None:
        """Forget leases that nobody settled in time, whenever they have become many."""
        expires_at = claimed[0].expires_at
        if len(self._held) < self._most_held or expires_at is None or lease_time is None:
            return
        now = expires_at - lease_time
        for lease in list(self._held.values()):
            if lease.expires_at is not None and lease.expires_at <= now:
                del self._held[lease.token]
        self._most_held = 2 * len(self._held) + MANY_HELD

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
        await self._settle("ack", lease, Ack(self.name, *_names(lease)), "acknowledged")

    async def release(
        self, lease: Lease[str], *, requeue_front: bool = False, delay: Duration | None = None
    ) -> None:
        """As `LeasedKeyQueue.release`."""
        seconds = checks.release_options(requeue_front, delay) or 0.0
        change = Release(self.name, *_names(lease), requeue_front, seconds)
        await self._settle("release", lease, change, "released")

    async def extend(self, lease: Lease[str], timeout: Duration | None = None) -> None:
        """As `LeasedKeyQueue.extend`."""
        lease_time = self._lease_time
        if timeout is not None:
            lease_time = checks.lease_time("timeout", timeout)
        change = Extend(self.name, *_names(lease), lease_time)
        answer = await self._settle("extend", lease, change, None)
        assert answer is None or isinstance(answer, float)
        lease._expires_at = answer

    async def bury(self, lease: Lease[str], error: str = "") -> BuriedItem[str, V]:
        """As `LeasedKeyQueue.bury`.

        What cannot be stored in `error`, NUL characters and lone surrogates, is replaced.
        """
        checks.error_text(error)
        change = Bury(self.name, *_names(lease), checks.storable(error))
        answer = await self._settle("bury", lease, change, "buried")
        assert isinstance(answer, int)
        # The page that begins behind the id before: however many are buried, one is looked at.
        page = await self._store.browse(
            self.name, states=("buried",), cursor=str(answer - 1), limit=1
        )
        for item in page.items:
            if item.id == answer:
                return self._buried(item)
        raise StoreError(f"the item of key {describe(lease.key)} was buried and dropped at once")

    async def requeue(
        self, buried: BuriedItem[str, V], *, if_in_flight: InFlightPolicy = "update"
    ) -> None:
        """As `LeasedKeyQueue.requeue`, but a full queue refuses at once with `QueueFullError`."""
        self._check_open("requeue")
        checks.is_buried(buried)
        checks.put_options(if_in_flight, None, None)
        change = Requeue(self.name, buried.id, if_in_flight, self._maxsize)
        answer = (await self._store.settle([change]))[0]
        raise_refusal(answer)
        if not answer:
            raise KeyError(f"no buried item {buried.id}: it was requeued, purged or dropped")

    async def remove(self, key: str) -> bool:
        """As `LeasedKeyQueue.remove`."""
        self._check_open("remove")
        check_name("key", key, self._store.limits)
        return bool((await self._store.settle([Cancel(self.name, key)]))[0])

    async def purge_buried(self) -> int:
        """As `LeasedKeyQueue.purge_buried`."""
        self._check_open("purge_buried")
        answer = (await self._store.settle([Purge(self.name, "buried")]))[0]
        assert isinstance(answer, int)
        return answer

    async def _settle(
        self, method: str, lease: Lease[str], change: Change, end: LeaseEnd | None
    ) -> Answer:
        self._check_open(method)
        mine = lease._issuer is self._issuer
        if not mine or lease._ended is None:
            answer = (await self._store.settle([change]))[0]
            if not isinstance(answer, Refusal):
                raise_refusal(answer)
                if end is not None:
                    lease._ended = end
                    self._held.pop(lease.token, None)
                return answer
            self._held.pop(lease.token, None)
            if mine:
                lease._ended = self._ending(lease, answer)
        raise lease_refusal(lease.key, lease._ended if mine else None)

    def _ending(self, lease: Lease[str], refusal: Refusal) -> LeaseEnd:
        """How a lease of ours ended that the store does not know any more."""
        if refusal.reason != "unknown":
            return refusal.reason
        return "removed" if lease.expires_at is None else "expired"

    async def join(self) -> None:
        """As `LeasedKeyQueue.join`: until nothing is available, scheduled or in flight."""
        while True:
            self._check_open("join")
            # Watch first, then look: what happens in between is not missed.
            changed = self._pump.changed()
            try:
                counts = await self._counts()
                if not counts.available + counts.scheduled + counts.in_flight:
                    return
                await changed
            finally:
                changed.cancel()

    # Looking

    async def peek(self, key: str) -> V | None:
        """As `LeasedKeyQueue.peek`; an unreadable value raises `UndecodableValueError`."""
        item = await self._waiting_value(key)
        return None if item is None else self._codec.decode(key, item.value)

    async def contains(self, key: str) -> bool:
        """As `LeasedKeyQueue.contains`."""
        return await self._waiting_value(key) is not None

    async def _waiting_value(self, key: str) -> StoredItem | None:
        check_name("key", key, self._store.limits)
        for item in (await self._store.look(self.name, [key]))[0]:
            if item.state in ("available", "buffered"):
                return item
        return None

    async def available_keys(self) -> set[str]:
        """As `LeasedKeyQueue.available_keys`."""
        return {item.key async for item in self._browse("available", "buffered")}

    async def scheduled_keys(self) -> set[str]:
        """As `LeasedKeyQueue.scheduled_keys`."""
        return {item.key async for item in self._browse("scheduled")}

    async def inflight_keys(self) -> set[str]:
        """As `LeasedKeyQueue.inflight_keys`."""
        return {item.key async for item in self._browse("in_flight")}

    async def qsize(self) -> int:
        """As `LeasedKeyQueue.qsize`."""
        return (await self._counts()).available

    async def scheduled_size(self) -> int:
        """As `LeasedKeyQueue.scheduled_size`."""
        return (await self._counts()).scheduled

    async def inflight_size(self) -> int:
        """As `LeasedKeyQueue.inflight_size`."""
        return (await self._counts()).in_flight

    async def buried(self) -> list[BuriedItem[str, V]]:
        """As `LeasedKeyQueue.buried`; an unreadable value is shown as the stored bytes."""
        return [self._buried(item) async for item in self._browse("buried")]

    def _buried(self, item: StoredItem) -> BuriedItem[str, V]:
        return BuriedItem(
            item.id,
            item.key,
            self._readable(item),
            item.priority,
            item.attempt,
            item.error,
            item.history[-1].ended_at if item.history else 0.0,
        )

    async def snapshot(self) -> list[ItemSnapshot[str, V]]:
        """As `LeasedKeyQueue.snapshot`; an unreadable value is shown as the stored bytes."""
        items = [i async for i in self._browse("available", "scheduled", "in_flight", "buffered")]
        items.sort(key=_order)
        return [
            ItemSnapshot(
                item.key,
                self._readable(item),
                cast("ItemState", item.state),
                item.priority,
                item.attempt,
                item.due,
            )
            for item in items
        ]

    def _readable(self, item: StoredItem) -> V:
        try:
            return self._codec.decode(item.key, item.value)
        except UndecodableValueError:
            return cast("V", item.value)

    async def _counts(self) -> Counts:
        return (await self._store.count([self.name])).get(self.name, Counts())

    async def _browse(self, *states: StoredState) -> AsyncIterator[StoredItem]:
        cursor: str | None = None
        while True:
            page = await self._store.browse(self.name, states=states, cursor=cursor, limit=1000)
            for item in page.items:
                yield item
            cursor = page.cursor
            if cursor is None:
                return


SETTLED = ("acknowledged", "released", "buried")
MANY_HELD = 100
"""So many leases are held before it is worth looking which of them have expired."""


def put_options(
    policy: InFlightPolicy, priority: int | None, delay: Duration | None
) -> float | None:
    """The options of a put; returns the delay in seconds."""
    seconds = checks.put_options(policy, priority, delay)
    check_priority(priority)
    return seconds


def _order(item: StoredItem) -> tuple[int, float, float, int]:
    """Available in hand-out order, scheduled by time, leased by age."""
    if item.state == "available":
        return 0, -item.priority, item.place, item.id
    if item.state == "scheduled":
        return 1, item.due or 0.0, 0, item.id
    return 2, 0.0, 0.0, item.id


def _names(lease: Lease[str]) -> tuple[str, str]:
    checks.is_lease(lease)
    if not checks.is_text(lease.key) or not checks.is_text(lease.token):
        raise lease_refusal(lease.key, None)
    return lease.key, lease.token


def raise_refusal(answer: object) -> None:
    """Raise what a store answered if it is an error."""
    if isinstance(answer, LeasedKeyQError):
        raise answer
