"""`ClaimPlan`: which commands a worker claims next, as many as it has room for."""

import asyncio
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from functools import partial

from leasedkeyq.lanes.durable.outbox import MANY, Outbox
from leasedkeyq.lanes.durable.prefetch import Prefetch
from leasedkeyq.lanes.running.job import Job
from leasedkeyq.lanes.running.lane import Lane, Partition, Slots
from leasedkeyq.lanes.running.tracing import GuardedTracing
from leasedkeyq.model.requests import Answer, Claim, Claimed, Counts
from leasedkeyq.stores.store import Claimer, Store
from leasedkeyq.stores.system.holder import this_process
from leasedkeyq.stores.take_back import take_back

NONE = Counts()
MOST = 1000
"""Commands in one claim."""
SHORTEST_TRY = 0.001
LONGEST_TRY = 1.0
"""Seconds between claims in vain of a lane with a rate limit; more where its tokens are rarer."""


class ClaimPlan:
    """Claims for all lanes of an engine.

    Args:
        store: Where it claims.
        partitions: Those of all lanes. The list may grow.
        slots: How many commands may run.
        running: The jobs that run.
        types: Tells the types of commands that are known.
        prefetch: The jobs that were claimed and wait for a slot.
        outbox: Sends the claims that are taken back.
        tracing: Told of claims.
        wake: Called when a command may be able to start.
    """

    def __init__(
        self,
        store: Store,
        *,
        partitions: list[Partition],
        slots: Slots,
        running: set[Job],
        types: Callable[[], Iterable[str]],
        prefetch: Prefetch,
        outbox: Outbox,
        tracing: GuardedTracing | None,
        wake: Callable[[], None],
    ) -> None:
        self._store = store
        self._partitions = partitions
        self._slots = slots
        self._running = running
        self._types = types
        self._prefetch = prefetch
        self._outbox = outbox
        self._tracing = tracing
        self._wake = wake
        self._claimer = Claimer(store)
        self.coming: Counter[Partition] = Counter()
        """How many commands are being claimed, or were claimed and have no job yet."""
        self._going: Counter[Partition] = Counter()
        """How many claims are being taken back."""
        self._gone: Counter[Partition] = Counter()
        """How often a claim was taken back."""
        self._turns: Counter[Lane] = Counter()
        """How often the partitions of a lane were asked: each time another one comes first."""
        self._asked: set[Partition] = set()
        """Partitions that were asked, and had nothing, since any claim has found something.

        Or since something has changed: a partition may have a command that it did not have then.
        """
        self._changes = 0
        """How often `changed` was called."""
        self._empty: set[Partition] = set()
        """Partitions that the last claim has left with nothing to lease."""
        self.more = False
        """Whether another claim may find more at once, as the last one does not tell."""
        self.left_out = False
        """Whether the last claim has found nothing, and has not asked all partitions of a lane."""
        self._vain = 0
        """Tries in a row that have found nothing, though commands were waiting."""

    def open(self, take: Callable[[Claimed], None]) -> None:
        """Have `take` called with items that a parked claim is given, from now on."""
        self._claimer = self._store.claimer(take)

    async def close(self) -> None:
        """Leave no claim parked."""
        await self._claimer.close()

    def abandon(self) -> None:
        """Take no more items, at once."""
        self._claimer.abandon()

    def take_back(
        self, partition: Partition, item: Claimed, told: Callable[[Answer], None] | None = None
    ) -> None:
        """Take back the claim of an item; `told` is passed the answer of the store.

        Until it is back, nothing of its partition is claimed, nor begun of a claim that is under
        way: that would be what comes after it.
        """
        self._going[partition] += 1
        self._gone[partition] += 1
        [change] = take_back([item])
        self._outbox.add(change, partial(self._is_back, partition, told))

    def _is_back(
        self, partition: Partition, told: Callable[[Answer], None] | None, answer: Answer
    ) -> None:
        self._going[partition] -= 1
        if told is not None:
            told(answer)
        if not self._going[partition]:
            self._wake()

    def changed(self) -> None:
        """Something may be there to lease that was not: ask all partitions of a lane once more.

        Also those that the claim under way asks. The store may have looked before the change.
        """
        self._changes += 1
        self._asked.clear()

    def has_room(self) -> bool:
        """Whether any lane has room for enough to be worth a claim."""
        return any(
            self._room(partition) > 0 and self.wants(partition) for partition in self._partitions
        )

    def wants(self, partition: Partition) -> bool:
        """Whether the room of a partition of a lane is worth a claim.

        Where commands are prefetched, that takes half of what may be leased: so claims stay
        large. But no slot waits for that.
        """
        line = self._prefetch.lines.get(partition)
        if line is None or not line.most:
            return True
        lane = partition.lane
        active, most = lane.active, lane.most
        coming = self._coming_of(lane)
        waiting = self._prefetch.of_lane(lane)
        if 2 * (active + waiting + coming) <= most + line.most:
            return True
        return active < most and not waiting and not coming

    def _room(self, partition: Partition) -> int:
        """How many more commands a partition may lease, if it had the manager for itself."""
        lane = partition.lane
        if not partition.owned or lane.paused or self._going.get(partition):
            return 0
        coming = self._coming_of(lane)
        if coming and lane.most == 1:
            return 0  # Of two answers, the second may come first.
        line = self._prefetch.lines.get(partition)
        if line is not None and line.most:
            waiting = self._prefetch.of_lane(lane)
            return lane.most + line.most - lane.active - waiting - coming
        if self._slots.may_start(partition, coming):
            return lane.most - lane.active - coming
        return 0

    def _coming_of(self, lane: Lane) -> int:
        """How much is being claimed of all partitions of a lane."""
        coming = self.coming
        if not lane.linked:
            return coming.get(lane.partitions[0], 0)
        return sum([coming[partition] for partition in lane.partitions])

    async def claim(self) -> list[tuple[Partition, Claimed]] | None:
        """Claim what there is room for, in the order in which it is to be started.

        None: it is left to another claim, which is under way, and to the one after it.
        """
        rooms = self._rooms()
        if self.coming.total() and sum(rooms.values()) < MANY:
            return None
        if rooms:
            self._prefetch.decide(self._running)
            rooms = self._rooms()
        if not rooms:
            await self._claimer.claim([], idle=False)  # A parked claim would be given an item.
            return []
        requests = self._requests(rooms)
        self.coming.update(rooms)
        gone = {partition: self._gone[partition] for partition in rooms}
        changes = self._changes
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            answers = await self._claimer.claim(requests, idle=not self._running)
        finally:
            self.coming.subtract(rooms)
        trip = loop.time() - began
        partitions = {partition.queue: partition for partition in rooms}
        found: list[tuple[Partition, Claimed]] = []
        for item in (item for answer in answers for item in answer):
            partition = partitions[item.queue]
            # After a trip as long as its lease, the lease has ended.
            if self._gone[partition] == gone[partition] and trip < partition.lane.lease_time:
                found.append((partition, item))
            else:
                self.take_back(partition, item)
        counts = Counter(partition for partition, _ in found)
        self._note_asked(rooms, requests, counts, current=changes == self._changes)
        if found:
            self._vain = 0
            self._prefetch.travelled(trip)
        if found and self._tracing is not None:
            for lane_id, count in Counter(partition.lane.id for partition, _ in found).items():
                self._tracing.claimed(lane_id, count)
        return found

    @contextmanager
    def not_taken_yet(self, claimed: Sequence[tuple[Partition, Claimed]]) -> Generator[None]:
        """Within this, claimed items take room though they have no job yet."""
        partitions = Counter(partition for partition, _ in claimed)
        self.coming.update(partitions)
        try:
            yield
        finally:
            self.coming.subtract(partitions)

    def _note_asked(
        self,
        rooms: dict[Partition, int],
        requests: list[Claim],
        found: Counter[Partition],
        *,
        current: bool,
    ) -> None:
        """See which partitions have room and were not asked yet, and which are empty.

        What a claim has not found is `current` if nothing has changed while it was under way.
        """
        queues = {queue for request in requests for queue, _ in request.queues}
        asked = {partition for partition in rooms if partition.queue in queues}
        if current:
            self._asked |= asked
        self.left_out = bool(asked) and not found and not self._asked.issuperset(rooms)
        if not self.left_out:
            self._asked.clear()
        self._empty = set() if self.left_out else {p for p in asked if found[p] < rooms[p]}
        # A partition that shares its room with others may have been left out, and one with caps
        # may have room when a token comes.
        alone = self._slots.capacity is None and len(requests) == 1
        if found and not (alone and not any(p.caps or p.lane.linked for p in asked)):
            self._empty.clear()
        self.more = self.left_out or any(p not in self._empty for p in found)

    def asks(self, partition: Partition) -> bool:
        """Whether the claim under way asks a partition, or the last one has left it empty.

        Then a command of it that ends is no reason for another claim, which would only have more
        room. But where limits count what runs, there may be something now; and where claims can be
        parked, a worker that has become idle parks one.
        """
        if partition.caps or self._slots.capacity is not None or self._claimer.parks:
            return False
        return partition in self._empty or self.coming.get(partition, 0) > 0

    def may_overlap(self, partition: Partition) -> bool:
        """Whether there may be room for a second claim beside the one that is under way."""
        return self._room(partition) * len(self._partitions) >= MANY

    async def next_try(self, due: float) -> float:
        """After a claim in vain: in how many seconds to claim again.

        `due` is when the store says that something comes due. That may be too late for a lane with
        a rate limit: its token may have come, or another worker may have taken it, after the claim
        and before the store was asked. So as long as its commands wait, claim again after the time
        in which a token comes; then after twice that time, and so on, up to a second.
        """
        rates = {
            partition.queue: max(rates)
            for partition in self._partitions
            if (rates := [cap.rate for cap in partition.caps if cap.rate is not None])
            if self._room(partition) > 0
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

    def _rooms(self) -> dict[Partition, int]:
        """The room of each partition of a lane, if it is enough for any of them."""
        if not self.has_room():
            return {}
        rooms = {
            partition: self._room(partition)
            for partition in sorted(self._partitions, key=_priority)
        }
        return {partition: room for partition, room in rooms.items() if room > 0}

    def _requests(self, rooms: dict[Partition, int]) -> list[Claim]:
        """Within the capacity: first the minima of lanes, then whatever is most urgent.

        Without one, no lane takes anything from another.
        """
        spare = self._slots.spare()
        if spare is None:
            return self._requests_by_lane(rooms)
        reserved = {
            partition: min(room, partition.lane.reserved - partition.lane.active)
            for partition, room in rooms.items()
            if partition.lane.active < partition.lane.reserved
        }
        left = {partition: room - reserved.get(partition, 0) for partition, room in rooms.items()}
        left = self._divided({partition: room for partition, room in left.items() if room > 0})
        requests = self._requests_by_lane(reserved) if reserved else []
        if spare > 0 and left:
            requests.append(self._request(left, spare))
        return requests

    def _requests_by_lane(self, rooms: dict[Partition, int]) -> list[Claim]:
        """One claim for all lanes, and one for each lane whose partitions share its room.

        The partitions come first by turns, or the last one would get what the others leave.
        """
        by_lane: dict[Lane, list[Partition]] = {}
        for partition in rooms:
            by_lane.setdefault(partition.lane, []).append(partition)
        whole = {
            partitions[0]: rooms[partitions[0]]
            for partitions in by_lane.values()
            if len(partitions) == 1
        }
        requests = [self._request(whole)] if whole else []
        for lane, partitions in by_lane.items():
            if len(partitions) > 1:
                some = {
                    partition: rooms[partition] for partition in self._by_turns(lane, partitions)
                }
                requests.append(self._request(some, most=max(some.values())))
        return requests

    def _by_turns(self, lane: Lane, partitions: list[Partition]) -> list[Partition]:
        """Partitions of a lane; another one is the first each time."""
        self._turns[lane] += 1
        first = self._turns[lane] % len(partitions)
        return partitions[first:] + partitions[:first]

    def _divided(self, rooms: dict[Partition, int]) -> dict[Partition, int]:
        """The same with the room of each lane divided among its partitions.

        Partitions that get none are left out, and asked by the claims that follow.
        """
        by_lane: dict[Lane, list[Partition]] = {}
        for partition in rooms:
            by_lane.setdefault(partition.lane, []).append(partition)
        divided: dict[Partition, int] = {}
        for lane, partitions in by_lane.items():
            fresh = [
                partition for partition in partitions if partition not in self._asked
            ] or partitions
            room = max(rooms[partition] for partition in partitions)
            each, more = divmod(room, len(fresh))
            for number, partition in enumerate(self._by_turns(lane, fresh)):
                divided[partition] = each + (number < more)
        return {partition: room for partition, room in divided.items() if room}

    def _request(
        self, rooms: dict[Partition, int], spare: int | None = None, *, most: int = MOST
    ) -> Claim:
        """A claim over partitions of lanes; with `spare` slots, which they have to share."""
        times = tuple([partition.lane.lease_time for partition in rooms])
        shared = spare is not None and len(rooms) > 1
        # A deadline lifts a command within its lane, whether its lane has to share or not.
        urgencies = tuple([partition.urgency for partition in rooms])
        urgent = shared or any(urgency.lifts for urgency in urgencies)
        return Claim(
            tuple((partition.queue, room) for partition, room in rooms.items()),
            min(sum(rooms.values()), most if spare is None else spare, MOST),
            lease_time=times[0],
            kinds=tuple(self._types()),
            caps=tuple(cap for partition in rooms for cap in partition.caps),
            urgencies=urgencies if urgent else (),
            lease_times=times if len(set(times)) > 1 else (),
            in_order=urgent and not shared,
            holder=this_process(),
        )


def _priority(partition: Partition) -> int:
    return partition.lane.priority
