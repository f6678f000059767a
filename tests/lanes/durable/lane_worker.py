"""A worker process for the tests: runs the lane "work" of a SQLite file, and tells what it does.

What it tells is one line for each fact, on standard output: ``ready``, ``start KEY``, ``end KEY``.
With the argument ``doomed`` it kills itself as soon as it has claimed something ahead.
"""

import asyncio
import os
import signal
import sys
from typing import Any

from leasedkeyq.lanes import LaneConfig, QueueManager, QueueManagerBuilder, current_command

LEASE = 3.0
"""Seconds: a machine that stands still for a second or two costs no worker its leases."""


def build(path: str, lease: float = LEASE) -> QueueManager:
    config = LaneConfig(0, 8, lease_time=lease, cancel_grace=0.5)
    manager = QueueManagerBuilder().with_lane("work", config, 0)
    return manager.with_storage(f"sqlite:///{path}").with_drain_timeout(10).build()


def register(manager: QueueManager, *, doomed: bool = False) -> None:
    engine: Any = manager.queue()._engine

    @manager.command("work")
    async def work(number: int, seconds: float) -> int:
        key = current_command().key
        print(f"start {key}", flush=True)
        if doomed and engine._prefetch.of_lane(engine.lanes["work"]):
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            await asyncio.sleep(seconds)
        finally:
            print(f"end {key}", flush=True)
        return number * 2

    @manager.command("fail")
    async def fail(text: str) -> None:
        raise LookupError(text)


async def main(path: str, *arguments: str) -> None:
    manager = build(path)
    register(manager, doomed="doomed" in arguments)
    print("ready", flush=True)
    await manager.run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
