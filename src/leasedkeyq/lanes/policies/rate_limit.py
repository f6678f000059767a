"""Rate limits: a token bucket for a lane, or one for each key."""

import sys
from collections.abc import Hashable
from dataclasses import dataclass
from math import ceil, inf

from leasedkeyq import checks

EARLY = 1e-6
"""Seconds by which a token may be taken early.

Timers fire a little early, and sums of floating point numbers are a little off. Without this, a
scheduler that waits for a token could find it missing by a hair, over and over.
"""


@dataclass(frozen=True)
class RateLimitConfig:
    """How many commands may start in a time.

    In any `t` seconds at most ``burst + rate * t`` commands start. The default burst is what comes
    in one second, and at least 1. So ``per_second(10)`` may start 10 commands at once, and
    ``per_minute(60)`` starts them one by one, a second apart; ``per_minute(60, burst=60)`` may
    start 60 at once. ``burst=1`` always spaces the starts evenly.

    Args:
        rate: Commands a second, or None for no limit.
        burst: How many may start at once, after a quiet time.
    """

    rate: float | None
    burst: int

    def __post_init__(self) -> None:
        checks.whole("burst", self.burst, 1)
        if self.rate is not None:
            object.__setattr__(self, "rate", checks.number("rate", self.rate, above=0))

    @classmethod
    def per_second(cls, count: float, burst: int | None = None) -> "RateLimitConfig":
        """`count` commands a second."""
        return cls._per(count, 1, burst)

    @classmethod
    def per_minute(cls, count: float, burst: int | None = None) -> "RateLimitConfig":
        """`count` commands a minute."""
        return cls._per(count, 60, burst)

    @classmethod
    def per_hour(cls, count: float, burst: int | None = None) -> "RateLimitConfig":
        """`count` commands an hour."""
        return cls._per(count, 3600, burst)

    @classmethod
    def unlimited(cls) -> "RateLimitConfig":
        """No limit."""
        return cls(None, sys.maxsize)

    @classmethod
    def _per(cls, count: float, seconds: int, burst: int | None) -> "RateLimitConfig":
        rate = checks.number("count", count, above=0) / seconds
        return cls(rate, ceil(rate) if burst is None else burst)


class TokenBucket:
    """A bucket that holds at most `burst` tokens and is refilled at `rate`. It starts full.

    It has no clock: every call is told the time. A clock that runs back adds no tokens and takes
    none away.
    """

    __slots__ = ("_burst", "_early", "_rate", "_seen", "_tokens")

    def __init__(self, config: RateLimitConfig) -> None:
        self._rate = config.rate or 0.0
        self._burst = inf if config.rate is None else float(config.burst)
        self._tokens = self._burst
        self._early = min(self._rate * EARLY, 0.5)
        self._seen = -inf

    def take(self, now: float, count: int = 1) -> bool:
        """Take `count` tokens, or none if there are fewer."""
        # `_refill`, written out: this is called for every command.
        tokens = self._tokens
        if tokens < self._burst and now > self._seen:
            tokens += (now - self._seen) * self._rate
            if tokens > self._burst:
                tokens = self._burst
        self._seen = now
        taken = tokens + self._early >= count
        self._tokens = tokens - count if taken else tokens
        return taken

    def give_back(self, count: int = 1) -> None:
        """Put tokens back that were taken and not used."""
        self._tokens = min(self._tokens + count, self._burst)

    def whole(self, now: float) -> int:
        """How many tokens there are now."""
        tokens = min(self._refill(now) + self._early, self._burst)
        return sys.maxsize if tokens == inf else max(int(tokens), 0)

    def wait(self, now: float) -> float:
        """Seconds until there is a token; 0 if there is one. A take is possible then."""
        tokens = self._refill(now)
        return 0.0 if tokens + self._early >= 1 else (1 - tokens) / self._rate

    def _refill(self, now: float) -> float:
        tokens = self._tokens
        if tokens < self._burst and now > self._seen:
            tokens += (now - self._seen) * self._rate
            if tokens > self._burst:
                tokens = self._burst
            self._tokens = tokens
        self._seen = now
        return tokens


class KeyedBuckets:
    """A token bucket for each key, for at most `most` keys.

    A key that is new has a full bucket, so a bucket that is full again is forgotten without harm.
    When there are too many, the full ones go first, then those that are nearest to it; the limit
    of such a key starts anew.
    """

    __slots__ = ("_buckets", "_config", "_most")

    def __init__(self, config: RateLimitConfig, most: int = 10_000) -> None:
        self._config = config
        self._most = checks.whole("most", most, 1)
        self._buckets: dict[Hashable, TokenBucket] = {}

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, key: Hashable, now: float, count: int = 1) -> bool:
        """Take `count` tokens of `key`, or none if there are fewer."""
        bucket = self._buckets.get(key)
        if bucket is None:
            if self._config.rate is None:
                return True
            if len(self._buckets) >= self._most:
                self._forget(now)
            bucket = self._buckets[key] = TokenBucket(self._config)
        return bucket.take(now, count)

    def give_back(self, key: Hashable, count: int = 1) -> None:
        """Put tokens of `key` back that were taken and not used."""
        bucket = self._buckets.get(key)
        if bucket is not None:
            bucket.give_back(count)

    def wait(self, key: Hashable, now: float) -> float:
        """Seconds until there is a token of `key`; 0 if there is one."""
        bucket = self._buckets.get(key)
        return 0.0 if bucket is None else bucket.wait(now)

    def _forget(self, now: float) -> None:
        """Make room: all full buckets go, and at least a tenth, so that this is rarely called."""
        full = self._config.burst
        levels = {key: bucket._refill(now) for key, bucket in self._buckets.items()}
        least = max(len(levels) // 10, 1)
        fullest_first = sorted(levels.items(), key=lambda level: level[1], reverse=True)
        for place, (key, level) in enumerate(fullest_first):
            if place >= least and level < full:
                break
            del self._buckets[key]
