"""Changes: what a form asks for is done, told, and remembered."""

import logging
from typing import Any

import pytest

from leasedkeyq import MemoryStore
from leasedkeyq.errors import StoreError
from leasedkeyq.lanes import LaneConfig, QueueManagerBuilder
from leasedkeyq.operations.change_log import AUDIT_QUEUE, MOST_ENTRIES, AuditLog
from leasedkeyq.operations.operator import Operator
from leasedkeyq.operations.views import ActionReport
from leasedkeyq.web import dashboard
from leasedkeyq.web.visit import report_words
from tests.web.browsers import TOKEN, Browser, form_token


async def test_the_last_changes_are_kept() -> None:
    store = MemoryStore()
    now = 1000.0
    audit = AuditLog(store, "jobs", lambda: now)
    assert await audit.last() == []
    await audit.add(who="ada", client="127.0.0.1", action="requeue", target="#7\nx", outcome="1")
    (entry,) = await audit.last()
    assert (entry.at, entry.who, entry.action) == (1000.0, "ada", "requeue")
    assert "\n" not in entry.target
    for number in range(MOST_ENTRIES + 20):
        await audit.add(who="ada", client="", action="pause", target=str(number), outcome="x" * 999)
    kept = await audit.last()
    assert len(kept) == MOST_ENTRIES
    assert kept[0].target == str(MOST_ENTRIES + 19)
    assert len(kept[0].outcome) < 400
    counts = (await store.count([AUDIT_QUEUE]))[AUDIT_QUEUE]
    assert (counts.scheduled, counts.available) == (1, 0), "one item, which nobody can claim"


async def test_a_store_that_cannot_keep_a_change_is_told_in_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()

    async def fail(*arguments: Any, **options: Any) -> Any:
        raise StoreError("gone")

    monkeypatch.setattr(store, "edit", fail)
    await AuditLog(store, "jobs").add(
        who="ada", client="", action="purge", target="mail", outcome="3"
    )
    assert "purge by ada could not be kept" in caplog.text


async def test_a_lane_is_paused_and_resumed_and_that_is_remembered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryStore()
    manager = (
        QueueManagerBuilder().with_lane("mail", LaneConfig(0, 1), 0).with_storage(store).build()
    )

    @manager.command("send")
    async def send(to: str) -> None:
        """Never run here."""

    await manager.submit("mail", send("ada"))
    app = dashboard(store, token=TOKEN)
    async with Browser(app) as browser:
        await browser.log_in()
        page = "/s/memory/lanes"
        assert "Pause" in (await browser.get(page)).text
        with caplog.at_level(logging.INFO, logger="leasedkeyq.audit"):
            done = await browser.post("/s/memory/lanes/pause", {"lane": "mail"}, page=page)
        assert (done.status_code, done.headers["location"]) == (303, page)
        text = (await browser.get(page)).text
        assert "pause: 1 done" in text
        assert '<span class="tag warn">paused</span>' in text
        assert "pause: 1 done" not in (await browser.get(page)).text, "it is told once"
        (lane,) = await Operator(store).lanes()
        assert lane.paused
        assert "pause" in caplog.text
        assert "token (127.0.0.1)" in caplog.text
        back = {"lane": "mail", "back": "/queue?queue=mail"}
        done = await browser.post("/s/memory/lanes/resume", back, page=page)
        assert done.headers["location"] == "/s/memory/queue?queue=mail"
        elsewhere = {"lane": "mail", "back": "//evil.example"}
        done = await browser.post("/s/memory/lanes/resume", elsewhere, page=page)
        assert done.headers["location"] == page
        told = (await browser.get("/s/memory/changes.json")).json()["changes"]
        assert [change["action"] for change in told] == ["resume", "resume", "pause"]
        assert told[-1]["who"] == "token"
        assert told[-1]["target"] == "lane mail"
    await manager.close()


async def test_a_long_message_fits_into_a_cookie() -> None:
    app = dashboard(MemoryStore())
    async with Browser(app) as browser:
        await browser.get("/s/memory/")
        fields = {"lane": "\N{SNOWMAN}" * 1400}
        token = form_token(app, browser)
        done = await browser.post("/s/memory/lanes/pause", fields, token=token)
        assert len(done.headers["set-cookie"]) < 4096, "a browser would forget it"


async def test_a_tool_changes_something_by_its_token_alone() -> None:
    app = dashboard(MemoryStore(), token=TOKEN)
    async with Browser(app) as browser:
        browser.http.headers["authorization"] = f"Bearer {TOKEN}"
        resumed = await browser.http.post("/s/memory/lanes/resume", data={"lane": "mail"})
        assert resumed.status_code == 200
        assert resumed.json()["note"] == "it was not paused"
        refused = await browser.http.post("/s/memory/lanes/pause", data={"lane": "mail"})
        assert refused.status_code == 409
        assert "mail" in refused.json()["error"]
        missing = await browser.http.post("/s/memory/lanes/pause", data={"lane": ""})
        assert missing.status_code == 400


async def test_a_list_of_changes_of_another_version_is_begun_anew() -> None:
    store = MemoryStore()
    await store.queue(AUDIT_QUEUE).put("changes", "something else")
    audit = AuditLog(store, "jobs")
    assert await audit.last() == []
    await audit.add(who="ada", client="", action="pause", target="mail", outcome="done")
    assert len(await audit.last()) == 1


def test_reports_in_words() -> None:
    assert report_words(ActionReport(action="requeue", done=3, matched=3)) == "requeue: 3 done"
    words = report_words(
        ActionReport(
            action="remove",
            done=1,
            matched=3,
            failed=(("mail", "7", "it is leased"),),
            failed_count=2,
            complete=False,
            note="Some run",
        )
    )
    assert words == (
        "remove: 1 done of 3, 2 failed (the first: 7 of mail: it is leased); "
        "not all that match were dealt with, repeat it (Some run)"
    )
