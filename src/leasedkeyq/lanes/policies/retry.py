"""When a command that failed is tried again, and when it is given up."""

import random as randomness
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from leasedkeyq import checks
from leasedkeyq.types import Duration

INITIAL_DELAY = 1.0
MAX_DELAY = 60.0
MULTIPLIER = 2.0


class RetryDecider(Protocol):
    """Decides about retries. Any object with this method can stand in for a `RetryPolicy`."""

    def delay(self, attempt: int, error: BaseException) -> Duration | None:
        """How long to wait after the `attempt`-th attempt (from 1) failed with `error`.

        Seconds or a `datetime.timedelta`. None gives the command up. So does an exception, which
        is logged: a decider that fails must not keep a command for ever.
        """
        ...


@dataclass(frozen=True, init=False)
class RetryPolicy:
    """Retries a limited number of times, with delays that grow.

    The n-th retry waits ``initial_delay * multiplier ** (n - 1)`` seconds, and never longer than
    `max_delay`. A policy is immutable; the ``with_...`` methods return changed copies.

    Args:
        max_retries: How often a command is tried again; it runs at most once more than that.
        initial_delay: The delay before the first retry.
        max_delay: The longest delay.
        multiplier: The factor from one delay to the next, 1 or more.
        jitter: Which share of a delay is random, from 0 (none) to 1 (all of it). With 0.5 a
            command waits between half of the delay and all of it. Commands that failed together
            then do not come back together.
        retry_if: Asked with the exception of the command; False gives up at once.
        random: Returns a number from 0 to 1, for the jitter.
    """

    max_retries: int
    initial_delay: float
    max_delay: float
    multiplier: float
    jitter: float
    retry_if: Callable[[BaseException], bool] | None
    random: Callable[[], float]

    def __init__(
        self,
        *,
        max_retries: int,
        initial_delay: Duration = INITIAL_DELAY,
        max_delay: Duration = MAX_DELAY,
        multiplier: float = MULTIPLIER,
        jitter: float = 0.0,
        retry_if: Callable[[BaseException], bool] | None = None,
        random: Callable[[], float] = randomness.random,
    ) -> None:
        for name, function in (("retry_if", retry_if), ("random", random)):
            if function is not None and not callable(function):
                raise TypeError(f"{name} must be callable, got {type(function).__name__}")
        put = object.__setattr__
        put(self, "max_retries", checks.whole("max_retries", max_retries, 0))
        put(self, "initial_delay", checks.delay_time("initial_delay", initial_delay))
        put(self, "max_delay", checks.delay_time("max_delay", max_delay))
        put(self, "multiplier", checks.number("multiplier", multiplier, least=1))
        put(self, "jitter", checks.number("jitter", jitter, least=0, most=1))
        put(self, "retry_if", retry_if)
        put(self, "random", random)

    @classmethod
    def exponential(cls, max_retries: int) -> "RetryPolicy":
        """Delays of 1, 2, 4, 8, ... seconds, 60 at most."""
        return cls(max_retries=max_retries)

    @classmethod
    def fixed(cls, max_retries: int, delay: Duration) -> "RetryPolicy":
        """The same delay every time, however long."""
        wait = checks.delay_time("delay", delay)
        return cls(
            max_retries=max_retries,
            initial_delay=wait,
            max_delay=max(wait, MAX_DELAY),
            multiplier=1.0,
        )

    @classmethod
    def none(cls) -> "RetryPolicy":
        """No retries: the first failure is the last."""
        return cls(max_retries=0)

    def with_initial_delay(self, delay: Duration) -> "RetryPolicy":
        """A copy with another delay before the first retry."""
        return replace(self, initial_delay=checks.delay_time("initial_delay", delay))

    def with_max_delay(self, delay: Duration) -> "RetryPolicy":
        """A copy with another longest delay."""
        return replace(self, max_delay=checks.delay_time("max_delay", delay))

    def with_multiplier(self, multiplier: float) -> "RetryPolicy":
        """A copy with another factor from one delay to the next."""
        return replace(self, multiplier=multiplier)

    def with_jitter(self, jitter: float) -> "RetryPolicy":
        """A copy in which this share of a delay, from 0 to 1, is random."""
        return replace(self, jitter=jitter)

    def with_predicate(self, retry_if: Callable[[BaseException], bool] | None) -> "RetryPolicy":
        """A copy that retries only the exceptions for which `retry_if` is true."""
        return replace(self, retry_if=retry_if)

    def delay(self, attempt: int, error: BaseException) -> float | None:
        """How many seconds to wait after the `attempt`-th attempt (from 1) failed with `error`.

        None: give up. What `retry_if` raises is raised.
        """
        checks.whole("attempt", attempt, 1)
        if attempt > self.max_retries or (self.retry_if and not self.retry_if(error)):
            return None
        try:
            wait = min(self.initial_delay * self.multiplier ** (attempt - 1), self.max_delay)
        except OverflowError:
            wait = self.max_delay if self.initial_delay else 0.0
        return wait - wait * self.jitter * self.random() if self.jitter else wait
