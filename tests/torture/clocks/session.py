"""Callers of a store whose clock jumps, and what they may rely on."""

from random import Random
from typing import Any, Final, NamedTuple

from leasedkeyq.model.requests import Ack, Cap, Claim, Claimed, Extend, Put, Refusal, Release
from leasedkeyq.stores.store import Store
from tests.torture.clocks.jumping_clock import JumpingClock

PLAIN: Final = "plain"
LIMITED: Final = "limited"
QUEUES: Final = (PLAIN, LIMITED)
RATE: Final = 0.5
BURST: Final = 3.0
CAP: Final = Cap(LIMITED, rate=RATE, burst=BURST)
LEASES: Final = (1.0, 5.0, 30.0, 600.0)
DELAYS: Final = (None, None, 2.0, 20.0, 500.0)
LONGEST: Final = 1_000.0

LOST: Final = "items lost"
TWICE: Final = "keys held twice, or leases ended before their time"
EARLY: Final = "items handed out before their time"
TOO_MANY: Final = "rate limits passed"
FENCES: Final = "fences that did not grow"
STUCK: Final = "calls that waited for ever"


class Problem(NamedTuple):
    name: str
    words: str


class Held(NamedTuple):
    """A lease that was handed out. It is good at least until the clock says `expires_at`."""

    item: Claimed
    expires_at: float


class Session:
    """Puts, claims and settles on a store, and judges what it hands out.

    It knows the latest time that the clock ever said, and not what the store makes of a clock that
    was set back. So it holds against the store only what is certain: a lease that cannot have run
    out by any time that there ever was must hold, and a delay that cannot be over must not be.
    """

    def __init__(self, dice: Random, clock: JumpingClock) -> None:
        self._dice = dice
        self._clock = clock
        self._number = 0
        self.stored: dict[str, float] = {}
        """Keys that are stored, with the earliest moment from which they may be handed out."""
        self._held: dict[str, Held] = {}
        self._over: list[Claimed] = []
        """Leases that have ended: by their time, or because they were settled."""
        self._tokens_taken = 0
        self._fence = 0
        self.problems: list[Problem] = []
        self.calls = 0

    async def step(self, store: Store) -> None:
        kind = self._dice.random()
        self.calls += 1
        if kind < 0.4 or not self.stored:
            await self._put(store)
        elif kind < 0.7:
            await self._claim(store)
        elif kind < 0.8 and self._over:
            await self._settle_late(store)
        elif self._held:
            await self._settle(store)
        else:
            await store.sweep(QUEUES)

    async def drain(self, store: Store) -> None:
        """All that was put and not acknowledged is handed out, in the end."""
        found: set[str] = set()
        while True:
            claim = Claim(((PLAIN, 50), (LIMITED, 50)), 50, lease_time=60.0)
            [items] = await store.claim([claim])
            if not items:
                break
            found.update(item.key for item in items)
            await store.settle([Ack(item.queue, item.key, item.token) for item in items])
        if lost := self.stored.keys() - found:
            self._complain(LOST, f"{sorted(lost)} were never handed out")
        if more := found - self.stored.keys():
            self._complain(TWICE, f"{sorted(more)} were handed out after their ack")

    async def _put(self, store: Store) -> None:
        delay = self._dice.choice(DELAYS)
        queue = self._dice.choice(QUEUES)
        keys = []
        for _ in range(self._dice.randint(1, 3)):
            self._number += 1
            keys.append(f"k{self._number}")
        before = self._clock.now
        await store.put([Put(queue, tuple((key, b"1") for key in keys), delay=delay)])
        for key in keys:
            self.stored[key] = before + (delay or 0.0)

    async def _claim(self, store: Store) -> None:
        queue = self._dice.choice(QUEUES)
        caps = (CAP,) if queue == LIMITED else ()
        lease_time = self._dice.choice(LEASES)
        before = self._clock.now
        [items] = await store.claim([Claim(((queue, 3),), 3, lease_time=lease_time, caps=caps)])
        for item in items:
            self._judge(item)
            self._held[item.key] = Held(item, before + lease_time)
        if queue == LIMITED:
            self._tokens_taken += len(items)
            most = BURST + RATE * self._clock.forward
            if self._tokens_taken > most + 1e-3:
                self._complain(TOO_MANY, f"{self._tokens_taken} claims, and at most {most:.1f}")

    def _judge(self, item: Claimed) -> None:
        latest = self._clock.latest
        if item.fence <= self._fence:
            self._complain(FENCES, f"{item.key} has {item.fence} after {self._fence}")
        self._fence = max(self._fence, item.fence)
        if item.key not in self.stored:
            self._complain(TWICE, f"{item.key} was acknowledged, and handed out again")
            return
        if latest < self.stored[item.key] - 1e-3:
            early = self.stored[item.key] - latest
            self._complain(EARLY, f"{item.key} came {early:.3f} s early")
        before = self._held.pop(item.key, None)
        if before is not None:
            self._over.append(before.item)
            if latest < before.expires_at - 1e-3:
                left = before.expires_at - latest
                self._complain(TWICE, f"{item.key} was leased again {left:.3f} s too early")

    async def _settle(self, store: Store) -> None:
        key = self._dice.choice(sorted(self._held))
        item, expires_at = self._held.pop(key)
        where = (item.queue, key, item.token)
        kind = self._dice.random()
        before = self._clock.now
        change: Any = Ack(*where)
        delay = 0.0
        if kind < 0.25:
            delay = self._dice.choice((0.0, 3.0, 50.0))
            change = Release(*where, delay=delay)
        elif kind < 0.5:
            change = Extend(*where, lease_time=100.0)
        [answer] = await store.settle([change])
        if isinstance(answer, Refusal):
            if self._clock.latest < expires_at - 1e-3:
                self._complain(TWICE, f"the lease of {key} was refused in its time: {answer!r}")
            return
        if isinstance(change, Extend):
            self._held[key] = Held(item, before + 100.0)
            return
        self._over.append(item)
        if isinstance(change, Ack):
            del self.stored[key]
        else:
            self.stored[key] = before + delay

    async def _settle_late(self, store: Store) -> None:
        """A lease that is over settles nothing."""
        item = self._dice.choice(self._over)
        [answer] = await store.settle([Ack(item.queue, item.key, item.token)])
        if not isinstance(answer, Refusal):
            self._complain(TWICE, f"a lease of {item.key} that was over was acknowledged")

    def _complain(self, name: str, words: str) -> None:
        self.problems.append(Problem(name, words))
