"""Rounds on servers, whose clock rules: the clocks of the clients jump, and nobody notices."""

import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from random import Random
from typing import Final

import pytest

from leasedkeyq import connect
from leasedkeyq.errors import LeasedKeyQError
from leasedkeyq.stores.store import Store
from tests.torture.clocks.jumping_clock import JumpingClock
from tests.torture.clocks.session import EARLY, LOST, STUCK, TWICE, Problem

LONG: Final = 600.0
"""A lease or a delay that does not pass during a round, by the clock of the server."""
SHORT: Final = 0.05
WAIT: Final = 60.0
"""Seconds after which a call that has to come to an end counts as stuck."""


async def play_all(
    url: str, dice: Mapping[int, Random]
) -> AsyncGenerator[tuple[int, "SkewedClients"]]:
    """A round for each seed, all on the same connections."""
    with pytest.MonkeyPatch.context() as patch:
        clock = JumpingClock(Random(1), time.time())
        patch.setattr(time, "time", clock)
        stores = [connect(url), connect(url)]
        try:
            for seed, own in dice.items():
                clock.dice = own
                clients = SkewedClients(f"round-{seed}", own, clock)
                await clients.play(stores)
                yield seed, clients
        finally:
            for store in stores:
                await store.close()


class SkewedClients:
    """Two clients of one server, each with a clock of its own that jumps."""

    def __init__(self, queue: str, dice: Random, clock: JumpingClock) -> None:
        self._queue = queue
        self._dice = dice
        self._clock = clock
        self.problems: list[Problem] = []
        self.calls = 0
        self.jumps = 0

    async def play(self, stores: Sequence[Store]) -> None:
        try:
            await self._play(stores)
        except LeasedKeyQError as error:
            self.problems.append(Problem(TWICE, f"a call was refused: {error!r}"))
        except TimeoutError:
            self.problems.append(Problem(STUCK, f"a call waited for {WAIT:.0f} s"))

    def _jump(self) -> None:
        """As if the next call came from a machine with another clock."""
        self._clock.jump()
        self.jumps += 1
        self.calls += 1

    async def _play(self, stores: Sequence[Store]) -> None:
        dice = self._dice
        one, other = (store.queue(self._queue) for store in stores)
        count = dice.randint(2, 4)
        self._jump()
        for number in range(count):
            await one.put(f"now-{number}", number)
        await one.put("later", 0, delay=LONG)
        await one.put("soon", 0, delay=SHORT)
        self._jump()
        leases = {}
        for _ in range(count):
            key, _, lease = await other.get(timeout=WAIT, lease_timeout=LONG)
            leases[key] = lease
        # The one that is due in a moment comes in a moment, for a caller that waits.
        self._jump()
        while "soon" not in leases:
            key, _, lease = await one.get(timeout=WAIT, lease_timeout=LONG)
            leases[key] = lease
        if "later" in leases:
            self.problems.append(Problem(EARLY, "a delay of ten minutes was over at once"))
        self._jump()
        if await one.available_keys() - {"later"}:
            self.problems.append(Problem(TWICE, "a lease of ten minutes was over at once"))
        # A lease that ends in a moment ends, and its item comes to another client.
        await other.put("short", 1)
        self._jump()
        await other.take("short", timeout=WAIT, lease_timeout=SHORT)
        self._jump()
        _, _, again = await one.take("short", timeout=WAIT, lease_timeout=LONG)
        await one.ack(again)
        for key, lease in leases.items():
            self._jump()
            queue = other if dice.random() < 0.5 else one
            await queue.extend(lease, LONG)
            self._jump()
            await queue.ack(lease)
            if await queue.contains(key):
                self.problems.append(Problem(TWICE, f"{key} is there after its ack"))
        if not await one.remove("later"):
            self.problems.append(Problem(LOST, "what is due later is gone"))
