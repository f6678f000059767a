"""Things by lane and command type, and names of queues: not too many of them."""

from collections.abc import Callable
from typing import Generic, TypeVar

from leasedkeyq import checks

T = TypeVar("T")

OTHER = "(other)"
"""The command type that stands for all those beyond the limit."""


class Series(Generic[T]):
    """A thing for each pair of lane and command type, made when it is first asked for.

    Lanes are few, but command types may come from outside. Beyond `most` pairs, all further
    types of a lane share one thing, whose type is ``"(other)"``.
    """

    __slots__ = ("_make", "_most", "things")

    def __init__(self, make: Callable[[str, str], T], most: int) -> None:
        self._make = make
        self._most = checks.whole("most", most, 1)
        self.things: dict[tuple[str, str], T] = {}

    def get(self, lane: str, kind: str) -> T:
        """The thing of this pair."""
        thing = self.things.get((lane, kind))
        return self._new(lane, kind) if thing is None else thing

    def _new(self, lane: str, kind: str) -> T:
        if len(self.things) >= self._most:
            kind = OTHER
        pair = (lane, kind)
        if pair not in self.things:
            self.things[pair] = self._make(lane, kind)
        return self.things[pair]


class KnownNames:
    """Names of queues that are told apart; those beyond `most` are all called ``"(other)"``."""

    __slots__ = ("_most", "_names")

    def __init__(self, most: int) -> None:
        self._most = checks.whole("most", most, 1)
        self._names: set[str] = set()

    def known(self, name: str) -> str:
        """The name to count by."""
        if name not in self._names:
            if len(self._names) >= self._most:
                return OTHER
            self._names.add(name)
        return name
