"""What to do when the work fails: try again later, give it up, or let the block decide."""

import asyncio

from leasedkeyq import LeasedKeyQueue

MAX_ATTEMPTS = 3


class TemporaryError(Exception):
    pass


class PermanentError(Exception):
    pass


async def risky(value: str) -> None:
    if value == "flaky":
        raise TemporaryError("no answer")
    if value == "broken":
        raise PermanentError("cannot be read")


async def worker(queue: LeasedKeyQueue[str, str]) -> None:
    async for key, value, lease in queue:
        try:
            await risky(value)
        except TemporaryError as error:
            if lease.attempt < MAX_ATTEMPTS:
                delay = 0.01 * 2**lease.attempt
                print(f"{key}: {error}, attempt {lease.attempt}, again in {delay} s")
                await queue.release(lease, delay=delay)
            else:
                print(f"{key}: {error}, attempt {lease.attempt} was the last")
                await queue.bury(lease, f"{type(error).__name__}: {error}")
        except PermanentError as error:
            print(f"{key}: {error}, no use trying again")
            await queue.bury(lease, f"{type(error).__name__}: {error}")
        else:
            print(f"{key}: done")
            await queue.ack(lease)


async def main() -> None:
    async with asyncio.TaskGroup() as tasks, LeasedKeyQueue[str, str]() as queue:
        await queue.put_many({"a": "fine", "b": "flaky", "c": "broken"})
        tasks.create_task(worker(queue))
        await queue.join()
        for buried in await queue.buried():
            print(f"buried: {buried.key} after {buried.attempt} attempt(s), {buried.error}")
        print(f"forgotten: {await queue.purge_buried()}")

    async with LeasedKeyQueue[str, str]() as queue:
        await queue.put("d", "flaky")
        try:
            async with queue.lease() as item:  # acks on success, releases on any exception
                await risky(item.value)
        except TemporaryError as error:
            print(f"the block let {error!r} pass, and released: {await queue.available_keys()}")


asyncio.run(main())
