"""The overview: all queues and lanes of a store, and how they fare."""

from collections.abc import Sequence
from typing import Final

import msgspec

from leasedkeyq.operations.views import LaneView, QueueView
from leasedkeyq.web.figures import RANGES, LaneFigures, lane_spark
from leasedkeyq.web.screens import Action, Content, Screen
from leasedkeyq.web.visit import Visit

ORDERS: Final = {
    "name": "Name",
    "waiting": "Waiting",
    "dead": "Dead",
    "oldest": "Oldest",
    "rate": "Done",
}

MOST_ROWS: Final = 1000
"""Queues and lanes on the page; JSON has them all."""


class OverviewRow(msgspec.Struct, frozen=True, kw_only=True):
    """A lane, or a queue that is none of a lane.

    Attributes:
        name: Its name.
        lane: Whether it is a lane.
        partitions: How many queues it has.
        paused: Whether it is paused.
        workers: How many workers run it.
        available: How many wait. So with the others.
        oldest: For how many seconds the next has been there.
        figures: What its workers did in the last hour; None if they told nothing.
    """

    name: str
    lane: bool
    partitions: int = 1
    paused: bool = False
    workers: int = 0
    available: int = 0
    scheduled: int = 0
    in_flight: int = 0
    buried: int = 0
    held: int = 0
    done: int = 0
    oldest: float | None = None
    figures: LaneFigures | None = None


async def overview(visit: Visit) -> Content:
    """All queues and lanes."""
    glance = await visit.glance()
    figures = await visit.shown.figures()
    rows = _rows(glance.lanes, glance.queues, figures)
    find = visit.query("find").strip()
    rows = [row for row in rows if find.casefold() in row.name.casefold()]
    order = visit.query("order")
    if order in ORDERS and order != "name":
        rows.sort(key=lambda row: _rank(row, order), reverse=True)
    span, charts = await visit.shown.charts(None, visit.query("range"))
    return Content(
        "Overview",
        {
            "at": glance.at,
            "totals": glance.totals,
            "workers": sum(worker.alive for worker in glance.workers),
            "rows": rows if visit.wants_json else rows[:MOST_ROWS],
        },
        {
            "charts": charts,
            "ranges": {name: words for name, (words, _, _) in RANGES.items()},
            "range": span,
            "find": find,
            "mixed": any(not row.lane for row in rows),
            "left_out": max(0, len(rows) - MOST_ROWS),
            "order": order if order in ORDERS else "name",
            "spark": lane_spark,
        },
    )


def _rows(
    lanes: Sequence[LaneView], queues: Sequence[QueueView], figures: dict[str, LaneFigures]
) -> list[OverviewRow]:
    rows = [
        OverviewRow(
            name=lane.name,
            lane=True,
            partitions=len(lane.queues),
            paused=lane.paused,
            workers=len(lane.workers),
            available=lane.available,
            scheduled=lane.scheduled,
            in_flight=lane.in_flight,
            buried=lane.buried,
            held=lane.held,
            oldest=lane.oldest,
            figures=figures.get(lane.name),
        )
        for lane in lanes
    ]
    of_lanes = {queue for lane in lanes for queue in lane.queues}
    rows += [
        OverviewRow(
            name=queue.name,
            lane=False,
            paused=queue.paused,
            available=queue.available,
            scheduled=queue.scheduled,
            in_flight=queue.in_flight,
            buried=queue.buried,
            held=queue.held,
            done=queue.done,
            oldest=queue.oldest,
            figures=figures.get(queue.name),
        )
        for queue in queues
        if queue.name not in of_lanes
    ]
    return rows


def _rank(row: OverviewRow, order: str) -> float:
    match order:
        case "waiting":
            return row.available
        case "dead":
            return row.buried
        case "oldest":
            return row.oldest or 0.0
        case _:
            return row.figures.totals.completed if row.figures else 0


SCREENS: Final[Sequence[Screen]] = [Screen("/", "overview.html", overview, nav="Overview")]
ACTIONS: Final[Sequence[Action]] = []
