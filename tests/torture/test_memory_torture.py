"""Ten million cycles, and not a byte more."""

import gc
import os
import sys

from leasedkeyq import LeasedKeyQueue

MILLIONS = 10 if os.environ.get("TORTURE") else 1
CYCLES = 1_000_000 if os.environ.get("TORTURE") else 50_000


async def test_memory_stays_flat_over_ten_million_cycles() -> None:
    queue = LeasedKeyQueue[int, int](default_lease_timeout=3600)
    blocks: list[int] = []
    for million in range(MILLIONS + 1):
        for number in range(CYCLES):
            await queue.put(million * CYCLES + number, number)
            await queue.ack((await queue.get())[2])
        gc.collect()
        blocks.append(sys.getallocatedblocks())
    assert max(blocks[1:]) - blocks[0] < 300, blocks
