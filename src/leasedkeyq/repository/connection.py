"""How a repository gets at its store: opening it, forking with it, closing it."""

import os
import threading
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import ClassVar, Final
from urllib.parse import quote, urlsplit

from leasedkeyq.connect import connect, sqlite_path
from leasedkeyq.errors import QueueClosedError, StoreError
from leasedkeyq.repository.fork_gate import ForkGate
from leasedkeyq.repository.items import fresh_ids
from leasedkeyq.repository.leases import HeldLeases
from leasedkeyq.repository.loop_thread import LoopThread, is_inside, refuse_inside
from leasedkeyq.repository.session import QueueSettings, Session
from leasedkeyq.stores.store import Store

DOCUMENTS: Final = (".yaml", ".yml", ".json")
MAX_RETRIES: Final = 3


class Connection:
    """The way to one queue.

    A store that is open at a fork is in the hands of two processes, and that does harm: SQLite
    does not notice what the other one does. So stores are closed before a fork, when no thread uses
    them, and opened again afterwards, on both sides.

    Attributes:
        place: Says which store this is, however it was named: two with the same place must not
            wait for each other.
        closed: Whether `close` was called.
    """

    _all: ClassVar["weakref.WeakSet[Connection]"] = weakref.WeakSet()
    _gate: ClassVar = ForkGate()

    def __init__(
        self,
        source: str | os.PathLike[str] | Store,
        name: str | None,
        max_size: int | None,
        default_max_retries: int | None,
        status_map: Callable[[str], str | None] | None = None,
    ) -> None:
        self.closed = False
        retries = MAX_RETRIES if default_max_retries is None else default_max_retries
        self._given = QueueSettings(max_size, retries)
        self._name = name
        self._lock = threading.Lock()
        self._session: Session | None = None
        self._left_behind: Session | None = None
        self._open: Callable[[], Store] | None = None
        self.place: object
        if isinstance(source, Store):
            self.place = _place_of(source, source)
        else:
            said = {"max_size": max_size, "default_max_retries": default_max_retries}
            self.place, self._open = _opener(source, name=name, status_map=status_map, **said)
        refuse_inside(self.place)
        with self._gate.at(self.place):
            store = source if isinstance(source, Store) else self._open_store()
            self.place = _place_of(store, self.place)
            self._begin(store)
            self._all.add(self)

    @contextmanager
    def using(self) -> Generator[Session]:
        """The open store. A fork waits until this ends.

        Raises:
            QueueClosedError: `close` was called.
            TransactionError: This thread is inside a transaction of the same store.
            StoreError: The store cannot be opened, or was carried over a fork.
        """
        refuse_inside(self.place)
        with self._gate.at(self.place):
            yield self._session or self._begin_again()

    def close(self) -> None:
        """Let go of the store: waiting calls get a `QueueClosedError`, others finish."""
        refuse_inside(self.place)
        with self._gate.at(self.place):
            with self._lock:
                self.closed = True
                session, self._session = self._session, None
            if session is not None:
                self._finalizer.detach()
                session.end()

    def _begin(self, store: Store) -> Session:
        session = Session(store, self._name, self._given, owned=self._open is not None)
        self._name = session.name
        # The thread must not outlive a repository that was never closed.
        self._finalizer = weakref.finalize(self, _let_go, session)
        self._session = session
        return session

    def _begin_again(self) -> Session:
        with self._lock:
            if self.closed:
                raise QueueClosedError("the repository is closed; make a new one")
            if self._session is not None:
                return self._session
            return self._begin(self._open_store())

    def _open_store(self) -> Store:
        if self._open is None:
            raise StoreError(
                "the store of this repository was opened before a fork; make a repository in "
                "the new process, or give it a path or a URL of a store that processes share: "
                "then it opens its store again by itself"
            )
        return self._open()

    # Forks

    def _closes_for_fork(self) -> bool:
        session = self._session
        if self._open is None or session is None or is_inside(self.place):
            return False
        return session.store.capabilities.cross_process

    @classmethod
    def before_fork(cls) -> None:
        """Wait until no thread uses a store, and close all that can be opened again."""
        cls._gate.stop(cls._send_away, cls._staying)
        for connection in list(cls._all):
            if connection._session is not None and connection._closes_for_fork():
                connection._finalizer.detach()
                connection._session.end()
                connection._session = None

    @classmethod
    def _staying(cls) -> set[object]:
        """The places of the stores that stay open, for the old process only."""
        return {
            connection.place
            for connection in list(cls._all)
            if connection._session is not None and not connection._closes_for_fork()
        }

    @classmethod
    def _send_away(cls) -> None:
        for connection in list(cls._all):
            session = connection._session
            if session is not None and connection._closes_for_fork():
                session.ended_by_fork = True
                with suppress(QueueClosedError):
                    session.send_away()

    @classmethod
    def after_fork_in_parent(cls) -> None:
        """Go on."""
        cls._gate.resume()

    @classmethod
    def after_fork_in_child(cls) -> None:
        """Go on without what belongs to the old process."""
        LoopThread.after_fork()
        HeldLeases.after_fork()
        fresh_ids.begin_anew()
        cls._gate.begin_anew()
        for connection in list(cls._all):
            connection._lock = threading.Lock()
            if connection._session is not None:
                # It must not be closed here: it is in use in the old process.
                connection._left_behind, connection._session = connection._session, None
                connection._finalizer.detach()
                connection._open = None


if hasattr(os, "register_at_fork"):
    # The callback that was registered last is called first before a fork. The pools of threads
    # take a lock then that a store may need to be closed, so theirs must be registered before.
    import_module("concurrent.futures.thread")
    os.register_at_fork(
        before=Connection.before_fork,
        after_in_parent=Connection.after_fork_in_parent,
        after_in_child=Connection.after_fork_in_child,
    )


def _place_of(store: Store, source: object) -> object:
    """Which store this is: its file, or its URL if other processes can open it, or itself."""
    path = getattr(store, "path", None)
    if isinstance(path, Path):
        return Path(os.path.realpath(path))
    return source if store.capabilities.cross_process else store


def _absolute(url: str) -> str:
    """The same file when it is opened again, whatever the current folder is then."""
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        return f"sqlite:///{quote(str(sqlite_path(url).absolute()))}"
    if parts.scheme != "file" or parts.netloc or parts.path[:1] in ("", "/"):
        return url
    return parts._replace(path=f"{quote(os.getcwd())}/{parts.path}").geturl()


def _let_go(session: Session) -> None:
    if session.is_waited_on:
        # The program ends, and threads of it wait for items. What is stored does not need us.
        return
    # In any other thread this may be the garbage collector, at a moment when waiting is not safe.
    session.end(wait=threading.current_thread() is threading.main_thread())


def is_document(source: object) -> bool:
    """Whether it is the path of a document, and no URL."""
    return not isinstance(source, str) or len(urlsplit(source).scheme) <= 1


def _opener(
    source: str | os.PathLike[str], **document: object
) -> tuple[object, Callable[[], Store]]:
    """Where a store is, and how to open it; `document` is said of a document only."""
    if isinstance(source, str) and not is_document(source):
        url = _absolute(source)
        return url, partial(connect, url)
    given: object = source
    if not isinstance(given, str | os.PathLike):
        kind = type(given).__name__
        raise TypeError(f"source must be a path, a URL or a Store, got {kind}")
    path = Path(source).absolute()
    if path.suffix not in DOCUMENTS:
        raise ValueError(
            f"{os.fspath(source)!r} is no document (.yaml, .yml or .json); for another store write "
            f"its URL, such as sqlite:///{path}"
        )
    said = {name: value for name, value in document.items() if value is not None}
    return Path(os.path.realpath(path)), partial(connect, path.as_uri(), form="repository", **said)
