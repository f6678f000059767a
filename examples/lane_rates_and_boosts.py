"""Limit how fast a lane goes, split it by key, and lift what is about to be late."""

import asyncio
import time

from leasedkeyq.lanes import LaneConfig, PriorityBoostConfig, QueueManagerBuilder, RateLimitConfig


async def main() -> None:
    limited = LaneConfig(0, 10).with_rate_limit(RateLimitConfig.per_second(50, burst=1))
    urgent = LaneConfig(0, 1).with_priority_boost(PriorityBoostConfig.aggressive(0.2))
    manager = (
        QueueManagerBuilder()
        .with_capacity(15)
        .with_lane("limited", limited, 0)
        .with_lane("partitioned", LaneConfig(0, 4).with_partitions(4), 1)
        .with_lane("reports", urgent, 9)
        .build()
    )
    orders: dict[str, list[int]] = {}

    @manager.command("note")
    async def note(key: str, number: int) -> None:
        orders.setdefault(key, []).append(number)
        await asyncio.sleep(0)

    async with manager:
        started = time.monotonic()
        for number in range(6):
            await manager.submit("limited", note("limited", number))
        await manager.drain()
        print("five more took at least 0.09 s:", time.monotonic() - started >= 0.09)
        for number in range(20):
            key = f"customer {number % 5}"
            handle = await manager.submit("partitioned", note(key, number), key=key)
            await handle
        print("in order:", all(numbers == sorted(numbers) for numbers in orders.values()))
        await (await manager.submit("reports", note("report", 1), deadline=0.1))
        print("report done")


asyncio.run(main())
