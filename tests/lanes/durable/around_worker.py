"""A worker process for the tests: commands with defaults, batches, middleware and a resource.

It tells ``ready``, ``open`` and ``close`` of its lifespan, ``around TYPE/ATTEMPT`` of its
middleware, and for each batch ``start ITEM/ATTEMPT ...`` and ``end ITEM ...``. A batch or a command
with an item of `STUCK` or above does not end, in a worker that is told to be stuck.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

from leasedkeyq.lanes import (
    BatchFunction,
    CallNext,
    CommandFunction,
    LaneConfig,
    QueueManager,
    QueueManagerBuilder,
    RunningCommand,
    current_batch,
    current_command,
    resource,
)

STUCK = 100
SIZE = 4


class Factor:
    """What the lifespan opens."""

    number = 2


class Commands(NamedTuple):
    """A manager and its commands."""

    manager: QueueManager
    batch: BatchFunction[int, int]
    double: CommandFunction[[int], int]


def build(url: str, lease: float = 4.0) -> Commands:
    config = LaneConfig(0, SIZE, lease_time=lease, cancel_grace=0.5)
    builder = QueueManagerBuilder().with_lane("index", config, 0).with_lane("other", config, 1)
    manager = builder.with_storage(url).with_drain_timeout(10).build()

    @manager.lifespan
    async def factor() -> AsyncIterator[Factor]:
        print("open", flush=True)
        yield Factor()
        print("close", flush=True)

    @manager.middleware
    async def around(command: RunningCommand, call_next: CallNext) -> Any:
        print(f"around {command.command_type}/{command.attempt}", flush=True)
        return await call_next()

    @manager.batch("index", size=SIZE, within=0.2, lane="index", key=lambda item: f"item-{item}")
    async def index(items: list[int], factor: Factor = resource()) -> list[int]:
        attempts = [command.attempt for command in current_batch()]
        shown = [f"{item}/{attempt}" for item, attempt in zip(items, attempts, strict=True)]
        print("start", *shown, flush=True)
        await maybe_stuck(max(items))
        print("end", *items, flush=True)
        return [item * factor.number for item in items]

    async def double(number: int, factor: Factor = resource()) -> int:
        command = current_command()
        assert (command.lane, command.timeout) == ("other", 3600)
        await maybe_stuck(number)
        return number * factor.number

    registered: Any = manager.command(
        "double", double, lane="other", key=lambda number: f"number-{number}", timeout=3600
    )
    return Commands(manager, index, registered)


async def maybe_stuck(number: int) -> None:
    if "stuck" in sys.argv and number >= STUCK:
        await asyncio.sleep(3600)


async def main(url: str) -> None:
    manager = build(url).manager
    print("ready", flush=True)
    await manager.run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
