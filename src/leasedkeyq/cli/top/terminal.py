"""`Terminal`: takes the whole terminal, reads keys, and gives it back whatever happens."""

import asyncio
import codecs
import os
import re
import shutil
import signal
import sys
import termios
import tty
from asyncio import TimerHandle
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self

_ENTER: Final = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"
"""The other screen, no cursor, no wrapped lines, empty."""
_LEAVE: Final = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"
_KEYS: Final = {
    "\x1b[A": "up",
    "\x1bOA": "up",
    "\x1b[B": "down",
    "\x1bOB": "down",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    "\x1b[H": "home",
    "\x1bOH": "home",
    "\x1b[1~": "home",
    "\x1b[7~": "home",
    "\x1b[F": "end",
    "\x1bOF": "end",
    "\x1b[4~": "end",
    "\x1b[8~": "end",
    "\x1b[Z": "back tab",
    "\t": "tab",
    "\r": "enter",
    "\n": "enter",
    "\x1b": "escape",
    "k": "up",
    "j": "down",
    "\x02": "page up",
    "\x06": "page down",
    "\x0c": "redraw",
}
ESCAPE_FOR: Final = 0.1
"""Seconds within which the rest of a key that begins with Esc comes."""
_PART_OF_KEY: Final = re.compile(r"\x1b(\[[0-9;]*|O)?\Z")
_LONGEST: Final = max(map(len, _KEYS))


class Terminal:
    """The terminal of this process, in a ``with`` block inside an event loop.

    Ctrl-C, SIGTERM and SIGHUP call `stop`; Ctrl-Z gives the terminal back until the program goes
    on. However the block ends, the terminal is as it was.

    Args:
        pressed: Called with each key: its name, or the character.
        resized: Called when the size has changed, or all has to be drawn again.
        stop: Called when the program shall end.
    """

    def __init__(
        self,
        pressed: Callable[[str], None],
        resized: Callable[[], None],
        stop: Callable[[], None],
    ) -> None:
        self._pressed = pressed
        self._resized = resized
        self._stop = stop
        self._in = sys.stdin.fileno()
        self._out = sys.stdout.fileno()
        self._before: list[Any] = []
        self._shown: list[str] = []
        self._loop = asyncio.get_running_loop()
        self._decoder = codecs.getincrementaldecoder(sys.stdin.encoding or "utf-8")("replace")
        self._typed = ""
        self._waiting: TimerHandle | None = None

    def __enter__(self) -> Self:
        self._before = termios.tcgetattr(self._in)
        self._take()
        self._loop.add_reader(self._in, self._read)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self._loop.add_signal_handler(number, self._stop)
        self._loop.add_signal_handler(signal.SIGWINCH, self._redraw)
        self._loop.add_signal_handler(signal.SIGTSTP, self._suspend)
        self._loop.add_signal_handler(signal.SIGCONT, self._go_on)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with suppress(Exception):
            self._loop.remove_reader(self._in)
        if self._waiting is not None:
            self._waiting.cancel()
        self._give_back()

    def _take(self) -> None:
        tty.setcbreak(self._in, termios.TCSANOW)
        self._write(_ENTER)
        self._shown = []

    def _give_back(self) -> None:
        with suppress(OSError):  # the terminal may be gone
            self._write(_LEAVE)
        with suppress(OSError, termios.error):
            termios.tcsetattr(self._in, termios.TCSANOW, self._before)

    def _suspend(self) -> None:
        self._give_back()
        os.kill(os.getpid(), signal.SIGSTOP)

    def _go_on(self) -> None:
        self._take()
        self._redraw()

    def _redraw(self) -> None:
        self._write("\x1b[2J")
        self._shown = []
        self._resized()

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines."""
        with suppress(OSError):
            found = os.get_terminal_size(self._out)
            if found.columns and found.lines:
                return found.columns, found.lines
        found = shutil.get_terminal_size((80, 24))
        return found.columns, found.lines

    def show(self, lines: Sequence[str]) -> None:
        """Show lines from the top down; only those that have changed are written."""
        parts: list[str] = []
        for number, text in enumerate(lines):
            if number >= len(self._shown) or self._shown[number] != text:
                # Erased first: behind a line that fills the screen, its last column would go.
                parts.append(f"\x1b[{number + 1};1H\x1b[2K{text}\x1b[0m")
        if len(lines) < len(self._shown):
            parts.append(f"\x1b[{len(lines) + 1};1H\x1b[J")
        self._shown = list(lines)
        if parts:
            self._write("".join(parts))

    def _write(self, text: str) -> None:
        data = text.encode(sys.stdout.encoding or "utf-8", "replace")
        while data:
            try:
                data = data[os.write(self._out, data) :]
            except BlockingIOError:
                os.set_blocking(self._out, True)

    def _read(self) -> None:
        try:
            data = os.read(self._in, 1024)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:  # the terminal was closed
            self._loop.remove_reader(self._in)
            self._stop()
            return
        self._typed += self._decoder.decode(data)
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        if _PART_OF_KEY.search(self._typed):
            # The rest of a key may be under way; if nothing follows soon, it was Esc.
            self._waiting = self._loop.call_later(ESCAPE_FOR, self._take_keys)
        else:
            self._take_keys()

    def _take_keys(self) -> None:
        self._waiting = None
        typed, self._typed = self._typed, ""
        for key in keys_of(typed):
            self._pressed(key)


def keys_of(text: str) -> list[str]:
    """The keys that a terminal has sent at once."""
    found: list[str] = []
    while text:
        for length in range(min(_LONGEST, len(text)), 0, -1):
            name = _KEYS.get(text[:length])
            if name is not None and not (name == "escape" and len(text) > 1 and text[1] in "[O"):
                found.append(name)
                text = text[length:]
                break
        else:
            if text[0] == "\x1b":  # a sequence that means nothing here
                end = next(
                    (n for n, one in enumerate(text[2:], 2) if one.isalpha() or one == "~"), 1
                )
                text = text[end + 1 :]
            else:
                found.append(text[0])
                text = text[1:]
    return found
