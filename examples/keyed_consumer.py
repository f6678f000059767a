"""Consumers that wait for one key each, next to one that takes whatever comes.

A waiting `take` goes before a waiting `get`. While a key is leased, nobody else gets it.
"""

import asyncio

from leasedkeyq import KeyNotAvailableError, LeasedKeyQueue

Queue = LeasedKeyQueue[str, str]


async def device(queue: Queue, key: str) -> None:
    """One consumer per device: it wants its own commands and no others."""
    while True:
        _, command, lease = await queue.take(key)
        print(f"{key} does {command!r}")
        await asyncio.sleep(0.02)
        await queue.ack(lease)


async def anyone(queue: Queue) -> None:
    async for key, command, lease in queue:
        print(f"nobody waits for {key}: {command!r} is logged")
        await queue.ack(lease)


async def main() -> None:
    async with Queue() as queue:
        consumers = [
            asyncio.create_task(anyone(queue)),
            asyncio.create_task(device(queue, "lamp")),
            asyncio.create_task(device(queue, "door")),
        ]
        await asyncio.sleep(0)  # all three wait now

        await queue.put("lamp", "on")
        await queue.put("door", "lock")
        await queue.put("radio", "louder")
        await queue.join()

        await queue.put("lamp", "off")  # handed to the waiting device at once
        try:
            queue.take_nowait("lamp")
        except KeyNotAvailableError as error:
            print(f"not for anybody else: {error}")
        await queue.join()

        try:
            await queue.take("window", timeout=0.05)
        except TimeoutError as error:
            print(f"time-out: {error}")

        for consumer in consumers:
            consumer.cancel()
        await asyncio.gather(*consumers, return_exceptions=True)


asyncio.run(main())
