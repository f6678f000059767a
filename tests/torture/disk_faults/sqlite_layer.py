"""The calls of SQLite to the system, some of which fail."""

import errno
import os
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final

import apsw
import pytest

from leasedkeyq.engines.sqlite import log_file as sqlite_log_file
from leasedkeyq.engines.sqlite import schema as sqlite_schema
from leasedkeyq.engines.sqlite import store as sqlite_store
from tests.torture.disk_faults.plan import FaultPlan, Kind
from tests.torture.power.sqlite_layer import LAYER, Connection

CODES: Final[dict[Kind, int]] = {
    "open": apsw.SQLITE_CANTOPEN,
    "read": apsw.SQLITE_IOERR_READ,
    "write": apsw.SQLITE_IOERR_WRITE,
    "sync": apsw.SQLITE_IOERR_FSYNC,
    "truncate": apsw.SQLITE_IOERR_TRUNCATE,
    "unlink": apsw.SQLITE_IOERR_DELETE,
}
"""What SQLite makes of errors of the system. A full disk is another one where it writes."""


@contextmanager
def failing_sqlite(plan: FaultPlan) -> Generator[None]:
    """Stores that are opened in here have a disk that fails as planned."""
    layer = _Layer(plan)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite_schema, "connect", Connection)
        patch.setattr(sqlite_store, "QUICK", float("inf"))  # whatever else the machine does
        patch.setattr(sqlite_store, "MOST_HERE", 3)  # the log is to be written back often
        patch.setattr(sqlite_store, "LogFile", partial(_LogFile, plan))
        patch.setattr(sqlite_log_file, "CHUNK", 32768)  # the log is to be lengthened often, too
        patch.setattr(sqlite_log_file, "LEAST", 8192)
        try:
            yield
        finally:
            layer.unregister()


def _fail(plan: FaultPlan) -> None:
    full = plan.kind == "write" and (
        plan.how == "short" or plan.error in (errno.ENOSPC, errno.EDQUOT)
    )
    raise apsw.exception_for(apsw.SQLITE_FULL if full else CODES[plan.kind])


class _Silent:
    """SQLite has the error; apsw need not print it, too."""

    def excepthook(
        self,
        etype: type[BaseException] | None,
        evalue: BaseException | None,
        etraceback: TracebackType | None,
    ) -> bool:
        return True


class _Layer(_Silent, apsw.VFS):
    def __init__(self, plan: FaultPlan) -> None:
        super().__init__(LAYER, "")
        self._plan = plan

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> "_File":  # noqa: N802  # SQLite's name
        if self._plan.fails("open"):
            _fail(self._plan)
        return _File(self._plan, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802  # SQLite's name
        fails = self._plan.fails("unlink")
        if not fails or self._plan.how == "after":
            super().xDelete(filename, syncdir)
        if fails:
            _fail(self._plan)


class _File(_Silent, apsw.VFSFile):
    def __init__(
        self, plan: FaultPlan, name: str | apsw.URIFilename | None, flags: list[int]
    ) -> None:
        super().__init__("", name, flags)
        self._plan = plan

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802  # SQLite's name
        if self._plan.fails("read"):
            _fail(self._plan)
        return super().xRead(amount, offset)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802  # SQLite's name
        if self._plan.fails("write"):
            if self._plan.how == "short":
                super().xWrite(data[: len(data) // 2], offset)
            _fail(self._plan)
        super().xWrite(data, offset)

    def xTruncate(self, newsize: int) -> None:  # noqa: N802  # SQLite's name
        fails = self._plan.fails("truncate")
        if not fails or self._plan.how == "after":
            super().xTruncate(newsize)
        if fails:
            _fail(self._plan)

    def xSync(self, flags: int) -> None:  # noqa: N802  # SQLite's name
        fails = self._plan.fails("sync")
        if not fails or self._plan.how == "after":
            super().xSync(flags)
        if fails:
            _fail(self._plan)


class _LogFile(sqlite_log_file.LogFile):
    """The log as the store itself lengthens it."""

    def __init__(self, plan: FaultPlan, database: Path) -> None:
        super().__init__(database)
        self._plan = plan

    def _write(self, handle: int, data: bytes, offset: int) -> None:
        if self._plan.fails("write"):
            if self._plan.how == "short":
                super()._write(handle, data[: len(data) // 2], offset)
            raise OSError(self._plan.error, os.strerror(self._plan.error))
        super()._write(handle, data, offset)
