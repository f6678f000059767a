"""How far up a command goes as its deadline nears."""

from datetime import timedelta
from math import inf, nan
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leasedkeyq.lanes.policies.boost import HIGHEST, PriorityBoostConfig

# The machine may be busy.
busy = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def course(config: PriorityBoostConfig, percents: tuple[int, ...]) -> list[int]:
    """The levels when so many percent of a deadline of 100 s remain."""
    return [config.levels(1000, None, 1100 - percent) for percent in percents]


def test_standard() -> None:
    config = PriorityBoostConfig.standard(100)
    percents = (100, 76, 75, 51, 50, 26, 25, 11, 10, 1)
    assert course(config, percents) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


def test_aggressive() -> None:
    config = PriorityBoostConfig.aggressive(timedelta(seconds=100))
    percents = (100, 81, 80, 61, 60, 41, 40, 21, 20, 1)
    assert course(config, percents) == [0, 0, 2, 2, 4, 4, 6, 6, 8, 8]


@pytest.mark.parametrize("make", [PriorityBoostConfig.standard, PriorityBoostConfig.aggressive])
def test_past_the_deadline_it_is_highest(make: Any) -> None:
    assert course(make(100), (0, -1, -1000)) == [HIGHEST] * 3


def test_disabled() -> None:
    config = PriorityBoostConfig.disabled()
    assert not config.enabled
    assert config.levels(0, None, 50) == 0
    assert config.levels(0, 10, 50) == 0


def test_own_steps() -> None:
    config = PriorityBoostConfig(100).with_boost(0.5, 7).with_boost(0.9, 1)
    assert config.steps == ((0.9, 1), (0.5, 7))
    assert course(config, (100, 90, 50, 1, 0)) == [0, 1, 7, 7, HIGHEST]
    assert config.with_boost(0.5, 2).steps == ((0.9, 1), (0.5, 2))


def test_a_command_does_not_sink_as_time_goes_by() -> None:
    config = PriorityBoostConfig(100, ((0.5, 7), (0.25, 1)))
    assert course(config, (50, 25, 1)) == [7, 7, 7]


def test_a_deadline_without_steps_counts_when_it_has_passed() -> None:
    config = PriorityBoostConfig(100)
    assert config.enabled
    assert course(config, (100, 1, 0)) == [0, 0, HIGHEST]


def test_a_command_with_a_deadline_of_its_own() -> None:
    config = PriorityBoostConfig.standard(1000)
    assert config.levels(0, 100, 50) == 2
    assert config.levels(0, 100, 100) == HIGHEST
    only_own = PriorityBoostConfig.standard(None)
    assert only_own.enabled
    assert only_own.levels(0, None, 1e9) == 0
    assert only_own.levels(0, 100, 90) == 4


def test_a_clock_that_runs_back() -> None:
    config = PriorityBoostConfig.standard(100)
    assert config.levels(1000, None, 0) == 0


def test_a_deadline_that_had_passed_at_submission() -> None:
    config = PriorityBoostConfig.standard(100)
    assert config.levels(1000, 1000, 1000) == HIGHEST
    assert config.levels(1000, 900, 899) == HIGHEST


@busy
@given(st.floats(0, 2e9), st.floats(1e-3, 1e9), st.lists(st.floats(0, 1), min_size=2))
def test_levels_only_rise(submitted: float, deadline: float, shares: list[float]) -> None:
    config = PriorityBoostConfig.aggressive(deadline)
    levels = [config.levels(submitted, None, submitted + deadline * s) for s in sorted(shares)]
    assert levels == sorted(levels)


@pytest.mark.parametrize(
    "arguments, error, said",
    [
        ((0,), ValueError, "deadline"),
        ((-1,), ValueError, "deadline"),
        ((inf,), ValueError, "deadline"),
        (("60",), TypeError, "deadline"),
        ((60, ((0, 1),)), ValueError, "remaining"),
        ((60, ((1.5, 1),)), ValueError, "remaining"),
        ((60, ((nan, 1),)), ValueError, "remaining"),
        ((60, (("a", 1),)), TypeError, "remaining"),
        ((60, ((0.5, -1),)), ValueError, "levels"),
        ((60, ((0.5, 1.5),)), TypeError, "levels"),
    ],
)
def test_wrong_arguments(arguments: tuple[Any, ...], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        PriorityBoostConfig(*arguments)
