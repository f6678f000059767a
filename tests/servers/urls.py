"""Empty stores that processes can share, by URL."""

import secrets
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from tests.servers.postgres import TABLES, run_sql, server_url
from tests.servers.valkey import Server

KINDS = ("sqlite", "postgresql", "redis")

GOODBYES = 10
"""How often to look whether a test's connections have ended, 20 ms apart."""

AS_IT_WAS = f"""
SELECT ARRAY[NOT EXISTS (
    SELECT FROM pg_stat_activity
    WHERE datname = current_database()
      AND pid <> pg_backend_pid()
      AND backend_type = 'client backend'
), NOT EXISTS (
    SELECT FROM pg_db_role_setting
    WHERE setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database())
) AND NOT EXISTS (
    SELECT FROM pg_class WHERE relnamespace = 'public'::regnamespace
) AND (
    SELECT array_agg(tablename::text ORDER BY tablename) = ARRAY{sorted((*TABLES, "version"))}
    FROM pg_tables WHERE schemaname = 'leasedkeyq'
) AND (
    SELECT array_agg(nspname::text ORDER BY nspname) = ARRAY['leasedkeyq', 'public']
    FROM pg_namespace WHERE nspname !~ '^pg_' AND nspname <> 'information_schema'
)]
"""
"""Whether nobody uses a database any more, and whether it has nothing but a store."""

EMPTY = """
DO $$
DECLARE
    name text;
BEGIN
    EXECUTE (
        SELECT 'TRUNCATE ' || string_agg(format('leasedkeyq.%I', tablename), ', ')
        FROM pg_tables WHERE schemaname = 'leasedkeyq' AND tablename <> 'version'
    );
    FOR name IN SELECT sequencename FROM pg_sequences WHERE schemaname = 'leasedkeyq' LOOP
        EXECUTE format('ALTER SEQUENCE leasedkeyq.%I RESTART', name);
    END LOOP;
END $$
"""


@contextmanager
def empty_store(kind: str, folder: Path, *, new: bool = False) -> Generator[str]:
    """The URL of a store of a kind, until the end of a test.

    On PostgreSQL it is a database, which a test before may have used: to make one takes half a
    second. With `new` nobody has, and it has no tables yet.
    """
    if kind == "postgresql":
        with _database(new=new) as url:
            yield url
    elif kind == "redis":
        with Server("--appendonly", "yes", "--appendfsync", "always") as server:
            yield server.url
    elif kind == "file":
        yield f"file://{folder}/{secrets.token_hex(4)}.json"
    else:
        yield f"sqlite:///{folder}/{secrets.token_hex(4)}.db"


_emptied: list[str] = []
"""Databases for the next tests."""


@contextmanager
def _database(*, new: bool) -> Generator[str]:
    server = server_url()
    if _emptied and not new:
        name = _emptied.pop()
    else:
        name = f"test_{secrets.token_hex(4)}"
        run_sql(server, f"CREATE DATABASE {name}")
    url = urlsplit(server)._replace(path=f"/{name}").geturl()
    try:
        yield url
    finally:
        if not new and _empty(url):
            _emptied.append(name)
        else:
            run_sql(server, f"DROP DATABASE {name} WITH (FORCE)")


def _empty(url: str) -> bool:
    """Empty the store of a test; False if its database cannot be used again."""
    for _ in range(GOODBYES):
        left, plain = run_sql(url, AS_IT_WAS)
        if not plain:
            return False
        if left:
            run_sql(url, EMPTY)
            return True
        time.sleep(0.02)
    return False
