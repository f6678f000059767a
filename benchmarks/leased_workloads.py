"""Workloads of a `LeasedKeyQueue`: this one or the published 0.0.7, whichever is installed."""

import asyncio
import random
import tracemalloc
from typing import Any

from benchmarks.timing import Turn, Workload, clock, names, quiet, resident_bytes
from leasedkeyq import LeasedKeyQueue


async def cycle(operations: int, waiting: int = 0) -> Turn:
    """put, get, ack by one task, with so many items waiting in the queue all the time."""
    queue: LeasedKeyQueue[str, int] = LeasedKeyQueue()
    burst = 1000
    keys = names(waiting + burst)
    for key in keys[:waiting]:
        await queue.put(key, 1)
    position = waiting

    async def turn() -> float:
        nonlocal position
        seconds = 0.0
        quiet()
        for _ in range(operations // burst):
            # Items leave in the order in which they came, so these keys are free by now.
            chosen = keys[position : position + burst]
            chosen += keys[: burst - len(chosen)]
            position = (position + burst) % len(keys)
            start = clock()
            for key in chosen:
                await queue.put(key, 1)
                _, _, lease = await queue.get()
                await queue.ack(lease)
            seconds += clock() - start
        return seconds / operations

    return turn


async def settle(
    operations: int, outstanding: int, lease_timeout: float | None, lengths: int = 1
) -> Turn:
    """get, ack while others hold leases; the puts are not timed.

    With several lengths every lease asks for one of so many time-outs, up to twice the given one.
    """
    queue: LeasedKeyQueue[str, int] = LeasedKeyQueue(default_lease_timeout=lease_timeout)
    keys = names(min(1000, operations))
    own: list[float | None] = [None] * len(keys)
    if lease_timeout is not None and lengths > 1:
        steps = random.Random(1).choices(range(lengths), k=len(keys))
        own = [lease_timeout * (1 + step / lengths) for step in steps]
    for number in range(outstanding):
        await queue.put(f"held-{number}", 1)
        await queue.get(lease_timeout=own[number % len(own)])

    async def turn() -> float:
        seconds = 0.0
        quiet()
        for _ in range(operations // len(keys)):
            for key in keys:
                await queue.put(key, 1)
            start = clock()
            if lengths > 1:
                for length in own:
                    _, _, lease = await queue.get(lease_timeout=length)
                    await queue.ack(lease)
            else:
                for _ in keys:
                    _, _, lease = await queue.get()
                    await queue.ack(lease)
            seconds += clock() - start
        return seconds / operations

    return turn


async def all_takers(takers: int, portions: int) -> Turn:
    """Tasks wait in `take`, each for its own key; then one task puts all keys.

    It lets the others run after each of so many portions. Timed from the first put until the last
    taker has its item.
    """
    keys = names(takers)
    size = -(-takers // portions)

    async def turn() -> float:
        queue: LeasedKeyQueue[str, int] = LeasedKeyQueue()
        tasks = [asyncio.create_task(queue.take(key)) for key in keys]
        await asyncio.sleep(0)
        quiet()
        start = clock()
        for first in range(0, takers, size):
            for key in keys[first : first + size]:
                await queue.put(key, 1)
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        return (clock() - start) / takers

    return turn


async def standing_takers(takers: int, steps: int) -> Turn:
    """So many tasks wait in `take` all the time; each put serves one of them.

    A step puts 1,000 keys, timed until their takers have acknowledged them. Then, with the clock
    stopped, as many new takers come.
    """
    queue: LeasedKeyQueue[str, int] = LeasedKeyQueue()
    keys = names(takers)
    running: dict[str, asyncio.Task[None]] = {}
    position = left = 0
    all_served = asyncio.Event()

    async def take_one(key: str) -> None:
        nonlocal left
        _, _, lease = await queue.take(key)
        await queue.ack(lease)
        left -= 1
        if not left:
            all_served.set()

    async def send(some: list[str]) -> None:
        for key in some:
            running[key] = asyncio.create_task(take_one(key))
        await asyncio.sleep(0)

    await send(keys)

    async def turn() -> float:
        nonlocal position, left
        seconds = 0.0
        count = 0
        quiet()
        for _ in range(steps):
            some = keys[position : position + 1000]
            position = (position + 1000) % takers
            left = len(some)
            all_served.clear()
            start = clock()
            for key in some:
                await queue.put(key, 1)
            await all_served.wait()
            seconds += clock() - start
            count += len(some)
            await send(some)
        return seconds / count

    return turn


async def pipeline(items: int, consumers: int, producers: int) -> Turn:
    """Consumers wait in `get`; producers put one item each per turn of the event loop."""
    queue: LeasedKeyQueue[str, int] = LeasedKeyQueue()
    keys = names(items)
    left = 0
    all_done = asyncio.Event()

    async def consume() -> None:
        nonlocal left
        while True:
            _, _, lease = await queue.get()
            await queue.ack(lease)
            left -= 1
            if not left:
                all_done.set()

    async def produce(mine: list[str]) -> None:
        for key in mine:
            await queue.put(key, 1)
            await asyncio.sleep(0)

    running = [asyncio.create_task(consume()) for _ in range(consumers)]
    await asyncio.sleep(0)

    async def turn() -> float:
        nonlocal left
        left = items
        all_done.clear()
        quiet()
        start = clock()
        await asyncio.gather(*(produce(keys[first::producers]) for first in range(producers)))
        await all_done.wait()
        seconds = clock() - start
        assert not any(task.done() for task in running)
        return seconds / items

    return turn


async def bursts(operations: int, waiting: int, priorities: int) -> Turn:
    """100 puts, then 100 times get and ack, with so many items waiting."""
    queue: LeasedKeyQueue[str, int] = LeasedKeyQueue()
    for key in names(waiting):
        await queue.put(key, 1)
    free = [f"burst-{number}" for number in range(100)]

    async def turn() -> float:
        nonlocal free
        seconds = 0.0
        quiet()
        for _ in range(operations // len(free)):
            done: list[str] = []
            start = clock()
            for number, key in enumerate(free):
                if priorities:
                    await queue.put(key, 1, priority=number % priorities)
                else:
                    await queue.put(key, 1)
            for _ in free:
                key, _, lease = await queue.get()
                await queue.ack(lease)
                done.append(key)
            seconds += clock() - start
            free = done
        return seconds / operations

    return turn


async def footprint(items: int, traced: bool) -> Turn:
    """Bytes that one waiting item takes beside its key and value, which exist already.

    Traced: what Python's allocators were asked for. Otherwise: how much the process grew, with
    whatever the allocators lose. One turn per process: memory that was freed is used again.
    """
    keys = names(items)
    values: list[Any] = [object() for _ in keys]

    async def turn() -> float:
        queue: LeasedKeyQueue[str, Any] = LeasedKeyQueue()
        await queue.put("first", values[0])
        quiet()
        if traced:
            tracemalloc.start()
        before = _bytes_in_use(traced)
        for key, value in zip(keys, values, strict=True):
            await queue.put(key, value)
        return (_bytes_in_use(traced) - before) / items

    return turn


def _bytes_in_use(traced: bool) -> int:
    if traced:
        return tracemalloc.get_traced_memory()[0]
    return resident_bytes() or 0


WORKLOADS: dict[str, Workload] = {
    "cycle": cycle,
    "settle": settle,
    "all_takers": all_takers,
    "standing_takers": standing_takers,
    "pipeline": pipeline,
    "bursts": bursts,
    "footprint": footprint,
}
