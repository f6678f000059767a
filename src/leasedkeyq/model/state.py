"""The state machine of one queue: pure, synchronous, without a clock of its own.

This is the meaning of leasedkeyq, and every engine has this meaning. A key is absent, or has a head
that is available, scheduled or in flight, and maybe a line of values behind it. Only the head is
handed out. After an acknowledgement, a burial or a removal of the head the first of the line is
the new head: a new item at the back of its own priority, or scheduled if it was put with a delay
that is not over. After a release or an expiry the head stays the head, and its line waits.

A buffered value is the exception: it is the first behind a leased head, and newer than that. After
a release or an expiry it replaces the value that failed and takes over its attempts and its
history, so that a key that keeps failing is given up in the end, whatever is put meanwhile. It
goes to the back of its own priority, even if the release was to the front, and not before two
moments have come: the one of the release's delay, so that no put cuts a backoff short, and the one
of a delay that it was put with.

A buried item has left its key, unless it was buried to hold it: then the line waits until the item
is requeued, and is the head again, or dropped.

Nothing here reads a clock. All times are absolute and on one clock, and `QueueState.advance`
tells what time it is. The driver of a state calls that first: a lease is as good as expired
only once `advance` has been told of a time at or past its expiry.

Methods return the items that they touched, so that the driver can see where they stand and hand
an available one to a waiting consumer. Every method does all that it says or raises and changes
nothing.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import replace
from heapq import heapify, heappop, heappush
from typing import Any, Generic, TypeVar

from leasedkeyq.errors import LeaseEnd, keys_in_flight, keys_present, lease_refusal
from leasedkeyq.lease import Lease, LeaseIssuer
from leasedkeyq.model.items import Item
from leasedkeyq.model.line import Line, LineValue
from leasedkeyq.model.linkedlist import DoublyLinkedList
from leasedkeyq.model.ready import ReadyItems
from leasedkeyq.model.timers import Timers
from leasedkeyq.types import BuriedItem, ItemSnapshot, ItemState, PutOutcome, PutPolicy

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
        lines: The items that have a line, by key.
        in_line: How many values wait in lines, those behind held heads left out.
        held: The heads in whose place a buried item holds the key, by key.
        behind_held: How many values wait behind those.
        buried: The buried items, oldest first, by their number.
        now: The latest time that `advance` was told.
        take_over: Called with the value of an item and the buffered value that replaces it before
            the item was done; returns the value that the item then has. None: the buffered one.
    """

    __slots__ = (
        "_burials",
        "_issuer",
        "_numbers",
        "_schedules",
        "behind_held",
        "buried",
        "expiring",
        "fence",
        "held",
        "in_flight",
        "in_line",
        "items",
        "lines",
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
        self.lines: dict[K, Item[K, V]] = {}
        self.in_line = 0
        self.held: dict[K, tuple[Item[K, V], int]] = {}
        self.behind_held = 0
        self.buried: OrderedDict[int, BuriedItem[K, V]] = OrderedDict()
        self.max_buried = max_buried
        self.take_over = take_over
        self.now = float("-inf")
        self._issuer = issuer or LeaseIssuer(0)
        self.fence = 0
        self._schedules = 0
        self._burials = 0
        self._numbers = 0

    @property
    def available(self) -> int:
        """How many values wait to be handed out, those in lines included."""
        return len(self.ready) + self.in_line

    @property
    def scheduled(self) -> int:
        """How many items wait for their time."""
        return len(self.items) - len(self.in_flight) - len(self.ready) - len(self.held)

    @property
    def waiting(self) -> int:
        """What a limit on the size of a queue counts: all values but the leased and the buried."""
        return self.available + self.scheduled + self.behind_held

    # Putting

    def put(
        self,
        key: K,
        value: V,
        policy: PutPolicy = "update",
        priority: int | None = None,
        due: float | None = None,
        *,
        number: int | None = None,
    ) -> PutOutcome:
        """Put `value` under `key`; return what that did.

        A new key goes to the back of its priority, or is scheduled when `due` lies ahead. Where the
        key is there, `policy` decides. With ``"append"`` the value goes to the end of the line,
        with a `priority` and a `due` of its own, and `number`, or one that is counted.

        Otherwise it replaces the newest value that waits: the last of the line, or a head that is
        not leased. That keeps its place; a `priority` other than its own moves it to the back of
        that, and `due` reschedules it, where a time that is not ahead means now. Both apply to a
        value in line when it is its turn, and to a leased item when it comes back.

        Raises:
            KeyAlreadyInFlightError: The key is leased and `policy` is ``"reject"``.
            KeyAlreadyPresentError: The key is there and `policy` is ``"only_new"``.
        """
        item: Any = self.items.get(key)
        if item is None:
            # Item.__init__, and below ReadyItems.append for priority 0, are spelled out: with their
            # calls a put takes 1.37 times as long, and put, get and ack together 1.18 times.
            item = _new(Item)
            item.key = key
            item.value = value
            item.priority = item.attempt = 0
            item.lease = item.line = item.not_before = item.timer = None
            self.items[key] = item
            if due is not None or priority:
                item.prev = item.next = None
                item.position = 0
                item.priority = priority or 0
                self._place(item, due)
                return "added"
            ready = self.ready
            line = ready.normal
            line.size += 1
            ready.back = item.position = ready.back + 1
            tail = line.tail
            last: Any = tail.prev
            item.prev = last
            item.next = tail
            last.next = tail.prev = item
            return "added"
        if policy == "skip":
            return "skipped"
        if policy == "only_new":
            raise keys_present((key,), 1)
        if policy == "append" or (item.line is None and key in self.held):
            # Behind a buried item that holds the key the first value waits, too.
            self._append(item, value, priority or 0, due, number)
            return "appended"
        return self._replace_newest(item, value, policy, priority, due, number=number)

    def grows_by(self, key: K, policy: PutPolicy) -> bool:
        """Whether a put of `key`, which is there, would add a value."""
        item = self.items[key]
        if policy == "append":
            return True
        if policy in ("skip", "only_new") or item.line is not None:
            return False
        return key in self.held or (item.lease is not None and policy == "buffer")

    def _replace_newest(
        self,
        item: Item[K, V],
        value: V,
        policy: PutPolicy,
        priority: int | None,
        due: float | None,
        *,
        number: int | None,
    ) -> PutOutcome:
        if item.lease is not None and policy == "reject":
            raise keys_in_flight((item.key,), 1)
        if item.line is not None:
            # The last of the line is what will be handed out last: the newest belongs there.
            self._update(item, item.last_in_line, value, priority, due)
            return "updated"
        if item.lease is not None:
            if policy != "buffer":
                self._update(item, item, value, priority, due)
                return "updated"
            newest = self._append(item, value, item.priority, None, number)
            newest.not_before = item.not_before
            newest.replaces = True
            self._update(item, newest, value, priority, due)
            return "buffered"
        self._update_waiting(item, value, priority, due)
        return "updated"

    def amend(
        self,
        item: Item[K, V],
        in_line: LineValue[V] | None,
        value: V,
        priority: int | None = None,
        due: float | None = None,
    ) -> None:
        """Replace a value that waits as a put would: one in the line of `item`, or `item` itself.

        The latter must be available or scheduled.
        """
        if in_line is None:
            self._update_waiting(item, value, priority, due)
        else:
            self._update(item, in_line, value, priority, due)

    def _update_waiting(
        self, item: Item[K, V], value: V, priority: int | None, due: float | None
    ) -> None:
        """Replace the value of an item that is available or scheduled."""
        item.value = value
        if priority is not None and priority != item.priority:
            if item.next is not None:
                self.ready.remove(item)
                item.priority = priority
                self.ready.append(item)
            else:
                item.priority = priority
        if due is not None:
            self._reschedule(item, due)

    def _append(
        self, item: Item[K, V], value: V, priority: int, due: float | None, number: int | None
    ) -> LineValue[V]:
        """Let a value wait at the end of the line of `item`."""
        if number is None:
            self.number_of(item)  # the head's is below those of its line
            self._numbers = number = self._numbers + 1
        not_before = due if due is not None and due > self.now else None
        newest = LineValue(number, value, priority, not_before)
        if item.line is None:
            item.line = Line()
            self.lines[item.key] = item
        item.line.add(newest)
        if item.key in self.held:
            self.behind_held += 1
        else:
            self.in_line += 1
        return newest

    def _update(
        self, item: Item[K, V], target: Any, value: V, priority: int | None, due: float | None
    ) -> None:
        """Replace a value that has no place yet: one in the line of `item`, or a leased `item`."""
        target.value = value
        if priority is not None and priority != target.priority:
            target.priority = priority
            if target is item or target.replaces:
                # Should the claim be undone, it goes to the back, where a put would move it.
                self.ready.back = item.position = self.ready.back + 1
        if due is not None:
            target.not_before = due if due > self.now else None

    def _reschedule(self, item: Item[K, V], due: float) -> None:
        if item.next is None:
            self.timers.clear(item)
        elif due > self.now:
            self.ready.remove(item)
        else:
            return
        self._place(item, due)

    def _place(self, item: Item[K, V], due: float | None = None, front: bool = False) -> None:
        """Give `item`, which has no place, its place: it is available, or scheduled."""
        if due is not None and due > self.now:
            self._schedules += 1
            self.timers.set(item, due, self._schedules)
        elif front:
            self.ready.appendleft(item)
        else:
            self.ready.append(item)

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
        if item.line is not None and item.buffered is not None:
            not_before = self._replace(item)
        if due is not None and (not_before is None or due > not_before):
            not_before = due
        self.ready.restore(item)
        if not_before is not None:
            self._reschedule(item, not_before)
        return item

    # Settling

    def item_of(self, lease: Lease[K]) -> Item[K, V]:
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
        """The work is done: the item goes, and the first of its line is the head, at the back.

        Returns the item if it stays for that.
        """
        key = lease._key
        item = self.in_flight.get(key)
        if item is None or item.lease is not lease:
            item = self.item_of(lease)
        self._end(item, "acknowledged")
        if item.line is None:
            del self.items[key]
            return None
        self._follow(item)
        return item

    def release(
        self, lease: Lease[K], *, front: bool = False, due: float | None = None
    ) -> Item[K, V]:
        """Give the item back: to the front or back of its priority, or for the time `due`.

        Its line waits. But a buffered value replaces that of the item, and takes over its
        attempts; then it goes to the back, or waits until `due`.
        """
        item = self.item_of(lease)
        self._end(item, "released")
        self._return(item, due, front)
        return item

    def bury(
        self, lease: Lease[K], error: str, *, hold: bool = False
    ) -> tuple[Item[K, V], BuriedItem[K, V], BuriedItem[K, V] | None]:
        """Give the item up; the first of its line is the head, at the back.

        With `hold`, the line waits until the item is unburied.

        Returns the item, the buried item, and the oldest buried item if it was dropped to keep
        to `max_buried`.
        """
        item = self.item_of(lease)
        self._burials += 1
        number = self._burials
        buried = BuriedItem(
            number, item.key, item.value, item.priority, item.attempt, error, self.now, hold
        )
        self.buried[number] = buried
        self._end(item, "buried")
        if hold:
            self.held[item.key] = item, number
            item.not_before = None
            first = item.first_in_line
            if item.line is not None and first is not None:
                # What a buffered value was to replace is kept: it waits for its turn, too.
                first.replaces = False
                self.in_line -= len(item.line)
                self.behind_held += len(item.line)
        else:
            self._follow(item)
        dropped = None
        if len(self.buried) > self.max_buried:
            dropped = next(iter(self.buried.values()))
            self.unbury(dropped.id)
        return item, buried, dropped

    def unbury(self, number: int) -> Item[K, V] | None:
        """Drop a buried item; if it held its key, that goes on with the first of its line.

        Returns the item of the key if it was held, and is not gone by that.
        """
        held = self.holds_key(number)
        buried = self.buried.pop(number)
        if not held:
            return None
        item = self._let_go(buried.key)
        return item if self._follow(item) else None

    def holds_key(self, number: int) -> bool:
        """Whether the buried item of that number holds its key."""
        _, holding = self.held.get(self.buried[number].key, (None, None))
        return holding == number

    def requeue_head(self, number: int, value: V) -> Item[K, V]:
        """Let a buried item that holds its key be the head again, with `value`; it starts anew.

        It goes to the back of its priority. Its line waits behind it.
        """
        buried = self.buried.pop(number)
        item = self._let_go(buried.key)
        item.value = value
        item.priority = buried.priority
        item.attempt = 0
        item.not_before = None
        self._place(item)
        return item

    def _let_go(self, key: K) -> Item[K, V]:
        """The key is not held any more; its item has no place."""
        item, _ = self.held.pop(key)
        if item.line is not None:
            self.behind_held -= len(item.line)
            self.in_line += len(item.line)
        return item

    def extend(self, lease: Lease[K], expires_at: float | None) -> Item[K, V]:
        """Let the lease expire at another time, or never."""
        item = self.item_of(lease)
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
        if item.line is not None and item.buffered is not None:
            not_before = self._replace(item)
            front = False
        if due is None or (not_before is not None and not_before > due):
            due = not_before
        self._place(item, due, front)

    def _replace(self, item: Item[K, V]) -> float | None:
        """The buffered value becomes that of the item; return before when it must not be leased."""
        failed = item.value
        buffered = self._next_in_line(item)
        if self.take_over is not None:
            item.value = self.take_over(failed, buffered.value)
        return buffered.not_before

    def _follow(self, item: Item[K, V]) -> bool:
        """The head is over: the first of its line begins anew, at the back.

        Returns whether there was one; otherwise the key is absent.
        """
        if item.line is None:
            del self.items[item.key]
            return False
        following = self._next_in_line(item)
        item.attempt = 0
        item.not_before = None
        self._place(item, following.not_before)
        return True

    def _next_in_line(self, item: Item[K, V]) -> LineValue[V]:
        """The first of the line of `item` becomes its value."""
        line: Any = item.line
        first = line.take_first()
        if not line:
            self._end_line(item)
        self.in_line -= 1
        item.number = first.number
        item.value = first.value
        item.priority = first.priority
        following: LineValue[V] = first
        return following

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
        self._take_out(item)
        if item.line is not None:
            self.in_line -= len(item.line)
            del self.lines[key]
        return item

    def remove_head(self, key: K) -> Item[K, V]:
        """Remove the head of `key`, whatever its state: the first of its line takes its place."""
        item = self.items[key]
        self._take_out(item)
        self._follow(item)
        return item

    def _take_out(self, item: Item[K, V]) -> None:
        """Take an item out of its place, wherever that is; a lease on it is revoked."""
        if item.lease is not None:
            self._end(item, "removed")
        elif item.next is not None:
            self.ready.remove(item)
        elif item.key in self.held:
            _, number = self.held[item.key]
            self.buried[number] = replace(self.buried[number], holds=False)
            self._let_go(item.key)
        else:
            self.timers.clear(item)

    def remove_from_line(self, key: K, number: int | None = None) -> list[LineValue[V]]:
        """Remove the value of that number from the line of `key`, or the whole line."""
        item = self.items.get(key)
        line = None if item is None else item.line
        if item is None or line is None:
            return []
        if number is None:
            removed = list(line)
            self._end_line(item)
        else:
            value = line.take(number)
            removed = [] if value is None else [value]
            if not line:
                self._end_line(item)
        if key in self.held:
            self.behind_held -= len(removed)
        else:
            self.in_line -= len(removed)
        return removed

    def _end_line(self, item: Item[K, V]) -> None:
        """The line of an item has become empty."""
        item.line = None
        del self.lines[item.key]

    def number_of(self, item: Item[K, V]) -> int:
        """The number of the value of an item; it gets one when it is first asked for."""
        try:
            return item.number
        except AttributeError:
            self._numbers = item.number = self._numbers + 1
            return item.number

    def recall(self) -> None:
        """End all leases and bring their items back to the front, the first leased foremost."""
        for item in sorted(self.in_flight.values(), key=_fence_of, reverse=True):
            self._end(item, "closed")
            self._return(item, front=True)

    # Looking

    def snapshot(self) -> Iterator[ItemSnapshot[K, V]]:
        """All live items: available in order, scheduled by their time, leased by their age.

        The line of an item follows it. Lines behind buried items come last, the oldest first.
        """
        for item in self.ready:
            yield from self.snapshot_of(item)
        for item in sorted(self.scheduled_items(), key=_moment_of):
            yield from self.snapshot_of(item)
        for item in sorted(self.in_flight.values(), key=_fence_of):
            yield from self.snapshot_of(item)
        lines = [item for item, _ in self.held.values() if item.line is not None]
        for item in sorted(lines, key=_first_number_of):
            yield from self.snapshot_of(item)

    def scheduled_items(self) -> Iterator[Item[K, V]]:
        """The items that wait for their time."""
        for key, item in self.items.items():
            if item.next is None and item.lease is None and key not in self.held:
                yield item

    def snapshot_of(self, item: Item[K, V]) -> Iterator[ItemSnapshot[K, V]]:
        """An item and its line; of a key that a buried item holds only the line."""
        if item.key not in self.held:
            state: ItemState = "available"
            due: float | None = None
            if item.lease is not None:
                state, due = "in_flight", item.lease.expires_at
            elif item.next is None:
                state, due = "scheduled", item.timer[0]
            yield ItemSnapshot(
                item.key,
                item.value,
                state,
                item.priority,
                item.attempt,
                due,
                self.number_of(item),
            )
        for value in item.line or ():
            yield ItemSnapshot(
                item.key,
                value.value,
                "buffered" if value.replaces else "in_line",
                value.priority,
                0,
                value.not_before,
                value.number,
            )


def _fence_of(item: Item[K, V]) -> int:
    fence: int = item.lease.fence
    return fence


def _first_number_of(item: Item[K, V]) -> int:
    first = item.first_in_line
    return 0 if first is None else first.number


def _moment_of(item: Item[K, V]) -> tuple[float, int]:
    when, order, _ = item.timer
    return when, order
