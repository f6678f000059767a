"""Numbers, spans and moments as people read them: the filters of the templates."""

from datetime import UTC, datetime
from typing import Final

from markupsafe import Markup

MINUTE: Final = 60
HOUR: Final = 3600
DAY: Final = 86400
KIBI: Final = 1024
THOUSAND: Final = 1000
NONE: Final = "\u2013"
"""Stands where there is no number: a dash."""
MINUS: Final = "\u2212"
NARROW: Final = "\u202f"
"""A narrow blank between groups of digits, which does not break."""


def count(number: float | None) -> str:
    """A number with its thousands apart: ``12 345``."""
    return NONE if number is None else f"{number:,.0f}".replace(",", NARROW)


def short_count(number: float | None) -> str:
    """A number in little room: ``12.3k``."""
    if number is None:
        return NONE
    size = abs(number)
    for step, sign in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= step:
            base = step if sign != "k" else 1e3
            text = f"{number / base:.1f}".removesuffix(".0")
            return f"{text}{sign}"
    return f"{number:.0f}"


def span(seconds: float | None) -> str:
    """A span in its two largest units: ``3 min 12 s``, ``450 ms``."""
    if seconds is None:
        return NONE
    if seconds < 0:
        return f"{MINUS}{span(-seconds)}"
    if seconds < 0.001:  # noqa: PLR2004
        return "0 s" if not seconds else "< 1 ms"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:  # noqa: PLR2004
        return f"{seconds:.1f} s".replace(".0 s", " s")
    if seconds < MINUTE:
        return f"{seconds:.0f} s"
    whole = round(seconds)
    if whole < HOUR:
        return _two(whole // MINUTE, "min", whole % MINUTE, "s")
    if whole < DAY:
        return _two(whole // HOUR, "h", whole % HOUR // MINUTE, "min")
    return _two(whole // DAY, "d", whole % DAY // HOUR, "h")


def _two(first: int, first_unit: str, second: int, second_unit: str) -> str:
    text = f"{first} {first_unit}"
    return f"{text} {second} {second_unit}" if second else text


def size(number: int | None) -> str:
    """Bytes: ``1.5 MiB``."""
    if number is None:
        return NONE
    value = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < KIBI:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= KIBI
    return f"{value:.1f} TiB"


def share(part: float, whole: float) -> str:
    """A share in percent: ``0.4 %``; a dash if there is no whole."""
    if not whole:
        return NONE
    percent = 100 * part / whole
    return f"{percent:.1f} %" if 0 < percent < 10 else f"{percent:.0f} %"  # noqa: PLR2004


def rate(per_minute: float | None) -> str:
    """A number of things in a minute: ``12.5/min``."""
    if per_minute is None:
        return NONE
    text = f"{per_minute:.1f}".removesuffix(".0") if per_minute < THOUSAND else count(per_minute)
    return f"{text}/min"


def iso(at: float) -> str:
    """A Unix time as machines read it."""
    try:
        return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return ""


def moment(at: float | None, form: str = "ago") -> Markup:
    """A moment as an element: in UTC, until the script shows it in the zone of the reader.

    Args:
        at: The Unix time; None is a dash.
        form: What the script makes of it: ``"ago"`` (and ``"in"`` for one to come) or ``"full"``.
    """
    if at is None:
        return Markup('<span class="none">{}</span>').format(NONE)
    machine = iso(at)
    if not machine:
        return Markup("<span>at another time</span>")
    people = f"{machine[:10]} {machine[11:19]} UTC"
    return Markup('<time datetime="{}" data-form="{}" title="{}">{}</time>').format(
        machine, form, people, people
    )
