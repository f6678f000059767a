"""The calls of the file store to the system, some of which fail."""

import fcntl
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from leasedkeyq.engines.file import file_operations
from tests.torture.disk_faults.plan import FaultPlan, Kind


@contextmanager
def failing_files(folder: Path, plan: FaultPlan) -> Generator[None]:
    """Calls of this process that are about files of the folder fail as planned."""
    layer = _Layer(str(folder), plan)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", layer.opening(os.open))
        patch.setattr(Path, "open", layer.by_path("read", Path.open))
        patch.setattr(os, "write", layer.writing(os.write))
        patch.setattr(os, "fsync", layer.by_number("sync", os.fsync))
        patch.setattr(os, "close", layer.closing(os.close))
        patch.setattr(os, "replace", layer.by_path("rename", os.replace))
        # A second name is what the store uses where two files cannot change names.
        renameat2 = _unknown if plan.kind == "link" else file_operations._renameat2
        patch.setattr(file_operations, "_renameat2", layer.by_path("rename", renameat2))
        patch.setattr(os, "link", layer.by_path("link", os.link))
        patch.setattr(os, "unlink", layer.by_path("unlink", os.unlink))
        patch.setattr(fcntl, "flock", layer.by_number("lock", fcntl.flock))
        yield


def _unknown(*_rename: Any) -> None:
    """The system does not know how to do that."""


class _Layer:
    def __init__(self, folder: str, plan: FaultPlan) -> None:
        self._folder = folder
        self._plan = plan
        self._numbers: set[int] = set()
        """The open files of the folder."""

    def by_path(self, kind: Kind, usual: Callable[..., Any]) -> Callable[..., Any]:
        """A call whose first argument is a path."""

        def call(path: Any, *arguments: Any, **options: Any) -> Any:
            if not self._is_here(path) or not self._plan.fails(kind):
                return usual(path, *arguments, **options)
            if self._plan.how == "after":
                usual(path, *arguments, **options)
            raise self._error(os.fspath(path))

        return call

    def by_number(self, kind: Kind, usual: Callable[..., Any]) -> Callable[..., Any]:
        """A call whose first argument is an open file."""

        def call(number: int, *arguments: Any) -> Any:
            if number not in self._numbers or not self._plan.fails(kind):
                return usual(number, *arguments)
            if self._plan.how == "after":
                usual(number, *arguments)
            raise self._error()

        return call

    def opening(self, usual: Callable[..., int]) -> Callable[..., int]:
        def call(path: Any, *arguments: Any, **options: Any) -> int:
            if not self._is_here(path):
                return usual(path, *arguments, **options)
            if self._plan.fails("open"):
                raise self._error(os.fspath(path))
            number = usual(path, *arguments, **options)
            self._numbers.add(number)
            return number

        return call

    def writing(self, usual: Callable[..., int]) -> Callable[..., int]:
        def call(number: int, data: Any) -> int:
            if number not in self._numbers or not self._plan.fails("write"):
                return usual(number, data)
            if self._plan.how == "short":
                written: int = usual(number, data[: len(data) // 2])
                if written and self._plan.count:
                    return written
            raise self._error()

        return call

    def closing(self, usual: Callable[[int], None]) -> Callable[[int], None]:
        def call(number: int) -> None:
            usual(number)  # the system closes a file, whatever it answers
            if number in self._numbers:
                self._numbers.discard(number)
                if self._plan.fails("close"):
                    raise self._error()

        return call

    def _is_here(self, path: Any) -> bool:
        if isinstance(path, int):
            return False
        return str(os.fspath(path)).startswith(self._folder)

    def _error(self, path: str | None = None) -> OSError:
        number = self._plan.error
        return (
            OSError(number, os.strerror(number), path)
            if path
            else OSError(number, os.strerror(number))
        )
