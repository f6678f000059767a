"""What commands print: tables, moments, ages and JSON, for a terminal or for a pipe.

Keys, values and errors come from anybody who can put into a queue. They are printed without control
characters, so that none of them can move the cursor, set a title or change colours.
"""

import json
import os
import shutil
import sys
import unicodedata
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

import click
import msgspec

NARROWEST = 8
"""Characters that a column keeps at least, where there is little room."""
_UNPRINTABLE = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
MINUTE, HOUR, DAY = 60, 3600, 86400


class Column(NamedTuple):
    """A column of a table.

    Attributes:
        title: What stands above it.
        align: On which side its texts begin.
        shrinks: Whether it is cut where a line has no room for all.
        style: How rich shows it.
    """

    title: str
    align: Literal["left", "right"] = "left"
    shrinks: bool = False
    style: str = ""


def printable(text: str) -> str:
    """A text in one line, with escapes for control characters, direction marks and the like."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        character
        if unicodedata.category(character) not in _UNPRINTABLE
        else character.encode("unicode_escape").decode()
        for character in text
    )


def printable_lines(text: str) -> str:
    """A text of several lines, such as a traceback, each of them printable."""
    return "\n".join(printable(line.replace("\t", "    ")) for line in text.splitlines())


def age(seconds: float | None) -> str:
    """A span for people: ``"3m12s"``."""
    if seconds is None:
        return "-"
    whole = max(0, int(seconds))
    if whole < MINUTE:
        return f"{max(0.0, seconds):.1f}s" if seconds < MINUTE / 6 else f"{whole}s"
    if whole < HOUR:
        return f"{whole // MINUTE}m{whole % MINUTE:02d}s"
    if whole < DAY:
        return f"{whole // HOUR}h{whole % HOUR // MINUTE:02d}m"
    return f"{whole // DAY}d{whole % DAY // HOUR:02d}h"


def moment(unix: float | None) -> str:
    """A moment for people, in UTC: ``"2026-01-31 12:00:00Z"``."""
    if unix is None:
        return "-"
    try:
        return datetime.fromtimestamp(unix, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return f"{unix:.0f}"


def size(count: int) -> str:
    """Bytes for people."""
    number = float(count)
    for unit in ("B", "KiB", "MiB"):
        if number < 1024:  # noqa: PLR2004
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} GiB"


def echo_json(document: Any) -> None:
    """Print a document as JSON, in one line.

    Characters that a terminal would obey are written as escapes of JSON, which mean the same.
    """
    text = msgspec.json.encode(document).decode()
    click.echo(text if text.isascii() and text.isprintable() else _escaped(text))


def _escaped(text: str) -> str:
    return "".join(
        one if unicodedata.category(one) not in _UNPRINTABLE else json.dumps(one)[1:-1]
        for one in text
    )


def echo_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Print a table: fitted to a terminal, and whole in a pipe."""
    clean = [[printable(text) for text in row] for row in rows]
    if sys.stdout.isatty():
        width = terminal_width()
        if _is_plain():
            _echo_lines(columns, fitted(columns, clean, width))
        else:
            _echo_rich(columns, fitted(columns, clean, width))
    else:
        _echo_lines(columns, clean)


def terminal_width() -> int:
    """Characters in a line of the terminal."""
    return shutil.get_terminal_size((80, 24)).columns


def fitted(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> list[list[str]]:
    """The same rows, with the columns that shrink cut so that a line has room for all."""
    widths = _widths(columns, rows)
    excess = sum(widths) + 2 * (len(columns) - 1) - width
    while excess > 0:
        wide = [n for n, column in enumerate(columns) if column.shrinks and widths[n] > NARROWEST]
        if not wide:
            break
        widest = max(wide, key=widths.__getitem__)
        widths[widest] -= 1
        excess -= 1
    return [[cut(text, most) for text, most in zip(row, widths, strict=True)] for row in rows]


def cut(text: str, most: int) -> str:
    """A text of at most so many columns of a terminal."""
    if cells(text) <= most:
        return text
    kept = ""
    room = most - 1
    for character in text:
        room -= cells(character)
        if room < 0:
            break
        kept += character
    return f"{kept}…"


def cells(text: str) -> int:
    """How many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(one) else 2 if unicodedata.east_asian_width(one) in "WF" else 1
        for one in text
    )


def _widths(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[int]:
    return [
        max([len(column.title), *(cells(row[number]) for row in rows)])
        for number, column in enumerate(columns)
    ]


def _is_plain() -> bool:
    """Whether a terminal wants no colours."""
    return bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"


def _echo_lines(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    widths = _widths(columns, rows)
    titles = [column.title for column in columns]
    for row in (titles, *rows):
        parts: list[str] = []
        for column, text, width in zip(columns, row, widths, strict=True):
            gap = " " * (width - cells(text))
            parts.append(gap + text if column.align == "right" else text + gap)
        click.echo("  ".join(parts).rstrip())


def _echo_rich(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    # Only a terminal needs it, and it takes long to import.
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column.title, justify=column.align, style=column.style, no_wrap=True)
    for row in rows:
        table.add_row(*(Text(text) for text in row))
    Console().print(table)


def echo_fields(fields: Sequence[tuple[str, str]]) -> None:
    """Print what is known of one thing: a name and a text in each line."""
    width = max((len(name) for name, _ in fields), default=0)
    for name, text in fields:
        click.echo(f"{name:<{width}}  {text}".rstrip())


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """A number with its noun: ``"1 item"``, ``"2 items"``."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
