"""Rate limits of lanes in memory: the token buckets of the model, and when they have a token."""

from leasedkeyq import checks
from leasedkeyq.lanes.policies.rate_limit import RateLimitConfig
from leasedkeyq.model.caps import Bucket


class RateLimiter:
    """A token bucket. It starts full; it has no clock, and is told times that do not run back.

    Args:
        config: Its rate and its burst.
    """

    __slots__ = ("_bucket", "_burst", "_rate")

    def __init__(self, config: RateLimitConfig) -> None:
        assert config.rate is not None
        self._rate = config.rate
        self._burst = float(config.burst)
        self._bucket: Bucket | None = None

    def free_at(self, now: float) -> float:
        """When there is a token: `now`, or later."""
        bucket = self._bucket
        return now if bucket is None else max(now, bucket.next_at)

    def take(self, now: float) -> None:
        """Take a token, which there is."""
        self._bucket = Bucket.after(self._bucket, self._rate, self._burst, now)


class KeyRateLimiter:
    """A token bucket for each key, for at most `most` keys.

    A key that is new has a full bucket, so a bucket that is full again is forgotten without harm.
    When there are too many, the full ones go first, then those that are nearest to it; the limit
    of such a key starts anew.
    """

    __slots__ = ("_buckets", "_burst", "_most", "_rate")

    def __init__(self, config: RateLimitConfig, most: int = 10_000) -> None:
        assert config.rate is not None
        self._rate = config.rate
        self._burst = float(config.burst)
        self._most = checks.whole("most", most, 1)
        self._buckets: dict[str, Bucket] = {}

    def __len__(self) -> int:
        return len(self._buckets)

    def free_at(self, key: str, now: float) -> float:
        """When there is a token of `key`: `now`, or later."""
        bucket = self._buckets.get(key)
        return now if bucket is None else max(now, bucket.next_at)

    def take(self, key: str, now: float) -> None:
        """Take a token of `key`, which there is."""
        before = self._buckets.get(key)
        if before is None and len(self._buckets) >= self._most:
            self._forget(now)
        self._buckets[key] = Bucket.after(before, self._rate, self._burst, now)

    def _forget(self, now: float) -> None:
        """Make room: all full buckets go, and at least a tenth, so that this is rarely called."""
        least = max(len(self._buckets) // 10, 1)
        fullest_first = sorted(self._buckets.items(), key=lambda named: named[1].full_at)
        for place, (key, bucket) in enumerate(fullest_first):
            if place >= least and bucket.full_at > now:
                break
            del self._buckets[key]
