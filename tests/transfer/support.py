"""Stores and items for the tests of `move`."""

import asyncio
from collections.abc import Sequence
from typing import Any, get_args

from leasedkeyq import MemoryStore, Store
from leasedkeyq.model.edit import Edit
from leasedkeyq.model.requests import (
    Ack,
    Answer,
    Bury,
    Change,
    Claim,
    Claimed,
    Counts,
    Put,
    StoredItem,
    StoredState,
)

EPOCH = 1_800_000_000.0


EVERY_STATE: tuple[StoredState, ...] = get_args(StoredState)


def clock() -> float:
    return EPOCH + asyncio.get_running_loop().time()


def memory(**options: Any) -> MemoryStore:
    return MemoryStore(clock=clock, **options)


async def put(store: Store, *keys: str, queue: str = "q", **options: Any) -> None:
    for key in keys:
        answer = (await store.put([Put(queue, ((key, f'"{key}"'.encode()),), **options)]))[0]
        assert isinstance(answer, tuple)


async def claim(
    store: Store, count: int = 1, *, key: str | None = None, lease_time: float | None = None
) -> Sequence[Claimed]:
    return (await store.claim([Claim((("q", count),), count, key, lease_time)]))[0]


async def drain(store: Store, queue: str = "q") -> list[Claimed]:
    return list((await store.claim([Claim(((queue, 10_000),), 10_000)]))[0])


async def items(store: Store, *states: StoredState, queue: str = "q") -> list[StoredItem]:
    return list((await store.browse(queue, states=states or EVERY_STATE, limit=1000)).items)


async def counts(store: Store, queue: str = "q") -> Counts:
    return (await store.count([queue])).get(queue, Counts())


async def fill(store: Store) -> None:
    """Something of everything."""
    await put(store, "a", "b", "c")
    await put(store, "urgent", priority=5, kind="sort")
    await put(store, "late", priority=3, delay=1000.0, kind="later")
    await put(store, "dead", kind="sort")
    (lease,) = await claim(store, key="dead")
    await store.settle([Bury("q", "dead", lease.token, "why it died")])
    await put(store, "done", kind="sort")
    (lease,) = await claim(store, key="done")
    await store.settle([Ack("q", "done", lease.token, b'{"result":1}', 500.0)])


async def fill_lines(store: Store) -> None:
    """Lines behind heads of every sort."""

    def values(key: str, first: int, last: int) -> tuple[tuple[str, bytes], ...]:
        return tuple((key, str(number).encode()) for number in range(first, last))

    await store.put([Put("q", values("held", 0, 4), "append")])
    (lease,) = await claim(store, key="held")
    await store.settle([Bury("q", "held", lease.token, "why", hold=True)])
    await store.put([Put("q", values("k", 0, 50), "append")])
    await store.put([Put("q", values("two", 0, 10), "append")])
    await store.put([Put("q", values("later", 0, 1), "append", delay=1000.0)])
    later = Put("q", values("later", 1, 2), "append", 4, 2000.0, kind="mail")
    await store.put([later])


class Faulty(MemoryStore):
    """Calls `fault` with the name of each verb before it, and after it with a ``+``."""

    def __init__(self, fault: Any) -> None:
        super().__init__(clock=clock)
        self.fault = fault

    async def _at(self, name: str) -> None:
        answer = self.fault(name)
        if answer is not None:
            await answer

    async def do_put(self, requests: Sequence[Put]) -> Any:
        await self._at("put")
        answers = await super().do_put(requests)
        await self._at("put+")
        return answers

    async def do_claim(self, requests: Sequence[Claim]) -> Any:
        await self._at("claim")
        answers = await super().do_claim(requests)
        await self._at("claim+")
        return answers

    async def do_settle(self, requests: Sequence[Change]) -> list[Answer]:
        await self._at("settle")
        answers = await super().do_settle(requests)
        await self._at("settle+")
        return answers

    async def do_edit(self, edit: Edit) -> list[Answer]:
        await self._at("edit")
        answers = await super().do_edit(edit)
        await self._at("edit+")
        return answers
