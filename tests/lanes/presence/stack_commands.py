"""Commands whose stacks are asked for, and a worker process for them: ``python -m ... URL``."""

import asyncio
import sys
import threading
import time

from leasedkeyq.lanes import LaneConfig, QueueManager, QueueManagerBuilder

RELEASE = threading.Event()
"""Ends the command in a thread, which cannot be ended from outside."""


async def sleep_inside(seconds: float) -> None:
    await asyncio.sleep(seconds)  # asleep in a task


async def waiting(seconds: float) -> None:
    await sleep_inside(seconds)


def in_thread(seconds: float) -> None:
    RELEASE.wait(seconds)  # asleep in a thread


def in_process(seconds: float) -> None:
    time.sleep(seconds)  # asleep in a process


async def awaiting_in_process(seconds: float) -> None:
    await sleep_inside(seconds)


async def blocking(seconds: float) -> None:
    time.sleep(seconds)  # noqa: ASYNC251  # blocks the event loop


async def batched(items: list[float]) -> None:
    await sleep_inside(items[0])


def build(url: str) -> QueueManager:
    """A manager with one lane, and commands that take long in one way or another."""
    config = LaneConfig(0, 8, lease_time=30, cancel_grace=0.1)
    manager = QueueManagerBuilder().with_lane("work", config, 0).with_storage(url).build()
    for function in (waiting, in_thread, blocking):
        manager.command(function.__name__, function)
    manager.command("in_process", in_process, run_in="process")
    manager.command("awaiting_in_process", awaiting_in_process, run_in="process")
    manager.batch("batched", size=2, within=0.1)(batched)
    return manager


async def main() -> None:
    async with build(sys.argv[1]):
        print("started", flush=True)
        await asyncio.sleep(3600)


if __name__ == "__main__":
    asyncio.run(main())
