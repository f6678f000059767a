"""The overview: all queues and lanes of a store, and how they fare."""

from collections.abc import Sequence
from typing import Final

from leasedkeyq.web.screens import Action, Content, Screen
from leasedkeyq.web.visit import Visit


async def overview(visit: Visit) -> Content:
    """All queues and lanes."""
    glance = await visit.glance()
    return Content(
        "Overview",
        {
            "at": glance.at,
            "totals": glance.totals,
            "queues": glance.queues,
            "lanes": glance.lanes,
        },
    )


SCREENS: Final[Sequence[Screen]] = [Screen("/", "overview.html", overview, nav="Overview")]
ACTIONS: Final[Sequence[Action]] = []
