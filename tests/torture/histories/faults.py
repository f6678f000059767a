"""A store behind a bad line: requests and answers are late, and some of them are lost."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from leasedkeyq.errors import StoreError, StoreUnavailableError
from leasedkeyq.model.requests import Answer, Change, Claim, Claimed, Put, StoredItem
from leasedkeyq.stores.store import Store
from tests.testing.broken.through import PutAnswer, Through

T = TypeVar("T")


@dataclass(frozen=True)
class Line:
    """How bad a line is.

    Attributes:
        delay: Seconds that a request or an answer takes, at most.
        lost_requests: The share of requests that do not arrive.
        lost_answers: The share of answers that do not.
    """

    delay: float = 0.0
    lost_requests: float = 0.0
    lost_answers: float = 0.0


class BadLine(Through):
    """What one client sees of a store that others use, too. Closing it leaves that open."""

    def __init__(self, store: Store, line: Line, dice: Random) -> None:
        super().__init__(lambda: store)
        self._line = line
        self._dice = dice

    @property
    def outage(self) -> StoreError | None:
        return self.inner.outage

    async def do_put(self, requests: Sequence[Put]) -> list[PutAnswer]:
        return await self._pass(lambda: self.inner.put(requests))

    async def do_claim(self, requests: Sequence[Claim]) -> list[tuple[Claimed, ...]]:
        return await self._pass(lambda: self.inner.claim(requests))

    async def do_settle(self, requests: Sequence[Change]) -> list[Answer]:
        return await self._pass(lambda: self.inner.settle(requests))

    async def do_look(self, queue: str, keys: Sequence[str]) -> list[tuple[StoredItem, ...]]:
        return await self._pass(lambda: self.inner.look(queue, keys))

    async def do_line(
        self, queue: str, key: str, after: int, limit: int, /
    ) -> Sequence[StoredItem]:
        return await self._pass(lambda: super(BadLine, self).do_line(queue, key, after, limit))

    async def do_close(self) -> None:
        """Others use the store."""

    async def _pass(self, ask: Callable[[], Awaitable[T]]) -> T:
        line, dice = self._line, self._dice
        await asyncio.sleep(dice.random() * line.delay)
        if dice.random() < line.lost_requests:
            raise StoreUnavailableError("the request was lost on its way")
        answer = await ask()
        await asyncio.sleep(dice.random() * line.delay)
        if dice.random() < line.lost_answers:
            raise StoreUnavailableError("the answer was lost on its way")
        return answer
