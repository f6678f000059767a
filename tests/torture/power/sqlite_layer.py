"""A layer between SQLite and the files, which writes down every step.

Python's own `sqlite3` lets nobody in between, so the store gets connections of `apsw`, which look
like those of `sqlite3` as far as the store uses them. The steps are those of SQLite's usual way to
the files of this system, including the moments in which it syncs the folder.
"""

import ctypes
import os
import sqlite3
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import apsw
import pytest

from leasedkeyq.engines.sqlite import log_file as sqlite_log_file
from leasedkeyq.engines.sqlite import schema as sqlite_schema
from leasedkeyq.engines.sqlite import store as sqlite_store
from leasedkeyq.engines.sqlite import transaction as sqlite_transaction
from tests.torture.power.disk import Name, Step, Sync, SyncFolder, Truncate, Write

T = TypeVar("T")
LAYER = "steps"
CHECKPOINT = 40
"""Pages in the log after which it is written back: some commits only."""

OpenFolder = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(ctypes.c_int))


class Steps:
    """The steps in the files of one folder, in their order."""

    def __init__(self, folder: Path) -> None:
        self.steps: list[Step] = []
        self._names = {name: number for number, name in enumerate(files_in(folder))}
        self._files = len(self._names)
        self._syncing: int | None = None

    def opened(self, name: str, *, created: bool) -> int:
        """The number of a file that was opened."""
        if created:
            self._names[name] = self._files
            self._files += 1
            self.steps.append(Name(name, self._names[name]))
        return self._names[name]

    def deleted(self, name: str) -> None:
        if self._names.pop(name, None) is not None:
            self.steps.append(Name(name, None))

    def sync_begins(self, file: int) -> None:
        self._syncing = file

    def sync_ends(self) -> None:
        file, self._syncing = self._syncing, None
        if file is not None:
            self.steps.append(Sync(file))

    def folder_synced(self) -> None:
        """If that is a part of the sync of a file, it comes after the file itself."""
        self.sync_ends()
        self.steps.append(SyncFolder())


def files_in(folder: Path) -> dict[str, bytes]:
    """The files that matter; the shared memory is made anew after a loss of power.

    Reading a database past SQLite lets go of its locks: only do this while no process but this one
    has it open.
    """
    return {
        file.name: file.read_bytes()
        for file in sorted(folder.iterdir())
        if not file.name.endswith("-shm")
    }


@contextmanager
def recorded(folder: Path) -> Generator[Steps]:
    """Stores that are opened in here write down what they do to the files of the folder."""
    steps = Steps(folder)
    layer = Layer(steps)
    sync_folder = sqlite_schema._sync_folder

    def sync_and_note(path: Path) -> None:
        sync_folder(path)
        steps.folder_synced()

    with pytest.MonkeyPatch.context() as patch, layer.hearing_of_folders():
        patch.setattr(sqlite_schema, "connect", Connection)
        patch.setattr(sqlite_store, "QUICK", float("inf"))  # whatever else the machine does
        patch.setattr(sqlite_store, "MOST_HERE", 3)  # the log is to be written back often
        patch.setattr(sqlite_transaction, "FENCES", 24)  # and some claims are to need more fences
        patch.setattr(sqlite_schema, "_sync_folder", sync_and_note)
        patch.setattr(sqlite_store, "LogFile", partial(NotedLogFile, steps))
        patch.setattr(sqlite_log_file, "CHUNK", 32768)  # the log is to be lengthened often, too
        patch.setattr(sqlite_log_file, "LEAST", 8192)
        yield steps


class Layer(apsw.VFS):
    def __init__(self, steps: Steps) -> None:
        super().__init__(LAYER, "")
        self._steps = steps

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> "File":  # noqa: N802  # SQLite's name
        return File(self._steps, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802  # SQLite's name
        self._steps.deleted(os.path.basename(filename))
        super().xDelete(filename, syncdir)

    @contextmanager
    def hearing_of_folders(self) -> Generator[None]:
        """SQLite opens a folder in order to sync it, and for nothing else."""
        usual = self.xGetSystemCall("openDirectory")
        assert usual is not None
        open_folder = OpenFolder(usual)

        def open_and_note(path: bytes, handle: Any) -> int:
            self._steps.folder_synced()
            answer: int = open_folder(path, handle)
            return answer

        noting = OpenFolder(open_and_note)
        pointer = ctypes.cast(noting, ctypes.c_void_p).value
        assert pointer is not None
        assert self.xSetSystemCall("openDirectory", pointer)
        try:
            yield
        finally:
            self.xSetSystemCall("openDirectory", usual)
            self.unregister()


class File(apsw.VFSFile):
    def __init__(self, steps: Steps, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        assert path is not None, "a temporary file: the store keeps these in memory"
        created = not os.path.exists(path)
        super().__init__("", name, flags)
        self._steps = steps
        self._number = steps.opened(os.path.basename(path), created=created)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802  # SQLite's name
        super().xWrite(data, offset)
        self._steps.steps.append(Write(self._number, offset, bytes(data)))

    def xTruncate(self, newsize: int) -> None:  # noqa: N802  # SQLite's name
        super().xTruncate(newsize)
        self._steps.steps.append(Truncate(self._number, newsize))

    def xSync(self, flags: int) -> None:  # noqa: N802  # SQLite's name
        self._steps.sync_begins(self._number)
        super().xSync(flags)
        self._steps.sync_ends()


class NotedLogFile(sqlite_log_file.LogFile):
    """Writes down how the store itself lengthens the log."""

    def __init__(self, steps: Steps, database: Path) -> None:
        super().__init__(database)
        self._steps = steps
        self._number = steps.opened(f"{database.name}-wal", created=False)

    def _write(self, handle: int, data: bytes, offset: int) -> None:
        super()._write(handle, data, offset)
        self._steps.steps.append(Write(self._number, offset, data))


class Connection:
    """What the store uses of `sqlite3.Connection`, on the layer."""

    def __init__(self, path: Path, *, busy_timeout: float, create: bool = False) -> None:
        flags = apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if create else 0)
        self._connection = _translated(lambda: apsw.Connection(str(path), flags, LAYER))
        self._connection.set_busy_timeout(round(busy_timeout * 1000))
        self.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT}")

    def execute(self, sql: str, values: Sequence[Any] = ()) -> "Rows":
        return _translated(lambda: Rows(self._connection, self._connection.execute(sql, values)))

    def executemany(self, sql: str, rows: Iterable[Sequence[Any]]) -> "Rows":
        return _translated(lambda: Rows(self._connection, self._connection.executemany(sql, rows)))

    @property
    def in_transaction(self) -> bool:
        return self._connection.in_transaction

    def close(self) -> None:
        _translated(self._connection.close)


class Rows:
    """What a statement has returned, as a cursor of `sqlite3`."""

    def __init__(self, connection: apsw.Connection, cursor: apsw.Cursor) -> None:
        self._rows = iter(cursor.fetchall())
        self.rowcount = connection.changes()
        self.lastrowid = connection.last_insert_rowid()

    def fetchone(self) -> Any:
        return next(self._rows, None)

    def fetchall(self) -> list[Any]:
        return list(self._rows)

    def __iter__(self) -> Iterator[Any]:
        return self._rows


def _translated(call: Callable[[], T]) -> T:
    """An error of apsw as one of sqlite3."""
    try:
        return call()
    except apsw.Error as error:
        translated = sqlite3.OperationalError(str(error))
        translated.sqlite_errorcode = getattr(error, "extendedresult", 0)
        raise translated from error
