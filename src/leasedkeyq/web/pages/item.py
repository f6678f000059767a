"""One item: its value, its life, its line, and what it does right now."""

import time
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.responses import Response

from leasedkeyq.errors import LeasedKeyQError
from leasedkeyq.operations.items.timeline import timeline
from leasedkeyq.operations.views import ItemPage, ItemView
from leasedkeyq.web.bulk_actions import BULK_ACTIONS, BulkAction
from leasedkeyq.web.item_query import MOST_DIGITS, WAITING, ItemStamp
from leasedkeyq.web.json_tree import json_tree, shown_text
from leasedkeyq.web.pages.items import item_row
from leasedkeyq.web.progress_view import progress_view
from leasedkeyq.web.screens import Action, Content, Screen
from leasedkeyq.web.visit import Visit

LINE_SHOWN: Final = 20
"""Values of the line of a key that the page of an item shows."""
LIVE_STATES: Final = frozenset({"available", "scheduled", "in_flight", "in_line", "buffered"})


async def item(visit: Visit) -> Content:
    """An item, by the number in its queue, by its key, or by the id of a command."""
    found = await asked_item(visit)
    line = await _line(visit, found)
    show_all = visit.query("all") == "1"
    value = json_tree(found.raw, show_all=show_all) if found.raw else None
    result = json_tree(found.raw_result, show_all=show_all) if found.raw_result else None
    now = time.time()
    data = {
        "at": now,
        "item": found,
        "timeline": timeline(found, now),
        "line": tuple(item_row(visit, one) for one in line.items),
        "line_goes_on": line.cursor is not None,
    }
    extra: dict[str, Any] = {
        "value_tree": value,
        "result_tree": result,
        "raw": shown_text(found.raw),
        "raw_result": shown_text(found.raw_result),
        "show_all": show_all,
        "progress": progress_view(found.progress),
        "trace_link": trace_link(visit.dashboard.trace_url, found.trace_id),
        "address": {"queue": found.queue, "id": found.id},
        "hidden": visit.redaction.hides(found),
        "has_live": found.state != "done",
        "bulk_links": _bulk_links(visit, found),
        "editable": found.state in WAITING,
    }
    return Content(f"{found.key} in {found.queue}", data, extra)


async def asked_item(visit: Visit) -> ItemView:
    """The item that the address asks for.

    Raises:
        HTTPException: 404: it is not there, or not any more; 400: the address makes no sense.
    """
    operator = visit.shown.operator
    if command := visit.query("command"):
        try:
            found = await operator.find(command)
        except LeasedKeyQError as error:
            raise HTTPException(400, str(error)) from error
    else:
        queue = visit.need("queue")
        number = visit.query("id")
        if number:
            found = await operator.item(queue, item_number(number))
        else:
            found = await operator.item(queue, visit.need("key"))
    if found is None:
        raise HTTPException(
            404,
            "This item is not there any more: it was done and its result is not kept, or it was "
            "removed.",
        )
    return found


async def _line(visit: Visit, found: ItemView) -> ItemPage:
    if found.state not in LIVE_STATES and not found.holds:
        return ItemPage()
    line = await visit.shown.operator.line(found.queue, found.key, limit=LINE_SHOWN)
    return line if len(line.items) > 1 or line.cursor is not None else ItemPage()


def trace_link(template: str, trace_id: str) -> str:
    """The address of a trace; "" if there is none. A trace id is letters and digits only."""
    plain = trace_id.isascii() and trace_id.isalnum()
    return template.replace("{trace_id}", trace_id) if template and trace_id and plain else ""


def _stamp(found: ItemView) -> str:
    return str(ItemStamp(found.id, found.state, found.attempt, found.queue))


# Actions on one item


def _bulk_links(visit: Visit, found: ItemView) -> list[tuple[BulkAction, str]]:
    """What can be done to it, with the address of the page that asks first."""
    return [
        (
            action,
            visit.path("/items/confirm", action=action.name, item=_stamp(found), queue=found.queue),
        )
        for action in BULK_ACTIONS.values()
        if found.state in action.states and action.name != "priority"
    ]


async def release(visit: Visit) -> Response:
    """Take the lease of an item away from a holder that has died."""
    queue, key = visit.need("queue", "form"), visit.need("key", "form")
    operator, actor = visit.shown.operator, visit.actor
    force = visit.form("force") == "yes"
    return await visit.change(
        "release",
        f"{key} of {queue}",
        lambda: operator.release(queue, key, force=force, actor=actor),
        f"/item?{urlencode({'queue': queue, 'key': key})}",
    )


async def bury(visit: Visit) -> Response:
    """Give up an item that waits."""
    queue, number = visit.need("queue", "form"), visit.need("id", "form")
    operator, actor = visit.shown.operator, visit.actor
    return await visit.change(
        "bury",
        f"item {number} of {queue}",
        lambda: operator.bury(queue, item_number(number), actor=actor),
        f"/items?{urlencode({'queue': queue, 'state': 'buried'})}",
    )


def item_number(text: str) -> int:
    """The number of an item, as an address or a form has it.

    Raises:
        HTTPException: 400: it is none.
    """
    if not (text.isascii() and text.isdigit()) or len(text) > MOST_DIGITS:
        raise HTTPException(400, "The id of an item is a number.")
    return int(text)


SCREENS: Final[Sequence[Screen]] = [Screen("/item", "item.html", item)]
ACTIONS: Final[Sequence[Action]] = [Action("/item/release", release), Action("/item/bury", bury)]
