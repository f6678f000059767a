"""The lanes: their limits, what these hold back, and who runs them."""

from collections.abc import Sequence
from typing import Final

from leasedkeyq.operations.views import WorkerLane, WorkerView
from leasedkeyq.web.screens import Action, Content, Screen
from leasedkeyq.web.visit import Visit


async def lanes(visit: Visit) -> Content:
    """All lanes."""
    glance = await visit.glance()
    runners: dict[str, list[tuple[WorkerView, WorkerLane]]] = {
        lane.name: [] for lane in glance.lanes
    }
    for worker in glance.workers:
        for part in worker.lanes:
            if worker.alive and part.lane in runners:
                runners[part.lane].append((worker, part))
    concurrency = {
        lane: [
            {"worker": worker.id, "active": part.active, "max_concurrency": part.max_concurrency}
            for worker, part in run_by
        ]
        for lane, run_by in runners.items()
    }
    return Content(
        "Lanes",
        {"at": glance.at, "lanes": glance.lanes, "concurrency": concurrency},
        {"runners": runners},
    )


SCREENS: Final[Sequence[Screen]] = [Screen("/lanes", "lanes.html", lanes, nav="Lanes")]
ACTIONS: Final[Sequence[Action]] = []
