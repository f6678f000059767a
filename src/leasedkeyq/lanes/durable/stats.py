"""How things stand in the lanes of a store, over all its processes."""

from collections.abc import Callable, Collection, Mapping

import msgspec

from leasedkeyq.lanes.running.lane import Lane
from leasedkeyq.lanes.running.stats import lane_stats, queue_stats
from leasedkeyq.model.requests import Counts
from leasedkeyq.stores.store import Store
from leasedkeyq.telemetry.stats import LaneStats, QueueStats


async def store_stats(
    store: Store, lanes: Mapping[str, Lane], now: float, prefetched: Callable[[Lane], int]
) -> QueueStats:
    """The numbers of all lanes.

    Args:
        store: Where the commands are.
        lanes: The lanes by name.
        now: Unix time.
        prefetched: How many commands of a lane are leased here and wait for a slot.
    """
    counts = await lane_counts(store, lanes.values())
    heads = await store.heads(_queues(lanes.values()))
    ages = {head.queue: max(0.0, now - head.put_at) for head in heads if head is not None}
    numbers: dict[str, LaneStats] = {}
    for lane, count in counts.items():
        old = [ages[partition.queue] for partition in lane.partitions if partition.queue in ages]
        waiting = min(prefetched(lane), count.in_flight)
        pending = count.available + waiting
        found = lane_stats(lane, pending, count.scheduled, count.held, max(old, default=None))
        numbers[lane.id] = msgspec.structs.replace(found, active=count.in_flight - waiting)
    return queue_stats(numbers, sum(count.buried for count in counts.values()))


async def unfinished(store: Store, lanes: Mapping[str, Lane]) -> dict[str, int]:
    """How many commands each lane has left, where it has any."""
    counts = await lane_counts(store, lanes.values())
    left = {
        lane.id: count.available + count.scheduled + count.in_flight
        for lane, count in counts.items()
    }
    return {lane: number for lane, number in left.items() if number}


async def lane_counts(store: Store, lanes: Collection[Lane]) -> dict[Lane, Counts]:
    """How many commands of each lane, all its partitions together, are in each state."""
    counts = await store.count(_queues(lanes))
    nothing = Counts()
    found: dict[Lane, Counts] = {}
    for lane in lanes:
        mine = [counts.get(partition.queue, nothing) for partition in lane.partitions]
        found[lane] = Counts(
            available=sum(count.available for count in mine),
            scheduled=sum(count.scheduled for count in mine),
            in_flight=sum(count.in_flight for count in mine),
            buried=sum(count.buried for count in mine),
            held=sum(count.held for count in mine),
        )
    return found


def _queues(lanes: Collection[Lane]) -> list[str]:
    return [partition.queue for lane in lanes for partition in lane.partitions]
