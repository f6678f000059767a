"""Who has changed what by the web page or on the command line: kept in the store.

The page *Changes* shows it.
"""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from leasedkeyq.errors import LeasedKeyQError
from leasedkeyq.model.requests import Change, Put, StoredItem
from leasedkeyq.stores import Store
from leasedkeyq.stores.codec import UNREADABLE

AUDIT_QUEUE: Final = "leasedkeyq.audit"
CHANGES_KEY: Final = "changes"
MOST_ENTRIES: Final = 200
LONGEST_TEXT: Final = 300
KEPT_APART: Final = 10 * 365 * 24 * 3600.0
"""The item is never due, so that nothing that claims from all queues leases it."""

logger = logging.getLogger("leasedkeyq.operations")


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A change that somebody has made, or tried to make.

    Attributes:
        at: When, as Unix time.
        who: The name of the user; ``"(local)"`` without authentication.
        client: The address that the request came from, or ``"command line"`` and a host.
        action: What was done, as a verb: ``"requeue"``.
        target: What it was done to: a lane, a schedule, a queue and id, a filter. No values.
        outcome: What became of it, in words.
    """

    at: float
    who: str
    client: str
    action: str
    target: str
    outcome: str = ""


class AuditLog:
    """The changes of one store, the newest first: the last 200, kept in the store.

    The log of them all is written by `Operator`, by the logger ``leasedkeyq.audit``.

    Args:
        store: Where the changes were made, and are remembered.
        name: What the log calls the store.
        clock: Tells the Unix time.
    """

    def __init__(self, store: Store, name: str, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._name = name
        self._clock = clock

    async def add(
        self, *, who: str, client: str, action: str, target: str, outcome: str
    ) -> AuditEntry:
        """Remember a change. A store that cannot keep it is told in the log.

        It never raises: the change has been made, and its report is what the user waits for.
        """
        entry = AuditEntry(
            at=self._clock(),
            who=_line(who),
            client=_line(client),
            action=_line(action),
            target=_line(target),
            outcome=_line(outcome),
        )

        def with_entry(items: Sequence[StoredItem]) -> Sequence[Put | Change]:
            kept = [entry, *_entries(items)][:MOST_ENTRIES]
            value = msgspec.json.encode(kept)
            return [Put(AUDIT_QUEUE, ((CHANGES_KEY, value),), delay=KEPT_APART)]

        try:
            await self._store.edit(AUDIT_QUEUE, with_entry, keys=[CHANGES_KEY])
        except LeasedKeyQError as error:
            logger.warning(
                "store %s: %s by %s could not be kept in the list of changes: %s",
                self._name,
                entry.action,
                entry.who,
                type(error).__name__,
            )
        return entry

    async def last(self, limit: int = MOST_ENTRIES) -> list[AuditEntry]:
        """The last changes, the newest first."""
        (found,) = await self._store.look(AUDIT_QUEUE, [CHANGES_KEY])
        return _entries(found)[:limit]


def _entries(items: Sequence[StoredItem]) -> list[AuditEntry]:
    for item in items:
        try:
            return msgspec.json.decode(item.value, type=list[AuditEntry])
        except UNREADABLE:
            # Another version, or another program, has written there: begin anew.
            logger.warning("the list of changes in queue %s cannot be read", AUDIT_QUEUE)
    return []


def _line(text: str) -> str:
    """Text as one bounded line: what users name their keys must not make lines of the log."""
    line = "".join(sign if sign.isprintable() else "�" for sign in text[: LONGEST_TEXT + 1])
    return line if len(line) <= LONGEST_TEXT else f"{line[:LONGEST_TEXT]}…"
