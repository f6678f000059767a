"""A queue with a limit: a producer that is too fast has to wait."""

import asyncio

from leasedkeyq import LeasedKeyQueue, QueueFullError

Queue = LeasedKeyQueue[int, str]


async def producer(queue: Queue) -> None:
    for number in range(6):
        await queue.put(number, f"frame {number}")
        print(f"put {number}, {await queue.qsize()} wait")


async def consumer(queue: Queue) -> None:
    async for key, _, lease in queue:
        await asyncio.sleep(0.02)
        await queue.ack(lease)
        print(f"     done with {key}")


async def main() -> None:
    async with asyncio.TaskGroup() as tasks, Queue(maxsize=2) as queue:
        produced = tasks.create_task(producer(queue))
        tasks.create_task(consumer(queue))
        await produced
        await queue.join()

        # The waiting consumer takes one item at once, two may wait, and the next is one too many.
        try:
            for number in range(6, 10):
                queue.put_nowait(number, f"frame {number}")
        except QueueFullError as error:
            print(f"put_nowait does not wait: {error}")

        # A put that gives up has put nothing.
        try:
            async with asyncio.timeout(0.01):
                await queue.put(9, "frame 9")
        except TimeoutError:
            print(f"gave up on 9: {sorted(await queue.available_keys())} wait")
        await queue.join()


asyncio.run(main())
