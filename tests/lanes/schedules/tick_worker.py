"""A worker process for the tests of schedules: notes every run of a tick in a file.

Each line has the key of the command, which is that of its tick, and its id: a tick that was fired
twice would have two ids. A command that runs again, as its worker was killed, has the same one.
"""

import asyncio
import os
import random
import signal
import time
from typing import Any

from leasedkeyq import connect
from leasedkeyq.lanes import (
    LaneConfig,
    QueueManager,
    QueueManagerBuilder,
    Schedule,
    current_command,
)
from leasedkeyq.lanes.durable import schedules
from leasedkeyq.model.edit import Edit

LEASE = 2.0
EVERY = 0.05
DEADLY = 0.15
"""How likely it is that a worker is killed before it fires a tick, and after it has."""


def build(url: str, offset: float = 0.0) -> QueueManager:
    """A manager on a store, with a clock of its own; on SQLite that of the store goes with it."""

    def clock() -> float:
        return time.time() + offset

    store = (
        connect(url, clock=clock, durability="normal")
        if url.startswith("sqlite:")
        else connect(url)
    )
    config = LaneConfig(0, 8, lease_time=LEASE)
    builder = QueueManagerBuilder(clock=clock).with_lane("work", config, 0).with_storage(store)
    return builder.with_drain_timeout(30).build()


def declare(manager: QueueManager, notes: str) -> Schedule:
    @manager.command("note")
    async def note(path: str) -> None:
        command = current_command()
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, f"{command.key} {command.id}\n".encode())
        os.close(file)

    return manager.schedule("ticks", note(notes), every=EVERY, lane="work", missed="all")


def die_at_times(store: Any, dice: random.Random) -> None:
    """Let the process be killed now and then right before it moves a schedule on, or right after.

    What a worker had done for a tick in a step of its own would be done again by the next one.
    """
    real = store.do_edit

    async def edit(edit: Edit) -> Any:
        if edit.queue == schedules.SCHEDULES_QUEUE and dice.random() < DEADLY:
            os.kill(os.getpid(), signal.SIGKILL)
        answers = await real(edit)
        if edit.queue == schedules.SCHEDULES_QUEUE and dice.random() < DEADLY:
            os.kill(os.getpid(), signal.SIGKILL)
        return answers

    store.do_edit = edit


async def _run(url: str, notes: str, offset: float, seed: str) -> None:
    schedules.LEASE_TIME = LEASE
    manager = build(url, offset)
    die_at_times(manager.queue().store, random.Random(seed))
    declare(manager, notes)
    await manager.run()


def begin(url: str, notes: str, offset: float, seed: str) -> None:
    """Run a worker until it is killed."""
    asyncio.run(_run(url, notes, offset, seed))
