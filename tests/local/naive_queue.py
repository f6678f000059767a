"""A naive model of `LeasedKeyQueue`: lists and dicts, and a look at everything every time.

Written from the documentation, so that it is easy to see that it is right, and slow. It knows no
event loop: a call that has to wait returns a `Consumer`, a `Producer` or a `Joiner` that stands
in line, and whoever drives the model says what time it is (`now`, `pass_time`, `time_out`), who
was cancelled (`cancel`), and when somebody who waited gets to run again (`resume`). The answer
to `resume` is what the waiting call returns or raises.

An item that was handed to a waiting consumer is leased, and keeps its place in `line` until the
consumer has resumed: if that was cancelled meanwhile, the item is there as if nothing had been.
"""

from asyncio import CancelledError
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from leasedkeyq import (
    InvalidLeaseError,
    KeyAlreadyInFlightError,
    KeyAlreadyPresentError,
    KeyNotAvailableError,
    LeaseAlreadyAcknowledgedError,
    LeaseExpiredError,
    QueueClosedError,
    QueueEmptyError,
    QueueFullError,
)
from leasedkeyq.types import PutOutcome, PutPolicy
from tests.local.naive_types import (
    Claim,
    Consumer,
    End,
    Event,
    Joiner,
    NaiveBuried,
    NaiveItem,
    NaiveLease,
    NaiveValue,
    Producer,
    Shown,
)


@dataclass(eq=False)
class NaiveQueue:
    """The model. The public methods have the names, results and errors of the queue."""

    lease_time: float | None = None
    maxsize: int = 0
    max_buried: int = 1000
    now: float = 0.0
    closed: bool = False
    live: dict[str, NaiveItem] = field(default_factory=dict[str, NaiveItem])
    line: list[NaiveItem] = field(default_factory=list[NaiveItem])
    given_up: list[NaiveBuried] = field(default_factory=list[NaiveBuried])
    consumers: list[Consumer] = field(default_factory=list[Consumer])
    producers: list[Producer] = field(default_factory=list[Producer])
    joiners: list[Joiner] = field(default_factory=list[Joiner])
    events: list[Event] = field(default_factory=list[Event])
    leases: int = 0
    schedulings: int = 0
    values: int = 0

    # Time

    def advance(self) -> None:
        """Do what has come due by now, each as of its own moment, then serve those who wait."""
        if self.closed:
            return
        moved: list[NaiveItem] = []
        while coming := [moment for moment in self._item_moments() if moment[0] <= self.now]:
            when, _, _, item = min(coming, key=lambda moment: moment[:3])
            if item.lease is not None:
                self.events.append(("expire", item.key, item.lease.attempt, self.now - item.since))
                self._end(item, "expired")
                self._bring_back(item, when, front=True)
            else:
                item.due = None
                self.line.append(item)
            item.since = self.now
            moved.append(item)
        if moved:
            self._serve(moved)

    def _item_moments(self) -> list[tuple[float, int, int, NaiveItem]]:
        """When something happens to an item by itself; in one moment, leases come first.

        Of leases with one expiry the one that was leased last comes first, because each goes to
        the front.
        """
        moments: list[tuple[float, int, int, NaiveItem]] = []
        for item in self.live.values():
            if item.lease is not None and item.lease.expires_at is not None:
                moments.append((item.lease.expires_at, 0, -item.lease.number, item))
            if item.due is not None:
                moments.append((item.due, 1, item.scheduling, item))
        return moments

    def time_out(self, now: float) -> None:
        """The event loop gets to its timers: those who have waited long enough give up."""
        for consumer in self.consumers:
            if consumer.waits and consumer.deadline is not None and consumer.deadline <= now:
                consumer.state = "timed out"

    def pass_time(self, now: float) -> None:
        """Time passes in an event loop that is idle: everything happens at its own moment."""
        if now <= self.now:
            return
        while True:
            moments = [when for when, _, _, _ in self._item_moments() if not self.closed]
            moments += [c.deadline for c in self.consumers if c.waits and c.deadline is not None]
            moments = [when for when in moments if self.now < when <= now]
            if not moments:
                break
            self.now = min(moments)
            self.advance()
            self.time_out(self.now)
        self.now = now

    # Putting

    def produce(self, producer: Producer) -> Producer | list[PutOutcome]:
        """A put, put_many or requeue: do it, or let it wait for room."""
        self._refuse_if_closed()
        self.advance()
        self._refuse_if_not_buried(producer)
        self._refuse(producer)
        if not self.may_put(producer):
            if producer.most > self.maxsize:
                raise QueueFullError("never")
            self.producers.append(producer)
            return producer
        return self._put_all(producer)

    def put_nowait(self, producer: Producer) -> PutOutcome:
        self._refuse_if_closed()
        self.advance()
        self._refuse(producer)
        if not self.may_put(producer):
            raise QueueFullError("not now")
        return self._put_all(producer)[0]

    def requeuing(self, buried: NaiveBuried, policy: PutPolicy) -> Producer:
        """The producer of a requeue."""
        items = [(buried.key, buried.value)]
        return Producer(items, policy, buried.priority, None, buried, buried.holds)

    def may_put(self, producer: Producer) -> bool:
        """Whether it is the turn of this producer, be it in line or new, and there is room.

        Nobody overtakes a producer of the same key. A put that adds nothing, or whose key somebody
        waits to take, waits for nobody else. All others wait for those who came before, and then
        until there is room for what does not go straight to somebody who waits for any key.
        """
        if not self.maxsize:
            return True
        ahead: list[Producer] = []
        for other in self.producers:
            if other is producer:
                break
            ahead.append(other)
        if any(key in other.keys for other in ahead for key in producer.keys):
            return False
        if producer.buried is not None and producer.buried not in self.given_up:
            return True  # to be refused
        offered = staying = 0
        for key in producer.keys:
            added = self._adds(producer, key)
            if key not in self.live and added and not producer.delay:
                offered += not any(c.waits and c.key == key for c in self.consumers)
                added -= 1
            staying += added
        if offered + staying == 0:
            return True
        getters = sum(c.waits and c.key is None for c in self.consumers)
        need = staying + max(0, offered - getters)
        return not ahead and (need == 0 or need <= self.maxsize - self.size())

    def _adds(self, producer: Producer, key: str) -> int:
        """How many values of a key there are more after a put."""
        item = self.live.get(key)
        if producer.policy == "append" or producer.holds:
            return sum(name == key for name, _ in producer.items)
        if item is None:
            return 1
        if item.line or producer.policy in ("skip", "only_new"):
            return 0
        return item.holder is not None or (item.lease is not None and producer.policy == "buffer")

    def size(self) -> int:
        """What counts for maxsize: everything that waits, in lines, scheduled and held."""
        held = sum(len(item.line) for item in self.live.values() if item.holder is not None)
        return self.qsize() + self.scheduled_size() + held

    def _refuse(self, producer: Producer) -> None:
        """A put that is refused does not wait for that."""
        if producer.buried is not None and producer.buried.holds:
            return
        if producer.policy == "reject":
            leased = tuple(key for key in producer.keys if key in self.inflight_keys())
            if leased:
                raise KeyAlreadyInFlightError("leased", keys=leased)
        if producer.policy == "only_new":
            keys = [key for key, _ in producer.items]
            there = [k for n, k in enumerate(keys) if k in self.live or k in keys[:n]]
            if there:
                raise KeyAlreadyPresentError("there", keys=tuple(dict.fromkeys(there)))

    def _put_all(self, producer: Producer) -> list[PutOutcome]:
        buried = producer.buried
        if buried is not None and buried.holds:
            self._requeue_head(buried)
            return []
        self._refuse(producer)
        outcomes: list[PutOutcome] = [
            self._put(key, value, producer) for key, value in producer.items
        ]
        if buried is not None:
            self.given_up.remove(buried)
        return outcomes

    def _requeue_head(self, buried: NaiveBuried) -> None:
        """What has held its key is its head again, and starts anew."""
        self.given_up.remove(buried)
        item = self.live[buried.key]
        item.value, item.priority, item.attempt = buried.value, buried.priority, 0
        item.holder = None
        item.since = self.now
        self.events.append(("put", item.key, 0, 0.0))
        self._place(item, None, self.now, front=False)
        self._serve([item])

    def _put(self, key: str, value: int, options: Producer) -> PutOutcome:
        priority, delay = options.priority, options.delay
        until = None if not delay else self.now + delay
        item = self.live.get(key)
        if item is not None and options.policy == "skip":
            return "skipped"
        self.events.append(("put", key, 0, 0.0))
        if item is None:
            item = self.live[key] = NaiveItem(key, value, priority or 0, since=self.now)
            self._place(item, until, self.now, front=False)
            self._serve([item])
            return "added"
        if options.policy == "append" or (item.holder is not None and not item.line):
            self._append(item, value, priority or 0, until)
            return "appended"
        if item.line:
            self._update(item, item.line[-1], value, options, until)
            return "updated"
        if item.lease is not None:
            if options.policy == "buffer":
                self._append(item, value, item.priority, item.not_before)
                item.line[0].replaces = True
                self._update(item, item.line[0], value, options, until)
                return "buffered"
            self._update(item, item, value, options, until)
            return "updated"
        item.value = value
        if priority is not None and priority != item.priority:
            item.priority = priority
            if item.available:
                self.line.remove(item)
                self.line.append(item)
        if until is not None or (delay == 0 and item.scheduled):
            item.since = self.now
            self._place(item, until, self.now, front=False)
            self._serve([item])
        return "updated"

    def _append(self, item: NaiveItem, value: int, priority: int, until: float | None) -> None:
        self.values += 1
        item.line.append(NaiveValue(self.values, value, priority, until))

    def _update(
        self,
        item: NaiveItem,
        target: NaiveItem | NaiveValue,
        value: int,
        options: Producer,
        until: float | None,
    ) -> None:
        """Replace what has no place yet: a leased item, or a value in its line."""
        target.value = value
        if options.priority is not None and options.priority != target.priority:
            target.priority = options.priority
            # Where it stands counts if the claim is undone.
            counts = isinstance(target, NaiveItem) or target.replaces
            if counts and item in self.line:
                self.line.remove(item)
                self.line.append(item)
        if options.delay is not None:
            target.not_before = until

    def _place(self, item: NaiveItem, until: float | None, now: float, front: bool) -> None:
        """Give an item that is not leased its place: in the line, or with a time to wait for."""
        self._take_out(item)
        if until is not None and until > now:
            self.schedulings += 1
            item.scheduling = self.schedulings
            item.due = until
        elif front:
            self.line.insert(0, item)
        else:
            self.line.append(item)

    def _take_out(self, item: NaiveItem) -> None:
        item.due = None
        if item in self.line:
            self.line.remove(item)

    # Getting

    def in_order(self) -> list[NaiveItem]:
        """The available items in the order in which they are handed out."""
        available = [item for item in self.line if item.available]
        return sorted(available, key=lambda item: -item.priority)

    def get(self, timeout: float | None, lease_time: float | None) -> Claim | Consumer:
        self._refuse_if_closed()
        self.advance()
        if available := self.in_order():
            return self.confirm(self._claim(available[0], lease_time))
        return self._wait(None, timeout, lease_time)

    def take(self, key: str, timeout: float | None, lease_time: float | None) -> Claim | Consumer:
        self._refuse_if_closed()
        self.advance()
        item = self.live.get(key)
        if item is not None and item.available:
            return self.confirm(self._claim(item, lease_time))
        return self._wait(key, timeout, lease_time)

    def get_nowait(self, lease_time: float | None) -> Claim:
        claim = self.get_or_none(lease_time)
        if claim is None:
            raise QueueEmptyError("empty")
        return claim

    def get_or_none(self, lease_time: float | None) -> Claim | None:
        self._refuse_if_closed()
        self.advance()
        available = self.in_order()
        return self.confirm(self._claim(available[0], lease_time)) if available else None

    def take_nowait(self, key: str, lease_time: float | None) -> Claim:
        self._refuse_if_closed()
        self.advance()
        item = self.live.get(key)
        if item is not None and item.available:
            return self.confirm(self._claim(item, lease_time))
        state = "absent"
        if item is not None:
            state = "in_flight" if item.lease is not None else "scheduled"
            state = "held" if item.holder is not None else state
        raise KeyNotAvailableError("not there", key=key, state=state)

    def _wait(self, key: str | None, timeout: float | None, lease_time: float | None) -> Consumer:
        if timeout == 0:
            raise TimeoutError
        deadline = None if timeout is None else self.now + timeout
        consumer = Consumer(key, lease_time, deadline)
        self.consumers.append(consumer)
        return consumer

    def _claim(self, item: NaiveItem, lease_time: float | None) -> Claim:
        """Lease an item. Its place in the line stays until the claim is confirmed."""
        self.leases += 1
        item.attempt += 1
        expires_at = self._expiry(lease_time)
        item.lease = NaiveLease(self.leases, item.key, item.attempt, expires_at)
        self.events.append(("claim", item.key, item.attempt, self.now - item.since))
        item.since = self.now
        return Claim(item.key, item.value, item.lease)

    def _expiry(self, lease_time: float | None) -> float | None:
        """When a lease of this length expires: None stands for the default, infinity for never."""
        lease_time = self.lease_time if lease_time is None else lease_time
        return None if lease_time is None or lease_time == inf else self.now + lease_time

    def confirm(self, claim: Claim) -> Claim:
        """The consumer has its item."""
        if claim.lease.ended is None:
            self.line.remove(self.live[claim.key])
        return claim

    def _serve(self, moved: Sequence[NaiveItem]) -> None:
        """Hand what has become available to those who wait: takers first, by arrival."""
        for item in moved:
            takers = [c for c in self.consumers if c.waits and c.key == item.key]
            if item.available and takers:
                self._hand(takers[0], item)
        while True:
            getters = [c for c in self.consumers if c.waits and c.key is None]
            available = self.in_order()
            if not getters or not available:
                break
            self._hand(getters[0], available[0])

    def _hand(self, consumer: Consumer, item: NaiveItem) -> None:
        consumer.state = "handed"
        consumer.claim = self._claim(item, consumer.lease_time)

    def _give_back(self, lease: NaiveLease) -> None:
        """A consumer was cancelled before it had its item: all is as if it had never come."""
        if lease.ended is not None:
            return
        item = self.live[lease.key]
        self.events.append(("release", item.key, lease.attempt, self.now - item.since))
        item.since = self.now
        item.attempt -= 1
        self._end(item, "released")
        until = item.not_before
        if item.line and item.line[0].replaces:
            until = self._take_next(item).not_before
        item.not_before = None
        if until is not None and until > self.now:
            self._place(item, until, self.now, front=False)
        self._serve([item])

    # Those who wait

    def cancel(self, waiting: Consumer | Producer | Joiner) -> None:
        """The task is told; it will learn of it when it resumes."""
        waiting.cancelled = True

    def resume(self, waiting: Consumer | Producer | Joiner) -> Claim | list[PutOutcome] | None:
        """The task runs again. Returns or raises what its call does."""
        if isinstance(waiting, Consumer):
            return self._resume_consumer(waiting)
        if isinstance(waiting, Producer):
            return self._resume_producer(waiting)
        self._resume_joiner(waiting)
        return None

    def _resume_consumer(self, consumer: Consumer) -> Claim:
        self.consumers.remove(consumer)
        if consumer.cancelled:
            if consumer.claim is not None:
                self.advance()
                self._give_back(consumer.claim.lease)
            raise CancelledError
        if consumer.state == "timed out":
            raise TimeoutError
        if self.closed:
            raise QueueClosedError("closed")
        assert consumer.claim is not None, "a consumer was woken for nothing"
        return self.confirm(consumer.claim)

    def _resume_producer(self, producer: Producer) -> list[PutOutcome]:
        if producer.cancelled:
            self.producers.remove(producer)
            raise CancelledError
        if self.closed:
            self.producers.remove(producer)
            raise QueueClosedError("closed")
        assert self.may_put(producer), "a producer came before its turn"
        self.producers.remove(producer)
        self._refuse_if_not_buried(producer)
        return self._put_all(producer)

    def _resume_joiner(self, joiner: Joiner) -> None:
        self.joiners.remove(joiner)
        if joiner.cancelled:
            raise CancelledError
        if joiner.state == "closed":
            raise QueueClosedError("closed")
        assert joiner.state == "done", "a join ended while something was left"

    def owed(self) -> list[Consumer | Producer | Joiner]:
        """Who of those that wait must get to run without anything else happening."""
        everybody: list[Consumer | Producer | Joiner] = []
        everybody += [c for c in self.consumers if not c.waits]
        everybody += [p for p in self.producers if p.cancelled or self.closed or self.may_put(p)]
        everybody += [j for j in self.joiners if j.cancelled or j.state != "waiting"]
        return everybody

    # Settling

    def held(self, lease: NaiveLease | None) -> NaiveItem:
        """The item that is held with this lease, or with a copy of it; None for a forgery."""
        self._refuse_if_closed()
        self.advance()
        if lease is not None:
            if lease.ended is None:
                return self.live[lease.key]
            if lease.ended == "acknowledged":
                raise LeaseAlreadyAcknowledgedError("acknowledged")
            if lease.ended == "expired":
                raise LeaseExpiredError("expired", reason="expired")
            raise InvalidLeaseError("ended", reason=lease.ended)
        raise InvalidLeaseError("unknown", reason="unknown")

    def ack(self, lease: NaiveLease | None) -> None:
        item = self.held(lease)
        self._tell_of_end("ack", item)
        self._end(item, "acknowledged")
        self._follow(item)
        self._went_on(item)

    def release(
        self,
        lease: NaiveLease | None,
        *,
        front: bool = False,
        delay: float | None = None,
    ) -> None:
        item = self.held(lease)
        self._tell_of_end("release", item)
        self._end(item, "released")
        self._bring_back(item, self.now, front, self.now + delay if delay else None)
        self._serve([item])

    def extend(self, lease: NaiveLease | None, timeout: float | None = None) -> None:
        current = self.held(lease).lease
        assert current is not None
        current.expires_at = self._expiry(timeout)

    def bury(self, lease: NaiveLease | None, error: str = "", hold: bool = False) -> NaiveBuried:
        item = self.held(lease)
        buried = NaiveBuried(
            item.key, item.value, item.priority, item.attempt, error, self.now, hold
        )
        self._tell_of_end("bury", item)
        self._end(item, "buried")
        self.given_up.append(buried)
        went_on = [item]
        if hold:
            self._take_out(item)
            item.holder = buried
            for value in item.line:
                value.replaces = False
        else:
            self._follow(item)
        while len(self.given_up) > self.max_buried:
            went_on += self._unbury(self.given_up[0])
        self._went_on(*went_on)
        return buried

    def _unbury(self, buried: NaiveBuried) -> list[NaiveItem]:
        """Forget a buried item; returns the item of its key if that goes on."""
        self.given_up.remove(buried)
        if not buried.holds:
            return []
        item = self.live[buried.key]
        item.holder = None
        item.since = self.now
        self._follow(item)
        return [item]

    def discard(self, buried: NaiveBuried) -> None:
        self._refuse_if_closed()
        if buried not in self.given_up:
            raise KeyError(buried.key)
        self.advance()
        self._went_on(*self._unbury(buried))

    def remove(self, key: str) -> bool:
        self._refuse_if_closed()
        self.advance()
        item = self.live.get(key)
        if item is None:
            return False
        if item.lease is not None:
            self._end(item, "removed")
        self._take_out(item)
        del self.live[key]
        if item.holder is not None:
            item.holder.holds = False
            if not item.line:
                return False
        self.events.append(("remove", key, 0, 0.0))
        self._release_joiners()
        return True

    def remove_one(self, key: str, place: int | None) -> bool:
        """Remove the value of a key that its line shows at that place."""
        self._refuse_if_closed()
        self.advance()
        item = self.live.get(key)
        if item is None or place is None:
            return False
        self.events.append(("remove", key, 0, 0.0))
        if item.holder is not None:
            del item.line[place]
            return True
        if place:
            del item.line[place - 1]
            return True
        if item.lease is not None:
            self._end(item, "removed")
        item.since = self.now
        self._follow(item)
        self._went_on(item)
        return True

    def purge_line(self, key: str) -> int:
        self._refuse_if_closed()
        self.advance()
        item = self.live.get(key)
        count = len(item.line) if item is not None else 0
        if item is not None and count:
            item.line.clear()
            self.events.append(("remove", key, 0, 0.0))
        return count

    def purge_buried(self) -> int:
        self._refuse_if_closed()
        self.advance()
        count = len(self.given_up)
        for buried in list(self.given_up):
            self._went_on(*self._unbury(buried))
        return count

    def is_done(self) -> bool:
        """Whether there is nothing but buried items and the lines behind them."""
        return all(item.holder is not None for item in self.live.values())

    def join(self) -> Joiner | None:
        if self.closed and not self.is_done():
            raise QueueClosedError("closed")
        self.advance()
        if self.is_done():
            return None
        joiner = Joiner()
        self.joiners.append(joiner)
        return joiner

    def close(self) -> None:
        """Leased items go to the front, the first leased foremost; all who wait are told."""
        if self.closed:
            return
        self.advance()
        self.closed = True
        leased = [item for item in self.live.values() if item.lease is not None]
        for item in sorted(leased, key=_lease_number):
            self._tell_of_end("release", item)
        for item in sorted(leased, key=_lease_number, reverse=True):
            self._end(item, "closed")
            self._bring_back(item, self.now, front=True)
        for consumer in self.consumers:
            if consumer.waits:
                consumer.state = "closed"
        for joiner in self.joiners:
            if joiner.state == "waiting":
                joiner.state = "closed"

    def _end(self, item: NaiveItem, how: End) -> None:
        assert item.lease is not None
        item.lease.ended = how
        item.lease = None

    def _follow(self, item: NaiveItem) -> None:
        """The head is over. The next of its line begins anew, or its key is free."""
        self._take_out(item)
        if item.line:
            following = self._take_next(item)
            item.attempt = 0
            item.not_before = None
            self._place(item, following.not_before, self.now, front=False)
        else:
            del self.live[item.key]

    def _went_on(self, *items: NaiveItem) -> None:
        """These items have moved, or are gone: serve those who wait."""
        self._serve([item for item in items if self.live.get(item.key) is item])
        self._release_joiners()

    def _take_next(self, item: NaiveItem) -> NaiveValue:
        """The first of its line becomes the value of an item."""
        following = item.line.pop(0)
        item.value, item.priority = following.value, following.priority
        return following

    def _bring_back(
        self, item: NaiveItem, now: float, front: bool, until: float | None = None
    ) -> None:
        """The lease on an item has ended, and it goes back, before its line.

        A buffered value replaces it, and takes over its attempts.
        """
        not_before = item.not_before
        if item.line and item.line[0].replaces:
            not_before = self._take_next(item).not_before
            front = False
        item.not_before = None
        if until is None or (not_before is not None and not_before > until):
            until = not_before
        self._place(item, until, now, front)

    def _tell_of_end(self, what: str, item: NaiveItem) -> None:
        assert item.lease is not None
        self.events.append((what, item.key, item.lease.attempt, self.now - item.since))
        item.since = self.now

    def _release_joiners(self) -> None:
        if self.is_done():
            for joiner in self.joiners:
                if joiner.state == "waiting":
                    joiner.state = "done"

    def _refuse_if_closed(self) -> None:
        if self.closed:
            raise QueueClosedError("closed")

    def _refuse_if_not_buried(self, producer: Producer) -> None:
        if producer.buried is not None and producer.buried not in self.given_up:
            raise KeyError(producer.buried.key)

    # Looking

    def peek(self, key: str) -> int | None:
        item = self.live.get(key)
        if item is None:
            return None
        if item.available:
            return item.value
        return item.line[0].value if item.line else None

    def available_keys(self) -> set[str]:
        return {item.key for item in self.live.values() if item.available or item.line}

    def contains(self, key: str) -> bool:
        return key in self.available_keys()

    def scheduled_keys(self) -> set[str]:
        return {item.key for item in self.live.values() if item.scheduled}

    def inflight_keys(self) -> set[str]:
        return {item.key for item in self.live.values() if item.lease is not None}

    def qsize(self) -> int:
        free = [item for item in self.live.values() if item.holder is None]
        return sum(item.available + len(item.line) for item in free)

    def scheduled_size(self) -> int:
        return len(self.scheduled_keys())

    def inflight_size(self) -> int:
        return len(self.inflight_keys())

    def snapshot(self) -> list[Shown]:
        """Available items in order, scheduled ones by time, leased ones by age, each with its line.

        Lines behind buried items come last, in the order of their oldest values.
        """
        items = self.in_order()
        scheduled = [(i.due, i.scheduling, i) for i in self.live.values() if i.due is not None]
        items += [item for _, _, item in sorted(scheduled, key=lambda entry: entry[:2])]
        leased = [item for item in self.live.values() if item.lease is not None]
        items += sorted(leased, key=_lease_number)
        held = [item for item in self.live.values() if item.holder is not None and item.line]
        items += sorted(held, key=lambda item: item.line[0].number)
        return [shown for item in items for shown in self._shown(item)]

    def shown_line(self, key: str) -> list[Shown]:
        item = self.live.get(key)
        return [] if item is None else self._shown(item)

    def _shown(self, item: NaiveItem) -> list[Shown]:
        shown: list[Shown] = []
        if item.holder is None:
            state, due = "available", item.due
            if item.lease is not None:
                state, due = "in_flight", item.lease.expires_at
            elif due is not None:
                state = "scheduled"
            shown.append((item.key, item.value, state, item.priority, item.attempt, due))
        for value in item.line:
            state = "buffered" if value.replaces else "in_line"
            shown.append((item.key, value.value, state, value.priority, 0, value.not_before))
        return shown


def _lease_number(item: NaiveItem) -> int:
    return item.lease.number if item.lease is not None else 0
