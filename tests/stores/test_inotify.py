"""The bell that the kernel rings when something happens to a file."""

import ctypes
import os
from pathlib import Path
from typing import Any

import pytest

from leasedkeyq.stores.system import inotify
from leasedkeyq.stores.system.inotify import ATTRIBUTES, Bell

HOUR = 3600.0


class Inotify:
    """A C library whose inotify does not work."""

    def __init__(self, init: int, add: int) -> None:
        self.inotify_init1 = lambda flags: init
        self.inotify_add_watch = lambda handle, path, mask: add


def test_without_inotify_there_is_no_bell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "log"
    file.touch()
    bell = Bell.of(file, ATTRIBUTES)
    assert bell is not None
    bell.close()
    assert Bell.of(tmp_path / "absent", ATTRIBUTES) is None
    with monkeypatch.context() as patch:
        patch.setattr(inotify, "LINUX", False)
        assert Bell.of(file, ATTRIBUTES) is None
    libraries: list[Any] = [Inotify(-1, -1), object()]
    for library in libraries:
        with monkeypatch.context() as patch:
            patch.setattr(ctypes, "CDLL", lambda *_, library=library, **__: library)
            assert Bell.of(file, ATTRIBUTES) is None


def test_a_bell_rings_once_for_all_that_was_touched_before(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.touch()
    bell = Bell.of(file, ATTRIBUTES)
    assert bell is not None
    for _ in range(100):
        os.utime(file)
    bell.wait(HOUR)
    assert not bell._heard()
    os.utime(file)
    assert bell._heard()
    bell.interrupt()
    assert bell.wait(HOUR) == b""
    bell.close()
