"""The lanes: their limits, what these hold back, and who runs them."""

from collections.abc import Sequence
from typing import Final

from starlette.responses import Response

from leasedkeyq.operations.views import ActionReport, WorkerLane, WorkerView
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


async def pause(visit: Visit) -> Response:
    """No command of a lane begins from now on, in any worker."""
    lane = visit.need("lane", "form")
    operator = visit.shown.operator

    async def do() -> ActionReport:
        return await operator.pause(lane, actor=visit.actor)

    return await visit.change("pause", f"lane {lane}", do, visit.back("/lanes"))


async def resume(visit: Visit) -> Response:
    """Commands of a lane begin again."""
    lane = visit.need("lane", "form")
    operator = visit.shown.operator

    async def do() -> ActionReport:
        return await operator.resume(lane, actor=visit.actor)

    return await visit.change("resume", f"lane {lane}", do, visit.back("/lanes"))


SCREENS: Final[Sequence[Screen]] = [Screen("/lanes", "lanes.html", lanes, nav="Lanes")]
ACTIONS: Final[Sequence[Action]] = [
    Action("/lanes/pause", pause),
    Action("/lanes/resume", resume),
]
