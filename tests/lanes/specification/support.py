"""Commands and managers for the tables of the specification."""

import asyncio
from dataclasses import dataclass

from leasedkeyq.lanes import LaneConfig, QueueManager
from tests.lanes.support import Build


@dataclass
class MyCommand:
    """The command of the specification."""

    data: str
    command_type = "my_command"

    async def execute(self) -> dict[str, str]:
        return {"processed": self.data}


def one_lane(build: Build, config: LaneConfig | None = None) -> QueueManager:
    manager = build().with_lane("x", config or LaneConfig(0, 1), 0).build()
    manager.command("my_command")(MyCommand)
    return manager


async def failing() -> None:
    raise ValueError("on purpose")


async def sleeping(seconds: float) -> float:
    await asyncio.sleep(seconds)
    return seconds
