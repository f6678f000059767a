"""Stores as older versions left them, put where a test wants them, and stores of newer ones.

SQLite: a copy of every version there was. PostgreSQL: the tables and functions of each version by
its own migrations, with the rows of the frozen copy, as no version has changed a table yet. Redis:
the frozen copy under the mark of each version that can be read. Files: a document of each version.
"""

import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from leasedkeyq.engines.file.document import document
from leasedkeyq.engines.file.document.codec import add_checksum, split_checksum
from leasedkeyq.engines.postgres import schema as postgres_schema
from leasedkeyq.engines.redis import server as redis_server
from leasedkeyq.engines.sqlite import schema as sqlite_schema
from tests.engines.kill_rounds import Kind
from tests.engines.sqlite import test_versions as sqlite_versions
from tests.servers.postgres import run_sql
from tests.servers.valkey import Server
from tests.torture.releases.copies import (
    FORMATS,
    load_postgres,
    load_redis,
    load_sqlite,
)
from tests.torture.releases.scenario import plain

Items = Sequence[Mapping[str, Any]]
"""What `contents` must find, each with the fields that its version knew."""

VERSIONS: Final[Mapping[Kind, Sequence[int]]] = {
    "sqlite-full": range(1, sqlite_schema.VERSION + 1),
    "yaml": range(1, document.VERSION + 1),
    "json": (document.VERSION,),
    "postgres": range(postgres_schema.FIRST_VERSION, postgres_schema.VERSION + 1),
    "redis": (redis_server.READABLE_FORMAT, redis_server.FORMAT),
}
"""From which the store of today must go on."""


def _kept(name: str, version: int) -> tuple[str, Items]:
    """A frozen copy, and what is in it."""
    path = FORMATS[name].path(version)
    notes = json.loads(path.with_suffix(".items.json").read_text(encoding="utf-8"))
    return path.read_text(encoding="utf-8"), notes["items"]


def put_sqlite(path: Path, version: int) -> Items:
    if version in sqlite_versions.OLDER and not FORMATS["sqlite"].path(version).exists():
        folder = Path(sqlite_versions.__file__).parent
        load_sqlite((folder / f"version_{version}.sql").read_text(encoding="utf-8"), path)
        return [plain(item) for item in sqlite_versions.LEFT]
    data, items = _kept("sqlite", version)
    load_sqlite(data, path)
    return items


def put_document(path: Path, version: int) -> Items:
    name = path.suffix[1:]
    data, items = _kept(name, version)
    for one in (path, path.with_name(f"{path.name}.bak")):
        one.write_text(data, encoding="utf-8")
    return items


def put_postgres(url: str, schema: str, version: int) -> Items:
    data, items = _kept("postgres", postgres_schema.VERSION)
    load_postgres(data, url, schema, version)
    return items


def put_redis(server: Server, prefix: str, version: int) -> Items:
    data, items = _kept("redis", redis_server.FORMAT)
    load_redis(data, server, prefix, version)
    return items


# Each makes a store one of a later version, and returns what tells whether anybody has touched it.


def make_sqlite_newer(path: Path) -> Callable[[], object]:
    def tables() -> object:
        connection = sqlite3.connect(path)
        try:
            return sqlite_schema.version_of(connection), sqlite_versions.schema(connection)
        finally:
            connection.close()

    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {sqlite_schema.VERSION + 1}")
    connection.close()
    return tables


def make_document_newer(path: Path) -> Callable[[], object]:
    yaml = path.suffix == ".yaml"
    body, _ = split_checksum(path.read_bytes(), yaml=yaml)
    mark = b"version: %d" if yaml else b'"version": %d'
    assert mark % document.VERSION in body, body
    body = body.replace(mark % document.VERSION, mark % (document.VERSION + 1), 1)
    for one in (path, path.with_name(f"{path.name}.bak")):
        one.write_bytes(add_checksum(body, yaml=yaml))
    return path.read_bytes


def make_postgres_newer(url: str, schema: str) -> Callable[[], object]:
    newer = postgres_schema.VERSION + 1
    run_sql(url, f'UPDATE "{schema}".version SET version = {newer}, usable_from = {newer}')
    return lambda: run_sql(url, f"SELECT version || ' ' || usable_from FROM \"{schema}\".version")


def make_redis_newer(server: Server, prefix: str) -> Callable[[], object]:
    with server.client() as client:
        client.set(f"{prefix}:format", redis_server.FORMAT + 1)

    def mark() -> object:
        with server.client() as client:
            return bytes(client.get(f"{prefix}:format"))

    return mark


def missing(expected: Items, found: Items) -> list[str]:
    """What of the expected items is not there as it was, in words."""
    by_id = {(one["queue"], one["id"]): one for one in found}
    words: list[str] = []
    for item in expected:
        there = by_id.get((item["queue"], item["id"]))
        if there is None:
            words.append(f"{item} is gone")
        elif changed := {name for name, value in item.items() if there.get(name) != value}:
            words.append(f"{item} has become {there}: {sorted(changed)}")
    return words
