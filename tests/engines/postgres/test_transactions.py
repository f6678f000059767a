"""Puts that are a part of a transaction of the caller, and proxies that share connections."""

import asyncio
import statistics
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import asyncpg
import pytest

from leasedkeyq import connect
from leasedkeyq.engines.postgres.batch import lock_number
from leasedkeyq.engines.postgres.store import PostgresStore
from leasedkeyq.errors import (
    KeyAlreadyInFlightError,
    QueueFullError,
    StoreClosedError,
    StoreError,
)
from leasedkeyq.stores import Ack, Claim, Counts, Discard, Purge, Put, Store, StoredItem
from leasedkeyq.telemetry import StoreMetrics
from leasedkeyq.testing import Place
from tests.servers.postgres import schemas


def with_store(test: Callable[[PostgresStore, Any], Awaitable[None]], **options: Any) -> None:
    async def run() -> None:
        place = Place()
        store = connect(schemas().url, schema=schemas().borrow(place), **options)
        assert isinstance(store, PostgresStore)
        connection = await asyncpg.connect(schemas().url)
        try:
            async with asyncio.timeout(60):
                await test(store, connection)
        finally:
            await connection.close()
            await store.close()
            place.close()

    asyncio.run(run())


class UndoError(Exception):
    pass


def test_a_put_is_committed_and_rolled_back_with_the_callers_data() -> None:
    async def test(store: PostgresStore, connection: Any) -> None:
        queue = store.queue("mail")
        await connection.execute("CREATE TEMPORARY TABLE orders (id int)")
        getter = asyncio.create_task(queue.get(timeout=60))
        with pytest.raises(UndoError):
            async with connection.transaction():
                await connection.execute("INSERT INTO orders VALUES (1)")
                await queue.put("never", {"order": 1}, connection=connection)
                raise UndoError
        async with connection.transaction():
            await connection.execute("INSERT INTO orders VALUES (2)")
            await queue.put_many({"a": {"order": 2}, "b": {"order": 3}}, connection=connection)
            assert await queue.qsize() == 0, "it was seen before the commit"
        key, value, lease = await getter
        assert (key, value) == ("a", {"order": 2})
        assert await queue.available_keys() == {"b"}
        await queue.ack(lease)

    with_store(test)


def test_a_put_in_a_transaction_is_a_call_of_the_store() -> None:
    async def test(store: PostgresStore, connection: Any) -> None:
        metrics = StoreMetrics()
        store.instrument(metrics)
        queue = store.queue("q", maxsize=2)
        async with connection.transaction():
            await queue.put_many({"a": 1, "b": 2}, connection=connection)
            with pytest.raises(QueueFullError):
                await queue.put("c", 3, connection=connection)
        assert metrics.snapshot().verbs["put"].requests == 2
        assert metrics.snapshot().items["q"] == {"put": 2, "refused": 1}
        await store.close()
        async with connection.transaction():
            with pytest.raises(StoreClosedError):
                await queue.put("d", 4, connection=connection)

    with_store(test)


def test_a_put_in_a_transaction_is_refused_as_any_other() -> None:
    async def test(store: PostgresStore, connection: Any) -> None:
        queue = store.queue("q", maxsize=1)
        await queue.put("a", 1)
        _, _, lease = await queue.get()
        async with connection.transaction():
            with pytest.raises(KeyAlreadyInFlightError):
                await queue.put("a", 2, if_in_flight="reject", connection=connection)
            await queue.put("b", 2, connection=connection)
            with pytest.raises(QueueFullError):
                await queue.put("c", 3, connection=connection)
        assert await queue.available_keys() == {"b"}
        with pytest.raises(StoreError, match="in no transaction"):
            await queue.put("d", 4, connection=connection)
        await queue.ack(lease)

    with_store(test)


def test_the_function_for_other_drivers() -> None:
    async def test(store: PostgresStore, connection: Any) -> None:
        queue = store.queue("q")
        put = f"SELECT {store.schema}.put"
        getter = asyncio.create_task(queue.get(timeout=60))
        async with connection.transaction():
            await connection.fetchval(f"""{put}('q', 'a', '{{"n": 1}}')""")
        key, value, lease = await getter
        assert (key, value) == ("a", {"n": 1})
        arguments = "'q', 'b', '2', priority => 5, delay => 3600, kind => 'mail'"
        number = await connection.fetchval(f"{put}({arguments})")
        [[item]] = await store.look("q", ["b"])
        assert (item.id, item.state, item.priority, item.kind) == (number, "scheduled", 5, "mail")
        with pytest.raises(asyncpg.ObjectInUseError):
            await connection.fetchval(f"{put}('q', 'a', '1', if_in_flight => 'reject')")
        for nonsense in ("'', 'a', '1'", "'q', '', '1'", "'q', 'a', '1', delay => -1"):
            with pytest.raises(asyncpg.InvalidParameterValueError):
                await connection.fetchval(f"{put}({nonsense})")
        await queue.ack(lease)

    with_store(test)


def test_an_edit_does_not_wait_for_a_transaction_that_has_put() -> None:
    """What is committed while it edits comes after it."""

    async def test(store: PostgresStore, connection: Any) -> None:
        transaction = connection.transaction()
        await transaction.start()
        await store.queue("q").put("a", 1, connection=connection)
        await store.put([Put("q", (("b", b"1"),))])
        assert await store.edit("q", lambda items: [Purge("q")] * len(items)) == [1]
        await transaction.commit()
        assert await store.edit("q", lambda items: [Purge("q")] * len(items)) == [1]

    with_store(test, patience=0.3)


def test_behind_a_proxy_that_shares_connections() -> None:
    """Without prepared statements and LISTEN: changes by others are seen by looking."""

    async def test(store: PostgresStore, connection: Any) -> None:
        other = connect(schemas().url, schema=store.schema, prepared=False, listen=False)
        queue = store.queue("q")
        for number in range(3):
            getter = asyncio.create_task(queue.get(timeout=60))
            await asyncio.sleep(0.01)
            await other.put([Put("q", ((f"k{number}", b"1"),))])
            assert (await getter)[0] == f"k{number}"
        statements = (
            "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND query LIKE $1"
        )
        assert await connection.fetchval(statements, f"%{store.schema}%") == 0
        await other.close()

    with_store(test, prepared=False, listen=False)


@pytest.mark.parametrize("policy", ["update", "buffer", "reject"])
@pytest.mark.parametrize("ended", ["before", "after"])
def test_a_lease_that_ends_beside_a_put_of_its_key_in_a_transaction(
    policy: str, ended: str
) -> None:
    """Nobody waits. The value comes after the commit, by the rules of put for what is there."""

    async def test(store: PostgresStore, connection: Any) -> None:
        transaction = connection.transaction()
        await transaction.start()
        put = f"SELECT {store.schema}.put('q', 'a', '2', if_in_flight => '{policy}')"
        number = await connection.fetchval(put)
        await store.put([Put("q", ((key, b"1"),)) for key in "ab"])
        [held] = await store.claim([Claim((("q", 2),), 2)])
        acks = [Ack("q", item.key, item.token) for item in held]
        if ended == "before":
            assert await store.settle(acks) == [None, None]
        await transaction.commit()
        if ended == "after":
            assert await store.settle(acks) == [None, None]
        [left] = await store.look("q", ["a"])
        if ended == "after" and policy == "update":
            assert left == ()  # it has updated the item that was leased
        else:
            assert [(item.id, item.value, item.state) for item in left] == [
                (number, b"2", "available")
            ]

    with_store(test)


def test_the_rights_of_a_program_that_only_puts() -> None:
    """As the docs say them."""

    async def test(store: PostgresStore, connection: Any) -> None:
        role = f"putter_{store.schema[-12:]}"
        await connection.execute(f"CREATE ROLE {role}")
        for right in (
            f"USAGE ON SCHEMA {store.schema}",
            f"USAGE ON ALL SEQUENCES IN SCHEMA {store.schema}",
            f"INSERT, SELECT ON {store.schema}.inbox",
            f"SELECT ON {store.schema}.items, {store.schema}.line, {store.schema}.tallies",
        ):
            await connection.execute(f"GRANT {right} TO {role}")
        queue = store.queue("q", maxsize=2)
        async with connection.transaction():
            await connection.execute(f"SET LOCAL ROLE {role}")
            await queue.put("a", 1, if_in_flight="reject", connection=connection)
            await connection.execute(f"SELECT {store.schema}.put('q', 'b', '1')")
            with pytest.raises(QueueFullError):
                await queue.put("c", 1, connection=connection)
        assert await queue.available_keys() == {"a", "b"}
        await connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")

    with_store(test)


def test_the_order_of_what_is_put_in_transactions() -> None:
    """Values of a key come in their order, and before what is put after the commit."""

    async def test(store: PostgresStore, connection: Any) -> None:
        queue = store.queue("q")
        await queue.put("live", 0)
        async with connection.transaction():
            await queue.put_many({"c": 1, "b": 1, "live": 1}, connection=connection)
            await queue.put("c", 2, connection=connection)
            await queue.put("now", 3, delay=0.01, connection=connection)
            await queue.put("later", 3, delay=60, connection=connection)
            await queue.put("urgent", 3, priority=1, connection=connection)
        await asyncio.sleep(0.02)
        await queue.put("c", 4)
        await queue.put("a", 1)
        assert await store.count(["q"]) == {"q": Counts(available=6, scheduled=1)}
        got = [await queue.get() for _ in range(6)]
        assert [(key, value) for key, value, _ in got] == [
            ("urgent", 3),
            ("live", 1),
            ("c", 4),
            ("b", 1),
            ("now", 3),
            ("a", 1),
        ]
        for _, _, lease in got:
            await queue.ack(lease)

    with_store(test)


def test_each_verb_sees_what_was_committed() -> None:
    async def test(store: PostgresStore, connection: Any) -> None:
        verbs: list[Callable[[], Awaitable[Any]]] = [
            lambda: store.count(["q"]),
            store.count,
            lambda: store.look("q", ["a"]),
            lambda: store.heads(["q"]),
            lambda: store.browse("q"),
            lambda: store.sweep(["q"]),
            lambda: store.put([Put("q", (("b", b"1"),))]),
            lambda: store.put([Put("q", (("b", b"1"), ("c", b"1")), "reject")]),
            lambda: store.settle([Discard("q", 1)]),
            lambda: store.claim([Claim((("q", 1),))]),
            lambda: store.claim([Claim((("q", 1), ("other", 1)))]),
            lambda: store.edit("q", lambda _: []),
        ]
        for verb in verbs:
            await connection.fetchval(f"SELECT {store.schema}.put('q', 'a', '1')")
            await verb()
            count = f"SELECT count(*) FROM {store.schema}.items WHERE key = 'a'"
            assert await connection.fetchval(count) == 1
            assert await connection.fetchval(f"SELECT count(*) FROM {store.schema}.inbox") == 0
            await store.settle([Purge("q", "all")])
        for verb in (store.count, lambda: store.count(["q"])):
            await connection.fetchval(f"SELECT {store.schema}.put('q', 'a', '1')")
            assert await verb() == {"q": Counts(available=1)}

    with_store(test)


def test_many_put_in_transactions_beside_workers() -> None:
    """Nothing is lost, put twice or overtaken by an older value of its key."""

    async def test(store: PostgresStore, connection: Any) -> None:
        del connection
        stores = [store, connect(store._url, schema=store.schema)]
        producers, rounds = 4, 25
        newest: dict[str, int] = {}

        async def produce(name: int) -> None:
            own = await asyncpg.connect(store._url)
            queue = store.queue("q")
            for number in range(rounds):
                async with own.transaction():
                    pairs = {f"{name}.{key}": number for key in range(5)}
                    await queue.put_many(pairs, if_in_flight="buffer", connection=own)
                    await queue.put(f"{name}.0", number, if_in_flight="buffer", connection=own)
                    await asyncio.sleep(0.001 * (number % 3))
            await own.close()

        async def work(of: Store) -> None:
            queue = of.queue("q")
            while True:
                key, value, lease = await queue.get()
                assert value >= newest.get(key, 0)
                newest[key] = value
                await queue.ack(lease)

        workers = [asyncio.create_task(work(one)) for one in stores for _ in range(3)]
        await asyncio.gather(*(produce(number) for number in range(producers)))
        while (await store.count(["q"]))["q"] != Counts():
            await asyncio.sleep(0.01)
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        assert newest == {
            f"{name}.{key}": rounds - 1 for name in range(producers) for key in range(5)
        }
        await stores[1].close()

    with_store(test)


def test_a_transaction_that_stays_open_holds_up_nobody() -> None:
    """The torture does it for ten seconds."""
    hold_a_transaction_open(1.5)


def hold_a_transaction_open(seconds: float) -> None:
    """Measure the calls of two other stores before and while a transaction that has put is open."""

    async def test(store: PostgresStore, connection: Any) -> None:
        other = connect(store._url, schema=store.schema)
        quiet = await call_times([store, other], seconds)
        async with connection.transaction():
            bounded = store.queue("q", maxsize=1000)
            await bounded.put_many({"0": 1, "mine": 1}, connection=connection)
            await bounded.put("1", 1, if_in_flight="reject", connection=connection)
            await connection.fetchval(f"SELECT {store.schema}.put('jobs', '1', '1')")
            beside = await call_times([store, other], seconds)
        # A little more than twice, as the tests share their machine.
        assert slowest(beside) <= 2 * slowest(quiet) + 0.1, (slowest(quiet), slowest(beside))
        assert len(beside) > len(quiet) / 4
        await other.close()

    with_store(test)


def slowest(times: list[float]) -> float:
    """The slowest call but one in a hundred."""
    return sorted(times)[len(times) * 99 // 100]


async def call_times(stores: list[Store], seconds: float) -> list[float]:
    """How long calls of each verb take that are made for so long, on the same and on other keys."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    times: list[float] = []

    async def timed(call: Awaitable[Any]) -> Any:
        began = loop.time()
        answer = await call
        times.append(loop.time() - began)
        return answer

    async def use(store: Store, name: str) -> None:
        queue = store.queue(name, maxsize=1000)
        number = 0
        while loop.time() < end:
            number += 1
            await timed(queue.put(str(number % 10), number))
            await timed(queue.put("own", number, if_in_flight="buffer"))
            _, _, lease = await timed(queue.get())
            await timed(queue.extend(lease, 60))
            await timed(store.count([name]))
            await timed(queue.ack(lease))
            await timed(store.sweep([name]))
            await timed(store.edit(name, lambda _: [], keys=["own"]))

    await asyncio.gather(*(use(store, name) for store in stores for name in ("q", "jobs", "else")))
    for name in ("q", "jobs", "else"):
        await stores[0].settle([Purge(name, "all")])
    return times


def test_an_edit_changes_what_it_has_seen() -> None:
    """What is committed while an edit looks comes after it, and is not overwritten."""

    async def test(store: PostgresStore, connection: Any) -> None:
        async def put_meanwhile() -> None:
            other = await asyncpg.connect(schemas().url)
            await other.execute(f"SELECT {store.schema}.put('q', 'a', '3')")
            await other.close()

        for keys in (["a"], ["a", "b"]):
            await store.settle([Purge("q")])
            await store.put([Put("q", (("a", b"1"),))])
            seen: list[bytes] = []

            def work(
                items: Sequence[StoredItem],
                keys: list[str] = keys,
                seen: list[bytes] = seen,
            ) -> list[Put]:
                seen += [item.value for item in items]
                thread = threading.Thread(target=asyncio.run, args=(put_meanwhile(),))
                thread.start()
                thread.join()
                return [Put("q", ((key, b"2"),)) for key in keys]

            await store.edit("q", work)
            assert seen == [b"1"]
            [[item]] = await store.look("q", ["a"])
            assert item.value == b"3", "what came meanwhile was overwritten"

    with_store(test)


def test_calls_cost_the_same_after_many_puts_in_transactions_beside_an_old_one() -> None:
    """Nothing that was moved from the inbox can be removed as long as that is open."""

    async def test(store: PostgresStore, connection: Any) -> None:
        async def cost(call: Callable[[], Awaitable[Any]]) -> float:
            took: list[float] = []
            for _ in range(21):
                began = time.perf_counter()
                await call()
                took.append(time.perf_counter() - began)
            return statistics.median(took)

        calls: list[Callable[[], Awaitable[Any]]] = [
            lambda: store.put([Put("q", (("x", b"1"),))]),
            lambda: store.put([Put("q", (("x", b"1"),), delay=0)]),
            lambda: store.claim([Claim((("q", 1),), key="y")]),
            lambda: store.settle([Ack("q", "y", "token")]),
            lambda: store.sweep(["q"]),
        ]
        old = await asyncpg.connect(schemas().url)
        async with old.transaction(isolation="repeatable_read"):
            await old.fetch("SELECT FROM pg_class LIMIT 1")
            put = f"SELECT {store.schema}.put('q', 'k' || i, '1') FROM generate_series(1, $1) i"
            await connection.execute(put, 10)
            await store.count(["q"])
            before = [await cost(call) for call in calls]
            for _ in range(4):
                await connection.execute(put, 10_000)
                await store.count(["q"])
            after = [await cost(call) for call in calls]
        await old.close()
        for quiet, slow in zip(before, after, strict=True):
            assert slow < 3 * quiet + 0.002, (before, after)

    with_store(test)


def test_who_moves_items_from_several_inboxes_waits_before_it_holds_any() -> None:
    """Two that do so, and hold items that the other wants, would wait for each other."""

    async def test(store: PostgresStore, connection: Any) -> None:
        lock = f"{store.schema}.lock_1"
        first, last = sorted(["a", "b"], key=lambda q: lock_number(store.schema, "queue", q))
        await store.put([Put(first, (("k", b"1"),))])
        other = await asyncpg.connect(schemas().url)
        for queue in (first, last):
            await other.execute(f"SELECT {store.schema}.put('{queue}', 'k', '2')")
        async with connection.transaction():
            gate = f"{lock}('queue', '{last}')::text"
            await connection.execute(f"SELECT pg_advisory_xact_lock({lock}('inbox', {gate}))")
            sweep = asyncio.create_task(store.sweep([first, last]))
            waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            while not await other.fetchval(waits):
                await asyncio.sleep(0.01)
            await connection.execute(
                f"SELECT FROM {store.schema}.items WHERE queue = '{first}' FOR UPDATE NOWAIT"
            )
        await sweep
        await other.close()
        [[item]] = await store.look(first, ["k"])
        assert item.value == b"2"

    with_store(test)
