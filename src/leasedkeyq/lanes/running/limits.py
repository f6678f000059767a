"""The limits of a lane beyond its slots: for all workers of a store, and in memory."""

from collections.abc import Callable
from math import inf

from leasedkeyq.lanes.policies.rate_limit import RateLimitConfig, TokenBucket
from leasedkeyq.lanes.running.lane import Lane, Partition
from leasedkeyq.model.caps import matcher
from leasedkeyq.model.requests import Cap


def caps(partition: Partition) -> tuple[Cap, ...]:
    """What every claim of a partition of a lane is held to.

    The partitions of a lane do not know of each other, so each has its fraction of the limit.
    """
    config = partition.lane.config
    queue = partition.queue
    found: list[Cap] = []
    rate, burst = _part(partition, config.rate_limit)
    most = _slots(partition, config.global_concurrency)
    if rate is not None or most is not None:
        found.append(Cap(queue, in_flight=most, rate=rate, burst=burst))
    for limit in config.key_limits:
        rate, burst = _part(partition, limit.rate_limit)
        most = _slots(partition, limit.max_concurrency)
        if rate is not None or most is not None:
            found.append(Cap(queue, limit.pattern, most, rate, burst))
    each = config.key_rate_limit
    if each is not None and each.rate is not None:
        found.append(Cap(queue, rate=each.rate, burst=float(each.burst), each=True))
    return tuple(found)


def _part(partition: Partition, limit: RateLimitConfig | None) -> tuple[float | None, float]:
    if limit is None or limit.rate is None:
        return None, 1.0
    parts = len(partition.lane.partitions)
    return limit.rate / parts, max(1.0, limit.burst / parts)


def _slots(partition: Partition, most: int | None) -> int | None:
    if most is None:
        return None
    each, more = divmod(most, len(partition.lane.partitions))
    return each + (partition.index < more)


class KeyLimits:
    """The key limits of a lane in memory."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._limits = [
            (
                matcher(limit.pattern),
                inf if limit.max_concurrency is None else limit.max_concurrency,
                TokenBucket(limit.rate_limit or RateLimitConfig.unlimited()),
            )
            for limit in lane.config.key_limits
        ]

    def without_room(self, now: float) -> list[tuple[Callable[[str], bool], float]]:
        """Limits that have no room: whose keys, and for how many seconds.

        It is for an infinity where a command has to end first.
        """
        found: list[tuple[Callable[[str], bool], float]] = []
        for matches, most, bucket in self._limits:
            full = most < inf and self._running(matches) >= most
            wait = inf if full else bucket.wait(now)
            if wait:
                found.append((matches, wait))
        return found

    def _running(self, matches: Callable[[str], bool]) -> int:
        return sum(
            sum(map(matches, partition.state.in_flight)) for partition in self._lane.partitions
        )

    def take(self, key: str, now: float) -> None:
        """A command of `key` starts."""
        for matches, _, bucket in self._limits:
            if matches(key):
                bucket.take(now)
