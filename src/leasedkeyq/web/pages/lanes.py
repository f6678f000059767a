"""The lanes: their limits, what these hold back, and who runs them."""

from collections.abc import Sequence
from typing import Final

from leasedkeyq.web.screens import Action, Content, Screen
from leasedkeyq.web.visit import Visit


async def lanes(visit: Visit) -> Content:
    """All lanes."""
    glance = await visit.glance()
    return Content("Lanes", {"at": glance.at, "lanes": glance.lanes})


SCREENS: Final[Sequence[Screen]] = [Screen("/lanes", "lanes.html", lanes, nav="Lanes")]
ACTIONS: Final[Sequence[Action]] = []
