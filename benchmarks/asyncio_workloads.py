"""The same workloads for the queues of `asyncio`, as far as they go: no keys, no leases."""

import asyncio

from benchmarks.timing import Turn, Workload, clock, names, quiet


async def cycle(operations: int) -> Turn:
    """put, get, task_done by one task."""
    queue: asyncio.Queue[str] = asyncio.Queue()
    keys = names(1000)

    async def turn() -> float:
        seconds = 0.0
        quiet()
        for _ in range(operations // len(keys)):
            start = clock()
            for key in keys:
                await queue.put(key)
                await queue.get()
                queue.task_done()
            seconds += clock() - start
        return seconds / operations

    return turn


async def pipeline(items: int, consumers: int, producers: int) -> Turn:
    """Consumers wait in `get`; producers put one item each per turn of the event loop."""
    queue: asyncio.Queue[str] = asyncio.Queue()
    keys = names(items)
    left = 0
    all_done = asyncio.Event()

    async def consume() -> None:
        nonlocal left
        while True:
            await queue.get()
            queue.task_done()
            left -= 1
            if not left:
                all_done.set()

    async def produce(mine: list[str]) -> None:
        for key in mine:
            await queue.put(key)
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
    """100 puts, then 100 times get and task_done, with so many items waiting.

    A `PriorityQueue` keeps neither the order of arrival nor values that cannot be compared, unless
    its entries carry a number.
    """
    queue: asyncio.PriorityQueue[tuple[int, int, str]] = asyncio.PriorityQueue()
    count = 0
    for key in names(waiting):
        count += 1
        await queue.put((0, count, key))
    burst = names(100)

    async def turn() -> float:
        nonlocal count
        seconds = 0.0
        quiet()
        for _ in range(operations // len(burst)):
            start = clock()
            for number, key in enumerate(burst):
                count += 1
                await queue.put((-(number % priorities), count, key))
            for _ in burst:
                await queue.get()
                queue.task_done()
            seconds += clock() - start
        return seconds / operations

    return turn


WORKLOADS: dict[str, Workload] = {"cycle": cycle, "pipeline": pipeline, "bursts": bursts}
