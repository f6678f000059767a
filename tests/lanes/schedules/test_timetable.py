"""When schedules are due, on the nights of daylight saving most of all."""

import builtins
import zoneinfo
from datetime import UTC, datetime, timedelta
from itertools import pairwise, takewhile
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from leasedkeyq.lanes import ScheduleError, timetable
from leasedkeyq.lanes.timetable import Timetable

BERLIN = "Europe/Berlin"


def unix(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def times(table: Timetable, start: str, count: int, zone: str = BERLIN) -> list[str]:
    ticks = table.next_ticks(unix(start), count)
    return [datetime.fromtimestamp(tick, ZoneInfo(zone)).isoformat() for tick in ticks]


def test_a_fixed_time_in_the_hour_that_is_left_out_comes_right_after_it() -> None:
    table = Timetable("n", "30 2 * * *", None, BERLIN)
    assert times(table, "2026-03-28T00:00", 3) == [
        "2026-03-28T02:30:00+01:00",
        "2026-03-29T03:00:00+02:00",
        "2026-03-30T02:30:00+02:00",
    ]


def test_a_fixed_time_in_the_hour_that_comes_twice_comes_once() -> None:
    table = Timetable("n", "30 2 * * *", None, BERLIN)
    assert times(table, "2026-10-24T00:00", 3) == [
        "2026-10-24T02:30:00+02:00",
        "2026-10-25T02:30:00+02:00",
        "2026-10-26T02:30:00+01:00",
    ]
    # Asked in the second of the two hours, after it was fired in the first.
    for start in ("2026-10-25T00:30", "2026-10-25T01:10", "2026-10-25T01:29", "2026-10-25T01:30"):
        assert times(table, start, 1) == ["2026-10-26T02:30:00+01:00"]


def test_every_hour_and_every_few_minutes_go_by_the_real_time() -> None:
    hourly = Timetable("n", "0 * * * *", None, BERLIN)
    assert times(hourly, "2026-03-29T00:30", 2) == [
        "2026-03-29T03:00:00+02:00",
        "2026-03-29T04:00:00+02:00",
    ]
    assert times(hourly, "2026-10-24T23:30", 4) == [
        "2026-10-25T02:00:00+02:00",
        "2026-10-25T02:00:00+01:00",
        "2026-10-25T03:00:00+01:00",
        "2026-10-25T04:00:00+01:00",
    ]
    often = Timetable("n", "*/15 * * * *", None, BERLIN)
    for night in ("2026-03-28T22:00", "2026-10-24T22:00"):
        ticks = often.next_ticks(unix(night), 40)
        assert {later - tick for tick, later in pairwise(ticks)} == {900.0}


@pytest.mark.parametrize(
    "expression", ["30 2 * * *", "0 * * * *", "*/20 1-3 * * *", "5,30 2 * * 0"]
)
@pytest.mark.parametrize("night", ["2026-03-28T12:00", "2026-10-24T12:00"])
def test_ticks_are_the_same_from_wherever_they_are_asked(expression: str, night: str) -> None:
    """So a worker that is asked late, or again, finds none twice and leaves none out."""
    table = Timetable("n", expression, None, BERLIN)
    start = unix(night)
    wanted = [tick for tick in table.next_ticks(start, 60) if tick < start + 86400]
    assert wanted == sorted(set(wanted))
    for minute in range(0, 24 * 60, 15):
        moment = start + 60 * minute
        after = table.after(moment)
        assert after == next((tick for tick in wanted if tick > moment), after)
    found: list[float] = []
    tick = table.after(start)
    while tick is not None and tick < start + 86400:
        found.append(tick)
        tick = table.after(tick)
    assert found == wanted


def test_every_counts_from_its_anchor() -> None:
    table = Timetable("n", None, timedelta(minutes=5)).anchored(100.0)
    assert table.next_ticks(100.0, 3) == [400.0, 700.0, 1000.0]
    assert table.next_ticks(399.0, 1) == table.next_ticks(100.0, 1) == [400.0]
    assert table.after(400.0) == 700.0
    tiny = Timetable("n", None, 0.1).anchored(1e9)
    tick = 1e9
    for _ in range(1000):
        later = tiny.after(tick)
        assert later is not None
        assert 0 < later - tick < 0.11
        tick = later


@pytest.mark.parametrize("most", [1, 100])
@pytest.mark.parametrize("days", [0.01, 0.9, 40])
@pytest.mark.parametrize("expression", ["*/30 * * * *", "0 3 * * *", "0 0 1 * *", None])
def test_the_newest_of_the_ticks_that_have_passed(
    expression: str | None, days: float, most: int
) -> None:
    if expression is None:
        table = Timetable("n", None, 100.0).anchored(5.0)
    else:
        table = Timetable("n", expression, None, BERLIN)
    until = unix("2026-11-01T05:00")
    first = table.after(until - 86400 * days)
    assert first is not None
    every: list[float] = [first] if first <= until else []
    every += takewhile(lambda tick: tick <= until, table._from(first))
    found, omitted = table.between(first, until, most)
    assert found == every[-most:]
    assert omitted == (len(every) > most)
    assert table.between(until + 1, until, most) == ([], False)


WRONG: list[tuple[tuple[Any, ...], type[Exception], str]] = [
    (("n", "99 * * * *", None), ScheduleError, "'99 [*] [*] [*] [*]' is no cron expression: Bad m"),
    (("n", "every day", None), ScheduleError, "it has five fields: minute, hour"),
    (("n", "", None), ScheduleError, "is no cron expression"),
    (("n", "0 0 3 * * *", None), ScheduleError, "has 6 fields; a cron expression has five fields"),
    (("n", "* * * * * * *", None), ScheduleError, "has 7 fields"),
    (("n", "0 0 30 2 *", None), ScheduleError, "is no cron expression|never comes"),
    (("n", "* * */20 * 1L", None), ScheduleError, "never comes"),
    (("n", 5, None), TypeError, "a cron expression is a str such as '0 3 [*] [*] [*]', got int"),
    (
        ("n", "0 3 * * *", None, "Europe/Berlim"),
        ScheduleError,
        "no time zone 'Europe/Berlim'; give",
    ),
    (("n", "0 3 * * *", None, "../etc/passwd"), ScheduleError, "there is no time zone"),
    (("n", "0 3 * * *", None, UTC), TypeError, "tz is the name of a time zone"),
    (("n", None, None), ScheduleError, "has neither of a cron expression and every; give one"),
    (("n", "0 3 * * *", 5), ScheduleError, "has both of a cron expression and every"),
    (("n", None, 0), ScheduleError, "every must be at least 0.001 s, got 0 s"),
    (("n", None, timedelta(seconds=-1)), ValueError, "every"),
    (("n", None, float("inf")), ValueError, "every must be finite"),
    (("n", None, timedelta.max), ScheduleError, "every must be at most a hundred years"),
    (("n", None, "5"), TypeError, "every must be seconds"),
    (("n", None, 5, BERLIN), ScheduleError, "tz is for a cron expression"),
]


@pytest.mark.parametrize("arguments, kind, message", WRONG)
def test_what_makes_no_sense_is_refused_by_name(
    arguments: tuple[Any, ...], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message) as caught:
        Timetable(*arguments)
    if isinstance(caught.value, ScheduleError):
        assert caught.value.schedule == "n"
        assert "schedule 'n'" in str(caught.value)


def test_a_system_without_time_zones_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str) -> None:
        raise zoneinfo.ZoneInfoNotFoundError(name)

    monkeypatch.setattr(timetable, "ZoneInfo", none)
    monkeypatch.setattr(timetable, "available_timezones", set)
    with pytest.raises(ScheduleError, match="pip install tzdata"):
        Timetable("n", "0 3 * * *", None, BERLIN)
    assert Timetable("n", "0 3 * * *", None).tz == "UTC"


def test_without_cronsim_expressions_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def missing(name: str, *rest: Any, **more: Any) -> Any:
        if name == "cronsim":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return original(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", missing)
    timetable._cronsim.cache_clear()
    with pytest.raises(ModuleNotFoundError, match=r'pip install "leasedkeyq\[schedules\]"'):
        Timetable("n", "0 3 * * *", None)
    assert Timetable("n", None, 5).after(0.0) == 5.0
