"""What a store does not take: requests beyond its `Limits`, and names that no store can keep.

The verbs of `leasedkeyq.stores.Store` ask this before an engine sees a request, so that all stores
refuse the same requests with the same errors.
"""

from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any, Final, Literal, TypeAlias, TypeVar, cast, get_args

from leasedkeyq import checks
from leasedkeyq.checks import is_storable, is_text
from leasedkeyq.errors import LeasedKeyQError, LimitExceededError, UnstorableError, describe
from leasedkeyq.model.holders import LONGEST_HOLDER
from leasedkeyq.model.requests import (
    OUTCOMES,
    Ack,
    Amend,
    Bury,
    Cancel,
    Claim,
    Discard,
    Extend,
    Limits,
    Purge,
    Put,
    Release,
    Requeue,
)
from leasedkeyq.types import PutPolicy

R = TypeVar("R")

LimitName: TypeAlias = Literal["key_length", "value_size", "batch_size", "buried"]
"""The `Limits` that requests are refused for."""
LARGEST_PRIORITY = 2**63 - 1
LARGEST_ID = 2**63 - 1
PUT_POLICIES: Final[tuple[PutPolicy, ...]] = get_args(PutPolicy)


def admit(requests: Sequence[R], limits: Limits) -> tuple[Sequence[R], dict[int, LeasedKeyQError]]:
    """Those requests of a batch that may be stored, and why the others must not, by number.

    Raises:
        TypeError: One is no request to put or settle something.
    """
    refusals: dict[int, LeasedKeyQError] = {}
    for number, request in enumerate(requests):
        check = _CHECKS.get(type(request))
        if check is None:
            raise TypeError(f"{type(request).__name__} is no request to put or settle something")
        try:
            check(request, limits)
        except LeasedKeyQError as error:
            refusals[number] = error
        except (TypeError, ValueError) as error:
            refusals[number] = refusal = UnstorableError(f"the request cannot be stored: {error}")
            refusal.__cause__ = error
    if not refusals:
        return requests, refusals
    return [r for number, r in enumerate(requests) if number not in refusals], refusals


def refusal_of(request: object, limits: Limits) -> LeasedKeyQError | None:
    """Why a request must not be stored; None if it may be."""
    return admit((request,), limits)[1].get(0)


def with_refusals(refusals: dict[int, LeasedKeyQError], answers: Sequence[Any]) -> list[Any]:
    """The answers to a batch: those of the store, and the refusals of `admit` in their places."""
    given = iter(answers)
    size = len(refusals) + len(answers)
    return [refusals.get(number) or next(given) for number in range(size)]


def _check_put(put: Put, limits: Limits) -> None:
    check_name("the name of a queue", put.queue, limits)
    _check_terms(put, limits)
    if put.deadline is not None:
        _check_span("deadline", put.deadline)
    _check_policy(put.policy)
    if put.max_items != 0:
        checks.whole("max_items", put.max_items, 0, LARGEST_ID)
    if put.unique_for != 0.0:
        checks.number("unique_for", put.unique_for, least=0)
    if len(put.items) > limits.batch_size:
        message = f"{len(put.items)} items in one put on queue {put.queue!r}"
        raise limit_exceeded(message, "batch_size", limits)
    longest, largest = limits.key_length, limits.value_size
    for key, value in put.items:
        # Two calls for each item of a batch would cost more than all else here.
        if not (
            type(key) is str and 0 < len(key) <= longest and key.isascii() and "\x00" not in key
        ):
            check_name("key", key, limits)
        if type(value) is not bytes or len(value) > largest:
            check_size("value", key, value, limits)


def _check_terms(request: Put | Amend, limits: Limits) -> None:
    """The kind, the priority and the delay of what is put or amended."""
    kind = request.kind
    if kind if isinstance(kind, str) else kind is not None or isinstance(request, Put):
        check_name("kind", cast("str", kind), limits)
    if request.priority is not None:
        check_priority(request.priority)
    if request.delay is not None:
        _check_span("delay", request.delay)


def _check_span(name: str, value: float) -> None:
    """Refuse seconds that no store can count: they are no number, or have no end."""
    if type(value) is not float or not isfinite(value):
        checks.number(name, value)


def _check_id(name: str, value: int) -> None:
    """Refuse the number of an item that none can have."""
    if type(value) is not int or not -LARGEST_ID <= value <= LARGEST_ID:
        checks.whole(name, value, -LARGEST_ID, LARGEST_ID)


def _check_error(error: str) -> None:
    """Refuse an error that no store can keep; `leasedkeyq.checks.storable` mends a text."""
    if not is_storable(error):
        message = "error must be text without NUL characters and lone surrogates"
        raise ValueError(f"{message}, got {describe(error)}")


def _check_amend(amend: Amend, limits: Limits) -> None:
    _check_texts(amend, (amend.queue, amend.key))
    checks.whole("id", amend.id, 0, LARGEST_ID)
    _check_terms(amend, limits)
    if amend.value is not None:
        check_size("value", amend.key, amend.value, limits)


def _check_ack(ack: Ack, limits: Limits) -> None:
    _check_texts(ack, (ack.queue, ack.key, ack.token))
    _check_ending(ack, limits)


def _check_cancel(cancel: Cancel, limits: Limits) -> None:
    _check_texts(cancel, (cancel.queue, cancel.key))
    if cancel.id is not None:
        _check_id("id", cancel.id)
    _check_ending(cancel, limits)


def _check_policy(policy: object) -> None:
    if policy not in PUT_POLICIES:
        raise ValueError(f"policy must be one of {', '.join(PUT_POLICIES)}, got {policy!r}")


def _check_ending(request: Ack | Cancel, limits: Limits) -> None:
    if request.outcome not in OUTCOMES:
        raise ValueError(f"outcome must be one of {', '.join(OUTCOMES)}, got {request.outcome!r}")
    if request.result is not None:
        check_size("result", request.key, request.result, limits)
    if request.keep != 0.0:
        _check_span("keep", request.keep)


def _check_release(release: Release, _: Limits) -> None:
    _check_texts(release, (release.queue, release.key, release.token))
    if release.delay != 0.0:
        _check_span("delay", release.delay)
    if release.error != "":
        _check_error(release.error)


def _check_bury(bury: Bury, _: Limits) -> None:
    _check_texts(bury, (bury.queue, bury.key, bury.token))
    if bury.error != "":
        _check_error(bury.error)


def _check_extend(extend: Extend, limits: Limits) -> None:
    _check_texts(extend, (extend.queue, extend.key, extend.token))
    if extend.lease_time is not None:
        _check_span("lease_time", extend.lease_time)
    if extend.progress is not None:
        check_size("progress", extend.key, extend.progress, limits)


def _check_requeue(requeue: Requeue, _: Limits) -> None:
    _check_texts(requeue, (requeue.queue,))
    _check_policy(requeue.policy)
    _check_id("id", requeue.id)
    if requeue.max_items != 0:
        checks.whole("max_items", requeue.max_items, 0, LARGEST_ID)


def _check_purge(purge: Purge, _: Limits) -> None:
    _check_texts(purge, (purge.queue,))


def _check_discard(discard: Discard, _: Limits) -> None:
    _check_texts(discard, (discard.queue,))
    _check_id("id", discard.id)


_CHECKS: Final[dict[type, Callable[[Any, Limits], None]]] = {
    Put: _check_put,
    Ack: _check_ack,
    Release: _check_release,
    Extend: _check_extend,
    Bury: _check_bury,
    Cancel: _check_cancel,
    Amend: _check_amend,
    Requeue: _check_requeue,
    Purge: _check_purge,
    Discard: _check_discard,
}


def check_claims(claims: Sequence[Claim]) -> None:
    """Refuse to claim by names that no store can have.

    Raises:
        UnstorableError: A queue, the key, a kind or the holder of a claim is no text, the holder
            is too long, a limit is no whole number, or a lease time has no end.
    """
    for claim in claims:
        queues = claim.queues
        try:
            _check_numbers(claim)
        except (TypeError, ValueError) as error:
            raise UnstorableError(f"the claim makes no sense: {error}") from error
        names = [queues[0][0]] if len(queues) == 1 else [queue for queue, _ in queues]
        if claim.key is not None:
            names.append(claim.key)
        if claim.kinds:
            names += claim.kinds
        if claim.caps:
            names += [cap.queue for cap in claim.caps]
        if claim.holder != "":
            names.append(claim.holder)
        _check_texts(claim, names)
        if len(claim.holder) > LONGEST_HOLDER:
            raise UnstorableError(_too_long(claim.holder))


def _check_numbers(claim: Claim) -> None:
    for _, limit in ((None, claim.limit), *claim.queues):
        if type(limit) is not int or not -LARGEST_ID <= limit <= LARGEST_ID:
            checks.whole("limit", limit, -LARGEST_ID, LARGEST_ID)
    for lease_time in claim.lease_times or (claim.lease_time,):
        if lease_time is not None:
            _check_span("lease_time", lease_time)


def check_holder(holder: str) -> str:
    """A holder of leases.

    Raises:
        ValueError: It is too long, or no text.
        TypeError: It is no string.
    """
    if not isinstance(holder, str):
        raise TypeError(f"holder must be a str, got {describe(holder)}")
    if len(holder) > LONGEST_HOLDER:
        raise ValueError(_too_long(holder))
    if not is_storable(holder):
        message = "holder must be text without NUL characters and lone surrogates"
        raise ValueError(f"{message}, got {describe(holder)}")
    return holder


def _too_long(holder: str) -> str:
    return (
        f"the holder of a lease may have {LONGEST_HOLDER} characters, "
        f"got {len(holder)}: {describe(holder)}"
    )


def _check_texts(request: object, names: Sequence[str]) -> None:
    """As `check_names`, of the names in a request; looks at all of them at a time."""
    try:
        text = "".join(names)
        if text.isascii() and "\x00" not in text:
            return
    except TypeError:  # one of them is no string
        pass
    check_names(type(request).__name__, names)


def check_size(what: str, key: str, value: object, limits: Limits) -> None:
    """Refuse the value, result or progress of a key that is too large, or is not encoded."""
    if not isinstance(value, bytes):
        kind = type(value).__name__
        raise TypeError(f"the {what} of key {describe(key)} must be bytes, got {kind}")
    if len(value) > limits.value_size:
        message = f"the {what} of key {describe(key)} has {len(value)} bytes"
        raise limit_exceeded(message, "value_size", limits)


def limit_exceeded(what: str, limit: LimitName, limits: Limits) -> LimitExceededError:
    """The error for what is beyond a limit: it says what that is, and what to do about it."""
    most: int = getattr(limits, limit)
    advice = f"use less, or open the store with limits=Limits({limit}=...)"
    message = f"{what}; the limit {limit} is {most}: {advice}"
    return LimitExceededError(message, limit=limit, most=most)


def check_name(name: str, value: str, limits: Limits) -> str:
    """A key or the name of a queue: a string that is not empty, not too long, and is text."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str on a store, got {describe(value)}")
    if not value:
        raise ValueError(f"{name} must not be empty")
    if len(value) > limits.key_length:
        message = f"{name} has {len(value)} characters: {describe(value)}"
        raise limit_exceeded(message, "key_length", limits)
    if "\x00" in value or not (value.isascii() or is_text(value)):
        message = f"{name} must be text without NUL characters and lone surrogates"
        raise ValueError(f"{message}, got {describe(value)}")
    return value


def check_names(what: str, names: Sequence[str]) -> None:
    """Refuse to ask for keys or names of queues that no store can have: those that are no text."""
    for name in names:
        if not is_storable(name):
            message = f"{what}: a name is text without NUL characters and lone surrogates"
            raise UnstorableError(f"{message}, got {describe(name)}")


def check_ids(ids: Sequence[int]) -> None:
    """Refuse to ask for items by numbers that none can have."""
    try:
        for number in ids:
            _check_id("id", number)
    except (TypeError, ValueError) as error:
        raise UnstorableError(f"ids: {error}") from error


def check_priority(priority: int | None) -> None:
    """Refuse a priority that stores cannot keep: they have whole numbers of 64 bits."""
    if priority is None:
        return
    if type(priority) is not int:
        checks.whole("priority", priority, -LARGEST_PRIORITY)
    if abs(priority) > LARGEST_PRIORITY:
        got = describe(priority)
        raise ValueError(f"priority must be below 2**63 on a store, up or down, got {got}")
