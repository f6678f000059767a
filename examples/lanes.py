"""Commands in lanes: the urgent first, and never more at a time than a lane allows."""

import asyncio

from leasedkeyq.lanes import LaneConfig, QueueManagerBuilder


async def main() -> None:
    manager = (
        QueueManagerBuilder()
        .with_lane("high-priority", LaneConfig(1, 4), 0)
        .with_lane("normal", LaneConfig(1, 8), 1)
        .with_lane("background", LaneConfig(1, 2), 2)
        .with_capacity(4)
        .build()
    )
    order: list[str] = []

    @manager.command("work")
    async def work(name: str) -> str:
        order.append(name)
        await asyncio.sleep(0.01)
        return name

    handles = [
        await manager.submit(lane, work(f"{lane} {number}"))
        for lane in ("background", "normal", "high-priority")
        for number in range(3)
    ]
    async with manager:
        results = [await handle for handle in handles]
    print("results:", len(results))
    print("started first:", order[0])
    # One slot is kept for the background lane, however much there is above it.
    print("background began among the first four:", "background 0" in order[:4])


asyncio.run(main())
