"""How long to wait before an item that failed is tried again."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from leasedkeyq import checks
from leasedkeyq.types import Duration


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits that grow: `first`, then `factor` times as long each time, but never above `most`.

    From each wait a random part is taken off, at most the share `jitter` of it, so that items
    that failed together do not come back together. ``Backoff(0)`` does not wait.

    Args:
        first: The wait after the first failure.
        factor: How much longer the next wait is, at least 1.
        most: The longest wait.
        jitter: From 0, nothing is taken off, to 1.
        chance: Numbers from 0 to 1, for tests.
    """

    first: Duration = 1.0
    factor: float = 2.0
    most: Duration = 300.0
    jitter: float = 0.5
    chance: Callable[[], float] = random.random

    def __post_init__(self) -> None:
        checks.delay_time("first", self.first)
        checks.delay_time("most", self.most)
        if not self.factor >= 1:
            raise ValueError(f"factor must be at least 1, got {self.factor!r}")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"jitter must be from 0 to 1, got {self.jitter!r}")

    def __call__(self, failures: int) -> float:
        """The seconds to wait after an item has failed so often."""
        most = checks.seconds("most", self.most)
        try:
            grown = checks.seconds("first", self.first) * self.factor ** max(failures - 1, 0)
        except OverflowError:
            grown = most
        return min(grown, most) * (1 - self.jitter * self.chance())


DEFAULT_BACKOFF: Final = Backoff()
