"""What must hold of values that were handed out, by the notes of all workers."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Final, NamedTuple

from tests.torture.order.worker import DONE, HUNG, LEASED, RELEASED

LOST: Final = "values lost"
UNORDERED: Final = "values out of order"
AGAIN: Final = "acknowledged values handed out again"
WRONG: Final = (LOST, UNORDERED, AGAIN)


class Handed(NamedTuple):
    """A lease. Fences only grow, so leases in their order are in the order of their fences."""

    fence: int
    key: str
    value: int


class Complaint(NamedTuple):
    """Something that must not be; `value` is the one it is about."""

    wrong: str
    key: str
    value: int
    words: str


class Judge:
    """Reads notes, and says what is wrong.

    Attributes:
        counted: What happened, by name.
    """

    def __init__(self, notes: Iterable[str]) -> None:
        self.counted: Counter[str] = Counter()
        self._leases: list[Handed] = []
        self._done: set[int] = set()
        for line in notes:
            match line.split():
                case [word, fence, key, value] if word == LEASED:
                    self._leases.append(Handed(int(fence), key, int(value)))
                case [word, fence] if word == DONE:
                    self._done.add(int(fence))
                case [word, _] if word in (RELEASED, HUNG):
                    self.counted[f"values {word}" if word == RELEASED else "workers hung"] += 1
                case _:
                    raise ValueError(f"a note that cannot be read: {line!r}")
        self._leases.sort()
        self.counted["leases"] = len(self._leases)
        self.counted["values handed out more than once"] = len(self._leases) - len(
            {(lease.key, lease.value) for lease in self._leases}
        )

    def complaints(self, put: Mapping[str, int]) -> Iterator[Complaint]:
        """What is wrong, if the values from 0 to below a number were put, by key, in order."""
        got: dict[str, list[Handed]] = {key: [] for key in put}
        for lease in self._leases:
            got.setdefault(lease.key, []).append(lease)
        for key, leases in got.items():
            values = [lease.value for lease in leases]
            for value in sorted(set(range(put.get(key, 0))) - set(values)):
                yield Complaint(LOST, key, value, f"value {value} of {key} was handed to nobody")
            for before, after in pairwise(values):
                if after < before:
                    words = f"{key}: value {after} was handed out after {before}"
                    yield Complaint(UNORDERED, key, after, words)
            done: set[int] = set()
            for lease in leases:
                if lease.value in done:
                    words = f"{key}: value {lease.value} was acknowledged, and leased again"
                    yield Complaint(AGAIN, key, lease.value, f"{words} as {lease.fence}")
                if lease.fence in self._done:
                    done.add(lease.value)
