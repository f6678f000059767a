"""Every query is a walk along an index, on a table of any size, known to the planner or not."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import msgspec

from leasedkeyq import connect
from leasedkeyq.engines.postgres.store import PostgresStore
from leasedkeyq.model.requests import STATES
from leasedkeyq.stores import (
    Ack,
    Amend,
    Bury,
    Cancel,
    Cap,
    Claim,
    Claimed,
    Discard,
    Extend,
    Put,
    Refusal,
    Release,
    Requeue,
    Urgency,
)
from leasedkeyq.testing import Place
from tests.engines.postgres.plans.plans import each_checked, explained
from tests.servers.postgres import Schemas, run_sql, shared_server

QUEUED = 50_000


async def everything(store: PostgresStore, check: Callable[[], Awaitable[None]]) -> None:
    """Each verb, on one queue; `check` is called after each."""
    held: list[Claimed] = []

    async def claim(request: Claim) -> None:
        held.extend((await store.claim([request]))[0])
        assert held

    def end(change: Any) -> Any:
        async def call() -> None:
            item = held.pop()
            answers = await store.settle([change("q", item.key, item.token)])
            assert not isinstance(answers[0], Exception), answers

        return call

    buried: list[int] = []

    async def bury() -> None:
        item = held.pop()
        [number] = await store.settle([Bury("q", item.key, item.token, "x")])
        assert isinstance(number, int)
        buried.append(number)

    async def ack_many() -> None:
        await store.settle([Ack("q", item.key, item.token) for item in held])
        held.clear()

    async def ack_with_a_refusal() -> None:
        acks = [Ack("q", item.key, item.token) for item in held[:3]]
        answers = await store.settle([*acks, Ack("q", "new1", "not the token")])
        assert [isinstance(answer, Refusal) for answer in answers] == [False] * 3 + [True]
        del held[:3]

    async def buffer() -> None:
        await store.put([Put("q", ((held[0].key, b"3"),), "buffer")])

    async def amend() -> None:
        [[item, *_]] = await store.look("q", ["new9"])
        assert await store.settle([Amend("q", "new9", item.id, b"5", 2, 60.0)]) == [True]

    async def queue_bury() -> None:
        queue = store.queue("q")
        _, _, lease = await queue.get()
        assert (await queue.bury(lease, "x")).error == "x"
        await queue.close()

    async def raise_floor() -> None:
        await store._link()._raise(["q"])
        assert await store._link().read("SELECT FROM lkq.floors WHERE queue = 'q' AND place > 0")

    lone = Put("q", (("lone", b"1"),))
    puts = [Put("q", ((f"new{number}", b"1"),)) for number in range(50)]
    capped = (
        Cap("q", "*", in_flight=10**7),
        Cap("q", "new*", in_flight=10**6, rate=1e6, burst=99.0),
        Cap("q", "before*all", in_flight=1),
    )
    urgencies = (Urgency(2, 60.0, ((0.5, 1),)), Urgency(1))
    urgent = Claim((("q", 9), ("other", 9)), 9, None, 600.0, urgencies=urgencies)
    await each_checked(
        [
            partial(store.put, puts),
            partial(store.put, puts),
            partial(store.put, [Put("q", tuple((f"many{n}", b"1") for n in range(100)))]),
            partial(store.put, [Put("q", tuple((f"many{n}", b"1") for n in range(200)))]),
            partial(store.put, [Put("q", (("many1", b"2"), ("later", b"2")), delay=600.0)]),
            partial(store.put, [lone]),
            partial(store.put, [lone]),
            partial(store.put, [Put("q", (("new1", b"2"),), "reject", 3, 60.0, 10**8)]),
            partial(claim, Claim((("q", 50),), 50, None, 600.0)),
            buffer,
            buffer,
            ack_with_a_refusal,
            ack_many,
            partial(claim, Claim((("q", 9), ("other", 9)), 9, None, 600.0)),
            partial(claim, Claim((("q", 1),), 1, "new7", 600.0)),
            partial(claim, Claim((("q", 3),), 3, None, 600.0, ("",))),
            partial(claim, Claim((("q", 3),), 3, None, 600.0, None, capped)),
            partial(claim, urgent),
            partial(claim, msgspec.structs.replace(urgent, caps=capped, kinds=("",))),
            end(Ack),
            end(partial(Ack, result=b"1", keep=600.0)),
            end(Release),
            end(partial(Release, undo=True)),
            end(partial(Extend, lease_time=600.0)),
            bury,
            bury,
            lambda: store.settle([Requeue("q", buried[0])]),
            lambda: store.settle([Discard("q", buried[1])]),
            amend,
            partial(store.settle, [Cancel("q", "new9")]),
            partial(store.sweep, ["q", "other"]),
            partial(store.count, ["q"]),
            partial(store.count),
            partial(store.heads, ["q", "other"]),
            partial(store.look, "q", ["new1", "new2"]),
            partial(store.browse, "q", limit=100),
            *(partial(store.browse, "q", states=(state,), limit=100) for state in STATES),
            *(partial(store.browse, "q", states=(s,), newest_first=True) for s in STATES),
            partial(store.browse, "q", states=STATES, prefix="nothing"),
            partial(store.browse, "q", states=STATES, prefix="new1", newest_first=True),
            queue_bury,
            partial(store.results, "q", [1, 2, 3]),
            partial(store.edit, "q", lambda _: [], keys=["new3"]),
            raise_floor,
            partial(claim, Claim((("q", 3),), 3, None, 600.0)),
            partial(claim, Claim((("q", 3),), 3, None, 600.0, ("",))),
            partial(claim, Claim((("q", 3), ("other", 1)), 3, None, 600.0, ("",))),
            partial(store.put, [lone]),
        ],
        check,
    )


def opened(schema: str) -> PostgresStore:
    store = connect(shared_server().url, schema=schema)
    assert isinstance(store, PostgresStore)
    return store


def test_plans_that_were_made_while_the_table_was_empty() -> None:
    """Nothing is known of the table, and what was known when the plan was made is wrong."""
    place = Place()
    schemas = Schemas(shared_server().url)
    schema = schemas.borrow(place)

    async def run() -> None:
        store = opened(schema)
        run_sql(schemas.url, f"ALTER TABLE {schema}.items SET (autovacuum_enabled = off)")
        with explained(store) as plans:
            for queue in ("q", "other"):
                for _ in range(8):
                    await store.put([Put(queue, (("first", b"1"),))])
                    [[item]] = await store.claim([Claim(((queue, 1),))])
                    await store.settle([Ack(queue, "first", item.token)])
            items = tuple((f"k{number}", b"1") for number in range(5000))
            await store.put([Put("q", items)])
            plans.texts.clear()
            await everything(store, plans.checked(most=600))
        await store.close()

    asyncio.run(run())
    place.close()


def test_plans_with_many_rows() -> None:
    """The torture does it with a million."""
    look_at_plans(QUEUED)


def test_what_a_lost_call_has_claimed_among_many_scheduled_items() -> None:
    """These are in the same index: what is not leased is not looked at."""
    place = Place()
    schemas = Schemas(shared_server().url)
    schema = schemas.borrow(place)

    async def run() -> None:
        store = opened(schema)
        with explained(store) as plans:
            await store.put([Put("q", tuple((f"k{n}", b"1") for n in range(5000)), delay=600.0)])
            await store.put([Put("q", (("a", b"1"),))])
            for statistics in (False, True):
                if statistics:
                    run_sql(schemas.url, f"ANALYZE {schema}.items")
                [[item]] = await store.claim([Claim((("q", 1),))])
                call, *_ = item.token.rsplit(".", 2)
                plans.texts.clear()
                link = store._link()
                [found] = await link.read("SELECT * FROM lkq.claimed_1($1, $2)", ["q"], call)
                assert found["token"] == item.token
                plans.check(most=600)
                await store.settle([Release("q", "a", item.token)])
        await store.close()

    asyncio.run(run())
    place.close()


def look_at_plans(queued: int) -> None:
    place = Place()
    schemas = Schemas(shared_server().url)
    schema = schemas.borrow(place)

    async def run() -> None:
        store = opened(schema)
        fill(schemas.url, schema, queued)
        with explained(store) as plans:
            await everything(store, plans.checked(most=600))
        await store.close()

    asyncio.run(run())
    place.close()


def fill(url: str, schema: str, queued: int) -> None:
    """So many that wait and that are done; a tenth of it in flight, scheduled and buried."""
    leased = queued // 10
    buried = min(leased, 9000)  # of the 10,000 that a queue may have
    listed = f"FROM pg_indexes WHERE schemaname = '{schema}' AND tablename = 'items'"
    indexes = str(run_sql(url, f"SELECT string_agg(indexdef, ';') {listed}"))
    for name in str(run_sql(url, f"SELECT string_agg(indexname, ' ') {listed}")).split():
        run_sql(url, f"DROP INDEX {schema}.{name}")
    run_sql(
        url,
        f"""
        WITH new AS (
            INSERT INTO {schema}.items
            (id, queue, key, state, priority, place, put_at, attempt, due, turn, token, value,
                counted)
            SELECT n, 'q', 'k' || n, CASE WHEN n <= {leased} THEN 2
                    WHEN n <= {2 * leased} THEN 1 ELSE 0 END, 0, n, 0, 0,
                CASE WHEN n <= {2 * leased} THEN extract(epoch FROM now()) + 3600 + n END, n,
                CASE WHEN n <= {leased} THEN 't' || n END, '1', n <= {leased}
            FROM generate_series(1, {queued + 2 * leased}) n RETURNING 1
        )
        INSERT INTO {schema}.tallies
        (available, in_line, scheduled, in_flight, buried, done, done_failed, done_cancelled,
            queue)
        SELECT {queued}, 0, {leased}, {leased}, {buried}, {queued}, {(queued + 2) // 3},
            {(queued + 1) // 3}, 'q'
        """,
    )
    run_sql(
        url,
        f"""
        INSERT INTO {schema}.buried
        (id, number, priority, put_at, buried_at, attempt, queue, key, kind, error, value)
        SELECT 10^9 + n, -n, 0, 0, 0, 1, 'q', 'b' || n, '', 'x', '1'
        FROM generate_series(1, {buried}) n
        """,
    )
    run_sql(
        url,
        f"""
        INSERT INTO {schema}.done
        (id, priority, put_at, due, ended_at, attempt, outcome, queue, key, kind, value)
        SELECT 2 * 10^9 + n, 0, 0, extract(epoch FROM now()) + 3600 + n, 0, 1, n % 3, 'q', 'd' || n,
            '', '1' FROM generate_series(1, {queued}) n
        """,
    )
    run_sql(
        url,
        f"""
        INSERT INTO {schema}.floors (queue, place, due, counted) VALUES ('q', 0, '-infinity', true)
        """,
    )
    for index in indexes.split(";"):
        run_sql(url, index)
    for sequence in ("ids", "places"):
        run_sql(url, f"SELECT setval('{schema}.{sequence}', {queued * 2})")
    run_sql(url, f"ANALYZE {schema}.items")
