"""Stop in order: finish what can be finished in time, then read what is left."""

import asyncio

from leasedkeyq import LeasedKeyQueue, QueueClosedError

Queue = LeasedKeyQueue[str, float]


async def worker(queue: Queue, name: str) -> None:
    async for key, seconds, lease in queue:  # ends when the queue is closed
        await asyncio.sleep(seconds)
        try:
            await queue.ack(lease)
        except QueueClosedError:
            print(f"worker {name} was too slow: {key} stays in the queue")
        else:
            print(f"worker {name} finished {key}")
    print(f"worker {name} stops")


async def main() -> None:
    queue = Queue()
    async with asyncio.TaskGroup() as tasks:
        for name in ("A", "B"):
            tasks.create_task(worker(queue, name))
        await queue.put_many({"one": 0.05, "two": 0.4, "three": 0.1, "four": 0.3, "five": 0.1})

        try:
            async with asyncio.timeout(0.25):
                await queue.join()
        except TimeoutError:
            print("time is up")
        await queue.close()

    for item in await queue.snapshot():  # looking still works
        print(f"left: {item.key}, handed out {item.attempt} time(s)")


asyncio.run(main())
