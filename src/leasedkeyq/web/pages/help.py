"""Help: keys of the keyboard, words, and addresses for tools."""

from collections.abc import Sequence
from typing import Final

from leasedkeyq.web.screens import Action, Content, Screen
from leasedkeyq.web.visit import Visit


async def help_page(visit: Visit) -> Content:
    """What the page can do."""
    del visit
    return Content("Help", {})


SCREENS: Final[Sequence[Screen]] = [Screen("/help", "help.html", help_page, nav="Help")]
ACTIONS: Final[Sequence[Action]] = []
