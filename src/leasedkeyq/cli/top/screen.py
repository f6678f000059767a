"""Drawing: from a `TopState` and a size to the lines of a screen, none of them wider than it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from leasedkeyq.cli.output import age, cells, counted, cut, printable
from leasedkeyq.cli.top.state import (
    PANES,
    FailureRow,
    LaneRow,
    Pane,
    RunningRow,
    TopState,
)

NARROWEST: Final = 40
"""Columns below which only a hint is shown."""
LOWEST: Final = 10
"""Lines below which only a hint is shown."""
WIDE: Final = 100
"""Columns from which on there is room for more."""
_TITLES: Final[dict[Pane, str]] = {
    "lanes": "LANES",
    "running": "RUNNING",
    "failures": "FAILURES",
}
HELP: Final = (
    "Tab, Shift-Tab   to the next part, or back: lanes, running, failures",
    "Up, Down, k, j   select a row; PgUp, PgDn, Home and End go further",
    "Enter            look into what is selected; Esc goes back",
    "p                pause the selected lane, or resume it",
    "r                put the selected failure back, to run again",
    "s                sort lanes by name, waiting, rate or dead letters",
    "Ctrl-L           draw all again",
    "?                this help; any key goes back",
    "q, Ctrl-C        quit",
    "",
    "WAIT can be leased now, SCHED comes later, RUN is leased, of as many as all",
    "workers can run; LOAD shows that. DEAD was given up. DONE/S were done per",
    "second; beside it is its course over the last minutes. OLDEST: how long the",
    "next one has been there. Queues that are no lanes come below, without rates.",
)


@dataclass(frozen=True)
class ScreenStyle:
    """How things look on a terminal.

    Attributes:
        colours: Whether there are colours. What is selected can be seen without.
        blocks: Whether the terminal has the block characters of Unicode.
    """

    colours: bool = True
    blocks: bool = True

    def styled(self, text: str, style: str) -> str:
        """A text with its style."""
        codes = {
            "bold": "1",
            "dim": "2",
            "selected": "7",
            "title": "1;7" if not self.colours else "30;46",
        }
        if self.colours:
            codes |= {"good": "32", "bad": "31", "warn": "33", "bar": "36"}
        code = codes.get(style)
        return text if code is None or not text else f"\x1b[{code}m{text}\x1b[0m"

    def spark(self, values: Sequence[float], width: int) -> str:
        """The course of some values, one column for each of the newest."""
        ramp = "▁▂▃▄▅▆▇█" if self.blocks else "_.-~=+*#"
        shown = list(values)[-width:]
        top = max(shown, default=0.0)
        if not top:
            return (ramp[0] * len(shown)).rjust(width)
        steps = len(ramp) - 1
        return "".join(
            ramp[min(steps, max(1 if value > 0 else 0, round(value / top * steps)))]
            for value in shown
        ).rjust(width)

    def bar(self, share: float, width: int) -> str:
        """A bar that is filled up to a share."""
        filled = round(max(0.0, min(1.0, share)) * width)
        if share > 0:
            filled = max(1, filled)
        full, empty = ("█", "░") if self.blocks else ("#", ".")
        return full * filled + empty * (width - filled)


def draw(state: TopState, width: int, height: int, look: ScreenStyle) -> list[str]:
    """The lines of the screen: as many as it has, or fewer."""
    if width < NARROWEST or height < LOWEST:
        return [cut(f"needs {NARROWEST}x{LOWEST}, has {width}x{height}", max(1, width))]
    lines = [look.styled(_title(state, width), "title"), _totals(state, width, look)]
    room = height - len(lines) - 1
    if state.help:
        lines += _boxed("KEYS", HELP, 0, width=width, room=room, look=look)
    elif state.detail is not None:
        lines += _boxed(
            state.detail_title, state.detail, state.scroll, width=width, room=room, look=look
        )
    else:
        lines += _panes(state, width, room, look)
    lines = [_clipped(line, width) for line in lines[: height - 1]]
    lines += [""] * (height - 1 - len(lines))
    lines.append(_footer(state, width, look))
    return lines


def _title(state: TopState, width: int) -> str:
    right = datetime.fromtimestamp(state.now, UTC).strftime(" %H:%M:%SZ")
    left = cut(f" leasedkeyq top  {printable(state.store)}", width - len(right))
    return _padded(left, width - len(right)) + right


def _totals(state: TopState, width: int, look: ScreenStyle) -> str:
    if state.trouble:
        return look.styled(cut(f" {printable(state.trouble)}", width), "bad")
    rates = [row.rate for row in state.lanes if row.rate is not None]
    failing = [row.failed_rate for row in state.lanes if row.failed_rate]
    text = (
        f" {sum(row.waiting for row in state.lanes):,} waiting"
        f"  {sum(row.in_flight for row in state.lanes):,} running"
        f"  {sum(row.scheduled for row in state.lanes):,} scheduled"
        f"  {sum(row.dead for row in state.lanes):,} dead"
        f"  {counted(state.workers, 'worker')}"
    )
    if rates:
        text += f"  {_number(sum(rates))}/s done"
    if failing:
        text += f"  {_number(sum(failing))}/s failed"
    return cut(text, width)


def _footer(state: TopState, width: int, look: ScreenStyle) -> str:
    if state.message:
        return look.styled(_padded(cut(f" {printable(state.message)}", width), width), "bold")
    if state.help:
        text = " any key goes back"
    elif state.detail is not None:
        text = " Esc back  j/k scroll  r requeue  q quit"
    else:
        text = (
            f" q quit  ? help  Tab part  j/k move  Enter look  p pause  r requeue  s {state.sort}"
        )
    return look.styled(cut(text, width), "dim")


def _panes(state: TopState, width: int, room: int, look: ScreenStyle) -> list[str]:
    heights = shares(room, [len(state.rows(pane)) for pane in PANES])
    lines: list[str] = []
    for pane, height in zip(PANES, heights, strict=True):
        rows = state.rows(pane)
        active = pane == state.pane
        lines.append(_heading(pane, len(rows), width, look, active=active))
        index = state.index(pane)
        first = max(0, min(index - height // 2, len(rows) - height))
        for number, row in enumerate(rows[first : first + height], first):
            chosen = active and number == index
            if isinstance(row, LaneRow):
                text = _lane(row, width, look, plain=chosen)
            elif isinstance(row, RunningRow):
                text = _running(row, width, look, plain=chosen)
            else:
                text = _failure(row, width, look, plain=chosen)
            lines.append(look.styled(_padded(text, width), "selected") if chosen else text)
        if not rows:
            nothing = {
                "lanes": "no queue holds anything" if state.loaded else "asking the store...",
                "running": "nothing is leased",
                "failures": "none so far",
            }
            lines.append(look.styled(f"  {nothing[pane]}", "dim"))
        lines += [""] * max(0, height - max(1, len(rows)))
    return lines


def shares(room: int, wanted: Sequence[int]) -> list[int]:
    """How many rows each part gets, below its title: what it needs, or its share of the room.

    What one does not need, the others have.
    """
    left = max(0, room - len(wanted))
    needs = [max(1, number) for number in wanted]
    given = [0] * len(needs)
    while left and any(one < need for one, need in zip(given, needs, strict=True)):
        for number, need in enumerate(needs):
            if left and given[number] < need:
                given[number] += 1
                left -= 1
    if given:
        given[-1] += left
    return given


def _heading(pane: Pane, number: int, width: int, look: ScreenStyle, *, active: bool) -> str:
    mark = ">" if active else " "
    if pane == "lanes":
        text = f"{mark}{_TITLES[pane]}"
        columns = _lane_columns(width)
        name = columns[0][1]
        rest = "".join(
            f" {title:>{size}}" if title != "LOAD" else f" {title:<{size}}"
            for title, size in columns[1:]
        )
        return look.styled(cut(_padded(cut(text, name), name) + rest, width), "bold")
    return look.styled(cut(f"{mark}{_TITLES[pane]} {number or ''}", width), "bold")


def _lane_columns(width: int) -> list[tuple[str, int]]:
    """The columns of lanes, with their sizes; the name has what is left."""
    bar, spark = (10, 12) if width < WIDE else (16, 30)
    columns = [
        ("LOAD", bar),
        ("WAIT", 6),
        ("RUN", 6),
        ("SCHED", 5),
        ("DEAD", 5),
        ("DONE/S", 6),
        ("", spark),
        ("OLDEST", 6),
    ]
    if width < 80:  # noqa: PLR2004
        columns = [one for one in columns if one[0] not in ("LOAD", "", "SCHED")]
    taken = sum(size + 1 for _, size in columns)
    return [("NAME", max(12, width - taken)), *columns]


def _lane(row: LaneRow, width: int, look: ScreenStyle, *, plain: bool) -> str:
    """A row of a lane. One that is `plain` gets a style as a whole."""
    style = _unstyled if plain else look.styled
    share = 0.0
    if row.capacity:
        share = row.in_flight / row.capacity
    elif row.in_flight:
        share = 1.0
    run = (
        f"{_short(row.in_flight)}/{_short(row.capacity)}" if row.capacity else _short(row.in_flight)
    )
    values: dict[str, Callable[[int], str]] = {
        "LOAD": lambda size: style(look.bar(share, size), "bar"),
        "WAIT": lambda size: f"{_short(row.waiting):>{size}}",
        "RUN": lambda size: f"{run:>{size}}",
        "SCHED": lambda size: f"{_short(row.scheduled):>{size}}",
        "DEAD": lambda size: style(f"{_short(row.dead):>{size}}", "bad" if row.dead else ""),
        "DONE/S": lambda size: f"{'-' if row.rate is None else _number(row.rate):>{size}}",
        "": lambda size: style(look.spark(row.history, size), "good"),
        "OLDEST": lambda size: f"{age(row.oldest) if row.oldest is not None else '-':>{size}}",
    }
    columns = _lane_columns(width)
    name_size = columns[0][1]
    mark = "paused " if row.paused else ""
    name = _padded(cut(f"  {mark}{printable(row.name)}", name_size), name_size)
    parts = [style(name, "warn" if row.paused else "")]
    parts += [values[title](size) for title, size in columns[1:]]
    return " ".join(parts)


def _running(row: RunningRow, width: int, look: ScreenStyle, *, plain: bool) -> str:
    style = _unstyled if plain else look.styled
    bar = 10 if width < WIDE else 20
    lane, kind, time = 10, 12, 7
    key = max(8, min(30, (width - lane - kind - time - bar - 12) // 2 + 4))
    parts = [
        f"  {_column(row.lane, lane)}",
        _column(row.key, key),
        _column(row.kind, kind),
        f"{age(row.since):>{time}}",
    ]
    used = sum(map(cells, parts)) + len(parts)
    if row.fraction is not None:
        shown = f"{look.bar(row.fraction, bar)} {row.fraction:>4.0%} "
        parts.append(style(shown, "bar"))
        used += bar + 7
    rest = printable(row.text or ("" if row.fraction is not None else row.holder))
    if row.attempt > 1:
        rest = f"#{row.attempt} {rest}"
    parts.append(cut(rest, max(1, width - used)) if rest else "")
    return " ".join(parts)


def _failure(row: FailureRow, width: int, look: ScreenStyle, *, plain: bool) -> str:
    style = _unstyled if plain else look.styled
    when = datetime.fromtimestamp(row.at, UTC).strftime("%H:%M:%S")
    what = {"dead_lettered": "dead", "timeout": "timeout"}.get(row.outcome, row.outcome)
    lane, key = (10, 14) if width < WIDE else (14, 24)
    head = f"  {when} "
    colour = "warn" if row.outcome == "retry" else "bad"
    middle = f" {_column(row.lane, lane)} {_column(row.key, key)} "
    left = width - len(head) - 7 - cells(middle)
    error = cut(printable(row.error or row.kind), max(1, left))
    return head + style(f"{what:<7}", colour) + middle + error


def _boxed(
    title: str, lines: Sequence[str], scroll: int, *, width: int, room: int, look: ScreenStyle
) -> list[str]:
    """Lines below a title, from one of them on."""
    shown = [look.styled(cut(f" {printable(title)}", width), "bold")]
    scroll = max(0, min(scroll, len(lines) - (room - 2)))
    shown += [cut(f"  {text}", width) for text in lines[scroll : scroll + room - 1]]
    if scroll + room - 1 < len(lines):
        shown[-1] = look.styled(f"  ... {len(lines) - scroll - room + 2} more lines", "dim")
    return shown


def _clipped(line: str, width: int) -> str:
    """A line that fits: where there is too little room for all columns, it is cut."""
    text = _bare(line)
    return line if cells(text) <= width else cut(text, width)


def _unstyled(text: str, style: str) -> str:
    del style
    return text


def _column(text: str, size: int) -> str:
    return _padded(cut(printable(text), size), size)


def _padded(text: str, size: int) -> str:
    return text + " " * max(0, size - cells(_bare(text)))


def _bare(text: str) -> str:
    """A text without styles."""
    if "\x1b" not in text:
        return text
    parts = text.split("\x1b[")
    return parts[0] + "".join(part.partition("m")[2] for part in parts[1:])


def _number(number: float) -> str:
    if number >= 100 or number == int(number):  # noqa: PLR2004
        return _short(round(number))
    return f"{number:.1f}" if number >= 0.1 else f"{number:.2f}"  # noqa: PLR2004


def _short(number: int) -> str:
    """A number of at most five characters."""
    if number < 100_000:  # noqa: PLR2004
        return str(number)
    if number < 10_000_000:  # noqa: PLR2004
        return f"{number // 1000}k"
    return f"{number // 1_000_000}M"
