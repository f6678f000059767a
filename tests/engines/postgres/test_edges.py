"""What is longer, more or more at a time than usual."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from math import inf
from typing import Any

import asyncpg
import msgspec
import pytest

from leasedkeyq import MemoryStore
from leasedkeyq.engines.postgres.batch import Batch
from leasedkeyq.engines.postgres.link import TIDY_EVERY
from leasedkeyq.engines.postgres.store import PostgresStore
from leasedkeyq.stores import (
    Ack,
    Claim,
    Claimed,
    Counts,
    Extend,
    Limits,
    Put,
    Release,
    Store,
    Urgency,
)
from leasedkeyq.testing import ManualClock
from tests.engines.postgres.test_races import QUEUE, leased, one, with_store

EXPIRED = 12_000


@pytest.mark.parametrize("connections, calls", [(1, 2), (2, 1)])
def test_calls_overlap_where_they_are_answered_in_their_order(connections: int, calls: int) -> None:
    async def test(store: PostgresStore) -> None:
        assert store.calls_at_a_time == calls

    with_store(test, connections=connections)


def test_a_queue_whose_name_is_too_long_to_be_told() -> None:
    async def test(store: PostgresStore) -> None:
        name = "q" * 8500
        for value in (b"1", b"2"):
            [ids] = await store.put([Put(name, (("a", value),))])
            assert isinstance(ids, tuple), ids
        [[item]] = await store.claim([Claim(((name, 1),))])
        assert item.value == b"2"
        assert await store.settle([Ack(name, "a", item.token)]) == [None]

    with_store(test, limits=Limits(key_length=10_000))


def test_all_results_that_have_expired_are_forgotten_by_and_by() -> None:
    """A busy worker never sweeps, and more of them expire than are forgotten at a time."""

    async def test(store: PostgresStore) -> None:
        connection = await asyncpg.connect(store._url)
        table = f"{store.schema}.done"
        await connection.execute(
            f"INSERT INTO {table} "
            "(id, priority, put_at, due, ended_at, attempt, outcome, queue, key, kind, value) "
            f"SELECT n, 0, 0, 1, 0, 1, n % 3, '{QUEUE}', n, '', '1' "
            f"FROM generate_series(1, {EXPIRED}) n"
        )
        await connection.execute(
            f"INSERT INTO {store.schema}.tallies SELECT 0, 0, 0, 0, 0, count(*), "
            "count(*) FILTER (WHERE outcome = 1), count(*) FILTER (WHERE outcome = 2), "
            f"0, '{QUEUE}' FROM {table}"
        )
        for _ in range(TIDY_EVERY):
            await store.put([one("a")])
        while store._link()._chores:
            await asyncio.sleep(0.01)
        assert await connection.fetchval(f"SELECT count(*) FROM {table}") == 0
        assert (await store.count([QUEUE]))[QUEUE] == Counts(available=1)
        await connection.close()

    with_store(test)


def times(items: Sequence[Claimed]) -> list[tuple[str, float | None, float | None]]:
    return [(item.key, item.expires_at, item.deadline) for item in items]


def with_memory(test: Callable[[Store, ManualClock], Awaitable[list[Any]]]) -> None:
    """What a test finds out is the same on the PostgreSQL store as in memory."""
    in_memory, clock = ManualClock(), ManualClock()

    async def both(store: PostgresStore) -> None:
        expected = await test(MemoryStore(clock=in_memory), in_memory)
        assert await test(store, clock) == expected

    with_store(both, clock=clock)


def test_leases_without_an_end() -> None:
    async def test(store: Store, clock: ManualClock) -> list[Any]:
        await store.put([one(key) for key in "abcdefgh"] + [one("late", delay=1.0)])
        plain = Claim(((QUEUE, 1),), lease_time=None)
        several = Claim(((QUEUE, 1), ("other", 1)), lease_time=None)
        batches = [
            [plain],
            [several],
            [plain, several],
            [msgspec.structs.replace(plain, key="f")],
            [msgspec.structs.replace(plain, kinds=("",))],
            [msgspec.structs.replace(several, urgencies=(Urgency(1), Urgency(2)))],
        ]
        found = [times(items) for batch in batches for items in await store.claim(batch)]
        clock.advance(2)
        # Something is due: the way is another one.
        found += [times(items) for items in await store.claim([plain])]
        assert {end for [(_, end, _)] in found} == {None}
        [[item]] = await store.look(QUEUE, ["a"])
        return [*found, item.due]

    with_memory(test)


def test_times_without_an_end() -> None:
    async def test(store: Store, _: ManualClock) -> list[Any]:
        await store.put([one("a"), one("b"), one("c", delay=inf), one("d", deadline=1e12)])
        a, b = await leased(store), await leased(store)
        answers = await store.settle(
            [
                Extend(QUEUE, "a", a.token, lease_time=inf),
                Release(QUEUE, "b", b.token, delay=inf),
            ]
        )
        d = await leased(store, lease_time=60.0)
        await store.settle([Ack(QUEUE, "d", d.token, b"1", inf)])
        counts = await store.count([QUEUE])
        return [*map(str, answers), *times([d]), counts]

    with_memory(test)


@pytest.mark.parametrize("together", [False, True])
def test_deadlines_of_puts(together: bool) -> None:
    """Of new keys, of live ones, of one that comes twice, and beside a lease."""
    puts = [
        one("a", deadline=5.0),
        one("b"),
        one("a", b"2", deadline=7.0),
        one("c", deadline=9),
        one("c", b"2"),
        one("leased", b"2", policy="buffer", deadline=3.0),
    ]

    async def test(store: Store, clock: ManualClock) -> list[Any]:
        await store.put([one("leased", deadline=2.0)])
        first = await leased(store)
        for _ in range(2):
            for part in [puts] if together else [[put] for put in puts]:
                await store.put(part)
        await store.put([one("e", deadline=4.0), one("f", deadline=6.0), one("g", delay=1.0)])
        clock.advance(2)
        # Something is due: the way is another one.
        await store.put([one("h", deadline=8.0)])
        await store.settle([Ack(QUEUE, "leased", first.token)])
        [rest] = await store.claim([Claim(((QUEUE, 9),), 9)])
        return [*times([first]), *times(rest), [item.value for item in rest]]

    with_memory(test)


def test_puts_with_deadlines_go_together() -> None:
    puts = [one(key, deadline=5.0) for key in "ab"]
    assert Batch("s", puts[:1]).told()[0] == "put_1"
    assert [run.told["op"] for run in Batch("s", puts)._runs] == ["puts"]


def test_a_claim_by_urgency_tells_of_its_queues_once() -> None:
    clock = ManualClock()

    async def test(store: PostgresStore) -> None:
        await store.put([one("a", delay=1.0), Put("other", (("b", b"1"),))])
        heard: asyncio.Queue[list[str]] = asyncio.Queue()
        connection = await asyncpg.connect(store._url)
        await connection.add_listener(
            store.schema, lambda *said: heard.put_nowait(json.loads(str(said[-1])))
        )
        clock.advance(2)
        claim = Claim(((QUEUE, 2), ("other", 2)), 4, urgencies=(Urgency(1), Urgency(2)))
        [items] = await store.claim([claim])
        assert [item.key for item in items] == ["a", "b"]
        # What is told comes in order.
        await store.put([Put("end", (("c", b"1"),))])
        first = await heard.get()
        assert sorted(first) == ["other", QUEUE]
        assert await heard.get() == ["end"]
        await connection.close()

    with_store(test, clock=clock)


def test_an_item_that_was_leased_is_not_in_the_way_of_later_deadlines() -> None:
    """It is the first by place and by deadline, and is up less than the next one by deadline."""

    async def test(store: Store, clock: ManualClock) -> list[Any]:
        await store.put([one("old", priority=1, deadline=61.0)])
        clock.advance(60)
        await store.put([one("new", priority=5, deadline=0.5), one("plain", priority=2)])
        await store.put([one("last", priority=2), one("far", deadline=5.0)])
        urgency = Urgency(0, steps=((0.5, 3),))
        [items] = await store.claim([Claim(((QUEUE, 3),), 3, urgencies=(urgency,))])
        [rest] = await store.claim([Claim(((QUEUE, 9),), 9, urgencies=(urgency,))])
        assert [item.key for item in items] == ["new", "old", "plain"]
        return [item.key for item in rest]

    with_memory(test)
