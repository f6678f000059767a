"""How far an item has come, as people see it."""

from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec

from leasedkeyq.web.json_tree import JsonTree, json_tree, shown_text

HUNDRED: Final = 100
TOLD_BY_COMMANDS: Final = frozenset({"value", "text", "at", "attempt"})
"""The fields in which a command of a lane tells its progress."""


class ProgressView(msgspec.Struct, frozen=True, kw_only=True):
    """How far an item has come, for people.

    Attributes:
        share: How much is done, from 0 to 1, if that is known.
        words: What it says of it.
        at: When it told, as Unix time, if it says.
        tree: What it told, where that is more than a number or a text.
    """

    share: float | None = None
    words: str = ""
    at: float | None = None
    tree: JsonTree | None = None


def progress_view(progress: Any) -> ProgressView | None:
    """What an item has told of its progress; None if nothing.

    A command of a lane tells a value and a text. Of values these are understood as a share of the
    work: a number from 0 to 1, and a mapping with ``done`` and ``total``, or with ``percent``.
    """
    if progress is None:
        return None
    words = ""
    at: float | None = None
    told = _fields(progress)
    if told is not None and set(told) <= TOLD_BY_COMMANDS:
        words, at = str(told.get("text", "")), _number(told.get("at"))
        progress = told.get("value")
    share = progress_share(progress)
    tree: JsonTree | None = None
    if share is None and progress is not None:
        if isinstance(progress, dict | list):
            tree = json_tree(msgspec.json.encode(progress).decode())
        else:
            words = f"{progress}: {words}" if words else str(progress)
    return ProgressView(share=share, words=shown_text(words), at=at, tree=tree)


def progress_share(progress: Any) -> float | None:
    """How much is done, from 0 to 1, if a value tells it; see `progress_view`."""
    number = _number(progress)
    if number is not None:
        return number if 0 <= number <= 1 else None
    fields = _fields(progress)
    if fields is None:
        return None
    done, total = _number(fields.get("done")), _number(fields.get("total"))
    if done is not None and total is not None and total > 0:
        return min(1.0, max(0.0, done / total))
    percent = _number(fields.get("percent"))
    return None if percent is None else min(1.0, max(0.0, percent / HUNDRED))


def _fields(value: Any) -> Mapping[str, Any] | None:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value
