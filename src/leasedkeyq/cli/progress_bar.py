"""A bar that shows how far a command is, on standard error, where that is a terminal."""

import sys
import time
from typing import Final, Self

import click

from leasedkeyq.cli.output import terminal_width

EVERY: Final = 0.1
"""Seconds between two drawings."""
NARROWEST_BAR: Final = 10


class ProgressBar:
    """Shows how many items are dealt with, out of how many, and how fast.

    Args:
        label: What is done, such as ``"export"``.
    """

    def __init__(self, label: str) -> None:
        self._label = label
        self._shown = sys.stderr.isatty()
        self._began = time.monotonic()
        self._drawn = 0.0
        self._wide = 0

    def update(self, done: int, total: int) -> None:
        """So many are done now."""
        now = time.monotonic()
        if self._shown and now - self._drawn >= EVERY:
            self._drawn = now
            self._draw(done, max(done, total), now - self._began)

    def _draw(self, done: int, total: int, seconds: float) -> None:
        rate = f"{done / seconds:,.0f}/s" if seconds > 0 else ""
        share = done / total if total else 1.0
        head, tail = f"{self._label} ", f" {share:4.0%} {done:,}/{total:,} {rate}"
        room = min(40, terminal_width() - len(head) - len(tail) - 3)
        bar = ""
        if room >= NARROWEST_BAR:
            filled = int(room * share)
            bar = f"[{'#' * filled}{'.' * (room - filled)}]"
        text = f"{head}{bar}{tail}"
        click.echo("\r" + text.ljust(self._wide), nl=False, err=True)
        self._wide = len(text)

    def close(self) -> None:
        """Leave an empty line for what is said next."""
        if self._wide:
            click.echo("\r" + " " * self._wide + "\r", nl=False, err=True)
            self._wide = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
