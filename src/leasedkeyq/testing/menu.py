"""Random requests: each is made of choices, whoever makes them."""

import random
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from leasedkeyq.model.requests import (
    OUTCOMES,
    Ack,
    Amend,
    Bury,
    Cancel,
    Cap,
    Change,
    Claim,
    Discard,
    Extend,
    Purge,
    Put,
    Release,
    Requeue,
    StoredItem,
    Urgency,
)
from leasedkeyq.testing.model_time import Durations
from leasedkeyq.types import PutPolicy

T = TypeVar("T")

QUEUES = ("mail", "mäil", "other")
KEYS = ("a", "ab", "b", "c", "ö", "%_")
KINDS = ("", "", "mail", "bill", "ö")
PATTERNS = ("*", "*", "a*", "*b", "%*", "_", "ö")
ABSENT = 99
"""Stands for a buried item that is not there."""
STALE = "stale"
LEASES = (*"0000111223", f"{STALE}0", f"{STALE}1", f"{STALE}3", f"{STALE}10")
"""Which lease is settled: the latest that holds, the one before, and so on, or any that was."""
BURIED = (0, 0, 1, 1, 2, 2, ABSENT)
VALUES = (*[None] * 4, 0, 1, 2, 5, ABSENT)
"""Which values of a key are cancelled: all, its head, the first behind that, and so on."""
WAITING = (0, 0, 1, 2, 5, ABSENT)
"""Which value of a key is amended, in the same way."""
SETTLINGS = "aaaarrrruuubbbbeeecccmmqqqddp"
PROGRESS = (None, None, b'{"fraction":0.5}', b"", b"\xff\x00")
"""How far the work has come, also as what is no text."""
HOLDERS = ("", "host:1", "host:1", "a höst @ 5%")
"""Who claims, also with what a token cannot have in it as it is."""
POLICIES: tuple[PutPolicy, ...] = (
    "update",
    "update",
    "buffer",
    "buffer",
    "append",
    "append",
    "append",
    "append",
    "reject",
    "skip",
    "only_new",
)
"""There is a line to see if values are often appended."""
REQUEUE_POLICIES: tuple[PutPolicy, ...] = (
    "append",
    "append",
    "update",
    "reject",
    "buffer",
    "only_new",
)


class Pick(Protocol):
    """Chooses one of several options."""

    def __call__(self, options: Sequence[T], /) -> T:
        """One of the options."""
        ...


class Menu:
    """Makes requests out of choices.

    A token in a `Change` is a number: 0 stands for the latest lease that holds, 1 for the one
    before; behind `STALE`, leases that have ended count as well. The id in a `Requeue` or a
    `Discard` is that of one of the buried items in the same way, of a `Discard` also of a result.
    The id in a `Cancel` or an `Amend` is that of one of the values of the key, the head first.
    """

    def __init__(self, pick: Pick, durations: Durations, queues: Sequence[str] = QUEUES) -> None:
        self._pick = pick
        self._durations = durations
        # Most of it happens in one queue, so that there is something to see in it.
        self._queues = (*[queues[0]] * 4, *queues)

    def puts(self) -> list[Put]:
        """One request or some."""
        return [self._put() for _ in range(self._pick((1, 1, 1, 3)))]

    def _put(self) -> Put:
        pick = self._pick
        count = pick((1, 1, 1, 2, 4))
        policy = pick(POLICIES)
        return Put(
            pick(self._queues),
            tuple((pick(KEYS), b"%d" % pick(range(1000))) for _ in range(count)),
            policy,
            pick((None, None, None, 0, 1, -1, 5)),
            pick(self._durations.delays),
            pick((0, 0, 0, 0, 3, 5, 8)),
            pick(KINDS),
            pick(self._durations.deadlines),
            pick(self._durations.uniques) if policy == "skip" else 0.0,
        )

    def claims(self) -> list[Claim]:
        """One request or some; some are equal, which a store may serve together."""
        claims = [self._claim() for _ in range(self._pick((1, 1, 1, 3)))]
        return [claims[0], claims[0], *claims] if self._pick((False, False, True)) else claims

    def _claim(self) -> Claim:
        pick = self._pick
        queues = dict.fromkeys(pick(self._queues) for _ in range(pick((1, 1, 1, 2, 3, 3))))
        leases = self._durations.leases
        return Claim(
            tuple((queue, pick((1, 1, 2, 3, 0))) for queue in queues),
            pick((1, 1, 2, 4)),
            pick((*[None] * 12, *KEYS)),
            pick(leases),
            pick((*[None] * 8, ("mail",), ("", "bill"), ("bill", "bill", "ö"), ())),
            self._caps(tuple(queues)),
            tuple(self._urgency() for _ in queues) if pick((True, True, False)) else (),
            tuple(pick(leases) for _ in queues) if pick((True, False, False)) else (),
            pick((False, False, True)),
            pick(HOLDERS),
        )

    def _urgency(self) -> Urgency:
        pick, durations = self._pick, self._durations
        return Urgency(pick((0, 0, 1, 2, -1)), pick(durations.deadlines), pick(durations.steps))

    def _caps(self, queues: Sequence[str]) -> tuple[Cap, ...]:
        """None or some, of which no two are for the same bucket."""
        caps: dict[tuple[str, str, bool], Cap] = {}
        pick = self._pick
        for _ in range(pick((0, 0, 0, 1, 1, 2, 3))):
            queue, pattern = pick((*queues, *queues, self._queues[-1])), pick(PATTERNS)
            each = pick((False, False, True))
            in_flight = None if each else pick((None, None, 0, 1, 2, 3))
            rate, burst = pick(self._durations.rates)
            if in_flight is not None and pick((True, True, False)):
                caps[queue, pattern, each] = Cap(queue, pattern, in_flight)
            else:
                caps[queue, pattern, each] = Cap(queue, pattern, in_flight, rate, burst, each)
        return tuple(caps.values())

    def changes(self) -> list[Change]:
        """One request or some."""
        return [self._change() for _ in range(self._pick((1, 1, 1, 3)))]

    def _change(self) -> Change:
        pick = self._pick
        keeps, pauses = self._durations.keeps, self._durations.pauses
        queue, key = pick(self._queues), pick(KEYS)
        names = (queue, key, pick(LEASES))
        match pick(SETTLINGS):
            case "a":
                return Ack(*names, pick((None, b'"done"')), pick(keeps), pick(OUTCOMES))
            case "r":
                return Release(*names, pick((False, True)), pick(pauses), pick(("", "öops")))
            case "u":
                return Release(*names, delay=pick(pauses), undo=True)
            case "b":
                return Bury(*names, pick(("", "bad")), pick((False, True)))
            case "e":
                return Extend(*names, pick(self._durations.leases), pick(PROGRESS))
            case "c":
                result, keep = pick((None, b'"gone"')), pick(keeps)
                number = pick(VALUES)
                only_line = number is None and pick((False, True))
                return Cancel(queue, key, result, keep, number, pick(OUTCOMES), only_line)
            case "m":
                return Amend(queue, key, pick(WAITING), **self._amended())
            case "q":
                return Requeue(queue, pick(BURIED), pick(REQUEUE_POLICIES), pick((0, 0, 2, 4)))
            case "d":
                return Discard(queue, pick(BURIED))
            case _:
                return Purge(queue, pick(("buried", "results", "all")))

    def _amended(self) -> dict[str, Any]:
        """What an `Amend` changes."""
        pick = self._pick
        return {
            "value": pick((None, b"9", b"")),
            "priority": pick((None, None, 0, 1, -1)),
            "delay": pick(self._durations.delays),
            "kind": pick((None, None, *KINDS)),
        }

    def edit(self) -> tuple[str, tuple[str, ...] | None, int]:
        """A queue, the keys to look at, and a number for `plan`."""
        keys = self._pick((None, None, (), ("b",), ("c", "a", "c", "ö", "nowhere")))
        return self._pick(self._queues), keys, self._pick(range(2**16))

    def some_keys(self) -> tuple[str, list[str]]:
        """A queue, and some keys."""
        return self._pick(self._queues), [self._pick(KEYS) for _ in range(3)]

    def some_queues(self) -> list[str]:
        """Some queues, maybe one that nobody uses, maybe one of them twice."""
        return [self._pick((*self._queues, "nowhere")) for _ in range(self._pick((1, 1, 3)))]

    def some_wait(self) -> float:
        """How long to wait."""
        return self._pick(self._durations.waits)


def plan(
    queue: str, items: Sequence[StoredItem], number: int, durations: Durations
) -> list[Put | Change]:
    """Changes for what an edit sees: always the same for the same number; some cannot be."""
    pick = random.Random(number).choice
    if pick(range(10)) == 0:
        raise ZeroDivisionError("the work of an edit failed")
    put = Put(
        queue,
        ((pick(KEYS), b"1"), (pick(KEYS), b"2")),
        pick(("update", "buffer", "append", "append", "skip")),
        pick((None, None, 3)),
        pick(durations.delays),
        kind=pick(KINDS),
        deadline=pick(durations.deadlines),
    )
    wanted: list[Put | Change] = []
    for item in items:
        change = _of_item(item, pick, durations)
        if change is not None and pick((True, True, False)):
            wanted.append(change)
    where = pick((0, len(wanted)))
    wanted[where:where] = pick(([], [put], [put], [put, put]))
    wrong: list[Put | Change] = [
        Ack(queue, pick(KEYS), "nobody"),
        msgspec.structs.replace(put, policy="reject"),
        msgspec.structs.replace(put, policy="only_new"),
        msgspec.structs.replace(put, max_items=1),
        Purge(queue, "all"),
        Cancel("elsewhere", "a"),
    ]
    if pick((True, False, False)):
        wanted.insert(pick(range(len(wanted) + 1)), pick(wrong))
    return wanted


def _of_item(item: StoredItem, pick: Pick, durations: Durations) -> Change | None:
    names = (item.queue, item.key, item.token)
    keep, outcome = pick(durations.keeps), pick(OUTCOMES)
    number = pick((None, item.id, item.id))
    only_line = number is None and pick((False, True))
    cancel = Cancel(item.queue, item.key, b"8", keep, number, outcome, only_line)
    if item.state == "in_flight":
        endings: list[Change] = [
            cancel,
            Ack(*names, b"7", pick(durations.keeps), outcome),
            Release(*names, pick((False, True)), pick(durations.pauses), pick(("", "no"))),
            Release(*names, delay=pick(durations.pauses), undo=True),
            Extend(*names, pick(durations.leases), pick(PROGRESS)),
            Bury(*names, "edited", pick((False, True))),
        ]
        return pick(endings)
    if item.state == "buried":
        again: list[Change] = [
            Requeue(item.queue, item.id, pick(("append", "update", "buffer"))),
            Discard(item.queue, item.id),
        ]
        return pick(again)
    if item.state == "done":
        return pick((None, None, Discard(item.queue, item.id)))
    amend = Amend(
        item.queue,
        item.key,
        item.id,
        pick((None, b"6")),
        pick((None, 0, 2)),
        pick(durations.delays),
        pick((None, *KINDS)),
    )
    waiting: list[Change] = [cancel, cancel, amend]
    return pick(waiting)
