"""What people see of the schedules of a store: `schedule_views`."""

from contextlib import suppress

from leasedkeyq.lanes.durable.schedules import SCHEDULES_QUEUE, UNREADABLE, read_record
from leasedkeyq.lanes.errors import ScheduleError
from leasedkeyq.lanes.schedules.schedule import ScheduleRecord
from leasedkeyq.operations.schedules.cron_words import timetable_words
from leasedkeyq.operations.views import ScheduleView
from leasedkeyq.stores.store import Store

AT_ONCE = 1000
"""Schedules in one look at the store."""
NEXT_RUNS = 5


async def schedule_views(store: Store, now: float) -> list[ScheduleView]:
    """The schedules of a store, by name. Those of a version that is not known here are left out."""
    views: list[ScheduleView] = []
    cursor: str | None = None
    while True:
        page = await store.browse(SCHEDULES_QUEUE, cursor=cursor, limit=AT_ONCE)
        for item in page.items:
            with suppress(*UNREADABLE):
                views.append(schedule_view(item.key, read_record(item.value), now))
        cursor = page.cursor
        if cursor is None:
            return sorted(views, key=lambda view: view.name)


def schedule_view(name: str, record: ScheduleRecord, now: float) -> ScheduleView:
    """What people see of a schedule."""
    definition = record.definition
    return ScheduleView(
        name=name,
        lane=definition.lane,
        kind=definition.command_type,
        expression=definition.expression,
        every=definition.every,
        tz=definition.tz,
        words=timetable_words(definition.expression, definition.every, definition.tz),
        paused=record.paused,
        next_runs=_next_runs(name, record, now),
        last_run=record.last,
        runs=record.runs,
        missed=definition.missed,
        jitter=definition.jitter,
        key=definition.key,
        declared_at=record.declared_at,
        arguments=bytes(definition.payload).decode("utf-8", "backslashreplace"),
    )


def _next_runs(name: str, record: ScheduleRecord, now: float) -> tuple[float, ...]:
    if record.paused or record.tick is None:
        return ()
    try:
        table = record.definition.timetable(name, record.anchor)
        following = table.next_ticks(max(now, record.tick), NEXT_RUNS)
    except (ScheduleError, ModuleNotFoundError):
        # This process knows neither the time zone nor the expressions of cron.
        following = []
    return (record.tick, *(tick for tick in following if tick > record.tick))[:NEXT_RUNS]
