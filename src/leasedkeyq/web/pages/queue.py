"""One queue, or one lane with all its queues."""

from collections.abc import Sequence
from typing import Final

from leasedkeyq.operations.views import QueueView
from leasedkeyq.web.figures import RANGES
from leasedkeyq.web.screens import Action, Content, Screen
from leasedkeyq.web.visit import Visit

SUMMED: Final = ("available", "scheduled", "in_flight", "buried", "held", "done")


async def queue(visit: Visit) -> Content:
    """A queue or a lane: its counts, its limits, its history."""
    name = visit.need("queue")
    glance = await visit.glance()
    lane = glance.lane(name)
    of_lane = [glance.queue(part) or QueueView(name=part) for part in lane.queues] if lane else []
    # A queue is there as long as it holds something: an empty one is nothing to complain about.
    found = of_lane or [glance.queue(name) or QueueView(name=name)]
    counts = {field: sum(getattr(one, field) for one in found) for field in SUMMED}
    ages = [one.oldest for one in found if one.oldest is not None]
    figures = (await visit.shown.figures()).get(name)
    span, charts = await visit.shown.charts(name, visit.query("range"))
    return Content(
        f"{'Lane' if lane or figures else 'Queue'} {name}",
        {
            "at": glance.at,
            "name": name,
            "counts": {**counts, "oldest": max(ages, default=None)},
            "lane": lane,
            "partitions": of_lane,
            "figures": figures,
            "workers": lane.workers if lane else (),
        },
        {
            "charts": charts,
            "ranges": {one: words for one, (words, _, _) in RANGES.items()},
            "range": span,
            "here": visit.path("/queue", queue=name).removeprefix(visit.path("")),
        },
    )


SCREENS: Final[Sequence[Screen]] = [Screen("/queue", "queue.html", queue)]
ACTIONS: Final[Sequence[Action]] = []
