"""Schedules on a memory store whose clock jumps, in virtual time: each tick fires once."""

import asyncio
from collections import Counter
from random import Random

from leasedkeyq import MemoryStore
from leasedkeyq.lanes import LaneConfig, QueueManager, QueueManagerBuilder, current_command
from leasedkeyq.testing import VirtualTimeLoop
from tests.torture.clocks.jumping_clock import JumpingClock
from tests.torture.clocks.session import LOST, TWICE, Problem

EVERY = 10.0
STEPS = 15
PATIENCE = 300.0
"""Seconds in which a worker has noticed that the clock is another, by the way of its polls."""


class TickingWorkers:
    """Two workers with one schedule, on one store."""

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        self._clock = JumpingClock(dice)
        self._ticks: Counter[str] = Counter()
        self.problems: list[Problem] = []
        self.jumps = 0

    def play(self) -> None:
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            runner.run(self._play())

    def _now(self) -> float:
        """The clock goes on with the loop, and jumps on top of that."""
        return self._clock.now + asyncio.get_running_loop().time()

    def _manager(self, store: MemoryStore) -> QueueManager:
        builder = QueueManagerBuilder(clock=self._now).with_storage(store)
        manager = builder.with_lane("reports", LaneConfig(0, 8), 0).build()

        @manager.command("report")
        async def report() -> None:
            self._ticks[current_command().key] += 1

        manager.schedule("often", report(), every=EVERY, lane="reports")
        return manager

    async def _play(self) -> None:
        store = MemoryStore(clock=self._now)
        async with self._manager(store), self._manager(store):
            for _ in range(STEPS):
                await asyncio.sleep(self._dice.choice((1.0, 7.0, 30.0)))
                if self._dice.random() < 0.3:
                    self._clock.jump()
                    self.jumps += 1
            # The clock is right again, and was never later: the schedule goes on.
            self._clock.set(self._clock.latest)
            await asyncio.sleep(PATIENCE)
            before = self._ticks.total()
            await asyncio.sleep(10 * EVERY)
            after = self._ticks.total()
        if after - before < 9:
            self.problems.append(Problem(LOST, f"{after - before} of 10 ticks in the end"))
        if twice := [key for key, count in self._ticks.items() if count > 1]:
            self.problems.append(Problem(TWICE, f"ticks ran more than once: {twice}"))
