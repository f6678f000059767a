"""The last runs of schedules, found among what their lanes have kept."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from leasedkeyq.model.requests import StoredItem, StoredState
from leasedkeyq.operations.views import ScheduleView
from leasedkeyq.stores.store import Store

MOST_LOOKED_AT: Final = 500
"""Items of each queue that are looked at, the newest of them."""
MOST_RUNS: Final = 20
_STATES: Final[tuple[StoredState, ...]] = ("done", "buried", "in_flight")


class ScheduleRun(msgspec.Struct, frozen=True, kw_only=True):
    """A command that a schedule has submitted.

    Attributes:
        queue: Its queue.
        id: The number of its item.
        at: When it was submitted, as Unix time.
        state: Its state.
        failed: Whether it failed, or was given up.
        seconds: How long it took from its submission to its end; None if it has not ended, or the
            store did not note when.
    """

    queue: str
    id: int
    at: float
    state: StoredState
    failed: bool = False
    seconds: float | None = None


async def schedule_runs(
    store: Store, schedules: Iterable[ScheduleView], queues: Mapping[str, Sequence[str]]
) -> dict[str, tuple[ScheduleRun, ...]]:
    """The last runs of schedules by name, oldest first, at most 20 of each.

    A store has no index of them. They are found among the newest 500 items of each lane that are
    done, dead or in flight, so a schedule of a busy lane may show fewer than it had.

    Args:
        store: The store.
        schedules: The schedules.
        queues: The queues of each lane.
    """
    by_lane: dict[str, list[ScheduleView]] = {}
    for schedule in schedules:
        by_lane.setdefault(schedule.lane, []).append(schedule)
    found: dict[str, list[ScheduleRun]] = {}
    for lane, its_schedules in by_lane.items():
        for queue in queues.get(lane, (lane,)):
            page = await store.browse(
                queue, states=_STATES, limit=MOST_LOOKED_AT, newest_first=True
            )
            for item in page.items:
                for schedule in its_schedules:
                    if _is_of(item, schedule):
                        found.setdefault(schedule.name, []).append(_run(item))
    return {
        name: tuple(sorted(runs, key=lambda run: run.at)[-MOST_RUNS:])
        for name, runs in found.items()
    }


def _is_of(item: StoredItem, schedule: ScheduleView) -> bool:
    if item.kind != schedule.kind:
        return False
    if schedule.key:
        return item.key == schedule.key
    return item.key.startswith(f"{schedule.name}@")


def _run(item: StoredItem) -> ScheduleRun:
    ended = item.ended_at
    if item.state == "buried" and item.history:
        ended = item.history[-1].ended_at
    return ScheduleRun(
        queue=item.queue,
        id=item.id,
        at=item.put_at,
        state=item.state,
        failed=item.state == "buried" or item.outcome == "failed",
        seconds=None if ended is None else max(0.0, ended - item.put_at),
    )
