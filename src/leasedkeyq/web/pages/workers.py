"""The workers: who lives, and what they run."""

from collections.abc import Sequence
from typing import Final

from leasedkeyq.web.screens import Action, Content, Screen
from leasedkeyq.web.visit import Visit


async def workers(visit: Visit) -> Content:
    """All workers."""
    glance = await visit.glance()
    return Content("Workers", {"at": glance.at, "workers": glance.workers})


SCREENS: Final[Sequence[Screen]] = [Screen("/workers", "workers.html", workers, nav="Workers")]
ACTIONS: Final[Sequence[Action]] = []
