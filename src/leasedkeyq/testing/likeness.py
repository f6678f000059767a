"""When two answers are the same, though they come from different engines.

Tokens are random: they are there or not. Of ids, fences and places only the order counts. Errors
are the same if their classes and their data are, whatever they say.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from leasedkeyq.errors import KeyAlreadyInFlightError, KeyAlreadyPresentError, QueueFullError
from leasedkeyq.model.requests import Claimed, Placed, Refusal, StoredItem

ROWS = (list, tuple)
NOT_COMPARED = frozenset({"id", "token", "fence", "place"})


class Id(int):
    """An id in an answer, which another engine may count otherwise."""

    __slots__ = ()


class Likeness:
    """Compares answers of the model with those of a store, and remembers which id is which."""

    def __init__(self, tolerance: float) -> None:
        self._tolerance = tolerance
        self._theirs: dict[int, int] = {}
        self._mine: dict[int, int] = {}

    def knows(self, number: int) -> bool:
        """Whether the store's id for an id of the model was seen."""
        return number in self._theirs

    def theirs(self, number: int) -> int:
        """The store's id for an id of the model; one that it does not know if there is none."""
        return self._theirs.get(number, 10**15 + number)

    def same(self, mine: Any, yours: Any) -> bool:
        """Whether the store has answered as the model has."""
        if type(mine) in ROWS and type(yours) in ROWS:
            return self._same_row(mine, yours)
        if isinstance(mine, Exception):
            return _data(mine) == _data(yours)
        if isinstance(mine, StoredItem | Claimed) and type(mine) is type(yours):
            known = bool(mine.token) == bool(yours.token)
            return known and self._same_id(mine.id, yours.id) and self._same_fields(mine, yours)
        if isinstance(mine, Id) and isinstance(yours, int):
            return self._same_id(mine, yours)
        if isinstance(mine, Placed) and isinstance(yours, Placed):
            return mine.outcome == yours.outcome and self._same_id(mine.id, yours.id)
        if isinstance(mine, int):
            return type(yours) is type(mine) and bool(mine == yours)
        if isinstance(mine, msgspec.Struct) and type(mine) is type(yours):
            return self._same_fields(mine, yours)
        if isinstance(mine, float) and isinstance(yours, float | int):
            return abs(mine - yours) <= self._tolerance
        return isinstance(yours, type(mine)) and bool(mine == yours)

    def _same_row(self, mine: Sequence[Any], yours: Sequence[Any]) -> bool:
        pairs = zip(mine, yours, strict=False)
        return len(mine) == len(yours) and all(self.same(one, other) for one, other in pairs)

    def _same_fields(self, mine: msgspec.Struct, yours: msgspec.Struct) -> bool:
        return all(
            self.same(getattr(mine, name), getattr(yours, name))
            for name in mine.__struct_fields__
            if name not in NOT_COMPARED
        )

    def _same_id(self, mine: int, yours: int) -> bool:
        """Whether the ids belong together; they grow in the same order."""
        if mine in self._theirs or yours in self._mine:
            return self._theirs.get(mine) == yours
        for known, other in self._theirs.items():
            if (known < mine) != (other < yours):
                return False
        self._theirs[mine] = yours
        self._mine[yours] = mine
        return True


def _data(error: object) -> tuple[Any, ...]:
    """What counts of an error."""
    if isinstance(error, KeyAlreadyInFlightError | KeyAlreadyPresentError):
        return (type(error), error.keys)
    if isinstance(error, QueueFullError):
        return (type(error), error.maxsize)
    if isinstance(error, Refusal):
        return (type(error), error.key)
    return (type(error),)


def in_order(items: Sequence[StoredItem]) -> tuple[Id, ...]:
    """The available ones of all items of a queue, as they would be handed out."""
    available = [item for item in items if item.state == "available"]
    return tuple(Id(i.id) for i in sorted(available, key=lambda i: (-i.priority, i.place)))
