"""Servers that are killed and frozen, and what is done to them."""

import signal
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, Protocol

from tests.servers.ports import lasting_port
from tests.servers.postgres import PostgresServer
from tests.servers.valkey import Server


class MortalServer(Protocol):
    """A server that keeps what it has acknowledged, whenever it is killed."""

    @property
    def url(self) -> str:
        """For `connect`."""
        ...

    def start(self) -> None:
        """Start it again, and wait until it answers."""
        ...

    def kill(self) -> None:
        """End it without a warning: every one of its processes."""
        ...

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to every one of its processes."""
        ...


@contextmanager
def durable_redis() -> Generator[MortalServer]:
    """Syncs its append-only file before it answers."""
    with Server("--appendonly", "yes", "--appendfsync", "always", port=lasting_port()) as server:
        yield server


@contextmanager
def durable_postgres() -> Generator[MortalServer]:
    """With the settings of a server that matters, and checkpoints often enough to meet some."""
    settings = {"fsync": "on", "full_page_writes": "on", "checkpoint_timeout": "30s"}
    server = PostgresServer(port=lasting_port(), **settings)
    try:
        yield server
    finally:
        server.signal(signal.SIGCONT)  # one that is frozen does not end
        server.remove()


SERVERS: Final[dict[str, Callable[[], AbstractContextManager[MortalServer]]]] = {
    "postgres": durable_postgres,
    "redis": durable_redis,
}
PATIENT: Final[dict[str, dict[str, Any]]] = {
    "postgres": {"patience": 120.0, "call_timeout": 120.0},
    "redis": {"retry_for": 120.0, "client_options": {"socket_timeout": 120.0}},
}
"""Options of a store whose calls wait until the server is back, by engine."""
IMPATIENT: Final[dict[str, dict[str, Any]]] = {
    "postgres": {"patience": 0.2, "call_timeout": 0.3},
    "redis": {
        "retry_for": 0.2,
        "client_options": {"socket_timeout": 0.3, "socket_connect_timeout": 0.3},
    },
}
"""Options of a store whose calls fail soon."""
