"""`MemorySchedules`: schedules of lanes in memory. They are as lasting as the process."""

import asyncio
import logging
import random
import secrets
from asyncio import Task
from collections.abc import Callable
from typing import Any

import msgspec

from leasedkeyq.lanes.errors import UnknownScheduleError
from leasedkeyq.lanes.running.engine import LaneEngine
from leasedkeyq.lanes.running.job import Handle, Job
from leasedkeyq.lanes.running.lane import Lane
from leasedkeyq.lanes.schedules.schedule import (
    CLOCK_LOOK,
    Declaration,
    Schedule,
    ScheduleKeeper,
    ScheduleRecord,
    declared_again,
    due_now,
    new_record,
    resumed,
)

logger = logging.getLogger("leasedkeyq")


class MemorySchedules(ScheduleKeeper):
    """Schedules in memory. Their ticks begin when the manager has started, and end with it.

    Args:
        engine: Runs the commands.
        open_lane: The lane of a name, if it takes commands.
    """

    def __init__(self, engine: LaneEngine, open_lane: Callable[[str], Lane]) -> None:
        super().__init__()
        self._engine = engine
        self._open_lane = open_lane
        self._commands: dict[str, Any] = {}
        self._records: dict[str, ScheduleRecord] = {}
        self._changed = asyncio.Event()
        self._stopped = False
        self._task: Task[None] | None = None

    def now(self) -> float:
        """Unix time."""
        return self._engine.clock()

    def declare(self, declared: Declaration) -> Schedule:
        """As `ScheduleKeeper.declare`."""
        name, command, definition = declared
        now = self.now()
        before = self._records.get(name)
        record = new_record(name, definition, now)
        if before is not None:
            record = declared_again(name, before, definition, now, due=False)
        self._records[name] = record
        self._commands[name] = command
        self.declared.add(name)
        if self._task is not None:
            self._changed.set()
        return self.shown(name, record)

    async def write(self) -> None:
        """There is nothing to write."""

    async def look(self) -> list[Schedule]:
        """As `ScheduleKeeper.look`."""
        return [self.shown(name, record) for name, record in sorted(self._records.items())]

    async def find(self, name: str) -> Schedule:
        """As `ScheduleKeeper.find`."""
        return self.shown(name, self._record(name))

    async def pause(self, name: str) -> None:
        """As `ScheduleKeeper.pause`."""
        self._records[name] = msgspec.structs.replace(self._record(name), paused=True)

    async def resume(self, name: str) -> None:
        """As `ScheduleKeeper.resume`."""
        self._records[name] = resumed(name, self._record(name), self.now())
        self._changed.set()

    async def run_now(self, name: str) -> Handle[Any]:
        """As `ScheduleKeeper.run_now`."""
        record = self._record(name)
        lane = self._open_lane(record.definition.lane)
        key = f"{record.definition.key_of(name, self.now())}~{secrets.token_hex(4)}"
        job = await self._submit(name, lane, record, record.definition.key or key, None)
        return Handle(job, self._engine)

    async def remove(self, name: str) -> bool:
        """As `ScheduleKeeper.remove`."""
        self._commands.pop(name, None)
        return self._records.pop(name, None) is not None

    def _record(self, name: str) -> ScheduleRecord:
        record = self._records.get(name)
        if record is None:
            known = ", ".join(sorted(self._records)) or "none"
            raise UnknownScheduleError(
                f"there is no schedule {name!r}; the schedules are: {known}", schedule=name
            )
        return record

    # Firing

    async def start(self) -> None:
        """As `ScheduleKeeper.start`; ticks are counted from now on."""
        if self._task is None and not self._stopped:
            now = self.now()
            for name, record in self._records.items():
                fresh = new_record(name, record.definition, now)
                self._records[name] = msgspec.structs.replace(fresh, paused=record.paused)
            self._task = asyncio.get_running_loop().create_task(
                self._run(), name="leasedkeyq schedules"
            )
            self._task.add_done_callback(self._ended)

    def stop(self) -> None:
        """As `ScheduleKeeper.stop`."""
        self._stopped = True
        self._changed.set()

    async def close(self) -> None:
        """As `ScheduleKeeper.close`."""
        self.stop()
        if self._task is not None:
            await asyncio.wait([self._task])

    def _ended(self, task: Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._engine._task_failed(task, repr(error), error)

    async def _run(self) -> None:
        while not self._stopped:
            self._changed.clear()
            now = self.now()
            waits = [record.wait(now) for record in self._records.values()]
            if min(waits, default=1.0) == 0.0:
                await self._fire_all(now)
                continue
            try:
                # The clock of the event loop stands still while the machine is suspended.
                async with asyncio.timeout(min(*waits, CLOCK_LOOK) if waits else None):
                    await self._changed.wait()
            except TimeoutError:
                pass

    async def _fire_all(self, now: float) -> None:
        for name, record in list(self._records.items()):
            if self._records.get(name) is not record or record.wait(now) > 0.0:
                continue
            due = due_now(name, record, now)
            self._records[name] = due.record
            definition = record.definition
            for tick in due.ticks:
                delay = random.uniform(0.0, definition.jitter) if definition.jitter else None
                try:
                    lane = self._open_lane(definition.lane)
                    await self._submit(name, lane, record, definition.key_of(name, tick), delay)
                except Exception:
                    logger.exception("schedule %r: its command was not submitted", name)

    async def _submit(
        self, name: str, lane: Lane, record: ScheduleRecord, key: str, delay: float | None
    ) -> Job:
        definition = record.definition
        command = key, definition.command_type, self._commands[name]
        return await self._engine.submit(lane, command, definition.terms(delay))
