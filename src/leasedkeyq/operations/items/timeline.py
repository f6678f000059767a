"""The life of an item as a list of moments: put, waited, each attempt, what it ended with."""

import re
from typing import Literal, TypeAlias

import msgspec

from leasedkeyq.errors import LeaseEnd
from leasedkeyq.model.requests import Attempt
from leasedkeyq.operations.views import ItemView

MomentKind: TypeAlias = Literal["put", "waiting", "failed", "backoff", "running", "ended", "dead"]
Tone: TypeAlias = Literal["plain", "good", "warning", "bad"]

_RETRIED = re.compile(r"; tried again after (\d+(?:\.\d+)?(?:e[+-]\d+)?) s$")
_HOW: dict[LeaseEnd, str] = {
    "acknowledged": "was acknowledged",
    "released": "was given back",
    "expired": "lost its lease",
    "removed": "was removed",
    "buried": "failed for good",
    "closed": "ended with its queue",
}
_ENDED: dict[str, tuple[str, Tone]] = {
    "completed": ("Completed", "good"),
    "failed": ("Failed", "bad"),
    "cancelled": ("Cancelled", "warning"),
}


class TimelineMoment(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened to an item, happens now, or will happen.

    Attributes:
        kind: What it is.
        title: What happened, in a few words.
        at: When, as Unix time; None if it is not known.
        tone: How to take it.
        seconds: How long it took, or has taken until now, if that is known.
        text: What else there is to say, in a line: the error of an attempt.
        detail: More lines: a traceback.
        to_come: Whether it lies ahead.
    """

    kind: MomentKind
    title: str
    at: float | None = None
    tone: Tone = "plain"
    seconds: float | None = None
    text: str = ""
    detail: str = ""
    to_come: bool = False


def timeline(item: ItemView, now: float) -> tuple[TimelineMoment, ...]:
    """What happened to an item, oldest first, and what is known of what comes.

    A store notes when attempts ended, not when they began, so the time between two of them is told
    as a whole, without the backoff in it. Attempts beyond the limit of the history of a store are
    not known any more.

    Args:
        item: The item.
        now: The time of the store.
    """
    moments = [_put(item)]
    if item.history and item.history[0].number > 1:
        forgotten = item.history[0].number - 1
        moments.append(
            TimelineMoment(
                kind="failed",
                title=f"{forgotten} earlier {'attempt' if forgotten == 1 else 'attempts'}",
                text="Not in the history any more, which is limited.",
            )
        )
    for place, past in enumerate(item.history):
        newest = place == len(item.history) - 1
        moments += _attempt(past, item.error if newest else "")
    moments += _now(item, now)
    return tuple(moments)


def attempt_error(error: str) -> tuple[str, float | None]:
    """The error of a past attempt, and after how many seconds it was tried again, if it says."""
    line = error.partition("\n")[0]
    retried = _RETRIED.search(line)
    return (line, None) if retried is None else (line[: retried.start()], float(retried[1]))


def _put(item: ItemView) -> TimelineMoment:
    if item.submitted_at is not None:
        return TimelineMoment(kind="put", title="Submitted", at=item.submitted_at)
    return TimelineMoment(kind="put", title="Put", at=item.put_at or None)


def _attempt(past: Attempt, error: str) -> list[TimelineMoment]:
    line, backoff = attempt_error(past.error)
    said, _, traceback = error.partition("\n")
    _, _, own = past.error.partition("\n")
    title = f"Attempt {past.number} "
    title += "failed" if past.how == "released" and line else _HOW.get(past.how, past.how)
    tone: Tone = "bad" if past.how == "buried" else "warning"
    moments = [
        TimelineMoment(
            kind="failed",
            title=title,
            at=past.ended_at,
            tone=tone,
            text=line or said,
            detail=own or traceback,
        )
    ]
    if backoff:
        moments.append(
            TimelineMoment(kind="backoff", title="Backoff", at=past.ended_at, seconds=backoff)
        )
    return moments


def _now(item: ItemView, now: float) -> list[TimelineMoment]:
    since = item.history[-1].ended_at if item.history else item.put_at
    waited = max(0.0, now - since) if since else None
    match item.state:
        case "available":
            return [TimelineMoment(kind="waiting", title="Waits for a worker", seconds=waited)]
        case "in_line" | "buffered":
            title = "Waits in the line of its key"
            return [TimelineMoment(kind="waiting", title=title, seconds=waited)]
        case "scheduled":
            title = "Due" if not item.history else f"Attempt {item.attempt + 1} is due"
            return [TimelineMoment(kind="waiting", title=title, at=item.due, to_come=True)]
        case "in_flight":
            return _running(item, now)
        case "buried":
            line, _, traceback = item.error.partition("\n")
            title = "Dead letter; its key's line waits for it" if item.holds else "Dead letter"
            known = bool(item.history)
            return [
                TimelineMoment(
                    kind="dead",
                    title=title,
                    at=since or None,
                    tone="bad",
                    text="" if known else line,
                    detail="" if known else traceback,
                )
            ]
        case "done":
            title, tone = _ENDED[item.outcome or "completed"]
            took = None
            if item.ended_at is not None and item.put_at:
                took = max(0.0, item.ended_at - item.put_at)
            ended = TimelineMoment(
                kind="ended", title=title, at=item.ended_at, tone=tone, seconds=took
            )
            forgotten = TimelineMoment(
                kind="ended", title="The result is forgotten", at=item.due, to_come=True
            )
            return [ended] if item.due is None else [ended, forgotten]


def _running(item: ItemView, now: float) -> list[TimelineMoment]:
    moments: list[TimelineMoment] = []
    began = item.leased_at
    if began is not None:
        moments.append(
            TimelineMoment(
                kind="running",
                title=f"Attempt {item.attempt} runs",
                at=began,
                seconds=max(0.0, now - began),
                text=f"by {item.holder}" if item.holder else "",
            )
        )
    else:
        moments.append(TimelineMoment(kind="running", title=f"Attempt {item.attempt} runs"))
    if item.due is not None:
        moments.append(
            TimelineMoment(
                kind="running",
                title="Its lease ends, unless it is renewed",
                at=item.due,
                to_come=True,
            )
        )
    return moments
