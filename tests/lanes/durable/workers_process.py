"""A worker process for the tests of worker groups. It tells what it sees, one line for each fact.

``owned 0 3 5``: the partitions that it runs. ``paused x`` and ``resumed x``. ``start KEY TIME``
and ``end KEY TIME``.
"""

import asyncio
import sys
import time

from leasedkeyq.lanes import (
    KeyLimit,
    LaneConfig,
    QueueManager,
    QueueManagerBuilder,
    RateLimitConfig,
    current_command,
)
from leasedkeyq.lanes.durable.engine import StoreEngine

LEASE = 2.0
PARTITIONS = 8


def build(url: str) -> QueueManager:
    parts = LaneConfig(0, 4, partitions=PARTITIONS, lease_time=LEASE)
    limited = LaneConfig(
        0,
        8,
        lease_time=LEASE,
        global_concurrency=3,
        key_limits=[
            KeyLimit("one-*", max_concurrency=1),
            KeyLimit("rate-*", rate_limit=RateLimitConfig.per_second(5, burst=1)),
        ],
    )
    built = QueueManagerBuilder().with_lane("parts", parts, 0).with_lane("limited", limited, 1)
    manager = built.with_storage(url).with_drain_timeout(10).build()

    @manager.command("work")
    async def work(seconds: float) -> str:
        key = current_command().key
        print(f"start {key} {time.monotonic()}", flush=True)
        try:
            await asyncio.sleep(seconds)
        finally:
            print(f"end {key} {time.monotonic()}", flush=True)
        return key

    return manager


async def tell(manager: QueueManager) -> None:
    lanes = manager.queue().lanes
    seen: list[str] = []
    engine = manager.queue()._engine
    assert isinstance(engine, StoreEngine)
    await engine._workers.known.wait()
    while True:
        partitions = lanes["parts"].partitions
        owned = " ".join(str(partition.index) for partition in partitions if partition.owned)
        facts = [
            f"owned {owned}",
            f"{'paused' if lanes['parts'].paused else 'resumed'} parts",
        ]
        for fact in facts:
            if fact not in seen:
                print(fact, flush=True)
        seen = facts
        await asyncio.sleep(0.02)


async def main(url: str) -> None:
    manager = build(url)
    async with manager:
        telling = asyncio.create_task(tell(manager))
        await asyncio.Event().wait()
        await telling


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
