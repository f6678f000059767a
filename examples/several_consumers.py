"""Three workers share the work and stop when nothing has come for a while."""

import asyncio
from collections import Counter

from leasedkeyq import LeasedKeyQueue


async def worker(queue: LeasedKeyQueue[str, dict[str, int]], name: str, done: Counter[str]) -> None:
    while True:
        try:
            key, value, lease = await queue.get(timeout=0.1)
        except TimeoutError:
            print(f"worker {name} stops: nothing came for 0.1 s")
            return
        if value["id"] % 25 == 0:
            print(f"worker {name} is at {key}")
        await asyncio.sleep(0.001)
        await queue.ack(lease)
        done[name] += 1


async def main() -> None:
    done = Counter[str]()
    async with LeasedKeyQueue[str, dict[str, int]]() as queue:
        await queue.put_many((f"task-{i}", {"id": i}) for i in range(100))
        await asyncio.gather(*(worker(queue, name, done) for name in "ABC"))
    print(f"{done.total()} tasks done, each by one worker")


asyncio.run(main())
