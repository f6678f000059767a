"""Charts as SVG, drawn here.

They have attributes only, no styles and no code, so that the strict policy of the page holds.
Colours come from classes of the style sheet, which know light and dark.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from typing import Final, Literal, TypeAlias

from markupsafe import Markup

from leasedkeyq.web.words import iso, short_count, span

Values: TypeAlias = Sequence[float | None]
_Scale: TypeAlias = Callable[[float], float]
_NumberWriter: TypeAlias = Callable[[float], str]

SPARK_WIDTH: Final = 120
SPARK_HEIGHT: Final = 24
WIDTH: Final = 560
HEIGHT: Final = 150
LEFT: Final = 44
RIGHT: Final = 8
TOP: Final = 12
BOTTOM: Final = 20
GRID_LINES: Final = 4
MINUTE: Final = 60
HOUR: Final = 3600
DAY: Final = 24 * HOUR


@dataclass(frozen=True)
class Track:
    """One line, or one colour of bars, of a chart.

    Args:
        label: Its name.
        values: One for each step; None where nothing is known.
        color: The class that gives it its colour: ``"waiting"``, ``"flight"``, ``"dead"``...
    """

    label: str
    values: Values
    color: str


def sparkline(
    values: Values, label: str, color: str = "waiting", over: Values = (), over_color: str = "dead"
) -> Markup:
    """A small line without axes, and maybe a second one over it, on the same scale.

    Args:
        values: One for each step, the oldest first.
        label: What it shows, for those who cannot see it.
        color: The class of its colour.
        over: The values of the second line; left out if all are 0.
        over_color: The class of its colour.
    """
    top = max((value for value in (*values, *over) if value is not None), default=0.0)
    words = f"{label}: at most {short_count(top)}" if values else f"{label}: nothing known"
    opening = Markup(
        '<svg class="spark" viewBox="0 0 {} {}" width="{}" height="{}" role="img" '
        'aria-label="{}" preserveAspectRatio="none">'
    ).format(SPARK_WIDTH, SPARK_HEIGHT, SPARK_WIDTH, SPARK_HEIGHT, words)
    if not top:
        base = SPARK_HEIGHT - 1
        rest = Markup('<path class="rest" d="M0 {}H{}"/>').format(base, SPARK_WIDTH)
        return opening + rest + Markup("</svg>")
    parts = [opening, *_spark_line(values, top, color)]
    if any(over):
        parts += _spark_line(over, top, over_color)
    return Markup("").join([*parts, Markup("</svg>")])


def _spark_line(values: Values, top: float, color: str) -> list[Markup]:
    step = SPARK_WIDTH / max(1, len(values) - 1)
    parts: list[Markup] = []
    for run in _runs([(index * step, value) for index, value in enumerate(values)]):
        points = [(x, SPARK_HEIGHT - 1 - value / top * (SPARK_HEIGHT - 3)) for x, value in run]
        line = "M" + "L".join(f"{_number(x)} {_number(y)}" for x, y in points)
        if len(points) > 1:
            area = f"{line}V{SPARK_HEIGHT}H{_number(points[0][0])}Z"
            parts.append(Markup('<path class="area color-{}" d="{}"/>').format(color, area))
        else:
            line += "h1"
        parts.append(Markup('<path class="line color-{}" d="{}"/>').format(color, line))
    return parts


def chart(
    title: str,
    tracks: Sequence[Track],
    begin: float,
    step: float,
    *,
    kind: Literal["bars", "lines"] = "lines",
    unit: Literal["count", "span"] = "count",
) -> Markup:
    """A chart over time with axes and a legend; bars stand on each other.

    Args:
        title: What it shows.
        tracks: Its lines or bars, all of the same length.
        begin: When the first step begins, as Unix time.
        step: Seconds of a step.
        kind: How values are drawn.
        unit: How they are written.
    """
    number = max((len(track.values) for track in tracks), default=0)
    highest = _highest(tracks, number, stacked=kind == "bars")
    top, marks = _scale(highest, whole=True) if unit == "count" else _span_scale(highest)
    inner_width, inner_height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    write = short_count if unit == "count" else span

    def y_of(value: float) -> float:
        return TOP + inner_height * (1 - value / top)

    def x_of(index: float) -> float:
        return LEFT + inner_width * index / max(1, number)

    parts = [
        Markup('<figure class="chart"><figcaption>{}{}</figcaption>').format(
            Markup("<span>{}</span>").format(title), _legend(tracks, kind)
        ),
        Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">').format(
            WIDTH, HEIGHT, _in_words(title, tracks, write)
        ),
    ]
    for mark in marks:
        y = _number(y_of(mark))
        parts.append(
            Markup('<path class="grid" d="M{} {}H{}"/>').format(LEFT, y, WIDTH - RIGHT)
            + Markup(
                '<text class="axis" x="{}" y="{}" dy="3.5" text-anchor="end">{}</text>'
            ).format(LEFT - 6, y, write(mark))
        )
    parts.extend(_time_marks(begin, step, number, x_of))
    if kind == "bars":
        parts.extend(_bars(tracks, number, x_of, y_of))
    else:
        parts.extend(_lines(tracks, x_of, y_of))
    parts.append(Markup("</svg></figure>"))
    return Markup("").join(parts)


def _bars(tracks: Sequence[Track], number: int, x_of: _Scale, y_of: _Scale) -> list[Markup]:
    base = [0.0] * number
    parts: list[Markup] = []
    width = x_of(1) - x_of(0)
    gap = min(1.0, width * 0.15)
    for track in tracks:
        path: list[str] = []
        for index, value in enumerate(track.values):
            if value:
                low, high = y_of(base[index]), y_of(base[index] + value)
                base[index] += value
                x, wide = x_of(index) + gap / 2, width - gap
                path.append(
                    f"M{_number(x)} {_number(low)}V{_number(high)}h{_number(wide)}V{_number(low)}Z"
                )
        if path:
            parts.append(
                Markup('<path class="bar color-{}" d="{}"/>').format(track.color, "".join(path))
            )
    return parts


def _lines(tracks: Sequence[Track], x_of: _Scale, y_of: _Scale) -> list[Markup]:
    parts: list[Markup] = []
    for place, track in enumerate(tracks):
        lines: list[str] = []
        points = [(x_of(index + 0.5), value) for index, value in enumerate(track.values)]
        for run in _runs(points):
            line = "M" + "L".join(f"{_number(x)} {_number(y_of(value))}" for x, value in run)
            lines.append(line if len(run) > 1 else f"{line}h2")
        if lines:
            parts.append(
                Markup('<path class="line dash-{} color-{}" d="{}"/>').format(
                    place, track.color, "".join(lines)
                )
            )
    return parts


def _legend(tracks: Sequence[Track], kind: str) -> Markup:
    if len(tracks) < 2:  # noqa: PLR2004
        return Markup("")
    parts = [
        Markup(
            '<span class="key color-{}"><svg width="18" height="8" aria-hidden="true">'
            '<path class="{}" d="{}"/></svg>{}</span>'
        ).format(
            track.color,
            f"line dash-{place}" if kind == "lines" else "bar",
            "M0 4H18" if kind == "lines" else "M4 0H14V8H4Z",
            track.label,
        )
        for place, track in enumerate(tracks)
    ]
    return Markup('<span class="legend">{}</span>').format(Markup("").join(parts))


def _in_words(title: str, tracks: Sequence[Track], write: _NumberWriter) -> str:
    words: list[str] = []
    for track in tracks:
        known = [value for value in track.values if value is not None]
        if known:
            words.append(f"{track.label}: last {write(known[-1])}, at most {write(max(known))}")
    return f"{title}. {'; '.join(words) or 'Nothing is known yet'}"


def _time_marks(begin: float, step: float, number: int, x_of: _Scale) -> list[Markup]:
    """Marks at whole hours or parts of them. Without the script they are in UTC."""
    length = step * number
    every = next(
        (
            gap
            for gap in (600, 900, 1800, HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR)
            if length / gap <= 8  # noqa: PLR2004
        ),
        DAY,
    )
    parts: list[Markup] = []
    at = ceil(begin / every) * every
    while step and at < begin + length:
        index = (at - begin) / step
        x = _number(x_of(index))
        text = iso(at)
        words = text[11:16] if every < DAY and text[11:16] != "00:00" else text[5:10]
        anchor = "start" if index * step < length * 0.04 else "middle"
        anchor = "end" if index * step > length * 0.96 else anchor
        parts.append(
            Markup('<path class="tick" d="M{} {}v4"/>').format(x, HEIGHT - BOTTOM)
            + Markup(
                '<text class="axis" x="{}" y="{}" text-anchor="{}" data-at="{}">{}</text>'
            ).format(x, HEIGHT - 5, anchor, text, words)
        )
        at += every
    return parts


def _highest(tracks: Sequence[Track], number: int, *, stacked: bool) -> float:
    if stacked:
        sums = [sum(_at(track, index) for track in tracks) for index in range(number)]
        return max(sums, default=0.0)
    return max((_at(track, index) for track in tracks for index in range(number)), default=0.0)


def _at(track: Track, index: int) -> float:
    value = track.values[index] if index < len(track.values) else None
    return value or 0.0


def _scale(highest: float, *, whole: bool) -> tuple[float, list[float]]:
    """The top of an axis, and the places of its lines: 1, 2 or 5 times a power of ten."""
    if highest <= 0:
        return 1.0, [0.0]
    raw = highest / GRID_LINES
    power = 10.0 ** floor(log10(raw))
    gap = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    if whole:
        gap = max(1.0, gap)
    lines = ceil(highest / gap - 0.001)
    return gap * lines, [gap * line for line in range(lines + 1)]


def _span_scale(highest: float) -> tuple[float, list[float]]:
    """As `_scale` for seconds: at whole minutes, hours or days, so that the marks are short."""
    seconds = next((one for one in (DAY, HOUR, MINUTE) if highest > one), 0)
    if not seconds:
        return _scale(highest, whole=False)
    top, marks = _scale(highest / seconds, whole=True)
    return top * seconds, [mark * seconds for mark in marks]


def _runs(points: Sequence[tuple[float, float | None]]) -> list[list[tuple[float, float]]]:
    """The parts of a line between which nothing is known."""
    runs: list[list[tuple[float, float]]] = []
    open_run: list[tuple[float, float]] = []
    for x, value in points:
        if value is None:
            open_run = []
        else:
            if not open_run:
                runs.append(open_run)
            open_run.append((x, value))
    return runs


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
