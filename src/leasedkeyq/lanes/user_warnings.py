"""Warnings that point at the code of the user."""

import sys
import warnings


def warn(message: str, category: type[Warning]) -> None:
    """Warn of something in the line, outside of this package, that has led here."""
    level = 1
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__", "")):
        frame = frame.f_back
        level += 1
    warnings.warn(message, category, stacklevel=level + 1)


def _is_ours(module: str) -> bool:
    return module == "leasedkeyq" or module.startswith("leasedkeyq.")
