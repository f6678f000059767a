"""The doors to a queue: `LeasedKeyQueue`, and `store.queue` of every engine."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from leasedkeyq import LeasedKeyQueue, connect
from tests.servers.urls import empty_store

STORES = ("memory", "yaml", "json", "sqlite", "postgresql", "redis")


@contextmanager
def address(kind: str, folder: Path) -> Generator[str]:
    """The URL of an empty store."""
    if kind == "memory":
        yield "memory://"
    elif kind in ("yaml", "json"):
        yield f"file://{folder}/queue.{kind}"
    else:
        with empty_store(kind, folder) as url:
            yield url


def local_door() -> Callable[..., Any]:
    """Makes queues in memory, for one event loop each."""
    return LeasedKeyQueue[str, Any]


def store_door(store: Any) -> Callable[..., Any]:
    """Makes queues of a store, each with a name of its own."""
    numbers = count()

    def make(**options: Any) -> Any:
        return store.queue(f"q{next(numbers)}", **options)

    return make


def open_store(url: str) -> Any:
    """Open a store; what is put need not survive a loss of power here."""
    return connect(url, durability="normal") if url.startswith("sqlite") else connect(url)
