"""What a queue of commands looks like at one moment."""

from collections.abc import Mapping

import msgspec


class LaneStats(msgspec.Struct, frozen=True, kw_only=True):
    """One lane: what is in it now, and what this manager has done with it since it started."""

    pending: int = 0
    """Commands that could start, if there were a slot."""
    active: int = 0
    """Commands that run."""
    scheduled: int = 0
    """Commands that wait for their time: delayed, or waiting for a retry."""
    held: int = 0
    """Commands that wait behind a dead letter of their key."""
    submitted: int = 0
    """Commands that were submitted."""
    completed: int = 0
    """Commands that ended well."""
    failed: int = 0
    """Commands that were given up after their last attempt, be it by an error or a time-out."""
    retried: int = 0
    """Attempts that failed and were followed by another."""
    timed_out: int = 0
    """Attempts that ran out of time, whatever followed."""
    cancelled: int = 0
    """Commands that were cancelled."""
    dead_lettered: int = 0
    """Commands that went to the dead letters."""
    oldest_age: float | None = None
    """Seconds that the oldest pending command has waited, or None if none is pending."""
    paused: bool = False
    """Whether the lane starts nothing at present."""
    priority: int = 0
    """The priority of the lane; lower goes first."""
    min_concurrency: int = 0
    """Slots that no other lane may take."""
    max_concurrency: int = 1
    """How many commands may run at a time."""


class QueueStats(msgspec.Struct, frozen=True, kw_only=True):
    """All lanes: the totals, and each one by its name."""

    total_pending: int = 0
    """Commands that could start, if there were a slot."""
    total_active: int = 0
    """Commands that run."""
    total_scheduled: int = 0
    """Commands that wait for their time: delayed, or waiting for a retry."""
    dead_letters: int = 0
    """Letters in the dead letter queue."""
    lanes: Mapping[str, LaneStats] = {}
    """The lanes by name."""
