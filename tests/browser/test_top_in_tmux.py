"""``leasedkeyq top`` in tmux: a real terminal, at the sizes that people have."""

import secrets
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from leasedkeyq.cli.output import cells
from tests.cli.lively import PATIENCE, environment, lively_worker
from tests.servers.urls import empty_store


class Tmux:
    """A tmux server of its own, with one window."""

    def __init__(self, columns: int, lines: int, *command: str) -> None:
        self._name = f"leasedkeyq-{secrets.token_hex(4)}"
        size = ("-x", str(columns), "-y", str(lines))
        words = shlex.join(command)
        # The shell stays when the command has ended, so that the screen can be looked at.
        script = f"{words}; echo ended with $?; exec sleep 600"
        self.call("-f", "/dev/null", "new-session", "-d", *size, script)
        self.call("set-option", "-g", "status", "off")
        self.call("resize-window", *size)

    def call(self, *words: str) -> str:
        done = subprocess.run(
            ["tmux", "-L", self._name, *words],
            env=environment(LC_ALL="C.UTF-8", TERM="xterm-256color", PYTHONIOENCODING="utf-8"),
            capture_output=True,
            text=True,
            check=True,
            timeout=PATIENCE,
        )
        return done.stdout

    @property
    def lines(self) -> list[str]:
        return self.call("capture-pane", "-p").split("\n")[:-1]

    def until(self, condition: Callable[[str], object]) -> list[str]:
        """Wait until the screen is as it should be; returns its lines."""
        ends = time.monotonic() + PATIENCE
        while True:
            lines = self.lines
            if condition("\n".join(lines)):
                return lines
            assert time.monotonic() < ends, "\n".join(lines)
            time.sleep(0.1)

    def shows(self, *parts: str) -> list[str]:
        return self.until(lambda text: all(part in text for part in parts))

    def press(self, *keys: str) -> None:
        self.call("send-keys", *keys)

    def end(self) -> None:
        self.call("kill-server")


@contextmanager
def tmux(columns: int, lines: int, *command: str) -> Generator[Tmux]:
    assert shutil.which("tmux"), "these tests need tmux: apt-get install tmux"
    window = Tmux(columns, lines, *command)
    try:
        yield window
    finally:
        window.end()


@pytest.mark.parametrize("columns, lines", [(80, 24), (120, 40)])
def test_top_in_a_real_terminal(columns: int, lines: int, tmp_path: Path) -> None:
    with (
        empty_store("sqlite", tmp_path) as url,
        lively_worker(url),
        tmux(columns, lines, sys.executable, "-m", "leasedkeyq", "top", url) as window,
    ):
        window.shows("images", "mail", "reports", "no such address", "/s done", "page ")
        shown = window.shows("1 worker", "q quit")
        assert len(shown) == lines
        assert all(cells(line) <= columns for line in shown)
        assert shown[0].startswith(" leasedkeyq top  SQLite store")
        assert shown[0].rstrip().endswith("Z")
        assert "1 worker" in shown[1]
        assert shown[2].startswith(">LANES")
        assert shown[-1].startswith(" q quit")
        titles = [line.split()[0] for line in shown if line[:2] in (" R", " F", ">L")]
        assert titles == [">LANES", "RUNNING", "FAILURES"]
        assert any("█" in line and "%" in line for line in shown)
        window.press("Down", "p")
        window.shows("paused mail")
        window.press("p")
        window.until(lambda text: "paused mail" not in text)
        window.press("Tab", "Tab", "End", "r")
        window.shows("was put back")
        window.press("Up", "Enter")  # what was put back is another item now
        window.shows("ITEM", "ValueError: no such address")
        window.press("Escape")
        window.shows(">FAILURES")
        window.press("?")
        window.shows("pause the selected lane")
        window.press("x")
        other = (120, 40) if columns == 80 else (80, 24)
        window.call("resize-window", "-x", str(other[0]), "-y", str(other[1]))
        window.until(lambda text: text.count("\n") == other[1] - 1 and "\n q quit" in text)
        shown = window.shows(">FAILURES", "LANES")
        assert all(cells(line) <= other[0] for line in shown)
        window.press("q")
        shown = window.shows("ended with 0")
        assert not any("LANES" in line for line in shown)  # the screen from before is back
        cursor, wraps = window.call("display-message", "-p", "#{cursor_flag} #{wrap_flag}").split()
        assert (cursor, wraps) == ("1", "1")


def test_ctrl_c_and_ctrl_z(tmp_path: Path) -> None:
    with (
        empty_store("sqlite", tmp_path) as url,
        lively_worker(url),
        tmux(80, 24, "bash", "--norc", "-i") as window,
    ):
        program = shlex.join([sys.executable, "-m", "leasedkeyq", "top", url])
        window.press(f"NO_COLOR=1 {program}", "Enter")
        window.shows(">LANES", "1 worker")
        window.press("C-z")
        window.until(lambda text: "Stopped" in text and ">LANES" not in text)
        window.press("fg", "Enter")
        window.shows(">LANES", "1 worker", "q quit")
        window.press("C-c")
        window.until(lambda text: ">LANES" not in text)
        window.press("echo it said $?; stty -a | grep -o '[- ]echo '", "Enter")
        window.shows("it said 0")
        assert any(line.strip() == "echo" for line in window.lines)
