"""A command on a terminal of a given size, and what is on its screen."""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import pyte

from tests.cli.lively import PATIENCE, environment


class Screen:
    """A terminal with a command on it.

    Attributes:
        process: The command.
        written: All that it has written.
    """

    def __init__(self, arguments: list[str], columns: int, lines: int, **settings: str) -> None:
        self._ours, self._theirs = pty.openpty()
        self._screen: Any = pyte.Screen(columns, lines)
        self._stream: Any = pyte.ByteStream(self._screen)
        self._size(columns, lines)
        self.before = termios.tcgetattr(self._theirs)
        self.written = b""
        settings = {"TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"} | settings
        found = environment(**settings)
        for name in ("COLUMNS", "LINES", "NO_COLOR"):
            if name not in settings:
                found.pop(name, None)
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=self._theirs,
            stdout=self._theirs,
            stderr=self._theirs,
            env=found,
            start_new_session=True,
        )

    def _size(self, columns: int, lines: int) -> None:
        size = struct.pack("HHHH", lines, columns, 0, 0)
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, size)

    def resize(self, columns: int, lines: int) -> None:
        self._screen.resize(lines, columns)
        self._size(columns, lines)
        self.process.send_signal(signal.SIGWINCH)

    def press(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self._screen.display]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def settings(self) -> list[Any]:
        """How the terminal is set."""
        return termios.tcgetattr(self._theirs)

    def read(self, seconds: float = 0.05) -> None:
        """Show what was written."""
        while select.select([self._ours], [], [], seconds)[0]:
            try:
                data = os.read(self._ours, 65536)
            except OSError:
                return
            self.written += data
            self._stream.feed(data)
            seconds = 0.0

    def until(self, condition: Callable[[str], object], what: str = "") -> str:
        """Wait until the screen is as it should be; returns its text."""
        ends = time.monotonic() + PATIENCE
        while True:
            self.read()
            if condition(self.text):
                return self.text
            gone = self.process.poll() is not None
            assert not gone, f"it has ended: {what}\n{self.text}"
            assert time.monotonic() < ends, f"{what}\n{self.text}"

    def shows(self, *parts: str) -> str:
        """Wait until all these texts are on the screen."""
        return self.until(lambda text: all(part in text for part in parts), f"want {parts}")

    def wait(self) -> int:
        """The exit code; what was written until then is read."""
        ends = time.monotonic() + PATIENCE
        while self.process.poll() is None and time.monotonic() < ends:
            self.read()
        self.read()
        return self.process.wait(1)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._ours)
        os.close(self._theirs)


@contextmanager
def on_terminal(
    *arguments: str, columns: int = 80, lines: int = 24, **settings: str
) -> Generator[Screen]:
    """A Python program on a terminal, until the end of a test."""
    screen = Screen([*arguments], columns, lines, **settings)
    try:
        yield screen
    finally:
        screen.close()
