"""Which items a page is about: the fields of its address, and what they mean.

Everything that narrows a listing is in its address, so that each view of it can be linked to, and
the same fields lead from the listing to what is done to all that match.
"""

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from leasedkeyq.model.requests import OUTCOMES, STATES, ResultOutcome, StoredState
from leasedkeyq.operations.views import ItemFilter

LIMITS: Final = (25, 50, 100, 200)
DEFAULT_LIMIT: Final = 50
WAITING: Final[tuple[StoredState, ...]] = ("available", "scheduled", "in_line", "buffered")
STATE_CHOICES: Final[Mapping[str, tuple[str, tuple[StoredState, ...]]]] = {
    "": ("any", ()),
    "waiting": ("waiting, in any way", WAITING),
    "available": ("available", ("available",)),
    "scheduled": ("scheduled", ("scheduled",)),
    "in_line": ("in line", ("in_line", "buffered")),
    "in_flight": ("in flight", ("in_flight",)),
    "buried": ("dead", ("buried",)),
    "done": ("done", ("done",)),
}
"""What can be chosen as a state: the word of the address, the word of the page, the states."""
_SPAN: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|d|w)?", re.IGNORECASE)
_UNITS: Final = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800}
LONGEST_FIELD: Final = 600
MOST_DIGITS: Final = 16


class ItemQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of an address that say which items are meant.

    Attributes:
        queue: The queue or the lane.
        state: One of `STATE_CHOICES`.
        key: A whole key, or how keys begin if it ends with ``*``.
        kind: The command type, or the kind.
        error: A part of the error.
        error_group: A group of errors.
        older: Items put at least so long ago, such as ``2h``.
        newer: Items put at most so long ago.
        outcome: How an item has ended that is done.
        order: ``"new"`` for the newest first.
        limit: Items on a page.
        problems: What is wrong with the fields, by name.
    """

    queue: str = ""
    state: str = ""
    key: str = ""
    kind: str = ""
    error: str = ""
    error_group: str = ""
    older: str = ""
    newer: str = ""
    outcome: str = ""
    order: str = ""
    limit: int = DEFAULT_LIMIT
    problems: dict[str, str] = {}

    @classmethod
    def of(cls, fields: Mapping[str, str]) -> "ItemQuery":
        """Read the fields of an address or a form. What is wrong with them is in `problems`."""
        problems: dict[str, str] = {}
        text = {
            name: fields.get(name, "").strip()[:LONGEST_FIELD]
            for name in ("queue", "state", "kind", "error", "error_group", "older", "newer")
        }
        # A key may begin or end with a blank.
        key = fields.get("key", "")[:LONGEST_FIELD]
        if text["state"] not in STATE_CHOICES and text["state"] not in STATES:
            problems["state"] = f"there is no state {text['state']!r}"
            text["state"] = ""
        for name in ("older", "newer"):
            if text[name] and seconds_of(text[name]) is None:
                problems[name] = "write a span such as 90s, 15min, 2h, 3d or 1w"
        outcome = fields.get("outcome", "")
        limit = fields.get("limit", "")
        return cls(
            **text,
            key=key,
            outcome=outcome if outcome in OUTCOMES else "",
            order="new" if fields.get("order") == "new" else "",
            limit=int(limit) if limit in map(str, LIMITS) else DEFAULT_LIMIT,
            problems=problems,
        )

    @property
    def filter(self) -> ItemFilter:
        """What is asked of the store. A field that is wrong matches nothing it should not."""
        outcome: ResultOutcome | None = next((one for one in OUTCOMES if one == self.outcome), None)
        prefix = self.key.endswith("*")
        return ItemFilter(
            states=self.states,
            key="" if prefix else self.key,
            key_prefix=self.key[:-1] if prefix else "",
            kind=self.kind,
            error=self.error,
            error_group=self.error_group,
            older_than=seconds_of(self.older),
            newer_than=seconds_of(self.newer),
            outcome=outcome,
        )

    @property
    def states(self) -> tuple[StoredState, ...]:
        """The states that are meant; empty: all."""
        if self.state in STATE_CHOICES:
            return STATE_CHOICES[self.state][1]
        return tuple(state for state in STATES if state == self.state)

    @property
    def narrows(self) -> bool:
        """Whether anything but the queue is said."""
        return self.filter != ItemFilter()

    def fields(self, **changes: str) -> dict[str, str]:
        """The fields of an address that means the same, or the same with changes."""
        found = {
            "queue": self.queue,
            "state": self.state,
            "key": self.key,
            "kind": self.kind,
            "error": self.error,
            "error_group": self.error_group,
            "older": self.older,
            "newer": self.newer,
            "outcome": self.outcome,
            "order": self.order,
            "limit": "" if self.limit == DEFAULT_LIMIT else str(self.limit),
        }
        return {name: value for name, value in (found | changes).items() if value}

    @property
    def words(self) -> str:
        """Which items are meant, for people and the log of changes."""
        wanted = self.filter
        parts: list[str] = []
        if wanted.states:
            parts.append(f"state {STATE_CHOICES.get(self.state, (self.state,))[0]}")
        if wanted.key:
            parts.append(f"key {wanted.key}")
        if wanted.key_prefix:
            parts.append(f"keys that begin with {wanted.key_prefix}")
        if wanted.kind:
            parts.append(f"kind {wanted.kind}")
        if wanted.error:
            parts.append(f"errors with {wanted.error!r} in them")
        if wanted.error_group:
            parts.append(f"error {wanted.error_group}")
        if wanted.older_than is not None:
            parts.append(f"older than {self.older}")
        if wanted.newer_than is not None:
            parts.append(f"newer than {self.newer}")
        if wanted.outcome is not None:
            parts.append(f"outcome {wanted.outcome}")
        return ", ".join(parts) if parts else "all items"


class ItemStamp(msgspec.Struct, frozen=True):
    """An item as a page has shown it: what was chosen is what is changed, or it is reported.

    Attributes:
        id: The number of the item in its queue.
        state: The state that was shown.
        attempt: The number of attempts that was shown.
        queue: The queue.
    """

    id: int
    state: str
    attempt: int
    queue: str

    def __str__(self) -> str:
        """As a field of a form has it."""
        return f"{self.id}:{self.state}:{self.attempt}:{self.queue}"

    @classmethod
    def read(cls, text: str) -> "ItemStamp | None":
        """What a field of a form says; None if it says nothing of the kind."""
        number, _, rest = text.partition(":")
        state, _, rest = rest.partition(":")
        attempt, _, queue = rest.partition(":")
        digits = number.isascii() and number.isdigit() and attempt.isascii() and attempt.isdigit()
        if (
            not digits
            or len(number + attempt) > 2 * MOST_DIGITS
            or state not in STATES
            or not queue
        ):
            return None
        return cls(int(number), state, int(attempt), queue)


def seconds_of(text: str) -> float | None:
    """The seconds of a span such as ``90s``, ``15min`` or ``2h``; None if it is none."""
    match = _SPAN.fullmatch(text.strip())
    if match is None:
        return None
    return float(match[1]) * _UNITS[(match[2] or "").lower()]


def whole_number(text: str) -> int | None:
    """A whole number that a store can keep, as people type it; None if it is none."""
    text = text.strip()
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not (digits.isascii() and digits.isdigit()) or len(digits) > MOST_DIGITS:
        return None
    return int(text)
