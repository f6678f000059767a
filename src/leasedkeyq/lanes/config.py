"""How a lane works: `LaneConfig`."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Literal, TypeAlias

from leasedkeyq import checks
from leasedkeyq.lanes.errors import LaneConfigError
from leasedkeyq.lanes.policies.boost import PriorityBoostConfig
from leasedkeyq.lanes.policies.key_limit import KeyLimit
from leasedkeyq.lanes.policies.rate_limit import RateLimitConfig
from leasedkeyq.lanes.policies.retry import RetryDecider, RetryPolicy
from leasedkeyq.types import Duration

NO_RETRY = RetryPolicy.none()
OnDeadLetter: TypeAlias = Literal["continue", "pause_key"]
"""What happens to the commands of a key behind one that was given up."""


@dataclass(frozen=True)
class LaneConfig:
    """The policy of a lane. Durations are seconds or `datetime.timedelta`.

    Args:
        min_concurrency: Slots of the manager's capacity that no other lane may take.
        max_concurrency: How many commands of the lane run at a time in one process, at most.
        timeout: How long a command may run before it is cancelled; None: as long as it likes.
        retry_policy: What happens after a failure: a `RetryPolicy`, or anything with its `delay`.
        global_concurrency: How many commands of the lane run at a time, at most, in all workers
            of a store together.
        rate_limit: How many commands may start in a span of time, on a store by all workers
            together.
        key_rate_limit: The same for each key.
        key_limits: Limits for the commands of some keys, on a store for all workers together.
        priority_boost: How a deadline lifts commands. Where it is None, commands that are
            submitted with a deadline of their own are lifted as `PriorityBoostConfig.standard`
            does.
        pressure_threshold: How many waiting commands are a ``queue.lane.pressure`` event.
        partitions: Into how many partitions the lane is split by the hash of the key, so that
            workers of a store can share them out; the commands of one key stay in order. In one
            process, the partitions together have the concurrency of the lane. On a store, the
            limits for all workers are divided among the partitions.
        lease_time: On a store: how long a command may be unheard of before another process
            takes it over.
        heartbeat: On a store: how often leases are renewed. A third of `lease_time` by default.
        keep_results: On a store: how long a result can be read. 0: not at all. In memory: how long
            `QueueManager.handle` knows a command that has ended.
        max_attempts: How often a command is tried at most, attempts included that died with
            their process. Then it goes to the dead letters.
        cancel_grace: How long a cancelled command may take to end before it is left to itself.
        on_dead_letter: What happens to the commands of a key behind one that was given up.
            ``"continue"``: the next one runs. ``"pause_key"``: they wait until the dead letter is
            requeued, and runs before them, or is dropped; for work whose order matters more than
            its progress.

    Raises:
        LaneConfigError: The minimum is above the maximum, a limit is lower than the number of
            partitions, or two key limits have the same pattern.
    """

    min_concurrency: int = 0
    max_concurrency: int = 1
    _: KW_ONLY
    timeout: Duration | None = None
    retry_policy: RetryDecider = NO_RETRY
    global_concurrency: int | None = None
    rate_limit: RateLimitConfig | None = None
    key_rate_limit: RateLimitConfig | None = None
    key_limits: Sequence[KeyLimit] = ()
    priority_boost: PriorityBoostConfig | None = None
    pressure_threshold: int | None = None
    partitions: int = 1
    lease_time: Duration = 30.0
    heartbeat: Duration | None = None
    keep_results: Duration = 3600.0
    max_attempts: int = 100
    cancel_grace: Duration = 5.0
    on_dead_letter: OnDeadLetter = "continue"

    def __post_init__(self) -> None:
        checks.whole("min_concurrency", self.min_concurrency, 0)
        checks.whole("max_concurrency", self.max_concurrency, 1)
        checks.whole("partitions", self.partitions, 1)
        checks.whole("max_attempts", self.max_attempts, 1)
        if self.min_concurrency > self.max_concurrency:
            raise LaneConfigError(
                f"min_concurrency is {self.min_concurrency} and max_concurrency only "
                f"{self.max_concurrency}; the minimum cannot be above the maximum"
            )
        self._check_limits()
        if self.on_dead_letter not in ("continue", "pause_key"):
            raise ValueError(
                f"on_dead_letter must be 'continue' or 'pause_key', got {self.on_dead_letter!r}"
            )
        if self.pressure_threshold is not None:
            checks.whole("pressure_threshold", self.pressure_threshold, 1)
        if not callable(getattr(self.retry_policy, "delay", None)):
            kind = type(self.retry_policy).__name__
            raise TypeError(f"retry_policy must have a method delay(attempt, error), got {kind}")
        self._take("timeout", time_limit("timeout", self.timeout))
        lease_time = checks.seconds("lease_time", self.lease_time)
        heartbeat = lease_time / 3
        if self.heartbeat is not None:
            heartbeat = checks.seconds("heartbeat", self.heartbeat)
        if not 0 < heartbeat < lease_time < float("inf"):
            raise LaneConfigError(
                f"heartbeat must be above 0 and below lease_time, which must be finite; got "
                f"{heartbeat} and {lease_time}"
            )
        self._take("lease_time", lease_time)
        self._take("heartbeat", heartbeat)
        self._take("keep_results", checks.delay_time("keep_results", self.keep_results))
        self._take("cancel_grace", checks.delay_time("cancel_grace", self.cancel_grace))

    def _check_limits(self) -> None:
        object.__setattr__(self, "key_limits", tuple(self.key_limits))
        limits = [("global_concurrency", self.global_concurrency)]
        patterns: set[str] = set()
        for limit in self.key_limits:
            if not isinstance(limit, KeyLimit):
                raise TypeError(f"key_limits are KeyLimit objects, got {type(limit).__name__}")
            if limit.pattern in patterns:
                raise LaneConfigError(f"there are two limits for the keys {limit.pattern!r}")
            patterns.add(limit.pattern)
            limits.append((f"max_concurrency of {limit.pattern!r}", limit.max_concurrency))
        for name, most in limits:
            if most is not None and checks.whole(name, most, 1) < self.partitions:
                raise LaneConfigError(
                    f"{name} is {most}, and there are {self.partitions} partitions, which need at "
                    "least 1 each"
                )

    def _take(self, name: str, value: float | None) -> None:
        object.__setattr__(self, name, value)

    def with_timeout(self, timeout: Duration | None) -> "LaneConfig":
        """The same with another `timeout`."""
        return replace(self, timeout=timeout)

    def with_retry_policy(self, policy: RetryDecider) -> "LaneConfig":
        """The same with another `retry_policy`."""
        return replace(self, retry_policy=policy)

    def with_rate_limit(
        self, limit: RateLimitConfig | None, *, per_key: RateLimitConfig | None = None
    ) -> "LaneConfig":
        """The same with another `rate_limit` and, if given, `key_rate_limit`."""
        return replace(self, rate_limit=limit, key_rate_limit=per_key or self.key_rate_limit)

    def with_global_concurrency(self, most: int | None) -> "LaneConfig":
        """The same with another `global_concurrency`."""
        return replace(self, global_concurrency=most)

    def with_key_limits(self, *limits: KeyLimit) -> "LaneConfig":
        """The same with other `key_limits`."""
        return replace(self, key_limits=limits)

    def with_priority_boost(self, boost: PriorityBoostConfig | None) -> "LaneConfig":
        """The same with another `priority_boost`."""
        return replace(self, priority_boost=boost)

    def with_pressure_threshold(self, threshold: int | None) -> "LaneConfig":
        """The same with another `pressure_threshold`."""
        return replace(self, pressure_threshold=threshold)

    def with_partitions(self, partitions: int) -> "LaneConfig":
        """The same with another number of `partitions`."""
        return replace(self, partitions=partitions)

    def with_on_dead_letter(self, what: OnDeadLetter) -> "LaneConfig":
        """The same with another `on_dead_letter`."""
        return replace(self, on_dead_letter=what)

    def with_lease(self, lease_time: Duration, heartbeat: Duration | None = None) -> "LaneConfig":
        """The same with another `lease_time` and `heartbeat`."""
        return replace(self, lease_time=lease_time, heartbeat=heartbeat)


def time_limit(name: str, value: Duration | None) -> float | None:
    """How long a command may run: more than nothing; None and infinity both mean for ever."""
    value = checks.wait_time(name, value)
    if value == 0:
        raise ValueError(f"{name} must be greater than 0; None means no time-out")
    return value
