"""Urgent items first, others not before their time."""

import asyncio

from leasedkeyq import LeasedKeyQueue


async def main() -> None:
    async with LeasedKeyQueue[str, str]() as queue:
        await queue.put("letter", "by post")
        await queue.put("parcel", "by van")
        await queue.put("heart", "by helicopter", priority=10)
        await queue.put("invoice", "at the end of the month", delay=0.1)

        await queue.put("parcel", "by van, tomorrow")  # a new value, the same place
        await queue.put("letter", "by courier", priority=5)  # a new value and a new place

        print(f"available: {await queue.qsize()}, scheduled: {await queue.scheduled_keys()}")
        for item in await queue.snapshot():
            print(f"  {item.state:9}  priority {item.priority:2}  {item.key}")

        for _ in range(4):
            key, value, lease = await queue.get()
            print(f"{key} goes {value}")
            await queue.ack(lease)


asyncio.run(main())
