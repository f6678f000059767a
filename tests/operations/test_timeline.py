"""The life of an item as moments."""

from typing import Any

from leasedkeyq.model.requests import Attempt
from leasedkeyq.operations.items.timeline import timeline
from leasedkeyq.operations.views import ItemView

NOW = 1000.0


def item(**more: Any) -> ItemView:
    plain: dict[str, Any] = {"id": 1, "queue": "q", "key": "k", "state": "available"}
    plain["put_at"] = 900.0
    return ItemView(**(plain | more))


def titles(view: ItemView) -> list[str]:
    return [moment.title for moment in timeline(view, NOW)]


def test_one_that_waits() -> None:
    put, waits = timeline(item(), NOW)
    assert (put.title, put.at) == ("Put", 900.0)
    assert (waits.title, waits.seconds) == ("Waits for a worker", 100.0)
    assert titles(item(state="in_line"))[-1] == "Waits in the line of its key"


def test_a_command_that_is_tried_again() -> None:
    history = (
        Attempt(1, 910.0, "released", "ValueError: bad; tried again after 2.5 s"),
        Attempt(2, 920.0, "expired", ""),
    )
    view = item(state="scheduled", due=1060.0, attempt=2, history=history, submitted_at=899.0)
    submitted, failed, backoff, lost, due = timeline(view, NOW)
    assert (submitted.title, submitted.at) == ("Submitted", 899.0)
    assert (failed.title, failed.text, failed.tone) == (
        "Attempt 1 failed",
        "ValueError: bad",
        "warning",
    )
    assert (backoff.kind, backoff.seconds, backoff.at) == ("backoff", 2.5, 910.0)
    assert lost.title == "Attempt 2 lost its lease"
    assert (due.title, due.at, due.to_come) == ("Attempt 3 is due", 1060.0, True)


def test_one_that_runs() -> None:
    view = item(state="in_flight", attempt=1, leased_at=990.0, due=1020.0, holder="host:1")
    _, runs, lease = timeline(view, NOW)
    assert (runs.title, runs.seconds, runs.text) == ("Attempt 1 runs", 10.0, "by host:1")
    assert (lease.at, lease.to_come) == (1020.0, True)
    assert titles(item(state="in_flight", attempt=1)) == ["Put", "Attempt 1 runs"]


def test_a_dead_letter_shows_its_traceback_once() -> None:
    history = (Attempt(3, 950.0, "buried", "ValueError: bad"),)
    error = "ValueError: bad\nTraceback (most recent call last):\n  ..."
    view = item(state="buried", error=error, history=history, attempt=3)
    _, earlier, failed, dead = timeline(view, NOW)
    assert earlier.title == "2 earlier attempts"
    assert (failed.title, failed.tone) == ("Attempt 3 failed for good", "bad")
    assert failed.detail.startswith("Traceback")
    assert (dead.title, dead.detail, dead.text) == ("Dead letter", "", "")
    [_, alone] = timeline(item(state="buried", error=error, holds=True), NOW)
    assert "line waits" in alone.title
    assert (alone.text, alone.detail[:9]) == ("ValueError: bad", "Traceback")


def test_one_that_is_done() -> None:
    view = item(state="done", outcome="cancelled", ended_at=960.0, due=2000.0)
    _, ended, forgotten = timeline(view, NOW)
    assert (ended.title, ended.tone, ended.seconds) == ("Cancelled", "warning", 60.0)
    assert (forgotten.at, forgotten.to_come) == (2000.0, True)
