"""Leases that expire: a worker hangs, another takes over, and the first is refused.

A worker that needs longer extends its lease while it works.
"""

import asyncio

from leasedkeyq import LeasedKeyQueue, LeaseExpiredError

Queue = LeasedKeyQueue[str, str]


async def sleepy(queue: Queue) -> None:
    key, _, lease = await queue.get()
    print(f"sleepy has {key} (fence {lease.fence}) and hangs")
    await asyncio.sleep(0.3)
    try:
        await queue.ack(lease)
    except LeaseExpiredError as error:
        print(f"sleepy comes too late for {error.key}: {type(error).__name__}")


async def steady(queue: Queue) -> None:
    key, _, lease = await queue.get()
    print(f"steady takes over {key} (fence {lease.fence}, attempt {lease.attempt})")
    for _ in range(3):
        await asyncio.sleep(0.06)
        await queue.extend(lease)  # another 0.1 s from now
    await queue.ack(lease)
    print(f"steady is done after 0.18 s, longer than one lease of {key}")


async def main() -> None:
    async with Queue(default_lease_timeout=0.1) as queue:
        await queue.put("report", "make it")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(sleepy(queue))
            tasks.create_task(steady(queue))

        await queue.put("archive", "pack it")
        key, _, lease = await queue.get(lease_timeout=60)  # for this lease only
        print(f"the lease on {key} lasts longer than the default")
        await queue.ack(lease)


asyncio.run(main())
