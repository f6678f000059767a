"""When a command is tried again, and after how long."""

from datetime import timedelta
from itertools import count
from math import inf, nan
from typing import Any, Protocol

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leasedkeyq.lanes import LaneConfig
from leasedkeyq.lanes.policies.retry import RetryDecider, RetryPolicy
from tests.lanes.support import Build, everywhere, now

# The machine may be busy.
busy = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

ERROR = ValueError("no")


class Seconds(Protocol):
    """A decider that tells seconds."""

    def delay(self, attempt: int, error: BaseException) -> float | None: ...


def delays(policy: Seconds) -> list[float]:
    """The delays until the policy gives up."""
    found: list[float] = []
    for attempt in count(1):
        wait = policy.delay(attempt, ERROR)
        if wait is None:
            return found
        found.append(wait)
    raise AssertionError


def test_exponential() -> None:
    assert delays(RetryPolicy.exponential(3)) == [1, 2, 4]
    assert delays(RetryPolicy.exponential(9))[-3:] == [60, 60, 60]


def test_fixed() -> None:
    assert delays(RetryPolicy.fixed(3, 5)) == [5, 5, 5]
    assert delays(RetryPolicy.fixed(2, timedelta(minutes=2))) == [120, 120]
    assert delays(RetryPolicy.fixed(2, 0)) == [0, 0]


def test_none() -> None:
    assert delays(RetryPolicy.none()) == []


def test_initial_delay() -> None:
    policy = RetryPolicy.exponential(3).with_initial_delay(0.5)
    assert delays(policy) == [0.5, 1, 2]
    assert delays(policy.with_initial_delay(timedelta(seconds=2))) == [2, 4, 8]
    assert delays(RetryPolicy.fixed(1, 5).with_initial_delay(50)) == [50]


def test_max_delay() -> None:
    policy = RetryPolicy.exponential(5).with_max_delay(timedelta(seconds=5))
    assert delays(policy) == [1, 2, 4, 5, 5]
    assert delays(RetryPolicy.fixed(1, 100).with_max_delay(10)) == [10]
    assert delays(policy.with_initial_delay(9)) == [5] * 5


def test_multiplier() -> None:
    assert delays(RetryPolicy.exponential(3).with_multiplier(3)) == [1, 3, 9]
    assert delays(RetryPolicy.exponential(3).with_multiplier(1)) == [1, 1, 1]


def test_keyword_arguments_do_the_same() -> None:
    policy = RetryPolicy(
        max_retries=4, initial_delay=timedelta(seconds=2), max_delay=10, multiplier=3
    )
    steps = RetryPolicy.exponential(4).with_initial_delay(2).with_max_delay(10).with_multiplier(3)
    assert policy == steps
    assert delays(policy) == [2, 6, 10, 10]
    assert policy.initial_delay == 2.0


def test_a_policy_does_not_change() -> None:
    policy: Any = RetryPolicy.exponential(3)
    policy.with_initial_delay(9)
    assert policy == RetryPolicy.exponential(3)
    with pytest.raises(AttributeError):
        policy.max_retries = 5


def test_predicate() -> None:
    policy = RetryPolicy.exponential(3).with_predicate(lambda e: isinstance(e, OSError))
    assert policy.delay(1, OSError()) == 1
    assert policy.delay(1, ERROR) is None
    assert policy.with_predicate(None).delay(1, ERROR) == 1


def test_what_the_predicate_raises_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        RetryPolicy(max_retries=1, retry_if=lambda _: bool(1 / 0)).delay(1, ERROR)


def test_the_predicate_is_not_asked_when_no_retries_are_left() -> None:
    asked: list[BaseException] = []

    def predicate(error: BaseException) -> bool:
        asked.append(error)
        return True

    policy = RetryPolicy.exponential(1).with_predicate(predicate)
    assert policy.delay(2, ERROR) is None
    assert asked == []


def test_jitter() -> None:
    drawn = iter((0.0, 0.5, 1.0))
    policy = RetryPolicy(max_retries=9, jitter=0.5, random=lambda: next(drawn))
    assert [policy.delay(3, ERROR) for _ in range(3)] == [4, 3, 2]
    full = RetryPolicy(max_retries=1, random=lambda: 0.999).with_jitter(1)
    assert full.delay(1, ERROR) == pytest.approx(0.001)


def test_jitter_is_random() -> None:
    policy = RetryPolicy.exponential(3).with_jitter(1)
    waits = {policy.delay(1, ERROR) for _ in range(100)}
    assert len(waits) > 50


@busy
@given(
    attempt=st.integers(1, 20_000),
    initial=st.floats(0, 1e300),
    most=st.floats(0, 1e300),
    multiplier=st.floats(1, 1e300),
    jitter=st.floats(0, 1),
    drawn=st.floats(0, 1),
)
def test_a_delay_is_never_above_the_maximum(
    *, attempt: int, initial: float, most: float, multiplier: float, jitter: float, drawn: float
) -> None:
    policy = RetryPolicy(
        max_retries=20_000,
        initial_delay=initial,
        max_delay=most,
        multiplier=multiplier,
        jitter=jitter,
        random=lambda: drawn,
    )
    wait = policy.delay(attempt, ERROR)
    assert wait is not None
    assert 0 <= wait <= most


def test_the_ten_thousandth_attempt() -> None:
    assert RetryPolicy.exponential(10_000).delay(10_000, ERROR) == 60
    assert RetryPolicy.exponential(10_000).with_initial_delay(0).delay(10_000, ERROR) == 0


@pytest.mark.parametrize(
    "options, error, said",
    [
        ({"max_retries": -1}, ValueError, "max_retries"),
        ({"max_retries": 1.5}, TypeError, "max_retries"),
        ({"max_retries": True}, TypeError, "max_retries"),
        ({"initial_delay": -1}, ValueError, "initial_delay"),
        ({"initial_delay": "1"}, TypeError, "initial_delay"),
        ({"max_delay": inf}, ValueError, "max_delay"),
        ({"max_delay": nan}, ValueError, "max_delay"),
        ({"multiplier": 0.5}, ValueError, "multiplier"),
        ({"multiplier": inf}, ValueError, "multiplier"),
        ({"multiplier": "2"}, TypeError, "multiplier"),
        ({"jitter": 1.1}, ValueError, "jitter"),
        ({"jitter": -0.1}, ValueError, "jitter"),
        ({"jitter": nan}, ValueError, "jitter"),
        ({"retry_if": True}, TypeError, "retry_if"),
        ({"random": 0.5}, TypeError, "random"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], error: type[Exception], said: str) -> None:
    arguments: dict[str, Any] = {"max_retries": 3} | options
    with pytest.raises(error, match=said):
        RetryPolicy(**arguments)


@pytest.mark.parametrize("attempt, error", [(0, ValueError), (-1, ValueError), (1.0, TypeError)])
def test_attempts_count_from_one(attempt: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="attempt"):
        RetryPolicy.exponential(3).delay(attempt, ERROR)


def test_any_object_with_delay_is_a_decider() -> None:
    class OnlyTwice:
        def delay(self, attempt: int, error: BaseException) -> float | None:
            return 0.25 if attempt < 3 else None

    assert delays(OnlyTwice()) == [0.25, 0.25]


class Patient:
    """A decider that thinks in `timedelta`, like every other duration."""

    def __init__(self, wait: timedelta) -> None:
        self._wait = wait

    def delay(self, attempt: int, error: BaseException) -> timedelta | None:
        return self._wait if attempt < 3 else None


@everywhere
@pytest.mark.parametrize("seconds, ended", [(90.0, 180.0), (0.0, 0.0), (-5.0, 0.0)])
async def test_a_decider_may_return_a_timedelta(build: Build, seconds: float, ended: float) -> None:
    decider: RetryDecider = Patient(timedelta(seconds=seconds))
    manager = build().with_lane("x", LaneConfig(0, 1, retry_policy=decider), 0).build()
    attempts: list[float] = []

    @manager.command("fail")
    async def fail() -> None:
        attempts.append(now())
        raise ERROR

    async with manager:
        with pytest.raises(ValueError, match="no"):
            await (await manager.submit("x", fail()))
    assert len(attempts) == 3
    assert attempts[-1] - attempts[0] == pytest.approx(ended, abs=0.1)
