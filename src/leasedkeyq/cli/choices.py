"""Options that several commands have: which items are meant, spans of time, ``--json``."""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from leasedkeyq.operations import ItemFilter

    _SecondsType = click.ParamType[float]
else:
    _SecondsType = click.ParamType  # older versions of click know no parameters of it

F = TypeVar("F", bound=Callable[..., Any])

STATES: dict[str, tuple[str, ...]] = {
    "available": ("available",),
    "scheduled": ("scheduled",),
    "in_flight": ("in_flight",),
    "buffered": ("buffered",),
    "in_line": ("in_line",),
    "buried": ("buried",),
    "done": ("done",),
    "waiting": ("available", "scheduled", "buffered", "in_line"),
    "running": ("in_flight",),
    "dead": ("buried",),
}
"""What can be said for ``--state``, and the states that are meant."""
_SPAN = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d|w)?\s*)+")
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)?")
_UNITS = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


class Span(_SecondsType):
    """A span of time: seconds, or such as ``90s``, ``15m``, ``1h30m``, ``2d``."""

    name = "span"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """The seconds."""
        if isinstance(value, float | int):
            return float(value)
        text = str(value).strip()
        if not _SPAN.fullmatch(text):
            self.fail(f"{value!r} is no span of time such as 30s, 15m, 2h or 1d12h", param, ctx)
        return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))


SPAN = Span()

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask.")
dry_run_option = click.option(
    "--dry-run", "-n", is_flag=True, help="Only count what would be changed."
)


def filter_options(*, states: bool = True) -> Callable[[F], F]:
    """Options that say which items are meant; `item_filter` makes a filter of them.

    Args:
        states: Whether their states can be chosen.
    """
    options = [
        click.option("--key", "-k", default="", help="Only items of this key."),
        click.option("--prefix", "-p", default="", help="Only keys that begin so."),
        click.option("--kind", default="", help="Only commands of this type."),
        click.option(
            "--error",
            "-e",
            default="",
            metavar="TEXT",
            help="Only items with this in their error; letter case does not count.",
        ),
        click.option(
            "--older-than", type=SPAN, metavar="SPAN", help="Put at least so long ago: 30s, 2h, 1d."
        ),
        click.option("--newer-than", type=SPAN, metavar="SPAN", help="Put at most so long ago."),
    ]
    if states:
        options.append(
            click.option(
                "--state",
                "-s",
                "states",
                multiple=True,
                type=click.Choice(list(STATES)),
                metavar="STATE",
                help=f"Only items in this state: {', '.join(STATES)}. May be given several times.",
            )
        )

    def decorate(function: F) -> F:
        for option in options:
            function = option(function)
        return function

    return decorate


def item_filter(
    *,
    states: tuple[str, ...] = (),
    key: str = "",
    prefix: str = "",
    kind: str = "",
    error: str = "",
    older_than: float | None = None,
    newer_than: float | None = None,
    outcome: str | None = None,
) -> "ItemFilter":
    """The filter that these options mean."""
    # Only commands that look at items need it.
    from leasedkeyq.operations import ItemFilter  # noqa: PLC0415

    meant = dict.fromkeys(state for name in states for state in STATES[name])
    wanted: Any = {"states": tuple(meant), "outcome": outcome}
    return ItemFilter(
        key=key,
        key_prefix=prefix,
        kind=kind,
        error=error,
        older_than=older_than,
        newer_than=newer_than,
        **wanted,
    )
