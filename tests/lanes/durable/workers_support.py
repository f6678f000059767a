"""Workers that share a store, and what they note."""

import asyncio
from collections.abc import Sequence
from typing import Any

from leasedkeyq import MemoryStore
from leasedkeyq.lanes import LaneConfig, QueueManager, QueueManagerBuilder
from leasedkeyq.lanes.presence.records import WORKERS_QUEUE
from leasedkeyq.model.requests import Put
from tests.lanes.support import clock, now

LEASE = 9.0


class Diary:
    """What the workers of one store have run."""

    def __init__(self) -> None:
        self.lines: list[tuple[float, str]] = []
        self.running: dict[str, int] = {}
        self.most: dict[str, int] = {}

    def register(self, manager: QueueManager, worker: str = "") -> Any:
        @manager.command("note")
        async def note(name: str, seconds: float = 0.0, group: str = "") -> str:
            self.lines.append((round(now(), 3), f"{worker}{name}"))
            self.running[group] = self.running.get(group, 0) + 1
            self.most[group] = max(self.most.get(group, 0), self.running[group])
            try:
                await asyncio.sleep(seconds)
            finally:
                self.running[group] -= 1
            return worker

        return note

    @property
    def names(self) -> list[str]:
        return [name for _, name in self.lines]


def builder(
    store: MemoryStore, config: LaneConfig | None = None, **options: Any
) -> QueueManagerBuilder:
    config = config or LaneConfig(0, 4, lease_time=LEASE)
    return QueueManagerBuilder(clock=options.pop("clock", clock)).with_lane("x", config, 0)


def worker(
    store: MemoryStore,
    diary: Diary,
    name: str = "",
    config: LaneConfig | None = None,
    **options: Any,
) -> tuple[QueueManager, Any]:
    sharing = options.pop("sharing", None)
    built = builder(store, config, **options).with_storage(store)
    if sharing is not None:
        built.with_partition_sharing(sharing)
    manager = built.build()
    return manager, diary.register(manager, name)


def memory() -> MemoryStore:
    return MemoryStore(clock=clock)


class Failing(MemoryStore):
    """Fails to put into the queue of the worker group as often as it is told."""

    failures: list[Exception]

    async def do_put(self, requests: Sequence[Put]) -> Any:
        if requests[0].queue == WORKERS_QUEUE and self.failures:
            raise self.failures.pop()
        return await super().do_put(requests)


PARTS = LaneConfig(0, 4, partitions=16, lease_time=LEASE)
