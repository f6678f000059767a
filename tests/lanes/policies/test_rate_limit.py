"""Rate limits: how many, and when."""

import sys
from math import inf, nan
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leasedkeyq.lanes.policies.rate_limit import RateLimitConfig
from leasedkeyq.lanes.running.rate_limiter import KeyRateLimiter, RateLimiter

# The machine may be busy.
busy = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

RATES = st.floats(1e-3, 1e5)
MOMENTS = st.floats(0, 2e9)


def taken(limiter: RateLimiter, now: float) -> bool:
    """Take a token, if there is one."""
    there = limiter.free_at(now) <= now
    if there:
        limiter.take(now)
    return there


def drained(config: RateLimitConfig, now: float = 0.0) -> RateLimiter:
    limiter = RateLimiter(config)
    while taken(limiter, now):
        pass
    return limiter


class TestConfig:
    @pytest.mark.parametrize(
        "config, rate, burst",
        [
            (RateLimitConfig.per_second(10), 10, 10),
            (RateLimitConfig.per_second(0.5), 0.5, 1),
            (RateLimitConfig.per_second(2.5), 2.5, 3),
            (RateLimitConfig.per_second(10, burst=1), 10, 1),
            (RateLimitConfig.per_minute(60), 1, 1),
            (RateLimitConfig.per_minute(600), 10, 10),
            (RateLimitConfig.per_minute(60, burst=60), 1, 60),
            (RateLimitConfig.per_hour(3600), 1, 1),
            (RateLimitConfig.per_hour(36, 5), 0.01, 5),
            (RateLimitConfig.unlimited(), None, sys.maxsize),
            (RateLimitConfig(3, 7), 3, 7),
        ],
    )
    def test_rate_and_burst(self, config: RateLimitConfig, rate: float, burst: int) -> None:
        assert (config.rate, config.burst) == (rate, burst)

    @pytest.mark.parametrize("count", [0, -1, nan, inf])
    def test_a_rate_is_above_zero_and_finite(self, count: float) -> None:
        for make in (
            RateLimitConfig.per_second,
            RateLimitConfig.per_minute,
            RateLimitConfig.per_hour,
        ):
            with pytest.raises(ValueError, match="count"):
                make(count)
        with pytest.raises(ValueError, match="rate"):
            RateLimitConfig(count, 1)

    @pytest.mark.parametrize("burst, error", [(0, ValueError), (1.5, TypeError)])
    def test_a_burst_is_one_or_more(self, burst: Any, error: type[Exception]) -> None:
        with pytest.raises(error, match="burst"):
            RateLimitConfig.per_second(1, burst)

    def test_a_rate_is_a_number(self) -> None:
        count: Any = "10"
        with pytest.raises(TypeError, match="count"):
            RateLimitConfig.per_second(count)


class TestRateLimiter:
    def test_it_starts_full(self) -> None:
        limiter = RateLimiter(RateLimitConfig.per_second(3))
        assert [taken(limiter, 100) for _ in range(4)] == [True, True, True, False]

    def test_it_fills_at_its_rate_up_to_the_burst(self) -> None:
        for now, tokens in ((0, 0), (0.4, 0), (0.5, 1), (1, 2), (1.5, 3), (99, 3)):
            limiter = drained(RateLimitConfig.per_second(2, burst=3))
            assert sum(taken(limiter, now) for _ in range(9)) == tokens

    def test_looking_takes_nothing(self) -> None:
        limiter = RateLimiter(RateLimitConfig.per_second(1))
        for _ in range(5):
            assert limiter.free_at(0) == 0
        assert taken(limiter, 0)
        for _ in range(5):
            assert limiter.free_at(0.5) == 1

    @busy
    @given(RATES, MOMENTS, st.integers(1, 50))
    def test_when_it_says_so_there_is_a_token(self, rate: float, now: float, count: int) -> None:
        """Also where a moment is a large number, and the sum is rounded."""
        limiter = RateLimiter(RateLimitConfig(rate, 1))
        for _ in range(count):
            assert taken(limiter, now)
            moment = limiter.free_at(now)
            assert moment > now
            now = moment

    @busy
    @given(RATES, st.integers(1, 1000), st.lists(st.floats(0, 100), max_size=100))
    def test_never_more_than_burst_plus_rate(
        self, rate: float, burst: int, steps: list[float]
    ) -> None:
        limiter = RateLimiter(RateLimitConfig(rate, burst))
        now, tokens = 0.0, 0
        for step in (0.0, *steps):
            now += step
            count = 0
            while taken(limiter, now):
                count += 1
            assert 0 <= count <= burst
            tokens += count
            assert tokens <= burst + rate * (now + 1e-5) + 1e-6

    def test_nothing_is_lost_in_small_steps(self) -> None:
        limiter = drained(RateLimitConfig.per_second(1000))
        count = sum(taken(limiter, step / 100_000) for step in range(1, 1_000_001))
        assert count == pytest.approx(10_000, abs=1)


class TestKeyRateLimiter:
    def test_each_key_has_its_own(self) -> None:
        limiter = KeyRateLimiter(RateLimitConfig.per_second(1))
        limiter.take("a", 0)
        assert limiter.free_at("a", 0) == 1
        assert limiter.free_at("b", 0) == 0
        limiter.take("b", 0)
        assert limiter.free_at("a", 0.25) == 1
        assert limiter.free_at("new", 0.25) == 0.25
        assert len(limiter) == 2

    def test_full_buckets_are_forgotten_first(self) -> None:
        limiter = KeyRateLimiter(RateLimitConfig.per_second(1), most=10)
        for key in range(10):
            limiter.take(str(key), 0 if key % 2 else 9.5)
        limiter.take("new", 10)
        # The odd ones were full again. The others still have to wait.
        assert len(limiter) == 6
        assert all(limiter.free_at(str(key), 10) > 10 for key in range(0, 10, 2))

    def test_then_the_fullest(self) -> None:
        limiter = KeyRateLimiter(RateLimitConfig.per_hour(1), most=10)
        for key in range(10):
            limiter.take(str(key), key)
        limiter.take("new", 10)
        assert len(limiter) == 10
        assert limiter.free_at("0", 10) == 10
        assert all(limiter.free_at(str(key), 10) > 10 for key in range(1, 10))

    def test_never_more_than_the_limit(self) -> None:
        limiter = KeyRateLimiter(RateLimitConfig.per_hour(1), most=100)
        for key in range(1000):
            assert limiter.free_at(str(key), 0) == 0
            limiter.take(str(key), 0)
            assert len(limiter) <= 100

    def test_one_is_enough(self) -> None:
        limiter = KeyRateLimiter(RateLimitConfig.per_hour(1), most=1)
        limiter.take("a", 0)
        limiter.take("b", 0)
        assert limiter.free_at("b", 0) > 0
        with pytest.raises(ValueError, match="most"):
            KeyRateLimiter(RateLimitConfig.per_hour(1), most=0)
