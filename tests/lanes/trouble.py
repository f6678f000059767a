"""A store that can be slow and can fail, and managers on it."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from leasedkeyq import MemoryStore
from leasedkeyq.lanes import QueueManagerBuilder
from leasedkeyq.model.requests import Answer, Change, Claim, Claimed, Extend, Put
from tests.lanes.support import clock


async def soon(true: Callable[[], bool]) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(1000):
        while not true():
            await asyncio.sleep(0.01)


class Trouble(MemoryStore):
    """A store that can be slow, and that can fail."""

    def __init__(self) -> None:
        super().__init__(clock=clock)
        self.fails: dict[str, Exception] = {}
        self.takes: dict[str, float] = {}
        self.calls: dict[str, int] = {}

    async def _hurt(self, verb: str) -> None:
        self.calls[verb] = self.calls.get(verb, 0) + 1
        if verb in self.takes:
            await asyncio.sleep(self.takes[verb])
        if verb in self.fails:
            raise self.fails[verb]

    async def do_put(self, requests: Sequence[Put]) -> Any:
        answer = await super().do_put(requests)
        await self._hurt("put")
        return answer

    async def do_claim(self, requests: Sequence[Claim]) -> list[tuple[Claimed, ...]]:
        await self._hurt("claim")
        answer = await super().do_claim(requests)
        if "claimed" in self.takes:
            await asyncio.sleep(self.takes["claimed"])
        return answer

    async def do_settle(self, requests: Sequence[Change]) -> list[Answer]:
        await self._hurt("extend" if isinstance(requests[0], Extend) else "settle")
        return await super().do_settle(requests)

    async def do_results(self, queue: str, ids: Sequence[int]) -> Any:
        await self._hurt("results")
        return await super().do_results(queue, ids)

    async def do_count(self, queues: Sequence[str] | None) -> Any:
        await self._hurt("count")
        found = await super().do_count(queues)
        if "counted" in self.takes:
            await asyncio.sleep(self.takes["counted"])
        return found


def on(store: MemoryStore) -> QueueManagerBuilder:
    return QueueManagerBuilder(clock=clock).with_storage(store)
