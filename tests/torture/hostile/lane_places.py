"""Where payloads go in lanes: arguments, keys, results, errors and progress of commands, names."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, TypeAlias

from leasedkeyq.lanes import (
    EventEmitter,
    LaneConfig,
    QueueManager,
    QueueManagerBuilder,
    RemoteCommandError,
    RetryPolicy,
    current_command,
)
from leasedkeyq.stores import Purge, Store
from tests.torture.hostile.store_places import as_json
from tests.torture.hostile.verdicts import SpoiledError, Verdict, expect

LANE: Final = "hostile lane"
PATIENCE: Final = 30.0


class LaneDoor:
    """A worker that runs commands with a payload, for many rounds."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.manager = _builder(store, LANE).build()
        self.given: Any = None
        """What the commands return, raise and tell: it does not go through arguments."""

        @self.manager.command("echo")
        async def echo(argument: Any) -> Any:
            return argument

        @self.manager.command("give")
        async def give() -> Any:
            return self.given

        @self.manager.command("fail")
        async def fail() -> None:
            raise RuntimeError(self.given)

        @self.manager.command("tell")
        async def tell() -> None:
            current_command().progress(self.given)

        @self.manager.command("tell text")
        async def tell_text() -> None:
            current_command().progress(0.5, self.given)

        self.echo, self.give, self.fail = echo, give, fail
        self.tell, self.tell_text = tell, tell_text

    async def run(self, command: Any, **terms: Any) -> Any:
        """The result of a command."""
        handle = await self.manager.submit(LANE, command, **terms)
        async with asyncio.timeout(PATIENCE):
            return await handle

    async def ordinary(self) -> None:
        """An ordinary command runs, whatever was tried before."""
        expect(await self.run(self.echo("ordinary"), key="ordinary"), "ordinary", "a command")

    async def forget(self) -> None:
        """Empty the lanes."""
        names = [name for name in await self._store.count() if not name.startswith("leasedkeyq.")]
        await self._store.settle([Purge(name) for name in names])

    async def elsewhere(self, name: str, kind: str) -> None:
        """A worker of another lane or another type of command runs one."""
        manager: QueueManager = _builder(self._store, name).build()

        @manager.command(kind)
        async def echo(argument: int) -> int:
            return argument

        async with manager:
            handle = await manager.submit(name, echo(7), key="k")
            async with asyncio.timeout(PATIENCE):
                expect(await handle, 7, "the result")


def _builder(store: Store, lane: str) -> QueueManagerBuilder:
    config = LaneConfig(0, 2).with_retry_policy(RetryPolicy.none())
    return QueueManagerBuilder(EventEmitter()).with_lane(lane, config, 1).with_storage(store)


@asynccontextmanager
async def lane_door(store: Store) -> AsyncGenerator[LaneDoor]:
    """A worker, until the end of the block."""
    door = LaneDoor(store)
    async with door.manager:
        yield door


LanePlace: TypeAlias = Callable[[LaneDoor, Any], Awaitable[Verdict]]


async def argument(door: LaneDoor, value: Any) -> Verdict:
    expect(await door.run(door.echo(value)), as_json(value), "the argument")
    return "kept"


async def command_key(door: LaneDoor, value: Any) -> Verdict:
    handle = await door.manager.submit(LANE, door.echo(1), key=value)
    async with asyncio.timeout(PATIENCE):
        expect(await handle, 1, "the result")
    if value is not None:
        expect(handle.key, value, "the key")
        again = door.manager.handle(handle.id)
        expect(again.key, value, "the key of a handle by id")
    return "kept"


async def command_result(door: LaneDoor, value: Any) -> Verdict:
    """The worker that has run it has the object itself; what is kept of it others read."""
    door.given = value
    handle = await door.manager.submit(LANE, door.give())
    async with asyncio.timeout(PATIENCE):
        if await handle is not value:
            raise SpoiledError("another result came out")
    return "kept"


async def command_error(door: LaneDoor, value: Any) -> Verdict:
    door.given = value
    handle = await door.manager.submit(LANE, door.fail(), key="fails")
    try:
        async with asyncio.timeout(PATIENCE):
            await handle
    except (RuntimeError, RemoteCommandError):
        pass
    else:
        raise SpoiledError("the command did not fail")
    letters = await door.manager.dlq.list(LANE)
    await door.manager.dlq.clear()
    expect([letter.key for letter in letters], ["fails"], "the dead letters")
    return "kept"


async def command_progress(door: LaneDoor, value: Any) -> Verdict:
    door.given = value
    return await _told(door, door.tell())


async def text_of_progress(door: LaneDoor, value: Any) -> Verdict:
    door.given = value
    return await _told(door, door.tell_text())


async def _told(door: LaneDoor, command: Any) -> Verdict:
    """Progress that cannot be written down is an error of the command, and of nobody else."""
    try:
        await door.run(command, key="tells")
    finally:
        await door.manager.dlq.clear()
    return "kept"


async def lane_name(door: LaneDoor, value: Any) -> Verdict:
    await door.elsewhere(value, "echo")
    return "kept"


async def command_type(door: LaneDoor, value: Any) -> Verdict:
    await door.elsewhere("another lane", value)
    return "kept"


async def command_id(door: LaneDoor, value: Any) -> Verdict:
    return f"answered {door.manager.handle(value).status}"


LANE_PLACES: Final[dict[str, LanePlace]] = {
    "an argument of a command": argument,
    "the key of a command": command_key,
    "the result of a command": command_result,
    "the error of a command": command_error,
    "the progress of a command": command_progress,
    "the text of a progress": text_of_progress,
    "the name of a lane": lane_name,
    "the type of a command": command_type,
    "the id of a command": command_id,
}
