"""The tables of the PostgreSQL store and their migrations.

Tables of an older version are brought up to date when a store is opened, in one transaction, while
older workers go on: a migration may add, but never takes away what the version before it uses.
Never change a migration that was released: add one.

The SQL of a version is in a folder, a file for each subject. A line ``--> include NAME`` in it
stands for the file ``fragments/NAME.sql`` beside it, so that what several functions do is written
once and yet is a part of each: to call another function takes time. Text that follows, as in
``--> include NAME: TEXT``, stands for the line ``--> argument`` of the fragment. The fragments in
``fragments/apply`` are the requests of a batch, one file for each, and those in
``fragments/columns`` are lists of columns. A version has only the files that it adds or changes:
the others are those of the version before it, and its functions replace those of the same name.
``python -m leasedkeyq.engines.postgres.schema`` prints
the whole text.
"""

import re
from importlib.resources import files
from textwrap import indent
from typing import Any, Final

from leasedkeyq.errors import StoreError
from leasedkeyq.model.findings import SchemaState

OLDEST_SERVER: Final = 140000
MIGRATION_TIMEOUT: Final = 24 * 3600.0
"""Seconds that large tables may take, or another store that migrates them."""
FIRST_VERSION: Final = 2
"""The oldest that can be brought up to date: version 1 was never released."""
MIGRATIONS: Final[tuple[tuple[str, ...], ...]] = (
    (
        "tables",
        "items",
        "floors",
        "sweep",
        "put",
        "inbox",
        "urgency",
        "caps",
        "claim",
        "settle",
        "apply",
        "lean",
        "inspection",
    ),
    ("progress", "apply"),
    ("listing", "holders", "apply"),
)
"""The files of each version, in the order in which they are run."""
VERSION: Final = FIRST_VERSION + len(MIGRATIONS) - 1
CHANGES: Final[tuple[str, ...]] = (
    "the tables and functions are made",
    "items have progress: functions are replaced",
    "leases tell holders, and lists can be read backwards: functions are added and replaced",
)
"""What each version brings, in words: for people who look before they migrate."""
INCLUDE: Final = re.compile(r"^( *)--> include ([\w/]+)(?:: (.+))?\n", re.MULTILINE)
ARGUMENT: Final = re.compile(r"^( *)--> argument\n", re.MULTILINE)
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
    texts = [assembled(version, name) for name in MIGRATIONS[version - FIRST_VERSION]]
    sql = "\n".join(texts)
    if version > FIRST_VERSION:
        sql = sql.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION")
    return in_schema(sql, schema)


def assembled(version: int, name: str) -> str:
    """The text of a file, with the fragments in the place of the lines that include them."""

    def fragment(line: re.Match[str]) -> str:
        def argument(place: re.Match[str]) -> str:
            return f"{place[1]}{line[3]}\n" if line[3] else ""

        text = assembled(version, f"fragments/{line[2]}")
        return indent(ARGUMENT.sub(argument, text), line[1])

    return INCLUDE.sub(fragment, text_of(version, name))


def text_of(version: int, name: str) -> str:
    """The text of a file as of a version: the newest that is not newer."""
    folder = files("leasedkeyq.engines.postgres").joinpath("sql")
    for number in range(version, FIRST_VERSION, -1):
        file = folder.joinpath(f"version_{number}", f"{name}.sql")
        if file.is_file():
            return file.read_text()
    return folder.joinpath(f"version_{FIRST_VERSION}", f"{name}.sql").read_text()


def schema_sql(schema: str = "leasedkeyq", version: int = 0) -> str:
    """The SQL that makes the tables of the store, or brings those of `version` up to date.

    For databases in which programs may not make tables: run it as their owner, in one transaction,
    and open the store with ``create=False``.
    """
    check_schema_name(schema)
    first = max(version + 1, FIRST_VERSION)
    steps = [migration(number, schema) for number in range(first, VERSION + 1)]
    start = _START if not version else ""
    end = f"UPDATE lkq.version SET version = {VERSION};\n"
    return in_schema(start, schema) + "\n".join(steps) + "\n" + in_schema(end, schema)


# A user that may make tables in a schema need not be allowed to make a schema.
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
INSERT INTO lkq.version (version, usable_from) VALUES (0, 2);
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
    # The catalogue itself, as this is asked again after another store may have made the tables.
    found = await connection.fetchval(
        "SELECT true FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE n.nspname = $1 AND c.relname = 'version'",
        schema,
    )
    if not found:
        return 0, 0
    row = await connection.fetchrow(f'SELECT version, usable_from FROM "{schema}".version')
    return row["version"], row["usable_from"]


async def schema_state(connection: Any, schema: str) -> SchemaState:
    """The version of the tables, and what would bring them up to date."""
    version, _ = await versions_of(connection, schema)
    if version >= VERSION:
        return SchemaState(version=version, wanted=VERSION)
    first = max(version + 1, FIRST_VERSION)
    return SchemaState(
        version=version,
        wanted=VERSION,
        changes=tuple(
            f"version {number}: {CHANGES[number - FIRST_VERSION]}"
            for number in range(first, VERSION + 1)
        ),
        sql=f"BEGIN;\n{schema_sql(schema, version)}COMMIT;\n",
    )


async def prepare(
    connection: Any, schema: str, *, create: bool, where: str, migrate: bool = True
) -> int:
    """See that the server will do, and bring the tables up to date.

    Args:
        connection: To the server.
        schema: Where the tables are.
        create: Whether they may be made or changed.
        where: The server, for errors.
        migrate: Whether they have to be there in their latest version.

    Returns:
        The version of the tables: at least ours, but without `migrate`.

    Raises:
        StoreError: The server is too old or only reads, or the tables are missing, old or too new.
    """
    number = int(await connection.fetchval("SHOW server_version_num"))
    if number < OLDEST_SERVER:
        raise StoreError(
            f"{where} is PostgreSQL {number // 10000}; the store needs {OLDEST_SERVER // 10000} or "
            "newer"
        )
    if await connection.fetchval("SHOW transaction_read_only") == "on":
        standby = await connection.fetchval("SELECT pg_is_in_recovery()")
        raise StoreError(
            f"{where} is a standby, which only reads; connect to the primary, or name all servers "
            "in the URL, with ?target_session_attrs=read-write"
            if standby
            else f"{where} only reads: default_transaction_read_only is on for this user or "
            "database; turn it off, with ALTER ROLE or ALTER DATABASE"
        )
    encoding = await connection.fetchval("SHOW server_encoding")
    if encoding != "UTF8":
        raise StoreError(
            f"the database of {where} has the encoding {encoding}; the store needs UTF8: "
            "CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0"
        )
    version, usable_from = await versions_of(connection, schema)
    if 0 < version < FIRST_VERSION:
        raise StoreError(
            f"{where}: the schema {schema!r} has tables of version {version}, which this "
            "leasedkeyq does not know any more; open the store with another schema, and move what "
            "is in the old one with the leasedkeyq that made it, or drop that"
        )
    if version < VERSION and not migrate:
        return version
    if version < VERSION and not create:
        what = f"has tables of version {version}" if version else "has no tables"
        raise StoreError(
            f"{where}: the schema {schema!r} {what}, and create=False; let their owner run what "
            f"python -m leasedkeyq.engines.postgres.schema {schema} {version} prints, or open the "
            "store with create=True"
        )
    if version < VERSION:
        async with connection.transaction():
            # One store at a time migrates, if several are opened at once.
            lock = "SELECT pg_advisory_xact_lock(hashtext($1))"
            await connection.execute(
                lock, f"leasedkeyq migrates {schema}", timeout=MIGRATION_TIMEOUT
            )
            version, usable_from = await versions_of(connection, schema)
            if version < VERSION:
                await connection.execute("SET LOCAL client_min_messages = warning")
                await connection.execute(schema_sql(schema, version), timeout=MIGRATION_TIMEOUT)
    if usable_from > VERSION:
        raise StoreError(
            f"{where}: the schema {schema!r} has tables of version {version}, this leasedkeyq "
            f"knows versions up to {VERSION}: upgrade leasedkeyq"
        )
    return max(version, VERSION)


if __name__ == "__main__":
    import sys

    sys.stdout.write(
        schema_sql(
            sys.argv[1] if len(sys.argv) > 1 else "leasedkeyq",
            int(sys.argv[2]) if len(sys.argv) > 2 else 0,  # noqa: PLR2004 - the second argument
        )
    )
