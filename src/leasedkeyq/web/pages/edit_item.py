"""Changing an item that waits: its value, its priority, its time."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.responses import Response

from leasedkeyq.errors import LeasedKeyQError
from leasedkeyq.operations.items.exact_json import (
    NotJsonError,
    plain,
    read_exact,
    readable_exact,
    write_exact,
)
from leasedkeyq.operations.items.schema_check import check_value
from leasedkeyq.operations.views import ItemView, TypeView
from leasedkeyq.web.item_query import WAITING, seconds_of, whole_number
from leasedkeyq.web.json_tree import shown_text
from leasedkeyq.web.pages.item import asked_item, item_number
from leasedkeyq.web.screens import Action, Content, Screen
from leasedkeyq.web.visit import Visit, report_words

NOW: Final = frozenset({"0", "now"})


async def edit_form(visit: Visit) -> Content:
    """The form, with what the item is now."""
    found = await asked_item(visit)
    typed = {"value": readable_exact(found.raw), "priority": str(found.priority), "due": ""}
    return await _content(visit, found, typed, {})


async def save(visit: Visit) -> Response:
    """Change the item, or show the form again with what is wrong beside its fields."""
    queue, number = visit.need("queue", "form"), item_number(visit.need("id", "form"))
    operator = visit.shown.operator
    found = await operator.item(queue, number)
    if found is None:
        raise HTTPException(404, "This item is not there any more. Nothing was changed.")
    typed = {
        "value": visit.form("value").replace("\r\n", "\n"),
        "priority": visit.form("priority").strip(),
        "due": visit.form("due").strip(),
    }
    errors: dict[str, str] = {}
    if found.state not in WAITING:
        errors["form"] = "The item does not wait any more. Nothing was changed."
    elif visit.form("digest") != digest(found):
        errors["form"] = (
            "The item was changed by somebody else while you were editing it. Nothing was changed: "
            "compare your text with what it is now, and save again."
        )
    hidden = visit.redaction.hides(found)
    value = None if hidden else await _new_value(visit, found, typed["value"], errors)
    priority = whole_number(typed["priority"])
    if priority is None:
        errors["priority"] = "must be a whole number"
    delay = 0.0 if typed["due"] in NOW else seconds_of(typed["due"])
    if typed["due"] and delay is None:
        errors["due"] = "write a span such as 90s, 15min, 2h or 3d, or now"
    if priority == found.priority:
        priority = None
    changed = {"value": value, "priority": priority, "delay": delay}
    if errors:
        return await _again(visit, found, typed, errors)
    back = f"/item?{urlencode({'queue': found.queue, 'id': found.id})}"
    if all(new is None for new in changed.values()):
        return visit.answer("Nothing was changed.", back)
    names = ", ".join(name for name, new in changed.items() if new is not None)
    target = f"item {number} of {queue}: {names}"
    try:
        report = await operator.edit(
            found.queue,
            found.id,
            value=value,
            priority=priority,
            delay=delay,
            expected=None if value is None else found.raw,
            actor=visit.actor,
        )
    except (LeasedKeyQError, ValueError) as error:
        await visit.remember("edit", target, f"failed: {type(error).__name__}")
        return await _again(visit, found, typed, {"form": str(error)})
    visit.shown.poller.forget()
    await visit.remember("edit", target, report_words(report))
    if not report.done:
        reason = report.failed[0][2] if report.failed else "it is gone"
        return await _again(visit, found, typed, {"form": f"Nothing was changed: {reason}."})
    return visit.answer("Saved.", back)


def digest(item: ItemView) -> str:
    """What tells whether somebody else has changed an item meanwhile.

    It says nothing of the value that could be guessed from it but to those who may see the value.
    """
    facts = f"{item.id}\n{item.attempt}\n{item.priority}\n{item.due}\n{item.raw}"
    return hashlib.sha256(facts.encode("utf-8", "surrogatepass")).hexdigest()[:32]


async def _new_value(
    visit: Visit, found: ItemView, text: str, errors: dict[str, str]
) -> str | None:
    """What was typed, if it differs from what is stored."""
    if text == shown_text(readable_exact(found.raw)):
        return None
    try:
        exact = read_exact(text)
    except NotJsonError as error:
        errors["value"] = str(error)
        return None
    kind = await _type(visit, found)
    if kind is not None and kind.schema is not None:
        problems = check_value(plain(exact), kind.schema)
        if problems:
            errors["value"] = "; ".join(map(str, problems))
    return write_exact(exact)


async def _type(visit: Visit, found: ItemView) -> TypeView | None:
    if not found.command_id:
        return None
    types: Sequence[TypeView] = await visit.look("types", visit.shown.operator.types)
    return next((one for one in types if one.name == found.kind), None)


async def _content(
    visit: Visit, found: ItemView, typed: Mapping[str, str], errors: Mapping[str, str]
) -> Content:
    kind = await _type(visit, found)
    data = {"item": found, "type": kind}
    extra: dict[str, Any] = {
        "typed": {name: shown_text(text) for name, text in typed.items()},
        "errors": errors,
        "digest": digest(found),
        "hidden": visit.redaction.hides(found),
        "waits": found.state in WAITING,
        "current": shown_text(readable_exact(found.raw)),
        "has_live": False,
    }
    return Content(f"Edit {found.key}", data, extra)


async def _again(
    visit: Visit, found: ItemView, typed: Mapping[str, str], errors: Mapping[str, str]
) -> Response:
    return visit.dashboard.render(visit, SCREENS[0], await _content(visit, found, typed, errors))


SCREENS: Final[Sequence[Screen]] = [Screen("/item/edit", "edit_item.html", edit_form)]
ACTIONS: Final[Sequence[Action]] = [Action("/item/edit/save", save)]
