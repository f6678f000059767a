"""The schedules: when they are due, what became of their last runs."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from starlette.responses import Response

from leasedkeyq.operations.schedules.schedule_runs import ScheduleRun, schedule_runs
from leasedkeyq.operations.views import ScheduleView
from leasedkeyq.web.charts import sparkline
from leasedkeyq.web.json_tree import json_tree
from leasedkeyq.web.screens import Action, Content, Screen
from leasedkeyq.web.visit import Visit

BACK: Final = "/schedules"


async def schedules(visit: Visit) -> Content:
    """All schedules."""
    glance = await visit.glance()
    listed = await visit.look("schedules", visit.shown.operator.schedules)
    lanes = {lane.name: lane.queues for lane in glance.lanes}
    runs: Mapping[str, Sequence[ScheduleRun]] = await visit.look(
        "schedule runs", lambda: schedule_runs(visit.shown.store, listed, lanes)
    )
    rows = [
        {
            "schedule": one,
            "runs": runs.get(one.name, ()),
            "spark": _spark(one, runs.get(one.name, ())),
            "failed": sum(run.failed for run in runs.get(one.name, ())),
            "ended": sum(run.state != "in_flight" for run in runs.get(one.name, ())),
            "tree": json_tree(one.arguments) if one.arguments not in ("", "{}") else None,
        }
        for one in listed
    ]
    data = {"at": glance.at, "schedules": listed, "runs": runs}
    return Content("Schedules", data, {"rows": rows})


def _spark(schedule: ScheduleView, runs: Sequence[ScheduleRun]) -> Any:
    """How long the last runs took."""
    if not runs:
        return ""
    failed = any(run.failed for run in runs)
    label = f"Seconds of the last runs of {schedule.name}"
    return sparkline([run.seconds for run in runs], label, "dead" if failed else "flight")


async def pause(visit: Visit) -> Response:
    """Fire no more ticks of a schedule."""
    name = visit.need("name", "form")
    operator, actor = visit.shown.operator, visit.actor
    return await visit.change(
        "pause", f"schedule {name}", lambda: operator.pause_schedule(name, actor=actor), BACK
    )


async def resume(visit: Visit) -> Response:
    """Go on with the next tick of a schedule."""
    name = visit.need("name", "form")
    operator, actor = visit.shown.operator, visit.actor
    return await visit.change(
        "resume", f"schedule {name}", lambda: operator.resume_schedule(name, actor=actor), BACK
    )


async def run(visit: Visit) -> Response:
    """Submit the command of a schedule once more, now."""
    name = visit.need("name", "form")
    operator, actor = visit.shown.operator, visit.actor
    return await visit.change(
        "run now", f"schedule {name}", lambda: operator.run_schedule(name, actor=actor), BACK
    )


SCREENS: Final[Sequence[Screen]] = [
    Screen("/schedules", "schedules.html", schedules, nav="Schedules")
]
ACTIONS: Final[Sequence[Action]] = [
    Action("/schedules/pause", pause),
    Action("/schedules/resume", resume),
    Action("/schedules/run", run),
]
