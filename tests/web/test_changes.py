"""Changes: what a form asks for is done, told, and remembered."""

import logging
from typing import Any

import pytest

from leasedkeyq import MemoryStore
from leasedkeyq.errors import StoreError
from leasedkeyq.operations.views import ActionReport
from leasedkeyq.web.access.audit import AUDIT_QUEUE, MOST_ENTRIES, AuditLog
from leasedkeyq.web.visit import report_words


async def test_changes_are_logged_and_the_last_are_kept(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    now = 1000.0
    audit = AuditLog(store, "jobs", lambda: now)
    assert await audit.last() == []
    with caplog.at_level(logging.INFO, logger="leasedkeyq.web.audit"):
        await audit.add(
            who="ada", client="127.0.0.1", action="requeue", target="mail #7\nforged", outcome="1"
        )
    assert "requeue by ada (127.0.0.1): mail #7" in caplog.text
    assert "\nforged" not in caplog.text, "what a key is called makes no line of the log"
    (entry,) = await audit.last()
    assert (entry.at, entry.who, entry.action) == (1000.0, "ada", "requeue")
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
    with caplog.at_level(logging.INFO, logger="leasedkeyq.web.audit"):
        await AuditLog(store, "jobs").add(
            who="ada", client="", action="purge", target="mail", outcome="3"
        )
    assert "purge by ada" in caplog.text
    assert "could not be kept" in caplog.text


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
        "not all that match were dealt with, repeat it. Some run"
    )
