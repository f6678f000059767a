"""`Timetable`: the moments at which a schedule is due.

They are computed from a cron expression and a time zone, or lie a fixed time apart. A timetable has
no clock of its own: it is asked for the moments after, or up to, a time that it is told.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from functools import cache
from math import floor
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, get_args
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from leasedkeyq import checks
from leasedkeyq.errors import describe
from leasedkeyq.lanes.errors import ScheduleError
from leasedkeyq.types import Duration

if TYPE_CHECKING:
    from cronsim import CronSim, CronSimError

MissedPolicy: TypeAlias = Literal["once", "skip", "all"]
"""What becomes of ticks that came due while no worker could fire them.

``"once"``: one command for all of them. ``"skip"``: none. ``"all"``: one for each, of the newest
1,000.
"""
MISSED_POLICIES: tuple[MissedPolicy, ...] = get_args(MissedPolicy)
SHORTEST = 0.001
"""Seconds between two ticks, at least."""
LONGEST = 100 * 365 * 86400.0
"""Seconds between two ticks, at most: the next one is a date that can be shown."""
FIELDS = 5
"""Of a cron expression."""
WINDOWS = tuple(days * 86400.0 for days in (1 / 24, 1, 32, 400, 4000))
"""Seconds. So far back the last ticks before a moment are looked for, step by step."""


@dataclass(frozen=True)
class Cron:
    """A timetable by a cron expression, for ``@manager.command(..., schedule=Cron(...))``.

    Attributes:
        expression: As in `QueueManager.schedule`, and so are the others.
        tz: The time zone of the expression; None: UTC.
        missed: What becomes of ticks that no worker could fire in time.
        jitter: Up to how long after its tick a command starts.
    """

    expression: str
    tz: str | None = None
    missed: MissedPolicy = "once"
    jitter: Duration | None = None


@dataclass(frozen=True)
class Every:
    """A timetable of ticks that are a fixed time apart, for ``schedule=Every(...)``.

    Attributes:
        interval: The time between two ticks.
        missed: As in `Cron`.
        jitter: As in `Cron`.
    """

    interval: Duration
    missed: MissedPolicy = "once"
    jitter: Duration | None = None


class PastTicks(NamedTuple):
    """The ticks of some time that has passed.

    Attributes:
        moments: The newest of them, in order, as Unix time.
        omitted: Whether there were more of them before.
    """

    moments: list[float]
    omitted: bool


class Timetable:
    """When a schedule is due. Moments are Unix times.

    Args:
        name: The schedule, for errors.
        expression: A cron expression of five fields, as cronsim reads it; or None.
        every: The time between two ticks, in place of an expression.
        tz: The time zone of the expression, such as ``"Europe/Berlin"``.

    Raises:
        ScheduleError: The expression or the time zone makes no sense, or there are both or none of
            expression and `every`.
        ModuleNotFoundError: There is an expression, and cronsim is not installed.
        TypeError: Something is of another type.
    """

    __slots__ = ("_anchor", "_zone", "every", "expression", "tz")

    def __init__(
        self,
        name: str,
        expression: str | None,
        every: Duration | None,
        tz: str | None = None,
        anchor: float = 0.0,
    ) -> None:
        if (expression is None) == (every is None):
            said = "neither" if expression is None else "both"
            raise ScheduleError(
                f"schedule {name!r} has {said} of a cron expression and every; give one of them: "
                f'schedule({name!r}, "0 3 * * *", command) or '
                f"schedule({name!r}, command, every=timedelta(minutes=5))",
                schedule=name,
            )
        self.expression = expression
        self.every: float | None = None
        self.tz = "UTC" if tz is None else tz
        self._anchor = anchor
        self._zone: tzinfo = UTC
        if expression is None:
            assert every is not None
            self.every = _every(name, every)
            if tz is not None:
                raise ScheduleError(
                    f"schedule {name!r}: tz is for a cron expression; every counts seconds, which "
                    "are the same everywhere: leave tz out",
                    schedule=name,
                )
        else:
            self._zone = _zone(name, self.tz)
            _check_expression(name, expression, self._zone)

    def anchored(self, moment: float) -> "Timetable":
        """The same timetable, whose ticks are counted from `moment`, if they are by `every`."""
        other = object.__new__(Timetable)
        other.expression, other.every, other.tz = self.expression, self.every, self.tz
        other._zone, other._anchor = self._zone, moment
        return other

    def after(self, moment: float) -> float | None:
        """The first tick after `moment`; None: there is none in fifty years."""
        return next(self._from(moment), None)

    def next_ticks(self, moment: float, count: int) -> list[float]:
        """The first ticks after `moment`."""
        return [tick for tick, _ in zip(self._from(moment), range(count), strict=False)]

    def between(self, first: float, until: float, most: int) -> PastTicks:
        """The newest ticks from `first` to `until`, both included, at most so many.

        `first` counts as one, whether it is of this timetable or of another that it replaced.
        """
        if first > until:
            return PastTicks([], omitted=False)
        if self.every is not None:
            behind = floor((until - first) / self.every) + 1
            start = max(first, until - (most + 1) * self.every) if behind > most else first
        else:
            start = first
            for window in WINDOWS:
                if until - window <= first:
                    break
                found = self._until(until - window, until, most)
                if len(found) == most:
                    return PastTicks([*found], omitted=True)
        found = self._until(start, until, most)
        if start == first:
            whole = len(found) < most
            if whole:
                found.appendleft(first)
            return PastTicks([*found], omitted=not whole)
        return PastTicks([*found], omitted=True)

    def _until(self, moment: float, until: float, most: int) -> deque[float]:
        """The newest ticks after `moment`, up to `until`."""
        found: deque[float] = deque(maxlen=most)
        for tick in self._from(moment):
            if tick > until:
                break
            found.append(tick)
        return found

    def _from(self, moment: float) -> Iterator[float]:
        """All ticks after `moment`."""
        if self.every is not None:
            number = floor((moment - self._anchor) / self.every)
            while True:
                tick = self._anchor + number * self.every
                if tick > moment:
                    yield tick
                number += 1
        assert self.expression is not None
        last = moment
        for at in _cron(self.expression, datetime.fromtimestamp(moment, self._zone)):
            tick = at.timestamp()
            # In the hour that comes twice in autumn, cronsim begins with the first of the two.
            if tick > last:
                last = tick
                yield tick


def check_missed(name: str, missed: MissedPolicy) -> None:
    """Refuse what is no policy for ticks that were missed.

    Raises:
        ScheduleError: It is none.
    """
    if not isinstance(missed, str) or missed not in MISSED_POLICIES:
        raise ScheduleError(
            f"schedule {name!r}: missed must be 'once', 'skip' or 'all', got {missed!r}",
            schedule=name,
        )


def _every(name: str, every: Duration) -> float:
    seconds = checks.delay_time("every", every)
    if seconds < SHORTEST:
        raise ScheduleError(
            f"schedule {name!r}: every must be at least {SHORTEST:g} s, got {seconds:g} s",
            schedule=name,
        )
    if seconds > LONGEST:
        raise ScheduleError(
            f"schedule {name!r}: every must be at most a hundred years, got {seconds:g} s",
            schedule=name,
        )
    return seconds


def _zone(name: str, tz: str) -> tzinfo:
    if not isinstance(tz, str):
        raise TypeError(
            f"schedule {name!r}: tz is the name of a time zone such as 'Europe/Berlin', got "
            f"{type(tz).__name__}"
        )
    if tz == "UTC":
        return UTC
    try:
        return ZoneInfo(tz)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        pass
    if not available_timezones():
        raise ScheduleError(
            f"schedule {name!r}: this system has no data of time zones, so {tz!r} cannot be looked "
            "up: pip install tzdata",
            schedule=name,
        )
    raise ScheduleError(
        f"schedule {name!r}: there is no time zone {describe(tz)}; give a name of the IANA list, "
        "such as 'Europe/Berlin' or 'UTC'",
        schedule=name,
    )


def _check_expression(name: str, expression: str, zone: tzinfo) -> None:
    if not isinstance(expression, str):
        raise TypeError(
            f"schedule {name!r}: a cron expression is a str such as '0 3 * * *', got "
            f"{type(expression).__name__}"
        )
    simulation, failure = _cronsim()
    if (many := len(expression.split())) > FIELDS:  # cronsim takes a sixth one, for seconds
        raise ScheduleError(
            f"schedule {name!r}: {expression!r} has {many} fields; a cron expression has five "
            "fields: minute, hour, day of the month, month, day of the week. For ticks within a "
            "minute, use every=...",
            schedule=name,
        )
    try:
        first = next(simulation(expression, datetime(2026, 1, 1, tzinfo=zone)), None)
    except failure as error:
        raise ScheduleError(
            f"schedule {name!r}: {expression!r} is no cron expression: {error}; it has five "
            "fields: minute, hour, day of the month, month, day of the week, as in '30 2 * * MON'",
            schedule=name,
        ) from error
    if first is None:
        raise ScheduleError(
            f"schedule {name!r}: {expression!r} never comes: no date of the next fifty years "
            "matches it",
            schedule=name,
        )


def _cron(expression: str, start: datetime) -> Iterator[datetime]:
    simulation, _ = _cronsim()
    return simulation(expression, start)


@cache
def _cronsim() -> "tuple[type[CronSim], type[CronSimError]]":
    try:
        from cronsim import CronSim, CronSimError  # noqa: PLC0415  # an extra
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            'schedules with cron expressions take cronsim: pip install "leasedkeyq[schedules]"; '
            "every=... works without it",
            name=error.name,
        ) from error
    return CronSim, CronSimError
