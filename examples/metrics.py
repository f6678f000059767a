"""An observer that counts events and measures how long items wait and how long leases last."""

import asyncio
from collections import Counter

from leasedkeyq import LeasedKeyQueue, QueueObserver


class Metrics(QueueObserver[str]):
    def __init__(self) -> None:
        self.counts = Counter[str]()
        self.longest = dict[str, float]()

    def note(self, event: str, key: str, attempt: int = 0, seconds: float = 0.0) -> None:
        self.counts[event] += 1
        self.longest[event] = max(seconds, self.longest.get(event, 0.0))
        if attempt > 1:
            print(f"{event} of {key}, attempt {attempt}")

    def on_put(self, key: str) -> None:
        self.note("put", key)

    def on_claim(self, key: str, attempt: int, waited: float) -> None:
        self.note("claim", key, attempt, waited)

    def on_ack(self, key: str, attempt: int, held: float) -> None:
        self.note("ack", key, attempt, held)

    def on_release(self, key: str, attempt: int, held: float) -> None:
        self.note("release", key, attempt, held)

    def on_expire(self, key: str, attempt: int, held: float) -> None:
        self.note("expiry", key, attempt, held)

    def on_bury(self, key: str, attempt: int, held: float) -> None:
        self.note("burial", key, attempt, held)

    def on_remove(self, key: str) -> None:
        self.note("removal", key)


async def worker(queue: LeasedKeyQueue[str, int]) -> None:
    async for _, value, lease in queue:
        if value == 2 and lease.attempt == 1:
            await queue.release(lease)
        else:
            await asyncio.sleep(0.01)
            await queue.ack(lease)


async def main() -> None:
    metrics = Metrics()
    async with (
        asyncio.TaskGroup() as tasks,
        LeasedKeyQueue[str, int](default_lease_timeout=1.0, observer=metrics) as queue,
    ):
        await queue.put_many({f"task-{i}": i for i in range(5)})
        await asyncio.sleep(0.05)  # all five wait
        await queue.get()  # by somebody who never comes back: the lease expires
        tasks.create_task(worker(queue))
        await queue.join()

    for event, count in metrics.counts.items():
        print(f"{event:8} {count:2}  longest {metrics.longest[event]:.2f} s")


asyncio.run(main())
