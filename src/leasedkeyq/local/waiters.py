"""The waiting callers of a `LeasedKeyQueue`: consumers wait for items, producers for room.

Consumers are served first come, first served, and by handing over: the call that makes an item
available claims it for the first consumer in line. No consumer is woken in vain and no newcomer
can slip in between. Producers are woken to look again, the first in line first, and keep their
place until they are done: a producer that is cancelled has put nothing.
"""

from asyncio import Future
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

from leasedkeyq.types import PutPolicy

K = TypeVar("K")

Turn: TypeAlias = "Future[Any]"
ConsumerLine: TypeAlias = "OrderedDict[Turn, float | None]"
"""Consumers in the order of their arrival, each with the lease time that it asked for."""


class Consumers(Generic[K]):
    """Consumers that wait for any item, and consumers that wait for one key.

    A consumer whose task was cancelled stays in line until the task gets to run; its future is
    done by then, and it is passed over.
    """

    __slots__ = ("for_any", "for_key")

    def __init__(self) -> None:
        self.for_any: ConsumerLine = OrderedDict()
        self.for_key: dict[K, ConsumerLine] = {}

    def line_for(self, key: K) -> ConsumerLine:
        """The line for `key`, made when it is missing."""
        line = self.for_key.get(key)
        if line is None:
            line = self.for_key[key] = OrderedDict()
        return line

    def close_line(self, key: K) -> None:
        """Forget the line for `key` if it is empty."""
        if not self.for_key.get(key, True):
            del self.for_key[key]

    def awaits(self, key: K) -> bool:
        """Whether a `take` waits for this very key."""
        return any(not turn.done() for turn in self.for_key.get(key, ()))

    def count_for_any(self, most: int) -> int:
        """How many consumers wait for any item; counts no further than `most`."""
        count = 0
        for turn in self.for_any:
            if count == most:
                break
            count += not turn.done()
        return count

    def __iter__(self) -> Iterator[Turn]:
        """All waiting consumers."""
        yield from self.for_any
        for line in self.for_key.values():
            yield from line


class Producer(Generic[K]):
    """A put that waits for room.

    Args:
        keys: The keys of its values, each once or as often as it has values.
        policy: What it does where a key is there.
        scheduled: Whether its values come later, so that no consumer takes them at once.
        pointless: Tells whether it will be refused, room or not.

    Attributes:
        values: How many values it puts.
        need: How many places it needed when that was last counted.
    """

    __slots__ = ("keys", "need", "pointless", "policy", "scheduled", "turn", "values")

    def __init__(
        self,
        keys: Sequence[K],
        policy: PutPolicy,
        scheduled: bool,
        pointless: Callable[[], bool] | None = None,
    ) -> None:
        self.keys = tuple(dict.fromkeys(keys))
        self.values = len(keys)
        self.policy: PutPolicy = policy
        self.scheduled = scheduled
        self.pointless = pointless
        self.need = 0
        self.turn: Turn | None = None

    @property
    def most(self) -> int:
        """How many values it may add."""
        return self.values if self.policy == "append" else len(self.keys)

    def wake(self) -> None:
        """Let the producer look again whether there is room."""
        if self.turn is not None and not self.turn.done():
            self.turn.set_result(None)


class Producers(Generic[K]):
    """The producers in the order of arrival, and by key: no value of a key overtakes another."""

    __slots__ = ("by_key", "line")

    def __init__(self) -> None:
        self.line: OrderedDict[Producer[K], None] = OrderedDict()
        self.by_key: dict[K, OrderedDict[Producer[K], None]] = {}

    def enter(self, producer: Producer[K]) -> None:
        """Stand at the end of the line."""
        self.line[producer] = None
        for key in producer.keys:
            self.by_key.setdefault(key, OrderedDict())[producer] = None

    def leave(self, producer: Producer[K]) -> None:
        """Leave the line, wherever in it."""
        del self.line[producer]
        for key in producer.keys:
            waiting = self.by_key.get(key)
            if waiting is not None and waiting.pop(producer, self) is None and not waiting:
                del self.by_key[key]

    def first(self) -> Producer[K] | None:
        """The producer whose turn it is."""
        return next(iter(self.line), None)

    def first_for(self, key: K) -> Producer[K] | None:
        """The producer whose turn it is to put `key`."""
        return next(iter(self.by_key.get(key, ())), None)
