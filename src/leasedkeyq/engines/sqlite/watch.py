"""Hears of the commits of other processes.

SQLite notifies nobody. So a store that has committed rings: it touches the ``-shm`` file beside the
database, and on Linux the kernel tells that a thread of every process that watches (inotify). An
idle consumer has the item a millisecond after the put began, where looking every `INTERVAL` alone
takes eight more on average. Elsewhere the thread does look every `INTERVAL`. Either way it works
only while somebody watches.

The ``-shm`` file is never synced. Touching the write-ahead log instead makes the next sync of it
slower: 47 of 290 microseconds of a put at full durability.
"""

import os
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from leasedkeyq.engines.sqlite.schema import connect
from leasedkeyq.stores.system.inotify import ATTRIBUTES, LINUX, Bell

GAP: Final = 0.005
"""Seconds between two looks, on average at least: all that was committed in between is one news.

With 0.01, a consumer to which an item is put every 15 ms has it 4.2 ms after the put began, and so
1.0 ms.
"""
BURST: Final = 0.1
"""Seconds of saved-up gaps: after a quiet time some looks follow each other without a gap."""
INTERVAL: Final = 0.015
"""Seconds between two looks where no bell is heard."""
LINGER: Final = 1.0
"""Seconds to stay after the last watcher has gone: the next one often comes soon."""
PATROL: Final = 1.0
"""Seconds between two looks, at the most: a process may be killed between its commit and its ring.

Also the time until the next look after a failure.
"""


class CommitWatch:
    """A thread that calls `wake` after commits by other store objects, in any process.

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
        self._touched = f"{path}-shm"
        self._others = others
        self._wanted = wanted
        self._wake = wake
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._called = threading.Event()
        self._seen = 0
        self._bell: Bell | None = None
        self._held = False

    def ring(self) -> None:
        """Let other processes know that something was committed."""
        if LINUX:
            try:
                os.utime(self._touched)
            except OSError:  # the file has gone with its database, or is somebody else's
                return

    def start(self, seen: int) -> None:
        """Watch from now on; `seen` commits of others are known already."""
        with self._lock:
            if self._thread is None and not self._stop.is_set():
                self._seen = seen
                name = f"leasedkeyq watch {self._path}"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()
        self._called.set()

    def close(self) -> None:
        """End the thread, which takes it some milliseconds."""
        self._stop.set()
        self._called.set()
        with self._lock:
            thread = self._thread
            if self._bell is not None:
                self._bell.interrupt()
        if thread is not None:
            thread.join()

    def hold(self) -> None:
        """End the thread and its connection until `go_on`: the process forks."""
        if not self._stop.is_set():
            self._held = True
            self.close()

    def go_on(self) -> None:
        """Watch again, after `hold`, if anybody does."""
        if self._held:
            self._held = False
            self._stop.clear()
            if self._wanted():
                self.start(self._seen)

    # The thread

    def _run(self) -> None:
        while not self._ended():
            try:
                self._watch()
            except (sqlite3.Error, OSError):
                # Consumers that wait ask the store and get its error, rather than wait for ever.
                self._wake()
                self._stop.wait(PATROL)

    def _ended(self) -> bool:
        with self._lock:
            # A store that adds a watcher calls `start` afterwards: no watcher is missed.
            if self._stop.is_set() or not self._wanted():
                self._thread = None
                return True
        return False

    def _watch(self) -> None:
        """Look until nobody watches any more."""
        file = identity(self._path)
        connection = connect(self._path, busy_timeout=PATROL)
        try:
            self._look(connection, first=True)
            # The file is there once the database was read.
            with self._lock:
                bell = self._bell = Bell.of(self._touched, ATTRIBUTES)
            next_look = checked_at = time.monotonic()
            while self._needed():
                # Only now: what is committed after this look rings, and what was before is seen.
                own = self._own()
                self._look(connection)
                now = time.monotonic()
                if now - checked_at > PATROL:
                    checked_at = now
                    if identity(self._path) != file:
                        raise FileNotFoundError(self._path)
                if bell is None:
                    time.sleep(INTERVAL)
                    continue
                self._hear(bell, own, now + GAP)
                next_look = max(next_look, now - BURST) + GAP
                now = time.monotonic()
                if next_look > now:
                    time.sleep(next_look - now)
                    bell.wait(0)  # the next look sees what has rung meanwhile
        finally:
            connection.close()
            with self._lock:
                if self._bell is not None:
                    self._bell.close()
                    self._bell = None

    def _hear(self, bell: Bell, own: int, later: float) -> None:
        """Wait until it is time to look again.

        The bell also rings for our own commits, which need no look at once: a consumer that claims
        and acknowledges one item after the other would use up its looks on them. With one put every
        5 ms it has an item 1.1 ms after the put began, and 2.3 ms if each ring were a look.

        Args:
            bell: It rings after a commit.
            own: How many commits were our own at the last look.
            later: When to look after rings that may all have been our own.
        """
        patience = PATROL
        while bell.wait(patience):
            now_own = self._own()
            if now_own == own:
                return  # it was somebody else
            own = now_own
            patience = later - time.monotonic()
            if patience <= 0:
                return

    def _needed(self) -> bool:
        """Wait while nobody watches; False when it is time to end."""
        while not self._stop.is_set():
            if self._wanted():
                return True
            if not self._called.wait(LINGER):
                return False
            self._called.clear()
        return False

    def _own(self) -> int:
        """How many commits are our own."""
        return -self._others(0)

    def _look(self, connection: sqlite3.Connection, *, first: bool = False) -> None:
        total = connection.execute("SELECT commits FROM counters").fetchone()[0]
        others = self._others(total)
        # The first look may be into another file than before. Later on the number seems to
        # fall for a moment when a commit of our own is counted and not yet to be seen.
        if others > self._seen or (first and others != self._seen):
            self._seen = others
            self._wake()


def identity(path: Path) -> tuple[int, int]:
    """Which file it is, whatever its name; zeros when there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return (0, 0)
    return found.st_dev, found.st_ino
