"""`SourceWatch`: which Python files have changed, for ``leasedkeyq worker --reload``."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

SKIPPED: Final = frozenset(("__pycache__", "node_modules", "site-packages", "venv", "env"))
"""Folders that have no sources of the program, beside those whose names begin with a dot."""
MOST: Final = 20_000
"""Files that are looked at, at most."""


class SourceWatch:
    """Looks at the times of Python files: those below a folder, and others that it is told.

    Args:
        folder: The folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._others: set[str] = set()
        self._times = self._look()

    def add(self, files: Iterable[str]) -> None:
        """Look at these files, too, from now on."""
        new = {*files} - self._others
        self._others |= new
        for file in new:
            if (moment := _time(file)) is not None:
                self._times.setdefault(file, moment)

    def changed(self) -> list[str]:
        """The files that were written, added or removed since the last call."""
        before, self._times = self._times, self._look()
        names = before.keys() | self._times.keys()
        return sorted(name for name in names if before.get(name) != self._times.get(name))

    def _look(self) -> dict[str, int]:
        times: dict[str, int] = {}
        for folder, folders, files in os.walk(self._folder):
            folders[:] = [
                name for name in folders if not name.startswith(".") and name not in SKIPPED
            ]
            for name in files:
                if name.endswith(".py"):
                    path = os.path.join(folder, name)
                    if (moment := _time(path)) is not None:
                        times[path] = moment
            if len(times) > MOST:
                break
        for path in self._others:
            if (moment := _time(path)) is not None:
                times[path] = moment
        return times


def _time(path: str) -> int | None:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return None
