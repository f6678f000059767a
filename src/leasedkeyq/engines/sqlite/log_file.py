"""The write-ahead log is lengthened ahead of SQLite, so that commits need not do it one by one.

A commit that makes the log longer syncs the new length of the file as well, by the journal of the
file system: that takes as long again as to sync the data. SQLite grows the log from nothing
whenever the first process opens a database, and begins at its start again after some hundreds of
commits. Until then a put by one caller at full durability takes three quarters of the time so: 31
of 160 commits make the log longer, where each of them did.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

CHUNK: Final = 256 * 1024
"""The log is made so much longer at a time. Four times as much gains nothing more."""
LEAST: Final = 64 * 1024
"""A shorter log stays as it is: a program that puts an item or two need not write more."""


class LogFile:
    """The log of a database, beside SQLite that writes and reads it.

    SQLite takes zeros behind the last commit for what they are: it looks for the end of a log by
    the checksums and the salt of its frames, as older frames may follow there, too.

    Args:
        database: SQLite has it open, and has read it: so the log is there.
    """

    def __init__(self, database: Path) -> None:
        self._handle: int | None = None
        # SQLite has no lock on this file, which closing a second handle would let go of.
        if hasattr(os, "pwrite"):
            with suppress(OSError):  # somebody has deleted it; SQLite will say what that means
                self._handle = os.open(f"{database}-wal", os.O_WRONLY)

    def lengthen(self) -> None:
        """Add zeros where SQLite has made the file longer.

        Only in a transaction that has the lock for writing: so nobody else changes the file.
        """
        if self._handle is None:
            return
        try:
            size = os.fstat(self._handle).st_size
            if size > LEAST and size % CHUNK:
                self._write(self._handle, bytes(CHUNK - size % CHUNK), size)
        except OSError:  # the disk is full; whether there is room for the commit, SQLite finds out
            self.close()

    def _write(self, handle: int, data: bytes, offset: int) -> None:
        os.pwrite(handle, data, offset)

    def close(self) -> None:
        """Leave the file alone from now on."""
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)

    def __del__(self) -> None:
        self.close()
