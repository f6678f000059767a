"""Actions on items that were chosen, and on all that match."""

import asyncio
import html
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from leasedkeyq.model.requests import Counts
from leasedkeyq.operations.views import ActionReport
from leasedkeyq.web.bulk_actions import counted_states
from leasedkeyq.web.bulk_runs import MOST_AT_A_TIME, MOST_KEPT, BulkRun, BulkRuns, TooManyRunsError
from tests.web.browsers import VIEWER
from tests.web.shops import Shop, in_real_time, shop


async def stamps(place: Shop, query: str = "queue=mail") -> dict[str, str]:
    """The stamps of the items in a listing, by key."""
    told = await place.data(f"/items?{query}")
    return {row["item"]["key"]: row["stamp"] for row in told["rows"]}


def fields_of(page: str) -> dict[str, Any]:
    """What the form of a page that asks would send."""
    form = page[page.index("/items/apply") :]
    form = form[: form.index("</form>")]
    fields: dict[str, Any] = {}
    for name, value in re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)"', form):
        fields.setdefault(name, []).append(html.unescape(value))
    fields.pop("form_token")
    return fields


async def ask(place: Shop, action: str, *chosen: str, query: str = "queue=mail") -> str:
    """The page that asks."""
    parameters = [*(("item", stamp) for stamp in chosen), ("action", action)]
    told = urlencode(parameters)
    return await place.get(f"/items/confirm?{query}&{told}")


@in_real_time
async def test_chosen_items_are_removed_after_a_question(tmp_path: Path) -> None:
    async with shop(tmp_path) as place:
        for number in range(5):
            await place.submit("ann", f"order-{number}")
        listed = await stamps(place)
        page = await ask(place, "remove", listed["order-1"], listed["order-3"])
        assert "Remove 2 items of mail?" in page
        assert "order-1" in page
        assert "order-2" not in page
        assert len(await place.queue("mail")) == 5  # a question changes nothing
        told = await place.post("/items/apply", fields_of(page))
        assert "remove: 2 done" in told
        left = [item.key for item in await place.queue("mail")]
        assert left == ["order-0", "order-2", "order-4"]
        assert "2 chosen items of mail" in await place.get("/changes")


@in_real_time
async def test_what_has_changed_since_the_question_is_left_and_reported(tmp_path: Path) -> None:
    async with shop(tmp_path) as place:
        await place.fail("order-1", "order-2", "order-3")
        await place.manager.close()
        listed = await stamps(place)
        page = await ask(place, "requeue", *listed.values())
        assert "Requeue 3 items" in page
        # Meanwhile somebody requeues one, and drops another.
        other = await ask(place, "requeue", listed["order-1"])
        await place.post("/items/apply", fields_of(other))
        other = await ask(place, "remove", listed["order-2"])
        await place.post("/items/apply", fields_of(other))
        told = await place.post("/items/apply", fields_of(page))
        assert "requeue: 1 done of 3, 2 failed" in told
        states = {item.key: item.state for item in await place.queue("mail")}
        assert states == {"order-1": "available", "order-3": "available"}
        # The page that asks says so, too, if it is opened again.
        page = await ask(place, "requeue", *listed.values())
        assert page.count("it is gone: it was done or removed meanwhile") == 3
        assert "None of these items can be dealt with" in page
        queue = place.store.queue("plain")
        await queue.put("k", 1)
        listed = await stamps(place, "queue=plain")
        page = await ask(place, "remove", listed["k"], query="queue=plain")
        await queue.get()
        told = await place.post("/items/apply", fields_of(page))
        assert "it is in flight now, and was available when it was chosen" in told
        assert len(await place.queue("plain")) == 1


@in_real_time
async def test_all_that_match(tmp_path: Path) -> None:
    async with shop(tmp_path) as place:
        for number in range(7):
            await place.submit("ann", f"order-{number}")
            await place.submit("ann", f"later-{number}", delay=1000.0)
        page = await ask(place, "run_now", query="queue=mail&key=later-*")
        assert "7 items of mail?" in page
        assert "keys that begin with later-" in page
        told = await place.post("/items/apply", fields_of(page))
        assert "run now: 7 done" in told
        assert {item.state for item in await place.queue("mail")} == {"available"}
        page = await ask(place, "priority", query="queue=mail&key=order-*")
        told = await place.post("/items/apply", fields_of(page) | {"priority": "x"})
        assert "whole number" in told
        told = await place.post("/items/apply", fields_of(page) | {"priority": "-5"})
        assert "priority: 7 done" in told
        found = {item.key: item.priority for item in await place.queue("mail")}
        assert found["order-3"] == -5
        assert found["later-3"] == 0
        page = await ask(place, "cancel", query="queue=mail&state=waiting")
        assert "cancel: 14 done" in await place.post("/items/apply", fields_of(page))
        assert {item.outcome for item in await place.queue("mail")} == {"cancelled"}


@in_real_time
async def test_a_group_of_dead_letters_is_requeued(tmp_path: Path) -> None:
    async with shop(tmp_path) as place:
        await place.fail("order-1", "order-2", "order-3")
        await place.fail("other-1", to="bad and worse ")
        await place.manager.close()
        page = await place.get("/dead-letters")
        links = [
            html.unescape(link) for link in re.findall(r'href="([^"]*action=requeue[^"]*)"', page)
        ]
        assert len(links) == 2
        assert "3 letters" in page or "4 letters in 2 groups" in page
        question = (await place.browser.get(links[0])).text
        assert "Requeue 3 items of mail?" in question
        assert "requeue: 3 done" in await place.post("/items/apply", fields_of(question))
        states = sorted(item.state for item in await place.queue("mail"))
        assert states == ["available", "available", "available", "buried"]
        drop = re.findall(r'href="([^"]*action=remove[^"]*)"', await place.get("/dead-letters"))
        question = (await place.browser.get(html.unescape(drop[0]))).text
        assert "remove: 1 done" in await place.post("/items/apply", fields_of(question))
        assert "No dead letters." in await place.get("/dead-letters?queue=mail")


@in_real_time
async def test_what_makes_no_sense_is_refused(tmp_path: Path) -> None:
    async with shop(tmp_path) as place:
        await place.submit("ann", "order-1")
        for query in (
            "action=explode&queue=mail",
            "action=remove",
            "action=remove&queue=mail&mode=chosen",
            "action=remove&item=x",
            "action=remove&" + "&".join(f"item={n}:available:0:mail" for n in range(201)),
        ):
            await place.get(f"/items/confirm?{query}", 400)
        assert "None of these" in await ask(place, "requeue", query="queue=mail&state=available")
        assert "write a span" in await ask(place, "remove", query="queue=mail&older=soon")
        await place.post("/items/apply", {"action": "remove"}, 400)
        await place.post("/items/apply", {"action": "remove", "queue": "mail", "older": "x"}, 400)
        assert len(await place.queue("mail")) == 1


@in_real_time
async def test_a_viewer_is_not_offered_changes(tmp_path: Path) -> None:
    async with shop(tmp_path, viewer_token=VIEWER) as place:
        await place.submit("ann", "order-1")
        await place.browser.log_in(VIEWER)
        for path in (
            "/items?queue=mail",
            "/item?queue=mail&key=order-1",
            "/item/edit?queue=mail&id=1",
            "/items/confirm?action=remove&queue=mail",
            "/schedules",
            "/dead-letters",
            "/new?type=send",
        ):
            page = await place.get(path)
            assert page.count('<form method="post"') == 1, path  # to log out
        await place.post("/items/apply", {"action": "remove", "queue": "mail"}, 403)
        assert len(await place.queue("mail")) == 1


def test_what_counts_tell_of_states() -> None:
    counts = Counts(available=5, held=2, scheduled=3, in_flight=1, buried=4, done=6)
    assert counted_states(counts, ("buried",)) == 4
    assert counted_states(counts, ("available", "in_line", "buffered", "scheduled")) == 10
    assert counted_states(counts, ("in_flight", "done")) == 7
    assert counted_states(counts, ("available", "scheduled")) is None


# Runs in the background


async def test_a_run_goes_on_until_it_is_stopped() -> None:
    runs = BulkRuns()
    told: list[str] = []

    async def work(tell: Any, should_stop: Any) -> ActionReport:
        done = 0
        while not should_stop():
            done += 100
            tell(ActionReport(action="remove", done=done, matched=done))
            await asyncio.sleep(1.0)
        return ActionReport(action="remove", done=done, matched=done, complete=False)

    async def ended(run: BulkRun) -> None:
        told.append(run.id)

    run = runs.start(BulkRun("remove", "all", "ann"), work, ended)
    assert not await run.wait(5.5)
    assert run.done == 600
    assert runs.get(run.id) is run
    run.stopped = True
    assert await run.wait(5.0)
    await asyncio.sleep(0)
    assert run.report is not None
    assert not run.report.complete
    assert told == [run.id]


async def test_a_run_that_fails_says_why() -> None:
    runs = BulkRuns()

    async def refused(tell: Any, should_stop: Any) -> ActionReport:
        raise ValueError("it makes no sense")

    async def broken(tell: Any, should_stop: Any) -> ActionReport:
        raise RuntimeError("a secret")

    async def ended(run: BulkRun) -> None: ...

    run = runs.start(BulkRun("remove", "all", "ann"), refused, ended)
    assert await run.wait(1.0)
    assert run.error == "it makes no sense"
    run = runs.start(BulkRun("remove", "all", "ann"), broken, ended)
    assert await run.wait(1.0)
    assert "secret" not in run.error


async def test_runs_are_bounded() -> None:
    runs = BulkRuns()

    async def waits(tell: Any, should_stop: Any) -> ActionReport:
        while not should_stop():
            await asyncio.sleep(1.0)
        return ActionReport(action="remove")

    async def ends(tell: Any, should_stop: Any) -> ActionReport:
        return ActionReport(action="remove")

    async def ended(run: BulkRun) -> None: ...

    for _ in range(MOST_KEPT + 10):
        await runs.start(BulkRun("remove", "all", "ann"), ends, ended).wait(1.0)
        await asyncio.sleep(0)
    assert len(runs.all()) == MOST_KEPT
    for _ in range(MOST_AT_A_TIME):
        runs.start(BulkRun("remove", "all", "ann"), waits, ended)
    try:
        runs.start(BulkRun("remove", "all", "ann"), waits, ended)
    except TooManyRunsError:
        pass
    else:
        raise AssertionError("one too many")
    await runs.close()
    assert all(run.ended is not None for run in runs.all())
