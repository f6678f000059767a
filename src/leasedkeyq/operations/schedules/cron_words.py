"""Timetables in words: ``"weekdays at 3:00, Europe/Berlin"``, ``"every 5 minutes"``.

The fields are read as cronsim reads them, which decides when a schedule is due: lists, ranges,
steps, names, ``L``, ``LW`` and ``MON#2``, and a first field for seconds if there are six. Words are
found from the values that a field means and not from its spelling, so ``1-5`` and ``MON,TUE-FRI``
read the same. An expression that is not understood is shown as it is.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
LAST_DAY, LAST_WEEKDAY = "L", "LW"
MOST_TIMES = 6
"""So many times of day are listed; more are told as minutes of hours."""
WEEKDAYS = (1, 2, 3, 4, 5)
FIELDS, FIELDS_WITH_SECONDS = 5, 6
FEW_TIMES = 3
"""So few times of day are listed, even where they are evenly apart."""
LONGEST_LIST = 4
"""More numbers than that are told by their step, if they have one."""
SHORTEST_RANGE = 3
"""So many neighbours are told as a range."""
LONGEST_SPAN = 1e11
"""Seconds that are told in days and hours."""
UNITS = ((86400, "day"), (3600, "hour"), (60, "minute"), (1, "second"))


class _Unreadable(Exception):  # noqa: N818  # it never leaves this module
    """A field is none that is known here."""


class _Field(NamedTuple):
    """What a field of an expression means.

    Attributes:
        values: The numbers in it, in order.
        special: What is no number: ``L``, ``LW``, ``5L`` or ``1#2``, as it is written in numbers.
        whole: Whether it means all numbers that there are.
        starred: Whether it begins with a star; then both fields of days must match.
    """

    values: tuple[int, ...]
    special: tuple[str, ...]
    whole: bool
    starred: bool


def timetable_words(expression: str | None, every: float | None, tz: str = "UTC") -> str:
    """When a schedule is due, in words: of its cron expression, or of the time between two ticks.

    The time zone is told where it matters. Never raises: what is not understood is shown as it is.
    """
    if every is not None:
        return every_words(every)
    return "" if expression is None else cron_words(expression, tz)


def every_words(seconds: float) -> str:
    """A fixed time between two ticks: ``"every 5 minutes"``, ``"every 1 hour 30 minutes"``."""
    if not 1 <= seconds < LONGEST_SPAN or seconds != int(seconds):
        return f"every {seconds:g} seconds"
    rest = int(seconds)
    parts: list[tuple[int, str]] = []
    for size, unit in UNITS:
        number, rest = divmod(rest, size)
        if number:
            parts.append((number, unit))
    if len(parts) == 1 and parts[0][0] == 1:
        return f"every {parts[0][1]}"
    return "every " + " ".join(f"{number} {unit}{_s(number)}" for number, unit in parts)


def cron_words(expression: str, tz: str = "UTC") -> str:
    """A cron expression in words; the expression itself if it is not understood."""
    parts = expression.upper().split()
    unknown = f"{expression} (cron), {tz}"
    if len(parts) == FIELDS:
        parts.insert(0, "0")
    if len(parts) != FIELDS_WITH_SECONDS:
        return unknown
    try:
        second = _field(parts[0], 0, 59)
        minute = _field(parts[1], 0, 59)
        hour = _field(parts[2], 0, 23)
        day = _field(parts[3], 1, 31, special=_special_day)
        month = _field(parts[4], 1, 12, names=[name[:3].upper() for name in MONTHS], first_name=1)
        weekday = _field(
            parts[5], 0, 7, names=[name[:3].upper() for name in DAYS], special=_special_weekday
        )
    except _Unreadable:
        return unknown
    weekday = _from_sunday(weekday)
    days = _days(day, month, weekday)
    clock, is_time = _clock(second, minute, hour)
    if days:
        words = f"{days} {clock}" if is_time else f"{clock}, {days}"
    else:
        words = f"every day {clock}" if is_time else clock
    return words if not days and hour.whole else f"{words}, {tz}"


# Reading


def _field(
    text: str,
    low: int,
    high: int,
    *,
    names: Sequence[str] = (),
    first_name: int = 0,
    special: Callable[[str, Callable[[str], int]], str] | None = None,
) -> _Field:
    def number(word: str) -> int:
        if word in names:
            return names.index(word) + first_name
        if not (word.isascii() and word.isdigit()) or not low <= int(word) <= high:
            raise _Unreadable
        return int(word)

    values: set[int] = set()
    others: list[str] = []
    for term in text.split(","):
        word, slash, step = term.partition("/")
        if slash and (not (step.isascii() and step.isdigit()) or not int(step)):
            raise _Unreadable
        other = "" if special is None else special(word, number)
        if other:
            if other not in others:
                others.append(other)
            continue
        if word == "*":
            start, stop = low, high
        elif "-" in word:
            start, stop = map(number, word.split("-", 1))
            if stop < start:
                raise _Unreadable
            if slash and start == stop:
                stop = high  # as cronsim reads it
        else:
            start = number(word)
            stop = high if slash else start
        values.update(range(start, stop + 1, int(step) if slash else 1))
    whole = len(values) == high - low + 1
    return _Field(tuple(sorted(values)), tuple(others), whole, text.startswith("*"))


def _special_day(word: str, number: Callable[[str], int]) -> str:
    del number
    return word if word in {LAST_DAY, LAST_WEEKDAY} else ""


def _special_weekday(word: str, number: Callable[[str], int]) -> str:
    if word.endswith("L") and word[:-1].isdigit():
        return f"{number(word[:-1]) % 7}L"
    if "#" in word:
        day, _, which = word.partition("#")
        if which not in {"1", "2", "3", "4", "5"}:
            raise _Unreadable
        return f"{number(day) % 7}#{which}"
    return ""


def _from_sunday(field: _Field) -> _Field:
    """Days of the week from 0, Sunday, to 6: 7 is Sunday, too."""
    values = tuple(sorted({value % 7 for value in field.values}))
    return field._replace(values=values, whole=len(values) == len(DAYS))


# Times of day


def _clock(second: _Field, minute: _Field, hour: _Field) -> tuple[str, bool]:
    """When within a day it is due, and whether these words are times of day."""
    seconds = second.values
    if seconds == (0,):
        return _minutes(minute, hour)
    if len(seconds) == len(minute.values) == len(hour.values) == 1:
        return f"at {hour.values[0]}:{minute.values[0]:02}:{seconds[0]:02}", True
    if second.whole:
        told = "every second"
    elif (step := _step(seconds, 60)) > 1:
        told = f"every {step} seconds"
    else:
        told = f"at {_listed('second', seconds)}"
    if minute.whole and hour.whole:
        return (told if told.startswith("every") else f"{told} of every minute"), False
    return f"{told}, {_minutes(minute, hour)[0]}", False


def _minutes(minute: _Field, hour: _Field) -> tuple[str, bool]:
    minutes, hours = minute.values, hour.values
    often = "every minute" if minute.whole else ""
    if not often and (step := _step(minutes, 60)) > 1:
        often = f"every {step} minutes"
    if often and len(minutes) * len(hours) > FEW_TIMES:
        if hour.whole:
            return often, False
        if _is_range(hours):
            return f"{often} from {hours[0]}:00 to {hours[-1]}:{minutes[-1]:02}", False
        return f"{often} in {_listed('hour', hours)}", False
    if len(minutes) == 1:
        at = minutes[0]
        if hour.whole:
            return ("every hour" if at == 0 else f"every hour at minute {at}"), False
        if len(hours) >= SHORTEST_RANGE:
            span = f"from {hours[0]}:{at:02} to {hours[-1]}:{at:02}"
            if (step := _step(hours, 24)) > 1:
                return f"every {step} hours" + (f" at minute {at}" if at else ""), False
            if _is_range(hours) and len(hours) > FEW_TIMES:
                return f"every hour {span}", False
            if (step := _apart(hours)) > 1 and len(hours) > FEW_TIMES:
                return f"every {step} hours {span}", False
    if len(minutes) * len(hours) <= MOST_TIMES:
        return f"at {_and([f'{h}:{m:02}' for h in hours for m in minutes])}", True
    told = _listed("minute", minutes)
    if hour.whole:
        return f"at {told} of every hour", False
    return f"at {told} of {_listed('hour', hours)}", False


# Days


def _days(day: _Field, month: _Field, weekday: _Field) -> str:
    """On which days it is due; empty if on all."""
    of_month = _days_of_month(day)
    of_week = _days_of_week(weekday)
    if of_month and of_week:
        # As in Debian's cron: both must match if one of the fields begins with a star.
        if day.starred or weekday.starred:
            said = f"{of_week} that are {of_month}"
        else:
            said = f"{of_month} and {of_week}"
    else:
        said = of_month or of_week
    if month.whole:
        return said
    months = _named_runs(month.values, lambda value: MONTHS[value - 1])
    if "of the month" in said:
        return said.replace("of the month", f"of {months}")
    return f"{said or 'every day'} in {months}"


def _days_of_month(day: _Field) -> str:
    if day.whole:
        return ""
    told: list[str] = []
    if day.values:
        step = _apart(day.values)
        if step > 1 and day.starred and not day.special:
            return f"every {_ordinal(step)} day of the month from the {_ordinal(day.values[0])}"
        told.append(_named_runs(day.values, _ordinal))
    told += ["last day" if one == LAST_DAY else "last weekday" for one in day.special]
    return f"the {_and(told)} of the month"


def _days_of_week(weekday: _Field) -> str:
    if weekday.whole:
        return ""
    told: list[str] = []
    if weekday.values == WEEKDAYS:
        told.append("weekdays")
    elif weekday.values == (0, 6):
        told.append("weekends")
    elif weekday.values:
        # The week begins with Monday: Saturday and Sunday are neighbours.
        values = sorted(weekday.values, key=lambda value: (value - 1) % 7)
        places = [(value - 1) % 7 for value in values]
        told.append(_named_runs(places, lambda place: f"{DAYS[(place + 1) % 7]}s"))
    for one in weekday.special:
        name = DAYS[int(one[0])]
        which = "last" if one.endswith("L") else _ordinal(int(one[2:]))
        told.append(f"the {which} {name} of the month")
    return _and(told)


# Words


def _step(values: Sequence[int], size: int) -> int:
    """The step of values that go round evenly from 0: 5 for 0, 5, ... 55; otherwise 0."""
    step = _apart(values)
    return step if step and values[0] == 0 and values[-1] + step == size else 0


def _apart(values: Sequence[int]) -> int:
    """How far apart values are, if that is the same for all; otherwise 0."""
    apart = {after - before for before, after in pairwise(values)}
    return apart.pop() if len(apart) == 1 else 0


def _is_range(values: Sequence[int]) -> bool:
    return len(values) == 1 or _apart(values) == 1


def _listed(unit: str, values: Sequence[int]) -> str:
    """Numbers of minutes, hours or seconds: ``"minutes 5 and 10"``."""
    step = _apart(values)
    if step > 1 and len(values) > LONGEST_LIST:
        return f"every {_ordinal(step)} {unit} from {values[0]} to {values[-1]}"
    return f"{unit}{_s(len(values))} {_named_runs(values, str)}"


def _named_runs(values: Sequence[int], name: Callable[[int], str]) -> str:
    """Values by name, three or more in a row as a range: ``"1 to 5, 9 and 12"``."""
    runs: list[list[int]] = []
    for value in values:
        if runs and value == runs[-1][-1] + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    told: list[str] = []
    for run in runs:
        if len(run) >= SHORTEST_RANGE:
            told.append(f"{name(run[0])} to {name(run[-1])}")
        else:
            told += map(name, run)
    return _and(told)


def _and(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _ordinal(number: int) -> str:
    ending = "th" if number in {11, 12, 13} else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _s(number: int) -> str:
    return "" if number == 1 else "s"
