"""What is done on two stores at the same moments: puts, claims and acks at a steady rate."""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from leasedkeyq.model.requests import Ack, Answer, Claim, Claimed, Put, Release
from leasedkeyq.stores import Store

QUEUE: Final = "soak"
TICKS: Final = 8
TICK: Final = 0.25
"""Seconds. A round is so many ticks."""
KEYS: Final = 1000
BACKLOG: Final = 200
"""Values that wait when the work begins. Released values come on top of them."""
BATCH: Final = 7
"""Values that one claim takes, beside the claim of one."""
LEASE: Final = 900.0
"""Seconds. No lease ends by itself, however long the machine stands still."""
KINDS: Final = ("a claim of one", f"a claim of {BATCH}")


@dataclass
class Worked:
    """A store, what it should still have, and how long its claims took."""

    store: Store
    waiting: set[int] = field(default_factory=set[int])
    """Values that were put and not acknowledged."""
    seconds: list[dict[str, list[float]]] = field(default_factory=list[dict[str, list[float]]])
    """Of claims, by kind, for each round."""
    refused: list[str] = field(default_factory=list[str])
    """Answers that are no success, in words."""

    async def put(self, values: Sequence[tuple[str, int]]) -> None:
        items = tuple((key, str(value).encode()) for key, value in values)
        [answer] = await self.store.put([Put(QUEUE, items, "append")])
        if isinstance(answer, tuple):
            self.waiting.update(value for _, value in values)
        else:
            self.refused.append(f"a put was answered with {answer}")

    async def claim(self, limit: int, kind: str) -> list[Claimed]:
        begun = time.perf_counter()
        [claimed] = await self.store.claim([Claim(((QUEUE, limit),), limit, lease_time=LEASE)])
        self.seconds[-1][kind].append(time.perf_counter() - begun)
        return list(claimed)

    async def settle(self, claimed: Sequence[Claimed], released: Callable[[int], bool]) -> None:
        changes: list[Ack | Release] = []
        for item in claimed:
            make = Release if released(int(item.value)) else Ack
            changes.append(make(QUEUE, item.key, item.token))
        answers: Sequence[Answer] = await self.store.settle(changes)
        for item, change, answer in zip(claimed, changes, answers, strict=True):
            value = int(item.value)
            if answer is not None:
                self.refused.append(f"{change} was answered with {answer}")
            elif value not in self.waiting:
                self.refused.append(f"{item.key} {value} was handed out after it was acknowledged")
            elif isinstance(change, Ack):
                self.waiting.remove(value)


class Work:
    """The same requests to both stores, in turns."""

    def __init__(self, beside: Worked, twin: Worked) -> None:
        self.sides = (beside, twin)
        self._next = 0
        self.differences: list[str] = []
        """Where the two have handed out different values, in words."""
        self.claims = 0

    async def fill(self) -> None:
        """Put the values that wait at first."""
        values = [(f"key-{number % KEYS}", number) for number in range(BACKLOG)]
        self._next = BACKLOG
        for side in self.sides:
            await side.put(values)

    async def round(self, dice: random.Random, *, pace: float = TICK) -> None:
        """Some seconds of work."""
        for side in self.sides:
            side.seconds.append({kind: [] for kind in KINDS})
        due = time.monotonic()
        for _ in range(TICKS):
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            # After a stall the work goes on at its pace, and makes up for nothing.
            due = max(due, time.monotonic() - pace) + pace
            await self._tick(dice)
        await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def _tick(self, dice: random.Random) -> None:
        sides = list(self.sides)
        dice.shuffle(sides)
        values = [(f"key-{dice.randrange(KEYS)}", self._next + n) for n in range(1 + BATCH)]
        self._next += len(values)
        chance = dice.randrange(20)
        for side in sides:
            await side.put(values)
        claimed: dict[int, list[Claimed]] = {id(side): [] for side in sides}
        for limit, kind in zip((1, BATCH), KINDS, strict=True):
            dice.shuffle(sides)
            for side in sides:
                claimed[id(side)] += await side.claim(limit, kind)
                self.claims += 1
        for side in sides:
            # One in twenty is given back, and claimed again later.
            await side.settle(claimed[id(side)], lambda value: value % 20 == chance)
        first, second = ([int(item.value) for item in claimed[id(side)]] for side in self.sides)
        if first != second:
            self.differences.append(f"{first} beside the transaction, {second} on its twin")

    async def drain(self) -> None:
        """Acknowledge all that is left."""
        for side in self.sides:
            side.seconds.append({kind: [] for kind in KINDS})
            while claimed := await side.claim(BATCH, KINDS[1]):
                await side.settle(claimed, lambda value: False)
