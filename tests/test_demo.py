"""`make demo` on a terminal: no line is wider than it, and each picture lies on the one before."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pytest

from tests.test_documents import ROOT

CODES = re.compile(r"\x1b\[(\d*)([A-Za-z])")


def run_on_terminal(columns: int, lines: int) -> str:
    """What the demo writes to a terminal of that size."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = os.environ | {"PYTHONPATH": paths, "TERM": "xterm"}
    for name in ("COLUMNS", "LINES"):
        environment.pop(name, None)
    demo = subprocess.Popen(
        [sys.executable, ROOT / "examples/demo.py"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment,
    )
    os.close(theirs)
    written = b""
    try:
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # that is how a terminal ends on Linux
                break
            if not part:
                break
            written += part
        assert demo.wait(60) == 0, written.decode()
    finally:
        demo.kill()
        demo.wait()
        os.close(ours)
    return written.decode().replace("\r\n", "\n")


class Terminal:
    """As much of a terminal as the demo needs: it wraps lines and moves the cursor up."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.rows: list[str] = [""]
        self.row = 0
        self.wrapped = 0

    def write(self, text: str) -> None:
        at = 0
        for code in CODES.finditer(text):
            self._print(text[at : code.start()])
            at = code.end()
            number, name = code.groups()
            if name == "A":
                self.row -= int(number)
                assert self.row >= 0, "above the first line"
            elif name == "K":
                self.rows[self.row] = ""
            else:
                assert name == "m", code[0]
        self._print(text[at:])

    def _print(self, text: str) -> None:
        for letter in text:
            if letter == "\n":
                self._down()
                continue
            if len(self.rows[self.row]) == self.columns:
                self.wrapped += 1
                self._down()
            self.rows[self.row] += letter

    def _down(self) -> None:
        self.row += 1
        if self.row == len(self.rows):
            self.rows.append("")


@pytest.mark.parametrize("columns", [80, 44])
def test_the_picture_fits(columns: int) -> None:
    terminal = Terminal(columns)
    terminal.write(re.split(r"\d+ commands: ", run_on_terminal(columns, 24))[0])
    shown = "\n".join(terminal.rows)
    if columns == 80:
        assert terminal.wrapped == 0, shown
    assert shown.count("waiting") == 1, shown
    assert shown.count("dead letters") == 1, shown
    assert shown.count("worker 1 was killed") == 1, shown
    # Nothing is left of an older picture.
    assert [row for row in terminal.rows if re.match(r"  (system|prompt) ", row)] != []
    assert len([row for row in terminal.rows if row.startswith("  system")]) == 1, shown


def test_a_terminal_without_room_gets_lines() -> None:
    written = run_on_terminal(80, 10)
    assert "\x1b[" not in written
    assert "worker 1 was killed" in written
