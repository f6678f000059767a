"""What an `Urgency` means, for engines in Python: who of several queues is next."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heapify, heappop, heapreplace
from typing import Any, Protocol, TypeAlias, TypeVar

from leasedkeyq.model.requests import Urgency

T = TypeVar("T")
Rank: TypeAlias = tuple[bool, int, float, int]
"""The lower, the more urgent: in time, effective priority, when it was put, and its id."""


def levels(steps: Sequence[tuple[float, int]], put_at: float, due: float, now: float) -> int | None:
    """How many levels an item is up that should be leased by `due`; None: that is past."""
    remaining = due - now
    total = due - put_at
    if remaining <= 0 or total <= 0:
        return None
    share = remaining / total
    return max((up for step, up in steps if share <= step), default=0)


def rank(urgency: Urgency, put_at: float, due: float | None, number: int, now: float) -> Rank:
    """The rank of an item that was put at `put_at`, has the deadline `due` and the id `number`."""
    priority = urgency.priority
    if due is None and urgency.deadline is not None:
        due = put_at + urgency.deadline
    if due is None or not urgency.lifts:
        return True, priority, put_at, number
    up = levels(urgency.steps, put_at, due, now)
    return up is not None, priority - (up or 0), put_at, number


def goes_before(nearest: Rank, first: Rank) -> bool:
    """Whether the item with the nearest deadline goes before the first one of its queue."""
    return nearest[:2] < first[:2]


class Room(Protocol):
    """What the caps of a claim leave room for; see `leasedkeyq.model.caps.Rooms`."""

    closed: bool
    """Nothing at all has room any more."""

    def fits(self, key: str) -> bool:
        """Whether a key has room."""
        ...

    def take(self, key: str) -> None:
        """Take room for the lease of a key that fits."""
        ...


def in_line(
    first: Iterable[T],
    nearest: Iterable[T],
    ranked: Callable[[T], Rank],
    limit: int,
    room: tuple[Room, Callable[[T], str]] | None = None,
) -> Iterator[tuple[Rank, T]]:
    """The items of one queue in the order in which a claim leases them, and their ranks.

    Args:
        first: What the claim asks for, by priority and place.
        nearest: Those of them that have a deadline of their own, the nearest first.
        ranked: The rank of an item.
        limit: How many there are at most.
        room: What its caps leave room for, and the key of an item. An item takes its room when
            the next one is asked for.
    """
    taken: set[int] = set()

    def fits(found: tuple[Rank, T] | None) -> bool:
        if found is None or found[0][3] in taken:
            return False
        return room is None or room[0].fits(room[1](found[1]))

    def next_of(line: Iterator[T]) -> tuple[Rank, T] | None:
        for item in line:
            found = ranked(item), item
            if fits(found):
                return found
            if room is not None and room[0].closed:
                break
        return None

    lines = iter(first), iter(nearest)
    heads: list[tuple[Rank, T] | None] = [None, None]
    for _ in range(limit):
        # What has no room now has none later on in this claim, either.
        heads = [
            head if fits(head) else next_of(line) for head, line in zip(heads, lines, strict=True)
        ]
        head, near = heads
        if head is None:
            return
        chosen = near if near is not None and goes_before(near[0], head[0]) else head
        yield chosen
        taken.add(chosen[0][3])
        if room is not None:
            room[0].take(room[1](chosen[1]))


def most_urgent_first(lines: Sequence[Iterator[tuple[Rank, T]]], limit: int) -> Iterator[T]:
    """Up to `limit` items, each from the line whose first one has the lowest rank.

    A line is asked for its next item when the one before is about to be taken, and not earlier.
    """
    heads: list[Any] = []
    for number, line in enumerate(lines):
        for position, item in line:
            heads.append((position, number, item))
            break
    heapify(heads)
    for _ in range(limit):
        if not heads:
            return
        first: tuple[Rank, int, T] = heads[0]
        for position, following in lines[first[1]]:
            heapreplace(heads, (position, first[1], following))
            break
        else:
            heappop(heads)
        yield first[2]
