"""The items of a queue: a listing with filters, of which every view has an address."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from leasedkeyq.operations.views import ItemPage, ItemView
from leasedkeyq.web.bulk_actions import BULK_ACTIONS, narrowed
from leasedkeyq.web.item_query import LIMITS, STATE_CHOICES, ItemQuery, ItemStamp
from leasedkeyq.web.json_tree import shown_text
from leasedkeyq.web.screens import Action, Content, Screen
from leasedkeyq.web.visit import Visit

PREVIEW: Final = 120
"""Characters of a value in a listing."""
LONGEST_PREVIEWED: Final = 100_000
"""Characters of a value that the JSON of a listing has; the page of the item has all."""


class ListedItem(msgspec.Struct, frozen=True, kw_only=True):
    """An item in a listing.

    Attributes:
        item: The item. What is large of its value is left out.
        preview: The beginning of its value.
        error: The first line of its error.
        stamp: How a form names it.
        address: Where it is shown.
    """

    item: ItemView
    preview: str
    error: str
    stamp: str
    address: str


async def items(visit: Visit) -> Content:
    """A page of the items of a queue that match; without a queue, the queues to choose from."""
    query = ItemQuery.of(visit.request.query_params)
    glance = await visit.glance()
    queues = [queue.name for queue in glance.queues]
    lanes = [lane.name for lane in glance.lanes if lane.name not in queues]
    extra: dict[str, Any] = {
        "states": {name: label for name, (label, _) in STATE_CHOICES.items()},
        "limits": LIMITS,
        "lanes": lanes,
        "queues": glance.queues,
        "has_live": False,
        "problem": "",
        "actions": BULK_ACTIONS.values(),
        "matching": [one for one in BULK_ACTIONS.values() if narrowed(query.filter, one)],
    }
    if not query.queue:
        data = {"query": query, "rows": (), "cursor": None, "searched": 0, "at": glance.at}
        return Content("Items", data, extra)
    found = ItemPage()
    try:
        found = await visit.shown.operator.items(
            query.queue,
            query.filter,
            cursor=visit.query("cursor") or None,
            limit=query.limit,
            newest_first=query.order == "new",
        )
    except ValueError:
        # A cursor of another listing: somebody has changed the address by hand.
        extra["problem"] = "This page of the listing does not exist. Begin with the first one."
    rows = tuple(item_row(visit, item) for item in found.items)
    data = {
        "query": query,
        "rows": rows,
        "cursor": found.cursor,
        "searched": found.searched,
        "at": glance.at,
    }
    return Content(f"Items of {query.queue}", data, extra)


def item_row(visit: Visit, item: ItemView) -> ListedItem:
    """An item as a listing shows it."""
    text = item.raw_result if item.state == "done" and item.raw_result else item.raw
    preview = shown_text(text[:PREVIEW])
    if len(item.raw) > LONGEST_PREVIEWED:
        item = msgspec.structs.replace(item, raw="", value=None)
    if len(item.raw_result) > LONGEST_PREVIEWED:
        item = msgspec.structs.replace(item, raw_result="", result=None)
    return ListedItem(
        item=item,
        preview=preview if len(text) <= PREVIEW else f"{preview}…",
        error=item.error.partition("\n")[0],
        stamp=str(ItemStamp(item.id, item.state, item.attempt, item.queue)),
        address=visit.path("/item", queue=item.queue, id=item.id),
    )


SCREENS: Final[Sequence[Screen]] = [Screen("/items", "items.html", items, nav="Items")]
ACTIONS: Final[Sequence[Action]] = []
