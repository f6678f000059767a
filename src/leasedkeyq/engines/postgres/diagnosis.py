"""What goes wrong with a PostgreSQL server: durability, rights, vacuum, proxies, clocks."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, date, datetime
from typing import Any, Final

from leasedkeyq.engines.postgres.schema import in_schema, versions_of
from leasedkeyq.model.findings import Finding, Severity
from leasedkeyq.stores.system.clock_check import clock_findings

LAST_DAYS: Final = {
    14: date(2026, 11, 12),
    15: date(2027, 11, 11),
    16: date(2028, 11, 9),
    17: date(2029, 11, 8),
    18: date(2030, 11, 14),
}
"""Until when the makers of PostgreSQL mend each version, by their calendar."""
OLD_TRANSACTION: Final = 600.0
"""Seconds after which an open transaction is in the way."""
MANY_DEAD: Final = 100_000
"""Dead rows of a table with which autovacuum is behind: it is to begin at 5,000."""
BLOATED: Final = 64 * 1024**2
BLOATED_ROW: Final = 16 * 1024
"""Bytes of a table, and of a row of it, from which on it is bloated: no row takes half of that."""
POOL_PATIENCE: Final = 2.0
"""Seconds in which a connection of its own answers."""

SETTINGS: Final = """
SELECT current_setting('synchronous_commit') AS synchronous_commit,
    current_setting('fsync') AS fsync,
    current_setting('full_page_writes') AS full_page_writes,
    current_setting('autovacuum') AS autovacuum,
    current_setting('server_version') AS version,
    current_setting('server_version_num')::int / 10000 AS major,
    current_setting('transaction_read_only') AS read_only,
    pg_is_in_recovery() AS standby,
    pg_backend_pid() AS process,
    current_user::text AS account
"""
CLOCK: Final = "SELECT extract(epoch FROM clock_timestamp())::float8"
# A schema that may not be used hides its tables from functions that take names, not from these.
# Only CASE keeps the server from asking of a table what only a sequence can answer.
RIGHTS: Final = """
SELECT 'the schema ' || n.nspname AS what
FROM pg_namespace n WHERE n.nspname = 'lkq' AND NOT has_schema_privilege(n.oid, 'USAGE')
UNION ALL
SELECT 'the table ' || c.relname || ' (' || r.name || ')'
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace,
    unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS r (name)
WHERE n.nspname = 'lkq' AND (c.relname <> 'version' OR r.name = 'SELECT')
    AND CASE WHEN c.relkind = 'r' THEN NOT has_table_privilege(c.oid, r.name) ELSE false END
UNION ALL
SELECT 'the sequence ' || c.relname
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = 'lkq'
    AND CASE WHEN c.relkind = 'S' THEN NOT has_sequence_privilege(c.oid, 'USAGE') ELSE false END
UNION ALL
SELECT 'the function ' || p.proname
FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
WHERE n.nspname = 'lkq' AND NOT has_function_privilege(p.oid, 'EXECUTE')
"""
TABLES: Final = """
SELECT c.relname AS name, s.n_dead_tup AS dead, s.n_live_tup AS live,
    greatest(s.last_autovacuum, s.last_vacuum) AS vacuumed,
    pg_relation_size(c.oid) AS size,
    coalesce('autovacuum_enabled=false' = ANY (c.reloptions), false)
        OR coalesce('autovacuum_enabled=off' = ANY (c.reloptions), false) AS excluded
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    JOIN pg_stat_user_tables s ON s.relid = c.oid
WHERE n.nspname = 'lkq' AND c.relkind = 'r'
ORDER BY c.relname
"""
# What keeps dead rows: transactions of this database, prepared ones, and slots of replicas.
TRANSACTIONS: Final = """
SELECT 'process ' || pid || coalesce(' of ' || usename, '')
    || coalesce(' (' || nullif(application_name, '') || ')', '') AS what,
    extract(epoch FROM clock_timestamp() - xact_start)::float8 AS age,
    'pg_terminate_backend(' || pid || ')' AS ending
FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL
    AND backend_type = 'client backend'
    AND extract(epoch FROM clock_timestamp() - xact_start) > $1
UNION ALL
SELECT 'the prepared transaction ' || gid,
    extract(epoch FROM clock_timestamp() - prepared)::float8,
    'ROLLBACK PREPARED ' || quote_literal(gid)
FROM pg_prepared_xacts
WHERE database = current_database()
    AND extract(epoch FROM clock_timestamp() - prepared) > $1
ORDER BY 2 DESC LIMIT 10
"""


class PostgresDiagnosis:
    """Looks at a server and the tables of a store.

    Args:
        schema: Where the tables are.
        where: The server, for people.
        connect: Makes another connection.
        needs_session: Whether the store uses what a proxy that gives each transaction another
            connection breaks: prepared statements, or ``LISTEN``.
    """

    def __init__(
        self,
        schema: str,
        *,
        where: str,
        connect: Callable[[], Awaitable[Any]],
        needs_session: bool,
    ) -> None:
        self._schema = schema
        self._where = where
        self._connect = connect
        self._needs_session = needs_session

    async def run(self, connection: Any) -> list[Finding]:
        """Everything that was found."""
        before = time.time()
        theirs = await connection.fetchval(CLOCK)
        found = clock_findings(self._where, theirs, before, time.time())
        settings = await connection.fetchrow(SETTINGS)
        found += self._of_settings(settings)
        # Through a proxy, the process that answers is not the one that greeted us.
        if self._needs_session and settings["process"] != connection.get_server_pid():
            found += await self._of_proxy(connection)
        found += await self._of_transactions(connection)
        version, _ = await versions_of(connection, self._schema)
        if version:
            found += await self._of_rights(connection, settings["account"])
            found += await self._of_tables(connection)
        else:
            found += await self._of_creation(connection, settings["account"])
        return found

    def _finding(
        self, code: str, severity: Severity, what: str, advice: str, where: str = ""
    ) -> Finding:
        place = f"{self._where}, {where}" if where else self._where
        return Finding(code=code, severity=severity, what=what, where=place, advice=advice)

    def _of_settings(self, settings: Any) -> list[Finding]:
        found: list[Finding] = []
        if settings["standby"] or settings["read_only"] == "on":
            what = "the server is a standby, which only reads"
            if not settings["standby"]:
                what = "default_transaction_read_only is on: nothing can be put or claimed"
            advice = "connect to the primary, or turn it off with ALTER ROLE or ALTER DATABASE"
            found.append(self._finding("server-read-only", "error", what, advice))
        if settings["synchronous_commit"] == "off":
            what = (
                "synchronous_commit is off: a crash of the server takes what was acknowledged in "
                "the last moments"
            )
            advice = f"ALTER ROLE {settings['account']} SET synchronous_commit = on"
            found.append(self._finding("durability-weak", "warning", what, advice))
        off = [name for name in ("fsync", "full_page_writes") if settings[name] == "off"]
        if off:
            what = (
                f"{' and '.join(off)} {'is' if len(off) == 1 else 'are'} off: a crash of the "
                "server's machine may take or damage everything"
            )
            advice = "turn them on in postgresql.conf, unless the data may be lost"
            found.append(self._finding("durability-weak", "warning", what, advice))
        if settings["autovacuum"] == "off":
            what = "autovacuum is off: dead rows stay, and claims get slower and slower"
            advice = "set autovacuum = on in postgresql.conf, and reload the server"
            found.append(self._finding("autovacuum-off", "error", what, advice))
        last_day = LAST_DAYS.get(settings["major"])
        if last_day is not None and last_day < datetime.now(UTC).date():
            what = (
                f"PostgreSQL {settings['version']}: version {settings['major']} has not been "
                f"mended by its makers since {last_day.isoformat()}"
            )
            found.append(self._finding("server-old", "note", what, "plan the move to a newer one"))
        return found

    async def _of_proxy(self, connection: Any) -> list[Finding]:
        """Find out whether a proxy gives each transaction another connection.

        While another client has a transaction open on the connection that we had, we get another
        one, or none at all.
        """
        mine = await connection.fetchval("SELECT pg_backend_pid()")
        others: list[Any] = []
        shared = False
        try:
            for _ in range(2):
                other = await self._connect()
                others.append(other)
                await asyncio.wait_for(other.execute("BEGIN"), POOL_PATIENCE)
            again = await connection.fetchval("SELECT pg_backend_pid()", timeout=POOL_PATIENCE)
            shared = again != mine
        except TimeoutError:
            shared = True
        finally:
            for other in others:
                with suppress(Exception):  # it is of no use any more
                    other.terminate()
        if not shared:
            return []
        what = (
            "there is a proxy that gives each transaction another connection (PgBouncer with "
            "pool_mode = transaction): prepared statements fail, and no news of changes come"
        )
        advice = "open the store with prepared=False, listen=False, or use pool_mode = session"
        return [self._finding("proxy-mode", "error", what, advice)]

    async def _of_transactions(self, connection: Any) -> list[Finding]:
        found: list[Finding] = []
        for row in await connection.fetch(TRANSACTIONS, OLD_TRANSACTION):
            what = (
                f"{row['what']} has had a transaction open for {row['age'] / 60:,.0f} minutes: "
                "nothing that was deleted since can be cleaned up, and claims get slower"
            )
            advice = f"end it: {row['ending']}; set idle_in_transaction_session_timeout"
            found.append(self._finding("long-transaction", "warning", what, advice))
        return found

    async def _of_rights(self, connection: Any, account: str) -> list[Finding]:
        rows = await connection.fetch(in_schema(RIGHTS, self._schema))
        if not rows:
            return []
        names = [row["what"] for row in rows]
        more = f" and {len(names) - 5} more" if len(names) > 5 else ""  # noqa: PLR2004 - a few
        what = f"the user {account} may not use {', '.join(names[:5])}{more}"
        advice = (
            f'GRANT USAGE ON SCHEMA "{self._schema}" TO {account}; GRANT ALL ON ALL TABLES, '
            f"ALL SEQUENCES and ALL FUNCTIONS of it as well"
        )
        return [self._finding("rights-missing", "error", what, advice, f"schema {self._schema}")]

    async def _of_creation(self, connection: Any, account: str) -> list[Finding]:
        """There are no tables: may this user make them?"""
        allowed = await connection.fetchval(
            "SELECT coalesce((SELECT has_schema_privilege(n.oid, 'CREATE') FROM pg_namespace n "
            "WHERE n.nspname = $1), has_database_privilege(current_database(), 'CREATE'))",
            self._schema,
        )
        if allowed:
            return []
        what = f"there are no tables, and the user {account} may not make them"
        advice = "let the owner of the database run what leasedkeyq migrate --sql prints"
        return [self._finding("rights-missing", "error", what, advice, f"schema {self._schema}")]

    async def _of_tables(self, connection: Any) -> list[Finding]:
        found: list[Finding] = []
        for row in await connection.fetch(in_schema(TABLES, self._schema)):
            table = f"{self._schema}.{row['name']}"
            if row["excluded"]:
                what = f"autovacuum is off for the table {table}: claims get slower and slower"
                advice = f"ALTER TABLE {table} RESET (autovacuum_enabled)"
                found.append(self._finding("autovacuum-off", "error", what, advice, table))
            if row["dead"] > MANY_DEAD and row["dead"] > row["live"]:
                since = row["vacuumed"]
                last = f"{since:%Y-%m-%d %H:%M} UTC" if since else "never"
                what = (
                    f"the table {table} has {row['dead']:,} dead rows and {row['live']:,} live "
                    f"ones; it was last vacuumed: {last}"
                )
                advice = (
                    f"VACUUM {table}; look for long transactions and unused replication slots, and "
                    "raise autovacuum_max_workers if other tables keep autovacuum busy"
                )
                found.append(self._finding("autovacuum-behind", "warning", what, advice, table))
            elif row["size"] > BLOATED and row["size"] / (row["live"] + 1) > BLOATED_ROW:
                what = (
                    f"the table {table} takes {row['size'] / 1024**2:,.0f} MiB for {row['live']:,} "
                    "rows: it is bloated"
                )
                advice = f"VACUUM FULL {table} in a quiet moment: it locks the table meanwhile"
                found.append(self._finding("table-bloated", "warning", what, advice, table))
        return found
