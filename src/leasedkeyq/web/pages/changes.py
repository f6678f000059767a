"""The changes that people have made by the page: the audit log."""

from collections.abc import Sequence
from typing import Final

from leasedkeyq.web.screens import Action, Content, Screen
from leasedkeyq.web.visit import Visit


async def changes(visit: Visit) -> Content:
    """The last changes, the newest first."""
    entries = await visit.look("changes", visit.shown.audit.last)
    return Content("Changes", {"changes": entries})


SCREENS: Final[Sequence[Screen]] = [Screen("/changes", "changes.html", changes, nav="Changes")]
ACTIONS: Final[Sequence[Action]] = []
