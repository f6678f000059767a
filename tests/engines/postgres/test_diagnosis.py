"""What a PostgreSQL store finds wrong with its server, each provoked on one."""

import asyncio
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from leasedkeyq import connect
from leasedkeyq.engines.postgres import diagnosis, schema
from leasedkeyq.errors import StoreError
from leasedkeyq.stores import Finding, Put, SchemaState
from leasedkeyq.testing import Place
from tests.servers.pgbouncer import PROGRAM, PgBouncer
from tests.servers.postgres import PASSWORD, USER, run_sql, schemas, server_url, shared_server
from tests.servers.proxy import Proxy
from tests.servers.urls import empty_store


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[str]:
    """A database of its own, on the shared server."""
    with empty_store("postgresql", tmp_path, new=True) as url:
        yield url


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with empty_store("postgresql", tmp_path_factory.mktemp("none"), new=True) as url:
        yield url


@pytest.fixture
def url(database: str) -> Iterator[str]:
    """A database with tables, whose settings are its own."""
    yield database
    run_sql(server_url(), f"ALTER DATABASE {name_of(database)} RESET ALL")


def findings(
    url: str, *sql: str, after: Callable[[], object] = bool, **options: Any
) -> list[Finding]:
    """What a store says once something was done to its server."""

    async def run() -> list[Finding]:
        async with connect(url, **options) as store:
            for statement in sql:
                await asyncio.to_thread(run_sql, url, statement)
            found = await store.diagnose()
            after()
            return found

    return asyncio.run(run())


def codes(found: list[Finding]) -> dict[str, Finding]:
    return {finding.code: finding for finding in found}


def name_of(url: str) -> str:
    return url.rpartition("/")[2]


def test_what_the_server_of_the_tests_is_told(url: str) -> None:
    """It is not durable, and nothing else is wrong with it."""
    [found] = findings(url)
    assert (found.code, found.severity) == ("durability-weak", "warning")
    assert "fsync and full_page_writes are off" in found.what
    assert PASSWORD not in str(found)


def test_commits_that_do_not_wait(url: str) -> None:
    found = findings(url, f"ALTER DATABASE {name_of(url)} SET synchronous_commit = off")
    assert any("synchronous_commit is off" in finding.what for finding in found)


def test_a_server_that_only_reads(url: str) -> None:
    sql = f"ALTER DATABASE {name_of(url)} SET default_transaction_read_only = on"
    assert codes(findings(url, sql))["server-read-only"].severity == "error"


def test_rights(empty: str) -> None:
    url = empty
    role = f"clerk_{name_of(url)}"
    run_sql(url, f"CREATE ROLE {role} LOGIN PASSWORD 'pw'")
    theirs = url.replace(f"{USER}:{PASSWORD.replace(' ', '%20')}", f"{role}:pw")
    try:
        found = codes(findings(theirs, migrate=False))["rights-missing"]
        assert "may not make them" in found.what
        asyncio.run(connect(url).close())
        run_sql(url, f"GRANT USAGE ON SCHEMA leasedkeyq TO {role}")
        run_sql(url, f"GRANT SELECT ON ALL TABLES IN SCHEMA leasedkeyq TO {role}")
        found = codes(findings(theirs))["rights-missing"]
        assert found.severity == "error"
        assert f"the user {role} may not use the table " in found.what
        run_sql(url, f"GRANT ALL ON ALL TABLES IN SCHEMA leasedkeyq TO {role}")
        run_sql(url, f"GRANT ALL ON ALL SEQUENCES IN SCHEMA leasedkeyq TO {role}")
        assert "rights-missing" not in codes(findings(theirs))
    finally:
        run_sql(url, f"DROP OWNED BY {role}")
        run_sql(url, f"DROP ROLE {role}")


def test_autovacuum_off_and_behind(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "MANY_DEAD", 100)
    off = "ALTER TABLE leasedkeyq.buried SET (autovacuum_enabled = false)"
    litter = (
        (
            "CREATE TABLE leasedkeyq.litter WITH (autovacuum_enabled = false) AS "
            "SELECT n FROM generate_series(1, 500) AS n"
        ),
        "DELETE FROM leasedkeyq.litter",
    )

    def look() -> dict[str, Finding]:
        return codes(findings(url))

    findings(url, off, *litter)
    # The server writes its statistics down when the connection has ended.
    found = until(lambda: "autovacuum-behind" in look(), look)
    assert found["autovacuum-off"].severity == "error"
    assert "leasedkeyq.litter has 500 dead rows" in found["autovacuum-behind"].what
    monkeypatch.setattr(diagnosis, "MANY_DEAD", 10**6)
    monkeypatch.setattr(diagnosis, "BLOATED", 8192)
    assert "leasedkeyq.litter" in look()["table-bloated"].what
    run_sql(url, "DROP TABLE leasedkeyq.litter")
    run_sql(url, "ALTER TABLE leasedkeyq.buried RESET (autovacuum_enabled)")


def until(condition: Callable[[], bool], answer: Callable[[], Any]) -> Any:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)
    return answer()


def test_autovacuum_off_on_the_server() -> None:
    settings = {
        "standby": False,
        "read_only": "off",
        "synchronous_commit": "on",
        "fsync": "on",
        "full_page_writes": "on",
        "autovacuum": "off",
        "major": 18,
        "account": "a",
        "version": "18.1",
    }
    look = diagnosis.PostgresDiagnosis("s", where="", connect=_never, needs_session=False)
    [found] = look._of_settings(settings)
    assert (found.code, found.severity) == ("autovacuum-off", "error")


async def _never() -> Any:
    raise AssertionError


def test_a_transaction_that_stays_open(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "OLD_TRANSACTION", 0.0)

    async def run() -> list[Finding]:
        other = await asyncpg.connect(url, server_settings={"application_name": "a report"})
        try:
            await other.execute("BEGIN")
            await other.execute("SELECT 1")
            async with connect(url) as store:
                return await store.diagnose()
        finally:
            await other.close()

    found = codes(asyncio.run(run()))["long-transaction"]
    assert "(a report)" in found.what
    assert "pg_terminate_backend(" in found.advice


def test_a_version_that_is_not_mended_any_more(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    version = int(run_sql(url, "SHOW server_version_num")) // 10000
    yesterday = datetime.fromtimestamp(time.time() - 86400, UTC).date()
    monkeypatch.setitem(diagnosis.LAST_DAYS, version, yesterday)
    assert str(yesterday) in codes(findings(url))["server-old"].what


def test_clocks(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time
    asyncio.run(connect(url).close())
    monkeypatch.setattr("leasedkeyq.engines.postgres.diagnosis.time.time", lambda: now() + 100)
    assert "behind" in codes(findings(url))["clocks-apart"].what


def test_a_server_that_is_away() -> None:
    """It is an error of the call, as of every other, and comes at once."""
    place = Place()
    name = schemas().borrow(place)
    with Proxy(shared_server().port) as proxy:
        url = server_url().replace(f":{shared_server().port}/", f":{proxy.port}/")

        async def run() -> None:
            async with connect(url, schema=name) as store:
                proxy.close()
                with pytest.raises(StoreError):
                    await store.diagnose()

        asyncio.run(run())
    place.close()


def test_the_version_of_the_tables(empty: str) -> None:
    url = empty

    async def look() -> SchemaState | None:
        async with connect(url, migrate=False) as store:
            with pytest.raises(StoreError, match="leasedkeyq migrate"):
                await store.put([Put("q", (("k", b"1"),))])
            return await store.schema_state()

    new = asyncio.run(look())
    assert new is not None
    assert (new.version, new.wanted) == (0, schema.VERSION)
    assert len(new.changes) == len(schema.MIGRATIONS)
    assert run_sql(url, "SELECT to_regnamespace('leasedkeyq')") is None, "looking makes nothing"

    async def run_script() -> None:
        connection = await asyncpg.connect(url)
        await connection.execute(new.sql)
        await connection.close()

    asyncio.run(run_script())  # what is shown is what would be done

    async def use() -> SchemaState | None:
        async with connect(url, migrate=False) as store:
            await store.put([Put("q", (("k", b"1"),))])
            return await store.schema_state()

    assert asyncio.run(use()) == SchemaState(version=schema.VERSION, wanted=schema.VERSION)
    run_sql(url, f"UPDATE leasedkeyq.version SET version = {schema.VERSION - 1}")
    old = asyncio.run(look())
    assert old is not None
    assert old.changes == (f"version {schema.VERSION}: {schema.CHANGES[-1]}",)
    assert "CREATE TABLE leasedkeyq.items" not in old.sql


def test_every_version_is_told_in_words() -> None:
    assert len(schema.CHANGES) == len(schema.MIGRATIONS)


if PROGRAM:

    def test_pgbouncer_in_transaction_mode() -> None:
        place = Place()
        name = schemas().borrow(place)
        with PgBouncer(shared_server().url) as bouncer:
            found = codes(findings(bouncer.url, schema=name))["proxy-mode"]
            assert found.severity == "error"
            assert "prepared=False, listen=False" in found.advice
            right = findings(bouncer.url, schema=name, prepared=False, listen=False)
            assert "proxy-mode" not in codes(right)
        place.close()
