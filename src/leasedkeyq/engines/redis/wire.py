"""Requests on their way into the script of the Redis store, and answers on their way out."""

import logging
import math
import os
import struct
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias, TypeGuard

import msgspec

from leasedkeyq.errors import (
    LeasedKeyQError,
    LeaseEnd,
    StoreDamagedError,
    keys_in_flight,
    keys_present,
)
from leasedkeyq.model.holders import holder_of, token_tail
from leasedkeyq.model.requests import (
    OUTCOMES,
    STATES,
    Ack,
    Amend,
    Attempt,
    Bury,
    Cancel,
    Cap,
    Claim,
    Claimed,
    Counts,
    Discard,
    Extend,
    Placed,
    Purge,
    Put,
    Refusal,
    Release,
    Request,
    Requeue,
    ResultOutcome,
    StoredItem,
    Urgency,
)
from leasedkeyq.model.store_model import queue_full
from leasedkeyq.model.urgency import Rank
from leasedkeyq.types import PutOutcome

logger = logging.getLogger("leasedkeyq")

EXACT: Final = 2**53
"""The script counts in doubles: whole numbers are exact up to here."""
ITEM: Final = struct.Struct(">ddddddIBHI")
LEASE: Final = struct.Struct(">ddd")
ASIDE: Final = struct.Struct(">II")
GIVEN: Final = struct.Struct(">BdII")
SIZED: Final = 2
SIZED_LEASE: Final = struct.Struct(">BI")
"""Before what was given, if the token of its lease tells a holder."""
LONGEST_KIND: Final = 2**16 - 1
"""Bytes: a record has two for the length of the kind."""
TOKEN_SEED: Final = 16
TOKEN_SIZE: Final = 32
"""Characters, without the holder."""
ASIDE_STATES: Final = (STATES.index("buried"), STATES.index("done"))
PUT_OUTCOMES: Final[dict[int, PutOutcome]] = {
    ord("a"): "added",
    ord("u"): "updated",
    ord("b"): "buffered",
    ord("p"): "appended",
    ord("s"): "skipped",
}
"""What the letters of the script mean."""
PARTS: Final = {
    "i": "the items",
    "o": "the order of the items",
    "r": "which items are available",
    "t": "when items and leases come due",
    "u": "the deadlines of the available items",
    "l": "the leases",
    "n": "the values in line",
    "p": "the order of the values in line",
    "h": "the keys that buried items hold",
    "b": "the buried items",
    "bo": "the order of the buried items",
    "bk": "the keys of the buried items",
    "bt": "the age of the buried items",
    "d": "the results",
    "do": "the order of the results",
    "dk": "the keys of the results",
    "dt": "when the results are forgotten",
    "df": "when the failed results are forgotten",
    "dc": "when the cancelled results are forgotten",
    "c": "the buckets of rate limits",
    "cf": "when the buckets of rate limits are full",
    "cn": "when the buckets of rate limits have a token",
    "m": "the notes on the queue",
    "s": "the workers that have parked a claim",
    "x": "the counts of leases by pattern",
}
"""What is in the keys of a queue."""

encode: Final = msgspec.msgpack.Encoder().encode


class Read(msgspec.Struct, frozen=True):
    """Asks for something to be shown: a verb of the script and its arguments."""

    verb: str
    arguments: tuple[Any, ...]
    queues: tuple[str, ...]


class Park(msgspec.Struct, frozen=True):
    """Parks a claim at its queues, if the claims just before it have found nothing.

    Attributes:
        worker: Whose claim it is.
        turn: A number, which is used again until it has been given something.
        lifetime: Seconds.
        claims: Those just before it.
    """

    worker: str
    turn: int
    lifetime: float
    claims: tuple[Claim, ...]


class Unpark(msgspec.Struct, frozen=True):
    """Takes back a claim that was parked.

    Answer: its turn and what was leased by it meanwhile, or None. If there is anything, the claims
    just behind this request are not made. It may be asked again.

    Attributes:
        worker: Whose claim it is.
        turn: Which one.
        claims: How many are just behind.
    """

    worker: str
    turn: int
    claims: int = 0


RedisRequest: TypeAlias = Request | Read | Park | Unpark


def raw(value: bytes) -> msgspec.Raw:
    """Bytes as the script reads them: its decoder knows strings only."""
    return msgspec.Raw(b"\xdb" + len(value).to_bytes(4, "big") + value)


def is_list(value: object) -> TypeGuard[list[Any]]:
    """Whether the script answered with a list."""
    return isinstance(value, list)


def or_false(value: Any) -> Any:
    """None would end a list in Lua."""
    return False if value is None else value


def seconds(value: float | None) -> Any:
    """A length of time; one that is not a number would end the script half-way."""
    if value is None:
        return False
    if math.isnan(value):
        raise ValueError("a time that is not a number")
    # A whole number of more than 64 bits has no form of its own, and the script would read one of
    # 64 bits as negative.
    return float(value)


# Requests


def _check_terms(priority: int | None, kind: str | None) -> None:
    if priority is not None and abs(priority) > EXACT:
        raise ValueError(
            f"priority must be at most 2**53 on Redis, up or down, got {priority}: its scripts "
            "count in doubles"
        )
    if kind is not None and len(kind.encode()) > LONGEST_KIND:
        raise ValueError(f"the kind is longer than {LONGEST_KIND} bytes")


def _put(request: Put) -> list[Any]:
    _check_terms(request.priority, request.kind)
    return [
        "put",
        request.queue,
        [key for key, _ in request.items],
        [raw(value) for _, value in request.items],
        request.policy,
        or_false(request.priority),
        seconds(request.delay),
        min(request.max_items, EXACT),
        request.kind,
        seconds(request.deadline),
        seconds(request.unique_for),
        0,
    ]


def _cap(cap: Cap) -> list[Any]:
    limits = (or_false(cap.in_flight), or_false(cap.rate))
    return [cap.queue, cap.pattern, *limits, cap.burst, cap.each]


def urgency_form(urgency: Urgency) -> list[Any]:
    """How urgent a queue is, as the script takes it."""
    return [urgency.priority, or_false(urgency.deadline), urgency.steps]


def caps_form(caps: Sequence[Cap]) -> Any:
    """Limits, as the script takes them."""
    return [_cap(cap) for cap in caps] or False


def _new_seed(claim: Claim) -> str:
    """What tokens are made of: twice as many digits as `TOKEN_SEED`, and what they end with."""
    return os.urandom(TOKEN_SEED).hex() + token_tail(claim.holder)


def _claim(request: Claim) -> list[Any]:
    several = len(request.queues) > 1
    lifts = any(request.lifts(number) for number in range(len(request.queues)))
    hurried = lifts or (several and request.by_turns)
    return [
        "claim",
        [part for queue, most in request.queues for part in (queue, min(most, EXACT))],
        min(request.limit, EXACT),
        or_false(request.key),
        seconds(request.lease_time if several or not request.queues else request.lease_time_of(0)),
        or_false(request.kinds),
        caps_form(request.caps),
        _new_seed(request),
        False,
        [urgency_form(urgency) for urgency in request.urgencies if hurried] or False,
        [seconds(time) for time in request.lease_times if several] or False,
        not several or request.in_order,
    ]


def _result(request: Ack | Cancel) -> msgspec.Raw:
    return raw(b"null" if request.result is None else request.result)


def _ack(request: Ack) -> list[Any]:
    return [
        "ack",
        request.queue,
        request.key,
        request.token,
        _result(request),
        seconds(request.keep),
        OUTCOMES.index(request.outcome),
    ]


def _release(request: Release) -> list[Any]:
    return [
        "release",
        request.queue,
        request.key,
        request.token,
        request.front,
        seconds(request.delay),
        request.error,
        request.undo,
    ]


def _extend(request: Extend) -> list[Any]:
    told = ["extend", request.queue, request.key, request.token, seconds(request.lease_time)]
    if request.progress is not None:
        told.append(b64encode(request.progress).decode())
    return told


def _bury(request: Bury) -> list[Any]:
    return ["bury", request.queue, request.key, request.token, request.error, request.hold]


def _cancel(request: Cancel) -> list[Any]:
    return [
        "cancel",
        request.queue,
        request.key,
        _result(request),
        seconds(request.keep),
        or_false(request.id),
        OUTCOMES.index(request.outcome),
        request.only_line,
    ]


def _amend(request: Amend) -> list[Any]:
    _check_terms(request.priority, request.kind)
    return [
        "amend",
        request.queue,
        request.key,
        request.id,
        False if request.value is None else raw(request.value),
        or_false(request.priority),
        seconds(request.delay),
        or_false(request.kind),
    ]


def cut_form(request: Cancel | Purge) -> list[Any]:
    """What is to be repeated before a change that takes more than one call."""
    if isinstance(request, Purge):
        return ["cut_buried", request.queue]
    outcome = OUTCOMES.index(request.outcome)
    kept = (_result(request), seconds(request.keep), outcome)
    return ["cut_line", request.queue, request.key, *kept]


def _requeue(request: Requeue) -> list[Any]:
    return [
        "requeue",
        request.queue,
        str(request.id),
        request.policy,
        min(request.max_items, EXACT),
        0,
    ]


def _discard(request: Discard) -> list[Any]:
    return ["discard", request.queue, str(request.id)]


def _purge(request: Purge) -> list[Any]:
    return ["purge", request.queue, request.part]


def _park(request: Park) -> list[Any]:
    claims: list[Any] = []
    for claim in request.claims:
        parts: list[Any] = []
        for number, (queue, most) in enumerate(claim.queues):
            if min(most, claim.limit) > 0:
                parts += [queue, seconds(claim.lease_time_of(number))]
        claims.append([or_false(claim.kinds), parts])
    milliseconds = int(request.lifetime * 1000)
    seed = _new_seed(request.claims[0])
    return ["park", request.worker, request.turn, milliseconds, seed, claims]


def _unpark(request: Unpark) -> list[Any]:
    return ["unpark", request.worker, request.turn, request.claims]


def _read(request: Read) -> list[Any]:
    return [request.verb, *request.arguments]


_FORMS: Final[dict[type, Callable[[Any], list[Any]]]] = {
    Put: _put,
    Claim: _claim,
    Ack: _ack,
    Release: _release,
    Extend: _extend,
    Bury: _bury,
    Cancel: _cancel,
    Amend: _amend,
    Requeue: _requeue,
    Discard: _discard,
    Purge: _purge,
    Park: _park,
    Unpark: _unpark,
    Read: _read,
}


def forms_of(requests: Iterable[RedisRequest]) -> list[list[Any]]:
    """Requests as the script takes them.

    Raises:
        ValueError: The script cannot take one of them.
    """
    return [_FORMS[type(request)](request) for request in requests]


def queues_of(request: RedisRequest) -> tuple[str, ...]:
    """The queues that a request speaks of."""
    match request:
        case Claim():
            return tuple([queue for queue, _ in request.queues])
        case Read():
            return request.queues
        case Park() | Unpark():
            return ()
        case _:
            return (request.queue,)


def new_ids(request: RedisRequest) -> int:
    """How many new items a request may make."""
    if isinstance(request, Put):
        return len(request.items)
    return 1 if isinstance(request, Requeue) else 0


# Answers


def is_damage(answer: Any) -> bool:
    """Whether the answer is that a queue is damaged."""
    return is_list(answer) and bool(answer) and answer[0] == b"damaged"


def damaged_queue(answer: list[Any]) -> str:
    """Which queue is damaged; empty: it is one of the batch."""
    name: bytes = answer[1]
    logger.debug("the script has met damage in the queue %r: %r", name, answer[2])
    return name.decode()


def answer_of(request: RedisRequest, answer: Any) -> Any:
    """The answer of the script as the contract has it."""
    match request:
        case Claim():
            return claimed(request, answer)
        case Read() | Park():
            return answer
        case Unpark():
            return (answer[0], leased(answer[1].decode(), *answer[2:])) if answer else None
        case Put() if not answer or isinstance(answer[0], int):
            return _placed(answer)
        case _ if is_list(answer):
            return _refusal(request, answer)
        case _:
            return _outcome(request, answer)


def _placed(answer: list[Any]) -> tuple[Placed, ...]:
    """Where a put has left its values: ids and, unless all were added, a letter for each."""
    if not answer or isinstance(answer[-1], int):
        return tuple([Placed(number, "added") for number in answer])
    *ids, letters = answer
    return tuple(
        [Placed(number, PUT_OUTCOMES[letter]) for number, letter in zip(ids, letters, strict=True)]
    )


def _outcome(request: RedisRequest, answer: Any) -> Any:
    """What a change that was not refused says."""
    match request:
        case Ack() | Release():
            return None
        case Extend():
            return float(answer) if answer else None
        case Amend() | Requeue() | Discard():
            return bool(answer)
        case _:
            return answer


def _refusal(request: Any, answer: list[Any]) -> LeasedKeyQError:
    if answer[0] == b"inflight":
        return keys_in_flight(tuple(key.decode() for key in answer[1]), answer[2])
    if answer[0] == b"present":
        return keys_present(tuple(key.decode() for key in answer[1]), answer[2])
    if answer[0] == b"full":
        return queue_full(request.queue, request.max_items)
    return Refusal(request.key)


def claimed(request: Claim, answer: Sequence[Any]) -> tuple[Claimed, ...]:
    """Leased items."""
    items: list[Claimed] = []
    queues = request.queues
    for at in range(0, len(answer), 4):
        number: int = answer[at]
        if number < 0:
            break
        items.append(leased(queues[number][0], answer[at + 1], answer[at + 2], answer[at + 3]))
    return tuple(items)


def leased(queue: str, key: bytes, lease: bytes, record: bytes) -> Claimed:
    """An item that was leased."""
    fence, _, expires_at = LEASE.unpack_from(lease)
    unpacked = ITEM.unpack_from(record)
    past = ITEM.size + unpacked[8]
    return Claimed(
        queue,
        key.decode(),
        record[past + unpacked[9] :],
        int(unpacked[0]),
        lease[LEASE.size :].decode(),
        int(fence),
        unpacked[6] + 1,
        int(unpacked[2]),
        expires_at or None,
        unpacked[1],
        record[ITEM.size : past].decode(),
        unpacked[5] or None,
    )


def given(message: bytes) -> tuple[int, Claimed]:
    """What was leased by a parked claim, and by which: as the script publishes it."""
    size = LEASE.size + TOKEN_SIZE
    if message[0] == SIZED:
        _, size = SIZED_LEASE.unpack_from(message)
        message = message[SIZED_LEASE.size :]
    _, turn, names, keys = GIVEN.unpack_from(message)
    key = GIVEN.size + names
    lease = key + keys
    record = lease + size
    queue = message[GIVEN.size : key].decode()
    item = leased(queue, message[key:lease], message[lease:record], message[record:])
    return int(turn), item


def is_cut_short(answer: Sequence[Any]) -> bool:
    """Whether one call had no time for all of a claim."""
    return bool(answer) and answer[-4] < 0


def rest_of(request: Claim, answer: Sequence[Any], items: Sequence[Claimed]) -> list[Any]:
    """The form of what is left of a claim that was cut short; `items` is what it has leased."""
    rest = _claim(request)
    rest[2] -= len(items)
    starts: list[Any] = []
    rest[8] = starts
    for at in [at for at in range(0, len(answer), 4) if answer[at] < 0]:
        number: int = -1 - answer[at]
        name, most = request.queues[number]
        rest[1][2 * number + 1] = min(most, EXACT) - sum(item.queue == name for item in items)
        starts.append([number, *[raw(part) for part in answer[at + 1 : at + 4]]])
    return rest


def rank_of(found: Sequence[Any]) -> Rank:
    """The rank of an item, as the script tells it."""
    in_time, priority, put_at, number = found
    return bool(in_time), int(float(priority)), float(put_at), int(float(number))


def shown(queue: str, found: Sequence[Any], *, reveal: bool = False) -> StoredItem:
    """An item that the script shows.

    Raises:
        StoreDamagedError: It cannot be read.
    """
    try:
        return _shown(queue, found, reveal)
    except (struct.error, ValueError, TypeError, IndexError, msgspec.MsgspecError) as error:
        raise StoreDamagedError(
            f"the queue {queue!r} is damaged: a record of it cannot be read, as somebody else has "
            f"changed it. `await store.repair({queue!r})` sets it aside, and makes the queue "
            "usable again",
            queue=queue,
        ) from error


def _shown(queue: str, found: Sequence[Any], reveal: bool) -> StoredItem:
    code: int = found[0]
    name: bytes = found[1]
    record: bytes = found[2]
    lease: bytes = found[3]
    error = ""
    key: str
    if code in ASIDE_STATES:
        keys, errors = ASIDE.unpack_from(record)
        start = ASIDE.size + keys
        key = record[ASIDE.size : start].decode()
        error = record[start : start + errors].decode()
        record = record[start + errors :]
    else:
        key = name.decode()
    number, put_at, priority, place, due, deadline, *rest = ITEM.unpack_from(record)
    attempt, ending, kinds, past = rest
    state = STATES[code]
    outcome: ResultOutcome | None = OUTCOMES[int(ending)] if state == "done" else None
    leased_at: float | None = None
    token = ""
    if state == "in_flight":
        _, leased_at, due = LEASE.unpack_from(lease)
        attempt += 1
        token = lease[LEASE.size :].decode()
    start = ITEM.size + kinds
    history, progress = _history(record[start : start + past])
    return StoredItem(
        id=int(number),
        queue=queue,
        key=key,
        state=state,
        value=record[start + past :],
        priority=int(priority),
        attempt=attempt,
        put_at=put_at,
        place=int(place) if state == "available" else 0,
        due=due or None,
        error=error,
        history=history,
        kind=record[ITEM.size : start].decode(),
        leased_at=leased_at,
        token=token if reveal else "",
        holder=holder_of(token),
        deadline=None if code in ASIDE_STATES else deadline or None,
        outcome=outcome,
        ended_at=place or None if state == "done" else None,
        holds=state == "buried" and bool(ending),
        progress=progress,
    )


_decode_history: Final = msgspec.msgpack.Decoder(
    list[tuple[int, float, LeaseEnd, str] | str]
).decode


def _history(packed: bytes) -> tuple[tuple[Attempt, ...], bytes | None]:
    """The past attempts, and the progress: a text behind them, in Base64."""
    if not packed:
        return (), None
    attempts: list[Attempt] = []
    progress: bytes | None = None
    for entry in _decode_history(packed):
        if isinstance(entry, str):
            progress = b64decode(entry, validate=True)
        else:
            attempts.append(Attempt(*entry))
    return tuple(attempts), progress


def counts(found: Sequence[int]) -> Counts:
    """How many items are in each state."""
    available, scheduled, in_flight, buried, done, failed, cancelled, held = found
    return Counts(
        available=available,
        scheduled=scheduled,
        in_flight=in_flight,
        buried=buried,
        done=done,
        done_failed=failed,
        done_cancelled=cancelled,
        held=held,
    )
