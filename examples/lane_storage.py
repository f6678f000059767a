"""Commands that survive: written down by one manager, run by the next."""

import asyncio
import tempfile

from leasedkeyq.lanes import CommandRegistry, LaneConfig, LocalStorage, QueueManagerBuilder

commands = CommandRegistry()


@commands.register("greet")
async def greet(name: str) -> str:
    print("hello", name)
    return name


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        storage = LocalStorage(folder)
        builder = QueueManagerBuilder().with_storage(storage).with_commands(commands)
        builder.with_lane("api", LaneConfig(1, 5), 0)

        before = builder.build()
        await before.submit("api", greet("Ada"), key="ada")
        await before.close()
        for command in await storage.load_commands():
            print("pending:", command.command_type, command.key)

        async with builder.build() as after:
            await after.drain()
        print("left:", len(await storage.load_commands()))
        await storage.close()


asyncio.run(main())
