"""Listen to what happens in the lanes."""

import asyncio

from leasedkeyq.lanes import EventEmitter, QueueManagerBuilder


async def main() -> None:
    emitter = EventEmitter(100)
    manager = QueueManagerBuilder(emitter).with_default_lanes().build()

    @manager.command("greet")
    async def greet(name: str) -> str:
        return f"hello {name}"

    completed = emitter.subscribe_filtered(lambda event: event.key.endswith(".completed"))
    async with emitter.subscribe() as events, manager:
        handle = await manager.submit("query", greet("Ada"))
        print(await handle)
        for _ in range(3):
            event = await events.recv()
            print(event.key, event.payload["lane"])
    print((await completed.recv()).payload["command_type"])


asyncio.run(main())
