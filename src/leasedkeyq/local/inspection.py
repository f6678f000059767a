"""The methods of a `LeasedKeyQueue` that only look."""

from typing import TypeVar

from leasedkeyq import checks
from leasedkeyq.local.mechanics import QueueMechanics
from leasedkeyq.types import BuriedItem, ItemSnapshot

K = TypeVar("K")
V = TypeVar("V")


class QueueLooking(QueueMechanics[K, V]):
    """Looking changes nothing, and works on a closed queue too."""

    async def peek(self, key: K) -> V | None:
        """The value that waits under `key`, be it available or buffered; None otherwise."""
        checks.hashable(key)
        self._look()
        item = self._state.items.get(key)
        if item is None:
            return None
        if item.buffered is not None:
            return item.buffered.value
        return item.value if item.available else None

    async def contains(self, key: K) -> bool:
        """Whether a value waits under `key`, be it available or buffered."""
        checks.hashable(key)
        self._look()
        item = self._state.items.get(key)
        return item is not None and (item.available or item.buffered is not None)

    async def available_keys(self) -> set[K]:
        """The keys with a value that waits, be it available or buffered."""
        self._look()
        items = self._state.items.values()
        return {i.key for i in items if i.available or i.buffered is not None}

    async def scheduled_keys(self) -> set[K]:
        """The keys whose items wait for their time."""
        self._look()
        return {i.key for i in self._state.items.values() if i.next is None and i.lease is None}

    async def inflight_keys(self) -> set[K]:
        """The keys that are leased."""
        self._look()
        return set(self._state.in_flight)

    async def qsize(self) -> int:
        """How many values wait to be handed out; buffered ones count, scheduled ones do not."""
        self._look()
        return self._state.available

    async def scheduled_size(self) -> int:
        """How many items wait for their time."""
        self._look()
        return self._state.scheduled

    async def inflight_size(self) -> int:
        """How many items are leased."""
        self._look()
        return len(self._state.in_flight)

    async def buried(self) -> list[BuriedItem[K, V]]:
        """The items that were given up, oldest first."""
        self._look()
        return list(self._state.buried.values())

    async def snapshot(self) -> list[ItemSnapshot[K, V]]:
        """All live items: the available in order, the scheduled by time, the leased by age."""
        self._look()
        return list(self._state.snapshot())
