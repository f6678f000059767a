"""What happens between the steps of a call: other transactions, other clocks, other settings."""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import asyncpg
import pytest

from leasedkeyq import connect
from leasedkeyq.checks import storable
from leasedkeyq.engines.postgres.batch import Batch, lock_number
from leasedkeyq.engines.postgres.link import TIDY_EVERY, Writer
from leasedkeyq.engines.postgres.store import PostgresStore
from leasedkeyq.errors import KeyAlreadyInFlightError, QueueFullError, UnstorableError
from leasedkeyq.model.requests import Change
from leasedkeyq.stores import (
    Ack,
    Bury,
    Cancel,
    Cap,
    Claim,
    Claimed,
    Counts,
    Put,
    Refusal,
    Release,
    Requeue,
    Store,
)
from leasedkeyq.testing import Place
from tests.engines.postgres.plans.plans import explained
from tests.servers.postgres import PASSWORD, USER, Schemas, run_sql, schemas, shared_server

QUEUE = "q"


def with_store(
    test: Callable[[PostgresStore], Awaitable[None]], on: Schemas | None = None, **options: Any
) -> None:
    async def run() -> None:
        place = Place()
        where = on or schemas()
        store = connect(where.url, schema=where.borrow(place), **options)
        assert isinstance(store, PostgresStore)
        async with asyncio.timeout(60):
            await test(store)
            await store.close()
        place.close()

    asyncio.run(run())


def one(key: str, value: bytes = b"1", **options: Any) -> Put:
    return Put(QUEUE, ((key, value),), **options)


async def leased(store: Store, **options: Any) -> Claimed:
    [[item]] = await store.claim([Claim(((QUEUE, 1),), **options)])
    return item


@asynccontextmanager
async def uncommitted(
    store: PostgresStore, *requests: Put | Claim | Change
) -> AsyncGenerator[None]:
    """Somebody else has applied requests, and commits at the end."""
    connection = await asyncpg.connect(store._url)
    async with connection.transaction():
        told = Batch(store.schema, requests).told()
        await store._link()._send(connection, f"other.{secrets.token_hex(8)}", None, told)
        yield
    await connection.close()


@asynccontextmanager
async def locked(store: PostgresStore, key: str) -> AsyncGenerator[None]:
    """Somebody else looks at an item so that nobody changes it."""
    connection = await asyncpg.connect(store._url)
    async with connection.transaction():
        sql = f'SELECT FROM "{store.schema}".items WHERE key = $1 FOR UPDATE'
        await connection.execute(sql, key)
        yield
    await connection.close()


async def blocked(store: PostgresStore) -> None:
    """Wait until a call waits for a lock."""
    connection = await asyncpg.connect(store._url)
    waiting = (
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE $1"
    )
    while not await connection.fetchval(waiting, f"%{store.schema}%"):
        await asyncio.sleep(0.01)
    await connection.close()


async def beside(store: PostgresStore, call: Any, *requests: Put | Claim | Change) -> Any:
    """The answer to a call that comes upon what somebody else has done and not yet committed."""
    async with uncommitted(store, *requests):
        task = asyncio.create_task(call)
        await blocked(store)
    [answer] = await task
    return answer


def test_an_ack_beside_a_put_of_its_key() -> None:
    async def test(store: PostgresStore) -> None:
        await store.put([one("a")])
        item = await leased(store)
        ack = store.settle([Ack(QUEUE, "a", item.token)])
        assert await beside(store, ack, one("a", b"2")) is None
        assert await store.count([QUEUE]) == {QUEUE: Counts()}

    with_store(test)


@pytest.mark.parametrize("change", [Ack, Release])
def test_a_lease_that_expired_while_somebody_else_changed_its_key(change: Any) -> None:
    async def test(store: PostgresStore) -> None:
        await store.put([one("a")])
        item = await leased(store, lease_time=0.5)
        async with uncommitted(store, one("a", b"2")):
            await asyncio.sleep(0.6)
            task = asyncio.create_task(store.settle([change(QUEUE, "a", item.token)]))
            await blocked(store)
        [answer] = await task
        assert isinstance(answer, Refusal)
        assert (await leased(store)).attempt == 2

    with_store(test)


@pytest.mark.parametrize("keys", ["b", "abc"])
def test_puts_of_new_keys_beside_a_put_of_one_of_them(keys: str) -> None:
    """All are stored, each once; the later value is that of the later transaction."""

    async def test(store: PostgresStore) -> None:
        put = store.put([Put(QUEUE, tuple((key, b"2") for key in keys))])
        ids = await beside(store, put, one("b"))
        assert len(set(ids)) == len(keys)
        found = (await store.browse(QUEUE)).items
        assert sorted((item.key, item.value) for item in found) == [(key, b"2") for key in keys]
        assert {item.id for item in found} == {placed.id for placed in ids}
        assert await store.count([QUEUE]) == {QUEUE: Counts(available=len(keys))}

    with_store(test)


@pytest.mark.parametrize("options", [{}, {"delay": 60.0}])
def test_batches_put_the_same_new_keys_in_opposite_order(options: Any) -> None:
    """They do not wait for each other: the server would end one of them, after a second."""

    async def test(store: PostgresStore) -> None:
        other = connect(store._url, schema=store.schema, patience=0.0)
        await store.put([one("live0"), one("live1")])
        for turn in range(20):
            keys = [f"{turn}.{number}" for number in range(100)]
            puts = [
                Put(QUEUE, tuple((key, b"2") for key in (f"live{n}", *order)), **options)
                for n, order in enumerate((keys, keys[::-1]))
            ]
            answers = await asyncio.gather(store.put([puts[0]]), other.put([puts[1]]))
            assert all(isinstance(ids, tuple) and len(ids) == 101 for [ids] in answers)
        await other.close()

    with_store(test, patience=0.0)


def test_a_key_that_comes_twice_and_goes_and_comes_meanwhile() -> None:
    """The later value of the put stays, or that of somebody else who comes later: never the first.

    The put waits for j. Meanwhile k and l go, and l comes again. It does not find k, and waits for
    l; meanwhile k comes again.
    """

    async def test(store: PostgresStore) -> None:
        other = connect(store._url, schema=store.schema)
        await store.put([one("j"), one("k"), one("l")])
        async with AsyncExitStack() as later:
            async with locked(store, "j"):
                keys = ("j", b"2"), ("k", b"2"), ("l", b"2"), ("k", b"3")
                putting = asyncio.create_task(store.put([Put(QUEUE, keys)]))
                await blocked(store)
                await other.settle([Cancel(QUEUE, "k"), Cancel(QUEUE, "l")])
                await other.put([one("l")])
                await later.enter_async_context(locked(store, "l"))
            await asyncio.sleep(0.2)
            await blocked(store)
            putting_too = asyncio.create_task(other.put([one("k", b"other")]))
            await asyncio.wait([putting_too], timeout=0.5)
        await asyncio.gather(putting, putting_too)
        [[k]] = await store.look(QUEUE, ["k"])
        assert k.value in (b"3", b"other")
        assert await store.count([QUEUE]) == {QUEUE: Counts(available=3)}
        await other.close()

    with_store(test)


def test_acks_of_which_some_are_out_of_the_ordinary() -> None:
    """In one call: of a plain lease, of one with a value beside it, and of none; and a claim."""

    async def test(store: PostgresStore) -> None:
        await store.put([one("a"), one("b"), one("c")])
        a, b, c = [await leased(store) for _ in "abc"]
        await store.put([one("b", b"2", policy="buffer")])
        acks = [Ack(QUEUE, item.key, item.token) for item in (a, b, c)]
        acks[2] = Ack(QUEUE, "c", "no such lease")
        settled, claimed = await asyncio.gather(
            store.settle(acks), store.claim([Claim(((QUEUE, 5),), 5)])
        )
        assert settled[:2] == [None, None]
        assert isinstance(settled[2], Refusal)
        assert [(item.key, item.value) for item in claimed[0]] == [("b", b"2")]
        assert await store.count([QUEUE]) == {QUEUE: Counts(in_flight=2)}

    with_store(test)


def test_a_put_that_is_to_be_refused_beside_a_claim() -> None:
    """It is told to be stored only if it is: a leased item goes with its ack."""

    async def test(store: PostgresStore) -> None:
        await store.put([one("a", b"old")])
        put = store.put([one("a", b"new", policy="reject")])
        assert isinstance(await beside(store, put, Claim(((QUEUE, 1),))), KeyAlreadyInFlightError)
        put = store.put([one("b", b"new", policy="reject"), one("c")])
        async with uncommitted(store, one("b", b"old"), Claim(((QUEUE, 1),), key="b")):
            task = asyncio.create_task(put)
            await blocked(store)
        refusal, stored = await task
        assert isinstance(refusal, KeyAlreadyInFlightError)
        assert isinstance(stored, tuple)
        [[a], [b], [c]] = await store.look(QUEUE, ["a", "b", "c"])
        assert [a.value, b.value, c.state] == [b"old", b"old", "available"]

    with_store(test)


def test_a_requeue_that_is_to_be_refused_beside_a_claim() -> None:
    async def test(store: PostgresStore) -> None:
        await store.put([one("a", b"old")])
        item = await leased(store)
        await store.settle([Bury(QUEUE, "a", item.token)])
        await store.put([one("a", b"new")])
        requeue = store.settle([Requeue(QUEUE, item.id, "reject")])
        answer = await beside(store, requeue, Claim(((QUEUE, 1),)))
        assert isinstance(answer, KeyAlreadyInFlightError)
        assert await store.count([QUEUE]) == {QUEUE: Counts(in_flight=1, buried=1)}

    with_store(test)


def test_a_bounded_put_beside_an_ack() -> None:
    """What needed no room when it was looked at needs some when its key has gone."""

    async def test(store: PostgresStore) -> None:
        await store.put([one("a")])
        item = await leased(store)
        await store.put([one("b")])
        put = store.put([one("a", b"2", max_items=1)])
        answer = await beside(store, put, Ack(QUEUE, "a", item.token))
        assert isinstance(answer, QueueFullError)

    with_store(test)


def test_a_database_whose_transactions_see_only_what_was_before_them() -> None:
    """Who has waited for a lock has to see what was done meanwhile."""
    url = shared_server().url
    name = f"old_{secrets.token_hex(6)}"
    run_sql(url, f"CREATE DATABASE {name}")
    run_sql(url, f"ALTER DATABASE {name} SET default_transaction_isolation = 'repeatable read'")

    async def run() -> None:
        store = connect(f"{url.rpartition('/')[0]}/{name}")
        assert isinstance(store, PostgresStore)
        async with asyncio.timeout(60):
            bounded = store.put([one("b", max_items=1)])
            assert isinstance(await beside(store, bounded, one("a", max_items=1)), QueueFullError)
            await store.put([one("b"), one("c")])
            cap = (Cap(QUEUE, in_flight=1),)
            claim = store.claim([Claim(((QUEUE, 1),), caps=cap)])
            assert await beside(store, claim, Claim(((QUEUE, 1),), caps=cap)) == ()
            await store.close()

    asyncio.run(run())
    run_sql(url, f"DROP DATABASE {name} WITH (FORCE)")


def test_calls_that_wait_while_old_rows_are_tidied_up() -> None:
    async def test(store: PostgresStore) -> None:
        async def put(name: int) -> None:
            for number in range(TIDY_EVERY // 2):
                await store.put([one(f"{name} {number}")])
                # The others' calls come while this one is under way.
                await asyncio.sleep(secrets.randbelow(3) / 1000)

        await asyncio.gather(*(put(name) for name in range(6)))
        assert (await store.count([QUEUE]))[QUEUE].available == 6 * (TIDY_EVERY // 2)

    with_store(test)


def test_a_stopped_call_is_not_forgotten_when_others_are() -> None:
    async def test(store: PostgresStore) -> None:
        link = store._link()
        batch = Batch(store.schema, [one("late")])
        await store.put([one("a")])
        writer = Writer()
        stopped = link._next_call(writer)
        connection = await asyncpg.connect(store._url)
        calls = f"{store.schema}.calls"
        await connection.execute(f"INSERT INTO {calls} (at, call) VALUES ($1, $2)", 2e9, stopped)
        link._open_calls.clear()
        await link._tidy()
        assert await connection.fetchval(f"SELECT array_agg(call) FROM {calls}") == [stopped]
        with pytest.raises(asyncpg.UniqueViolationError):
            await link._send(connection, stopped, None, batch.told())
        await connection.close()

    with_store(test)


def test_an_error_that_no_text_can_hold_is_refused_and_its_lease_goes_on() -> None:

    async def test(store: PostgresStore) -> None:
        await store.put([one("a")])
        item = await leased(store)
        text = "nothing \x00 and half \ud800"
        [refused] = await store.settle([Release(QUEUE, "a", item.token, error=text)])
        assert isinstance(refused, UnstorableError)
        mended = storable(text)
        assert await store.settle([Release(QUEUE, "a", item.token, error=mended)]) == [None]
        [[stored]] = await store.look(QUEUE, ["a"])
        assert [past.error for past in stored.history] == ["nothing \ufffd and half ?"]
        item = await leased(store)
        assert await store.settle([Bury(QUEUE, "a", item.token, mended)]) == [item.id]

    with_store(test)


def test_a_claim_without_a_sensible_limit() -> None:
    async def test(store: PostgresStore) -> None:
        await store.put([one("a"), one("b"), one("c")])
        most = 2**40
        claims = [
            Claim(((QUEUE, most),), most, key="a"),
            Claim(((QUEUE, most),), most),
            Claim(((QUEUE, most),), most),
        ]
        assert [len(claimed) for claimed in await store.claim(claims)] == [1, 2, 0]

    with_store(test)


def test_a_sweep_looks_at_no_bucket_that_it_does_not_need() -> None:
    async def test(store: PostgresStore) -> None:
        run_sql(
            store._url,
            f"""INSERT INTO {store.schema}.buckets
            (queue, pattern, each, key, level, at, next_at, full_at)
            SELECT '{QUEUE}', '*', true, 'k' || n, 0, 1, 4e9 + n, 5e9 + n
            FROM generate_series(1, 5000) n""",
        )
        with explained(store) as plans:
            [seconds] = await store.sweep([QUEUE])
            plans.check(most=10)
        assert seconds is not None
        assert seconds > 1e9

    with_store(test)


def test_somebody_who_cannot_listen_looks() -> None:
    """The server has no connection left for listening, and calls get through."""
    role = f"few_{secrets.token_hex(6)}"

    async def test(store: PostgresStore) -> None:
        for sql in (
            f"CREATE ROLE {role} LOGIN PASSWORD 'x'",
            f"GRANT USAGE ON SCHEMA {store.schema} TO {role}",
            f"GRANT ALL ON ALL TABLES IN SCHEMA {store.schema} TO {role}",
            f"GRANT ALL ON ALL SEQUENCES IN SCHEMA {store.schema} TO {role}",
        ):
            run_sql(store._url, sql)
        url = store._url.replace(f"{USER}:{PASSWORD.replace(' ', '%20')}@", f"{role}:x@")
        few = connect(url, schema=store.schema, create=False, poll=0.1)
        await few.put([one("a")])
        await few.count()
        run_sql(store._url, f"ALTER ROLE {role} CONNECTION LIMIT 2")
        woken = asyncio.Event()
        stop = few.watch(QUEUE, woken.set)
        for _ in range(3):
            woken.clear()
            await woken.wait()
        stop()
        await few.close()
        run_sql(store._url, f"DROP OWNED BY {role}")
        run_sql(store._url, f"DROP ROLE {role}")

    with_store(test, Schemas(shared_server().url))


def test_a_clock_that_was_set_back_hides_no_lease() -> None:
    """What was found to be dealt with before the clock was set back is not taken for granted."""
    now = [2_000_000_000.0]

    async def test(store: PostgresStore) -> None:
        await store.put([one("a")])
        await store._link()._raise([QUEUE])
        now[0] -= 100
        item = await leased(store, lease_time=50)
        now[0] += 200
        assert (await leased(store)).fence > item.fence

    with_store(test, clock=lambda: now[0])


def test_others_do_not_wait_all_the_time_for_who_waits_for_a_long_transaction() -> None:
    """Who finds a queue slow looks where it begins, alone; who cannot does so less and less."""

    async def test(store: PostgresStore) -> None:
        link = store._link()
        async with uncommitted(store, one("a")):
            before = link._raise_pause
            await link._raise([QUEUE])
            assert link._raise_pause > before

    with_store(test)


def test_a_call_that_took_longer_than_the_patience_is_asked_for() -> None:
    """The server is away from the moment at which it does not answer in time, not from before."""

    async def test(store: PostgresStore) -> None:
        connection = await asyncpg.connect(store._url)
        calls = f"SELECT count(*) FROM {store.schema}.calls"
        async with connection.transaction():
            await connection.execute(
                "SELECT pg_advisory_xact_lock($1)", lock_number(store.schema, "queue", QUEUE)
            )
            task = asyncio.create_task(store.put([one("a")]))
            while not await connection.fetchval(calls):
                await asyncio.sleep(0.01)
        assert isinstance((await task)[0], tuple)
        assert (await store.count([QUEUE]))[QUEUE].available == 1
        await connection.close()

    with_store(test, patience=2, call_timeout=2.5)


def test_a_call_that_may_be_asked_for_is_not_forgotten() -> None:
    """One connection may be slow while another has applied hundreds of batches."""

    async def test(store: PostgresStore) -> None:
        link = store._link()
        slow = link._next_call(Writer())
        calls = f"{store.schema}.calls"
        run_sql(store._url, f"INSERT INTO {calls} VALUES (2e9, '{slow}', '{{}}')")
        for number in range(5):
            await store.put([one(f"k{number}")])
        await link._tidy()
        assert run_sql(store._url, f"SELECT min(call) FROM {calls}") == slow

    with_store(test, connections=2)


def test_those_who_come_for_a_moment_leave_nothing_behind() -> None:
    async def test(store: PostgresStore) -> None:
        for number in range(5):
            moment = connect(store._url, schema=store.schema)
            await moment.put([one(f"k{number}")])
            await moment.close()
        assert run_sql(store._url, f"SELECT count(*) FROM {store.schema}.calls") == 0
        assert run_sql(store._url, f"SELECT count(*) FROM {store.schema}.tallies") == 1
        assert (await store.count([QUEUE]))[QUEUE].available == 5

    with_store(test)


def test_a_schema_that_is_there_already() -> None:
    """Who may make tables in it need not be allowed to make schemas."""
    url = shared_server().url
    role = f"tenant_{secrets.token_hex(6)}"
    run_sql(url, f"CREATE ROLE {role} LOGIN PASSWORD 'x'")
    run_sql(url, f"CREATE SCHEMA {role} AUTHORIZATION {role}")

    async def run() -> None:
        own = url.replace(f"{USER}:{PASSWORD.replace(' ', '%20')}@", f"{role}:x@")
        store = connect(own, schema=role)
        await store.put([one("a")])
        await store.close()

    asyncio.run(run())
    run_sql(url, f"DROP OWNED BY {role} CASCADE")
    run_sql(url, f"DROP ROLE {role}")
