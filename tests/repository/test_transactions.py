"""`transaction` and `update_item`: all or nothing, one at a time, never waiting for oneself."""

import gc
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

from leasedkeyq.errors import QueueClosedError
from leasedkeyq.repository import (
    InvalidItemError,
    InvalidTransitionError,
    QueueItem,
    QueueItemStatus,
    QueueRepository,
    TransactionError,
)
from tests.repository.support import SHARED_KINDS, World, everything, item, source_of, types

WAIT = 60


def test_everything_that_a_transaction_can_do(world: World, repository: QueueRepository) -> None:
    names = ("goes", "fails", "completes", "cancels", "changes", "moves", "waits")
    for name in names:
        repository.enqueue(item(name, max_retries=1))
    for _ in range(3):
        assert repository.dequeue() is not None
    with repository.transaction() as queue:
        by_type = {made.type: made for made in queue.items}
        assert set(by_type) == set(names)
        assert queue.remove_item(by_type["goes"].id)
        by_type["fails"].fail("oh")
        by_type["completes"].complete()
        by_type["cancels"].cancel()
        by_type["changes"].payload = {"new": True}
        by_type["moves"].priority = 3
        by_type["waits"].scheduled_at = world.now + timedelta(hours=1)
        queue.enqueue(item("added", 7))
        inside = {made.id: made for made in queue.items}
    stored = repository.get_queue()
    assert {made.id: made for made in stored.items} == inside
    assert types(repository)[:3] == ["added", "moves", "changes"]
    assert stored.get_stats() == {
        "total": 7,
        "pending": 4,
        "processing": 0,
        "completed": 1,
        "failed": 1,
        "cancelled": 1,
    }


def test_an_exception_leaves_everything_as_it_was(repository: QueueRepository) -> None:
    for name in ("a", "b", "c"):
        repository.enqueue(item(name))
    got = repository.dequeue()
    assert got is not None
    before = everything(repository)
    with pytest.raises(ZeroDivisionError), repository.transaction() as queue:
        queue.items[0].complete()
        queue.items.pop()
        queue.enqueue(item("new"))
        queue.items[0].metadata["x"] = 1 // 0
    assert everything(repository) == before
    assert repository.complete(got.id).status is QueueItemStatus.COMPLETED


@pytest.mark.parametrize(
    "spoil, error",
    [
        (lambda queue: queue.items.append(queue.items[0]), InvalidItemError),
        (lambda queue: queue.items.append(item(metadata={"x": object()})), InvalidItemError),
        (lambda queue: setattr(queue.items[0], "retry_count", -1), InvalidItemError),
        (lambda queue: queue.items[0].start(), TransactionError),
        (lambda queue: queue.items[0].complete(), InvalidTransitionError),
    ],
)
def test_what_cannot_be_stored_spoils_the_transaction(
    repository: QueueRepository, spoil: Callable[[object], object], error: type[Exception]
) -> None:
    for name in ("a", "b"):
        repository.enqueue(item(name))
    before = everything(repository)
    with pytest.raises(error), repository.transaction() as queue:
        queue.remove_item(queue.items[1].id)
        queue.enqueue(item("new"))
        spoil(queue)
    assert everything(repository) == before


def test_an_item_cannot_be_replaced_by_one_that_it_cannot_become(
    repository: QueueRepository,
) -> None:
    made = item()
    repository.enqueue(made)
    assert repository.dequeue() is not None
    repository.complete(made.id)
    before = everything(repository)
    with pytest.raises(InvalidTransitionError), repository.transaction() as queue:
        queue.items[0] = made
    assert everything(repository) == before


def test_finished_items_can_be_cleared_away(repository: QueueRepository) -> None:
    for number in range(5):
        repository.enqueue(item(str(number), max_retries=1))
    for number in range(4):
        got = repository.dequeue()
        assert got is not None
        if number < 2:
            repository.complete(got.id)
        else:
            repository.fail(got.id, "oh")
    with repository.transaction() as queue:
        queue.items = [made for made in queue.items if made.type in ("1", "3", "4")]
    assert sorted(types(repository)) == ["1", "3", "4"]


def test_nothing_changes_nothing(world: World, repository: QueueRepository) -> None:
    repository.enqueue(item())
    with repository.transaction():
        pass
    before = everything(repository)
    with repository.transaction() as queue:
        queue.items.reverse()
    assert everything(repository) == before


# Alone


def test_others_wait_for_a_transaction(world: World, repository: QueueRepository) -> None:
    other = world.open()
    repository.enqueue(item("a"))
    entered = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        with repository.transaction() as queue:

            def add() -> None:
                entered.set()
                other.enqueue(item("b"))

            adding = pool.submit(add)
            assert entered.wait(WAIT)
            queue.enqueue(item("inside"))
            assert not adding.done()
        adding.result(WAIT)
    assert types(repository) == ["a", "inside", "b"]


def test_transactions_of_many_threads(world: World) -> None:
    """A counter in a payload: none of the additions is lost, and none of the failures counts."""
    repositories = [world.open() for _ in range(2)]
    made = item()
    made.payload = {"count": 0}
    repositories[0].enqueue(made)

    def add(number: int) -> None:
        repository = repositories[number % 2]
        for turn in range(5):
            with suppress(ZeroDivisionError), repository.transaction() as queue:
                queue.items[0].payload["count"] += 1
                queue.enqueue(item(f"{number} {turn}"))
                assert 1 // (1 - turn % 2)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, range(4)))
    kept = repositories[0].get_item(made.id)
    assert kept is not None
    assert kept.payload == {"count": 12}
    assert repositories[0].stats()["total"] == 13


def test_update_item_runs_once_under_contention(world: World) -> None:
    repositories = [world.open() for _ in range(2)]
    made = item()
    made.payload = {"count": 0}
    repositories[0].enqueue(made)
    calls: list[int] = []

    def add(known: QueueItem) -> None:
        calls.append(threading.get_ident())
        known.payload["count"] += 1

    def run(number: int) -> int:
        for _ in range(5):
            repositories[number % 2].update_item(made.id, add)
        return threading.get_ident()

    with ThreadPoolExecutor(6) as pool:
        threads = set(pool.map(run, range(6)))
    kept = repositories[0].get_item(made.id)
    assert kept is not None
    assert kept.payload == {"count": 30}
    assert len(calls) == 30
    assert set(calls) <= threads, "the function runs in the thread that called"


# Never waiting for oneself


CALLS: dict[str, Callable[[QueueRepository], object]] = {
    "get_queue": lambda r: r.get_queue(),
    "save_queue": lambda r: r.save_queue(r.get_queue()),
    "enqueue": lambda r: r.enqueue(item()),
    "dequeue": lambda r: r.dequeue(),
    "get_item": lambda r: r.get_item("x"),
    "update_item": lambda r: r.update_item("x", QueueItem.cancel),
    "complete": lambda r: r.complete("x"),
    "recover": lambda r: r.recover(),
    "stats": lambda r: r.stats(),
    "close": lambda r: r.close(),
    "transaction": lambda r: r.transaction().__enter__(),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_repository_cannot_be_used_inside(
    world: World, repository: QueueRepository, name: str
) -> None:
    made = item()
    repository.enqueue(made)
    other = world.open()
    with repository.transaction() as queue:
        for inside in (repository, other):
            with pytest.raises(TransactionError, match="wait for itself"):
                CALLS[name](inside)
        queue.items[0].priority = 1

    def update(known: QueueItem) -> None:
        for inside in (repository, other):
            with pytest.raises(TransactionError, match="wait for itself"):
                CALLS[name](inside)
        known.metadata["a"] = 1

    changed = repository.update_item(made.id, update)
    assert changed is not None
    assert (changed.priority, changed.metadata) == (1, {"a": 1})


@pytest.mark.parametrize("kind", SHARED_KINDS)
def test_a_second_repository_on_the_same_file(kind: str, tmp_path: Path) -> None:
    source = source_of(kind, tmp_path)
    with QueueRepository(source) as first, QueueRepository(source) as second:
        with first.transaction() as queue:
            queue.enqueue(item())
            with pytest.raises(TransactionError):
                second.stats()
        assert second.stats()["pending"] == 1


def test_repositories_of_other_stores_can_be_used_inside(tmp_path: Path) -> None:
    worlds = [World("memory", tmp_path), World("memory", tmp_path), World("sqlite", tmp_path)]
    repositories = [world.open() for world in worlds]
    for outer in repositories:
        for inner in repositories:
            if inner is not outer:
                with outer.transaction() as queue:
                    inner.enqueue(item())
                    queue.enqueue(item())
    assert [len(types(repository)) for repository in repositories] == [4, 4, 4]
    for world in worlds:
        world.close()


def test_a_transaction_that_is_left_behind_is_given_up(repository: QueueRepository) -> None:
    transaction = repository.transaction()
    queue = transaction.__enter__()
    queue.enqueue(item())
    del transaction
    gc.collect()
    assert types(repository) == []
    repository.enqueue(item("after"))
    assert types(repository) == ["after"]


def test_close_waits_for_a_transaction(world: World) -> None:
    repository, other = world.open(), world.open()
    with ThreadPoolExecutor(1) as pool:
        with repository.transaction() as queue:
            closing = pool.submit(repository.close)
            queue.enqueue(item())
        closing.result(WAIT)
    assert repository.closed
    assert types(other) == ["work"]
    with pytest.raises(QueueClosedError), repository.transaction():
        pass
