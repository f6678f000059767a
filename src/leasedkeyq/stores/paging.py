"""Listings: what can be asked of one, and how it is cut into pages."""

from collections.abc import Sequence

from leasedkeyq import checks
from leasedkeyq.model.requests import STATES, Page, StoredItem, StoredState


def check_browse(states: Sequence[StoredState], prefix: str, cursor: str | None, limit: int) -> int:
    """See that a `browse` makes sense; return the id behind which its page begins."""
    for state in states:
        if state not in STATES:
            raise ValueError(f"states must be among {', '.join(STATES)}; got {state!r}")
    if not checks.is_text(prefix):
        raise ValueError(f"prefix must be text without lone surrogates, got {prefix!r}")
    checks.whole("limit", limit, 1)
    if cursor is None:
        return 0
    if not isinstance(cursor, str) or not cursor.isdecimal():
        raise ValueError(f"cursor must be that of the page before, or None; got {cursor!r}")
    return int(cursor)


def page_of(found: Sequence[StoredItem], limit: int) -> Page:
    """The page of the first `limit` items that were found."""
    page = tuple(found[:limit])
    return Page(page, str(page[-1].id) if len(found) > limit else None)
