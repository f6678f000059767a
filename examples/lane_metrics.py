"""Counters and latencies of lanes, in memory."""

import asyncio

from leasedkeyq.lanes import LaneConfig, QueueManagerBuilder


async def main() -> None:
    manager = QueueManagerBuilder().with_lane("api", LaneConfig(0, 4), 0).with_metrics().build()

    @manager.command("call")
    async def call(seconds: float) -> None:
        await asyncio.sleep(seconds)

    async with manager:
        for _ in range(20):
            await manager.submit("api", call(0.01))
        await manager.drain()
    assert manager.metrics is not None
    series = manager.metrics.snapshot().find("api", "call")
    assert series is not None
    print("completed:", series.completed)
    print("running took 10 ms or more:", series.running.p50 >= 0.009)


asyncio.run(main())
