"""`QueueItem`: its arrows, its retries, and its way to text and back."""

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from leasedkeyq import LeasedKeyQError
from leasedkeyq.repository import (
    Backoff,
    InvalidItemError,
    InvalidTransitionError,
    Queue,
    QueueItem,
    QueueItemStatus,
)
from leasedkeyq.repository.status import ARROWS, can_become
from tests.repository.support import LocalTime

PENDING, PROCESSING, COMPLETED, FAILED, CANCELLED = QueueItemStatus
NOON = datetime(2026, 2, 6, 12, tzinfo=UTC)


def item(status: QueueItemStatus = PENDING, **fields: Any) -> QueueItem:
    created_at = fields.pop("created_at", NOON)
    return QueueItem("i1", "mail", {"to": "ada"}, status, created_at, **fields)


# The fields


def test_create() -> None:
    before = datetime.now(UTC)
    made = QueueItem.create("mail", {"to": "ada"}, 5, scheduled_at=NOON, metadata={"by": "me"})
    assert (made.type, made.payload, made.priority) == ("mail", {"to": "ada"}, 5)
    assert (made.status, made.retry_count, made.max_retries) == (PENDING, 0, 3)
    assert (made.scheduled_at, made.metadata) == (NOON, {"by": "me"})
    assert before <= made.created_at <= datetime.now(UTC)
    assert (made.started_at, made.completed_at, made.error_message) == (None, None, None)


def test_ids_are_unique_and_sort_by_time() -> None:
    ids = [QueueItem.create("x", {}).id for _ in range(10_000)]
    assert len(set(ids)) == len(ids)
    assert all(UUID(made).version == 7 for made in ids[:100])
    times = [UUID(made).int >> 80 for made in ids]
    assert times == sorted(times)


def test_items_do_not_share_what_they_were_made_of() -> None:
    payload: dict[str, Any] = {}
    first, second = QueueItem.create("x", payload), QueueItem.create("x", payload)
    first.payload["a"] = first.metadata["a"] = 1
    assert payload == second.payload == second.metadata == {}


@pytest.mark.parametrize("zone, hours", [("UTC", 0), ("EST5EDT,M3.2.0,M11.1.0", -5), ("XYZ-9", 9)])
def test_times_without_a_zone_are_local(local_time: LocalTime, zone: str, hours: int) -> None:
    local_time(zone)
    there = timezone(timedelta(hours=hours))
    made = item(scheduled_at=datetime(2026, 1, 1))  # noqa: DTZ001 - that is the point
    assert made.scheduled_at == datetime(2026, 1, 1, tzinfo=there)
    made.started_at = datetime(2026, 1, 2)  # noqa: DTZ001
    assert made.started_at == datetime(2026, 1, 2, tzinfo=there)
    # As the first version of a script made them.
    now = datetime.now(UTC)
    old = item(created_at=datetime.now(), scheduled_at=datetime.now())  # noqa: DTZ005
    for moment in (old.created_at, old.scheduled_at, QueueItem.create("x", {}).created_at):
        assert moment is not None
        assert now <= moment <= datetime.now(UTC)
    assert old.is_due()
    assert old.is_due(datetime.now())  # noqa: DTZ005
    assert QueueItem.from_dict(old.to_dict()) == old
    old.start(now=datetime.now())  # noqa: DTZ005
    old.fail("no", now=datetime.now(), backoff=Backoff(10, jitter=0))  # noqa: DTZ005
    assert not old.is_due(datetime.now())  # noqa: DTZ005
    assert old.is_due(datetime.now() + timedelta(seconds=11))  # noqa: DTZ005
    queue = Queue("q", [old])
    assert queue.dequeue(now=datetime.now()) is None  # noqa: DTZ005
    assert queue.peek(now=datetime.now() + timedelta(seconds=11)) is old  # noqa: DTZ005


def test_local_time_of_long_ago(local_time: LocalTime) -> None:
    """Offsets had seconds then, which cannot be written."""
    local_time("XYZ+4:56:02")
    made = item(scheduled_at=datetime(2026, 1, 1))  # noqa: DTZ001
    assert made.scheduled_at is not None
    assert made.scheduled_at.isoformat() == "2026-01-01T04:56:02+00:00"
    for moment in (datetime.min, datetime.max):  # noqa: DTZ901
        with pytest.raises(InvalidItemError, match="started_at must be a time with its zone"):
            made.started_at = moment


# The arrows

LEGAL = [
    (PENDING, PROCESSING),
    (PENDING, CANCELLED),
    (PROCESSING, PENDING),
    (PROCESSING, COMPLETED),
    (PROCESSING, FAILED),
    (PROCESSING, CANCELLED),
    (FAILED, PENDING),
    (FAILED, CANCELLED),
]
ILLEGAL = [
    (before, after)
    for before in QueueItemStatus
    for after in QueueItemStatus
    if before is not after and (before, after) not in LEGAL
]


@pytest.mark.parametrize("before, after", LEGAL)
def test_legal_arrow(before: QueueItemStatus, after: QueueItemStatus) -> None:
    made = item(before)
    made.status = after
    assert made.status is after
    assert can_become(before, after)


@pytest.mark.parametrize("before, after", ILLEGAL)
def test_illegal_arrow(before: QueueItemStatus, after: QueueItemStatus) -> None:
    made = item(before)
    with pytest.raises(InvalidTransitionError) as raised:
        made.status = after
    error = raised.value
    assert isinstance(error, LeasedKeyQError)
    assert (error.item_id, error.from_status, error.to_status) == ("i1", before, after)
    assert before.value in str(error)
    assert after.value in str(error)
    assert made.status is before


def test_can_become_follows_the_arrows() -> None:
    for before in QueueItemStatus:
        reached, new = {before}, {before}
        while new:
            new = {after for status in new for after in ARROWS[status]} - reached
            reached |= new
        assert {after for after in QueueItemStatus if can_become(before, after)} == reached


METHODS: dict[str, tuple[Callable[[QueueItem], None], set[QueueItemStatus]]] = {
    "start": (QueueItem.start, {PENDING}),
    "complete": (QueueItem.complete, {PROCESSING}),
    "fail": (lambda made: made.fail("oh"), {PROCESSING}),
    "cancel": (QueueItem.cancel, {PENDING, PROCESSING, FAILED}),
    "retry": (QueueItem.retry, {FAILED}),
}


@pytest.mark.parametrize("status", QueueItemStatus)
@pytest.mark.parametrize("method", METHODS)
def test_method_keeps_to_the_arrows(method: str, status: QueueItemStatus) -> None:
    call, allowed = METHODS[method]
    made = item(status)
    before = made.to_dict()
    if status in allowed:
        call(made)
        assert made.status is not status
    else:
        with pytest.raises(InvalidTransitionError) as raised:
            call(made)
        assert raised.value.from_status is status
        assert made.to_dict() == before


def test_start_and_complete_say_when() -> None:
    made = item()
    made.start(now=NOON)
    assert made.started_at == NOON
    made.complete(now=NOON + timedelta(seconds=5))
    assert made.completed_at == NOON + timedelta(seconds=5)


# Failures


def test_fail_until_given_up() -> None:
    """As the seed counts: with max_retries=3 there are three attempts."""
    made = item(max_retries=3)
    for attempt in (1, 2):
        made.start()
        made.fail(f"error {attempt}", backoff=lambda failures: 10.0 * failures, now=NOON)
        assert (made.status, made.retry_count) == (PENDING, attempt)
        assert made.error_message == f"error {attempt}"
        assert made.scheduled_at == NOON + timedelta(seconds=10 * attempt)
    made.start()
    made.fail(ValueError("the last"), now=NOON)
    assert (made.status, made.retry_count) == (FAILED, 3)
    assert made.error_message == "ValueError: the last"


@pytest.mark.parametrize("max_retries", [0, 1])
def test_one_attempt_is_always_made(max_retries: int) -> None:
    made = item(max_retries=max_retries)
    made.start()
    made.fail("oh")
    assert (made.status, made.retry_count) == (FAILED, 1)


def test_fail_waits_by_default() -> None:
    made = item(PROCESSING)
    made.fail("oh", now=NOON)
    assert made.scheduled_at is not None
    assert NOON < made.scheduled_at <= NOON + timedelta(seconds=1)


def test_fail_without_an_error_to_show() -> None:
    made = item(PROCESSING)
    made.fail(KeyError())
    assert made.error_message == "KeyError"
    wrong: Any = 7
    made = item(PROCESSING)
    with pytest.raises(TypeError, match="error must be"):
        made.fail(wrong)
    assert made == item(PROCESSING)


def test_a_broken_backoff_is_refused() -> None:
    made = item(PROCESSING)
    with pytest.raises(ValueError, match="backoff"):
        made.fail("oh", backoff=lambda failures: -1)
    assert made == item(PROCESSING)


def test_retry_starts_anew() -> None:
    made = item(FAILED, retry_count=3, error_message="oh", scheduled_at=NOON)
    made.retry()
    assert (made.status, made.retry_count, made.scheduled_at) == (PENDING, 0, None)
    assert made.error_message == "oh"


def test_backoff_grows_to_its_limit() -> None:
    backoff = Backoff(first=1, factor=3, most=20, jitter=0)
    assert [backoff(failures) for failures in (1, 2, 3, 4, 10_000)] == [1, 3, 9, 20, 20]


def test_backoff_has_jitter() -> None:
    chances = iter([0.0, 0.5, 1.0])
    backoff = Backoff(first=timedelta(seconds=8), jitter=0.5, chance=lambda: next(chances))
    assert [backoff(1) for _ in range(3)] == [8, 6, 4]
    assert len({Backoff()(5) for _ in range(10)}) > 1


@pytest.mark.parametrize(
    "options",
    [{"first": -1}, {"most": math.nan}, {"factor": 0.5}, {"factor": math.nan}, {"jitter": 2}],
)
def test_backoff_refuses_nonsense(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        Backoff(**options)


# As data

MOMENTS = st.datetimes(
    timezones=st.just(UTC) | st.integers(-720, 720).map(lambda m: timezone(timedelta(minutes=m))),
    min_value=datetime(1, 1, 2),  # noqa: DTZ001 - hypothesis wants it so
    max_value=datetime(9999, 12, 30),  # noqa: DTZ001
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)
ITEMS = st.builds(
    QueueItem,
    id=st.text(min_size=1),
    type=st.text(),
    payload=st.dictionaries(st.text(), JSON),
    status=st.sampled_from(QueueItemStatus),
    created_at=MOMENTS,
    priority=st.integers(),
    scheduled_at=st.none() | MOMENTS,
    started_at=st.none() | MOMENTS,
    completed_at=st.none() | MOMENTS,
    retry_count=st.integers(min_value=0),
    max_retries=st.integers(min_value=0),
    error_message=st.none() | st.text(),
    metadata=st.dictionaries(st.text(), JSON),
)


@given(ITEMS)
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # the machine may be busy
def test_from_dict_is_the_inverse_of_to_dict(made: QueueItem) -> None:
    again = QueueItem.from_dict(made.to_dict())
    assert again == made
    assert again.to_dict() == made.to_dict()


def test_to_dict_has_the_fields_of_the_seed() -> None:
    assert item(max_retries=2).to_dict() == {
        "id": "i1",
        "type": "mail",
        "payload": {"to": "ada"},
        "status": "pending",
        "created_at": "2026-02-06T12:00:00+00:00",
        "priority": 0,
        "scheduled_at": None,
        "started_at": None,
        "completed_at": None,
        "retry_count": 0,
        "max_retries": 2,
        "error_message": None,
        "metadata": {},
    }


def test_from_dict_takes_times_as_people_write_them() -> None:
    data = item().to_dict() | {
        "created_at": "2026-02-06T13:00:00",
        "scheduled_at": "2026-02-06T14:00:00Z",
        "started_at": datetime(2026, 2, 6, 15),  # noqa: DTZ001
        "unknown": 1,
    }
    made = QueueItem.from_dict(data)
    assert made.created_at == NOON + timedelta(hours=1)
    assert made.scheduled_at == NOON + timedelta(hours=2)
    assert made.started_at == NOON + timedelta(hours=3)


@pytest.mark.parametrize("field", ["id", "type", "payload", "status", "created_at"])
def test_from_dict_names_what_is_missing(field: str) -> None:
    data = item().to_dict()
    del data[field]
    with pytest.raises(InvalidItemError, match=f"'{field}' is missing") as raised:
        QueueItem.from_dict(data)
    assert raised.value.field == field
    assert raised.value.item_id == ("" if field == "id" else "i1")


@pytest.mark.parametrize(
    "field, value",
    [
        ("id", ""),
        ("id", 7),
        ("type", None),
        ("payload", [1]),
        ("status", "done"),
        ("status", 7),
        ("created_at", None),
        ("created_at", "yesterday"),
        ("scheduled_at", 12.5),
        ("priority", "high"),
        ("priority", True),
        ("retry_count", -1),
        ("max_retries", 1.5),
        ("error_message", 7),
        ("metadata", "x"),
    ],
)
def test_from_dict_names_what_is_wrong(field: str, value: object) -> None:
    with pytest.raises(InvalidItemError, match=field) as raised:
        QueueItem.from_dict(item().to_dict() | {field: value})
    assert raised.value.field == field
    assert str(raised.value).startswith("item ")


def test_from_dict_wants_a_mapping() -> None:
    wrong: Any = ["id"]
    with pytest.raises(InvalidItemError, match="mapping"):
        QueueItem.from_dict(wrong)


def test_create_refuses_what_is_no_payload() -> None:
    wrong: Any = "text"
    with pytest.raises(InvalidItemError, match="payload"):
        QueueItem.create("x", wrong)
