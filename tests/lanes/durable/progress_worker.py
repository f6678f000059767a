"""A worker process whose commands tell how far they have come, and wait for files to go on."""

import asyncio
import os
import sys
import time
from pathlib import Path

from leasedkeyq.lanes import LaneConfig, QueueManager, QueueManagerBuilder, current_command, track

LANE = "work"


def build(url: str, lease_time: float = 4.0) -> QueueManager:
    config = LaneConfig(0, 4, lease_time=lease_time)
    manager = QueueManagerBuilder().with_lane(LANE, config, 0).with_storage(url).build()
    manager.command("steps", steps)
    manager.command("in_process", run_in="process")(in_process)
    return manager


async def steps(folder: str) -> str:
    """Tell something when the file "tell" of the attempt is there; end when the file "end" is."""
    command = current_command()
    turn = min(command.attempt, 2)  # on a machine that stands still, there may be a third
    await exists(f"{folder}/tell {turn}")
    command.progress(turn / 10, f"turn {turn}")
    await exists(f"{folder}/end")
    return "done"


async def exists(path: str) -> None:
    while not os.path.exists(path):  # noqa: ASYNC240  # it takes a few microseconds
        await asyncio.sleep(0.02)


def in_process(folder: str) -> int:
    """The same in a process of the pool."""
    done = 0
    for part in track([1, 2, 3, 4], "part"):
        if part == 3:
            Path(folder, "two parts").touch()
            while not Path(folder, "end").exists():
                time.sleep(0.02)
        done += part
    return done


async def main(url: str) -> None:
    manager = build(url)
    await manager.run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
