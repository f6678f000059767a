"""The values that wait behind the head of a key."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Any, Final, Generic, TypeVar

V = TypeVar("V")

SMALL: Final = 32
"""Places of values that are gone are left alone as long as they are so few."""


class LineValue(Generic[V]):
    """A value that waits behind the head of its key.

    One that `replaces` is a buffered value: it takes the place of a head whose lease ends before
    it is done. Only the first value behind a leased head is such a one.
    """

    __slots__ = ("not_before", "number", "priority", "replaces", "value")

    def __init__(
        self,
        number: int,
        value: V,
        priority: int,
        not_before: float | None,
        *,
        replaces: bool = False,
    ) -> None:
        self.number = number
        self.value = value
        self.priority = priority
        self.not_before = not_before
        self.replaces = replaces


class Line(Generic[V]):
    """Values in the order of their numbers, oldest first.

    Adding to the end and taking the first cost the same however many there are, finding one by its
    number costs the logarithm of that. It is a list, as it costs the least memory for a value.
    """

    __slots__ = ("_count", "_places", "_start")

    def __init__(self) -> None:
        self._places: list[LineValue[V] | int] = []
        """Values, or numbers of values that are gone; neither the first nor the last is gone."""
        self._start = 0
        """Where the first value is; what is before it is gone."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[LineValue[V]]:
        return self._from(self._start)

    def __contains__(self, number: int) -> bool:
        return self.get(number) is not None

    @property
    def first(self) -> LineValue[V]:
        """The oldest value; there must be one."""
        first: LineValue[V] = self._at(self._start)
        return first

    @property
    def last(self) -> LineValue[V]:
        """The newest value; there must be one."""
        last: LineValue[V] = self._at(-1)
        return last

    def get(self, number: int) -> LineValue[V] | None:
        """The value of that number, if it is here."""
        at = self._find(number)
        found = self._places[at] if at < len(self._places) else number
        return found if isinstance(found, LineValue) and found.number == number else None

    def behind(self, number: int) -> Iterator[LineValue[V]]:
        """The values whose numbers are above that one. Nothing may change until it is exhausted."""
        return self._from(bisect_right(self._places, number, self._start, key=_number_of))

    def add(self, value: LineValue[V]) -> None:
        """Add a value, whose number is new and as a rule above all others."""
        if not self._count or self.last.number < value.number:
            self._places.append(value)
        else:
            self._places.insert(self._find(value.number), value)
        self._count += 1

    def take_first(self) -> LineValue[V]:
        """Take the oldest value out; there must be one."""
        first = self.first
        self._forget(self._start)
        return first

    def take(self, number: int) -> LineValue[V] | None:
        """Take the value of that number out, if it is here."""
        value = self.get(number)
        if value is not None:
            self._forget(self._find(number))
        return value

    def _at(self, place: int) -> Any:
        return self._places[place]

    def _find(self, number: int) -> int:
        """The place of that number, or where it would be."""
        places, start = self._places, self._start
        if start < len(places):
            # Where all values go to one key, their numbers have no gaps.
            likely = start + number - self.first.number
            if start <= likely < len(places) and _number_of(places[likely]) == number:
                return likely
        return bisect_left(places, number, start, key=_number_of)

    def _from(self, at: int) -> Iterator[LineValue[V]]:
        places = self._places
        for place in range(at, len(places)):
            value = places[place]
            if isinstance(value, LineValue):
                yield value

    def _forget(self, at: int) -> None:
        """The value at that place is gone."""
        places = self._places
        places[at] = _number_of(places[at])
        self._count -= 1
        while places and isinstance(places[-1], int):
            places.pop()
        while self._start < len(places) and isinstance(places[self._start], int):
            self._start += 1
        if len(places) > 2 * self._count + SMALL:
            self._places = list(self)
            self._start = 0
        elif not places:
            self._start = 0


def _number_of(place: Any) -> int:
    number: int = place if isinstance(place, int) else place.number
    return number
