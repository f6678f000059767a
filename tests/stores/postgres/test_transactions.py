"""Puts that are a part of a transaction of the caller, and proxies that share connections."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from leasedkeyq.errors import KeyAlreadyInFlightError, QueueFullError, StoreError
from leasedkeyq.stores import Ack, Claim, Counts, Purge, Put, connect
from leasedkeyq.stores.postgres import PostgresStore
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


def test_an_edit_waits_for_a_transaction_that_has_put_and_not_for_ever() -> None:
    async def test(store: PostgresStore, connection: Any) -> None:
        transaction = connection.transaction()
        await transaction.start()
        await store.queue("q").put("a", 1, connection=connection)
        with pytest.raises(StoreError, match="keeps the queue locked"):
            await store.edit("q", lambda _: [Purge("q")])
        await store.put([Put("q", (("b", b"1"),))])
        await transaction.commit()
        assert await store.edit("q", lambda _: [Purge("q")]) == [2]

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


@pytest.mark.parametrize("policy", ["update", "buffer"])
def test_a_lease_can_be_ended_while_its_key_is_put_in_a_transaction(policy: str) -> None:
    """The acknowledgement waits for the put, and then holds for what it finds."""

    async def test(store: PostgresStore, connection: Any) -> None:
        await store.put([Put("q", ((key, b"1"),)) for key in "ab"])
        [held] = await store.claim([Claim((("q", 2),), 2)])
        transaction = connection.transaction()
        await transaction.start()
        put = f"SELECT {store.schema}.put('q', 'a', '2', if_in_flight => '{policy}')"
        await connection.fetchval(put)
        acks = [Ack("q", item.key, item.token) for item in held]
        acking = asyncio.create_task(store.settle(acks))
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND pid <> pg_backend_pid()"
        async with asyncio.timeout(30):
            while not await connection.fetchval(waiting):
                await asyncio.sleep(0.01)
        await transaction.commit()
        assert await acking == [None, None]
        left = Counts(available=1) if policy == "buffer" else Counts()
        assert await store.count(["q"]) == {"q": left}
        assert [item is None for item in await store.heads(["q"])] == [policy == "update"]

    with_store(test)
