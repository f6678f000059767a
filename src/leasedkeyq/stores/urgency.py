"""What an `Urgency` means, for engines in Python: who of several queues is next."""

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heapreplace
from typing import Any, TypeAlias, TypeVar

from leasedkeyq.stores.contract import Urgency

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
    if due is None or (urgency.deadline is None and not urgency.steps):
        return True, priority, put_at, number
    up = levels(urgency.steps, put_at, due, now)
    return up is not None, priority - (up or 0), put_at, number


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
