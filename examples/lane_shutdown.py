"""Take no more commands, and wait for those that are there."""

import asyncio

from leasedkeyq.lanes import QueueManagerBuilder, ShuttingDownError


async def main() -> None:
    manager = QueueManagerBuilder().with_default_lanes().build()

    @manager.command("work")
    async def work(number: int) -> int:
        await asyncio.sleep(0.01)
        return number

    await manager.start()
    handles = [await manager.submit("session", work(number)) for number in range(20)]
    await manager.shutdown()
    try:
        await manager.submit("session", work(99))
    except ShuttingDownError as error:
        print(error)
    await manager.drain(30)
    print("done:", sum(handle.status == "completed" for handle in handles))
    await manager.close()


asyncio.run(main())
