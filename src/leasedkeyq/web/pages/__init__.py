"""The screens of the web page, one module for each group of them.

A module says which screens and actions it has in `SCREENS` and `ACTIONS`, and is listed here.
`entrance` is what is about no store: the login and the list of stores. Only `app.py` imports
this folder. Begin with `overview`.
"""

from collections.abc import Sequence
from typing import Final

from leasedkeyq.web.pages import (
    bulk,
    changes,
    dead_letters,
    edit_item,
    health,
    item,
    items,
    lanes,
    new_command,
    overview,
    queue,
    schedules,
    stack,
    workers,
)
from leasedkeyq.web.pages import help as help_page
from leasedkeyq.web.screens import Action, Screen

MODULES: Final = (
    overview,
    queue,
    items,
    item,
    edit_item,
    stack,
    bulk,
    dead_letters,
    lanes,
    workers,
    schedules,
    new_command,
    health,
    changes,
    help_page,
)
"""In the order of the navigation."""

SCREENS: Final[Sequence[Screen]] = [screen for module in MODULES for screen in module.SCREENS]
ACTIONS: Final[Sequence[Action]] = [action for module in MODULES for action in module.ACTIONS]
