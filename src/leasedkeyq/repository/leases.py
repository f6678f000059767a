"""Which leases a repository handed out, and to which of its threads."""

import threading
from collections import OrderedDict
from typing import Final, NamedTuple

MOST: Final = 10_000
"""How many leases are remembered, by a thread and in all. The oldest are forgotten first."""


class HeldLease(NamedTuple):
    """A lease that was handed out, maybe long ago."""

    token: str
    attempt: int


class HeldLeases:
    """The leases that one repository handed out, by the id of the item.

    A lease that was lost stays, so that whoever had it cannot settle the next one's work. A thread
    is held to its own lease; a thread that got none from here, to the last one handed out.
    """

    _lock = threading.Lock()

    def __init__(self) -> None:
        self._all: OrderedDict[str, HeldLease] = OrderedDict()
        self._own = _Own()

    @classmethod
    def after_fork(cls) -> None:
        """In a new process: whoever held the lock is gone."""
        cls._lock = threading.Lock()

    def add(self, item_id: str, lease: HeldLease) -> None:
        """Remember that this thread got a lease."""
        with self._lock:
            for leases in (self._all, self._own.leases):
                leases[item_id] = lease
                leases.move_to_end(item_id)
                if len(leases) > MOST:
                    leases.popitem(last=False)

    def get(self, item_id: str) -> HeldLease | None:
        """The lease that this thread is held to, or None."""
        with self._lock:
            return self._own.leases.get(item_id) or self._all.get(item_id)

    def drop(self, item_id: str, token: str) -> None:
        """Forget a lease that was settled."""
        with self._lock:
            for leases in (self._all, self._own.leases):
                held = leases.get(item_id)
                if held is not None and held.token == token:
                    del leases[item_id]


class _Own(threading.local):
    def __init__(self) -> None:
        self.leases: OrderedDict[str, HeldLease] = OrderedDict()
