"""What to claim next from a store: as much as there is room for, the most urgent first."""

import asyncio
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Protocol

from leasedkeyq.lanes.command import CommandRegistry
from leasedkeyq.lanes.durable.outbox import MANY, Outbox
from leasedkeyq.lanes.durable.prefetch import Ahead
from leasedkeyq.lanes.running.job import Job
from leasedkeyq.lanes.running.lane import Lane, Share, Slots
from leasedkeyq.lanes.running.tracing import GuardedTracing
from leasedkeyq.model.requests import Answer, Claim, Claimed, Counts, Release
from leasedkeyq.stores.store import Claimer, Store

NONE = Counts()
MOST = 1000
"""Commands in one claim."""
SHORTEST_TRY = 0.001
LONGEST_TRY = 1.0
"""Seconds between claims in vain of a lane with a rate limit; more where its tokens are rarer."""


class Claims(Protocol):
    """What a plan needs of its engine."""

    shares: list[Share]
    slots: Slots
    running: set[Job]
    registry: CommandRegistry
    _ahead: Ahead
    _outbox: Outbox
    _tracing: GuardedTracing | None

    def wake(self) -> None:
        """A command may be able to start."""
        ...


class ClaimPlan:
    """Claims for all lanes of an engine."""

    def __init__(self, engine: Claims, store: Store) -> None:
        self._engine = engine
        self._store = store
        self._claimer = Claimer(store)
        self.coming: Counter[Share] = Counter()
        """What is being claimed at present, or was and has not been taken yet."""
        self._going: Counter[Share] = Counter()
        """What is on its way back to the store."""
        self._gone: Counter[Share] = Counter()
        """How often something was given back."""
        self._turns: Counter[Lane] = Counter()
        """How often the parts of a lane were asked: each time another one comes first."""
        self._asked: set[Share] = set()
        """Parts that were asked, and had nothing, since any claim has found something."""
        self.left_out = False
        """Whether the last claim has found nothing, and has not asked all parts of a lane."""
        self._vain = 0
        """Tries in a row that have found nothing, though commands were waiting."""

    def open(self, take: Callable[[Claimed], None]) -> None:
        """Have what a standing claim was given taken, from now on."""
        self._claimer = self._store.claimer(take)

    async def close(self) -> None:
        """Leave no claim standing."""
        await self._claimer.close()

    def abandon(self) -> None:
        """Take nothing more, at once."""
        self._claimer.abandon()

    def give_back(
        self, share: Share, item: Claimed, told: Callable[[Answer], None] | None = None
    ) -> None:
        """Let others have what was claimed, as if it had not been; `told` is passed the answer.

        Until it is back, nothing of its part is claimed, nor begun of a claim that is under way:
        that would be what comes after it.
        """
        self._going[share] += 1
        self._gone[share] += 1
        change = Release(item.queue, item.key, item.token, undo=True)
        self._engine._outbox.add(change, partial(self._is_back, share, told))

    def _is_back(self, share: Share, told: Callable[[Answer], None] | None, answer: Answer) -> None:
        self._going[share] -= 1
        if told is not None:
            told(answer)
        if not self._going[share]:
            self._engine.wake()

    def has_room(self) -> bool:
        """Whether any lane has room for enough to be worth a claim."""
        return any(self._room(share) > 0 and self.wants(share) for share in self._engine.shares)

    def wants(self, share: Share) -> bool:
        """Whether the room of a part of a lane is worth a claim.

        Where commands are claimed ahead, that takes half of what may be leased: so claims stay
        large. But no slot waits for that.
        """
        line = self._engine._ahead.lines.get(share)
        if line is None or not line.most:
            return True
        lane = share.lane
        active, most = lane.active, lane.most
        coming = self._coming_of(lane)
        waiting = self._engine._ahead.of_lane(lane)
        if 2 * (active + waiting + coming) <= most + line.most:
            return True
        return active < most and not waiting and not coming

    def _room(self, share: Share) -> int:
        """How many more commands a part of a lane may lease, if it had the manager for itself."""
        lane = share.lane
        if not share.owned or lane.paused or self._going.get(share):
            return 0
        coming = self._coming_of(lane)
        if coming and lane.most == 1:
            return 0  # Of two answers, the second may come first.
        line = self._engine._ahead.lines.get(share)
        if line is not None and line.most:
            waiting = self._engine._ahead.of_lane(lane)
            return lane.most + line.most - lane.active - waiting - coming
        if self._engine.slots.may_start(share, coming):
            return lane.most - lane.active - coming
        return 0

    def _coming_of(self, lane: Lane) -> int:
        """How much is being claimed of all parts of a lane."""
        coming = self.coming
        if not lane.linked:
            return coming.get(lane.shares[0], 0)
        return sum([coming[share] for share in lane.shares])

    async def claim(self) -> list[tuple[Share, Claimed]] | None:
        """Claim what there is room for, in the order in which it is to be started.

        None: it is left to another claim, which is under way, and to who comes after it.
        """
        rooms = self._rooms()
        if self.coming.total() and sum(rooms.values()) < MANY:
            return None
        if rooms:
            self._engine._ahead.decide(self._engine.running)
            rooms = self._rooms()
        if not rooms:
            await self._claimer.claim([], idle=False)  # What stands would be given something.
            return []
        requests = self._requests(rooms)
        self.coming.update(rooms)
        gone = {share: self._gone[share] for share in rooms}
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            answers = await self._claimer.claim(requests, idle=not self._engine.running)
        finally:
            self.coming.subtract(rooms)
        trip = loop.time() - began
        shares = {share.queue: share for share in rooms}
        found: list[tuple[Share, Claimed]] = []
        for item in (item for answer in answers for item in answer):
            share = shares[item.queue]
            # After a trip as long as its lease, the lease has ended.
            if self._gone[share] == gone[share] and trip < share.lane.lease_time:
                found.append((share, item))
            else:
                self.give_back(share, item)
        self._note_asked(rooms, requests, bool(found))
        if found:
            self._vain = 0
            self._engine._ahead.travelled(trip)
        if found and self._engine._tracing is not None:
            for lane_id, count in Counter(share.lane.id for share, _ in found).items():
                self._engine._tracing.claimed(lane_id, count)
        return found

    @contextmanager
    def not_taken_yet(self, claimed: Sequence[tuple[Share, Claimed]]) -> Generator[None]:
        """Within this, what was claimed still takes room, though nobody has taken it."""
        shares = Counter(share for share, _ in claimed)
        self.coming.update(shares)
        try:
            yield
        finally:
            self.coming.subtract(shares)

    def _note_asked(self, rooms: dict[Share, int], requests: list[Claim], found: bool) -> None:
        """See whether there are parts of lanes that have room, and were not asked yet."""
        queues = {queue for request in requests for queue, _ in request.queues}
        asked = {share for share in rooms if share.queue in queues}
        self._asked |= asked
        self.left_out = bool(asked) and not found and not self._asked.issuperset(rooms)
        if not self.left_out:
            self._asked.clear()

    async def next_try(self, due: float) -> float:
        """After a claim in vain: in how many seconds to claim again.

        `due` is when the store says that something comes due. That may be too late for a lane with
        a rate limit: its token may have come, or another worker may have taken it, after the claim
        and before the store was asked. So as long as its commands wait, claim again after the time
        in which a token comes; then after twice that time, and so on, up to a second.
        """
        rates = {
            share.queue: max(rates)
            for share in self._engine.shares
            if (rates := [cap.rate for cap in share.caps if cap.rate is not None])
            if self._room(share) > 0
        }
        if not rates or due <= SHORTEST_TRY or due <= 1 / max(rates.values()):
            return due
        counts = await self._store.count([*rates])
        waiting = [rate for queue, rate in rates.items() if counts.get(queue, NONE).available]
        if not waiting:
            self._vain = 0
            return due
        token = max(1 / max(waiting), SHORTEST_TRY)
        again = min(token * 2.0**self._vain, max(token, LONGEST_TRY))
        self._vain = min(self._vain + 1, 30)
        return min(due, again)

    def _rooms(self) -> dict[Share, int]:
        """The room of each part of a lane, if it is enough for any of them."""
        if not self.has_room():
            return {}
        rooms = {share: self._room(share) for share in sorted(self._engine.shares, key=_priority)}
        return {share: room for share, room in rooms.items() if room > 0}

    def _requests(self, rooms: dict[Share, int]) -> list[Claim]:
        """Within the capacity: first the minima of lanes, then whatever is most urgent.

        Without one, no lane takes anything from another.
        """
        spare = self._engine.slots.spare()
        if spare is None:
            return self._requests_by_lane(rooms)
        reserved = {
            share: min(room, share.lane.reserved - share.lane.active)
            for share, room in rooms.items()
            if share.lane.active < share.lane.reserved
        }
        left = {share: room - reserved.get(share, 0) for share, room in rooms.items()}
        left = self._divided({share: room for share, room in left.items() if room > 0})
        requests = self._requests_by_lane(reserved) if reserved else []
        if spare > 0 and left:
            requests.append(self._request(left, spare))
        return requests

    def _requests_by_lane(self, rooms: dict[Share, int]) -> list[Claim]:
        """One claim for all lanes, and one for each that has several parts, which share its room.

        The parts come first by turns, or the last one would get what the others leave.
        """
        parts: dict[Lane, list[Share]] = {}
        for share in rooms:
            parts.setdefault(share.lane, []).append(share)
        whole = {shares[0]: rooms[shares[0]] for shares in parts.values() if len(shares) == 1}
        requests = [self._request(whole)] if whole else []
        for lane, shares in parts.items():
            if len(shares) > 1:
                some = {share: rooms[share] for share in self._by_turns(lane, shares)}
                requests.append(self._request(some, most=max(some.values())))
        return requests

    def _by_turns(self, lane: Lane, shares: list[Share]) -> list[Share]:
        """Parts of a lane; another one is the first each time."""
        self._turns[lane] += 1
        first = self._turns[lane] % len(shares)
        return shares[first:] + shares[:first]

    def _divided(self, rooms: dict[Share, int]) -> dict[Share, int]:
        """The same with the room of each lane divided among its parts.

        Parts that get none are left out, and asked by the claims that follow.
        """
        parts: dict[Lane, list[Share]] = {}
        for share in rooms:
            parts.setdefault(share.lane, []).append(share)
        divided: dict[Share, int] = {}
        for lane, shares in parts.items():
            fresh = [share for share in shares if share not in self._asked] or shares
            room = max(rooms[share] for share in shares)
            each, more = divmod(room, len(fresh))
            for number, share in enumerate(self._by_turns(lane, fresh)):
                divided[share] = each + (number < more)
        return {share: room for share, room in divided.items() if room}

    def _request(
        self, rooms: dict[Share, int], spare: int | None = None, *, most: int = MOST
    ) -> Claim:
        """A claim over parts of lanes; with `spare` slots, which they have to share."""
        times = tuple([share.lane.lease_time for share in rooms])
        shared = spare is not None and len(rooms) > 1
        # A deadline lifts a command within its lane, whether its lane has to share or not.
        urgencies = tuple([share.urgency for share in rooms])
        urgent = shared or any(urgency.lifts for urgency in urgencies)
        return Claim(
            tuple((share.queue, room) for share, room in rooms.items()),
            min(sum(rooms.values()), most if spare is None else spare, MOST),
            lease_time=times[0],
            kinds=tuple(self._engine.registry.types),
            caps=tuple(cap for share in rooms for cap in share.caps),
            urgencies=urgencies if urgent else (),
            lease_times=times if len(set(times)) > 1 else (),
            in_order=urgent and not shared,
        )


def _priority(share: Share) -> int:
    return share.lane.priority
