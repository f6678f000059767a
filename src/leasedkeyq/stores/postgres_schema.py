"""The tables of the PostgreSQL store, their migrations, and errors of the server as ours.

Tables of an older version are brought up to date when a store is opened, in one transaction, while
older workers go on: a migration may add, but never takes away what the version before it uses.
Never change a migration that was released: add one.
"""

import re
from importlib.resources import files
from typing import Any, Final

from leasedkeyq.errors import StoreError
from leasedkeyq.stores.postgres_driver import asyncpg

OLDEST_SERVER: Final = 140000
MIGRATIONS: Final[tuple[tuple[str, ...], ...]] = (
    ("postgres_tables_1.sql", "postgres_functions_1.sql"),
)
"""The files of each version."""
VERSION: Final = len(MIGRATIONS)
SCHEMA_NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,47}")


def in_schema(sql: str, schema: str) -> str:
    """SQL of ours, which calls the schema "lkq", for another schema."""
    return (
        sql.replace("lkq.", f'"{schema}".')
        .replace("'lkq'", f"'{schema}'")
        .replace("SCHEMA lkq;", f'SCHEMA "{schema}";')
    )


def migration(version: int, schema: str) -> str:
    """What brings a schema from the version before to this one."""
    texts = [
        files("leasedkeyq.stores").joinpath(name).read_text() for name in MIGRATIONS[version - 1]
    ]
    return in_schema("\n".join(texts), schema)


def schema_sql(schema: str = "leasedkeyq", version: int = 0) -> str:
    """The SQL that makes the tables of the store, or brings those of `version` up to date.

    For those who do not let programs make tables: run it as their owner, in one transaction, and
    open the store with ``create=False``.
    """
    check_schema_name(schema)
    steps = [migration(number, schema) for number in range(version + 1, VERSION + 1)]
    start = _START if not version else ""
    end = f"UPDATE lkq.version SET version = {VERSION};\n"
    return in_schema(start, schema) + "\n".join(steps) + "\n" + in_schema(end, schema)


# Who may make tables in a schema that is there need not be allowed to make a schema.
_START: Final = """
DO $$ BEGIN
    IF to_regnamespace('lkq') IS NULL THEN
        CREATE SCHEMA lkq;
    END IF;
END $$;
CREATE TABLE lkq.version (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    version int NOT NULL,
    usable_from int NOT NULL -- programs that know this version may still use the tables
);
INSERT INTO lkq.version (version, usable_from) VALUES (0, 1);
"""


def check_schema_name(schema: str) -> str:
    """A schema that the store may use."""
    if not isinstance(schema, str) or not SCHEMA_NAME.fullmatch(schema):
        raise ValueError(
            "schema must be up to 48 lower-case letters, digits and underscores and not begin "
            f"with a digit, got {schema!r}"
        )
    return schema


async def versions_of(connection: Any, schema: str) -> tuple[int, int]:
    """The version of the tables, 0 if there are none, and the oldest that may use them."""
    # The catalogue itself, as this is asked again after somebody else may have made the tables.
    found = await connection.fetchval(
        "SELECT true FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE n.nspname = $1 AND c.relname = 'version'",
        schema,
    )
    if not found:
        return 0, 0
    row = await connection.fetchrow(f'SELECT version, usable_from FROM "{schema}".version')
    return row["version"], row["usable_from"]


async def prepare(connection: Any, schema: str, *, create: bool, where: str) -> None:
    """See that the server will do, and bring the tables up to date.

    Raises:
        StoreError: The server is too old, or the tables are missing, old or too new.
    """
    number = int(await connection.fetchval("SHOW server_version_num"))
    if number < OLDEST_SERVER:
        raise StoreError(
            f"{where} is PostgreSQL {number // 10000}; the store needs {OLDEST_SERVER // 10000} or "
            "newer"
        )
    encoding = await connection.fetchval("SHOW server_encoding")
    if encoding != "UTF8":
        raise StoreError(
            f"the database of {where} has the encoding {encoding}; the store needs UTF8: "
            "CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0"
        )
    version, usable_from = await versions_of(connection, schema)
    if version < VERSION and not create:
        what = f"has tables of version {version}" if version else "has no tables"
        raise StoreError(
            f"{where}: the schema {schema!r} {what}, and create=False; let their owner run what "
            f"python -m leasedkeyq.stores.postgres_schema {schema} {version} prints, or open the "
            "store with create=True"
        )
    if version < VERSION:
        async with connection.transaction():
            # One at a time, whoever opens the store first.
            lock = "SELECT pg_advisory_xact_lock(hashtext($1))"
            await connection.execute(lock, f"leasedkeyq migrates {schema}")
            version, usable_from = await versions_of(connection, schema)
            if version < VERSION:
                await connection.execute("SET LOCAL client_min_messages = warning")
                await connection.execute(schema_sql(schema, version))
    if usable_from > VERSION:
        raise StoreError(
            f"{where}: the schema {schema!r} has tables of version {version}, this leasedkeyq "
            f"knows versions up to {VERSION}: upgrade leasedkeyq"
        )


def explain(error: BaseException, where: str) -> StoreError:
    """An error of the server or of the way to it as one of ours: where, what, and what to do."""
    advice = next((text for kind, text in _ADVICE if isinstance(error, kind)), "")
    code = getattr(error, "sqlstate", None)
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    told = f"{what}, {code}" if code else what
    return StoreError(f"{where}: {advice} ({told})" if advice else f"{where}: {told}")


_ADVICE: Final[tuple[tuple[type[BaseException], str], ...]] = (
    (
        asyncpg.InvalidPasswordError,
        "the server refuses the user or the password; check those in the URL, and pg_hba.conf",
    ),
    (
        asyncpg.InvalidAuthorizationSpecificationError,
        "the server does not let this user in from here; check the URL, and pg_hba.conf",
    ),
    (
        asyncpg.InvalidCatalogNameError,
        "there is no such database; create it, or correct the URL",
    ),
    (
        asyncpg.InsufficientPrivilegeError,
        (
            "this user may not do that; grant it the right, or let the owner of the database run "
            "what python -m leasedkeyq.stores.postgres_schema prints and open the store with "
            "create=False"
        ),
    ),
    (
        asyncpg.TooManyConnectionsError,
        "the server has no connection left; raise its max_connections, or open fewer stores",
    ),
    (
        asyncpg.UndefinedTableError,
        "the tables of the store have gone; open it again to create them",
    ),
    (
        asyncpg.UndefinedFunctionError,
        "the functions of the store have gone; open it again to create them",
    ),
    (asyncpg.DiskFullError, "the disk of the server is full; make room and call again"),
    (
        asyncpg.ReadOnlySQLTransactionError,
        "the server only reads, as a standby does; connect to the primary",
    ),
    (
        asyncpg.LockNotAvailableError,
        "another transaction keeps the queue locked; end it, or call again",
    ),
    (
        asyncpg.CannotConnectNowError,
        "the server is starting up or shutting down; call again",
    ),
    (TimeoutError, "the server did not answer in time; check that it runs and can be reached"),
    (OSError, "the server cannot be reached; check that it runs, and host and port in the URL"),
)


if __name__ == "__main__":
    import sys

    sys.stdout.write(
        schema_sql(
            sys.argv[1] if len(sys.argv) > 1 else "leasedkeyq",
            int(sys.argv[2]) if len(sys.argv) > 2 else 0,  # noqa: PLR2004 - the second argument
        )
    )
