"""What to claim next from a store: as much as there are slots, the most urgent first."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from leasedkeyq.errors import LeasedKeyQError
from leasedkeyq.lanes.command import CommandRegistry
from leasedkeyq.lanes.envelope import unseal
from leasedkeyq.lanes.errors import CommandPayloadError
from leasedkeyq.lanes.lane import Share, Slots
from leasedkeyq.lanes.tracing import GuardedTracing
from leasedkeyq.stores.contract import Claim, Claimed, StoredItem
from leasedkeyq.stores.store import Store

DEADLINE = b'"deadline"'
"""A command without it in its envelope has no deadline of its own, and need not be read."""
MOST = 1000
"""Commands in one claim."""


class Claims(Protocol):
    """What a plan needs of its engine."""

    shares: list[Share]
    slots: Slots
    registry: CommandRegistry
    clock: Callable[[], float]
    _tracing: GuardedTracing | None

    def postpone(self, share: Share, claimed: Claimed, delay: float) -> None:
        """Give a claimed command back for a while."""
        ...


class ClaimPlan:
    """Claims for all lanes of an engine.

    Attributes:
        refill: Seconds until a lane has a token again that had none at the last claim, or None.
    """

    def __init__(self, engine: Claims, store: Store) -> None:
        self._engine = engine
        self._store = store
        self.refill: float | None = None

    def has_room(self) -> bool:
        """Whether any lane may start another command."""
        slots = self._engine.slots
        return any(share.owned and slots.may_start(share) for share in self._engine.shares)

    async def claim(self) -> list[tuple[Share, Claimed]]:
        """Claim what may start now, in the order in which it is to be started."""
        rooms = self._rooms()
        if not rooms:
            return []
        spare = self._engine.slots.spare()
        if spare is None:
            groups = _by_lease_time([(share, room) for share, room in rooms.items()], None)
            answers = await self._store.claim([self._request(group) for group in groups])
            claimed = [item for answer in answers for item in answer]
        else:
            claimed = await self._claim_within(rooms, spare)
        return self._admit(claimed)

    async def _claim_within(self, rooms: dict[Share, int], spare: int) -> list[Claimed]:
        """Claim within the capacity: first the minima of lanes, then whatever is most urgent."""
        reserved = {
            share: min(room, share.reserved - share.active)
            for share, room in rooms.items()
            if share.active < share.reserved
        }
        requests = [self._request([(share, room)]) for share, room in reserved.items()]
        claimed: list[Claimed] = []
        if requests:
            for answer in await self._store.claim(requests):
                claimed += answer
            got: dict[str, int] = {}
            for item in claimed:
                got[item.queue] = got.get(item.queue, 0) + 1
            for share in list(rooms):
                rooms[share] -= got.get(share.queue, 0)
        if spare <= 0:
            return claimed
        try:
            ordered = await self._most_urgent_first([share for share in rooms if rooms[share]])
            for group in _by_lease_time([(share, rooms[share]) for share in ordered], spare):
                answer = (await self._store.claim([self._request(group, spare)]))[0]
                claimed += answer
                spare -= len(answer)
                if spare <= 0:
                    break
        except LeasedKeyQError:
            if not claimed:
                raise  # otherwise, what has been claimed is run first
        return claimed

    def _rooms(self) -> dict[Share, int]:
        """How many commands each part of a lane may start, if it had the manager for itself."""
        slots = self._engine.slots
        self.refill = None
        rooms: dict[Share, int] = {}
        for share in self._engine.shares:
            lane = share.lane
            if not share.owned or lane.paused or not slots.may_start(share):
                continue
            room = min(share.most - share.active, MOST)
            if lane.bucket is not None:
                now = asyncio.get_running_loop().time()
                tokens = lane.bucket.whole(now)
                if not tokens:
                    wait = lane.bucket.wait(now)
                    self.refill = wait if self.refill is None else min(self.refill, wait)
                    continue
                room = min(room, tokens)
            rooms[share] = room
        return rooms

    def _request(self, group: list[tuple[Share, int]], limit: int | None = None) -> Claim:
        total = sum(room for _, room in group)
        return Claim(
            tuple((share.queue, room) for share, room in group),
            min(total, MOST if limit is None else min(limit, MOST)),
            lease_time=group[0][0].lane.lease_time,
            kinds=tuple(self._engine.registry.types),
        )

    async def _most_urgent_first(self, shares: list[Share]) -> list[Share]:
        """By effective priority, which the next command of each decides; then by its age."""
        heads = await self._store.heads([share.queue for share in shares])
        now = self._engine.clock()
        urgencies: dict[Share, tuple[int, int]] = {}
        for share, head in zip(shares, heads, strict=True):
            if head is not None:
                urgencies[share] = _urgency(share, head, now), head.id
        return sorted(urgencies, key=lambda share: urgencies[share])

    def _admit(self, claimed: list[Claimed]) -> list[tuple[Share, Claimed]]:
        """What of it may start, by urgency; what has no token of its key goes back."""
        shares = {share.queue: share for share in self._engine.shares}
        clock = asyncio.get_running_loop().time()
        now = self._engine.clock()
        admitted: list[tuple[int, int, Share, Claimed]] = []
        for item in claimed:
            share = shares[item.queue]
            lane = share.lane
            bucket, buckets = lane.bucket, lane.key_buckets
            if bucket is not None and not bucket.take(clock):
                # Another partition of the lane has used the token.
                self._engine.postpone(share, item, bucket.wait(clock))
                continue
            if buckets is not None and not buckets.take(item.key, clock):
                self._engine.postpone(share, item, buckets.wait(item.key, clock))
                if bucket is not None:
                    bucket.give_back()
                continue
            admitted.append((_urgency(share, item, now), item.fence, share, item))
        if self._engine._tracing is not None and admitted:
            for lane_id in {share.lane.id for _, _, share, _ in admitted}:
                count = sum(share.lane.id == lane_id for _, _, share, _ in admitted)
                self._engine._tracing.claimed(lane_id, count)
        admitted.sort(key=lambda entry: entry[:2])
        return [(share, item) for _, _, share, item in admitted]


def _urgency(share: Share, item: Claimed | StoredItem, now: float) -> int:
    lane = share.lane
    if not lane.boost.enabled or (lane.boost.deadline is None and DEADLINE not in item.value):
        return lane.priority
    try:
        envelope = unseal(item.value)
    except CommandPayloadError:
        return lane.priority
    return lane.effective_priority(envelope.at, envelope.deadline, now)


def _by_lease_time(
    rooms: list[tuple[Share, int]], spare: int | None
) -> list[list[tuple[Share, int]]]:
    """Groups with one lease time; where slots are short, the order of the lanes is kept."""
    groups: list[list[tuple[Share, int]]] = []
    for entry in rooms:
        for group in groups if spare is None else groups[-1:]:
            if group[0][0].lane.lease_time == entry[0].lane.lease_time:
                group.append(entry)
                break
        else:
            groups.append([entry])
    return groups
