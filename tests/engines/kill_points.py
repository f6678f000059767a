"""Named points in the life of a store at which a process gets a signal, most often its last."""

import random
import resource
import signal
import socket
import sqlite3
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

from leasedkeyq.engines.file.file_operations import Access, FileOperations, Stamp
from leasedkeyq.stores.batching import LoopBatcher
from leasedkeyq.stores.store import Store

ANSWERING = ("before answering", "after answering")
FILE_POINTS = (
    *(
        f"{when} write {what}"
        for when in ("before", "halfway", "after")
        for what in ("copy", "new")
    ),
    *(f"{when} sync {what}" for when in ("before", "after") for what in ("copy", "new", "folder")),
    *(
        f"{when} {what}"
        for when in ("before", "after")
        for what in ("rename copy", "rename new", "exchange", "remove")
    ),
    *ANSWERING,
)
SQLITE_POINTS = (
    *(f"{when} {what}" for when in ("before", "after") for what in ("BEGIN", "write", "COMMIT")),
    "halfway COMMIT",
    *ANSWERING,
)
SERVER_POINTS = (
    *(
        f"{when} {verb}"
        for verb in ("put", "claim", "ack", "release", "extend", "edit")
        for when in ("before sending", "halfway through", "after sending", "before the answer to")
    ),
    *ANSWERING,
)
"""Around each request for one of these verbs: an edit is several requests."""


class Trap:
    """Sends this process a signal at the n-th visit of a point, once."""

    def __init__(self, point: str, count: int, number: int, say: Callable[[str], None]) -> None:
        self.point = point
        self._left = count
        self._number = number
        self._say = say

    def __call__(self, point: str) -> None:
        if self.closes(point):
            self.spring()

    def spring(self) -> None:
        """Send the signal."""
        # To this thread: a signal to the process may let it go on for a moment.
        signal.pthread_kill(threading.get_ident(), self._number)

    def closes(self, point: str) -> bool:
        """Whether this visit is the one."""
        if point != self.point:
            return False
        self._left -= 1
        if self._left == 0:
            self._say(point)
        return self._left == 0

    def move(self, point: str) -> None:
        """Be at the next visit of another point."""
        self.point = point
        self._left = 1


def mark_store(store: Store, trap: Trap) -> None:
    """Add the points around the work for callers, in the thread or in the event loop."""
    batcher: Any = vars(store)["_batcher"]
    if isinstance(batcher, LoopBatcher):
        _mark_loop_engine(batcher, trap)
        return

    def between_points(apply: Any) -> Any:
        def apply_between_points(requests: Any) -> Any:
            trap("before applying")
            answers = apply(requests)
            if answers is not None:
                trap("before answering")
            return answers

        return apply_between_points

    batcher._apply = between_points(batcher._apply)
    if batcher._apply_here is not None:
        batcher._apply_here = between_points(batcher._apply_here)


def _mark_loop_engine(batcher: Any, trap: Trap) -> None:
    new_engine = batcher._engine

    def new_marked_engine() -> Any:
        engine = new_engine()
        apply = engine.apply

        def apply_between_points(requests: list[Any], done: Callable[[Any], None]) -> None:
            def done_after_point(answers: Any) -> None:
                trap("before answering")
                done(answers)

            trap("before applying")
            apply(requests, done_after_point)

        engine.apply = apply_between_points
        return engine

    batcher._engine = new_marked_engine


class MarkedOps(FileOperations):
    """The steps of the file store, with points before, after and within them."""

    def __init__(self, trap: Trap) -> None:
        self._trap = trap

    def stamp(self, path: Path) -> Stamp | None:
        self._trap("with the lock")
        return super().stamp(path)

    def write(self, path: Path, data: bytes, access: Access | None) -> None:
        what = _role(path)
        self._trap(f"before write {what}")
        if self._trap.point == f"halfway write {what}":
            super().write(path, data[: len(data) // 2], access)
            self._trap(f"halfway write {what}")
        super().write(path, data, access)
        self._trap(f"after write {what}")

    def sync(self, path: Path) -> None:
        what = _role(path)
        self._trap(f"before sync {what}")
        super().sync(path)
        self._trap(f"after sync {what}")

    def rename(self, source: Path, target: Path) -> None:
        what = _role(source)
        self._trap(f"before rename {what}")
        super().rename(source, target)
        self._trap(f"after rename {what}")

    def exchange(self, source: Path, target: Path) -> bool:
        self._trap("before exchange")
        done = super().exchange(source, target)
        self._trap("after exchange")
        return done

    def remove(self, path: Path) -> None:
        self._trap("before remove")
        super().remove(path)
        self._trap("after remove")


def _role(path: Path) -> str:
    if path.is_dir():
        return "folder"
    return "copy" if path.name.endswith(".bak.new") else "new"


class MarkedConnection(sqlite3.Connection):
    """A connection with points before, after and within its statements."""

    trap: Trap
    writing = False

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        what = self._kind(sql)
        self.trap("before any statement")
        self.trap(f"before {what}")
        if self.trap.closes(f"halfway {what}"):
            self._fail_halfway()
        cursor = super().execute(sql, parameters)
        self.trap(f"after {what}")
        if what == "BEGIN":
            self.trap("with the lock")
        return cursor

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> sqlite3.Cursor:
        what = self._kind(sql)
        self.trap(f"before {what}")
        cursor = super().executemany(sql, parameters)
        self.trap(f"after {what}")
        return cursor

    def _kind(self, sql: str) -> str:
        word = sql.split(None, 1)[0]
        if word == "BEGIN":
            self.writing = sql != "BEGIN"
        if word in ("BEGIN", "COMMIT"):
            return word if self.writing else "read"
        return "write" if word in ("INSERT", "UPDATE", "DELETE") else word

    def _fail_halfway(self) -> None:
        """Let the system end the process in the middle of the commit: in a write to the log."""
        (_, _, path), *_ = super().execute("PRAGMA database_list").fetchall()
        size = Path(f"{path}-wal").stat().st_size
        # If the log is being written again from its start, the process ends after the commit.
        self.trap.move("after COMMIT")
        limit = size + random.randrange(20_000)
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, most))


def mark_sqlite(trap: Trap, checkpoint: int) -> None:
    """Make every connection that this process opens from now on a marked one.

    It moves the log into the database when there are so many pages in the log.
    """
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    MarkedConnection.trap = trap
    connect = sqlite3.connect

    def connect_marked(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*arguments, factory=MarkedConnection, **options)
        sqlite3.Connection.execute(connection, f"PRAGMA wal_autocheckpoint = {checkpoint}")
        return connection

    patch.object(sqlite3, "connect", connect_marked).start()


# Servers

_verbs: ContextVar[tuple[str, ...]] = ContextVar("verbs", default=())
"""Those of the batch on whose behalf something is sent now."""


class MarkedSocket(socket.socket):
    """A connection with points before, within and after what is sent for a batch."""

    trap: ClassVar[Trap]
    _asked: tuple[str, ...] = ()
    """What the last request was for."""

    def send(self, data: Any, flags: int = 0, /) -> int:
        self._asked = _verbs.get()
        for verb in self._asked:
            self.trap(f"before sending {verb}")
            if self.trap.closes(f"halfway through {verb}"):
                sent = super().send(data[: len(data) // 2], flags)
                self.trap.spring()
                return sent
        sent = super().send(data, flags)
        for verb in self._asked:
            self.trap(f"after sending {verb}")
        return sent

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        self._before_answer()
        return super().recv(size, flags)

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        self._before_answer()
        return super().recv_into(buffer, nbytes, flags)

    def _before_answer(self) -> None:
        """An event loop reads only when there is something to read."""
        for verb in self._asked:
            self.trap(f"before the answer to {verb}")


@contextmanager
def _on_behalf_of(verbs: tuple[str, ...]) -> Generator[None]:
    before = _verbs.set(verbs)
    try:
        yield
    finally:
        _verbs.reset(before)


def _verbs_of(requests: Sequence[object]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(type(request).__name__.lower() for request in requests))


def mark_postgres(trap: Trap) -> None:
    """Make every connection that this process opens from now on a marked one."""
    from leasedkeyq.engines.postgres.link import PostgresLink

    MarkedSocket.trap = trap
    patch.object(socket, "socket", MarkedSocket).start()
    link: Any = PostgresLink
    apply, connected = link._apply, link._connected

    async def apply_marked(self: Any, writer: Any, requests: list[Any]) -> list[Any]:
        with _on_behalf_of(_verbs_of(requests)):
            answers: list[Any] = await apply(self, writer, requests)
            return answers

    async def connect_unmarked(*arguments: Any, **options: Any) -> Any:
        with _on_behalf_of(()):
            return await connected(*arguments, **options)

    patch.object(link, "_apply", apply_marked).start()
    patch.object(link, "_connected", connect_unmarked).start()


def mark_redis(trap: Trap) -> None:
    """Make every connection that this process opens from now on a marked one."""
    from leasedkeyq.engines.redis.loop_link import LoopLink

    MarkedSocket.trap = trap
    patch.object(socket, "socket", MarkedSocket).start()
    link: Any = LoopLink
    apply, do = link.apply, link._do

    def apply_marked(self: Any, requests: list[Any], done: Any) -> None:
        self.verbs = _verbs_of(requests)
        apply(self, requests, done)

    def do_marked(self: Any, step: Any) -> None:
        with _on_behalf_of(self.verbs):
            do(self, step)

    patch.object(link, "apply", apply_marked).start()
    patch.object(link, "_do", do_marked).start()
