"""What to claim next from a store: as much as there are slots, the most urgent first."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from leasedkeyq.lanes.command import CommandRegistry
from leasedkeyq.lanes.job import Job
from leasedkeyq.lanes.lane import Share, Slots
from leasedkeyq.lanes.outbox import MANY
from leasedkeyq.lanes.tracing import GuardedTracing
from leasedkeyq.stores.contract import Claim, Claimed
from leasedkeyq.stores.store import Claimer, Store

MOST = 1000
"""Commands in one claim."""
TURNS = 3
"""Of the event loop, in which commands begin, end, and are sent to the store."""


class Claims(Protocol):
    """What a plan needs of its engine."""

    shares: list[Share]
    slots: Slots
    running: set[Job]
    registry: CommandRegistry
    _tracing: GuardedTracing | None


class ClaimPlan:
    """Claims for all lanes of an engine."""

    def __init__(self, engine: Claims, store: Store) -> None:
        self._engine = engine
        self._store = store
        self._claimer = Claimer(store)
        self.coming: Counter[Share] = Counter()
        """What is being claimed at present, or was and has not been taken yet."""

    def open(self, take: Callable[[Claimed], None]) -> None:
        """Have what a standing claim was given taken, from now on."""
        self._claimer = self._store.claimer(take)

    async def close(self) -> None:
        """Leave no claim standing."""
        await self._claimer.close()

    def abandon(self) -> None:
        """Take nothing more, at once."""
        self._claimer.abandon()

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
            await self._claimer.claim([], idle=False)  # What stands would be given something.
            return []
        requests = self._requests(rooms)
        self.coming.update(rooms)
        try:
            answers = await self._claimer.claim(requests, idle=not self._engine.running)
        finally:
            self.coming.subtract(rooms)
        shares = {share.queue: share for share in rooms}
        found = [(shares[item.queue], item) for answer in answers for item in answer]
        if found and self._engine._tracing is not None:
            for lane_id, count in Counter(share.lane.id for share, _ in found).items():
                self._engine._tracing.claimed(lane_id, count)
        return found

    async def hand_out(
        self, claimed: list[tuple[Share, Claimed]], take: Callable[[Share, Claimed], None]
    ) -> None:
        """Have what was claimed taken, and let it begin before more is asked for.

        If the store has nothing to do, half of it comes first: what ends at once is settled there,
        and more is claimed, while the other half begins here. From then on the two take turns.
        """
        later: list[tuple[Share, Claimed]] = []
        alone = not self.coming.total()
        if len(claimed) >= 2 * MANY and alone and self._store.is_idle():
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
            self.coming.subtract(share for share, _ in later)
            for share, item in later:
                take(share, item)
        if claimed:
            await asyncio.sleep(0)

    def _rooms(self) -> dict[Share, int]:
        """How many commands each part of a lane may start, if it had the manager for itself."""
        return {
            share: share.most - share.active - self.coming[share]
            for share in sorted(self._engine.shares, key=_priority)
            if share.owned and not share.lane.paused and self._may_start(share)
        }

    def _requests(self, rooms: dict[Share, int]) -> list[Claim]:
        """Within the capacity: first the minima of lanes, then whatever is most urgent.

        Without one, no lane takes anything from another.
        """
        spare = self._engine.slots.spare()
        if spare is None:
            return [self._request(rooms)]
        reserved = {
            share: min(room, share.reserved - share.active)
            for share, room in rooms.items()
            if share.active < share.reserved
        }
        requests = [self._request(reserved)] if reserved else []
        left = {share: room - reserved.get(share, 0) for share, room in rooms.items()}
        left = {share: room for share, room in left.items() if room > 0}
        if spare > 0 and left:
            requests.append(self._request(left, spare))
        return requests

    def _request(self, rooms: dict[Share, int], spare: int | None = None) -> Claim:
        """A claim over parts of lanes; with `spare` slots, which they have to share."""
        times = tuple([share.lane.lease_time for share in rooms])
        shared = spare is not None and len(rooms) > 1
        return Claim(
            tuple((share.queue, room) for share, room in rooms.items()),
            min(sum(rooms.values()), MOST if spare is None else spare, MOST),
            lease_time=times[0],
            kinds=tuple(self._engine.registry.types),
            caps=tuple(cap for share in rooms for cap in share.caps),
            urgencies=tuple([share.urgency for share in rooms]) if shared else (),
            lease_times=times if len(set(times)) > 1 else (),
        )


def _priority(share: Share) -> int:
    return share.lane.priority
