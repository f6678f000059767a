"""Listings: what can be asked of one, and how it is cut into pages."""

import sys
from collections.abc import Sequence
from typing import Final

from leasedkeyq import checks
from leasedkeyq.errors import describe
from leasedkeyq.model.requests import STATES, Page, StoredItem, StoredState

FIRST_SURROGATE: Final = 0xD800
LAST_SURROGATE: Final = 0xDFFF
"""Between these two are code points that no text has."""
FEW_OF_A_PREFIX: Final = 5000
"""Of so many keys with a prefix, and no more, a listing looks at each.

They are found in an index by key, and have to be sorted by their ids then. If there are more, the
listing goes along the ids, where it soon meets some of them.
"""
LAST_ID: Final = 2**63 - 1
"""Above every id, and as large as a number of any engine can be."""
LONGEST_CURSOR: Final = 100
"""Digits. An id has at most nineteen."""


def check_browse(
    states: Sequence[StoredState],
    prefix: str,
    cursor: str | None,
    limit: int,
    *,
    newest_first: bool = False,
) -> int:
    """See that a `browse` makes sense; return the id after which its page begins."""
    for state in states:
        if state not in STATES:
            raise ValueError(f"states must be among {', '.join(STATES)}; got {describe(state)}")
    if not checks.is_storable(prefix):
        raise ValueError(
            "prefix must be text without NUL characters and lone surrogates, as keys are, "
            f"got {describe(prefix)}"
        )
    checks.whole("limit", limit, 1)
    if not isinstance(newest_first, bool):
        raise TypeError(f"newest_first must be a bool, got {type(newest_first).__name__}")
    if cursor is None:
        return LAST_ID if newest_first else 0
    if not isinstance(cursor, str) or not cursor.isdecimal() or len(cursor) > LONGEST_CURSOR:
        got = describe(cursor)
        raise ValueError(f"cursor must be that of the page before, or None; got {got}")
    return min(int(cursor), LAST_ID)


def prefix_end(prefix: str) -> str | None:
    """The least text behind all texts that begin with `prefix`, in the order of code points.

    That is the order of their bytes, too. None: no text is behind them.
    """
    start = prefix.rstrip(chr(sys.maxunicode))
    if not start:
        return None
    following = ord(start[-1]) + 1
    if following == FIRST_SURROGATE:
        following = LAST_SURROGATE + 1
    return start[:-1] + chr(following)


def page_of(found: Sequence[StoredItem], limit: int) -> Page:
    """The page of the first `limit` items that were found."""
    page = tuple(found[:limit])
    return Page(page, str(page[-1].id) if len(found) > limit else None)
