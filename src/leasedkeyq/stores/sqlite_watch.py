"""Hears of the commits of other processes.

SQLite notifies nobody, but it can be asked for its change counter (`PRAGMA data_version`), which
costs some microseconds. A thread asks every few milliseconds: only while somebody waits, and on
Linux only while the write-ahead log is being written, which inotify tells.
"""

import ctypes
import os
import select
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from leasedkeyq.stores.sqlite_schema import connect

INTERVAL: Final = 0.005
"""Seconds between two looks: what another process does is heard of within about this time."""
ALERT: Final = 1.0
"""Seconds to go on looking after a write: a commit shows only when it has reached the disk."""
LINGER: Final = 1.0
"""Seconds to stay after the last watcher has gone: the next one often comes soon."""
PATROL: Final = 1.0
"""Seconds between two looks, at the most, and until the next one after a failure."""

IN_MODIFY: Final = 0x2


class CommitWatch:
    """A thread that calls `wake` after commits by others.

    `others` tells from the number of all commits how many of them are not our own, and `wanted`
    whether anybody watches.
    """

    def __init__(
        self,
        path: Path,
        *,
        others: Callable[[int], int],
        wanted: Callable[[], bool],
        wake: Callable[[], None],
    ) -> None:
        self._path = path
        self._others = others
        self._wanted = wanted
        self._wake = wake
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._seen = 0
        self._events: WriteEvents | None = None

    def start(self, seen: int) -> None:
        """Watch from now on; `seen` commits of others are known already."""
        with self._lock:
            if self._thread is None and not self._stop.is_set():
                self._seen = seen
                name = f"leasedkeyq watch {self._path}"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()

    def close(self) -> None:
        """End the thread, which takes it some milliseconds."""
        self._stop.set()
        with self._lock:
            thread = self._thread
            if self._events is not None:
                self._events.interrupt()
        if thread is not None:
            thread.join()

    # The thread

    def _run(self) -> None:
        while not self._ended():
            try:
                self._watch()
            except (sqlite3.Error, OSError):
                # Those who wait ask the store and get its error, rather than wait for ever.
                self._wake()
                self._stop.wait(PATROL)

    def _ended(self) -> bool:
        with self._lock:
            # Whoever adds a watcher calls `start` afterwards: nobody is missed.
            if self._stop.is_set() or not self._wanted():
                self._thread = None
                return True
        return False

    def _watch(self) -> None:
        """Look until nobody watches any more."""
        connection = connect(self._path, busy_timeout=INTERVAL)
        try:
            file = identity(self._path)
            version = self._look(connection, -1)
            # The log is there once the database was read.
            with self._lock:
                events = self._events = WriteEvents.of(Path(f"{self._path}-wal"))
            now = time.monotonic()
            wanted_at = written_at = checked_at = now
            while now - wanted_at <= LINGER and not self._stop.is_set():
                if events is None or now - written_at < ALERT:
                    self._stop.wait(INTERVAL)
                    written = events is not None and events.wait(0)
                else:
                    written = events.wait(PATROL)
                now = time.monotonic()
                if written:
                    written_at = now
                version = self._look(connection, version)
                if now - checked_at > PATROL:
                    checked_at = now
                    if identity(self._path) != file:
                        raise FileNotFoundError(self._path)
                if self._wanted():
                    wanted_at = now
        finally:
            connection.close()
            with self._lock:
                if self._events is not None:
                    self._events.close()
                    self._events = None

    def _look(self, connection: sqlite3.Connection, version: int) -> int:
        latest: int = connection.execute("PRAGMA data_version").fetchone()[0]
        if latest != version:
            total = connection.execute("SELECT commits FROM counters").fetchone()[0]
            others = self._others(total)
            # The first look may be into another file than before. Later on the number seems to
            # fall for a moment when a commit of our own is counted and not yet to be seen.
            if others > self._seen or (version < 0 and others != self._seen):
                self._seen = others
                self._wake()
        return latest


class WriteEvents:
    """Tells when a file is written to, by inotify."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._interrupt = os.eventfd(0)
        self._poll = select.poll()
        self._poll.register(handle, select.POLLIN)
        self._poll.register(self._interrupt, select.POLLIN)

    @classmethod
    def of(cls, path: Path) -> "WriteEvents | None":
        """For this file; None where that cannot be had."""
        if not sys.platform.startswith("linux"):
            return None
        try:
            library = ctypes.CDLL(None, use_errno=True)
            handle: int = library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            if handle < 0:
                return None
            if library.inotify_add_watch(handle, os.fsencode(path), IN_MODIFY) < 0:
                os.close(handle)
                return None
        except (OSError, AttributeError):
            return None
        return cls(handle)

    def wait(self, seconds: float) -> bool:
        """Wait until the file is written to; False when that did not happen."""
        written = any(handle == self._handle for handle, _ in self._poll.poll(seconds * 1000))
        if written:
            os.read(self._handle, 65536)
        return written

    def interrupt(self) -> None:
        """Let `wait` return at once, now and ever after."""
        os.eventfd_write(self._interrupt, 1)

    def close(self) -> None:
        """Stop listening."""
        os.close(self._handle)
        os.close(self._interrupt)


def identity(path: Path) -> tuple[int, int]:
    """Which file it is, whatever its name; zeros when there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return (0, 0)
    return found.st_dev, found.st_ino
