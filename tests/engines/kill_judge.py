"""Judges what processes on one store noted before they were killed, and what they left behind.

It knows only what was asked and answered, and when, by one clock that the stores go by, too. A call
without an answer may have happened or not. Everything else must fit:

- a lease begins when no other lease on its key is running, and fences grow with time,
- no lease is settled after its end, or twice, and none is refused before its end,
- what was put and acknowledged is there or was done, once, with its latest value.

Where one writer at a time changes a store, a lease begins at the very moment that it says. On
PostgreSQL a claim reads the clock, and may have to wait before it takes what is free by then:
there, only what was asked after an answer is known to come later.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from typing import Literal, NamedTuple, get_args

from tests.engines.kill_facts import (
    TICK,
    ClaimAsked,
    ClaimDone,
    Fact,
    How,
    Leased,
    PutAsked,
    PutDone,
    SettleAsked,
    SettleDone,
)

Wrong = Literal[
    "acknowledged values lost",
    "keys held twice",
    "leases settled late or twice",
    "leases refused while they ran",
    "fences out of order",
    "values or attempts that nobody asked for",
    "damaged stores",
    "workers that failed",
]
"""What must not happen."""
WRONG: tuple[Wrong, ...] = get_args(Wrong)
LOST, TWICE, LATE, REFUSED, FENCES, MADE_UP, DAMAGED, FAILED = WRONG


class Complaint(NamedTuple):
    wrong: Wrong
    words: str


@dataclass
class PutTale:
    key: str
    value: str
    buffered: bool
    asked_at: float
    done_at: float = inf
    item: str | None = None


@dataclass
class SettleTale:
    how: How
    asked_at: float
    done_at: float = inf
    accepted: bool | None = None
    expires_at: float | None = None


@dataclass
class LeaseTale:
    leased: Leased
    asked_at: float
    done_at: float
    settles: list[SettleTale] = field(default_factory=list[SettleTale])

    @property
    def held_until(self) -> float:
        """Until when it was held for certain."""
        expires_at = self.leased.expires_at
        for settle in self.settles:
            if settle.accepted is not False and settle.how != "extend":
                return min(expires_at, settle.asked_at)
            expires_at = settle.expires_at or expires_at
        return expires_at

    @property
    def told(self) -> str:
        """When what was asked and answered, in words."""
        settles = "".join(
            f", {one.how} {one.asked_at:.3f} to {one.done_at:.3f}: {one.accepted}"
            + (f" until {one.expires_at:.3f}" if one.expires_at else "")
            for one in self.settles
        )
        return (
            f"lease {self.leased.fence} of item {self.leased.item} (attempt {self.leased.attempt})"
            f" asked for {self.asked_at:.3f}, handed out {self.done_at:.3f}, from"
            f" {self.leased.began_at:.3f} to {self.leased.expires_at:.3f}{settles}"
        )


@dataclass
class Found:
    """An item that is in the store in the end."""

    item: str
    key: str
    value: str
    attempt: int


class Judge:
    """Gathers the notes of all processes; `verdict` lists what cannot be.

    `one_writer`: only one process at a time changes the store.
    """

    def __init__(self, journals: Iterable[Sequence[Fact]], *, one_writer: bool = True) -> None:
        self._one_writer = one_writer
        self.puts: list[PutTale] = []
        self.leases: dict[int, LeaseTale] = {}
        self.complaints: list[Complaint] = []
        self.unanswered_claims = 0
        """What these may have leased at most."""
        self.unanswered = 0
        """All calls without an answer."""
        for facts in journals:
            self._read(facts)
        self.acks: dict[str, list[tuple[LeaseTale, SettleTale]]] = defaultdict(list)
        self.by_item: dict[str, list[LeaseTale]] = defaultdict(list)
        for _, lease in sorted(self.leases.items()):
            self.by_item[lease.leased.item].append(lease)
            for settle in lease.settles:
                if settle.how in ("ack", "keep") and settle.accepted is not False:
                    self.acks[lease.leased.item].append((lease, settle))

    def _read(self, facts: Sequence[Fact]) -> None:
        puts: dict[int, PutTale] = {}
        claims: dict[int, ClaimAsked] = {}
        settles: dict[int, SettleTale] = {}
        for fact in facts:
            if isinstance(fact, PutAsked):
                put = PutTale(fact.key, fact.value, fact.buffered, fact.at)
                puts[fact.call] = put
                self.puts.append(put)
            elif isinstance(fact, PutDone):
                puts[fact.call].item, puts[fact.call].done_at = fact.item, fact.at
            elif isinstance(fact, ClaimAsked):
                claims[fact.call] = fact
            elif isinstance(fact, ClaimDone):
                asked_at = claims.pop(fact.call).at
                for leased in fact.leases:
                    if leased.fence in self.leases:
                        self.complain(FENCES, f"fence {leased.fence} was given out twice")
                    self.leases[leased.fence] = LeaseTale(leased, asked_at, fact.at)
            elif isinstance(fact, SettleAsked):
                settles[fact.call] = SettleTale(fact.how, fact.at)
                self.leases[fact.fence].settles.append(settles[fact.call])
            elif isinstance(fact, SettleDone):
                settle = settles[fact.call]
                settle.done_at, settle.accepted = fact.at, fact.accepted
                settle.expires_at = fact.expires_at
        self.unanswered_claims += sum(claim.most for claim in claims.values())
        self.unanswered += len(claims)
        self.unanswered += sum(put.item is None for put in puts.values())
        self.unanswered += sum(settle.accepted is None for settle in settles.values())

    def complain(self, wrong: Wrong, words: str) -> None:
        self.complaints.append(Complaint(wrong, words))

    def verdict(
        self, left: Sequence[Found], done: dict[str, int], looked_at: float
    ) -> list[Complaint]:
        """What is wrong, given what is left, and which fence each kept result names."""
        self._check_order()
        self._check_exclusion()
        for lease in self.leases.values():
            self._check_settles(lease)
        self._check_acks({found.item for found in left}, done)
        self._check_puts({found.item for found in left}, done)
        self._check_values(left, looked_at)
        self._check_attempts(left)
        return self.complaints

    # Leases

    def _check_order(self) -> None:
        latest = -inf
        for fence, lease in sorted(self.leases.items()):
            began_at = lease.leased.began_at
            if not lease.asked_at - TICK <= began_at <= lease.done_at + TICK:
                self.complain(MADE_UP, f"lease {fence} began when nobody had asked for it")
            if self._one_writer and began_at < latest - TICK:
                self.complain(FENCES, f"lease {fence} began before those with lower fences")
            latest = max(latest, began_at)
        answered_at = inf
        for fence, lease in sorted(self.leases.items(), reverse=True):
            if lease.asked_at > answered_at:
                self.complain(FENCES, f"lease {fence} was asked for after a higher fence was given")
            answered_at = min(answered_at, lease.done_at)

    def _check_exclusion(self) -> None:
        free_at: dict[str, tuple[float, int]] = {}
        for fence, lease in sorted(self.leases.items()):
            key = lease.leased.key
            moment, other = free_at.get(key, (-inf, 0))
            began_at = lease.leased.began_at if self._one_writer else lease.done_at
            if began_at < moment - TICK:
                told = f"{self.leases[other].told}; {lease.told}"
                words = f"key {key} was held twice, by leases {other} and {fence}: {told}"
                self.complain(TWICE, words)
            free_at[key] = max((moment, other), (lease.held_until, fence))

    def _check_settles(self, lease: LeaseTale) -> None:
        what = f"of lease {lease.leased.fence} on item {lease.leased.item}"
        expires_at = lease.leased.expires_at
        settled = False
        for settle in lease.settles:
            if settle.accepted:
                if settled:
                    self.complain(LATE, f"{settle.how} {what} was accepted after it was settled")
                if settle.asked_at > expires_at + TICK:
                    self.complain(LATE, f"{settle.how} {what} was accepted after it had expired")
                settled = settled or settle.how != "extend"
                expires_at = settle.expires_at or expires_at
            elif settle.accepted is False and not settled and settle.done_at < expires_at - TICK:
                self.complain(REFUSED, f"{settle.how} {what} was refused while it was running")

    def _check_acks(self, left: set[str], done: dict[str, int]) -> None:
        for item, acks in self.acks.items():
            accepted = [lease for lease, settle in acks if settle.accepted]
            if len(accepted) > 1:
                self.complain(LATE, f"item {item} was acknowledged {len(accepted)} times")
            for lease in accepted:
                if self.by_item[item][-1] is not lease:
                    self.complain(
                        LATE, f"item {item} was acknowledged by a lease that had a successor"
                    )
            if accepted and item in left:
                self.complain(LATE, f"item {item} was acknowledged and is still there")
            for lease, settle in acks:
                if settle.accepted and settle.how == "keep":
                    if item not in done:
                        self.complain(LOST, f"the result of item {item} was lost")
                    elif done[item] != lease.leased.fence:
                        self.complain(LATE, f"the result of item {item} is that of another lease")
        for item, fence in done.items():
            kept = [
                lease.leased.fence
                for lease, settle in self.acks.get(item, ())
                if settle.how == "keep"
            ]
            if fence not in kept:
                self.complain(LATE, f"item {item} is done by lease {fence}, which did not do it")
            if item in left:
                self.complain(LATE, f"item {item} is done and still there")

    # Items

    def _check_puts(self, left: set[str], done: dict[str, int]) -> None:
        newest: dict[str, int] = {}
        for put in self.puts:
            if put.item is not None and put.buffered:
                newest[put.key] = max(newest.get(put.key, 0), int(put.item))
        for put in self.puts:
            item = put.item
            if item is None or item in left or item in done:
                continue
            if any(settle.accepted or settle.how == "ack" for _, settle in self.acks[item]):
                continue
            # A value that was put beside a leased one takes its place if the lease is not settled.
            if put.buffered and (int(item) < newest[put.key] or self._maybe_buffered(put)):
                continue
            self.complain(LOST, f"item {item}, key {put.key}, value {put.value}: put and lost")

    def _maybe_buffered(self, put: PutTale) -> bool:
        """Whether a put without an answer may have taken the place of this one."""
        return any(
            other.key == put.key and other.item is None and other.buffered for other in self.puts
        )

    def _check_values(self, left: Sequence[Found], looked_at: float) -> None:
        by_value = {put.value: put for put in self.puts}
        by_item: dict[str, list[PutTale]] = defaultdict(list)
        for put in self.puts:
            if put.item is not None:
                by_item[put.item].append(put)
        seen: list[tuple[str, str, str, float]] = [
            (lease.leased.item, lease.leased.key, lease.leased.value, lease.asked_at)
            for lease in self.leases.values()
        ]
        seen += [(found.item, found.key, found.value, looked_at) for found in left]
        for item, key, value, asked_at in seen:
            source = by_value.get(value)
            if source is None or source.key != key or source.item not in (None, item):
                self.complain(MADE_UP, f"item {item}, key {key}: nobody put {value}")
                continue
            for later in by_item[item]:
                if later.asked_at > source.done_at and later.done_at < asked_at:
                    self.complain(
                        LOST, f"item {item}: {later.value} was put and lost, {value} is back"
                    )

    def _check_attempts(self, left: Sequence[Found]) -> None:
        """Each claim counts, also those that nobody was told of."""
        untold = 0
        ends = {found.item: found.attempt for found in left}
        # In the order of their first leases.
        keys = {item: leases[0].leased.key for item, leases in self.by_item.items()}
        keys |= {found.item: found.key for found in left}
        buffered = {put.key for put in self.puts if put.buffered}
        earlier: dict[str, set[int]] = defaultdict(set)
        for item in keys:
            leases = self.by_item.get(item, [])
            attempts = [lease.leased.attempt for lease in leases]
            if item in ends:
                attempts.append(ends[item])
            # A buffered value goes on with the attempts of the one that it has replaced.
            known = earlier[keys[item]] if keys[item] in buffered else set[int]()
            before = max((one for one in known if one <= attempts[0] - bool(leases)), default=0)
            earlier[keys[item]].update(attempts)
            attempts.insert(0, before)
            steps = [b - a for a, b in pairwise(attempts)]
            if any(step < 1 for step in steps[: len(leases)]) or steps[-1] < 0:
                self.complain(MADE_UP, f"item {item}: the attempts do not count up: {attempts}")
            untold += sum(max(step - 1, 0) for step in steps[: len(leases)])
            untold += sum(steps[len(leases) :])
        if untold > self.unanswered_claims:
            self.complain(
                MADE_UP,
                f"{untold} leases went to nobody, {self.unanswered_claims} claims had no answer",
            )
