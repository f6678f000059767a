"""Token buckets: how many, when, and whatever the clock does."""

import sys
from math import inf, nan
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leasedkeyq.lanes.policies.rate_limit import KeyedBuckets, RateLimitConfig, TokenBucket

# The machine may be busy.
busy = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

RATES = st.floats(1e-3, 1e5)
MOMENTS = st.floats(0, 2e9)


def drained(config: RateLimitConfig, now: float = 0.0) -> TokenBucket:
    bucket = TokenBucket(config)
    while bucket.take(now):
        pass
    return bucket


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


class TestTokenBucket:
    def test_it_starts_full(self) -> None:
        bucket = TokenBucket(RateLimitConfig.per_second(3))
        assert bucket.whole(100) == 3
        assert [bucket.take(100) for _ in range(4)] == [True, True, True, False]

    def test_it_fills_at_its_rate_up_to_the_burst(self) -> None:
        bucket = drained(RateLimitConfig.per_second(2, burst=3))
        assert [bucket.whole(now) for now in (0, 0.4, 0.5, 1, 1.5, 99)] == [0, 0, 1, 2, 3, 3]

    def test_looking_takes_nothing(self) -> None:
        bucket = TokenBucket(RateLimitConfig.per_second(1))
        for _ in range(5):
            assert bucket.whole(0) == 1
            assert bucket.wait(0) == 0
        assert bucket.take(0)

    def test_several_are_taken_all_or_none(self) -> None:
        bucket = TokenBucket(RateLimitConfig.per_second(5))
        assert not bucket.take(0, 6)
        assert bucket.whole(0) == 5
        assert bucket.take(0, 3)
        assert not bucket.take(0, 3)
        assert bucket.take(0, 2)

    def test_tokens_come_back_up_to_the_burst(self) -> None:
        bucket = drained(RateLimitConfig.per_second(5))
        bucket.give_back(2)
        assert bucket.whole(0) == 2
        bucket.give_back(100)
        assert bucket.whole(0) == 5
        assert sum(bucket.take(0) for _ in range(10)) == 5

    def test_unlimited(self) -> None:
        bucket = TokenBucket(RateLimitConfig.unlimited())
        assert bucket.take(0, 10**9)
        assert bucket.take(-5)
        assert bucket.wait(0) == 0
        bucket.give_back(5)
        assert bucket.whole(0) == sys.maxsize

    def test_a_clock_that_runs_back_gives_nothing_and_takes_nothing(self) -> None:
        bucket = drained(RateLimitConfig.per_second(1, burst=5), now=1000)
        bucket.give_back(2)
        assert bucket.whole(0) == 2
        assert bucket.take(0)
        # It goes on from there: a second later there is one more, not after a thousand.
        assert bucket.whole(1) == 2
        assert bucket.wait(1) == 0

    def test_a_clock_that_runs_back_stops_nobody(self) -> None:
        bucket = drained(RateLimitConfig.per_second(1), now=1000)
        assert [bucket.take(now) for now in (0, 0.5, 1, 1.5, 2)] == [
            *(False, False, True, False, True)
        ]

    def test_a_clock_that_swings_gives_no_more_than_the_time_it_goes_forward(self) -> None:
        bucket = drained(RateLimitConfig.per_second(1, burst=100))
        for _ in range(10):
            bucket.whole(0)
            bucket.whole(1)
        assert bucket.whole(1) == 10

    @busy
    @given(RATES, MOMENTS, st.integers(1, 50))
    def test_after_the_wait_there_is_a_token(self, rate: float, now: float, count: int) -> None:
        """Also where a moment is a large number, and the sum is rounded."""
        bucket = TokenBucket(RateLimitConfig(rate, 1))
        for _ in range(count):
            assert bucket.take(now)
            wait = bucket.wait(now)
            assert wait > 0
            now += wait

    @busy
    @given(RATES, st.integers(1, 1000), st.lists(st.floats(0, 100), max_size=100))
    def test_never_more_than_burst_plus_rate(
        self, rate: float, burst: int, steps: list[float]
    ) -> None:
        bucket = TokenBucket(RateLimitConfig(rate, burst))
        now, taken = 0.0, 0
        for step in (0.0, *steps):
            now += step
            count = bucket.whole(now)
            assert 0 <= count <= burst
            assert count == 0 or bucket.take(now, count)
            taken += count
            assert not bucket.take(now)
            assert taken <= burst + rate * (now + 1e-5) + 1e-6

    def test_nothing_is_lost_in_small_steps(self) -> None:
        bucket = drained(RateLimitConfig.per_second(1000))
        taken = sum(bucket.take(step / 100_000) for step in range(1, 1_000_001))
        assert taken == pytest.approx(10_000, abs=1)


class TestKeyedBuckets:
    def test_each_key_has_its_own(self) -> None:
        buckets = KeyedBuckets(RateLimitConfig.per_second(1))
        assert buckets.take("a", 0)
        assert not buckets.take("a", 0)
        assert buckets.take("b", 0)
        assert buckets.wait("a", 0.25) == pytest.approx(0.75)
        assert buckets.wait("new", 0) == 0
        buckets.give_back("a")
        buckets.give_back("new")
        assert buckets.take("a", 0)
        assert len(buckets) == 2

    def test_unlimited_remembers_nothing(self) -> None:
        buckets = KeyedBuckets(RateLimitConfig.unlimited())
        assert all(buckets.take(key, 0, 100) for key in range(10))
        assert len(buckets) == 0

    def test_full_buckets_are_forgotten_first(self) -> None:
        buckets = KeyedBuckets(RateLimitConfig.per_second(1), most=10)
        for key in range(10):
            buckets.take(key, 0 if key % 2 else 9.5)
        buckets.take("new", 10)
        # The odd ones were full again. The others still have to wait.
        assert len(buckets) == 6
        assert all(buckets.wait(key, 10) > 0 for key in range(0, 10, 2))

    def test_then_the_fullest(self) -> None:
        buckets = KeyedBuckets(RateLimitConfig.per_hour(1), most=10)
        for key in range(10):
            buckets.take(key, key)
        buckets.take("new", 10)
        assert len(buckets) == 10
        assert buckets.wait(0, 10) == 0
        assert all(buckets.wait(key, 10) > 0 for key in range(1, 10))

    def test_never_more_than_the_limit(self) -> None:
        buckets = KeyedBuckets(RateLimitConfig.per_hour(1), most=100)
        for key in range(1000):
            assert buckets.take(key, 0)
            assert len(buckets) <= 100

    def test_one_is_enough(self) -> None:
        buckets = KeyedBuckets(RateLimitConfig.per_hour(1), most=1)
        assert buckets.take("a", 0)
        assert buckets.take("b", 0)
        assert not buckets.take("b", 0)
        with pytest.raises(ValueError, match="most"):
            KeyedBuckets(RateLimitConfig.per_hour(1), most=0)
