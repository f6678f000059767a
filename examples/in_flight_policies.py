"""A put for a key that somebody is working on: update, reject or buffer."""

import asyncio

from leasedkeyq import KeyAlreadyInFlightError, LeasedKeyQueue


async def update() -> None:
    async with LeasedKeyQueue[str, str]() as queue:
        await queue.put("page", "draft 1")
        _, value, lease = await queue.get()
        await queue.put("page", "draft 2", if_in_flight="update")
        print(f"update: the holder still has {value!r}")
        await queue.release(lease)
        _, value, lease = await queue.get()
        print(f"update: after a release the next one gets {value!r}")
        await queue.put("page", "draft 3")  # "update" is the default
        await queue.ack(lease)
        print(f"update: after an ack nothing is left, draft 3 included: {await queue.snapshot()}")


async def reject() -> None:
    async with LeasedKeyQueue[str, str]() as queue:
        await queue.put("page", "draft 1")
        _, _, lease = await queue.get()
        try:
            await queue.put("page", "draft 2", if_in_flight="reject")
        except KeyAlreadyInFlightError as error:
            print(f"reject: {error}")
        await queue.ack(lease)


async def buffer() -> None:
    async with LeasedKeyQueue[str, str]() as queue:
        await queue.put("page", "draft 1")
        _, _, lease = await queue.get()
        await queue.put("page", "draft 2", if_in_flight="buffer")
        print(f"buffer: draft 2 waits beside the leased one: qsize is {await queue.qsize()}")
        try:
            await queue.get(timeout=0.05)
        except TimeoutError:
            print("buffer: nobody gets it while the first lease lasts")
        await queue.ack(lease)
        _, value, lease = await queue.get()
        print(f"buffer: after the ack, {value!r} is handed out")
        await queue.ack(lease)


async def main() -> None:
    await update()
    await reject()
    await buffer()


asyncio.run(main())
