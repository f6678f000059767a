"""Hears of documents that other processes write.

On Linux the kernel tells (inotify on the folder); elsewhere a thread looks at the file's stamp
every few milliseconds. Either way the thread exists only while the store has watchers.
"""

import os
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from leasedkeyq.stores.system.inotify import CLOSE_WRITE, MOVED_TO, Bell

INTERVAL: Final = 0.03
"""Seconds between two looks where the kernel does not tell."""
LINGER: Final = 1.0
"""Seconds for which to listen on after the last watcher has gone: the next often comes soon."""

_EVENT: Final = struct.Struct("iIII")


class FileWatch:
    """A thread that calls `changed` after the document was replaced or written.

    `wanted` tells whether the store has watchers.
    """

    def __init__(
        self, path: Path, *, wanted: Callable[[], bool], changed: Callable[[], None]
    ) -> None:
        self._path = path
        self._wanted = wanted
        self._changed = changed
        self._mutex = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._bell: Bell | None = None
        """Where the kernel tells."""

    def start(self) -> None:
        """Listen from now on, if not yet."""
        with self._mutex:
            if self._thread is None and not self._stop.is_set():
                bell = self._bell = Bell.of(self._path.parent, CLOSE_WRITE | MOVED_TO)
                name = f"leasedkeyq watch {self._path}"
                self._thread = threading.Thread(
                    target=self._run, args=(bell,), name=name, daemon=True
                )
                self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._stop.set()
        with self._mutex:
            thread = self._thread
            if self._bell is not None:
                self._bell.interrupt()
        if thread is not None:
            thread.join()

    def _run(self, bell: Bell | None) -> None:
        try:
            idle = 0.0
            step = INTERVAL if bell is None else LINGER / 4
            stamp = self._stamp()
            while not self._stop.is_set():
                if bell is None:
                    self._stop.wait(step)
                    happened = (latest := self._stamp()) != stamp
                    stamp = latest
                else:
                    happened = self._names_document(bell.wait(step))
                if happened:
                    self._changed()
                if self._wanted():
                    idle = 0.0
                    continue
                idle += step
                if idle > LINGER:
                    with self._mutex:
                        # The store calls `start` after it has added a watcher: none is missed.
                        if not self._wanted():
                            self._thread = None
                            return
        finally:
            with self._mutex:
                if self._bell is bell:
                    self._bell = None
                if bell is not None:
                    bell.close()

    def _names_document(self, data: bytes) -> bool:
        """Whether one of the kernel's records is about the document."""
        name = os.fsencode(self._path.name)
        at = 0
        happened = False
        while at < len(data):
            _, _, _, length = _EVENT.unpack_from(data, at)
            start = at + _EVENT.size
            found = data[start : start + length].rstrip(b"\0")
            # No name: events were lost, so anything may have happened.
            happened |= found in (name, b"")
            at = start + length
        return happened

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            stat = self._path.stat()
        except OSError:
            return None
        return stat.st_ino, stat.st_mtime_ns, stat.st_size
