"""The store on older servers, whose planner takes other ways: what it does, and what that costs."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from leasedkeyq import connect
from leasedkeyq.engines.postgres.store import PostgresStore
from leasedkeyq.lanes import EventEmitter, LaneConfig, QueueManagerBuilder
from leasedkeyq.model.requests import STATES
from leasedkeyq.stores import Ack, Claim, Purge, Put, Store
from leasedkeyq.testing import Place
from leasedkeyq.testing.checks.amends import AmendChecks
from leasedkeyq.testing.checks.caps import CapChecks
from leasedkeyq.testing.checks.edits import EditChecks
from leasedkeyq.testing.checks.held_keys import HeldKeyChecks
from leasedkeyq.testing.checks.inspection import InspectionChecks
from leasedkeyq.testing.checks.leases import LeaseChecks
from leasedkeyq.testing.checks.line_puts import LinePutChecks
from leasedkeyq.testing.checks.lines import LineChecks
from leasedkeyq.testing.checks.puts import PutChecks
from leasedkeyq.testing.checks.random_comparison import ComparisonChecks
from leasedkeyq.testing.checks.settlements import SettleChecks
from leasedkeyq.testing.checks.urgency import UrgencyChecks
from leasedkeyq.testing.checks.watches import WatchChecks
from tests.engines.postgres.plans.plans import RowsRead
from tests.engines.postgres.plans.test_plans import everything, fill
from tests.servers.postgres import NEWEST, older_versions, run_sql, schemas_of

MOST_READ = 900
QUEUED = 20_000


def conformance_on(version: str) -> type:
    """The checks of a store, but for the longest, on a server of this version."""

    class Conformance(
        PutChecks,
        LineChecks,
        LinePutChecks,
        HeldKeyChecks,
        AmendChecks,
        LeaseChecks,
        CapChecks,
        UrgencyChecks,
        SettleChecks,
        InspectionChecks,
        WatchChecks,
        EditChecks,
        ComparisonChecks,
        accepts=("clock", "limits"),
        without=("hypothesis",),
    ):
        def opener(self, place: Place) -> Callable[..., Store]:
            where = schemas_of(version)
            return partial(connect, where.url, schema=where.borrow(place))

    return Conformance


for _version in older_versions():
    globals()[f"TestPostgres{_version}"] = conformance_on(_version)


def with_store(version: str, test: Callable[[PostgresStore, str], Any]) -> None:
    async def run() -> None:
        place = Place()
        where = schemas_of(version)
        # A schema of its own: nothing is known of its tables.
        store = connect(where.url, schema=place.name)
        assert isinstance(store, PostgresStore)
        try:
            await test(store, where.url)
        finally:
            await store.close()
            run_sql(where.url, f"DROP SCHEMA {place.name} CASCADE")
            place.close()

    asyncio.run(run())


def plan_each_call(url: str, schema: str) -> None:
    """Have the functions make a plan for each call, with what is known at that moment."""
    listed = f"""
        SELECT string_agg(format(
            'ALTER FUNCTION %s SET plan_cache_mode = force_custom_plan', p.oid::regprocedure
        ), ';') FROM pg_proc p WHERE p.pronamespace = '{schema}'::regnamespace
            AND p.proconfig::text LIKE '%plan_cache_mode%'
    """
    for alter in str(run_sql(url, listed)).split(";"):
        run_sql(url, alter)


versions = pytest.mark.parametrize("version", [*older_versions(), NEWEST])


@versions
@pytest.mark.parametrize("custom", [False, True])
def test_what_is_read_when_nothing_is_known_of_the_table(version: str, *, custom: bool) -> None:
    """Plans that were made while it was empty, and then again, before the first ANALYZE."""

    async def test(store: PostgresStore, url: str) -> None:
        run_sql(url, f"ALTER TABLE {store.schema}.items SET (autovacuum_enabled = off)")
        if custom:
            plan_each_call(url, store.schema)
        reads = RowsRead(store)
        for queue in ("q", "other"):
            for _ in range(3):
                await store.put([Put(queue, (("first", b"1"),))])
                [[item]] = await store.claim([Claim(((queue, 1),))])
                await store.settle([Ack(queue, "first", item.token)])
        items = tuple((f"k{number}", b"1") for number in range(5000))
        await store.put([Put("q", items)])
        await reads.new()
        await everything(store, partial(reads.check, most=MOST_READ))

    with_store(version, test)


@versions
def test_what_is_read_when_the_table_is_known(version: str) -> None:
    async def test(store: PostgresStore, url: str) -> None:
        fill(url, store.schema, QUEUED)
        reads = RowsRead(store)
        await store.count(["q"])
        await reads.new()
        await everything(store, partial(reads.check, most=MOST_READ))

    with_store(version, test)


@versions
def test_what_is_read_when_most_rows_are_dead(version: str) -> None:
    """The statistics are of a table that has been emptied since. The torture has a million."""
    look_among_dead_rows(version, QUEUED)


def look_among_dead_rows(version: str, dead: int) -> None:
    async def test(store: PostgresStore, url: str) -> None:
        fill(url, store.schema, dead)
        run_sql(url, f"ALTER TABLE {store.schema}.items SET (autovacuum_enabled = off)")
        reads = RowsRead(store)
        await store.settle([Purge("q", "all")])
        await store.put([Put("q", tuple((f"k{number}", b"1") for number in range(1000)))])
        # Whoever comes first walks over what has been deleted, and marks it as gone.
        for _ in range(3):
            [[item]] = await store.claim([Claim((("q", 1),), 1, None, 600.0)])
            await store.settle([Ack("q", item.key, item.token)])
            await store.sweep(["q"])
            await store.count(["q"])
            await store.browse("q", states=STATES, limit=1)
        await reads.new()
        await everything(store, partial(reads.check, most=MOST_READ))

    with_store(version, test)


@versions
def test_a_lane_takes_many_commands_at_once_as_quickly_when_it_is_long(version: str) -> None:
    async def test(store: PostgresStore, url: str) -> None:
        del url
        builder = QueueManagerBuilder(EventEmitter()).with_lane("mail", LaneConfig(0, 1), 0)
        manager = builder.with_storage(store).build()

        @manager.command("send")
        async def send(number: int) -> None:
            del number

        reads = RowsRead(store)
        for _ in range(30):
            await manager.submit_many("mail", [send(number=number) for number in range(100)])
            await reads.check(most=MOST_READ)
        await manager.shutdown()

    with_store(version, test)
