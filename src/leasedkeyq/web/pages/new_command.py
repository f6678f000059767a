"""A new command, by a form that is made from the types of its arguments."""

from collections.abc import Sequence
from typing import Any, Final

from starlette.responses import Response

from leasedkeyq.errors import LeasedKeyQError
from leasedkeyq.operations.views import ActionReport, TypeView
from leasedkeyq.web.command_form import CommandForm, new_form, read_form
from leasedkeyq.web.item_query import seconds_of, whole_number
from leasedkeyq.web.screens import Action, Content, Screen
from leasedkeyq.web.visit import Visit

TERMS: Final = ("lane", "key", "priority", "delay")
"""The fields beside the arguments."""


async def new_command(visit: Visit) -> Content:
    """The types of commands to choose from, or the form of one."""
    types = await _types(visit)
    name = visit.query("type")
    chosen = next((one for one in types if one.name == name), None)
    if name and chosen is None:
        # A worker of an older version, or none yet: the arguments are written as JSON.
        chosen = TypeView(name=name)
    terms = {field: visit.query(field) for field in TERMS}
    if chosen is not None and not terms["lane"]:
        terms["lane"] = chosen.lane or ""
    form = None if chosen is None else new_form(chosen.schema, visit.query("arguments"))
    return await _content(visit, types, chosen, form=form, terms=terms, errors={})


async def submit(visit: Visit) -> Response:
    """Submit the command, or show the form again with what is wrong beside its fields."""
    types = await _types(visit)
    name = visit.need("type", "form")
    chosen = next((one for one in types if one.name == name), None) or TypeView(name=name)
    terms = {field: visit.form(field) for field in TERMS}
    errors = _check_terms(terms)
    given = {field: visit.form(field) for field in visit.form_names()}
    form = read_form(chosen.schema, given)
    if not errors and form.right:
        operator = visit.shown.operator
        target = f"{name} in lane {terms['lane']}"
        try:
            report = await operator.submit(
                terms["lane"],
                name,
                form.arguments,
                key=terms["key"] or None,
                priority=whole_number(terms["priority"]),
                delay=seconds_of(terms["delay"]),
                unchecked=chosen.schema is None,
                actor=visit.actor,
            )
        except (LeasedKeyQError, ValueError, LookupError, TypeError) as error:
            await visit.remember("submit", target, f"failed: {type(error).__name__}")
            errors["form"] = str(error)
        else:
            return await _tell(visit, report, target)
    content = await _content(visit, types, chosen, form=form, terms=terms, errors=errors)
    return visit.dashboard.render(visit, SCREENS[0], content)


async def _tell(visit: Visit, report: ActionReport, target: str) -> Response:
    await visit.remember("submit", target, "submitted")
    visit.shown.poller.forget()
    back = f"/item?command={report.command_id}" if report.command_id else "/items"
    return visit.answer("Submitted.", back)


async def _types(visit: Visit) -> Sequence[TypeView]:
    return await visit.look("types", visit.shown.operator.types)


async def _content(
    visit: Visit,
    types: Sequence[TypeView],
    chosen: TypeView | None,
    *,
    form: CommandForm | None,
    terms: dict[str, str],
    errors: dict[str, str],
) -> Content:
    glance = await visit.glance()
    lanes = [lane.name for lane in glance.lanes]
    if terms["lane"] and terms["lane"] not in lanes:
        lanes.append(terms["lane"])
    data: dict[str, Any] = {"at": glance.at, "types": types, "chosen": chosen}
    extra = {
        "form": form,
        "terms": terms,
        "errors": errors,
        "lanes": lanes,
        "has_live": False,
    }
    title = f"New command {chosen.name}" if chosen else "New command"
    return Content(title, data, extra)


def _check_terms(terms: dict[str, str]) -> dict[str, str]:
    errors: dict[str, str] = {}
    if not terms["lane"]:
        errors["lane"] = "choose a lane"
    if terms["priority"].strip() and whole_number(terms["priority"]) is None:
        errors["priority"] = "must be a whole number"
    if terms["delay"].strip() and seconds_of(terms["delay"]) is None:
        errors["delay"] = "write a span such as 90s, 15min, 2h or 3d"
    return errors


SCREENS: Final[Sequence[Screen]] = [
    Screen("/new", "new_command.html", new_command, nav="New command")
]
ACTIONS: Final[Sequence[Action]] = [Action("/new/submit", submit)]
