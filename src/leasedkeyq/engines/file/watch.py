"""Hears of documents that other processes write.

On Linux the kernel tells (inotify on the folder); elsewhere a thread looks at the file's stamp
every few milliseconds. Either way the thread exists only while the store has watchers.
"""

import ctypes
import os
import select
import struct
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

INTERVAL: Final = 0.03
"""Seconds between two looks where the kernel does not tell."""
LINGER: Final = 1.0
"""Seconds for which to listen on after the last watcher has gone: the next often comes soon."""

_CLOSE_WRITE: Final = 0x8
_MOVED_TO: Final = 0x80
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
        self._interrupt: int | None = None
        """Ends the waiting for the kernel, where that tells."""

    def start(self) -> None:
        """Listen from now on, if not yet."""
        with self._mutex:
            if self._thread is None and not self._stop.is_set():
                source = self._open()
                self._interrupt = None if source is None else os.eventfd(0)
                name = f"leasedkeyq watch {self._path}"
                self._thread = threading.Thread(
                    target=self._run, args=(source, self._interrupt), name=name, daemon=True
                )
                self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._stop.set()
        with self._mutex:
            thread = self._thread
            if self._interrupt is not None:
                os.eventfd_write(self._interrupt, 1)
        if thread is not None:
            thread.join()

    def _open(self) -> int | None:
        """A file that becomes readable when something happens in the folder, if there is one."""
        if not sys.platform.startswith("linux"):
            return None
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            source: int = libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
            if source < 0:
                return None
            folder = os.fsencode(self._path.parent)
            if libc.inotify_add_watch(source, folder, _CLOSE_WRITE | _MOVED_TO) < 0:
                os.close(source)
                return None
        except (OSError, AttributeError):
            return None
        return source

    def _run(self, source: int | None, interrupt: int | None) -> None:
        try:
            idle = 0.0
            step = INTERVAL if source is None else LINGER / 4
            stamp = self._stamp()
            while not self._stop.is_set():
                if source is None or interrupt is None:
                    self._stop.wait(step)
                    happened = (latest := self._stamp()) != stamp
                    stamp = latest
                else:
                    happened = self._hear(source, interrupt, step)
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
                if self._interrupt == interrupt:
                    self._interrupt = None
                for file in (source, interrupt):
                    if file is not None:
                        os.close(file)

    def _hear(self, source: int, interrupt: int, patience: float) -> bool:
        # Not select: that knows no file numbers above 1023.
        poll = select.poll()
        poll.register(source, select.POLLIN)
        poll.register(interrupt, select.POLLIN)
        poll.poll(patience * 1000)
        try:
            data = os.read(source, 65536)
        except BlockingIOError:
            return False
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
