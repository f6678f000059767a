"""A store with a lane, for tests of what operators see and do."""

from typing import Any

from leasedkeyq.lanes import CommandFunction, LaneConfig, QueueManager, QueueManagerBuilder
from leasedkeyq.stores import Bury, Claim, Put, Store
from tests.lanes.support import clock


async def bury(store: Store, queue: str, key: str, error: str, kind: str = "") -> None:
    """Put an item and give it up."""
    await store.put([Put(queue, ((key, b"1"),), kind=kind)])
    [[claimed]] = await store.claim([Claim(((queue, 1),), key=key)])
    await store.settle([Bury(queue, key, claimed.token, error)])


def mail_manager(
    store: Store, config: LaneConfig | None = None
) -> tuple[QueueManager, CommandFunction[Any, str]]:
    """A manager with a lane ``mail``, and the command that its type ``send`` makes."""
    builder = QueueManagerBuilder(clock=clock).with_storage(store)
    manager = builder.with_lane("mail", config or LaneConfig(0, 2), 5).build()

    @manager.command("send")
    async def send(to: str, number: int = 0) -> str:
        if to == "nobody":
            raise ValueError(f"no such address: {to!r}, try {number}")
        return f"sent to {to}"

    return manager, send
