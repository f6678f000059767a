"""Schedules: what is said of one, what is kept of one, and what people see of one.

A `ScheduleDefinition` is what a program has declared. A `ScheduleRecord` is that and how far the
schedule has come: the value of its item in a store. `due_now` decides which ticks a record fires.
A `ScheduleKeeper` keeps records, in memory or in a store, and shows them as `Schedule` objects.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from math import inf
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import msgspec

from leasedkeyq import checks
from leasedkeyq.errors import describe
from leasedkeyq.lanes.commands.submit_terms import SubmitTerms
from leasedkeyq.lanes.config import time_limit
from leasedkeyq.lanes.errors import ScheduleError
from leasedkeyq.lanes.running.job import Handle
from leasedkeyq.lanes.timetable import MissedPolicy, Timetable, check_missed
from leasedkeyq.types import Duration, PresentPolicy

MISSED_AFTER = 60.0
"""Seconds. With ``missed="skip"``, a tick that is fired later than that is missed."""
MOST_MISSED = 1000
"""Ticks that ``missed="all"`` catches up with; older ones are left out, with a warning."""
TICKS_AT_ONCE = 100
"""Ticks that are fired in one step."""
FOREVER = 100 * 365 * 86400.0
"""Seconds. A schedule without a next tick comes due then."""
CLOCK_LOOK = 60.0
"""Seconds after which a worker looks at the time of day again while it waits for a tick."""
EARLY = 0.05
"""Seconds. So much before its tick an item may come due in a store: rounding, and the way there."""


class ScheduleDefinition(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a program has declared of a schedule, as it is written down."""

    lane: str
    command_type: str
    payload: msgspec.Raw
    """The arguments of the command, as JSON."""
    expression: str | None = None
    every: float | None = None
    tz: str = "UTC"
    missed: MissedPolicy = "once"
    jitter: float = 0.0
    key: str | None = None
    if_present: PresentPolicy | None = None
    priority: int | None = None
    timeout: float | None = None
    """How long a command may run; None: as its lane says; 0: as long as it likes."""

    @property
    def when(self) -> tuple[str | None, float | None, str]:
        """What its timetable is made of."""
        return self.expression, self.every, self.tz

    def timetable(self, name: str, anchor: float) -> Timetable:
        """When it is due; ticks by `every` are counted from `anchor`."""
        tz = None if self.expression is None else self.tz
        return Timetable(name, self.expression, self.every, tz).anchored(anchor)

    def terms(self, delay: float | None) -> SubmitTerms:
        """How its commands are submitted."""
        terms = SubmitTerms.checked(self.if_present, self.priority, delay, None, None)
        return terms if self.timeout is None else terms._replace(timeout=self.timeout or inf)

    def key_of(self, name: str, tick: float) -> str:
        """The key of the command of a tick: its own, or one that no other tick has."""
        return self.key or f"{name}@{datetime.fromtimestamp(tick, UTC).isoformat()}"


class ScheduleRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A schedule as it is kept: what was declared, and how far it has come. Moments are Unix times.

    Attributes:
        definition: What was declared.
        declared_at: When a program last declared it.
        anchor: From where ticks by `every` are counted.
        tick: The next tick; None: there is none.
        last: The last tick that was fired.
        runs: How many commands it has submitted.
        paused: Whether its ticks are held back.
    """

    definition: ScheduleDefinition
    declared_at: float
    anchor: float
    tick: float | None = None
    last: float | None = None
    runs: int = 0
    paused: bool = False

    def wait(self, now: float) -> float:
        """Seconds until its next tick."""
        return FOREVER if self.paused or self.tick is None else max(0.0, self.tick - now)


class DueTicks(NamedTuple):
    """What is to be done with a record whose tick has come.

    Attributes:
        ticks: The ticks to fire, in order; maybe none.
        record: What the record is then.
        omitted: Whether ticks were left out that ``missed="all"`` should have fired.
    """

    ticks: Sequence[float]
    record: ScheduleRecord
    omitted: bool = False


def new_record(name: str, definition: ScheduleDefinition, now: float) -> ScheduleRecord:
    """The record of a schedule that is declared for the first time, or after it was removed."""
    tick = definition.timetable(name, now).after(now)
    return ScheduleRecord(definition, now, now, tick)


def declared_again(
    name: str, record: ScheduleRecord, definition: ScheduleDefinition, now: float, *, due: bool
) -> ScheduleRecord:
    """The record after a program has declared its schedule again, maybe otherwise.

    A schedule that is the same goes on as it was. Another timetable counts from now on; a tick that
    is `due` already, and was not fired yet, is still fired.
    """
    replace = msgspec.structs.replace
    if encoded(definition) == encoded(record.definition):
        return replace(record, declared_at=now)
    new = replace(record, definition=definition, declared_at=now)
    if definition.when == record.definition.when:
        return new
    new = replace(new, anchor=now)
    if due and not record.paused:
        return new
    return replace(new, tick=definition.timetable(name, now).after(now))


def resumed(name: str, record: ScheduleRecord, now: float) -> ScheduleRecord:
    """The record of a schedule that goes on with its next tick; what it has paused is not made up.

    One that was not paused stays as it is.
    """
    if not record.paused:
        return record
    tick = record.definition.timetable(name, record.anchor).after(now)
    return msgspec.structs.replace(record, paused=False, tick=tick)


def due_now(name: str, record: ScheduleRecord, now: float) -> DueTicks:
    """What a record fires at `now`, at which its item has come due."""
    tick = record.tick
    if record.paused or tick is None or now < tick - EARLY:
        return DueTicks((), record)
    now = max(now, tick)
    definition = record.definition
    table = definition.timetable(name, record.anchor)
    every_tick = definition.missed == "all"
    moments, omitted = table.between(tick, now, MOST_MISSED if every_tick else 1)
    fired = moments[:TICKS_AT_ONCE]
    following = moments[len(fired)] if len(moments) > len(fired) else table.after(now)
    if definition.missed == "skip" and now - moments[-1] > MISSED_AFTER:
        fired = []
    then = msgspec.structs.replace(
        record,
        tick=following,
        last=fired[-1] if fired else record.last,
        runs=record.runs + len(fired),
    )
    return DueTicks(fired, then, omitted and every_tick)


_encoder = msgspec.json.Encoder()
_records = msgspec.json.Decoder(ScheduleRecord)


def encoded(kept: ScheduleRecord | ScheduleDefinition) -> bytes:
    """A record or a definition as JSON."""
    return _encoder.encode(kept)


def decoded(raw: bytes) -> ScheduleRecord:
    """The record that was written down.

    Raises:
        msgspec.MsgspecError: It is none, or was written by a version that is not known here.
    """
    return _records.decode(raw)


class Declaration(NamedTuple):
    """A schedule as a program has declared it; `QueueManager.schedule` checks it.

    Attributes:
        name: The schedule.
        command: The command of each tick.
        definition: All else. Its payload is empty: a keeper on a store writes the command down.
    """

    name: str
    command: Any
    definition: ScheduleDefinition


def declaration(
    name: str,
    expression: str | None,
    command: Any,
    command_type: str,
    *,
    every: Duration | None,
    lane: str,
    tz: str | None,
    missed: MissedPolicy,
    jitter: Duration | None,
    key: str | None,
    if_present: PresentPolicy | None,
    priority: int | None,
    timeout: Duration | None,
) -> Declaration:
    """Check what was said of a schedule.

    Raises:
        ScheduleError: It makes no sense.
        ValueError: An argument has a value that makes no sense.
        TypeError: An argument is of another type.
        ModuleNotFoundError: There is an expression, and cronsim is not installed.
    """
    if not isinstance(name, str) or not name:
        raise TypeError(f"the name of a schedule is a str that is not empty, got {name!r}")
    table = Timetable(name, expression, every, tz)
    check_missed(name, missed)
    if key is not None and (not isinstance(key, str) or not key):
        got = describe(key)
        raise TypeError(f"schedule {name!r}: key must be a str that is not empty, got {got}")
    if if_present == "reject":
        raise ScheduleError(
            f'schedule {name!r}: if_present="reject" would raise where nobody is told; use "skip" '
            "to submit nothing while a command of the key is there",
            schedule=name,
        )
    if if_present is not None and key is None:
        raise ScheduleError(
            f"schedule {name!r}: if_present needs a key; without one, every tick has a key of its "
            "own",
            schedule=name,
        )
    SubmitTerms.checked(if_present, priority, None, None, timeout)
    definition = ScheduleDefinition(
        lane=lane,
        command_type=command_type,
        payload=msgspec.Raw(b"null"),
        expression=expression,
        every=table.every,
        tz=table.tz,
        missed=missed,
        jitter=0.0 if jitter is None else checks.delay_time("jitter", jitter),
        key=key,
        if_present=if_present,
        priority=priority,
        timeout=None if timeout is None else time_limit("timeout", timeout) or 0.0,
    )
    return Declaration(name, command, definition)


@dataclass(frozen=True)
class Schedule:
    """A schedule as it was when it was looked at, and what can be done with it.

    `QueueManager.schedule` returns one, and `QueueManager.schedules` lists them. Its fields do not
    change; `refresh` looks again.

    Attributes:
        name: Its name.
        lane: Where its commands are submitted.
        command_type: The type of its commands.
        expression: Its cron expression, or None.
        every: The time between two ticks, if it has no expression.
        tz: The time zone of its expression, by name.
        missed: What becomes of ticks that no worker could fire in time.
        jitter: Up to how many seconds after its tick a command may start.
        key: The key of its commands; None: each has its own, ``name@tick``.
        paused: Whether it is paused.
        next_run: Its next tick; None while it is paused, not written down yet, or over.
        last_run: Its last tick that was fired, or None.
        runs: How many commands its ticks have submitted so far.
        declared_at: When a program last declared it; None if that is not written down yet.
    """

    name: str
    lane: str
    command_type: str
    expression: str | None
    every: timedelta | None
    tz: str
    missed: MissedPolicy
    jitter: float
    key: str | None
    paused: bool
    next_run: datetime | None
    last_run: datetime | None
    runs: int
    declared_at: datetime | None
    _record: ScheduleRecord = field(repr=False, compare=False)
    _keeper: "ScheduleKeeper" = field(repr=False, compare=False)

    def next_runs(self, count: int = 5) -> list[datetime]:
        """The next ticks from now on, in its time zone; none while it is paused."""
        checks.whole("count", count, 1)
        record = self._record
        if record.paused or (record.tick is None and self.declared_at is not None):
            return []
        now = self._keeper.now()
        ticks = record.definition.timetable(self.name, record.anchor).next_ticks(now, count)
        zone = zone_of(self.tz)
        return [datetime.fromtimestamp(tick, zone) for tick in ticks]

    async def pause(self) -> None:
        """Fire no more ticks, on any worker, until it is resumed. Ticks meanwhile are not made up.

        A worker that declares it again leaves it paused.

        Raises:
            UnknownScheduleError: It was removed.
        """
        await self._keeper.pause(self.name)

    async def resume(self) -> None:
        """Go on with its next tick, if it is paused.

        Raises:
            UnknownScheduleError: It was removed.
        """
        await self._keeper.resume(self.name)

    async def run_now(self) -> Handle[Any]:
        """Submit its command once more, now; its ticks come as before. Also while it is paused.

        Raises:
            UnknownScheduleError: It was removed.
            UnknownLaneError: This manager does not have its lane.
        """
        return await self._keeper.run_now(self.name)

    async def remove(self) -> bool:
        """End it, as `QueueManager.unschedule` does."""
        return await self._keeper.remove(self.name)

    async def refresh(self) -> "Schedule":
        """The schedule as it is now.

        Raises:
            UnknownScheduleError: It was removed.
        """
        return await self._keeper.find(self.name)

    async def declare(self) -> "Schedule":
        """Write it down now, if this manager has declared it: for a process that starts no worker.

        `QueueManager.start` does so, too. On a store, it is durable when this returns.
        """
        await self._keeper.write()
        return await self._keeper.find(self.name)


class ScheduleKeeper(ABC):
    """Keeps schedules and fires their ticks, in memory or in a store.

    Attributes:
        declared: The names of those that were declared here.
    """

    def __init__(self) -> None:
        self.declared: set[str] = set()

    @abstractmethod
    def now(self) -> float:
        """Unix time."""

    @abstractmethod
    def declare(self, declared: Declaration) -> Schedule:
        """Take up a schedule that was declared. It is written down when the manager has started.

        Raises:
            CommandError: Its command cannot be written down, and has to be.
        """

    @abstractmethod
    async def write(self) -> None:
        """Write down what was declared and is not written down yet."""

    @abstractmethod
    async def look(self) -> list[Schedule]:
        """All schedules, by name."""

    @abstractmethod
    async def find(self, name: str) -> Schedule:
        """A schedule as it is now.

        Raises:
            UnknownScheduleError: There is none.
        """

    @abstractmethod
    async def pause(self, name: str) -> None:
        """As `Schedule.pause`."""

    @abstractmethod
    async def resume(self, name: str) -> None:
        """As `Schedule.resume`."""

    @abstractmethod
    async def run_now(self, name: str) -> Handle[Any]:
        """As `Schedule.run_now`."""

    @abstractmethod
    async def remove(self, name: str) -> bool:
        """End a schedule; returns whether there was one."""

    @abstractmethod
    async def start(self) -> None:
        """Begin to fire ticks, and write down what was declared."""

    @abstractmethod
    def stop(self) -> None:
        """Fire no more ticks here."""

    @abstractmethod
    async def close(self) -> None:
        """As `stop`, and wait until nothing is under way."""

    def shown(self, name: str, record: ScheduleRecord, *, written: bool = True) -> Schedule:
        """A record, as people see it."""
        definition = record.definition
        zone = zone_of(definition.tz)

        def moment(unix: float | None) -> datetime | None:
            return None if unix is None else datetime.fromtimestamp(unix, zone)

        every = definition.every
        return Schedule(
            name=name,
            lane=definition.lane,
            command_type=definition.command_type,
            expression=definition.expression,
            every=None if every is None else timedelta(seconds=every),
            tz=definition.tz,
            missed=definition.missed,
            jitter=definition.jitter,
            key=definition.key,
            paused=record.paused,
            next_run=moment(record.tick) if written and not record.paused else None,
            last_run=moment(record.last),
            runs=record.runs,
            declared_at=moment(record.declared_at) if written else None,
            _record=record,
            _keeper=self,
        )


def zone_of(tz: str) -> tzinfo:
    """The time zone of that name; UTC where this system does not know it."""
    if tz == "UTC":
        return UTC
    try:
        return ZoneInfo(tz)
    except (LookupError, ValueError, OSError):
        return UTC
