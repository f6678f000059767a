"""What to claim next from a store: as much as there are slots, the most urgent first."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from leasedkeyq.errors import LeasedKeyQError
from leasedkeyq.lanes.command import CommandRegistry
from leasedkeyq.lanes.envelope import unseal
from leasedkeyq.lanes.errors import CommandPayloadError
from leasedkeyq.lanes.lane import Share, Slots
from leasedkeyq.lanes.outbox import MANY
from leasedkeyq.lanes.tracing import GuardedTracing
from leasedkeyq.stores.contract import Claim, Claimed, StoredItem
from leasedkeyq.stores.store import Store

DEADLINE = b'"deadline"'
"""A command without it in its envelope has no deadline of its own, and need not be read."""
MOST = 1000
"""Commands in one claim."""
TURNS = 3
"""Of the event loop, in which commands begin, end, and are sent to the store."""


class Claims(Protocol):
    """What a plan needs of its engine."""

    shares: list[Share]
    slots: Slots
    registry: CommandRegistry
    clock: Callable[[], float]
    _tracing: GuardedTracing | None


class ClaimPlan:
    """Claims for all lanes of an engine."""

    def __init__(self, engine: Claims, store: Store) -> None:
        self._engine = engine
        self._store = store
        self.coming: Counter[Share] = Counter()
        """What is being claimed at present, or was and has not been taken yet."""
        self._ahead: float | None = None
        """The clock of the store, less that of the event loop, once a claim has told it."""

    def has_room(self) -> bool:
        """Whether any lane may start another command."""
        return any(share.owned and self._may_start(share) for share in self._engine.shares)

    def _may_start(self, share: Share) -> bool:
        return self._engine.slots.may_start(share, self.coming[share])

    async def claim(self) -> list[tuple[Share, Claimed]] | None:
        """Claim what may start now, in the order in which it is to be started.

        None: it is left to another claim, which is under way, and to who comes after it.
        """
        rooms = self._rooms()
        if self.coming.total() and sum(rooms.values()) < MANY:
            return None
        if not rooms:
            return []
        spare = self._engine.slots.spare()
        if spare is None:
            groups = _by_lease_time([(share, room) for share, room in rooms.items()], None)
            self.coming.update(rooms)
            try:
                answers = await self._store.claim([self._request(group) for group in groups])
            finally:
                self.coming.subtract(rooms)
            claimed = [item for answer in answers for item in answer]
        else:
            claimed = await self._claim_within(rooms, spare)
        return self._in_order(claimed)

    async def hand_out(
        self, claimed: list[tuple[Share, Claimed]], take: Callable[[Share, Claimed], None]
    ) -> None:
        """Have what was claimed taken, and let it begin before more is asked for.

        If the store has nothing to do, half of it comes first: what ends at once is settled there,
        and more is claimed, while the other half begins here. From then on the two take turns.
        """
        later: list[tuple[Share, Claimed]] = []
        if len(claimed) >= 2 * MANY and self._store.is_idle():
            half = len(claimed) // 2
            claimed, later = claimed[:half], claimed[half:]
            self.coming.update(share for share, _ in later)
        try:
            for share, item in claimed:
                take(share, item)
            if later:
                for _ in range(TURNS):
                    await asyncio.sleep(0)
        finally:
            for share, item in later:
                self.coming[share] -= 1
                take(share, item)
        if claimed:
            await asyncio.sleep(0)

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
        return {
            share: min(share.most - share.active - self.coming[share], MOST)
            for share in self._engine.shares
            if share.owned and not share.lane.paused and self._may_start(share)
        }

    def _request(self, group: list[tuple[Share, int]], limit: int | None = None) -> Claim:
        total = sum(room for _, room in group)
        return Claim(
            tuple((share.queue, room) for share, room in group),
            min(total, MOST if limit is None else min(limit, MOST)),
            lease_time=group[0][0].lane.lease_time,
            kinds=tuple(self._engine.registry.types),
            caps=tuple(cap for share, _ in group for cap in share.caps),
        )

    async def _most_urgent_first(self, shares: list[Share]) -> list[Share]:
        """By effective priority, which the next command of each decides; then by its age."""
        heads = await self._store.heads([share.queue for share in shares])
        now = self._now()
        urgencies: dict[Share, tuple[int, float, int]] = {}
        for share, head in zip(shares, heads, strict=True):
            if head is not None:
                urgencies[share] = _urgency(share, head, now), head.put_at, head.id
        return sorted(urgencies, key=lambda share: urgencies[share])

    def _in_order(self, claimed: list[Claimed]) -> list[tuple[Share, Claimed]]:
        """What was claimed, by urgency; of the same urgency, as the store has given it."""
        if not claimed:
            return []
        shares = {share.queue: share for share in self._engine.shares}
        last = claimed[-1]
        if last.expires_at is not None:
            began = last.expires_at - shares[last.queue].lane.lease_time
            self._ahead = began - asyncio.get_running_loop().time()
        now = self._now()
        found = [(shares[item.queue], item) for item in claimed]
        if self._engine._tracing is not None:
            for lane_id, count in Counter(share.lane.id for share, _ in found).items():
                self._engine._tracing.claimed(lane_id, count)
        return sorted(found, key=lambda entry: _urgency(entry[0], entry[1], now))

    def _now(self) -> float:
        """The time of the store, or of this process until the store has told its own."""
        if self._ahead is None:
            return self._engine.clock()
        return asyncio.get_running_loop().time() + self._ahead


def _urgency(share: Share, item: Claimed | StoredItem, now: float) -> int:
    """The effective priority of a command, by the clock of the store.

    The deadline in the envelope is by the clock of whoever submitted it: only how far it was away
    counts.
    """
    lane = share.lane
    if not lane.boost.enabled or (lane.boost.deadline is None and DEADLINE not in item.value):
        return lane.priority
    try:
        envelope = unseal(item.value)
    except CommandPayloadError:
        return lane.priority
    deadline = None
    if envelope.deadline is not None:
        deadline = item.put_at + envelope.deadline - envelope.at
    return lane.effective_priority(item.put_at, deadline, now)


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
