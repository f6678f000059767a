"""A process of workers: they lease, note what they got, and fail, hang or acknowledge it.

What was leased stands in the notes before the lease is settled, so that a value that was
acknowledged is always among them. That it was acknowledged is noted when the store has said so.
"""

import asyncio
import os
import random
from pathlib import Path
from typing import Final

from leasedkeyq import InvalidLeaseError, StoreError, StoreQueue, connect

QUEUE: Final = "lines"
LEASE: Final = 1.0
"""Seconds."""
LEASED: Final = "leased"
DONE: Final = "done"
RELEASED: Final = "released"
HUNG: Final = "hung"


class Notes:
    """A file to which each line is one write, of which a kill leaves all or nothing."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def add(self, *words: object) -> None:
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())


async def work(queue: StoreQueue[int], notes: Notes, dice: random.Random) -> None:
    """Work until somebody ends it."""
    while True:
        try:
            key, value, lease = await queue.get()
        except StoreError:
            await asyncio.sleep(0.05)
            continue
        notes.add(LEASED, lease.fence, key, value)
        fate = dice.random()
        try:
            if fate < 0.03:
                await queue.release(lease)
                notes.add(RELEASED, lease.fence)
                continue
            if fate < 0.06:
                await queue.release(lease, delay=dice.random() * 0.2)
                notes.add(RELEASED, lease.fence)
                continue
            if fate < 0.061:
                notes.add(HUNG, lease.fence)
                await asyncio.sleep(LEASE * 1.5)
            await queue.ack(lease)
            notes.add(DONE, lease.fence)
        except InvalidLeaseError:
            continue  # another worker has it by now
        except StoreError:
            continue  # it is not known whether it was settled; if not, its lease expires


async def run(url: str, path: Path, seed: str, tasks: int) -> None:
    async with connect(url) as store:
        queue = store.queue(QUEUE, value_type=int, default_lease_timeout=LEASE)
        dice, notes = random.Random(seed), Notes(path)
        await asyncio.gather(*(work(queue, notes, dice) for _ in range(tasks)))


def begin(url: str, path: Path, seed: str, tasks: int) -> None:
    """Run workers on a store; what they note goes to a file."""
    asyncio.run(run(url, path, seed, tasks))
