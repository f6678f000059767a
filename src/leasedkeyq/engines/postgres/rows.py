"""Rows of the PostgreSQL store as items."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from leasedkeyq.model.requests import (
    OUTCOMES,
    Attempt,
    StoredItem,
    StoredState,
)

STATES: Final[tuple[StoredState, ...]] = (
    "available",
    "scheduled",
    "in_flight",
    "buffered",
    "buried",
    "done",
)
"""By their numbers in the server."""
EVERY_STATE: Final = list(range(len(STATES)))
NO_LIMIT: Final = 2**62

_decode_history = msgspec.json.Decoder(tuple[Attempt, ...]).decode


def shown(queue: str, row: Sequence[Any], *, reveal: bool = False) -> StoredItem:
    """An item out of a row of ``list_1``."""
    number, key, code, value, priority, attempt, put_at, place, due, error, history = row[:11]
    kind, leased_at, token, deadline, outcome = row[11:16]
    state: StoredState = STATES[int(code)]
    return StoredItem(
        id=number,
        queue=queue,
        key=key,
        state=state,
        value=value,
        priority=priority,
        attempt=attempt,
        put_at=put_at,
        place=place if state == "available" else 0,
        due=due if state != "available" else None,
        error=error,
        history=_decode_history(history) if history else (),
        kind=kind,
        leased_at=leased_at if state == "in_flight" else None,
        token=token if reveal and token else "",
        deadline=deadline,
        outcome=None if outcome is None else OUTCOMES[int(outcome)],
    )
