"""Producers that wait for room in a queue of a store that has a limit."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from leasedkeyq.errors import (
    QueueFullError,
    closed_while_waiting,
    keys_in_flight,
    keys_present,
)
from leasedkeyq.local.waiters import Producer, Producers
from leasedkeyq.model.requests import Answer
from leasedkeyq.stores.queue.pump import ClaimPump
from leasedkeyq.types import PutPolicy

if TYPE_CHECKING:
    from leasedkeyq.stores.store import Store

Ask: TypeAlias = Callable[[int], Awaitable[Answer]]
"""Asks the store to put something, where so many items may wait."""


class RoomLine:
    """The producers of one queue object, in line for room: first come, first served.

    As in a `LeasedKeyQueue`, no put overtakes another one of the same key, and a put waits for
    nobody if it adds nothing (its keys wait already) or is refused. What a consumer of this queue
    object waits for needs no room: it is taken at once.

    The store decides. Only the producer whose turn it is listens for changes, so that a change
    costs one request, however many wait.
    """

    def __init__(self, store: "Store", queue: str, maxsize: int, pump: ClaimPump) -> None:
        self._store = store
        self._queue = queue
        self._maxsize = maxsize
        self._pump = pump
        self._producers: Producers[str] = Producers()
        self._waiting: OrderedDict[Producer[str], None] = OrderedDict()
        """Those whom the store has told, or would tell, that the queue is full."""
        self._closed = False
        pump.on_idle = self.wake

    async def put(
        self,
        keys: Sequence[str],
        policy: PutPolicy,
        ask: Ask,
        *,
        scheduled: bool = False,
        pointless: Callable[[], Awaitable[bool]] | None = None,
    ) -> Answer:
        """Ask the store until there is room; returns its answer.

        Args:
            keys: What is put: a key as often as it has values.
            policy: What it does where a key is there.
            ask: Asks the store.
            scheduled: Whether it comes later, so that no consumer takes it at once.
            pointless: Whether the store will refuse it, room or not.

        Raises:
            QueueFullError: There are more keys than may ever wait.
            KeyAlreadyInFlightError: It was refused before its turn had come.
            KeyAlreadyPresentError: The same.
            QueueClosedError: `close` was called meanwhile; nothing was put.
        """
        loop = asyncio.get_running_loop()
        producer = Producer(keys, policy, scheduled)
        self._producers.enter(producer)
        try:
            while True:
                # Listen first, then ask: room that is made in between is not missed.
                listens = producer is next(iter(self._waiting), None)
                turn = self._pump.changed() if listens else loop.create_future()
                producer.turn = turn
                try:
                    if await self._may_ask(producer, pointless):
                        answer = await self._ask(producer, ask)
                        if not isinstance(answer, QueueFullError):
                            return answer
                        if producer.most > self._maxsize:
                            raise self._never_fits(producer.most)
                        if producer not in self._waiting:
                            self._waiting[producer] = None
                            self._check_closed()
                            continue  # and listen this time
                    elif producer.most > self._maxsize and self._is_after_others(producer):
                        raise self._never_fits(producer.most)
                    self._check_closed()
                    if not listens and producer is next(iter(self._waiting), None):
                        continue  # the one before it left while the store was looked at
                    await turn
                    self._check_closed()
                finally:
                    turn.cancel()
        finally:
            self._producers.leave(producer)
            self._waiting.pop(producer, None)
            self.wake(*keys)

    def wake(self, *keys: str) -> None:
        """Something happened with these keys, or with the room: let whose turn it is look again."""
        for key in keys:
            first = self._producers.first_for(key)
            if first is not None:
                first.wake()
        for producer in self._waiting:
            producer.wake()
            break

    def close(self) -> None:
        """Send everybody away."""
        self._closed = True
        for producer in self._producers.line:
            if producer.turn is not None and not producer.turn.done():
                producer.turn.set_exception(closed_while_waiting())

    def _check_closed(self) -> None:
        if self._closed:
            raise closed_while_waiting()

    def _is_after_others(self, producer: Producer[str]) -> bool:
        """Whether another producer waits for room, so that this one has to wait for it, too."""
        return next(iter(self._waiting), producer) is not producer

    def _never_fits(self, values: int) -> QueueFullError:
        message = f"{values} values do not fit into the queue: maxsize is {self._maxsize}"
        return QueueFullError(message, maxsize=self._maxsize)

    async def _may_ask(
        self, producer: Producer[str], pointless: Callable[[], Awaitable[bool]] | None
    ) -> bool:
        """Whether a producer need not wait for another one.

        Raises:
            KeyAlreadyInFlightError: It is refused, and need not wait for that.
            KeyAlreadyPresentError: The same.
        """
        behind = any(self._producers.first_for(key) is not producer for key in producer.keys)
        first = next(iter(self._waiting), None)
        if not behind:
            if first is None or first is producer:
                return True
            if self._pump.awaits_all(producer.keys) and not producer.scheduled:
                return True
            if pointless is not None and await pointless():
                return True
        elif producer.policy not in ("reject", "only_new"):
            return False
        if await self._adds_nothing(producer) and not behind:
            return True
        if not behind:
            self._waiting.setdefault(producer)
        return False

    async def _adds_nothing(self, producer: Producer[str]) -> bool:
        """Whether the queue does not grow by a put: it only updates, or is skipped.

        Raises:
            KeyAlreadyInFlightError: It is refused.
            KeyAlreadyPresentError: The same.
        """
        keys, policy = producer.keys, producer.policy
        if policy == "append":
            return False
        found = await self._store.look(self._queue, keys)
        states = [{item.state for item in items} for items in found]
        if policy == "reject":
            leased = [key for key, each in zip(keys, states, strict=True) if "in_flight" in each]
            if leased:
                raise keys_in_flight(tuple(leased), len(keys))
        if policy == "only_new":
            present = [key for key, each in zip(keys, states, strict=True) if each]
            if present:
                raise keys_present(tuple(present), producer.values)
        if policy == "buffer" and {"in_flight"} in states:
            return False
        return all(states)

    async def _ask(self, producer: Producer[str], ask: Ask) -> Answer:
        """Ask the store, with room for what consumers of this queue object take at once."""
        waiting = [] if producer.scheduled else self._pump.idle_for(producer.keys)
        answer = await ask(self._maxsize + len(waiting))
        if not isinstance(answer, Exception):
            for waiter in waiting:
                waiter.idle = False  # until it has asked again
        return answer
