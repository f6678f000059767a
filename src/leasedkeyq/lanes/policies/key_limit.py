"""`KeyLimit`: a limit on the commands of some keys of a lane."""

from dataclasses import dataclass

from leasedkeyq import checks
from leasedkeyq.lanes.policies.rate_limit import RateLimitConfig


@dataclass(frozen=True)
class KeyLimit:
    """How many commands of some keys run at a time, or start in a span of time, all together.

    A key is matched by every limit whose pattern fits, and waits until all of them have room.
    Commands of other keys pass by.

    Args:
        pattern: Which keys: ``*`` stands for any characters, everything else for itself.
        max_concurrency: How many of their commands run at a time; None: no limit.
        rate_limit: How many of their commands start in a span of time; None: no limit.

    Raises:
        ValueError: It limits nothing, or the pattern is ``*``, which is what the lane itself has
            limits for.
    """

    pattern: str
    max_concurrency: int | None = None
    rate_limit: RateLimitConfig | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.pattern, str) or not self.pattern.strip("*"):
            raise ValueError(
                f"pattern must be for some keys, such as 'customer-*', got {self.pattern!r}; "
                "global_concurrency and rate_limit are for all keys of a lane"
            )
        if self.max_concurrency is not None:
            checks.whole("max_concurrency", self.max_concurrency, 1)
        if self.max_concurrency is None and self.rate_limit is None:
            raise ValueError(f"the limit for {self.pattern!r} limits nothing")
