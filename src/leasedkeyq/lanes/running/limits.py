"""The limits of a lane beyond its slots: for all workers of a store, and in memory."""

from collections.abc import Callable
from math import inf

from leasedkeyq.lanes.policies.rate_limit import RateLimitConfig
from leasedkeyq.lanes.running.lane import Lane, Partition, limited
from leasedkeyq.lanes.running.rate_limiter import RateLimiter
from leasedkeyq.model.caps import matcher
from leasedkeyq.model.requests import Cap


def caps(partition: Partition) -> tuple[Cap, ...]:
    """The caps of every claim of a partition.

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
    """The key limits of a lane in memory.

    Args:
        lane: The lane.
    """

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._limits = [
            (
                matcher(limit.pattern),
                inf if limit.max_concurrency is None else limit.max_concurrency,
                limited(limit.rate_limit, RateLimiter),
            )
            for limit in lane.config.key_limits
        ]

    def room(self, now: float) -> "KeyRoom | None":
        """Which keys have room now; None: all of them."""
        full: list[tuple[Callable[[str], bool], float]] = []
        for matches, most, limiter in self._limits:
            if most < inf and self._running(matches) >= most:
                full.append((matches, inf))  # until a command has ended
            elif limiter is not None and (moment := limiter.free_at(now)) > now:
                full.append((matches, moment))
        return KeyRoom(full) if full else None

    def _running(self, matches: Callable[[str], bool]) -> int:
        return sum(
            sum(map(matches, partition.state.in_flight)) for partition in self._lane.partitions
        )

    def take(self, key: str, now: float) -> None:
        """A command of `key` starts."""
        for matches, _, limiter in self._limits:
            if limiter is not None and matches(key):
                limiter.take(now)


class KeyRoom:
    """Which keys have room, for `leasedkeyq.model.urgency.in_line`.

    Args:
        full: The limits without room: whose keys, and until when.

    Attributes:
        next_at: When one of the keys that were refused has room.
    """

    closed = False

    def __init__(self, full: list[tuple[Callable[[str], bool], float]]) -> None:
        self._full = full
        self.next_at = inf

    def fits(self, key: str) -> bool:
        """Whether a key has room."""
        moments = [moment for matches, moment in self._full if matches(key)]
        if moments:
            self.next_at = min(self.next_at, max(moments))
        return not moments

    def take(self, key: str) -> None:
        """Nothing to do: only one command at a time is asked for."""
