"""A worker process for the tests: handles the batches of a store, and tells what it does.

It tells ``ready``, and for each batch ``start ITEM/ATTEMPT ...`` and ``end ITEM ...``. A batch with
an item of `STUCK` or above does not end, in a worker that is told to be stuck.
"""

import asyncio
import sys

from leasedkeyq.lanes import (
    BatchFunction,
    LaneConfig,
    QueueManager,
    QueueManagerBuilder,
    current_batch,
)

STUCK = 100
SIZE = 4


def build(url: str, lease: float = 4.0) -> tuple[QueueManager, BatchFunction[int, int]]:
    config = LaneConfig(0, SIZE, lease_time=lease, cancel_grace=0.5)
    builder = QueueManagerBuilder().with_lane("index", config, 0).with_drain_timeout(10)
    manager = builder.with_storage(url).build()

    @manager.batch("index", size=SIZE, within=0.2, lane="index", key=lambda item: f"item-{item}")
    async def index(items: list[int]) -> list[int]:
        attempts = [command.attempt for command in current_batch()]
        shown = [f"{item}/{attempt}" for item, attempt in zip(items, attempts, strict=True)]
        print("start", *shown, flush=True)
        if "stuck" in sys.argv and max(items) >= STUCK:
            await asyncio.sleep(3600)
        print("end", *items, flush=True)
        return [item * 2 for item in items]

    return manager, index


async def main(url: str) -> None:
    manager, _ = build(url)
    print("ready", flush=True)
    await manager.run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
