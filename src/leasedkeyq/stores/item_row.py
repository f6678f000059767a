"""From a row of a database to an item: SQLite and PostgreSQL show items in the same columns."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from leasedkeyq.model.holders import holder_of
from leasedkeyq.model.requests import OUTCOMES, STATES, Attempt, StoredItem, StoredState

_decode: Final = msgspec.json.Decoder(tuple[Attempt | bytes, ...]).decode
_encode: Final = msgspec.json.Encoder().encode


def read_history(raw: bytes | str | None) -> tuple[tuple[Attempt, ...], bytes | None]:
    """The past attempts in a column `history`, and the progress of the item.

    The progress is the last entry of the list, as Base64, if there is one: so it goes wherever
    the history goes, and costs nothing where there is none.
    """
    if not raw:
        return (), None
    entries: Any = _decode(raw)
    if entries and isinstance(entries[-1], bytes):
        return entries[:-1], entries[-1]
    return entries, None


def write_history(attempts: tuple[Attempt, ...], progress: bytes | None) -> bytes | None:
    """What `read_history` reads; None for nothing."""
    entries = attempts if progress is None else (*attempts, progress)
    return _encode(entries) if entries else None


def item_of_row(queue: str, row: Sequence[Any], *, reveal: bool = False) -> StoredItem:
    """The item that a row shows.

    Args:
        queue: Its queue.
        row: Its id, key, the number of its state, value, priority, attempt, put_at, place, due,
            error, history as JSON (see `read_history`), kind, leased_at, token, deadline, the
            number of its outcome, ended_at, and whether it holds its key.
        reveal: Whether its token is shown, to the work of an edit.
    """
    number, key, code, value, priority, attempt, put_at, place, due, error, history = row[:11]
    kind, leased_at, token, deadline, outcome, ended_at, holds = row[11:18]
    state: StoredState = STATES[int(code)]
    attempts, progress = read_history(history)
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
        history=attempts,
        kind=kind,
        leased_at=leased_at if state == "in_flight" else None,
        token=token if reveal and token else "",
        deadline=deadline,
        outcome=None if outcome is None else OUTCOMES[int(outcome)],
        ended_at=ended_at,
        holds=bool(holds),
        progress=progress,
        holder=holder_of(token) if token and state == "in_flight" else "",
    )
