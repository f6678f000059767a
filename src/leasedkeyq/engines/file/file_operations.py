"""The few things that the file store does to files.

Everything that can fail, or that a crash can come in between of, goes through `FileOperations`, so
that tests can make each step fail, record the steps, or end the process at one.
"""

import ctypes
import errno
import os
import signal
import sys
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple

fcntl: Any
try:
    fcntl = import_module("fcntl")
except ImportError:  # pragma: no cover - not on POSIX
    fcntl = None

Stamp = tuple[int, int, int]
"""Inode, time of change in nanoseconds, and size: a file with the same stamp is unchanged."""

_NOT_THERE: Final = frozenset(
    (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EMLINK, errno.EXDEV)
)
"""How a file system says that it does not know how to do something."""
_HERE: Final = -100
_NO_REPLACE: Final = 1
_EXCHANGE: Final = 2


class Access(NamedTuple):
    """The rights on a file: its mode, its user and its group."""

    mode: int
    user: int
    group: int


class FileOperations:
    """Files, one small step at a time."""

    def read(self, path: Path) -> tuple[bytes, Stamp] | None:
        """The content of a file with its stamp, or None where there is no file."""
        try:
            with path.open("rb") as file:
                # First the stamp: bytes that come while we read must not pass for those we read.
                stamp = _stamp(os.fstat(file.fileno()))
                return file.read(), stamp
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

    def access(self, path: Path) -> Access | None:
        """The rights on a file, or None where there is no file."""
        try:
            stat = path.stat()
        except FileNotFoundError:
            return None
        return Access(stat.st_mode & 0o777, stat.st_uid, stat.st_gid)

    def write(self, path: Path, data: bytes, access: Access | None) -> None:
        """Write a new file, with the `access` of another or the usual one. Not yet durable."""
        # A file that a crash left half written may be there.
        path.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        # No other user may look into it before it has its rights.
        file = os.open(path, flags, 0o666 if access is None else 0o600)
        try:
            if access is not None:
                give_access(file, path, access)
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

    def rename_new(self, source: Path, target: Path) -> bool:
        """Give a file a name that no file has; False where one has it."""
        done = _renameat2(source, target, _NO_REPLACE)
        if done is None:
            if target.exists():
                return False
            source.replace(target)
        return done is not False

    def exchange(self, source: Path, target: Path) -> bool:
        """Let two files change names, at once or not at all; False where that cannot be done."""
        return bool(_renameat2(source, target, _EXCHANGE))

    def link(self, source: Path, target: Path) -> bool:
        """Give a file one more name; False where that cannot be done."""
        target.unlink(missing_ok=True)
        try:
            os.link(source, target)
        except OSError as error:
            if error.errno in _NOT_THERE:
                return False
            raise
        return True

    def remove(self, path: Path) -> None:
        """Remove a file, if it is there."""
        path.unlink(missing_ok=True)

    def is_being_written(self, path: Path) -> bool | None:
        """Whether a process has a file open for writing; None where the system does not tell.

        Linux tells the owner of the file: it grants a lease for reading only while no process has
        the file open for writing.
        """
        if fcntl is None or not sys.platform.startswith("linux"):
            return None
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            # A process that opens the file now is held up until the lease is given back, and we
            # are told by a signal. The usual one would end this process; this one is ignored.
            fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGURG)
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        except OSError as error:
            return True if error.errno == errno.EAGAIN else None
        finally:
            os.close(file)
        return False


def give_access(file: int, path: Path, access: Access) -> None:
    """Let an open file be of the same people as another, as far as this process may do so."""
    by_file = os.chmod in os.supports_fd
    mode = access.mode
    if hasattr(os, "fchown"):
        mine = os.fstat(file)
        if mine.st_gid != access.group:
            try:
                os.fchown(file, -1, access.group)
            except OSError:
                # The rights of the old group are not for this one: it gets those of all others.
                mode = mode & 0o707 | (mode & 0o007) << 3
        if mine.st_uid != access.user:
            with suppress(OSError):
                os.fchown(file, access.user, -1)
    os.chmod(file if by_file else path, mode)  # whatever the umask


def _renameat2(source: Path, target: Path, flags: int) -> bool | None:
    """Rename in one of the ways that Linux has.

    False where the names do not allow it, and None where the system does not know how.
    """
    renameat2 = _find_renameat2()
    if renameat2 is None:
        return None
    if renameat2(_HERE, os.fsencode(source), _HERE, os.fsencode(target), flags) == 0:
        return True
    number = ctypes.get_errno()
    if number == errno.EEXIST:
        return False
    if number in _NOT_THERE:
        return None
    raise OSError(number, os.strerror(number), str(target))


@cache
def _find_renameat2() -> Any:
    """The call of the system, if it has one."""
    if not sys.platform.startswith("linux"):
        return None
    try:
        return ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return None


def _stamp(stat: os.stat_result) -> Stamp:
    return stat.st_ino, stat.st_mtime_ns, stat.st_size
