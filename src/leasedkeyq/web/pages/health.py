"""The health of a store."""

from collections.abc import Sequence
from typing import Final

from leasedkeyq.web.screens import Action, Content, Screen
from leasedkeyq.web.visit import Visit


async def health(visit: Visit) -> Content:
    """How the store answers."""
    glance = await visit.glance()
    capabilities = visit.shown.store.capabilities
    return Content("Health", {"at": glance.at, "took": glance.took, "capabilities": capabilities})


SCREENS: Final[Sequence[Screen]] = [Screen("/health", "health.html", health, nav="Health")]
ACTIONS: Final[Sequence[Action]] = []
