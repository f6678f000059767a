"""What a command does right now: its worker is asked where it is."""

from collections.abc import Sequence
from typing import Any, Final

from starlette.exceptions import HTTPException

from leasedkeyq.errors import LeasedKeyQError, StoreError
from leasedkeyq.operations.views import StackView
from leasedkeyq.web.pages.item import asked_item
from leasedkeyq.web.screens import Action, Content, Screen
from leasedkeyq.web.visit import Visit

PATIENCE: Final = 5.0
"""Seconds to wait for the worker."""


async def stack(visit: Visit) -> Content:
    """The stack of a running command, as its worker tells it. Pages that ask share the answer."""
    found = await asked_item(visit)
    if not found.command_id:
        raise HTTPException(400, "Only a command that a worker runs can be asked.")
    problem = ""
    told: StackView | None = None
    if found.state != "in_flight":
        problem = "It does not run now."
    else:
        operator = visit.shown.operator
        try:
            told = await visit.look(
                ("stack", found.command_id), lambda: operator.stack(found.command_id, PATIENCE)
            )
        except StoreError:
            raise
        except (TimeoutError, LeasedKeyQError) as error:
            problem = str(error)
    data: dict[str, Any] = {"item": found, "stack": told, "problem": problem}
    return Content(f"{found.key} right now", data, {"has_live": False})


SCREENS: Final[Sequence[Screen]] = [Screen("/item/stack", "stack.html", stack)]
ACTIONS: Final[Sequence[Action]] = []
