"""Dead letters, grouped by what they died of."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from leasedkeyq.operations.views import ErrorGroup
from leasedkeyq.web.screens import Action, Content, Screen
from leasedkeyq.web.visit import Visit

MOST_LINKS: Final = 6
"""Queues of a group that are named; the others are counted."""


class GroupPart(msgspec.Struct, frozen=True, kw_only=True):
    """The letters of a group in one queue.

    Attributes:
        queue: The queue.
        count: How many letters.
        items: The address of their listing.
        requeue: The address of the page that asks before all of them are requeued.
        remove: The address of the page that asks before all of them are dropped.
    """

    queue: str
    count: int
    items: str
    requeue: str
    remove: str


async def dead_letters(visit: Visit) -> Content:
    """The dead letters of a queue, a lane or all queues, by their errors."""
    queue = visit.query("queue")
    found = await visit.look(
        ("error groups", queue), lambda: visit.shown.operator.error_groups(queue or None)
    )
    glance = await visit.glance()
    dead = [one for one in glance.queues if one.buried]
    rows = [{"group": group, "parts": _parts(visit, group)[:MOST_LINKS]} for group in found.groups]
    data: dict[str, Any] = {
        "at": glance.at,
        "queue": queue,
        "groups": found.groups,
        "letters": found.letters,
        "complete": found.complete,
    }
    extra = {
        "rows": rows,
        "dead_queues": dead,
        "most_links": MOST_LINKS,
    }
    return Content(f"Dead letters of {queue}" if queue else "Dead letters", data, extra)


def _parts(visit: Visit, group: ErrorGroup) -> list[GroupPart]:
    parts: list[GroupPart] = []
    for queue, count in sorted(group.queues.items(), key=lambda part: (-part[1], part[0])):
        fields = {"queue": queue, "state": "buried", "error_group": group.error}
        parts.append(
            GroupPart(
                queue=queue,
                count=count,
                items=visit.path("/items", **fields),
                requeue=visit.path("/items/confirm", action="requeue", **fields),
                remove=visit.path("/items/confirm", action="remove", **fields),
            )
        )
    return parts


SCREENS: Final[Sequence[Screen]] = [
    Screen("/dead-letters", "dead_letters.html", dead_letters, nav="Dead letters")
]
ACTIONS: Final[Sequence[Action]] = []
