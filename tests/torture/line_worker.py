"""A process of workers for the test of lines: leases, notes what it got, fails now and then.

What it notes stands in its file before the lease is settled, so that a value that was acknowledged
is always among the notes.
"""

import asyncio
import os
import random
import sys
from pathlib import Path

from leasedkeyq import InvalidLeaseError, StoreError, StoreQueue, connect

LEASE = 1.0
"""Seconds."""


async def work(queue: StoreQueue[int], notes: int, dice: random.Random) -> None:
    """Work until the queue is empty for a while, or for ever if it is killed."""
    while True:
        try:
            key, value, lease = await queue.get(timeout=5)
        except TimeoutError:
            return
        except StoreError:
            await asyncio.sleep(0.05)
            continue
        os.write(notes, f"{lease.fence} {key} {value}\n".encode())
        fate = dice.random()
        try:
            if fate < 0.03:
                await queue.release(lease)
            elif fate < 0.06:
                await queue.release(lease, delay=dice.random() * 0.2)
            elif fate < 0.065:
                await asyncio.sleep(LEASE * 1.5)  # as if it hung
                await queue.ack(lease)
            else:
                await queue.ack(lease)
        except InvalidLeaseError:
            continue  # another worker has it by now
        except StoreError:
            continue  # it is not known whether it was settled; if not, its lease expires


async def main(url: str, path: Path, seed: int, tasks: int) -> None:
    """Run workers on the queue `lines` of a store, which notes go to a file."""
    notes = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    async with connect(url) as store:
        queue = store.queue("lines", default_lease_timeout=LEASE)
        dice = random.Random(seed)
        await asyncio.gather(*(work(queue, notes, dice) for _ in range(tasks)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])))
