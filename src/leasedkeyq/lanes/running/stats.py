"""The numbers of a lane and of all lanes, from what an engine has counted."""

from leasedkeyq.lanes.running.lane import Lane
from leasedkeyq.telemetry.stats import LaneStats, QueueStats


def lane_stats(
    lane: Lane, pending: int, scheduled: int, held: int, oldest: float | None
) -> LaneStats:
    """The numbers of a lane."""
    return LaneStats(
        pending=pending,
        active=lane.active,
        scheduled=scheduled,
        held=held,
        submitted=lane.submitted,
        completed=lane.completed,
        failed=lane.failed,
        retried=lane.retried,
        timed_out=lane.timed_out,
        cancelled=lane.cancelled,
        dead_lettered=lane.dead_lettered,
        oldest_age=oldest,
        paused=lane.paused,
        priority=lane.priority,
        min_concurrency=lane.config.min_concurrency,
        max_concurrency=lane.config.max_concurrency,
    )


def queue_stats(lanes: dict[str, LaneStats], dead_letters: int) -> QueueStats:
    """The numbers of all lanes."""
    return QueueStats(
        total_pending=sum(lane.pending for lane in lanes.values()),
        total_active=sum(lane.active for lane in lanes.values()),
        total_scheduled=sum(lane.scheduled for lane in lanes.values()),
        dead_letters=dead_letters,
        lanes=lanes,
    )
