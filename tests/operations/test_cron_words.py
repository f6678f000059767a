"""Timetables in words: what each form of a field reads like, and that no expression is misread."""

from datetime import UTC, datetime

import pytest
from cronsim import CronSim
from hypothesis import given, settings
from hypothesis import strategies as st

from leasedkeyq.operations.schedules.cron_words import (
    _field,
    cron_words,
    every_words,
    timetable_words,
)

CASES = {
    "* * * * *": "every minute",
    "*/5 * * * *": "every 5 minutes",
    "0/20 * * * *": "every 20 minutes",
    "0 * * * *": "every hour",
    "15 * * * *": "every hour at minute 15",
    "10/20 * * * *": "at minutes 10, 30 and 50 of every hour",
    "*/7 * * * *": "at every 7th minute from 0 to 56 of every hour",
    "0 3 * * MON-FRI": "weekdays at 3:00, Europe/Berlin",
    "0 3 * * 1-5": "weekdays at 3:00, Europe/Berlin",
    "0 3 * * mon,tue-fri": "weekdays at 3:00, Europe/Berlin",
    "0 3 * * *": "every day at 3:00, Europe/Berlin",
    "0 3,15 * * SAT,SUN": "weekends at 3:00 and 15:00, Europe/Berlin",
    "0 3 * * 7": "Sundays at 3:00, Europe/Berlin",
    "0 3 * * 0": "Sundays at 3:00, Europe/Berlin",
    "0 3 * * 5-7": "Fridays to Sundays at 3:00, Europe/Berlin",
    "0 3 * * 1,3,5": "Mondays, Wednesdays and Fridays at 3:00, Europe/Berlin",
    "0 */2 * * *": "every 2 hours, Europe/Berlin",
    "30 */6 * * *": "every 6 hours at minute 30, Europe/Berlin",
    "0 9-17 * * *": "every hour from 9:00 to 17:00, Europe/Berlin",
    "0 9-17/2 * * *": "every 2 hours from 9:00 to 17:00, Europe/Berlin",
    "0 */5 * * *": "every 5 hours from 0:00 to 20:00, Europe/Berlin",
    "*/10 9-17 * * 1-5": "every 10 minutes from 9:00 to 17:50, weekdays, Europe/Berlin",
    "* 3 * * *": "every minute from 3:00 to 3:59, Europe/Berlin",
    "*/15 3,5 * * *": "every 15 minutes in hours 3 and 5, Europe/Berlin",
    "*/30 8 * * *": "every day at 8:00 and 8:30, Europe/Berlin",
    "5,10,17 3-6 * * *": "at minutes 5, 10 and 17 of hours 3 to 6, Europe/Berlin",
    "0 3 1 * *": "the 1st of the month at 3:00, Europe/Berlin",
    "0 3 1,15 * *": "the 1st and 15th of the month at 3:00, Europe/Berlin",
    "0 0 1-7 * *": "the 1st to 7th of the month at 0:00, Europe/Berlin",
    "0 0 */2 * *": "every 2nd day of the month from the 1st at 0:00, Europe/Berlin",
    "0 0 L * *": "the last day of the month at 0:00, Europe/Berlin",
    "0 0 LW * *": "the last weekday of the month at 0:00, Europe/Berlin",
    "0 0 L,15 * *": "the 15th and last day of the month at 0:00, Europe/Berlin",
    "0 0 * * 5L": "the last Friday of the month at 0:00, Europe/Berlin",
    "0 0 * * MON#2": "the 2nd Monday of the month at 0:00, Europe/Berlin",
    "0 0 * 3 TUE#1": "the 1st Tuesday of March at 0:00, Europe/Berlin",
    "0 0 29 2 *": "the 29th of February at 0:00, Europe/Berlin",
    "0 3 * JAN,MAR-MAY *": "every day in January and March to May at 3:00, Europe/Berlin",
    "0 3 * 12 SAT,SUN": "weekends in December at 3:00, Europe/Berlin",
    "0 3 1 * MON": "the 1st of the month and Mondays at 3:00, Europe/Berlin",
    "0 3 1-7 * */7": "Sundays that are the 1st to 7th of the month at 3:00, Europe/Berlin",
    "*/30 * * * * *": "every 30 seconds",
    "* * * * * *": "every second",
    "10 * * * * *": "at second 10 of every minute",
    "10 0 3 * * *": "every day at 3:00:10, Europe/Berlin",
}
BAD = [
    "bogus",
    "61 * * * *",
    "* * * *",
    "5-1 * * * *",
    "*/0 * * * *",
    "0 0 * * MON#6",
    "",
    "1/x * * * *",
]


@pytest.mark.parametrize("expression", CASES)
def test_forms_of_fields(expression: str) -> None:
    assert cron_words(expression, "Europe/Berlin") == CASES[expression]
    CronSim(expression, datetime(2026, 1, 1, tzinfo=UTC))  # no form that cannot be a schedule


@pytest.mark.parametrize("expression", BAD)
def test_what_is_not_understood_is_shown_as_it_is(expression: str) -> None:
    assert cron_words(expression, "UTC") == f"{expression} (cron), UTC"


@pytest.mark.parametrize(
    "seconds, words",
    [
        (0.5, "every 0.5 seconds"),
        (1, "every second"),
        (90, "every 1 minute 30 seconds"),
        (300, "every 5 minutes"),
        (3600, "every hour"),
        (5400, "every 1 hour 30 minutes"),
        (86400, "every day"),
        (172800, "every 2 days"),
        (float("inf"), "every inf seconds"),
    ],
)
def test_a_fixed_time(seconds: float, words: str) -> None:
    assert every_words(seconds) == words
    assert timetable_words(None, seconds) == words


def test_a_timetable() -> None:
    assert timetable_words("0 3 * * *", None) == "every day at 3:00, UTC"
    assert timetable_words(None, None) == ""


def _fields(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    ranges = st.tuples(number, number).map(lambda pair: f"{min(pair)}-{max(pair)}")
    step = st.integers(1, 40).map(lambda size: f"/{size}")
    term = st.one_of(
        st.just("*"), number.map(str), ranges, st.tuples(st.just("*") | ranges, step).map("".join)
    )
    return st.lists(term, min_size=1, max_size=3).map(",".join)


@given(_fields(0, 59), _fields(0, 23), _fields(1, 31), _fields(1, 12), _fields(0, 7))
@settings(max_examples=60, deadline=None)
def test_values_are_those_of_cronsim(
    minute: str, hour: str, day: str, month: str, weekday: str
) -> None:
    expression = f"{minute} {hour} {day} {month} {weekday}"
    assert "(cron)" not in cron_words(expression)
    by_parts = CronSim(f"{minute} {hour} * {month} {weekday}", datetime(2026, 1, 1, tzinfo=UTC))
    assert set(_field(minute, 0, 59).values) == by_parts.minutes
    assert set(_field(hour, 0, 23).values) == by_parts.hours
    assert set(_field(month, 1, 12).values) == by_parts.months
    assert set(_field(weekday, 0, 7).values) == by_parts.weekdays
