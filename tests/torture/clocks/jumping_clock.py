"""A clock that somebody sets, forward and back."""

from random import Random
from typing import Final

SPANS: Final = (2.0, 40.0, 900.0, 7_200.0, 90_000.0, 3_000_000.0, 90_000_000.0)
"""Seconds: from two of them to three years."""


class JumpingClock:
    """Unix time that goes on by a little, and jumps when it is told to.

    Attributes:
        now: What the clock says.
        latest: The latest that it ever said. No store can know a later time.
        forward: How far it has gone forward, all in all. For no store more time has passed.
    """

    def __init__(self, dice: Random, now: float = 1_700_000_000.0) -> None:
        self.now = now
        self.latest = now
        self.forward = 0.0
        self.dice = dice

    def __call__(self) -> float:
        return self.now

    def pass_time(self) -> None:
        """Some seconds go by."""
        self.set(self.now + self.dice.choice((0.0, 0.25, 1.0, 3.0, 11.0)))

    def jump(self) -> float:
        """Somebody sets the clock; returns by how much."""
        by = self.dice.uniform(0.1, 1.0) * self.dice.choice(SPANS) * self.dice.choice((-1, 1))
        # To the microsecond, as documents have it.
        self.set(max(round(self.now + by, 6), 1_000_000.0))
        return by

    def set(self, now: float) -> None:
        self.forward += max(now - self.now, 0.0)
        self.now = now
        self.latest = max(self.latest, now)
