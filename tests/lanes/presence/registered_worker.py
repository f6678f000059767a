"""A worker process for the tests of what workers tell: ``python -m ... URL``."""

import asyncio
import sys
import time

from leasedkeyq.lanes import LaneConfig, QueueManager, QueueManagerBuilder


def build(url: str) -> QueueManager:
    """A manager with one lane, and commands that take long."""
    config = LaneConfig(0, 4, lease_time=5)
    manager = QueueManagerBuilder().with_lane("work", config, 0).with_storage(url).build()

    @manager.command("wait")
    async def wait(seconds: float) -> None:
        await asyncio.sleep(seconds)

    @manager.command("block")
    async def block(seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251  # that is the point

    return manager


async def main() -> None:
    async with build(sys.argv[1]):
        print("started", flush=True)
        await asyncio.sleep(3600)


if __name__ == "__main__":
    asyncio.run(main())
