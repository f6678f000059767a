"""What goes wrong with a SQLite database: its version, its log, its disk, damage."""

import sqlite3
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Final

from leasedkeyq.engines.sqlite.schema import SOUND_SQLITE, SqliteDurability, explain, schema_state
from leasedkeyq.model.findings import Finding, SchemaState
from leasedkeyq.stores.system.disk_space import disk_findings

CHECKED_SIZE: Final = 256 * 1024**2
"""Bytes of a database up to which it is read as a whole, which takes about a second."""
LARGE_LOG: Final = 256 * 1024**2
"""Bytes of a write-ahead log that some program keeps from being written back."""
MOST_DAMAGES: Final = 5
"""So many damages are told."""
LOG_RESET_BUG: Final = (
    "a rare bug in the reset of the write-ahead log that can damage a database which several "
    "connections write at a time"
)


class DatabaseExamination(ABC):
    """Looks at a database, whichever version it has: alone, and outside of a transaction."""

    @abstractmethod
    def run(self, connection: sqlite3.Connection) -> Any:
        """What there is to tell."""


class SchemaExamination(DatabaseExamination):
    """Ask for `Store.schema_state`."""

    def run(self, connection: sqlite3.Connection) -> SchemaState:
        """The version, and what would bring it up to date."""
        return schema_state(connection)


class Diagnosis(DatabaseExamination):
    """Ask for `Store.diagnose`.

    Args:
        path: The database file.
        durability: What the store was asked for.
    """

    def __init__(self, path: Path, durability: SqliteDurability) -> None:
        self._path = path
        self._durability = durability

    def run(self, connection: sqlite3.Connection) -> list[Finding]:
        """Everything that was found."""
        found = disk_findings(self._path)
        found += self._of_program()
        found += self._of_log()
        try:
            found += self._of_content(connection)
        except sqlite3.Error as error:
            found.append(self._damaged(str(explain(error, self._path))))
        except UnicodeDecodeError as error:  # SQLite quotes what a damaged file holds
            found.append(self._damaged(str(error)))
        return found

    def _of_program(self) -> list[Finding]:
        found: list[Finding] = []
        if sqlite3.sqlite_version_info < SOUND_SQLITE:
            sound = ".".join(map(str, SOUND_SQLITE))
            found.append(
                Finding(
                    code="sqlite-log-reset-bug",
                    severity="note",
                    what=f"SQLite {sqlite3.sqlite_version} is older than {sound}: it has "
                    f"{LOG_RESET_BUG}",
                    where=f"the Python of this program ({sqlite3.sqlite_version})",
                    advice=f"use a Python with SQLite {sound} or newer, and keep backups",
                )
            )
        if self._durability != "full":
            found.append(
                Finding(
                    code="durability-weak",
                    severity="note",
                    what="the store was opened with durability='normal': a loss of power may take "
                    "what was acknowledged in the last moments",
                    where=str(self._path),
                    advice="open it with durability='full', unless that is meant so",
                )
            )
        return found

    def _of_log(self) -> list[Finding]:
        log = Path(f"{self._path}-wal")
        try:
            size = log.stat().st_size
        except OSError:
            return []
        if size <= LARGE_LOG:
            return []
        return [
            Finding(
                code="log-large",
                severity="warning",
                what=f"the write-ahead log has {size / 1024**2:,.0f} MiB: some program reads an "
                "old state and keeps the log from being written back, which makes reading slow "
                "and takes up the disk",
                where=str(log),
                advice="end the program that has a transaction open on this database (fuser "
                f"{self._path} names those that have it open)",
            )
        ]

    def _of_content(self, connection: sqlite3.Connection) -> list[Finding]:
        [pages] = connection.execute("PRAGMA page_count").fetchone()
        [page_size] = connection.execute("PRAGMA page_size").fetchone()
        if pages * page_size > CHECKED_SIZE:
            return [
                Finding(
                    code="not-checked",
                    severity="note",
                    what=f"the database has {pages * page_size / 1024**2:,.0f} MiB, and was not "
                    "searched for damage, which would take long",
                    where=str(self._path),
                    advice=f'run sqlite3 {self._path} "PRAGMA quick_check" when little is going on',
                )
            ]
        rows = connection.execute(f"PRAGMA quick_check({MOST_DAMAGES})").fetchall()
        damages = [str(row[0]) for row in rows if row[0] != "ok"]
        return [self._damaged("; ".join(damages))] if damages else []

    def _damaged(self, what: str) -> Finding:
        return Finding(
            code="database-damaged",
            severity="error",
            what=f"the database is damaged: {what}",
            where=str(self._path),
            advice="stop all that use it, keep a copy of the file with its -wal, and restore a "
            "backup, or what sqlite3's .recover can read",
        )
