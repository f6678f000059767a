"""The few things that the file store does to files, and its lock.

Everything that can fail, or that a crash can come in between of, goes through `FileOps`, so that
tests can make each step fail, record the steps, or end the process at one.
"""

import os
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from leasedkeyq.errors import StoreError

fcntl: Any
try:
    fcntl = import_module("fcntl")
except ImportError:  # pragma: no cover - not on POSIX
    fcntl = None

Stamp = tuple[int, int, int]
"""Inode, time of change in nanoseconds, and size: a file with the same stamp is unchanged."""


POLL = 0.01
"""Seconds between two looks at a lock that somebody else has."""


class FileOps:
    """Files, one small step at a time."""

    def read(self, path: Path) -> tuple[bytes, Stamp] | None:
        """The content of a file with its stamp, or None where there is no file."""
        try:
            with path.open("rb") as file:
                return file.read(), _stamp(os.fstat(file.fileno()))
        except FileNotFoundError:
            return None

    def stamp(self, path: Path) -> Stamp | None:
        """The stamp of a file, or None where there is no file."""
        try:
            return _stamp(path.stat())
        except FileNotFoundError:
            return None

    def open(self, path: Path) -> tuple[int, Stamp]:
        """Open a file to hold on to it."""
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return file, _stamp(os.fstat(file))

    def write(self, path: Path, data: bytes, mode: int | None) -> None:
        """Write a new file, with the `mode` of another or the usual one. Not yet durable."""
        # A file that a crash left half written may be there.
        with suppress(FileNotFoundError):
            path.unlink()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        file = os.open(path, flags, 0o666 if mode is None else mode)
        try:
            if mode is not None:
                os.chmod(file if os.chmod in os.supports_fd else path, mode)  # whatever the umask
            view = memoryview(data)
            while view:
                view = view[os.write(file, view) :]
        finally:
            os.close(file)

    def sync(self, path: Path) -> None:
        """Make the content of a file, or the names in a folder, durable."""
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(file)
        finally:
            os.close(file)

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name; a file of that name is replaced, at once or not at all."""
        source.replace(target)


def _stamp(stat: os.stat_result) -> Stamp:
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


def file_lock(path: Path) -> "FileLock | PolledLock":
    """A lock between processes, by the means of the platform.

    Raises:
        StoreError: It takes filelock, which is not installed.
    """
    return PolledLock(path) if fcntl is None else FileLock(path)


class FileLock:
    """A lock between processes: blocking, fair, and gone with the process that holds it.

    It is on a file of its own, as the document is replaced with each write. Not for several
    threads at a time; the holder sees to that.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: int | None = None
        self._process = 0

    def acquire(self, *, shared: bool) -> None:
        """Wait for the lock. A shared one is for reading, and many can have it."""
        how = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        while True:
            file = self._open()
            fcntl.flock(file, how)
            # Somebody may have removed the file while we waited, and others lock a new one.
            try:
                current = self.path.stat()
            except FileNotFoundError:
                current = None
            mine = os.fstat(file)
            if current is not None and (current.st_dev, current.st_ino) == (
                mine.st_dev,
                mine.st_ino,
            ):
                return
            self.close()

    def release(self) -> None:
        """Let the next one in."""
        if self._file is not None:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file, and of the lock with it."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _open(self) -> int:
        # A forked child shares the parent's file and would share its lock: it needs its own.
        if self._process != os.getpid():
            self.close()
        if self._file is None:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            self._process = os.getpid()
        return self._file


class PolledLock:
    """A lock between processes for platforms without `flock`: it asks until it gets it.

    So it is neither fair nor quick, and readers wait for each other, too.
    """

    def __init__(self, path: Path) -> None:
        try:
            module = import_module("filelock")
        except ImportError as error:
            raise StoreError(
                "this platform has no flock, and locking files takes filelock: "
                "pip install 'leasedkeyq[filelock]'"
            ) from error
        self._lock: Any = module.FileLock(path, thread_local=False)

    def acquire(self, *, shared: bool) -> None:  # noqa: ARG002 - there is one kind only
        """Wait for the lock."""
        self._lock.acquire(poll_interval=POLL)

    def release(self) -> None:
        """Let the next one in."""
        self._lock.release()

    def close(self) -> None:
        """Let go of the file, and of the lock with it."""
        self._lock.release(force=True)
