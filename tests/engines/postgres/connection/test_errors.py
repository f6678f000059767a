"""What the server, a proxy or the way to them may say, with what can be done."""

import asyncio
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest
import trustme

from leasedkeyq import connect
from leasedkeyq.engines.postgres.batch import lock_number
from leasedkeyq.engines.postgres.errors import TROUBLES, explain
from leasedkeyq.engines.postgres.store import PostgresStore
from leasedkeyq.errors import StoreError, StoreUnavailableError
from leasedkeyq.stores import Claim, Purge
from leasedkeyq.testing import Place
from tests.engines.postgres.test_races import with_store
from tests.servers.postgres import run_sql, schemas, server_url

VERBS: dict[str, Callable[[PostgresStore], Awaitable[Any]]] = {
    "put": lambda store: store.queue("q").put("a", 1),
    "put_many": lambda store: store.queue("q").put_many({"a": 1, "b": 1}),
    "get": lambda store: store.queue("q").get(timeout=5),
    "claim": lambda store: store.claim([Claim((("q", 1), ("other", 1)))]),
    "settle": lambda store: store.settle([Purge("q")]),
    "sweep": lambda store: store.sweep(["q"]),
    "count": lambda store: store.count(["q"]),
    "look": lambda store: store.look("q", ["a"]),
    "browse": lambda store: store.browse("q"),
    "edit": lambda store: store.edit("q", lambda _: []),
}


@pytest.mark.parametrize("used", [False, True])
def test_a_schema_that_was_dropped(*, used: bool) -> None:
    """Each verb says so, whether or not its statement was prepared before."""

    async def test(store: PostgresStore) -> None:
        if used:
            for verb in VERBS.values():
                await verb(store)
        run_sql(store._url, f"DROP SCHEMA {store.schema} CASCADE")
        for verb in VERBS.values():
            with pytest.raises(StoreError, match=r"dropped its schema.*open the store again"):
                await verb(store)
        again = connect(store._url, schema=store.schema)
        await again.queue("q").put("a", 1)
        await again.close()

    with_store(test)


def test_a_big_batch_that_takes_too_long_fails_alone() -> None:
    """The server stops a call after some time: those who ask for little do not ask for more."""
    place = Place()
    schema = schemas().borrow(place)

    async def run() -> None:
        store = connect(f"{schemas().url}?statement_timeout=1500", schema=schema)
        slow = f"""
            CREATE FUNCTION {schema}.slow() RETURNS trigger LANGUAGE plpgsql
            AS $$ BEGIN PERFORM pg_sleep(0.02); RETURN NEW; END $$;
            CREATE TRIGGER slow BEFORE INSERT ON {schema}.items FOR EACH ROW
            WHEN (NEW.key LIKE 'slow%') EXECUTE FUNCTION {schema}.slow()
        """
        connection = await asyncpg.connect(schemas().url)
        await connection.execute(slow)
        queue = store.queue("q")
        await queue.put("warm", 1)
        calls: list[Any] = [queue.put(f"quick{number}", 1) for number in range(5)]
        calls.insert(2, queue.put_many({f"slow{number}": 1 for number in range(200)}))
        answers = await asyncio.gather(*calls, return_exceptions=True)
        failed = answers.pop(2)
        assert isinstance(failed, StoreError)
        assert not isinstance(failed, StoreUnavailableError)
        assert "statement_timeout" in str(failed)
        assert "not known" not in str(failed)
        assert answers == ["added"] * 5
        assert await queue.available_keys() == {"warm", *(f"quick{n}" for n in range(5))}
        await connection.execute(f"DROP FUNCTION {schema}.slow CASCADE")
        await connection.close()
        await store.close()

    asyncio.run(run())
    place.close()


def test_calls_that_are_all_stopped_do_not_wait_one_after_the_other() -> None:
    """Somebody edits the queue for long: what is sent request by request ends with the patience."""
    place = Place()
    schema = schemas().borrow(place)

    async def run() -> None:
        store = connect(f"{schemas().url}?statement_timeout=300", schema=schema, patience=0.5)
        queue = store.queue("q")
        await queue.put("warm", 1)
        connection = await asyncpg.connect(schemas().url)
        async with connection.transaction():
            lock = lock_number(schema, "queue", "q")
            await connection.execute("SELECT pg_advisory_xact_lock($1)", lock)
            began = time.monotonic()
            calls = [queue.put(f"k{number}", 1) for number in range(40)]
            answers = await asyncio.gather(*calls, return_exceptions=True)
            assert time.monotonic() - began < 6
        assert all(isinstance(answer, StoreError) for answer in answers)
        assert await queue.available_keys() == {"warm"}
        await connection.close()
        await store.close()

    asyncio.run(run())
    place.close()


# TLS: the servers of the tests have none


def refused_at_once(url: str, words: str, **options: Any) -> None:
    began = time.monotonic()
    with pytest.raises(StoreError, match=words) as caught:
        connect(url, **options)
    assert not isinstance(caught.value, StoreUnavailableError)
    assert time.monotonic() - began < 5


def test_a_server_without_tls() -> None:
    refused_at_once(f"{server_url()}?sslmode=require", "speaks no TLS.*another sslmode")


@pytest.mark.parametrize(
    "parameters, words",
    [
        ("sslmode=verify-full&sslrootcert=/nowhere/ca.pem", "sslrootcert.* cannot be read"),
        ("sslcert=/nowhere/client.pem", "sslcert.* cannot be read"),
        ("sslmode=perhaps", "`sslmode` parameter must be"),
    ],
)
def test_wrong_settings_of_tls(parameters: str, words: str) -> None:
    refused_at_once(f"{server_url()}?{parameters}", words)


@contextmanager
def speaking_tls(context: ssl.SSLContext) -> Generator[str]:
    """A proxy that speaks TLS, as a server with it does, for the one of the tests; its URL."""
    target = urlsplit(server_url())
    loop = asyncio.new_event_loop()
    serving: list[asyncio.Server] = []
    ready = threading.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)  # the wish for TLS
        writer.write(b"S")
        try:
            await writer.start_tls(context)
        except (OSError, ssl.SSLError):
            return
        there, back = await asyncio.open_connection(target.hostname, target.port)
        await asyncio.gather(pass_on(reader, back), pass_on(there, writer))

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    async def start() -> None:
        serving.append(await asyncio.start_server(serve, "127.0.0.1", 0))
        ready.set()

    async def stop() -> None:
        serving[0].close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    asyncio.run_coroutine_threadsafe(start(), loop)
    ready.wait()
    port = serving[0].sockets[0].getsockname()[1]
    try:
        yield server_url().replace(f"127.0.0.1:{target.port}", f"localhost:{port}")
    finally:
        asyncio.run_coroutine_threadsafe(stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_certificates(tmp_path: Path) -> None:
    authority, stranger = trustme.CA(), trustme.CA()
    trusted, other = tmp_path / "ca.pem", tmp_path / "other.pem"
    authority.cert_pem.write_to_path(trusted)
    stranger.cert_pem.write_to_path(other)
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("nothing")
    place = Place()
    schema = schemas().borrow(place)
    right = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(right)
    with speaking_tls(right) as url:
        asyncio.run(connect(f"{url}?sslmode=require", schema=schema).close())
        verified = f"{url}?sslmode=verify-full&sslrootcert="
        asyncio.run(connect(f"{verified}{trusted}", schema=schema).close())
        refused_at_once(f"{verified}{other}", "signed by nobody who is trusted.*sslrootcert")
        refused_at_once(f"{verified}{nonsense}", "is no certificate")
    elsewhere = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("db.example").configure_cert(elsewhere)
    with speaking_tls(elsewhere) as url:
        check = f"{url}?sslrootcert={trusted}&sslmode="
        refused_at_once(f"{check}verify-full", "is for another host.*verify-ca")
        asyncio.run(connect(f"{check}verify-ca", schema=schema).close())
    place.close()


# A proxy that shares connections: what PgBouncer says, as asyncpg raises it


@pytest.mark.parametrize(
    "error, words",
    [
        (
            asyncpg.DuplicatePreparedStatementError('prepared statement "x" already exists'),
            "prepared=False, listen=False",
        ),
        (
            asyncpg.InvalidSQLStatementNameError('prepared statement "x" does not exist'),
            "prepared=False, listen=False",
        ),
        (
            asyncpg.ProtocolViolationError(
                "unsupported startup parameter: default_transaction_isolation"
            ),
            "ALTER ROLE ... SET default_transaction_isolation = 'read committed'",
        ),
        (
            asyncpg.ProtocolViolationError("unsupported startup parameter: jit"),
            "ignore_startup_parameters",
        ),
    ],
)
def test_a_proxy_that_shares_connections(error: asyncpg.PostgresError, words: str) -> None:
    told = explain(error, "here")
    assert words in str(told)
    assert not isinstance(told, StoreUnavailableError)


def test_no_advice_hides_another() -> None:
    """The first that fits counts: one that stands behind a wider one is never given."""
    for number, trouble in enumerate(TROUBLES):
        for earlier in TROUBLES[:number]:
            wider = all(issubclass(kind, earlier.kinds) for kind in trouble.kinds)
            assert not (wider and earlier.said in ("", trouble.said)), trouble.advice
