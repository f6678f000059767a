"""Wrong arguments and wrong leases: a clear error, and the queue unchanged."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from math import inf, nan
from typing import Any

import pytest

from leasedkeyq import (
    BuriedItem,
    InvalidLeaseError,
    Lease,
    LeaseAlreadyAcknowledgedError,
    LeasedKeyQError,
    LeasedKeyQueue,
    QueueClosedError,
)
from tests.support import check_invariants

Queue = LeasedKeyQueue[Any, Any]
Call = Callable[[Any, Any], Any]

NAMES_THE_ARGUMENT: list[tuple[type[Exception], str, Call]] = [
    # keys
    (TypeError, "key must be hashable, got list", lambda q, _: q.put([], 1)),
    (TypeError, "key must be hashable, got dict", lambda q, _: q.put_nowait({}, 1)),
    (TypeError, "key must be hashable, got list", lambda q, _: q.put_many([("ok", 1), ([], 2)])),
    (TypeError, "key must be hashable, got set", lambda q, _: q.take(set())),
    (TypeError, "key must be hashable, got list", lambda q, _: q.take_nowait([])),
    (TypeError, "key must be hashable, got list", lambda q, _: q.lease([]).__aenter__()),
    (TypeError, "key must be hashable, got list", lambda q, _: q.remove([])),
    (TypeError, "key must be hashable, got list", lambda q, _: q.purge_line([])),
    (TypeError, "key must be hashable, got list", lambda q, _: q.line([]).__anext__()),
    (TypeError, "key must be hashable, got list", lambda q, _: q.peek([])),
    (TypeError, "key must be hashable, got list", lambda q, _: q.contains([])),
    (TypeError, "items must be", lambda q, _: q.put_many(["ab"])),
    (TypeError, "items must be", lambda q, _: q.put_many([("a", 1), 2])),
    (TypeError, "items must be", lambda q, _: q.put_many(7)),
    # policies and priorities
    (ValueError, "if_in_flight must be", lambda q, _: q.put("new", 1, if_in_flight="other")),
    (ValueError, "if_in_flight must be", lambda q, _: q.put("leased", 1, if_in_flight=0)),
    (ValueError, "if_in_flight must be", lambda q, _: q.put_nowait("new", 1, if_in_flight=[])),
    (ValueError, "if_in_flight must be", lambda q, _: q.put_many({"a": 1}, if_in_flight="")),
    (ValueError, "if_present must be", lambda q, _: q.put("new", 1, if_present="other")),
    (ValueError, "if_present must be", lambda q, _: q.put("a", 1, if_present="buffer")),
    (ValueError, "if_present must be", lambda q, _: q.put_nowait("new", 1, if_present=[])),
    (ValueError, "if_present must be", lambda q, _: q.put_many({"a": 1}, if_present="")),
    (
        ValueError,
        "if_present and if_in_flight exclude each other",
        lambda q, _: q.put("new", 1, if_present="append", if_in_flight="update"),
    ),
    (
        ValueError,
        "if_present must not be 'skip' here",
        lambda q, _: q.requeue(BuriedItem(1, "a", 1, 0, 1, "", 0.0), if_present="skip"),
    ),
    (TypeError, "priority must be an int", lambda q, _: q.put("new", 1, priority=1.5)),
    (TypeError, "priority must be an int", lambda q, _: q.put("new", 1, priority=True)),
    # times
    (ValueError, "delay must not be negative", lambda q, _: q.put("new", 1, delay=-1)),
    (ValueError, "delay must not be negative or NaN", lambda q, _: q.put("new", 1, delay=nan)),
    (ValueError, "delay is too large", lambda q, _: q.put("new", 1, delay=10**400)),
    (ValueError, "timeout is too large", lambda q, _: q.get(timeout=10**400)),
    (TypeError, "error must be a str", lambda q, lease: q.bury(lease, ValueError("x"))),
    (TypeError, "requeue_front must be", lambda q, lease: q.release(lease, requeue_front="no")),
    (ValueError, "delay must be finite", lambda q, _: q.put("new", 1, delay=inf)),
    (TypeError, "delay must be seconds", lambda q, _: q.put("new", 1, delay="5")),
    (ValueError, "delay must not be negative", lambda q, _: q.put("a", 1, delay=timedelta(-1))),
    (ValueError, "timeout must not be negative", lambda q, _: q.get(timeout=-0.1)),
    (ValueError, "timeout must not be negative or NaN", lambda q, _: q.get(timeout=nan)),
    (TypeError, "timeout must be seconds", lambda q, _: q.get(timeout="1")),
    (ValueError, "timeout must not be negative", lambda q, _: q.take("a", timeout=-1)),
    (ValueError, "timeout must not be negative", lambda q, _: q.take("gone", timeout=-1)),
    (ValueError, "lease_timeout must not be negative", lambda q, _: q.get(lease_timeout=-1)),
    (ValueError, "lease_timeout must not be negative", lambda q, _: q.get(lease_timeout=nan)),
    (ValueError, "lease_timeout must be greater than 0", lambda q, _: q.get(lease_timeout=0)),
    (ValueError, "lease_timeout must be greater", lambda q, _: q.take("a", lease_timeout=0)),
    (ValueError, "lease_timeout must be greater", lambda q, _: q.get_nowait(lease_timeout=0)),
    (ValueError, "lease_timeout must be greater", lambda q, _: q.get_many(1, lease_timeout=0)),
    (ValueError, "timeout must be greater than 0", lambda q, lease: q.extend(lease, 0)),
    (ValueError, "timeout must not be negative", lambda q, lease: q.extend(lease, -1)),
    (ValueError, "delay must not be negative", lambda q, lease: q.release(lease, delay=-1)),
    (
        ValueError,
        "requeue_front and delay exclude",
        lambda q, lease: q.release(lease, requeue_front=True, delay=1),
    ),
    # numbers
    (ValueError, "n must be at least 1", lambda q, _: q.get_many(0)),
    (ValueError, "id must be at least 1", lambda q, _: q.remove("a", id=0)),
    (ValueError, "id must be at least 1", lambda q, _: q.remove("gone", id=-1)),
    (TypeError, "id must be an int", lambda q, _: q.remove("gone", id="1")),
    (TypeError, "hold must be True or False", lambda q, lease: q.bury(lease, hold="yes")),
    (TypeError, "n must be an int", lambda q, _: q.get_many("2")),
    # leases
    (TypeError, "lease must be the Lease", lambda q, lease: q.ack(lease.token)),
    (TypeError, "lease must be the Lease", lambda q, _: q.release(None)),
    (TypeError, "key must be hashable, got list", lambda q, _: q.ack(Lease("x", []))),
    (TypeError, "key must be hashable, got list", lambda q, _: q.extend(Lease("x", []), 1)),
    (TypeError, "buried must be a BuriedItem", lambda q, _: q.requeue("a")),
    (TypeError, "buried must be a BuriedItem", lambda q, _: q.discard("a")),
    (KeyError, "no buried item 1", lambda q, _: q.discard(BuriedItem(1, "a", 1, 0, 1, "", 0.0))),
    (KeyError, "no buried item 1", lambda q, _: q.requeue(BuriedItem(1, "a", 1, 0, 1, "", 0.0))),
    (TypeError, "lease must be the Lease", lambda q, _: q.extend("leased", 1)),
    (TypeError, "lease must be the Lease", lambda q, lease: q.bury(("leased", 1, lease))),
]


async def picture(queue: Queue) -> tuple[Any, ...]:
    return await queue.snapshot(), await queue.buried(), queue._state.fence


@pytest.mark.parametrize("maxsize", [0, 3])
@pytest.mark.parametrize("error, text, call", NAMES_THE_ARGUMENT)
async def test_wrong_arguments(error: type[Exception], text: str, call: Call, maxsize: int) -> None:
    queue = Queue(maxsize=maxsize)
    await queue.put("leased", 1)
    _, _, lease = await queue.get()
    await queue.put("a", 1)
    before = await picture(queue)
    with pytest.raises(error, match=text):
        result = call(queue, lease)
        if isinstance(result, Awaitable):
            await result
    assert await picture(queue) == before
    check_invariants(queue)


@pytest.mark.parametrize(
    "options, error, text",
    [
        ({"maxsize": -1}, ValueError, "maxsize must be at least 0, got -1"),
        ({"maxsize": 1.0}, TypeError, "maxsize must be an int"),
        ({"observer": 3}, TypeError, "observer must have the methods of QueueObserver; on_put"),
        ({"max_buried": -1}, ValueError, "max_buried must be at least 0"),
        ({"default_lease_timeout": 0}, ValueError, "default_lease_timeout must be greater than 0"),
        ({"default_lease_timeout": -3}, ValueError, "default_lease_timeout must not be negative"),
        ({"default_lease_timeout": nan}, ValueError, "default_lease_timeout must not be neg"),
        ({"default_lease_timeout": "9"}, TypeError, "default_lease_timeout must be seconds"),
    ],
)
def test_wrong_options(options: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        Queue(**options)


LEASES = ["of another queue", "forged", "acknowledged", "released", "expired", "removed"]


@pytest.mark.parametrize("method", ["ack", "release", "extend", "bury"])
@pytest.mark.parametrize("kind", LEASES)
async def test_wrong_leases(kind: str, method: str) -> None:
    queue, other = Queue(), Queue()
    await queue.put("a", 1)
    await other.put("a", 1)
    _, _, lease = await queue.get(lease_timeout=5)
    match kind:
        case "of another queue":
            _, _, lease = await other.get()
        case "forged":
            lease = Lease("x", "a")
        case "acknowledged":
            await queue.ack(lease)
        case "released":
            await queue.release(lease)
        case "removed":
            await queue.remove("a")
        case _:
            await asyncio.sleep(5)
    before = await picture(queue)
    expected: type[LeasedKeyQError] = InvalidLeaseError
    if kind == "acknowledged":
        expected = LeaseAlreadyAcknowledgedError
    with pytest.raises(expected, match="'a'") as caught:
        await getattr(queue, method)(lease)
    error: Any = caught.value
    assert error.key == "a"
    assert await picture(queue) == before
    check_invariants(queue)


async def test_a_put_on_a_closed_queue() -> None:
    queue = Queue()
    await queue.close()
    with pytest.raises(QueueClosedError, match="put: the queue is closed"):
        await queue.put("a", 1)
    assert await queue.qsize() == 0


async def test_a_long_key_does_not_drown_the_message() -> None:
    queue = Queue()
    with pytest.raises(InvalidLeaseError) as caught:
        await queue.ack(Lease("x", "k" * 100_000))
    assert len(str(caught.value)) < 250
    assert "(100002 characters)" in str(caught.value)


async def test_a_key_whose_hash_fails_keeps_its_own_error() -> None:
    class Odd:
        def __hash__(self) -> int:
            raise OSError("no hash today")

    queue = Queue()
    for call in (queue.put(Odd(), 1), queue.take(Odd()), queue.peek(Odd())):
        with pytest.raises(OSError, match="no hash today"):
            await call
    assert await queue.snapshot() == []


async def test_a_key_whose_comparison_fails_keeps_its_own_error() -> None:
    class Odd:
        def __hash__(self) -> int:
            return 1

        def __eq__(self, other: object) -> bool:
            raise TypeError("incomparable")

    queue = Queue()
    await queue.put(Odd(), 1)
    with pytest.raises(TypeError, match="incomparable"):
        await queue.put(Odd(), 2)
    assert await queue.qsize() == 1


class Unfriendly:
    """A key that cannot be shown, and cannot be compared once `sulking` is set."""

    sulking = False

    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        if Unfriendly.sulking:
            raise OSError("not now")
        return self is other

    def __repr__(self) -> str:
        raise OSError("no name")


async def test_a_key_that_cannot_be_shown() -> None:
    queue = Queue()
    key = Unfriendly()
    with pytest.raises(TimeoutError, match="<Unfriendly that cannot be shown>"):
        await queue.take(key, timeout=1)
    await queue.put(key, 1)
    _, _, lease = await queue.get()
    await queue.ack(lease)
    with pytest.raises(LeaseAlreadyAcknowledgedError):
        await queue.ack(lease)


@pytest.mark.parametrize("priority", [0, 3])
async def test_a_comparison_that_fails_in_the_middle_changes_nothing(
    priority: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = Queue()
    await queue.put(Unfriendly(), 1)
    await queue.get()
    await queue.put(Unfriendly(), 2, priority=priority)
    before = await picture(queue)
    monkeypatch.setattr(Unfriendly, "sulking", True)
    with pytest.raises(OSError, match="not now"):
        await queue.get()
    monkeypatch.setattr(Unfriendly, "sulking", False)
    assert await picture(queue) == before
    check_invariants(queue)
    assert (await queue.get())[1] == 2
