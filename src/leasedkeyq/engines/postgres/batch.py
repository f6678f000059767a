"""A batch of requests as the arguments of one call of the server, and its answers.

What is alike and follows each other goes together: one statement for many rows.
"""

import hashlib
import secrets
from base64 import b64encode
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import groupby, islice
from math import inf
from operator import itemgetter
from typing import Any, Final, TypeAlias

import msgspec

from leasedkeyq.errors import LeasedKeyQError, keys_in_flight, keys_present
from leasedkeyq.model.holders import token_tail
from leasedkeyq.model.requests import (
    LINE_STATES,
    OUTCOMES,
    STATES,
    Ack,
    Amend,
    Bury,
    Cancel,
    Cap,
    Change,
    Claim,
    Claimed,
    Discard,
    Extend,
    Placed,
    Purge,
    Put,
    Refusal,
    Release,
    Request,
    Requeue,
    Urgency,
)
from leasedkeyq.model.store_model import queue_full
from leasedkeyq.types import PutOutcome

CLAIMED: Final = len(Claimed.__struct_fields__) + 1
FENCE: Final = Claimed.__struct_fields__.index("fence") + 1
MOST_KNOWN: Final = 10_000
"""Leases of which it is remembered where their rows are."""
COLUMNS: Final = 8
"""Of an item that is put."""
MOST_LEASED: Final = 1_000_000
"""By one claim: more than that is no limit."""

STATEMENTS: Final = {
    "apply_1": (
        "SELECT * FROM lkq.apply_1"
        "($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19)"
    ),
    "put_1": "SELECT lkq.put_1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12) AS answers",
    "ack_and_claim_1": (
        "SELECT * FROM lkq.ack_and_claim_1"
        "($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)"
    ),
    "count_leased_1": "SELECT lkq.count_leased_1($1)",
}
"""Of the functions that apply a batch, or prepare for it."""

PUT_OUTCOMES: Final[dict[str, PutOutcome]] = {
    "0": "added",
    "1": "updated",
    "2": "buffered",
    "3": "appended",
    "4": "skipped",
}
"""By their digits in the server."""
EVERY_STATE: Final = list(range(len(STATES)))
NO_LINES: Final = [number for number, state in enumerate(STATES) if state not in LINE_STATES]
NO_LIMIT: Final = 2**62


_encode = msgspec.json.Encoder().encode


class FunctionReply(msgspec.Struct, frozen=True):
    """What a call of the server has to say beside what was claimed."""

    said: list[tuple[int, str, Any]]
    """The number of a request, what sort of answer it is, and the answer."""
    changed: list[str]
    dropped: list[tuple[str, str]]


decode_reply = msgspec.json.Decoder(FunctionReply).decode


@lru_cache(4096)
def lock_number(schema: str, sort: str, queue: str) -> int:
    """The advisory lock of a queue; ``lock_1`` in the server says the same."""
    digest = hashlib.md5(f"{schema}/{sort}/{queue}".encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


FunctionCall: TypeAlias = tuple[str, tuple[Any, ...]]
"""A function of the server, and what it is called with, but for its first four arguments."""


class Leased:
    """Where the rows of leases are that were claimed here, by their tokens; of the latest ones.

    A row stays there until a call changes it. An ack that knows its row does not look for it in
    an index: a worker has 1.1 to 1.15 times as many commands done by that.
    """

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[str, str, str]] = OrderedDict()

    def add(self, rows: Iterable[tuple[Claimed, str]]) -> None:
        """Remember where these are."""
        known = self._known
        for item, at in rows:
            known[item.token] = (item.queue, item.key, at)
        while len(known) > MOST_KNOWN:
            known.popitem(last=False)

    def pop(self, token: str, queue: str, key: str) -> str | None:
        """Where a row is that is changed now; None: not known."""
        known = self._known.pop(token, None)
        return known[2] if known is not None and known[:2] == (queue, key) else None


class RequestRun(msgspec.Struct):
    """Requests that are applied together: what the server is told, and which they are."""

    told: dict[str, Any]
    numbers: list[int]
    like: tuple[Any, ...] | None
    """Another request joins if it is like this; None: no other does."""
    sizes: list[int] = []


class Batch:
    """Requests on their way to the server.

    Args:
        schema: Where the tables are; the locks of queues depend on it.
        requests: What is asked for.
        leased: Where the rows of leases are; None: nothing is known.
        edited: The queue of the edit whose requests they are, if they are those of one. The edit
            has that queue for itself: they are applied in this order, and to what it has seen, and
            not to what has come to the inbox since. Other queues of the edit it shares.
    """

    def __init__(
        self,
        schema: str,
        requests: Sequence[Request],
        leased: Leased | None = None,
        *,
        edited: str | None = None,
    ) -> None:
        self._schema = schema
        self._leased = Leased() if leased is None else leased
        self._at: list[str | None] = []
        """Where the rows of the acks are."""
        self._edited = edited
        self._order = None if edited is not None or len(requests) == 1 else call_order(requests)
        self._requests = requests if self._order is None else [requests[i] for i in self._order]
        self._runs: list[RequestRun] = []
        self._items: list[tuple[Any, ...]] = []
        """What is put: the columns of ``put_items_1``."""
        self._results: list[bytes] = []
        self._alone: set[int] = set()
        self._named: set[tuple[str, str]] = set()
        self._naming = 0
        self._acked: set[str] = set()
        """The keys of the last run of acks."""
        self.queues: set[str] = set()
        """All that are named."""
        self.counted: set[str] = set()
        """The queues of which the leased keys of a pattern are counted."""
        self.claims = False
        """Whether something may be leased."""
        for number, request in enumerate(self._requests):
            _ADD[type(request)](self, number, request)

    def told(self) -> FunctionCall:
        """The function that applies this batch the fastest, and what it is called with."""
        return self._lean() or self._any()

    def _lean(self) -> FunctionCall | None:
        """A lone put, or acks and a claim of one queue: functions that cost less do these."""
        if len(self.queues) != 1 or self._alone or self._edited is not None:
            return None
        [queue] = self.queues
        where = lock_number(self._schema, "queue", queue), queue
        match [run.told for run in self._runs]:
            case [{"op": "puts"} as puts] if (
                len(self._items) == 1 and self._items[0][-2] is None and "policy" not in puts
            ):
                return "put_1", (*where, *self._items[0][:-2])
            case [{"op": "acks"} as acks, *claims] if "keeps" not in acks:
                told = _told_acks(acks, [at for at in self._at if at is not None])
            case claims:
                told = 0, None, None, None
        claim = _told_claim(claims)
        # It cannot be guessed, and tokens are made of it. Behind that is what they end with.
        secret = secrets.token_hex(16) + (claims[0].get("tail", "") if claims else "")
        return claim and ("ack_and_claim_1", (*where, secret, *told, *claim))

    def _any(self) -> FunctionCall:
        queues = names = None
        if self._naming > 1:
            # A call that changes several keys that others may change, too, locks them in order.
            queues = [queue for queue, _ in self._named]
            names = [key for _, key in self._named]
        items = zip(*self._items, strict=True) if self._items else [None] * COLUMNS
        return "apply_1", (
            secrets.token_hex(16),
            sorted(lock_number(self._schema, "queue", q) for q in self.queues - {self._edited}),
            sorted(self._alone),
            queues,
            names,
            _encode([run.told for run in self._runs]).decode(),
            *items,
            self._results or None,
        )

    # Runs

    def _add(self, number: int, like: tuple[Any, ...] | None, **told: Any) -> RequestRun:
        run = RequestRun({"n": number, **told}, [number], like)
        self._runs.append(run)
        return run

    def _joined(self, number: int, like: tuple[Any, ...]) -> RequestRun | None:
        """The last run, if this request joins it."""
        if self._runs and self._runs[-1].like == like:
            self._runs[-1].numbers.append(number)
            return self._runs[-1]
        return None

    def _put(self, number: int, put: Put) -> None:
        if not put.items:
            return
        queue = put.queue
        self.queues.add(queue)
        self._named.update([(queue, key) for key, _ in put.items])
        refusable = put.policy in ("reject", "only_new") or put.max_items or put.unique_for
        run = None if refusable else self._joined(number, ("puts", queue))
        if run is None:
            self._naming += 1
            run = self._add(number, None if refusable else ("puts", queue), op="puts", queue=queue)
            run.told["from"] = len(self._items) + 1
            if refusable:
                run.told.update(policy=put.policy, max_items=put.max_items)
                run.told["unique_for"] = put.unique_for
            if put.max_items:
                self._alone.add(lock_number(self._schema, "room", queue))
        run.sizes.append(len(put.items))
        alike = put.priority, put.kind, put.deadline, put.delay, put.unique_for
        self._items += [(key, put.policy, value, *alike) for key, value in put.items]
        run.told["to"] = len(self._items)

    def _change(self, number: int, change: Change) -> None:
        self.queues.add(change.queue)
        if isinstance(change, Ack):
            self._ack(number, change)
            return
        run = self._add(number, None, op=type(change).__name__.lower(), queue=change.queue)
        told = run.told
        self._naming += 1
        self._tell(change, told)
        if isinstance(change, Release | Extend | Bury | Cancel | Amend):
            told["key"] = change.key
            self._named.add((change.queue, change.key))
        if isinstance(change, Release | Extend | Bury):
            told["token"] = change.token
            self._leased.pop(change.token, change.queue, change.key)

    def _tell(self, change: Change, told: dict[str, Any]) -> None:
        """Say what a change asks for, beside its key and its token."""
        match change:
            case Cancel():
                told.update(id=change.id, only_line=change.only_line)
                told["keep"] = _seconds(change.keep)
                told["outcome"] = OUTCOMES.index(change.outcome)
                self._results.append(_result_of(change))
                told["from"] = len(self._results)
            case Amend():
                told.update(id=change.id, priority=change.priority, kind=change.kind)
                told["delay"] = change.delay
                if change.value is not None:
                    self._results.append(change.value)
                    told["from"] = len(self._results)
            case Release():
                told.update(front=change.front, delay=_seconds(change.delay), undo=change.undo)
                told["error"] = _storable(change.error)
            case Extend():
                told["lease"] = _seconds(change.lease_time)
                if change.progress is not None:
                    told["progress"] = b64encode(change.progress).decode()
            case Bury():
                told.update(error=_storable(change.error), hold=change.hold)
            case Requeue():
                told.update(id=change.id, policy=change.policy, max_items=change.max_items)
                if change.max_items:
                    self._alone.add(lock_number(self._schema, "room", change.queue))
            case Discard():
                told["id"] = change.id
            case Purge():
                told["part"] = change.part
            case Ack():
                pass  # it is a part of a run

    def _ack(self, number: int, ack: Ack) -> None:
        """Acks that follow each other are one run as long as each is of another key."""
        outcome = OUTCOMES.index(ack.outcome) if ack.keep > 0 else None
        like = ("acks", ack.queue, outcome)
        run = None if ack.key in self._acked else self._joined(number, like)
        if run is None:
            self._naming += 1
            self._acked.clear()
            run = self._add(number, like, op="acks", queue=ack.queue, keys=[], tokens=[])
            if outcome is not None:
                run.told.update({"outcome": outcome, "keeps": [], "from": len(self._results) + 1})
        told = run.told
        told["keys"].append(ack.key)
        told["tokens"].append(ack.token)
        self._at.append(self._leased.pop(ack.token, ack.queue, ack.key))
        if outcome is not None:
            told["keeps"].append(_seconds(ack.keep))
            self._results.append(_result_of(ack))
            told["to"] = len(self._results)
        self._acked.add(ack.key)
        self._named.add((ack.queue, ack.key))

    def _claim(self, number: int, claim: Claim) -> None:
        queues = [
            (queue, min(most, MOST_LEASED), claim.lease_time_of(place))
            for place, (queue, most) in enumerate(claim.queues)
            if most > 0
        ]
        if claim.limit <= 0 or claim.kinds == () or not queues:
            return
        self.queues.update([queue for queue, *_ in queues])
        self.claims = True
        caps: dict[str, list[dict[str, Any]]] = {}
        for cap in claim.caps:
            if cap.queue in self.queues:
                self._alone.add(lock_number(self._schema, "caps", cap.queue))
                told_cap = _told_cap(cap)
                caps.setdefault(cap.queue, []).append(told_cap)
                if cap.in_flight is not None and told_cap["like"] != "%":
                    self.counted.add(cap.queue)
        lifts = [claim.lifts(place) for place, (_, most) in enumerate(claim.queues) if most > 0]
        any_key = claim.key is None and claim.kinds is None and not caps and not any(lifts)
        queue, most, lease = queues[0]
        if any_key and len(queues) == 1 and (lease is None or lease > 0):
            each = min(most, claim.limit)
            like = ("claim", queue, each, lease, claim.holder)
            # The server counts on from the first: none that asks for nothing is in between.
            follows = bool(self._runs) and self._runs[-1].numbers[-1] == number - 1
            run = self._joined(number, like) if follows else None
            if run is None:
                place = [queue, 0, _seconds(lease), None]
                run = self._add(number, like, op="claim", queues=[place], limit=0, each=each)
                run.told.update(_told_holder(claim))
            run.told["limit"] += each
            run.told["queues"][0][1] += each
            return
        limit = min(claim.limit, MOST_LEASED)
        urgencies = [
            u for u, (_, most) in zip(claim.urgencies, claim.queues, strict=False) if most > 0
        ]
        if claim.by_turns and len(queues) > 1:
            told = [
                _told_queue(*one, urgency, caps)
                for one, urgency in zip(queues, urgencies, strict=True)
            ]
            run = self._add(number, None, op="urgent", queues=told, limit=limit)
        else:
            listed = [
                (name, many, _seconds(until), _told_urgency(urgencies[place]) if up else None)
                for place, ((name, many, until), up) in enumerate(zip(queues, lifts, strict=True))
            ]
            run = self._add(number, None, op="claim", queues=listed, limit=limit)
            if caps:
                run.told["caps"] = caps
        run.told.update(_told_holder(claim))
        if claim.key is not None:
            run.told["key"] = claim.key
        if claim.kinds is not None:
            run.told["kinds"] = claim.kinds

    # Answers

    def answers(self, claimed: Iterable[Sequence[Any]], reply: FunctionReply) -> list[Any]:
        """The answers to the requests.

        Of a row of `claimed` the first is the number of a request, and the last of use where it is.
        """
        answers: list[Any] = [_NOTHING.get(type(request)) for request in self._requests]
        for number, rows in groupby(sorted(claimed, key=_fence_of), itemgetter(0)):
            items = [(Claimed(*row[1:CLAIMED]), row[CLAIMED]) for row in rows]
            self._leased.add(items)
            answers[number] += tuple([item for item, _ in items])
        runs = {run.numbers[0]: run for run in self._runs}
        for number, word, what in reply.said:
            run = runs[number]
            if word in ("added", "placed"):
                placed = _placed(what, None) if word == "added" else _placed(*what)
                for one, size in zip(run.numbers, run.sizes, strict=True):
                    answers[one] = tuple(islice(placed, size))
            elif word == "refused":
                positions: list[int] = what
                for position in positions:
                    one = run.numbers[position - 1]
                    answers[one] = _refusal(self._requests[one], {})
            elif word == "no":
                answers[number] = _refusal(self._requests[number], what)
            elif isinstance(self._requests[number], Extend):
                answers[number] = None if what is None else float(what)
            else:
                answers[number] = what
        if self._order is None:
            return answers
        in_place: list[Any] = [None] * len(answers)
        for number, answer in zip(self._order, answers, strict=True):
            in_place[number] = answer
        return in_place


def call_order(requests: Sequence[Request]) -> list[int] | None:
    """The order in which requests are applied; None: as they are.

    Requests act in the order in which they were made. Only acks are moved ahead of claims and of
    puts of other keys, so that they are one run, which is cheaper. This shows in one case: an ack
    of a key with a line makes the next value available earlier, so that a claim of this batch may
    lease it, and its place is before those of this batch's puts.
    """
    if len(set(map(type, requests))) <= 1:
        return None
    order: list[int] = []
    behind: list[int] = []
    put: set[tuple[str, str]] = set()
    for number, request in enumerate(requests):
        if isinstance(request, Ack) and (request.queue, request.key) not in put:
            order.append(number)
        elif isinstance(request, Put):
            behind.append(number)
            put.update([(request.queue, key) for key, _ in request.items])
        elif isinstance(request, Ack | Claim):
            behind.append(number)
        else:
            # Any other request may change the key of an ack behind it.
            order += [*behind, number]
            behind.clear()
            put.clear()
    order += behind
    return None if order == list(range(len(order))) else order


# By their types: `isinstance` takes a while for such classes, and there is a lot to do.
_ADD: Final[dict[type, Callable[[Batch, int, Any], None]]] = {
    Claim: Batch._claim,
    Put: Batch._put,
    **dict.fromkeys(
        (Ack, Release, Extend, Bury, Cancel, Amend, Requeue, Purge, Discard), Batch._change
    ),
}
_NOTHING: Final[dict[type, tuple[()]]] = {Claim: (), Put: ()}
"""What is answered if nothing is said."""


def _told_holder(claim: Claim) -> dict[str, str]:
    """What the tokens of a claim end with, if it has a holder."""
    return {"tail": token_tail(claim.holder)} if claim.holder else {}


def _told_acks(
    run: dict[str, Any], at: list[str]
) -> tuple[int, str | None, str | None, str | None]:
    """How many there are, and which; as texts, as the driver is slow with lists."""
    many = len(run["keys"])
    acks = _encode((run["keys"], run["tokens"])).decode()
    if len(at) < many:
        return many, acks, None, None
    return many, acks, " ".join(run["tokens"]), " ".join(at)


def _told_claim(runs: Sequence[dict[str, Any]]) -> tuple[Any, ...] | None:
    """What ``ack_and_claim_1`` is to claim; None if it cannot be told."""
    if not runs:
        return 0, 0, 1, None, None, None
    run, *others = runs
    if others or run["op"] != "claim" or "key" in run or "caps" in run or len(run["queues"]) > 1:
        return None
    [(_, most, lease, urgency)] = run["queues"]
    many = min(most, run["limit"])
    hurry = None if urgency is None else _encode(urgency).decode()
    each = run.get("each", many)
    return run["n"], many, each, lease and float(lease), run.get("kinds"), hurry


def _placed(ids: Sequence[int], outcomes: str | None) -> Iterator[Placed]:
    """Where values are, and what was done with each; None: all were added."""
    for number, outcome in zip(ids, outcomes or "0" * len(ids), strict=True):
        yield Placed(number, PUT_OUTCOMES[outcome])


def _result_of(change: Ack | Cancel) -> bytes:
    return b"null" if change.result is None else change.result


def _seconds(seconds: float | None) -> float | str | None:
    """A time as JSON takes it, and as the server reads it: without an end it is a text."""
    return "Infinity" if seconds == inf else seconds


def _fence_of(row: Sequence[Any]) -> int:
    fence: int = row[FENCE]
    return fence


def _told_queue(
    queue: str, most: int, lease: float | None, urgency: Urgency, caps: dict[str, Any]
) -> dict[str, Any]:
    """A queue of a claim by urgency."""
    told = {
        "queue": queue,
        "most": most,
        "lease": _seconds(lease),
        **_told_urgency(urgency),
    }
    return told | {"caps": caps[queue]} if queue in caps else told


def _told_urgency(urgency: Urgency) -> dict[str, Any]:
    return msgspec.structs.asdict(urgency)


def _told_cap(cap: Cap) -> dict[str, Any]:
    told: dict[str, Any] = {"pattern": cap.pattern, "each": cap.each}
    parts = [_literally(part) for part in cap.pattern.split("*")]
    told["like"] = "%".join(parts) if cap.pattern.strip("*") else "%"
    told["prefix"] = cap.pattern.partition("*")[0]
    if cap.in_flight is not None:
        told["in_flight"] = cap.in_flight
    if cap.rate is not None:
        told["rate"] = cap.rate
        told["burst"] = cap.burst
    return told


def _storable(text: str) -> str:
    """A text without what PostgreSQL takes in none: a worker must be able to tell of a failure."""
    return text.replace("\x00", "\ufffd").encode(errors="replace").decode()


def _literally(part: str) -> str:
    """A part of a pattern for LIKE, in which everything stands for itself."""
    return part.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def _refusal(request: Request, what: dict[str, Any]) -> LeasedKeyQError:
    if "in_flight" in what:
        of = len({key for key, _ in request.items}) if isinstance(request, Put) else 1
        return keys_in_flight(tuple(what["in_flight"]), of)
    if "present" in what and isinstance(request, Put | Requeue):
        of = len(request.items) if isinstance(request, Put) else 1
        return keys_present(tuple(what["present"]), of)
    if "full" in what and not isinstance(request, Claim):
        return queue_full(request.queue, what["full"])
    return Refusal(getattr(request, "key", ""))
