"""Which leases a repository handed out, and to which of its threads."""

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

MOST: Final = 10_000
"""How many leases are remembered, by a thread and in all. The oldest are forgotten first."""


@dataclass(slots=True)
class HeldLease:
    """A lease that was handed out, maybe long ago.

    Attributes:
        settled: Whether a thread of the repository has settled it. If another thread has cancelled
            or removed the item, it has not: it is lost.
    """

    token: str
    attempt: int
    settled: bool = False


class KnownGroups:
    """The groups of items that one repository has enqueued or handed out, by id.

    It tells where to look first. What it does not know is looked for.
    """

    def __init__(self) -> None:
        self._groups: OrderedDict[str, str] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, item_id: str, group: str | None) -> None:
        """Remember the group of an item; None: it has none."""
        with self._lock:
            self._groups.pop(item_id, None)
            if group is not None:
                self._groups[item_id] = group
                if len(self._groups) > MOST:
                    self._groups.popitem(last=False)

    def get(self, item_id: str) -> str | None:
        """The group in which an item was, or None."""
        return self._groups.get(item_id)


class HeldLeases:
    """The leases that one repository handed out, by the id of the item.

    A lost lease stays, so that its worker cannot settle the work of the next one. A thread
    is held to its own lease; a thread that got none from here, to the last one handed out.
    """

    _lock = threading.Lock()

    def __init__(self) -> None:
        self._all: OrderedDict[str, HeldLease] = OrderedDict()
        self._own = _OwnLeases()

    @classmethod
    def after_fork(cls) -> None:
        """In a new process: the thread that held the lock is gone."""
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

    def own(self, item_id: str) -> HeldLease | None:
        """The lease that this thread itself was handed, or None."""
        with self._lock:
            return self._own.leases.get(item_id)

    def drop(self, item_id: str, token: str, *, revoked: bool = False) -> None:
        """Forget a lease that was settled, or `revoked` by a thread that need not have had it."""
        with self._lock:
            own = self._own.leases
            for leases in (self._all, own):
                held = leases.get(item_id)
                if held is not None and held.token == token:
                    held.settled = leases is own or not revoked
                    del leases[item_id]


class _OwnLeases(threading.local):
    def __init__(self) -> None:
        self.leases: OrderedDict[str, HeldLease] = OrderedDict()
