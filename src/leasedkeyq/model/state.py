"""The state machine of one queue: pure, synchronous, without a clock of its own.

This is the meaning of leasedkeyq, and every engine has this meaning. A key is absent, or has one
live item that is available, scheduled or in flight; a buried item has left its key.

A value that is buffered beside a leased item becomes the item when the lease ends. After an
acknowledgement, a burial or a removal it is a new item: its first attempt is number 1. After a
release or an expiry it replaces the value that failed and takes over its attempts and its history,
so that a key that keeps failing is given up in the end, whatever is put meanwhile. It goes to the
back of its own priority, even if the release was to the front, and not before two moments have
come: the one of the release's delay, so that no put cuts a backoff short, and the one of a delay
that it was put with.

Nothing here reads a clock. All times are absolute and on one clock, and `QueueState.advance`
tells what time it is. The driver of a state calls that first: a lease is as good as expired
only once `advance` has been told of a time at or past its expiry.

Methods return the items that they touched, so that the driver can see where they stand and hand
an available one to a waiting consumer. Every method does all that it says or raises and changes
nothing.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import Any, Generic, TypeVar

from leasedkeyq.errors import LeaseEnd, keys_in_flight, lease_refusal
from leasedkeyq.lease import Lease, LeaseIssuer
from leasedkeyq.model.items import Buffered, Item
from leasedkeyq.model.linkedlist import DoublyLinkedList
from leasedkeyq.model.ready import ReadyItems
from leasedkeyq.model.timers import Timers
from leasedkeyq.types import BuriedItem, InFlightPolicy, ItemSnapshot, ItemState

K = TypeVar("K")
V = TypeVar("V")

_new: Any = object.__new__
"""Makes an instance without the call of `__init__`, which takes a tenth of put, get and ack."""


class QueueState(Generic[K, V]):
    """The items of one queue, their order, their leases and their schedules.

    Attributes:
        items: The live item of each key.
        in_flight: The leased items, by key.
        ready: The available items, in order.
        timers: When scheduled items come due and leases expire.
        expiring: The leased items whose leases expire in the order of their leasing, which is so
            for leases of one lease time: they need no timer each.
        buffered: How many leased items have a newer value beside them.
        buried: The buried items, oldest first, by their number.
        now: The latest time that `advance` was told.
        take_over: Called with the value of an item and the buffered value that replaces it before
            the item was done; returns the value that the item then has. None: the buffered one.
    """

    __slots__ = (
        "_burials",
        "_issuer",
        "_schedules",
        "buffered",
        "buried",
        "expiring",
        "fence",
        "in_flight",
        "items",
        "max_buried",
        "now",
        "ready",
        "take_over",
        "timers",
    )

    def __init__(
        self,
        *,
        max_buried: int = 1000,
        issuer: LeaseIssuer | None = None,
        take_over: Callable[[V, V], V] | None = None,
    ) -> None:
        self.items: dict[K, Item[K, V]] = {}
        self.in_flight: dict[K, Item[K, V]] = {}
        self.ready: ReadyItems[K, V] = ReadyItems()
        self.timers = Timers()
        self.expiring: DoublyLinkedList[K, V] = DoublyLinkedList()
        self.buffered = 0
        self.buried: OrderedDict[int, BuriedItem[K, V]] = OrderedDict()
        self.max_buried = max_buried
        self.take_over = take_over
        self.now = float("-inf")
        self._issuer = issuer or LeaseIssuer(0)
        self.fence = 0
        self._schedules = 0
        self._burials = 0

    @property
    def available(self) -> int:
        """How many values wait to be handed out, buffered ones included."""
        return len(self.ready) + self.buffered

    @property
    def scheduled(self) -> int:
        """How many items wait for their time."""
        return len(self.items) - len(self.in_flight) - len(self.ready)

    # Putting

    def put(
        self,
        key: K,
        value: V,
        policy: InFlightPolicy = "update",
        priority: int | None = None,
        due: float | None = None,
    ) -> Item[K, V] | None:
        """Put `value` under `key`; return the item if that made it available.

        A new key goes to the back of its priority, or is scheduled when `due` lies ahead. A live
        item gets the value and keeps its place; a `priority` other than its own moves it to the
        back of that, and `due` reschedules it, where a time that is not ahead means now. For a
        leased item `policy` decides, and `priority` and `due` apply when it comes back.

        Raises:
            KeyAlreadyInFlightError: The key is leased and `policy` is ``"reject"``.
        """
        item: Any = self.items.get(key)
        if item is None:
            # Item.__init__, and below ReadyItems.append for priority 0, are spelled out: with their
            # calls a put takes 1.37 times as long, and put, get and ack together 1.18 times.
            item = _new(Item)
            item.key = key
            item.value = value
            item.priority = item.attempt = 0
            item.lease = item.buffered = item.not_before = item.timer = None
            self.items[key] = item
            if due is not None or priority:
                item.prev = item.next = None
                item.position = 0
                item.priority = priority or 0
                return self._place(item, due)
            ready = self.ready
            line = ready.normal
            line.size += 1
            ready.back = item.position = ready.back + 1
            tail = line.tail
            last: Any = tail.prev
            item.prev = last
            item.next = tail
            last.next = tail.prev = item
            new: Item[K, V] = item
            return new
        if item.lease is not None:
            self._put_beside(item, value, policy, priority, due)
            return None
        item.value = value
        if priority is not None and priority != item.priority:
            if item.next is not None:
                self.ready.remove(item)
                item.priority = priority
                self.ready.append(item)
            else:
                item.priority = priority
        return None if due is None else self._reschedule(item, due)

    def _put_beside(
        self,
        item: Item[K, V],
        value: V,
        policy: InFlightPolicy,
        priority: int | None,
        due: float | None,
    ) -> None:
        if policy == "reject":
            raise keys_in_flight((item.key,), 1)
        target: Item[K, V] | Buffered[V] = item
        if item.buffered is not None:
            # The buffered value is what will be handed out next: the newest belongs there.
            target = item.buffered
            target.value = value
        elif policy == "buffer":
            target = item.buffered = Buffered(value, item.priority, item.not_before)
            self.buffered += 1
        else:
            item.value = value
        if priority is not None and priority != target.priority:
            target.priority = priority
            # Should the claim be undone, it goes to the back, where a put would move it.
            self.ready.back = item.position = self.ready.back + 1
        if due is not None:
            target.not_before = due if due > self.now else None

    def _reschedule(self, item: Item[K, V], due: float) -> Item[K, V] | None:
        if item.next is None:
            self.timers.clear(item)
        elif due > self.now:
            self.ready.remove(item)
        else:
            return None
        return self._place(item, due)

    def _place(
        self, item: Item[K, V], due: float | None = None, front: bool = False
    ) -> Item[K, V] | None:
        """Give `item`, which has no place, its place; return it if it is available."""
        if due is not None and due > self.now:
            self._schedules += 1
            self.timers.set(item, due, self._schedules)
            return None
        if front:
            self.ready.appendleft(item)
        else:
            self.ready.append(item)
        return item

    # Claiming

    def claim_key(self, key: K, expires_at: float | None = None) -> Item[K, V] | None:
        """Lease the item of `key`, or return None when it is not available."""
        item = self.items.get(key)
        return None if item is None or not item.available else self.claim(expires_at, item)

    def claim(self, expires_at: float | None = None, item: Any = None) -> Item[K, V] | None:
        """Lease `item`, which is available, or the one that is next; None when there is none."""
        ready = self.ready
        line = ready.normal
        if item is None:
            if ready.others:
                item = ready.first()
            elif line.size:
                item = line.head.next
            else:
                return None
        # Here the key's own comparison may run and fail; nothing has changed by then.
        key = item.key
        self.in_flight[key] = item
        if item.priority:
            ready.remove(item)
        else:
            # ReadyItems.remove for priority 0, spelled out as in `put`.
            line.size -= 1
            before = item.prev
            after = item.next
            before.next = after
            after.prev = before
            item.prev = item.next = None
        self.fence = fence = self.fence + 1
        item.attempt = attempt = item.attempt + 1
        # Lease.__init__, spelled out.
        item.lease = lease = _new(Lease)
        lease._token = ""
        lease._key = key
        lease._fence = fence
        lease._attempt = attempt
        lease._expires_at = expires_at
        lease._issuer = self._issuer
        lease._ended = None
        if expires_at is not None:
            self._expire_at(item, expires_at)
        leased: Item[K, V] = item
        return leased

    def _expire_at(self, item: Item[K, V], expires_at: float) -> None:
        line = self.expiring
        tail = line.tail
        last: Any = tail.prev
        if line.size and last.lease._expires_at > expires_at:
            self.timers.set(item, expires_at, -item.lease._fence)
            return
        # DoublyLinkedList.append, spelled out.
        line.size += 1
        item.prev = last
        item.next = tail
        last.next = tail.prev = item

    def unclaim(self, lease: Lease[K], due: float | None = None) -> Item[K, V] | None:
        """Undo a claim that never reached its consumer; return its item, or None if too late.

        The item is where it was, or scheduled for `due`, and was not attempted. A lease that has
        ended stays ended.
        """
        item = self.in_flight.get(lease._key)
        if item is None or item.lease is not lease:
            return None
        item.attempt -= 1
        self._end(item, "released")
        not_before = item.not_before
        item.not_before = None
        if item.buffered is not None:
            not_before = self._replace(item)
        if due is not None and (not_before is None or due > not_before):
            not_before = due
        self.ready.restore(item)
        if not_before is not None:
            self._reschedule(item, not_before)
        return item

    # Settling

    def held(self, lease: Lease[K]) -> Item[K, V]:
        """The item that `lease` holds.

        Raises:
            LeaseAlreadyAcknowledgedError: The lease was acknowledged.
            LeaseExpiredError: The lease expired.
            InvalidLeaseError: The lease ended otherwise, or this queue does not know it.
        """
        item = self.in_flight.get(lease._key)
        if item is not None:
            current = item.lease
            if current is lease or current == lease:
                return item
        raise lease_refusal(lease._key, self._issuer.ended(lease))

    def ack(self, lease: Lease[K]) -> Item[K, V] | None:
        """The work is done: the item goes, or a buffered value takes its place, at the back.

        Returns the item if it stays for that.
        """
        key = lease._key
        item = self.in_flight.get(key)
        if item is None or item.lease is not lease:
            item = self.held(lease)
        self._end(item, "acknowledged")
        if item.buffered is None:
            del self.items[key]
            return None
        self._follow(item)
        return item

    def release(
        self, lease: Lease[K], *, front: bool = False, due: float | None = None
    ) -> Item[K, V]:
        """Give the item back: to the front or back of its priority, or for the time `due`.

        A buffered value replaces that of the item, and takes over its attempts; then it goes to
        the back, or waits until `due`.
        """
        item = self.held(lease)
        self._end(item, "released")
        self._return(item, due, front)
        return item

    def bury(
        self, lease: Lease[K], error: str
    ) -> tuple[Item[K, V], BuriedItem[K, V], BuriedItem[K, V] | None]:
        """Give the item up; a buffered value takes its place, at the back.

        Returns the item, the buried item, and the oldest buried item if it was dropped to keep
        to `max_buried`.
        """
        item = self.held(lease)
        self._burials += 1
        buried = BuriedItem(
            self._burials, item.key, item.value, item.priority, item.attempt, error, self.now
        )
        self.buried[buried.id] = buried
        dropped = None
        if len(self.buried) > self.max_buried:
            _, dropped = self.buried.popitem(last=False)
        self._end(item, "buried")
        if item.buffered is None:
            del self.items[item.key]
        else:
            self._follow(item)
        return item, buried, dropped

    def extend(self, lease: Lease[K], expires_at: float | None) -> Item[K, V]:
        """Let the lease expire at another time, or never."""
        item = self.held(lease)
        if item.next is not None:
            self.expiring.remove(item)
        elif item.timer is not None:
            self.timers.clear(item)
        item.lease._expires_at = lease._expires_at = expires_at
        if expires_at is not None:
            self._expire_at(item, expires_at)
        return item

    def _end(self, item: Item[K, V], how: LeaseEnd) -> None:
        """End the lease on `item`, which then has no place until it is given one."""
        lease = item.lease
        lease._ended = how
        if lease._token:
            self._issuer.remember(lease._token, item.key, how)
        item.lease = None
        del self.in_flight[item.key]
        after: Any = item.next
        if after is not None:
            # DoublyLinkedList.remove, spelled out: its call takes a tenth of put, get and ack.
            before: Any = item.prev
            before.next = after
            after.prev = before
            item.prev = item.next = None
            self.expiring.size -= 1
        elif item.timer is not None:
            self.timers.clear(item)

    def _return(self, item: Item[K, V], due: float | None = None, front: bool = False) -> None:
        """Bring an item back whose lease has ended before it was done."""
        not_before = item.not_before
        item.not_before = None
        if item.buffered is not None:
            not_before = self._replace(item)
            front = False
        if due is None or (not_before is not None and not_before > due):
            due = not_before
        self._place(item, due, front)

    def _replace(self, item: Item[K, V]) -> float | None:
        """The buffered value becomes that of the item; return before when it must not be leased."""
        buffered: Any = item.buffered
        take_over = self.take_over
        value = buffered.value
        item.value = value if take_over is None else take_over(item.value, value)
        item.priority = buffered.priority
        item.buffered = None
        self.buffered -= 1
        not_before: float | None = buffered.not_before
        return not_before

    def _follow(self, item: Item[K, V]) -> None:
        """The item is over: the value that was buffered beside it begins anew, at the back."""
        buffered: Any = item.buffered
        item.value = buffered.value
        item.priority = buffered.priority
        item.attempt = 0
        item.buffered = item.not_before = None
        self.buffered -= 1
        self._place(item, buffered.not_before)

    # Time, removal and the end

    def advance(self, now: float) -> list[tuple[Item[K, V], Lease[K] | None]]:
        """It is `now`: end the leases that have expired and free the items that are due.

        Each is dealt with as of its own moment, so it makes no difference how often this is
        called. An expired item goes to the front of its priority; of several with one expiry, the
        one that was leased first ends up in front. Returns what moved in that order, each with
        the lease that expired or None.
        """
        moved: list[tuple[Item[K, V], Lease[K] | None]] = []
        due = self._take_due(now)
        while due:
            when, _, item = heappop(due)
            if when > self.now:
                self.now = when
            lease: Lease[K] | None = item.lease
            if lease is None:
                self._place(item)
            else:
                self._end(item, "expired")
                self._return(item, front=True)
                if item.timer is not None and item.timer[0] <= now:
                    heappush(due, item.timer)
                    self.timers.clear(item)
            moved.append((item, lease))
        if now > self.now:
            self.now = now
        return moved

    def _take_due(self, now: float) -> list[tuple[float, int, Item[K, V]]]:
        """Take out the scheduled items and the expired leases that are due, as a heap."""
        due: list[tuple[float, int, Item[K, V]]] = []
        timers = self.timers
        while (when := timers.earliest()) is not None and when <= now:
            due.append(timers.pop())
        line = self.expiring
        while line.size:
            first: Any = line.head.next
            lease = first.lease
            if lease._expires_at > now:
                break
            line.remove(first)
            due.append((lease._expires_at, -lease._fence, first))
        heapify(due)
        return due

    def earliest(self) -> float | None:
        """The moment at which something comes due next, or None."""
        when = self.timers.earliest()
        if self.expiring.size:
            first: Any = self.expiring.head.next
            if when is None or first.lease._expires_at < when:
                when = first.lease._expires_at
        return when

    def remove(self, key: K) -> Item[K, V] | None:
        """Make `key` absent, whatever its state, and return its item; a lease on it is revoked."""
        item = self.items.pop(key, None)
        if item is None:
            return None
        if item.lease is not None:
            self._end(item, "removed")
            if item.buffered is not None:
                self.buffered -= 1
        elif item.next is not None:
            self.ready.remove(item)
        else:
            self.timers.clear(item)
        return item

    def remove_first(self, key: K) -> None:
        """Remove the item of `key`; if a value is buffered beside it, that takes its place."""
        item = self.items[key]
        if item.buffered is None:
            self.remove(key)
        else:
            self._end(item, "removed")
            self._follow(item)

    def unbuffer(self, key: K) -> V:
        """Drop the value that is buffered beside the leased item of `key`, and return it."""
        item = self.items[key]
        buffered = item.buffered
        assert buffered is not None
        item.buffered = None
        self.buffered -= 1
        value: V = buffered.value
        return value

    def recall(self) -> None:
        """End all leases and bring their items back to the front, the first leased foremost."""
        for item in sorted(self.in_flight.values(), key=_fence_of, reverse=True):
            self._end(item, "closed")
            self._return(item, front=True)

    # Looking

    def snapshot(self) -> Iterator[ItemSnapshot[K, V]]:
        """All live items: available in order, scheduled by their time, leased by their age.

        A buffered value follows its leased item.
        """
        for item in self.ready:
            yield _snapshot(item, "available", None)
        waiting = [item for item in self.items.values() if item.lease is None]
        scheduled = [item for item in waiting if item.next is None]
        for item in sorted(scheduled, key=_moment_of):
            yield _snapshot(item, "scheduled", item.timer[0])
        for item in sorted(self.in_flight.values(), key=_fence_of):
            yield _snapshot(item, "in_flight", item.lease.expires_at)
            if (beside := item.buffered) is not None:
                yield ItemSnapshot(
                    item.key, beside.value, "buffered", beside.priority, 0, beside.not_before
                )


def _fence_of(item: Item[K, V]) -> int:
    fence: int = item.lease.fence
    return fence


def _moment_of(item: Item[K, V]) -> tuple[float, int]:
    when, order, _ = item.timer
    return when, order


def _snapshot(item: Item[K, V], state: ItemState, due: float | None) -> ItemSnapshot[K, V]:
    return ItemSnapshot(item.key, item.value, state, item.priority, item.attempt, due)
