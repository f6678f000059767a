"""tmux as a terminal for tests: programs run in it, keys are pressed, its screen is read."""

import secrets
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from leasedkeyq.cli.output import cells
from tests.cli.lively import PATIENCE, environment


class Tmux:
    """A tmux server of its own, with one window."""

    def __init__(self, columns: int, lines: int, *command: str) -> None:
        self._name = f"leasedkeyq-{secrets.token_hex(4)}"
        size = ("-x", str(columns), "-y", str(lines))
        words = shlex.join(command)
        # The shell stays when the command has ended, by Ctrl-C too: the screen is looked at.
        script = f"trap : INT; {words}; echo ended with $?; exec sleep 600"
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

    def resize(self, columns: int, lines: int) -> None:
        self.call("resize-window", "-x", str(columns), "-y", str(lines))

    def press(self, *keys: str) -> None:
        self.call("send-keys", *keys)

    def fits(self, columns: int, lines: int) -> bool:
        """Whether the screen has this size, and no line of it is wider."""
        shown = self.lines
        return len(shown) == lines and all(cells(line) <= columns for line in shown)

    @property
    def modes(self) -> dict[str, str]:
        """How the terminal is set: 1 or 0 for the cursor, wrapped lines and the other screen."""
        names = ("cursor_flag", "wrap_flag", "alternate_on")
        values = self.call("display-message", "-p", " ".join(f"#{{{name}}}" for name in names))
        return dict(zip(names, values.split(), strict=True))

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
