"""Work on a queue while its server fails, and the judgement of what became of it."""

import asyncio
from collections.abc import Sequence

from leasedkeyq.model.requests import Ack, Claim, Put
from leasedkeyq.stores import Store

LEASE = 600.0


class Load:
    """A producer and a consumer for each store, all on one queue.

    Attributes:
        acknowledged: The keys of all items that were put.
        done: How often each was finished.
    """

    def __init__(self, stores: Sequence[Store], queue: str = "q") -> None:
        self.queue = queue
        self.acknowledged: set[str] = set()
        self.done: dict[str, int] = {}
        self._stores = stores
        self._held: set[str] = set()
        self._enough = asyncio.Event()
        works = [
            work
            for number, store in enumerate(stores)
            for work in (self._produce(store, number), self._consume(store))
        ]
        self._running = asyncio.gather(*works)

    async def _produce(self, store: Store, name: int) -> None:
        number = 0
        while not self._enough.is_set():
            keys = [f"{name}-{number + more}" for more in range(5)]
            [answer] = await store.put([Put(self.queue, tuple((key, b"1") for key in keys))])
            assert isinstance(answer, tuple)
            self.acknowledged.update(keys)
            number += 5
            await asyncio.sleep(0.001)

    async def _consume(self, store: Store) -> None:
        while not self._enough.is_set():
            [items] = await store.claim([Claim(((self.queue, 3),), 3, None, LEASE)])
            for item in items:
                assert item.key not in self._held, "a key was held twice"
                self._held.add(item.key)
            acks = [Ack(self.queue, item.key, item.token) for item in items]
            for item, answer in zip(items, await store.settle(acks), strict=True):
                assert answer is None, "a valid lease was refused"
                self._held.remove(item.key)
                self.done[item.key] = self.done.get(item.key, 0) + 1
            await asyncio.sleep(0.001)

    async def progress(self, items: int) -> None:
        """Wait until so many more were put, and so many more finished."""
        put, done = len(self.acknowledged) + items, len(self.done) + items
        while len(self.acknowledged) < put or len(self.done) < done:
            if self._running.done():
                self._running.result()
            await asyncio.sleep(0.01)

    async def finish(self) -> None:
        """Let the last calls come to their end, and judge."""
        self._enough.set()
        await self._running
        left: set[str] = set()
        cursor: str | None = None
        while True:
            page = await self._stores[0].browse(self.queue, cursor=cursor, limit=1000)
            left.update(item.key for item in page.items)
            cursor = page.cursor
            if cursor is None:
                break
        assert set(self.done.values()) == {1}, "an item was finished twice"
        assert not left & set(self.done), "what was finished came back"
        assert left | set(self.done) == self.acknowledged, "an item was lost, or came from nowhere"
