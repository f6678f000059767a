"""`RateLimitConfig`: how many commands of a lane, or of a key, may start in a time."""

import sys
from dataclasses import dataclass
from math import ceil

from leasedkeyq import checks


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
