"""What becomes of a payload in a place: kept as it was, or refused with a clear error."""

import re
import unicodedata
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

from leasedkeyq.errors import LeasedKeyQError

Verdict: TypeAlias = str
"""``"kept"``, ``"refused: "`` and the class of the error, or another answer of the place."""

LONGEST_MESSAGE: Final = 3000
"""Characters. An error that quotes a payload of a megabyte is of no use to anybody."""
UNPRINTABLE: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
OF_PYTHON: Final = re.compile(
    r"object is not|unsupported operand|expected str instance|has no attribute|not subscriptable"
)
"""What Python says where nobody has looked at an argument."""


class SpoiledError(Exception):
    """A payload was taken, and is not what it was, or something else has suffered."""


def expect(given: object, wanted: object, what: str) -> None:
    """Something came back: it must be what it was."""
    if type(given) is not type(wanted) or given != wanted:
        raise SpoiledError(f"{what}: {shown(given)} in place of {shown(wanted)}")


def shown(value: object) -> str:
    """A value for the words of a violation."""
    try:
        text = ascii(value)
    except (RecursionError, RuntimeError, ValueError):
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 200 else f"{text[:200]}... ({len(text)} characters)"


def unprintable(text: str, allowed: str = "\n") -> str:
    """The characters of a text that must not reach a terminal, as escapes."""
    found = {one for one in text if one not in allowed and unicodedata.category(one) in UNPRINTABLE}
    return ascii("".join(sorted(found)))[1:-1]


def unclear(error: BaseException) -> str:
    """What is wrong with the message of an error that refuses something; "" if it is clear."""
    text = str(error)
    if not text.strip():
        return f"{type(error).__name__} says nothing"
    if len(text) > LONGEST_MESSAGE:
        return f"{type(error).__name__} says {len(text)} characters"
    if control := unprintable(text):
        return f"{type(error).__name__} has control characters in it: {control}"
    if OF_PYTHON.search(text):
        return f"{type(error).__name__} does not say which argument is wrong: {text}"
    return ""


async def judged(attempt: Callable[[], Awaitable[Verdict]]) -> tuple[Verdict, str]:
    """The verdict of a place on a payload, and what is wrong with how it was refused.

    Raises:
        Exception: It was neither kept nor refused: this is a crash.
    """
    try:
        return await attempt(), ""
    except SpoiledError:
        raise
    except (LeasedKeyQError, TypeError, ValueError) as error:
        return f"refused: {type(error).__name__}", unclear(error)


def answer_of(answer: Any) -> Any:
    """The answer to a request, or the refusal that it is."""
    if isinstance(answer, Exception):
        raise answer
    return answer
