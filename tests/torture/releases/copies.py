"""Frozen copies of stores, one for each version of each format, in a form that people can read.

`FORMATS` has what makes and loads them. `python -m tests.torture.releases freeze` writes the copy
of today's version.
"""

import json
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import asyncpg

from leasedkeyq import connect
from leasedkeyq.engines.file.document import document
from leasedkeyq.engines.postgres import schema as postgres_schema
from leasedkeyq.engines.redis import server as redis_server
from leasedkeyq.engines.sqlite import schema as sqlite_schema
from leasedkeyq.testing import ManualClock
from tests.servers.postgres import run_aside, shared_server
from tests.servers.valkey import Server
from tests.servers.valkey import shared_server as shared_valkey
from tests.torture.releases.scenario import contents, fill, no_chance

FOLDER: Final = Path(__file__).parent / "frozen"
NAME: Final = "frozen"
"""The prefix or schema of a copy."""


@dataclass(frozen=True)
class Copy:
    """A store as some version of leasedkeyq has left it."""

    data: str
    """What is stored, as text."""
    items: list[dict[str, Any]]
    """What `contents` says of it."""
    tokens: dict[str, str]
    """Of leases, by key."""


@dataclass(frozen=True)
class Format:
    """A way to store queues that has versions."""

    name: str
    version: int
    """Today's."""
    suffix: str
    make: Callable[[Path], Copy]
    shape: Callable[[str], Any] = str
    """What of the data is the same whenever and wherever it was made."""

    def path(self, version: int | None = None) -> Path:
        """The file with the data of a copy."""
        return FOLDER / f"{self.name}_{version or self.version}.{self.suffix}"

    def kept(self) -> Copy | None:
        """The frozen copy of today's version, if there is one."""
        notes = self.path().with_suffix(".items.json")
        if not notes.exists():
            return None
        plain = json.loads(notes.read_text(encoding="utf-8"))
        return Copy(self.path().read_text(encoding="utf-8"), plain["items"], plain["tokens"])

    def keep(self, copy: Copy) -> None:
        """Write the copy of today's version."""
        FOLDER.mkdir(exist_ok=True)
        self.path().write_text(copy.data, encoding="utf-8")
        plain = {"tokens": copy.tokens, "items": copy.items}
        text = json.dumps(plain, indent=1)
        self.path().with_suffix(".items.json").write_text(f"{text}\n", encoding="utf-8")


def _filled(url: str, **options: Any) -> tuple[list[dict[str, Any]], dict[str, str]]:
    async def main() -> tuple[list[dict[str, Any]], dict[str, str]]:
        clock = ManualClock()
        with no_chance():
            async with connect(url, clock=clock, **options) as store:
                tokens = await fill(store, clock)
                return await contents(store), tokens

    return run_aside(main())


# -- SQLite ----------------------------------------------------------------------------------------


def make_sqlite(folder: Path) -> Copy:
    path = folder / "frozen.db"
    items, tokens = _filled(f"sqlite:///{path}")
    connection = sqlite3.connect(path)
    try:
        marks = [
            f"PRAGMA {name} = {connection.execute(f'PRAGMA {name}').fetchone()[0]};"
            for name in ("application_id", "user_version")
        ]
        return Copy("\n".join([*marks, *connection.iterdump(), ""]), items, tokens)
    finally:
        connection.close()


def load_sqlite(data: str, path: Path) -> None:
    connection = sqlite3.connect(path)
    try:
        connection.executescript(data)
    finally:
        connection.close()


# -- files -----------------------------------------------------------------------------------------


def make_yaml(folder: Path) -> Copy:
    return _make_document(folder / "frozen.yaml")


def make_json(folder: Path) -> Copy:
    return _make_document(folder / "frozen.json")


def _make_document(path: Path) -> Copy:
    items, tokens = _filled(f"file://{path}")
    return Copy(path.read_text(encoding="utf-8"), items, tokens)


# -- PostgreSQL ------------------------------------------------------------------------------------

SHAPE: Final = """
SELECT 'column ' || table_name || '.' || column_name,
       concat_ws(' ', data_type, CASE is_nullable WHEN 'NO' THEN 'NOT NULL' END, column_default)
FROM information_schema.columns WHERE table_schema = $1
UNION ALL
SELECT 'index ' || indexname, indexdef FROM pg_indexes WHERE schemaname = $1
UNION ALL
SELECT 'function ' || p.proname || '(' || pg_get_function_identity_arguments(p.oid) || ')',
       md5(pg_get_functiondef(p.oid))
FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = $1
ORDER BY 1
"""
"""What a schema consists of. Functions are long, and their text is in the package: a digest tells
whether it has changed."""


def make_postgres(folder: Path) -> Copy:
    url = shared_server().url

    async def prepare() -> None:
        connection = await asyncpg.connect(url)
        try:
            await connection.execute("SET client_min_messages = warning")
            await connection.execute(f"DROP SCHEMA IF EXISTS {NAME} CASCADE")
        finally:
            await connection.close()

    async def dump() -> dict[str, Any]:
        connection = await asyncpg.connect(url)
        try:
            shape = {row[0]: row[1] for row in await connection.fetch(SHAPE, NAME)}
            names = await connection.fetch(
                "SELECT tablename FROM pg_tables WHERE schemaname = $1 ORDER BY 1", NAME
            )
            rows: dict[str, list[Any]] = {}
            for [table] in names:
                found = await connection.fetch(
                    f'SELECT row_to_json(t)::text FROM "{NAME}"."{table}" t ORDER BY 1'
                )
                rows[table] = [json.loads(row[0]) for row in found]
            sequences = await connection.fetch(
                "SELECT sequencename, last_value FROM pg_sequences WHERE schemaname = $1"
                " ORDER BY 1",
                NAME,
            )
            return {
                "rows": rows,
                "sequences": {row[0]: row[1] for row in sequences},
                "shape": shape,
            }
        finally:
            await connection.close()

    run_aside(prepare())
    items, tokens = _filled(url, schema=NAME)
    text = json.dumps(run_aside(dump()), indent=1)
    run_aside(prepare())
    return Copy(f"{text}\n", items, tokens)


def shape_of_postgres(data: str) -> Any:
    """Tables, indexes and functions; numbers of rows depend on what was there before."""
    return json.loads(data)["shape"]


def load_postgres(data: str, url: str, schema: str, version: int) -> None:
    """Make the tables of a version by its own migrations, and fill them."""
    plain = json.loads(data)
    steps = range(postgres_schema.FIRST_VERSION, version + 1)
    migrations = [postgres_schema.migration(number, schema) for number in steps]
    start, _, _ = postgres_schema.schema_sql(schema).partition(migrations[0])
    sql = start + "\n".join(migrations)

    async def load() -> None:
        connection = await asyncpg.connect(url)
        try:
            await connection.execute("SET client_min_messages = warning")
            await connection.execute(sql)
            await connection.execute(f'UPDATE "{schema}".version SET version = {version}')
            for table, rows in plain["rows"].items():
                if table != "version":
                    await connection.execute(
                        f'INSERT INTO "{schema}"."{table}" OVERRIDING SYSTEM VALUE SELECT * FROM'
                        f' json_populate_recordset(NULL::"{schema}"."{table}", $1::json)',
                        json.dumps(rows),
                    )
            for sequence, last in plain["sequences"].items():
                if last is not None:
                    await connection.execute(
                        "SELECT setval($1::regclass, $2)", f'"{schema}"."{sequence}"', last
                    )
        finally:
            await connection.close()

    run_aside(load())


# -- Redis -----------------------------------------------------------------------------------------


def make_redis(folder: Path) -> Copy:
    server = shared_valkey()
    with server.client() as client:
        _forget(client)
        items, tokens = _filled(server.url, prefix=NAME)
        # An answer to a call is kept for a moment, in case that it was not heard.
        keys = sorted(set(client.scan_iter(f"{NAME}:*")) - set(client.scan_iter(f"{NAME}:a:*")))
        text = json.dumps({_text(key): _value(client, key) for key in keys}, indent=1)
        _forget(client)
    return Copy(f"{text}\n", items, tokens)


def _forget(client: Any) -> None:
    for key in client.scan_iter(f"{NAME}:*"):
        client.delete(key)


def _text(data: bytes) -> str:
    """Each byte as the character of its number, so that JSON can have it."""
    return data.decode("latin-1")


def _value(client: Any, key: bytes) -> Any:
    kind = client.type(key)
    if kind == b"string":
        return _text(client.get(key))
    if kind == b"hash":
        return {"hash": {_text(k): _text(v) for k, v in sorted(client.hgetall(key).items())}}
    if kind == b"zset":
        return {"zset": [[_text(k), v] for k, v in client.zrange(key, 0, -1, withscores=True)]}
    if kind == b"list":
        return {"list": [_text(one) for one in client.lrange(key, 0, -1)]}
    assert kind == b"set", (key, kind)
    return {"set": sorted(_text(one) for one in client.smembers(key))}


def shape_of_redis(data: str) -> Any:
    """The keys, what is in them, and how long each record is: ids come from the server's clock."""
    shape: dict[str, Any] = {}
    for key, value in json.loads(data).items():
        if isinstance(value, str):
            shape[key] = len(value)
            continue
        [(kind, parts)] = value.items()
        if kind == "hash":
            shape[key] = sorted([len(name), len(part)] for name, part in parts.items())
        else:
            members = [part[0] if kind == "zset" else part for part in parts]
            shape[key] = [kind, sorted(map(len, members))]
    return shape


def load_redis(data: str, server: Server, prefix: str, version: int) -> None:
    """Fill a prefix, and mark it as of that version."""
    with server.client() as client:
        for name, value in json.loads(data).items():
            key = f"{prefix}{name.removeprefix(NAME)}".encode("latin-1")
            if isinstance(value, str):
                client.set(key, value.encode("latin-1"))
                continue
            [(kind, parts)] = value.items()
            if kind == "hash":
                client.hset(key, mapping={_bytes(k): _bytes(v) for k, v in parts.items()})
            elif kind == "zset":
                client.zadd(key, {_bytes(k): v for k, v in parts})
            elif kind == "list":
                client.rpush(key, *map(_bytes, parts))
            else:
                client.sadd(key, *map(_bytes, parts))
        client.set(f"{prefix}:format", version)


def _bytes(text: str) -> bytes:
    return text.encode("latin-1")


FORMATS: Final = {
    one.name: one
    for one in (
        Format("sqlite", sqlite_schema.VERSION, "sql", make_sqlite),
        Format("yaml", document.VERSION, "yaml", make_yaml),
        Format("json", document.VERSION, "json", make_json),
        Format("postgres", postgres_schema.VERSION, "json", make_postgres, shape_of_postgres),
        Format("redis", redis_server.FORMAT, "json", make_redis, shape_of_redis),
    )
}
