"""`QueueRepository` on every kind of store: the items, one by one and all together."""

from datetime import timedelta
from typing import Any

import pytest

from leasedkeyq import MemoryStore, QueueFullError
from leasedkeyq.errors import LimitExceededError
from leasedkeyq.repository import (
    DuplicateItemError,
    InvalidItemError,
    InvalidTransitionError,
    ItemNotFoundError,
    QueueItem,
    QueueItemStatus,
    QueueRepository,
    TransactionError,
)
from leasedkeyq.stores import Limits
from tests.repository.support import World, everything, found, item, taken, types

PENDING, PROCESSING, COMPLETED, FAILED, CANCELLED = QueueItemStatus


# Adding and taking


def test_what_goes_in_comes_out(world: World, repository: QueueRepository) -> None:
    made = item("mail", 3, max_retries=7, metadata={"by": ["me", None, 1.5]})
    repository.enqueue(made)
    assert found(repository, made.id) == made
    got = taken(repository)
    assert got.status is PROCESSING
    assert got.started_at == world.now
    assert found(repository, made.id) == got
    made.start(now=world.now)
    assert got == made


def test_order(repository: QueueRepository) -> None:
    for name, priority in (("a", 0), ("b", 5), ("c", 0), ("d", 5), ("e", -1)):
        repository.enqueue(item(name, priority))
    assert types(repository) == ["b", "d", "a", "c", "e"]
    assert [taken(repository).type for _ in range(5)] == ["b", "d", "a", "c", "e"]
    assert repository.dequeue() is None


def test_scheduled_at_is_respected(world: World, repository: QueueRepository) -> None:
    later = item("later", 9, scheduled_at=world.now + timedelta(seconds=60))
    repository.enqueue(later)
    repository.enqueue(item("now"))
    assert types(repository) == ["later", "now"]
    assert found(repository, later.id) == later
    assert taken(repository).type == "now"
    world.clock.advance(59.9)
    assert repository.dequeue() is None
    world.clock.advance(0.2)
    assert found(repository, later.id) == later, "it keeps the time that it was given"
    assert taken(repository).type == "later"


def test_a_time_in_the_past_is_now(world: World, repository: QueueRepository) -> None:
    made = item(scheduled_at=world.now - timedelta(days=400))
    repository.enqueue(made)
    assert found(repository, made.id) == made
    assert taken(repository).id == made.id


def test_an_id_is_taken_once(repository: QueueRepository) -> None:
    made = item()
    repository.enqueue(made)
    for change in (lambda: None, lambda: taken(repository), lambda: repository.complete(made.id)):
        change()
        before = everything(repository)
        with pytest.raises(DuplicateItemError) as raised:
            repository.enqueue(made)
        assert raised.value.item_id == made.id
        assert everything(repository) == before


def test_max_size_counts_pending_items(world: World) -> None:
    repository = world.open(max_size=2) if world.kind in ("memory", "sqlite") else world.open()
    with repository.transaction() as queue:
        if queue.max_size is None:
            queue.max_size = 2
    assert repository.max_size == 2
    repository.enqueue(item("a"))
    repository.enqueue(item("b", scheduled_at=world.now + timedelta(hours=1)))
    with pytest.raises(QueueFullError) as raised:
        repository.enqueue(item("c"))
    assert raised.value.maxsize == 2
    assert types(repository) == ["a", "b"]
    taken(repository)
    repository.enqueue(item("c"))
    with pytest.raises(QueueFullError), repository.transaction() as queue:
        queue.items.append(item("d"))
    assert repository.stats()["total"] == 3
    with repository.transaction() as queue:
        queue.items = [made for made in queue.items if made.type != "b"]
        queue.enqueue(item("d"))
    assert repository.stats()["pending"] == 2


@pytest.mark.parametrize(
    "change, field",
    [
        ({"payload": {"x": object()}}, "payload"),
        ({"metadata": {"x": {1, object()}}}, "metadata"),
        ({"retry_count": -1}, "retry_count"),
        ({"priority": "high"}, "priority"),
        ({"id": ""}, "id"),
        ({"id": "a\0b"}, "id"),
        ({"type": "\ud800"}, "type"),
        ({"payload": {"x": "\ud800"}}, "payload"),
        ({"error_message": "\ud800"}, "error_message"),
        ({"priority": 2**63}, "priority"),
        ({"priority": -(2**63)}, "priority"),
        ({"retry_count": 2**63}, "retry_count"),
        ({"max_retries": 2**63}, "max_retries"),
    ],
)
def test_what_cannot_be_stored_is_refused(
    repository: QueueRepository, change: dict[str, Any], field: str
) -> None:
    repository.enqueue(item("before"))
    before = everything(repository)
    made = item()
    for name, value in change.items():
        setattr(made, name, value)
    with pytest.raises(InvalidItemError) as raised:
        repository.enqueue(made)
    assert (raised.value.item_id, raised.value.field) == (made.id, field)
    with pytest.raises(InvalidItemError), repository.transaction() as queue:
        queue.items.append(made)
        queue.remove_item(queue.items[0].id)
    assert everything(repository) == before


def test_limits_of_the_store() -> None:
    store = MemoryStore(limits=Limits(value_size=1000, key_length=40))
    with QueueRepository(store) as repository:
        with pytest.raises(LimitExceededError, match="value_size"):
            repository.enqueue(item(metadata={"text": "x" * 1000}))
        with pytest.raises(LimitExceededError, match="type of an item"):
            repository.enqueue(item("x" * 41))
        assert repository.stats()["total"] == 0
    with pytest.raises(LimitExceededError, match="name"):
        QueueRepository(store, "x" * 41)


# What becomes of an item


def test_complete(world: World, repository: QueueRepository) -> None:
    made = item("mail", 2)
    repository.enqueue(made)
    got = taken(repository)
    world.clock.advance(5)
    done = repository.complete(got.id)
    got.complete(now=world.now)
    assert done == got == found(repository, got.id)
    assert repository.dequeue() is None


def test_finished_items_are_forgotten_after_a_while(world: World) -> None:
    repository = world.open(keep_finished=timedelta(hours=1))
    for name in ("completed", "cancelled"):
        repository.enqueue(item(name))
    repository.complete(taken(repository).id)
    cancelled = taken(repository)
    repository.cancel(cancelled.id)
    world.clock.advance(3599)
    assert sorted(types(repository)) == ["cancelled", "completed"]
    world.clock.advance(2)
    assert types(repository) == []
    with pytest.raises(ItemNotFoundError) as raised:
        repository.complete(cancelled.id)
    assert raised.value.item_id == cancelled.id


def test_finished_items_need_not_be_kept(world: World) -> None:
    repository = world.open(keep_finished=0)
    for name in ("a", "b", "c"):
        repository.enqueue(item(name))
    repository.complete(taken(repository).id)
    repository.cancel(taken(repository).id)
    with repository.transaction() as queue:
        queue.items[0].cancel()
    assert types(repository) == []


def test_finished_items_may_be_kept_for_good(world: World) -> None:
    repository = world.open(keep_finished=None)
    repository.enqueue(item())
    repository.complete(taken(repository).id)
    world.clock.advance(50 * 365 * 86400)
    assert repository.stats()["completed"] == 1


def test_fail_until_given_up(world: World, repository: QueueRepository) -> None:
    repository.enqueue(item(max_retries=3))
    for attempt in (1, 2):
        got = taken(repository)
        assert got.retry_count == attempt - 1
        failed = repository.fail(got.id, f"error {attempt}")
        assert (failed.status, failed.retry_count) == (PENDING, attempt)
        assert failed.scheduled_at == world.now + timedelta(seconds=10 * attempt)
        assert failed == found(repository, got.id)
        world.clock.advance(10 * attempt - 0.1)
        assert repository.dequeue() is None
        world.clock.advance(0.2)
    got = taken(repository)
    assert got.error_message == "error 2"
    failed = repository.fail(got.id, OSError("disk"))
    assert (failed.status, failed.retry_count) == (FAILED, 3)
    assert (failed.error_message, failed.started_at) == ("OSError: disk", got.started_at)
    assert failed == found(repository, got.id)
    world.clock.advance(30 * 86400)
    assert repository.dequeue() is None
    assert repository.stats()["failed"] == 1


def test_retry(world: World, repository: QueueRepository) -> None:
    repository.enqueue(item("mail", 4, max_retries=1, metadata={"a": 1}))
    got = taken(repository)
    repository.fail(got.id, "oh")
    again = repository.retry(got.id)
    assert (again.status, again.retry_count, again.priority) == (PENDING, 0, 4)
    assert again == found(repository, got.id)
    once_more = taken(repository)
    assert (once_more.id, once_more.metadata, once_more.retry_count) == (got.id, {"a": 1}, 0)
    assert len(types(repository)) == 1


def test_cancel_takes_the_item_from_its_worker(world: World, repository: QueueRepository) -> None:
    repository.enqueue(item())
    got = taken(repository)
    canceller = world.open()
    assert canceller.cancel(got.id).status is CANCELLED
    before = everything(repository)
    for settle in (repository.complete, lambda made: repository.fail(made, "oh")):
        with pytest.raises(Exception, match="handed out here has ended") as raised:
            settle(got.id)
        assert raised.typename == "InvalidLeaseError"
    assert everything(repository) == before


ACTS = {
    "complete": lambda repository, made: repository.complete(made),
    "fail": lambda repository, made: repository.fail(made, "oh"),
    "cancel": lambda repository, made: repository.cancel(made),
    "retry": lambda repository, made: repository.retry(made),
}


def enqueued_as(repository: QueueRepository, status: QueueItemStatus) -> QueueItem:
    """A new item of one try, which was brought to `status`."""
    made = item(max_retries=1)
    repository.enqueue(made)
    if status is not PENDING:
        taken(repository)
    if status is COMPLETED:
        repository.complete(made.id)
    elif status is FAILED:
        repository.fail(made.id, "oh")
    elif status is CANCELLED:
        repository.cancel(made.id)
    return made


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("status", QueueItemStatus)
def test_arrows_hold_in_the_store(world: World, act: str, status: QueueItemStatus) -> None:
    worker, other = world.open(), world.open()
    made = enqueued_as(worker, status)
    allowed = {
        "complete": {PROCESSING},
        "fail": {PROCESSING},
        "cancel": {PENDING, PROCESSING, FAILED},
        "retry": {FAILED},
    }
    before = everything(other)
    if status in allowed[act]:
        changed = ACTS[act](other, made.id)
        assert changed == found(other, made.id)
        assert changed.status is not status
    else:
        with pytest.raises(InvalidTransitionError) as raised:
            ACTS[act](other, made.id)
        assert (raised.value.item_id, raised.value.from_status) == (made.id, status)
        assert everything(other) == before


@pytest.mark.parametrize("act", ACTS)
def test_unknown_items(repository: QueueRepository, act: str) -> None:
    with pytest.raises(ItemNotFoundError, match="nobody"):
        ACTS[act](repository, "nobody")
    with pytest.raises(ItemNotFoundError):
        repository.extend("nobody")
    assert repository.get_item("nobody") is None
    assert repository.update_item("nobody", QueueItem.cancel) is None
    assert not repository.remove_item("nobody")


# Changing an item


def test_update_item(world: World, repository: QueueRepository) -> None:
    made = item("low")
    repository.enqueue(made)
    repository.enqueue(item("middle", 1))

    def update(known: QueueItem) -> None:
        known.priority = 2
        known.payload["more"] = [1, 2]
        known.metadata = {"seen": True}
        known.max_retries = 9
        known.type = "high"

    changed = repository.update_item(made.id, update)
    assert changed == found(repository, made.id)
    assert types(repository) == ["high", "middle"]
    kept = taken(repository)
    assert kept.id == made.id
    assert (kept.payload["more"], kept.metadata, kept.max_retries) == ([1, 2], {"seen": True}, 9)
    assert (kept.status, kept.type) == (PROCESSING, "high")


def test_update_item_reschedules(world: World, repository: QueueRepository) -> None:
    made = item()
    repository.enqueue(made)

    def later(known: QueueItem) -> None:
        known.scheduled_at = world.now + timedelta(seconds=60)

    def now(known: QueueItem) -> None:
        known.scheduled_at = None

    repository.update_item(made.id, later)
    assert repository.dequeue() is None
    repository.update_item(made.id, lambda known: known.metadata.update(a=1))
    assert repository.dequeue() is None, "another change does not cut the wait short"
    repository.update_item(made.id, now)
    assert taken(repository).metadata == {"a": 1}


def test_update_item_settles(world: World, repository: QueueRepository) -> None:
    """The way of the seed: a function that calls the method of the item."""
    for name in ("a", "b", "c"):
        repository.enqueue(item(name, max_retries=1))
    a, b, c = (taken(repository).id for _ in range(3))
    repository.update_item(a, QueueItem.complete)
    repository.update_item(b, lambda known: known.fail("oh"))
    repository.update_item(c, QueueItem.cancel)
    assert [found(repository, key).status for key in (a, b, c)] == [COMPLETED, FAILED, CANCELLED]
    repository.update_item(b, QueueItem.retry)
    assert taken(repository).id == b


@pytest.mark.parametrize("status", [PENDING, PROCESSING, COMPLETED, FAILED, CANCELLED])
def test_update_item_in_every_status(
    world: World, repository: QueueRepository, status: QueueItemStatus
) -> None:
    made = item("mail", 2, max_retries=1)
    others = [item(f"other {number}") for number in range(3)]
    for other in others:
        repository.enqueue(other)
        repository.complete(taken(repository).id)
    repository.enqueue(made)
    if status is not PENDING:
        taken(repository)
    if status is COMPLETED:
        repository.complete(made.id)
    elif status is FAILED:
        repository.fail(made.id, "oh")
    elif status is CANCELLED:
        repository.cancel(made.id)
    before = found(repository, made.id)
    rest = [found(repository, other.id) for other in others]
    changed = repository.update_item(made.id, lambda known: known.metadata.update(a=1))
    before.metadata["a"] = 1
    assert changed == before == found(repository, made.id)
    assert [found(repository, other.id) for other in others] == rest
    assert repository.stats()[status.value] == 1 + 3 * (status is COMPLETED)
    if status is FAILED:
        repository.retry(made.id)
        assert taken(repository).metadata == {"a": 1}
    assert len(types(repository)) == 4


def test_results_that_are_kept_anew_keep_their_time(world: World) -> None:
    repository = world.open(keep_finished=100)
    for name in ("first", "second"):
        repository.enqueue(item(name))
    first = repository.complete(taken(repository).id)
    world.clock.advance(50)
    second = repository.complete(taken(repository).id)
    repository.update_item(second.id, lambda known: known.metadata.update(a=1))
    repository.update_item(first.id, lambda known: known.metadata.update(a=1))
    assert sorted(types(repository)) == ["first", "second"]
    world.clock.advance(51)
    assert types(repository) == ["second"]
    world.clock.advance(50)
    assert types(repository) == []


def test_an_exception_in_update_changes_nothing(repository: QueueRepository) -> None:
    made = item()
    repository.enqueue(made)
    before = everything(repository)

    def update(known: QueueItem) -> None:
        known.priority = 7
        raise KeyError("oh")

    with pytest.raises(KeyError, match="oh"):
        repository.update_item(made.id, update)
    with pytest.raises(InvalidItemError, match="id cannot be changed"):
        repository.update_item(made.id, lambda known: setattr(known, "id", "other"))
    with pytest.raises(TransactionError, match="dequeue"):
        repository.update_item(made.id, QueueItem.start)
    assert everything(repository) == before


@pytest.mark.parametrize("status", QueueItemStatus)
def test_remove_item(world: World, repository: QueueRepository, status: QueueItemStatus) -> None:
    stays = item("stays")
    repository.enqueue(stays)
    repository.complete(taken(repository).id)
    made = enqueued_as(repository, status)
    assert repository.remove_item(made.id)
    assert types(repository) == ["stays"]
    assert found(repository, stays.id).status is COMPLETED
    assert not repository.remove_item(made.id)
    repository.enqueue(made)
    assert taken(repository).id == made.id


@pytest.mark.parametrize("item_id", ["a\0b", "\ud800"])
def test_no_item_has_an_id_that_no_store_can_have(
    repository: QueueRepository, item_id: str
) -> None:
    assert repository.get_item(item_id) is None
    assert repository.update_item(item_id, lambda found: found.cancel()) is None
    assert repository.remove_item(item_id) is False
    for settle in (repository.complete, repository.cancel, repository.retry, repository.release):
        with pytest.raises(ItemNotFoundError):
            settle(item_id)
