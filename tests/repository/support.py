"""What several tests of the repository need."""

import asyncio
import subprocess
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from leasedkeyq import MemoryStore
from leasedkeyq.engines.file.store import FileStore
from leasedkeyq.engines.sqlite.store import SqliteStore
from leasedkeyq.repository import QueueItem, QueueRepository
from leasedkeyq.repository.session import Session
from leasedkeyq.stores import Store
from leasedkeyq.testing import ManualClock
from tests.forks import Python

KINDS = ("memory", "sqlite", "yaml", "json")
SHARED_KINDS = ("sqlite", "yaml")
"""Those that processes share."""
LocalTime = Callable[[str], None]
"""Makes a time zone, in the words of POSIX, that of the process."""
WAIT = 60
"""Seconds for what should come at once."""


def open_store(kind: str, folder: Path, clock: ManualClock) -> Store:
    if kind == "memory":
        return MemoryStore(clock=clock)
    if kind == "sqlite":
        return SqliteStore(folder / "queue.db", clock=clock)
    return FileStore(folder / f"queue.{kind}", form="repository", clock=clock)


def source_of(kind: str, folder: Path) -> str:
    """A path or a URL, for those that processes share."""
    return f"sqlite:///{folder}/queue.db" if kind == "sqlite" else str(folder / f"queue.{kind}")


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if "leasedkeyq" in thread.name}


class World:
    """A store, its clock, and repositories on it, as if in several programs."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.clock = ManualClock()
        self.store = open_store(kind, folder, self.clock)
        self._opened: list[QueueRepository] = []

    def open(self, **options: Any) -> QueueRepository:
        options.setdefault("backoff", lambda failures: 10.0 * failures)
        repository = QueueRepository(self.store, clock=self.clock, **options)
        self._opened.append(repository)
        return repository

    @property
    def now(self) -> datetime:
        return datetime.fromtimestamp(self.clock.now, UTC)

    def close(self) -> None:
        for repository in self._opened:
            repository.close()
        asyncio.run(self.store.close())


def item(name: str = "work", priority: int = 0, **options: Any) -> QueueItem:
    return QueueItem.create(name, {"name": name}, priority, **options)


def types(repository: QueueRepository) -> list[str]:
    """The types of all items, in the order of the queue."""
    return [item.type for item in repository.get_queue().items]


def everything(repository: QueueRepository) -> list[dict[str, Any]]:
    """All there is, to see that nothing changed."""
    queue = repository.get_queue()
    settings = {"max_size": queue.max_size, "default_max_retries": queue.default_max_retries}
    return [settings, *(item.to_dict() for item in queue.items)]


def open_session(repository: QueueRepository) -> Session:
    """What a repository has open."""
    session = repository._connection._session
    assert session is not None
    return session


def program(name: str, *arguments: object) -> "subprocess.Popen[str]":
    """Start a function of `tests.repository.processes.programs` in a new process."""
    return Python(
        *("-W", "error", "-m", "tests.repository.processes.programs", name),
        *[str(argument) for argument in arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def finish(process: "subprocess.Popen[str]", timeout: float) -> str:
    """What a program printed when it was done."""
    try:
        said, errors = process.communicate(timeout=timeout)
    except BaseException:
        process.kill()
        process.communicate()
        raise
    assert (process.returncode, errors) == (0, "")
    return said


def kill(process: "subprocess.Popen[str]") -> None:
    """End it as a crash does (SIGKILL)."""
    process.kill()
    process.communicate()


def taken(repository: QueueRepository) -> QueueItem:
    made = repository.dequeue()
    assert made is not None
    return made


def found(repository: QueueRepository, item_id: str) -> QueueItem:
    made = repository.get_item(item_id)
    assert made is not None
    return made
