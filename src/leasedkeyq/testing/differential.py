"""Random requests for a store and for the model, from a seed that can be used again."""

import random
from collections.abc import Awaitable, Callable, Sequence

from leasedkeyq.stores.store import Store
from leasedkeyq.testing.clock import ManualClock
from leasedkeyq.testing.comparison import Comparison
from leasedkeyq.testing.menu import Menu
from leasedkeyq.testing.model_time import ModelTime


class Differential(Comparison):
    """Drives stores and a model by random requests.

    Args:
        stores: Several store objects on the same items take turns at random.
        time: The clock of the stores, or how else their time passes.
        seed: The same requests come from the same seed.
    """

    def __init__(self, stores: Sequence[Store], time: ManualClock | ModelTime, seed: int) -> None:
        self.seed = seed
        self._random = random.Random(seed)
        model_time = ModelTime(time) if isinstance(time, ManualClock) else time
        super().__init__(stores, model_time, self._random.choice)

    async def run(self, steps: int) -> None:
        """Make requests.

        Raises:
            AssertionError: An answer differs. The message has the seed and the last requests.
        """
        menu = Menu(self._random.choice, self.time.durations, self.queues)
        choices: list[Callable[[], Awaitable[None]]] = [
            *[lambda: self.put(menu.puts())] * 4,
            *[lambda: self.claim(menu.claims())] * 4,
            *[lambda: self.settle(menu.changes())] * 6,
            *[lambda: self.wait(menu.some_wait())] * 2,
            *[lambda: self.edit(*menu.edit())] * 2,
            lambda: self.sweep(menu.some_queues()),
            lambda: self.look(*menu.some_keys()),
            self.compare,
        ]
        try:
            for _ in range(steps):
                await self._random.choice(choices)()
            await self.compare()
        except AssertionError as error:
            raise AssertionError(f"seed={self.seed} leads to this:\n{error}") from error
