"""A lane at work: its partitions, its slots, its counters."""

from sys import maxsize
from typing import Any, cast
from zlib import crc32

from leasedkeyq.lanes.config import LaneConfig
from leasedkeyq.lanes.policies.boost import PriorityBoostConfig
from leasedkeyq.lanes.running.job import Job
from leasedkeyq.lanes.running.rate_limiter import KeyRateLimiter, RateLimiter
from leasedkeyq.model.deadlines import Deadlines
from leasedkeyq.model.requests import Cap, Limits, Urgency
from leasedkeyq.model.state import QueueState

DEFAULT_BOOST = PriorityBoostConfig.standard(None)


class Partition:
    """A queue of a lane, scheduled by itself: the whole lane, or one of its partitions.

    Attributes:
        queue: The name of its queue.
        active: How many of its commands run.
        state: Its commands in memory.
        owned: Whether this process runs its commands.
        deadlines: Those of its commands in memory that wait and have a deadline of their own.
        caps: What all workers of a store are held to.
        scope: Part of the ids of commands in memory: those of another manager are not known here.
        urgency: How its commands are compared with those of others.
    """

    __slots__ = (
        "active",
        "caps",
        "deadlines",
        "index",
        "lane",
        "owned",
        "queue",
        "scope",
        "state",
        "urgency",
    )

    def __init__(self, lane: "Lane", index: int, queue: str) -> None:
        self.lane = lane
        self.index = index
        self.queue = queue
        self.active = 0
        self.state: QueueState[str, Job] = QueueState(max_buried=maxsize)  # letters are counted
        self.deadlines: Deadlines[str, Job] = Deadlines()
        self.owned = True
        self.scope = ""
        self.caps: tuple[Cap, ...] = ()
        self.urgency = Urgency()


class Lane:
    """A lane, its configuration ready for use, and what it has counted.

    `CommandQueue.lane` returns it. Look at it; what changes it is the business of the scheduler.

    Attributes:
        id: Its name.
        config: Its policy.
        priority: Its place among the lanes: lower goes first.
        index: Which lane it is, in the order in which they were added.
        partitions: Its partitions: one, or as many as its configuration says.
        boost: How deadlines lift its commands.
        timeout: How long a command may run, in seconds, or None.
        lease_time: As `LaneConfig.lease_time`, in seconds.
        heartbeat: As `LaneConfig.heartbeat`, in seconds.
        keep_results: As `LaneConfig.keep_results`, in seconds.
        cancel_grace: As `LaneConfig.cancel_grace`, in seconds.
        rate_limiter: The tokens of its rate limit in memory, or None.
        key_rate_limiter: Those of each key, or None.
        paused: Whether its commands are held back.
        pressed: Whether its ``queue.lane.pressure`` has been told, and it is not idle yet.
        submitted: How many commands this process has submitted to it.
        completed: How many were done here.
        failed: How many were given up here.
        retried: How often one was tried again.
        timed_out: How often one ran too long.
        cancelled: How many were cancelled.
        dead_lettered: How many went to the dead letters.
        shared: Whether the workers of a store share out its partitions among them.
        limits: How much its store takes.
        told: Whether one of its commands has told how far it has come. Threads set it.
        limited: Whether there are limits beyond its slots.
        linked: Whether it has several partitions. They share its slots, so one waits for another.
        active: How many of its commands run here, in all its partitions.
        most: How many may run here.
        reserved: How many slots of the manager are kept for it, as long as any partition runs here.
    """

    __slots__ = (
        "active",
        "boost",
        "cancel_grace",
        "cancelled",
        "completed",
        "config",
        "dead_lettered",
        "failed",
        "heartbeat",
        "id",
        "index",
        "keep_results",
        "key_rate_limiter",
        "lease_time",
        "limited",
        "limits",
        "linked",
        "most",
        "partitions",
        "paused",
        "pressed",
        "priority",
        "rate_limiter",
        "reserved",
        "retried",
        "shared",
        "submitted",
        "timed_out",
        "timeout",
        "told",
    )

    def __init__(self, id: str, index: int, config: LaneConfig, priority: int) -> None:  # noqa: A002
        self.id = id
        self.index = index
        self.config = config
        self.priority = priority
        number = config.partitions
        self.partitions = [
            Partition(self, part, id if number == 1 else f"{id}#{part}") for part in range(number)
        ]
        self.timeout = cast("float | None", config.timeout)
        self.lease_time = cast("float", config.lease_time)
        self.heartbeat = cast("float", config.heartbeat)
        self.keep_results = cast("float", config.keep_results)
        self.cancel_grace = cast("float", config.cancel_grace)
        self.boost = config.priority_boost or DEFAULT_BOOST
        self.rate_limiter = limited(config.rate_limit, RateLimiter)
        self.key_rate_limiter = limited(config.key_rate_limit, KeyRateLimiter)
        together = config.global_concurrency is not None or bool(config.key_limits)
        alone = self.rate_limiter is None and self.key_rate_limiter is None
        self.limited = together or not alone
        self.linked = number > 1
        self.active = 0
        self.most = config.max_concurrency
        self.reserved = config.min_concurrency
        self.paused = False
        self.shared = False
        self.pressed = False
        self.told = False
        self.limits = Limits()
        self.submitted = 0
        self.completed = 0
        self.failed = 0
        self.retried = 0
        self.timed_out = 0
        self.cancelled = 0
        self.dead_lettered = 0

    def partition_of(self, key: str) -> Partition:
        """The partition of the lane that a key belongs to, in every process alike."""
        partitions = self.partitions
        if len(partitions) == 1:
            return partitions[0]
        return partitions[crc32(key.encode("utf-8", "surrogatepass")) % len(partitions)]

    @property
    def runs_here(self) -> bool:
        """Whether this process runs any of its commands."""
        return any(partition.owned for partition in self.partitions)


def limited(config: Any, kind: Any) -> Any:
    """A rate limiter, or None where there is no limit."""
    return None if config is None or config.rate is None else kind(config)


class Slots:
    """The slots of a manager: its capacity, with those kept free for the minima of lanes.

    Attributes:
        capacity: How many commands may run at a time, or None.
        active: How many run.
        reserved: How many slots are kept for lanes that run less than their minimum.
    """

    __slots__ = ("active", "capacity", "reserved")

    def __init__(self, capacity: int | None) -> None:
        self.capacity = capacity
        self.active = 0
        self.reserved = 0

    def add(self, lane: Lane) -> None:
        """Keep the minimum of `lane` free for it, if any of its partitions runs here."""
        lane.reserved = lane.config.min_concurrency if lane.runs_here else 0
        self.reserved += lane.reserved

    def own(self, partition: Partition, owned: bool) -> None:
        """Run the commands of `partition` in this process from now on, or no longer."""
        lane = partition.lane
        self.reserved -= max(0, lane.reserved - lane.active)
        partition.owned = owned
        lane.reserved = lane.config.min_concurrency if lane.runs_here else 0
        self.reserved += max(0, lane.reserved - lane.active)

    def may_start(self, partition: Partition, coming: int = 0) -> bool:
        """Whether one more command of `partition` may run, beside `coming` others of its lane."""
        lane = partition.lane
        active = lane.active
        if active + coming >= lane.most:
            return False
        capacity = self.capacity
        return capacity is None or active < lane.reserved or self.active + self.reserved < capacity

    def take(self, partition: Partition) -> None:
        """One more command of `partition` runs."""
        lane = partition.lane
        self.active += 1
        if lane.active < lane.reserved:
            self.reserved -= 1
        lane.active += 1
        partition.active += 1

    def give(self, partition: Partition) -> None:
        """One less runs."""
        lane = partition.lane
        self.active -= 1
        lane.active -= 1
        partition.active -= 1
        if lane.active < lane.reserved:
            self.reserved += 1

    def spare(self) -> int | None:
        """How many may start beyond the minima of their lanes, or None for any number."""
        return None if self.capacity is None else self.capacity - self.active - self.reserved
