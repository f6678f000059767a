"""Priority boost: a command whose deadline nears goes up."""

import sys
from dataclasses import dataclass, replace

from leasedkeyq import checks
from leasedkeyq.model.urgency import levels
from leasedkeyq.types import Duration

HIGHEST = sys.maxsize
"""The boost of a command whose deadline has passed: above every lane."""


@dataclass(frozen=True, init=False)
class PriorityBoostConfig:
    """How many levels a command goes up, by the share of its deadline that remains.

    Of the steps that a command has reached, the highest counts. Past the deadline it is above
    everything. Commands that are submitted with a deadline of their own are measured by that.

    Levels count between lanes that share a capacity: a lane has the levels of the command that is
    next in it. They also count within a lane: of the commands with a deadline of their own, the one
    whose deadline is the nearest goes before the first of the lane, if it is up more levels, or is
    past its deadline while the first one is not. The deadline of the lane is the same for all its
    commands, so it lifts none of them above another.

    Args:
        deadline: How long after its submission a command should have been started. None: only
            commands with a deadline of their own are boosted, if there are steps.
        steps: Pairs of the share of the deadline that remains, above 0 and at most 1, and the
            levels up from there on.
    """

    deadline: float | None
    steps: tuple[tuple[float, int], ...]

    def __init__(
        self, deadline: Duration | None = None, steps: tuple[tuple[float, int], ...] = ()
    ) -> None:
        limit = None if deadline is None else checks.delay_time("deadline", deadline)
        if limit == 0:
            raise ValueError("deadline must be greater than 0; None means that there is none")
        checked = {
            checks.number("remaining", remaining, above=0, most=1): checks.whole("levels", up, 0)
            for remaining, up in steps
        }
        object.__setattr__(self, "deadline", limit)
        object.__setattr__(self, "steps", tuple(sorted(checked.items(), reverse=True)))

    @classmethod
    def standard(cls, deadline: Duration | None) -> "PriorityBoostConfig":
        """1, 2, 3 and 4 levels up when 75, 50, 25 and 10 % of the deadline remain."""
        return cls(deadline, ((0.75, 1), (0.5, 2), (0.25, 3), (0.1, 4)))

    @classmethod
    def aggressive(cls, deadline: Duration | None) -> "PriorityBoostConfig":
        """2, 4, 6 and 8 levels up when 80, 60, 40 and 20 % of the deadline remain."""
        return cls(deadline, ((0.8, 2), (0.6, 4), (0.4, 6), (0.2, 8)))

    @classmethod
    def disabled(cls) -> "PriorityBoostConfig":
        """No boost, whatever deadline a command has."""
        return cls()

    @property
    def enabled(self) -> bool:
        """Whether a command can be boosted at all."""
        return self.deadline is not None or bool(self.steps)

    def with_boost(self, remaining: float, levels: int) -> "PriorityBoostConfig":
        """A copy with one more step; it replaces a step at the same share."""
        return replace(self, steps=(*self.steps, (remaining, levels)))

    def levels(self, submitted_at: float, deadline: float | None, now: float) -> int:
        """How many levels a command is up now.

        Args:
            submitted_at: When the command was submitted.
            deadline: The moment by which it should have been started, on the same clock. None: the
                deadline of this configuration after `submitted_at`.
            now: The time.
        """
        if not self.enabled:
            return 0
        if deadline is None:
            if self.deadline is None:
                return 0
            deadline = submitted_at + self.deadline
        up = levels(self.steps, submitted_at, deadline, now)
        return HIGHEST if up is None else up
