"""Claims that do not begin at the beginning: others keep deleted rows in the way."""

import asyncio
import random
import time
from collections.abc import Sequence
from typing import Any

import asyncpg
import pytest

from leasedkeyq import connect
from leasedkeyq.engines.postgres.store import PostgresStore
from leasedkeyq.errors import StoreError
from leasedkeyq.stores import Ack, Claim, Claimed, Limits, Put, Release
from leasedkeyq.testing import ManualClock, Place
from leasedkeyq.testing.differential import Differential
from tests.servers.postgres import schemas


class Forgetful(PostgresStore):
    """Looks where its queues begin before every third claim."""

    dice: random.Random

    async def do_claim(self, requests: Sequence[Claim]) -> list[tuple[Claimed, ...] | StoreError]:
        if self.dice.random() < 0.3:
            queues = list(dict.fromkeys(q for request in requests for q, _ in request.queues))
            await self._link()._raise(queues)
        return await super().do_claim(requests)


@pytest.mark.parametrize("stores", [1, 2])
def test_the_answers_are_the_same_wherever_a_claim_begins(stores: int) -> None:
    place = Place()
    seed = random.SystemRandom().randrange(2**32)
    clock = ManualClock()

    async def run() -> None:
        schema = schemas().borrow(place)
        limits = Limits(buried=3, history=3)
        opened = [
            Forgetful(schemas().url, schema=schema, clock=clock, limits=limits)
            for _ in range(stores)
        ]
        for store in opened:
            store.dice = random.Random(seed)
        await Differential(opened, clock, seed).run(150)
        for store in opened:
            await store.close()

    asyncio.run(run())
    place.close()


def test_what_comes_back_before_the_beginning_is_found() -> None:
    """A claim that is undone, an item that goes to the front, and a lease that expires."""
    place = Place()
    clock = ManualClock()

    async def run() -> None:
        store = PostgresStore(schemas().url, schema=schemas().borrow(place), clock=clock)
        link = store._link()
        await store.put([Put("q", ((key, b"1"),)) for key in "abcdef"])

        async def claimed(lease: float = 600.0) -> Claimed:
            await link._raise(["q"])
            [head] = await store.heads(["q"])
            [[item]] = await store.claim([Claim((("q", 1),), 1, None, lease)])
            assert head is not None
            assert head.key == item.key
            return item

        a, b, c = await claimed(), await claimed(), await claimed(1.0)
        assert [a.key, b.key, c.key] == ["a", "b", "c"]
        await link._raise(["q"])
        await store.settle([Release("q", "b", b.token, undo=True)])
        assert (await claimed()).key == "b"
        await store.settle([Release("q", "a", a.token, front=True)])
        await link._raise(["q"])
        assert (await claimed()).key == "a"
        clock.advance(2)
        assert (await claimed()).key == "c"
        assert [(await claimed()).key for _ in "def"] == ["d", "e", "f"]
        await link._raise(["q"])
        await store.put([Put("q", (("g", b"1"),))])
        assert (await claimed()).key == "g"
        await store.close()

    asyncio.run(run())
    place.close()


@pytest.mark.parametrize("kinds", [None, ("", "other")])
def test_claims_stay_fast_beside_a_long_transaction_of_somebody_else(
    kinds: tuple[str, ...] | None,
) -> None:
    """Rows that were deleted since it began cannot be removed, and are not walked over."""
    asyncio.run(beside_a_long_transaction(dead=100_000, claims=60, kinds=kinds))


async def beside_a_long_transaction(
    dead: int, claims: int, kinds: tuple[str, ...] | None = None
) -> None:
    place = Place()
    schema = schemas().borrow(place)
    store = connect(schemas().url, schema=schema)
    other = await asyncpg.connect(schemas().url)
    old = other.transaction(isolation="repeatable_read")
    await old.start()
    await other.fetchval("SELECT count(*) FROM pg_class")
    try:
        await store.put([Put("q", tuple((f"a{n}", b"1") for n in range(2 * claims)))])
        quiet = await claim_times(store, claims, kinds)
        await make_dead_rows(schema, dead)
        await store.put([Put("q", tuple((f"b{n}", b"1") for n in range(3 * claims)))])
        async with asyncio.timeout(60):
            # The first claims find out; how soon they do depends on what was slow before.
            while median(await claim_times(store, claims, kinds)) > 3 * median(quiet) + 0.001:
                await store.put([Put("q", tuple((f"c{n}", b"1") for n in range(claims)))])
    finally:
        await old.rollback()
        await other.close()
        await store.close()
        place.close()


async def make_dead_rows(schema: str, dead: int) -> None:
    """As many items as come and go: they were leased for a moment, and are gone."""
    connection = await asyncpg.connect(schemas().url)
    table = f"{schema}.items"
    await connection.execute(
        f"INSERT INTO {table} (id, queue, key, state, priority, place, put_at, due, value) "
        f"SELECT nextval('{schema}.ids'), 'q', 'dead' || n, CASE WHEN n % 2 = 0 THEN 0 ELSE 2 END, "
        f"0, nextval('{schema}.places'), 0, CASE WHEN n % 2 = 1 THEN 1 END, '1' "
        f"FROM generate_series(1, {dead}) n"
    )
    await connection.execute(f"DELETE FROM {table} WHERE key LIKE 'dead%'")
    await connection.close()


async def claim_times(store: Any, claims: int, kinds: tuple[str, ...] | None) -> list[float]:
    times: list[float] = []
    for _ in range(claims):
        began = time.perf_counter()
        [[item]] = await store.claim([Claim((("q", 1),), 1, None, 600.0, kinds)])
        times.append(time.perf_counter() - began)
        assert await store.settle([Ack("q", item.key, item.token)]) == [None]
    return times


def median(times: list[float]) -> float:
    return sorted(times)[len(times) // 2]
