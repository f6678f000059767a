"""Who may settle an item, what happens when a worker dies, and how to wait for work."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TypeVar

import pytest

from leasedkeyq import InvalidLeaseError, LeaseExpiredError, MemoryStore
from leasedkeyq.errors import QueueClosedError, StoreError
from leasedkeyq.model.requests import Answer, Change, Claim
from leasedkeyq.repository import QueueItem, QueueItemStatus, QueueRepository, RecoveryReport
from leasedkeyq.repository.leases import MOST, HeldLease, HeldLeases
from tests.repository.support import World, everything, found, item, open_session, taken

PENDING, PROCESSING, COMPLETED, FAILED, CANCELLED = QueueItemStatus
LEASE_TIME = 100
WAIT = 60
T = TypeVar("T")


@pytest.fixture
def repository(world: World) -> QueueRepository:
    return world.open(lease_time=LEASE_TIME)


def in_a_thread(function: Callable[[], T]) -> T:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result(WAIT)


def complete_in_a_transaction(repository: QueueRepository, item_id: str) -> None:
    with repository.transaction() as queue:
        made = queue.get_item(item_id)
        assert made is not None
        if made.status is PROCESSING:
            made.complete()
        else:
            made.cancel()


SETTLINGS: dict[str, Callable[[QueueRepository, str], object]] = {
    "complete": lambda r, key: r.complete(key),
    "fail": lambda r, key: r.fail(key, "oh"),
    "extend": lambda r, key: r.extend(key),
    "update_item": lambda r, key: r.update_item(key, QueueItem.complete),
    "update_item to cancel": lambda r, key: r.update_item(key, QueueItem.cancel),
    "transaction": complete_in_a_transaction,
}


# A worker that was paused for too long


@pytest.mark.parametrize("settling", SETTLINGS)
def test_it_cannot_settle_what_another_program_works_on(
    world: World, repository: QueueRepository, settling: str
) -> None:
    repository.enqueue(item())
    got = taken(repository)
    world.clock.advance(LEASE_TIME + 1)
    successor = world.open()
    assert taken(successor).id == got.id
    before = everything(successor)
    with pytest.raises(LeaseExpiredError, match="lease_time") as raised:
        SETTLINGS[settling](repository, got.id)
    assert (raised.value.key, raised.value.reason) == (got.id, "expired")
    assert everything(successor) == before
    assert successor.complete(got.id).retry_count == 1


@pytest.mark.parametrize("settling", SETTLINGS)
def test_it_cannot_settle_what_another_thread_works_on(
    world: World, repository: QueueRepository, settling: str
) -> None:
    repository.enqueue(item())
    got = taken(repository)
    world.clock.advance(LEASE_TIME + 1)
    held, told = threading.Event(), threading.Event()

    def succeed() -> QueueItem:
        assert taken(repository).id == got.id
        held.set()
        assert told.wait(WAIT)
        return repository.complete(got.id)

    with ThreadPoolExecutor(1) as pool:
        successor = pool.submit(succeed)
        assert held.wait(WAIT)
        with pytest.raises(LeaseExpiredError):
            SETTLINGS[settling](repository, got.id)
        told.set()
        assert successor.result(WAIT).status is COMPLETED


@pytest.mark.parametrize("settling", SETTLINGS)
def test_it_cannot_settle_what_waits_again(
    world: World, repository: QueueRepository, settling: str
) -> None:
    repository.enqueue(item())
    got = taken(repository)
    world.clock.advance(LEASE_TIME + 1)
    assert found(repository, got.id).status is PENDING
    before = everything(repository)
    with pytest.raises(LeaseExpiredError, match="pending now"):
        SETTLINGS[settling](repository, got.id)
    assert everything(repository) == before
    # It may look after the item all the same, and take it anew.
    repository.update_item(got.id, lambda known: known.metadata.update(a=1))
    assert taken(repository).metadata == {"a": 1}
    assert repository.complete(got.id).status is COMPLETED


@pytest.mark.parametrize(
    "end, reason, status",
    [
        (lambda other, key: other.complete(key), "acknowledged", "completed"),
        (lambda other, key: other.fail(key, "oh"), "released", "pending"),
        (lambda other, key: other.cancel(key), "removed", "cancelled"),
        (lambda other, key: other.remove_item(key), "removed", "gone"),
    ],
)
def test_it_is_told_how_it_lost_the_lease(
    world: World,
    repository: QueueRepository,
    end: Callable[[QueueRepository, str], object],
    reason: str,
    status: str,
) -> None:
    repository.enqueue(item())
    got = taken(repository)
    end(world.open(), got.id)
    with pytest.raises(InvalidLeaseError, match=f"{status} now") as raised:
        repository.complete(got.id)
    assert raised.value.reason == reason


# Who else may settle


def test_another_program_can_settle_by_id(world: World, repository: QueueRepository) -> None:
    """One script takes an item, a later one completes it: the way of the seed."""
    for name in ("a", "b"):
        repository.enqueue(item(name))
    a, b = taken(repository), taken(repository)
    later = world.open()
    assert later.complete(a.id).status is COMPLETED
    assert later.update_item(b.id, QueueItem.complete) == found(repository, b.id)


def test_another_thread_can_settle_for_the_one_that_took(repository: QueueRepository) -> None:
    repository.enqueue(item())
    got = taken(repository)
    assert in_a_thread(lambda: repository.complete(got.id)).status is COMPLETED


def test_another_thread_is_held_to_the_last_lease(
    world: World, repository: QueueRepository
) -> None:
    repository.enqueue(item())
    got = in_a_thread(lambda: taken(repository))
    world.clock.advance(LEASE_TIME + 1)
    assert taken(world.open()).id == got.id
    with pytest.raises(LeaseExpiredError):
        repository.complete(got.id)


def test_updates_of_others_are_not_lost(world: World, repository: QueueRepository) -> None:
    repository.enqueue(item())
    got = taken(repository)
    world.open().update_item(got.id, lambda known: known.metadata.update(note="theirs"))
    assert repository.complete(got.id).metadata == {"note": "theirs"}


def test_an_update_does_not_change_the_count(world: World, repository: QueueRepository) -> None:
    repository.enqueue(item(max_retries=9))
    got = taken(repository)
    repository.fail(got.id, "oh")
    world.clock.advance(10)
    for count in (1, 2):
        assert found(repository, got.id).retry_count == count
        repository.update_item(got.id, lambda known: known.metadata.update(while_pending=1))
        assert taken(repository).retry_count == count
        repository.update_item(got.id, lambda known: known.metadata.update(while_processing=1))
        assert found(repository, got.id).retry_count == count
        assert repository.fail(got.id, "oh").retry_count == count + 1
        world.clock.advance(100)
    repository.update_item(got.id, lambda known: setattr(known, "retry_count", 0))
    assert taken(repository).retry_count == 0
    assert repository.fail(got.id, "oh").retry_count == 1


def test_extend(world: World, repository: QueueRepository) -> None:
    repository.enqueue(item())
    got = taken(repository)
    world.clock.advance(LEASE_TIME - 1)
    assert repository.extend(got.id) == world.now + timedelta(seconds=LEASE_TIME)
    world.clock.advance(LEASE_TIME - 1)
    assert repository.extend(got.id, timedelta(hours=1)) == world.now + timedelta(hours=1)
    world.clock.advance(3599)
    assert repository.dequeue() is None
    assert repository.complete(got.id).status is COMPLETED
    with pytest.raises(InvalidLeaseError, match="completed: nobody works on it"):
        repository.extend(got.id)


def test_a_lease_may_last_for_ever(world: World) -> None:
    repository = world.open(lease_time=None)
    repository.enqueue(item())
    got = taken(repository)
    world.clock.advance(10 * 365 * 86400)
    assert repository.extend(got.id) is None
    assert repository.recover() == RecoveryReport()
    assert repository.complete(got.id).status is COMPLETED


def test_what_is_remembered_of_leases_has_a_limit() -> None:
    leases = HeldLeases()
    for number in range(MOST + 10):
        leases.add(str(number), HeldLease(f"token {number}", 1))
    assert leases.get("0") is None
    assert leases.get(str(MOST + 9)) == HeldLease(f"token {MOST + 9}", 1)
    assert len(leases._all) == len(leases._own.leases) == MOST
    leases.drop("20", "another token")
    assert leases.get("20") is not None
    leases.drop("20", "token 20")
    assert leases.get("20") is None


# A worker that died


def test_its_item_waits_again_and_the_retry_counts(
    world: World, repository: QueueRepository
) -> None:
    repository.enqueue(item("later"))
    repository.enqueue(item("died", 1))
    got = taken(repository)
    world.clock.advance(LEASE_TIME - 1)
    assert found(repository, got.id).status is PROCESSING
    world.clock.advance(2)
    waiting = found(repository, got.id)
    assert (waiting.status, waiting.retry_count) == (PENDING, 1)
    assert waiting.error_message == "the worker died in attempt 1: its lease expired"
    again = taken(repository)
    assert (again.id, again.retry_count) == (got.id, 1)


def test_dequeue_gives_up_what_killed_too_many_workers(
    world: World, repository: QueueRepository
) -> None:
    repository.enqueue(item("deadly", 1, max_retries=3))
    repository.enqueue(item("next"))
    for _ in range(3):
        assert taken(repository).type == "deadly"
        world.clock.advance(LEASE_TIME + 1)
    assert taken(repository).type == "next"
    [failed] = [made for made in repository.get_queue().items if made.type == "deadly"]
    assert (failed.status, failed.retry_count) == (FAILED, 3)
    assert failed.error_message == "the worker died 3 times, and no attempts are left"
    assert repository.dequeue() is None
    repository.retry(failed.id)
    assert taken(repository).retry_count == 0


@pytest.mark.parametrize("max_retries", [0, 1])
def test_one_attempt_is_enough_for_some(
    world: World, repository: QueueRepository, max_retries: int
) -> None:
    repository.enqueue(item(max_retries=max_retries))
    got = taken(repository)
    world.clock.advance(LEASE_TIME + 1)
    assert repository.dequeue() is None
    failed = found(repository, got.id)
    assert (failed.status, failed.retry_count) == (FAILED, 1)
    assert failed.error_message == "the worker died once, and no attempts are left"


def test_failures_and_deaths_count_together(world: World, repository: QueueRepository) -> None:
    repository.enqueue(item(max_retries=2))
    got = taken(repository)
    repository.fail(got.id, "oh")
    world.clock.advance(10)
    assert taken(repository).retry_count == 1
    world.clock.advance(LEASE_TIME + 1)
    assert repository.dequeue() is None
    assert found(repository, got.id).retry_count == 2


@pytest.mark.parametrize("error", ["no answer", ""])
def test_an_item_that_lost_its_retries_is_given_up_with_its_own_error(
    world: World, repository: QueueRepository, error: str
) -> None:
    """Nobody died: somebody took the retries away."""
    repository.enqueue(item())
    for _ in range(2):
        repository.fail(taken(repository).id, error)
        world.clock.advance(100)
    [waiting] = repository.get_queue().items
    repository.update_item(waiting.id, lambda made: setattr(made, "max_retries", 1))
    assert repository.dequeue() is None
    failed = found(repository, waiting.id)
    assert (failed.status, failed.error_message) == (FAILED, error or "no attempts are left")


def test_recover_reports_each_death_once(world: World, repository: QueueRepository) -> None:
    for name, retries in (("deadly", 1), ("unlucky", 3), ("fine", 3)):
        repository.enqueue(item(name, max_retries=retries))
    deadly, unlucky = taken(repository), taken(repository)
    assert repository.recover() == RecoveryReport()
    world.clock.advance(LEASE_TIME + 1)
    fine = [made.id for made in repository.get_queue().items if made.type == "fine"]
    report = repository.recover()
    assert report == RecoveryReport(pending=(unlucky.id,), failed=(deadly.id,))
    assert repository.recover() == RecoveryReport()
    assert found(repository, deadly.id).status is FAILED
    assert found(repository, unlucky.id).retry_count == 1
    assert found(repository, fine[0]).retry_count == 0
    # It dies once more.
    assert taken(repository).id == unlucky.id
    world.clock.advance(LEASE_TIME + 1)
    assert world.open().recover().pending == (unlucky.id,)


def test_recover_from_workers_that_are_known_to_be_dead(
    world: World, repository: QueueRepository
) -> None:
    for name, retries in (("last", 1), ("old", 3), ("new", 3)):
        repository.enqueue(item(name, max_retries=retries))
    last, old = taken(repository), taken(repository)
    world.clock.advance(50)
    new = taken(repository)
    starter = world.open()
    report = starter.recover(older_than=10)
    assert report == RecoveryReport(pending=(old.id,), failed=(last.id,))
    waiting = found(starter, old.id)
    assert (waiting.status, waiting.retry_count) == (PENDING, 1)
    assert waiting.error_message == "the worker died in attempt 1: it was given up"
    assert found(starter, new.id).status is PROCESSING
    assert taken(starter).id == old.id
    with pytest.raises(InvalidLeaseError):
        repository.complete(old.id)
    world.clock.advance(1)
    assert set(starter.recover(older_than=0).pending) == {new.id, old.id}


# Waiting for work


def test_dequeue_waits_for_an_item() -> None:
    with QueueRepository(MemoryStore()) as repository, ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(repository.dequeue, None) for _ in range(4)]
        for number in range(4):
            repository.enqueue(item(str(number)))
        got = [future.result(WAIT) for future in waiting]
        assert {made.type for made in got if made is not None} == {"0", "1", "2", "3"}


def test_dequeue_waits_for_no_longer_than_it_may() -> None:
    with QueueRepository(MemoryStore()) as repository:
        assert repository.dequeue(0.01) is None
        assert repository.dequeue(timedelta(0)) is None
        with pytest.raises(ValueError, match="timeout"):
            repository.dequeue(-1)


def test_close_wakes_who_waits() -> None:
    store = MemoryStore()
    with QueueRepository(store) as other, QueueRepository(store) as repository:
        started = threading.Event()

        def wait() -> object:
            started.set()
            return repository.dequeue(None)

        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(wait)
            assert started.wait(WAIT)
            repository.close()
            with pytest.raises(QueueClosedError):
                waiting.result(WAIT)
        other.enqueue(item())
        assert other.dequeue() is not None


class FullStore(MemoryStore):
    """A store that cannot settle anything so many times."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures = failures

    async def do_settle(self, requests: Sequence[Change]) -> list[Answer]:
        if self.failures:
            self.failures -= 1
            raise StoreError("the disk is full")
        return await super().do_settle(requests)


def test_an_item_that_cannot_be_taken_back_now_is_taken_back_later() -> None:
    """Its lease has no expiry: nobody else would end it."""
    store = FullStore(failures=2)
    with QueueRepository(store, name="q", lease_time=None) as repository:
        repository.enqueue(item())
        session = open_session(repository)
        claimed = session.claim(Claim((("q", 1),)))
        assert claimed is not None
        session.take_back(claimed)
        got = repository.dequeue(timeout=WAIT)
        assert got is not None
        assert got.id == claimed.key
        assert store.failures == 0
