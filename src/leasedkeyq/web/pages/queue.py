"""One queue."""

from collections.abc import Sequence
from typing import Final

from leasedkeyq.operations.views import QueueView
from leasedkeyq.web.screens import Action, Content, Screen
from leasedkeyq.web.visit import Visit


async def queue(visit: Visit) -> Content:
    """A queue: its counts, and where to go on from there."""
    name = visit.need("queue")
    glance = await visit.glance()
    # A queue is there as long as it holds something: an empty one is nothing to complain about.
    found = glance.queue(name) or QueueView(name=name)
    return Content(f"Queue {name}", {"at": glance.at, "queue": found})


SCREENS: Final[Sequence[Screen]] = [Screen("/queue", "queue.html", queue)]
ACTIONS: Final[Sequence[Action]] = []
