"""Nothing grows with the number of operations, only with what is in the queue."""

import gc
import logging
import os
import sys
import tracemalloc
from collections.abc import Awaitable, Callable
from typing import Any, Self

import pytest

from leasedkeyq import LeasedKeyQueue, MemoryStore
from leasedkeyq.model.requests import Put

Queue = LeasedKeyQueue[int, int]

STEPS = 10_000 if os.environ.get("TORTURE") == "1" else 2_500
MOST_BLOCKS = 100
"""Objects that may be there more after these steps, whatever a step does."""


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


async def append(queue: Queue, number: int) -> None:
    await queue.put(-2, number, if_present="append")
    if len(queue._state.items[-2].line or ()) > 20:
        await queue.ack((await queue.take(-2))[2])


async def remove_from_a_line(queue: Queue, number: int) -> None:
    for _ in range(2):
        await queue.put(-2, number, if_present="append")
    last: Any = queue._state.items[-2].last_in_line
    await queue.remove(-2, id=last.number)
    if number % 10 == 0:
        await queue.purge_line(-2)


async def hold(queue: Queue, number: int) -> None:
    for value in range(3):
        await queue.put(number, value, if_present="append")
    await queue.bury((await queue.take(number))[2], hold=True)
    if number > 5:
        await queue.remove(number - 5)


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
        append,
        remove_from_a_line,
        hold,
    ],
)
async def test_memory_stays_flat(
    step: Callable[[Queue, int], Awaitable[None]], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)  # pytest keeps what is logged
    queue = Queue(max_buried=10)
    for number in range(STEPS // 5):
        await step(queue, number)
    gc.collect()
    before = sys.getallocatedblocks()
    for number in range(STEPS // 5, STEPS // 5 + STEPS):
        await step(queue, number)
    gc.collect()
    grown = sys.getallocatedblocks() - before
    assert grown < MOST_BLOCKS, f"{grown} blocks more after {STEPS} steps"


IN_LINE = 10_000
"""Values in a line whose memory is measured."""


class Measured:
    """How many bytes are used more at the end of the block than at its beginning, for each value.

    Keys and values are made before: they do not count.
    """

    bytes = 0.0

    def __enter__(self) -> Self:
        gc.collect()
        tracemalloc.start()
        return self

    def __exit__(self, *_: object) -> None:
        gc.collect()
        self.bytes = tracemalloc.get_traced_memory()[0] / IN_LINE
        tracemalloc.stop()


async def test_a_value_in_a_line_costs_little() -> None:
    queue = Queue()
    await queue.put(1, 1)
    with Measured() as measured:
        for _ in range(IN_LINE):
            await queue.put(1, 1, if_present="append")
    assert measured.bytes < 300, f"{measured.bytes} bytes for each value"


@pytest.mark.parametrize("listed", [False, True])
async def test_a_value_in_a_line_of_a_memory_store_costs_little(listed: bool) -> None:
    """Also after a listing, which remembers the order of ids."""
    store = MemoryStore()
    put = Put("q", (("a", b"1"),), "append")
    with Measured() as measured:
        for _ in range(IN_LINE):
            await store.put([put])
        if listed:
            await store.browse("q", states=("in_line",), limit=10)
            await store.line("q", "a", cursor=str(IN_LINE // 2), limit=10)
    assert measured.bytes < 300, f"{measured.bytes} bytes for each value"
