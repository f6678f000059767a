"""Empty stores that processes can share, by URL."""

import secrets
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from tests.servers.postgres import run_sql, server_url
from tests.servers.valkey import Server

KINDS = ("sqlite", "postgresql", "redis")


@contextmanager
def empty_store(kind: str, folder: Path) -> Generator[str]:
    """The URL of a store of a kind, until the end of a test."""
    if kind == "postgresql":
        with _database() as url:
            yield url
    elif kind == "redis":
        with Server("--appendonly", "yes", "--appendfsync", "always") as server:
            yield server.url
    elif kind == "file":
        yield f"file://{folder}/{secrets.token_hex(4)}.json"
    else:
        yield f"sqlite:///{folder}/{secrets.token_hex(4)}.db"


@contextmanager
def _database() -> Generator[str]:
    server = server_url()
    name = f"test_{secrets.token_hex(4)}"
    run_sql(server, f"CREATE DATABASE {name}")
    try:
        yield urlsplit(server)._replace(path=f"/{name}").geturl()
    finally:
        run_sql(server, f"DROP DATABASE {name} WITH (FORCE)")
