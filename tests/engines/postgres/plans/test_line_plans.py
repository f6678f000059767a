"""What calls read where lines are long, or many: no more than elsewhere, on every server."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from leasedkeyq.engines.postgres.store import PostgresStore
from leasedkeyq.stores import (
    Ack,
    Amend,
    Bury,
    Cancel,
    Claim,
    Claimed,
    Discard,
    Purge,
    Put,
    Release,
    Requeue,
)
from leasedkeyq.testing import Place
from tests.engines.postgres.plans.plans import RowsRead, each_checked, explained
from tests.engines.postgres.plans.test_plans import opened
from tests.engines.postgres.plans.test_versions import MOST_READ, versions, with_store
from tests.servers.postgres import Schemas, run_sql, shared_server

MANY = 100_000
FEWER = 20_000
"""For each of the servers."""


async def everything_of_lines(store: PostgresStore, check: Callable[[], Awaitable[None]]) -> None:
    """Each verb on keys with lines: `long`, which has one of many values, and many with one."""
    held: list[Claimed] = []
    buried: list[int] = []

    async def claim(key: str | None, many: int = 1) -> None:
        [claimed] = await store.claim([Claim((("q", many),), many, key, 600.0)])
        assert len(claimed) == many
        held.extend(claimed)

    async def end(change: Any, *more: Any) -> None:
        item = held.pop()
        [answer] = await store.settle([change("q", item.key, item.token, *more)])
        assert not isinstance(answer, Exception), answer
        if change is not Ack and isinstance(answer, int):
            buried.append(answer)

    async def ack_all() -> None:
        answers = await store.settle([Ack("q", item.key, item.token) for item in held])
        assert answers == [None] * len(held)
        held.clear()

    async def put(policy: Any, *keys: str, **options: Any) -> None:
        [answer] = await store.put([Put("q", tuple((k, b"2") for k in keys), policy, **options)])
        assert isinstance(answer, tuple), answer

    async def cancel_one() -> None:
        middle = (await store.line("q", "long", limit=50)).items[-1]
        assert await store.settle([Cancel("q", "long", id=middle.id)]) == [1]

    async def amend_one() -> None:
        middle = (await store.line("q", "long", limit=50)).items[-1]
        assert await store.settle([Amend("q", "long", middle.id, b"5", 2, 60.0)]) == [True]

    async def last_page() -> None:
        [answer] = await store.put([Put("q", (("long", b"9"),), "append")])
        assert isinstance(answer, tuple)
        [last] = answer
        page = await store.line("q", "long", cursor=str(last.id - 1), limit=10)
        assert [item.id for item in page.items] == [last.id]

    bury = partial(end, Bury, "x", True)
    await each_checked(
        [
            partial(put, "append", "long"),
            partial(put, "append", *["long"] * 50),
            partial(put, "append", *[f"k{n}" for n in range(50)]),
            partial(put, "append", "long", max_items=10**8),
            partial(put, "update", "long"),
            partial(put, "skip", "long"),
            partial(put, "skip", "long", "new", unique_for=60.0),
            partial(claim, "long"),
            partial(put, "update", "long"),
            partial(end, Release),
            partial(claim, "long"),
            partial(end, Ack),
            partial(claim, "long"),
            partial(end, Ack, b"1", 600.0),
            partial(claim, None, 50),
            ack_all,
            partial(claim, "long"),
            bury,
            partial(put, "append", "long"),
            partial(put, "update", "long"),
            lambda: store.settle([Requeue("q", buried[0])]),
            partial(claim, "long"),
            bury,
            lambda: store.settle([Discard("q", buried[1])]),
            cancel_one,
            amend_one,
            last_page,
            partial(store.look, "q", ["long", "k1", "k2"]),
            partial(store.line, "q", "long", limit=100),
            partial(store.browse, "q", limit=100),
            partial(store.browse, "q", states=("in_line",), limit=100),
            partial(store.browse, "q", states=("buffered",), limit=100),
            partial(store.browse, "q", states=("in_line",), newest_first=True),
            partial(store.browse, "q", states=("buffered",), newest_first=True),
            partial(store.edit, "q", lambda _: [Put("q", (("k3", b"5"),))], keys=["k3"]),
            partial(store.count, ["q"]),
            partial(store.sweep, ["q"]),
        ],
        check,
    )


def fill_lines(url: str, schema: str, many: int) -> None:
    """A key with so many values behind it, and so many keys with one value each."""
    run_sql(
        url,
        f"""
        WITH heads AS (
            INSERT INTO {schema}.items
            (id, queue, key, state, priority, place, put_at, behind, value)
            SELECT 10^6 + n, 'q', 'k' || n, 0, 0, n, 0, 1, '1'::bytea
            FROM generate_series(1, {many}) n
            UNION ALL SELECT 10^7, 'q', 'long', 0, 0, 0, 0, {many}, '1'::bytea
        ), line AS (
            INSERT INTO {schema}.line (id, queue, key, priority, put_at, kind, value)
            SELECT 2 * 10^6 + n, 'q', 'k' || n, 0, 0, '', '1'::bytea
            FROM generate_series(1, {many}) n
            UNION ALL
            SELECT 2 * 10^7 + n, 'q', 'long', 0, 0, '', '1' FROM generate_series(1, {many}) n
        )
        INSERT INTO {schema}.tallies
        (available, in_line, scheduled, in_flight, buried, done, queue)
        SELECT {many} + 1, 2 * {many}, 0, 0, 0, 0, 'q'
        """,
    )
    run_sql(url, f"SELECT setval('{schema}.ids', 100000000)")
    run_sql(url, f"SELECT setval('{schema}.places', 100000000)")


def without_vacuum(url: str, schema: str) -> None:
    """Nothing becomes known of the tables by itself, and no dead row goes."""
    for table in ("items", "line"):
        run_sql(url, f"ALTER TABLE {schema}.{table} SET (autovacuum_enabled = off)")


def analyze(url: str, schema: str) -> None:
    for table in ("items", "line"):
        run_sql(url, f"ANALYZE {schema}.{table}")


def test_plans_of_lines() -> None:
    """Plans of empty tables on full ones, and then plans that know them."""
    place = Place()
    schemas = Schemas(shared_server().url)
    schema = schemas.borrow(place)

    async def run() -> None:
        store = opened(schema)
        without_vacuum(schemas.url, schema)
        with explained(store) as plans:
            await store.put([Put("q", (("first", b"1"), ("first", b"2")), "append")])
            for _ in range(2):
                [[item]] = await store.claim([Claim((("q", 1),))])
                await store.settle([Ack("q", "first", item.token)])
            fill_lines(schemas.url, schema, MANY)
            plans.texts.clear()
            await everything_of_lines(store, plans.checked(most=600))
            analyze(schemas.url, schema)
            await everything_of_lines(store, plans.checked(most=600))
        await store.close()

    asyncio.run(run())
    place.close()


@versions
@pytest.mark.parametrize("known", [False, True])
def test_what_is_read_of_lines(version: str, *, known: bool) -> None:
    async def test(store: PostgresStore, url: str) -> None:
        without_vacuum(url, store.schema)
        reads = RowsRead(store)
        await store.put([Put("q", (("first", b"1"), ("first", b"2")), "append")])
        await store.settle([Purge("q", "all")])
        fill_lines(url, store.schema, FEWER)
        if known:
            analyze(url, store.schema)
        await reads.new()
        await everything_of_lines(store, partial(reads.check, most=MOST_READ))

    with_store(version, test)


@versions
def test_what_is_read_of_a_line_most_of_which_is_done(version: str) -> None:
    """Beside an open transaction, for which the values that were there stay in the index."""

    async def test(store: PostgresStore, url: str) -> None:
        without_vacuum(url, store.schema)
        reads = RowsRead(store)
        await store.put([Put("q", (("a", b"1"),) * 3000, "append")])
        old = await store._connect()
        async with old.transaction(isolation="repeatable_read"):
            await old.fetch("SELECT FROM pg_class LIMIT 1")
            await store.settle([Cancel("q", "a", only_line=True)])
            await store.put([Put("q", (("a", b"2"),) * 5, "append")])
            [[item]] = await store.claim([Claim((("q", 1),))])
            await store.settle([Ack("q", "a", item.token)])
            await reads.new()
            for _ in range(4):
                [[item]] = await store.claim([Claim((("q", 1),))])
                assert item.value == b"2"
                await store.settle([Ack("q", "a", item.token)])
                await reads.check(most=MOST_READ)
        await old.close()

    with_store(version, test)
