"""A producer and a consumer: put, get, ack, and release after a failure."""

import asyncio

from leasedkeyq import LeasedKeyQueue


async def process(task: dict[str, str], attempt: int) -> None:
    await asyncio.sleep(0.01)
    if task["action"] == "charge" and attempt == 1:
        raise ConnectionError("the payment service is away")


async def main() -> None:
    async with LeasedKeyQueue[str, dict[str, str]]() as queue:
        await queue.put("task-1", {"action": "resize"})
        await queue.put("task-2", {"action": "charge"})
        await queue.put("task-3", {"action": "mail"})

        while await queue.qsize():
            key, value, lease = await queue.get()
            try:
                await process(value, lease.attempt)
            except ConnectionError as error:
                print(f"{key}: {value['action']} failed ({error}), back to the front")
                await queue.release(lease, requeue_front=True)
            else:
                print(f"{key}: {value['action']} done in attempt {lease.attempt}")
                await queue.ack(lease)


asyncio.run(main())
