"""The lock of a file store between processes, by the means of the platform."""

import errno
import os
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from leasedkeyq.engines.file.file_operations import Access, FileOperations, fcntl, give_access
from leasedkeyq.errors import StoreError

POLL = 0.01
"""Seconds between two looks at a lock that another process has."""


def file_lock(path: Path, document: Path) -> "FileLock | PolledLock":
    """A lock between processes, by the means of the platform, for the users of a document.

    Raises:
        StoreError: It takes filelock, which is not installed.
    """
    return PolledLock(path) if fcntl is None else FileLock(path, document)


class FileLock:
    """A lock between processes: blocking, fair, and gone with the process that holds it.

    It is on a file of its own, as the document is replaced with each write. Not for several
    threads at a time; the holder sees to that.
    """

    def __init__(self, path: Path, document: Path | None = None) -> None:
        self.path = path
        self._document = document
        self._file: int | None = None
        self._process = 0

    def acquire(self, *, shared: bool) -> None:
        """Wait for the lock. A shared one is for reading, and many can have it."""
        how = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        while True:
            file = self._open()
            fcntl.flock(file, how)
            # The file may have been removed while we waited, and others lock a new one.
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
        """Let the next process in."""
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
            self._file = self._open_shared()
            self._process = os.getpid()
        return self._file

    def _open_shared(self) -> int:
        """Open the file so that all users of the document may use the lock."""
        access = None if self._document is None else FileOperations().access(self._document)
        flags = os.O_CREAT | os.O_CLOEXEC
        try:
            file = os.open(self.path, os.O_RDWR | flags, 0o666)
        except OSError as error:
            if error.errno not in {errno.EACCES, errno.EPERM, errno.EROFS}:
                raise
            # It is the file of another user. A process that may read it may lock it.
            try:
                return os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                raise error from None
        if access is not None:
            access = access._replace(mode=access.mode & 0o666)
            mine = os.fstat(file)
            if Access(mine.st_mode & 0o777, mine.st_uid, mine.st_gid) != access:
                with suppress(OSError):
                    give_access(file, self.path, access)
        return file


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
        """Let the next process in."""
        self._lock.release()

    def close(self) -> None:
        """Let go of the file, and of the lock with it."""
        self._lock.release(force=True)
