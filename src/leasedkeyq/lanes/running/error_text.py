"""What is kept of an exception as text."""

import traceback

LONGEST_LINE = 1000
LONGEST_TRACEBACK = 20_000
"""Characters that are kept of what an exception says, and of where it was raised."""


def error_line(error: BaseException) -> str:
    """An exception in a line: its class and what it says."""
    try:
        text = " ".join(str(error).splitlines())
    except Exception:
        text = "(an exception that cannot be shown)"
    return _shortened(
        f"{type(error).__name__}: {text}" if text else type(error).__name__, LONGEST_LINE
    )


def traceback_text(error: BaseException) -> str:
    """Where an exception was raised."""
    return _shortened("".join(traceback.format_exception(error)), LONGEST_TRACEBACK)


def _shortened(text: str, most: int) -> str:
    """The beginning and the end of a text that is too long to keep."""
    half = most // 2
    return text if len(text) <= most else f"{text[:half]} ... {text[-half:]}"
