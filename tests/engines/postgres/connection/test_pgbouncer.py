"""Behind PgBouncer in transaction mode; the tests are there where the system has that program."""

import asyncio
import time
from typing import Any

import pytest

from leasedkeyq import connect
from leasedkeyq.engines.postgres.store import PostgresStore
from leasedkeyq.errors import StoreError
from leasedkeyq.stores import Ack, Claim, Put, Store
from leasedkeyq.testing import Place
from tests.servers.pgbouncer import PROGRAM, PgBouncer
from tests.servers.postgres import run_sql, schemas, shared_server

if PROGRAM:

    async def crowd(stores: list[Store], rounds: int) -> None:
        """Several clients at a time, who get each other's connections."""

        async def use(store: Store, name: str) -> None:
            for number in range(rounds):
                key = f"{name}.{number}"
                await store.put([Put("q", ((key, b"1"),))])
                [[item]] = await store.claim([Claim((("q", 1),), 1, key, 60.0)])
                await store.edit("q", lambda _: [], keys=[key])
                await store.count(["q"])
                assert await store.settle([Ack("q", key, item.token)]) == [None]

        await asyncio.gather(*(use(store, str(n)) for n, store in enumerate(stores)))

    def test_what_is_said_of_prepared_statements() -> None:
        place = Place()
        schema = schemas().borrow(place)

        async def run(url: str) -> None:
            stores: list[Store] = []
            for _ in range(4):
                store = connect(url, schema=schema, patience=5)
                assert isinstance(store, PostgresStore)
                assert any("prepared=False, listen=False" in text for text in store.warnings)
                stores.append(store)
            with pytest.raises(StoreError, match="prepared=False, listen=False"):
                await crowd(stores, 50)
            for store in stores:
                await store.close()

        with PgBouncer(shared_server().url) as bouncer:
            asyncio.run(run(bouncer.url))
        place.close()

    def test_without_prepared_statements_and_listen_it_works() -> None:
        place = Place()
        schema = schemas().borrow(place)
        options: dict[str, Any] = {"schema": schema, "prepared": False, "listen": False}

        async def run(url: str) -> None:
            stores: list[Store] = [connect(url, **options) for _ in range(4)]
            assert not any("proxy" in text for s in stores for text in getattr(s, "warnings", ()))
            await crowd(stores, 20)
            getting = asyncio.create_task(stores[0].queue("mail").get(timeout=30))
            await stores[1].queue("mail").put("a", 1)
            assert (await getting)[0] == "a"
            for store in stores:
                await store.close()

        with PgBouncer(shared_server().url) as bouncer:
            asyncio.run(run(bouncer.url))
        place.close()

    def test_another_isolation_than_read_committed() -> None:
        database = f"isolated_{Place().name[-12:]}"
        url = shared_server().url
        run_sql(url, f"CREATE DATABASE {database}")
        run_sql(
            url, f"ALTER DATABASE {database} SET default_transaction_isolation = 'serializable'"
        )
        with PgBouncer(url.replace("/postgres", f"/{database}")) as bouncer:
            began = time.monotonic()
            with pytest.raises(StoreError, match="SET default_transaction_isolation = 'read comm"):
                connect(bouncer.url, prepared=False, listen=False)
            assert time.monotonic() - began < 10
            run_sql(url, f"ALTER DATABASE {database} RESET default_transaction_isolation")
            theirs = f"FROM pg_stat_activity WHERE datname = '{database}'"
            run_sql(url, f"SELECT pg_terminate_backend(pid) {theirs}")
            time.sleep(0.5)
            store = connect(bouncer.url, prepared=False, listen=False)
            asyncio.run(store.close())
