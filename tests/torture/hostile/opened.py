"""Stores for hostile input, opened for many rounds, and what a payload would leave behind there."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from leasedkeyq import connect
from leasedkeyq.stores import Store
from tests.servers.postgres import run_sql
from tests.servers.urls import empty_store
from tests.servers.valkey import Server
from tests.torture.hostile.payloads import CANARY


class OpenedStore(NamedTuple):
    """A store, and how to look behind it."""

    kind: str
    url: str
    store: Store
    server: Server | None = None

    def canaries(self) -> list[str]:
        """What payloads have made that were executed in the store."""
        if self.kind == "postgres":
            sql = f"SELECT string_agg(relname, ' ') FROM pg_class WHERE relname = '{CANARY}'"
            return [found] if (found := run_sql(self.url, sql)) else []
        if self.server is not None:
            with self.server.client(decode_responses=True) as client:
                return [CANARY] if client.exists(CANARY) else []
        return []


@asynccontextmanager
async def opened(engine: str, folder: Path) -> AsyncGenerator[list[OpenedStore]]:
    """The stores of an engine: a document of YAML and one of JSON, and one of the others.

    None of them has to survive anything, so they are as fast as they can be.
    """
    async with AsyncExitStack() as stack:
        found: list[OpenedStore] = []
        options: dict[str, Any] = {}
        server: Server | None = None
        urls = {engine: "memory://"}
        if engine == "file":
            urls = {kind: f"file://{folder}/queue.{kind}" for kind in ("yaml", "json")}
        elif engine == "sqlite":
            urls, options = {engine: f"sqlite:///{folder}/jobs.db"}, {"durability": "normal"}
        elif engine == "postgres":
            urls = {engine: stack.enter_context(empty_store("postgresql", folder))}
        elif engine == "redis":
            server = stack.enter_context(Server())
            urls = {engine: server.url}
        for kind, url in urls.items():
            store = await stack.enter_async_context(connect(url, **options))
            found.append(OpenedStore(kind, url, store, server))
        yield found


def path_of(opened_store: OpenedStore) -> Path:
    """The file of a store that has one."""
    return Path(urlsplit(opened_store.url).path)
