"""Pausing, resuming and running schedules of a store, without a manager."""

from collections.abc import Callable
from typing import Literal

import msgspec

from leasedkeyq.lanes.durable.schedules import (
    change_schedule,
    clock_offset,
    find_record,
    hand_run_key,
    schedule_put,
)
from leasedkeyq.lanes.schedules.schedule import ScheduleRecord, resumed
from leasedkeyq.model.requests import Put
from leasedkeyq.operations.lane_access import LaneAccess
from leasedkeyq.stores.store import Store


async def change(
    store: Store, name: str, action: Literal["pause", "resume"], clock: Callable[[], float]
) -> bool:
    """Pause or resume a schedule; returns whether that made a difference.

    Raises:
        UnknownScheduleError: There is none.
    """
    await find_record(store, name)
    offset = await clock_offset(store, clock) or 0.0

    def now() -> float:
        return clock() + offset

    def changed(record: ScheduleRecord) -> ScheduleRecord:
        if action == "resume":
            return resumed(name, record, now())
        return msgspec.structs.replace(record, paused=True)

    return await change_schedule(store, name, changed, now)


async def command_now(
    store: Store, name: str, access: LaneAccess, clock: Callable[[], float]
) -> Put:
    """What submits the command of a schedule once more.

    Raises:
        UnknownScheduleError: There is none.
    """
    definition = (await find_record(store, name)).definition
    lane = access.assumed_lane(definition.lane)
    key = hand_run_key(definition, name, clock())
    terms = definition.terms(None)
    return schedule_put(definition, lane, key, terms, at=clock(), limits=store.limits)
