"""Nothing grows with the number of operations, only with what is in the queue."""

import gc
import logging
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from leasedkeyq import LeasedKeyQueue

Queue = LeasedKeyQueue[int, int]


async def cycle(queue: Queue, number: int) -> None:
    await queue.put(number, number)
    await queue.ack((await queue.get())[2])


async def cycle_with_lease_time(queue: Queue, number: int) -> None:
    await queue.put(number, number)
    await queue.ack((await queue.get(lease_timeout=3600))[2])


async def reschedule(queue: Queue, number: int) -> None:
    await queue.put(0, number, delay=3600 + number)


async def release(queue: Queue, number: int) -> None:
    await queue.put(1, number, priority=number % 7)
    await queue.release((await queue.take(1, lease_timeout=number + 1))[2])


async def time_out(queue: Queue, number: int) -> None:
    with pytest.raises(TimeoutError):
        await queue.take(number, timeout=0)


async def time_out_later(queue: Queue, number: int) -> None:
    with pytest.raises(TimeoutError):
        await queue.take(number, timeout=0.001)


async def bury(queue: Queue, number: int) -> None:
    await queue.put(number, number)
    await queue.bury((await queue.take(number))[2])


async def extend(queue: Queue, number: int) -> None:
    held: Any = queue._state.in_flight.get(-1)
    if held is None:
        await queue.put(-1, 0)
        lease = (await queue.take(-1, lease_timeout=3600))[2]
    else:
        lease = held.lease
    await queue.extend(lease, 3600 + number)


@pytest.mark.parametrize(
    "step",
    [
        cycle,
        cycle_with_lease_time,
        reschedule,
        release,
        time_out,
        time_out_later,
        bury,
        extend,
    ],
)
async def test_memory_stays_flat(
    step: Callable[[Queue, int], Awaitable[None]], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)  # pytest keeps what is logged
    queue = Queue(max_buried=10)
    for number in range(2000):
        await step(queue, number)
    gc.collect()
    before = sys.getallocatedblocks()
    for number in range(2000, 12_000):
        await step(queue, number)
    gc.collect()
    grown = sys.getallocatedblocks() - before
    assert grown < 300, f"{grown} blocks more after 10,000 steps"
