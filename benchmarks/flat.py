"""`python -m benchmarks --flat`: memory over ten million put, get, ack cycles."""

import asyncio
import gc
import sys
from collections.abc import Callable

from benchmarks.timing import resident_bytes
from leasedkeyq import LeasedKeyQueue

BLOCKS_ALLOWED = 500
BYTES_ALLOWED = 2 * 2**20


async def run(cycles: int, say: Callable[[str], None]) -> bool:
    """Whether memory is the same at the end as after the first tenth.

    Every cycle has a key of its own, and every other lease a time-out that never comes: neither
    keys, nor acknowledged leases, nor their timers may stay behind.
    """
    queue: LeasedKeyQueue[str, int] = LeasedKeyQueue()
    # Asked once before, so that what asking itself leaves behind is not counted.
    _memory()
    first: tuple[int, int] | None = None
    blocks = resident = 0
    say(f"{'cycles':>12} {'blocks':>10} {'resident':>12}")
    for part in range(10):
        await _use(queue, range(part * cycles // 10, (part + 1) * cycles // 10))
        blocks, resident = _memory()
        first = first or (blocks, resident)
        say(f"{(part + 1) * cycles // 10:12,} {blocks:10,} {resident / 2**20:8.1f} MiB")
    assert first is not None
    more_blocks, more_bytes = blocks - first[0], resident - first[1]
    flat = more_blocks <= BLOCKS_ALLOWED and more_bytes <= BYTES_ALLOWED
    say(
        f"{'flat' if flat else 'GROWS'}: {more_blocks:+,} blocks and {more_bytes / 1024:+,.0f} KiB "
        "since the first tenth"
    )
    return flat


async def _use(queue: LeasedKeyQueue[str, int], numbers: range) -> None:
    for number in numbers:
        await queue.put(f"key-{number}", number)
        _, _, lease = await queue.get(lease_timeout=3600 if number % 2 else None)
        await queue.ack(lease)


def _memory() -> tuple[int, int]:
    """The allocated blocks of Python's allocator, and the resident bytes of the process."""
    gc.collect()
    return sys.getallocatedblocks(), resident_bytes() or 0


def main(cycles: int, say: Callable[[str], None]) -> int:
    return 0 if asyncio.run(run(cycles, say)) else 1
