"""How a repository gets at its store: opening it, forking with it, closing it."""

import os
import threading
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from leasedkeyq.background.forkable import Forkable, renew_after_fork
from leasedkeyq.connect import absolute_url, connect
from leasedkeyq.errors import QueueClosedError, StoreError
from leasedkeyq.repository.items import fresh_ids
from leasedkeyq.repository.leases import HeldLeases
from leasedkeyq.repository.loop_thread import LoopThread, is_inside, refuse_inside
from leasedkeyq.repository.session import QueueSettings, Session
from leasedkeyq.stores.store import Store

DOCUMENTS: Final = (".yaml", ".yml", ".json")
MAX_RETRIES: Final = 3


class Connection(Forkable):
    """The way to one queue.

    Attributes:
        place: Says which store this is, however it was named.
        closed: Whether `close` was called.
    """

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

    def is_open(self) -> bool:
        """As `Forkable.is_open`."""
        return self._session is not None

    def closes_for_fork(self) -> bool:
        """As `Forkable.closes_for_fork`."""
        session = self._session
        if self._open is None or session is None or is_inside(self.place):
            return False
        return session.store.capabilities.cross_process

    def send_away(self) -> None:
        """As `Forkable.send_away`."""
        session = self._session
        if session is not None:
            session.ended_by_fork = True
            with suppress(QueueClosedError):
                session.send_away()

    def close_for_fork(self) -> None:
        """As `Forkable.close_for_fork`."""
        session, self._session = self._session, None
        if session is not None:
            self._finalizer.detach()
            session.end()

    def forget(self) -> None:
        """As `Forkable.forget`."""
        self._lock = threading.Lock()
        if self._session is not None:
            # It must not be closed here: it is in use in the old process.
            self._left_behind, self._session = self._session, None
            self._finalizer.detach()
            self._open = None


for renew in (LoopThread.after_fork, HeldLeases.after_fork, fresh_ids.begin_anew):
    renew_after_fork(renew)


def _place_of(store: Store, source: object) -> object:
    """Which store this is: its file, or its URL if other processes can open it, or itself."""
    path = getattr(store, "path", None)
    if isinstance(path, Path):
        return Path(os.path.realpath(path))
    return source if store.capabilities.cross_process else store


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
        url = absolute_url(source)
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
    said: dict[str, Any] = {name: value for name, value in document.items() if value is not None}
    return Path(os.path.realpath(path)), partial(connect, path.as_uri(), form="repository", **said)
