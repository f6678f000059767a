"""Actions on items that were chosen, or on all that match: a question before, a report after.

The question is a page with an address of its own, which changes nothing. It shows what would be
changed, and its form names it: the items as they were shown, or the filter. What has changed since
then is not touched, and is in the report.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response

from leasedkeyq.operations.operator import Operator
from leasedkeyq.operations.views import ActionReport, ItemFilter, ItemView, MatchCount
from leasedkeyq.web.bulk_actions import (
    BULK_ACTIONS,
    BulkAction,
    counted_states,
    narrowed,
    problem_of,
)
from leasedkeyq.web.bulk_runs import PATIENCE, BulkRun, TooManyRunsError
from leasedkeyq.web.item_query import ItemQuery, ItemStamp, whole_number
from leasedkeyq.web.pages.items import ListedItem, item_row
from leasedkeyq.web.screens import Action, Content, Screen
from leasedkeyq.web.visit import Visit, report_words

MOST_CHOSEN: Final = 200
"""Items that are chosen one by one."""
SAMPLE: Final = 10
"""Items that are shown of all that match."""
MOST_FAILED: Final = 100
MOST_COUNTED: Final = 3000
"""Items that are looked at to count those that match."""


class ChosenItem(msgspec.Struct, frozen=True, kw_only=True):
    """An item that was chosen, as it is now.

    Attributes:
        stamp: As it was shown.
        row: As it is now; None if it is gone.
        problem: Why the action cannot be done to it; "" if it can.
    """

    stamp: str
    row: ListedItem | None
    problem: str = ""


async def confirm(visit: Visit) -> Content:
    """What would be done, and to how many items."""
    action = _action(visit.need("action"))
    query = ItemQuery.of(visit.request.query_params)
    given = visit.request.query_params.getlist("item")
    stamps = _stamps(given)
    if not stamps and (not query.queue or visit.query("mode") == "chosen"):
        raise HTTPException(400, "Choose items first: tick their boxes, then press the button.")
    operator = visit.shown.operator
    data: dict[str, Any] = {"action": action, "query": query}
    extra: dict[str, Any] = {"has_live": False, "priority": visit.query("priority")}
    if stamps:
        chosen = [await _chosen(visit, stamp, action) for stamp in stamps]
        data |= {
            "chosen": chosen,
            "count": sum(not one.problem for one in chosen),
            "complete": True,
        }
        return Content(f"{action.label}?", data, extra)
    wanted = narrowed(query.filter, action)
    if wanted is None or query.problems:
        data |= {"chosen": None, "count": 0, "complete": True}
        return Content(f"{action.label}?", data, extra | {"sample": []})
    counted = await _count(visit, query.queue, wanted)
    page = await operator.items(query.queue, wanted, limit=SAMPLE)
    data |= {"chosen": None, "count": counted.count, "complete": counted.complete}
    extra["sample"] = [item_row(visit, item) for item in page.items]
    return Content(f"{action.label}?", data, extra)


async def apply(visit: Visit) -> Response:
    """Do it, and tell what became of it."""
    action = _action(visit.need("action", "form"))
    priority = whole_number(visit.form("priority")) if action.name == "priority" else None
    fields = {name: visit.form(name) for name in ItemQuery.__struct_fields__}
    query = ItemQuery.of(fields)
    back = visit.back("/items")
    if action.name == "priority" and priority is None:
        return visit.answer("A priority is a whole number, such as 10 or -5.", back, good=False)
    operator = visit.shown.operator
    if given := visit.form_all("item"):
        stamps = _stamps(given)
        target = f"{len(stamps)} chosen items of {query.queue or stamps[0].queue}"
        return await visit.change(
            action.name,
            target,
            lambda: apply_to_chosen(operator, action, stamps, priority, visit.actor),
            back,
        )
    if not query.queue or query.problems:
        raise HTTPException(400, "The form does not say which items are meant.")
    wanted = narrowed(query.filter, action)
    if wanted is None:
        return visit.answer(f"None of these items can be dealt with: {action.label}.", back)
    target = f"{query.queue}: {query.words}"

    async def work(
        tell: Callable[[ActionReport], None], should_stop: Callable[[], bool]
    ) -> ActionReport:
        return await operator.bulk(
            action.name,
            query.queue,
            wanted,
            priority=priority,
            progress=tell,
            should_stop=should_stop,
            actor=visit.actor,
        )

    async def ended(run: BulkRun) -> None:
        visit.shown.poller.forget()
        outcome = report_words(run.report) if run.report else f"failed: {run.error}"
        await visit.remember(action.name, target, outcome)

    run = BulkRun(action.name, target, visit.actor)
    try:
        visit.shown.runs.start(run, work, ended)
    except TooManyRunsError as error:
        return visit.answer(str(error), back, good=False)
    if await run.wait(PATIENCE):
        if run.report is None:
            return visit.answer(f"{action.name} failed: {run.error}", back, good=False)
        return visit.answer(report_words(run.report), back, good=not run.report.failed_count)
    return visit.answer(f"{action.label}: it goes on.", f"/items/run?run={run.id}")


async def run_page(visit: Visit) -> Content:
    """How far an action on many items has come."""
    run = visit.shown.runs.get(visit.need("run"))
    if run is None:
        raise HTTPException(
            404,
            "This action is not known here any more. Changes tells what became of it.",
        )
    data = {
        "run": run.id,
        "action": run.action,
        "target": run.target,
        "who": run.who,
        "began": run.began,
        "ended": run.ended,
        "done": run.done,
        "matched": run.matched,
        "report": run.report,
        "error": run.error,
        "stopped": run.stopped,
    }
    words = report_words(run.report) if run.report else ""
    return Content(f"{run.action}: {run.target}", data, {"words": words})


async def stop_run(visit: Visit) -> Response:
    """Stop an action on many items after the step that it is at."""
    run = visit.shown.runs.get(visit.need("run", "form"))
    if run is None or run.ended is not None:
        return visit.answer("It has ended already.", "/items")
    run.stopped = True
    await visit.remember(f"stop {run.action}", run.target, "asked to stop")
    await run.wait(PATIENCE)
    return visit.answer("It stops after the step that it is at.", f"/items/run?run={run.id}")


async def apply_to_chosen(
    operator: Operator,
    action: BulkAction,
    stamps: Sequence[ItemStamp],
    priority: int | None,
    actor: str,
) -> ActionReport:
    """Do something to items, unless they have changed since they were shown."""
    seen: list[ItemView] = []
    failed: list[tuple[str, str, str]] = []
    for stamp in stamps:
        item = await operator.item(stamp.queue, stamp.id)
        problem = problem_of(stamp, item, action)
        if item is not None and not problem:
            seen.append(item)
        else:
            failed.append((stamp.queue, str(stamp.id), problem))
        await asyncio.sleep(0)  # others go on meanwhile
    report = await operator.change_seen(action.name, seen, priority=priority, actor=actor)
    return msgspec.structs.replace(
        report,
        matched=len(stamps),
        failed=(*failed, *report.failed)[:MOST_FAILED],
        failed_count=len(failed) + report.failed_count,
    )


async def _count(visit: Visit, queue: str, wanted: ItemFilter) -> MatchCount:
    """How many items match, as far as that can be told before somebody gets impatient.

    By state alone the store knows it. Otherwise some thousand items are looked at.
    """
    if wanted == ItemFilter(states=wanted.states):
        layout = await visit.shown.operator.layout()
        counts = await visit.shown.store.count(layout.queues_of(queue))
        known = [counted_states(counted, wanted.states) for counted in counts.values()]
        if None not in known:
            return MatchCount(count=sum(filter(None, known)), searched=0)
    return await visit.shown.operator.count_matching(queue, wanted, most=MOST_COUNTED)


def _action(name: str) -> BulkAction:
    if name not in BULK_ACTIONS:
        raise HTTPException(400, "There is no such action on items.")
    return BULK_ACTIONS[name]


def _stamps(given: Sequence[str]) -> list[ItemStamp]:
    if len(given) > MOST_CHOSEN:
        raise HTTPException(400, f"At most {MOST_CHOSEN} items can be chosen one by one.")
    stamps = [ItemStamp.read(text) for text in dict.fromkeys(given)]
    known = [stamp for stamp in stamps if stamp is not None]
    if len(known) < len(stamps):
        raise HTTPException(400, "The form names an item in a way that is not known here.")
    return known


async def _chosen(visit: Visit, stamp: ItemStamp, action: BulkAction) -> ChosenItem:
    item = await visit.shown.operator.item(stamp.queue, stamp.id)
    return ChosenItem(
        stamp=str(stamp),
        row=None if item is None else item_row(visit, item),
        problem=problem_of(stamp, item, action),
    )


SCREENS: Final[Sequence[Screen]] = [
    Screen("/items/confirm", "confirm.html", confirm),
    Screen("/items/run", "bulk_run.html", run_page),
]
ACTIONS: Final[Sequence[Action]] = [
    Action("/items/apply", apply),
    Action("/items/run/stop", stop_run),
]
