"""`QueueRepository`: the queue as a whole."""

from datetime import timedelta
from pathlib import Path

import pytest

from leasedkeyq import QueueFullError
from leasedkeyq.repository import (
    Queue,
    QueueConflictError,
    QueueItemStatus,
    QueueRepository,
    TransactionError,
)
from tests.repository.support import KINDS, World, everything, found, item, taken, types


def test_get_queue_is_a_copy(repository: QueueRepository) -> None:
    repository.enqueue(item())
    before = everything(repository)
    queue = repository.get_queue()
    queue.items[0].priority = 9
    queue.items.clear()
    assert everything(repository) == before


def test_save_queue_keeps_what_others_did(world: World) -> None:
    repository, other = world.open(), world.open()
    for name in ("goes", "changes", "theirs"):
        repository.enqueue(item(name))
    queue = repository.get_queue()
    goes, changes, theirs = queue.items
    queue.remove_item(goes.id)
    changes.priority = 5
    queue.enqueue(item("new", 1))
    other.update_item(theirs.id, lambda known: known.metadata.update(by="others"))
    other.enqueue(item("added"))
    repository.save_queue(queue)
    assert types(other) == ["changes", "new", "theirs", "added"]
    assert found(other, theirs.id).metadata == {"by": "others"}
    # The queue that was saved shows what is stored now, in the objects that it had.
    assert queue == repository.get_queue()
    assert queue.items[0] is changes
    assert theirs.metadata == {"by": "others"}
    changes.payload["again"] = True
    repository.save_queue(queue)
    assert found(other, changes.id).payload["again"] is True


@pytest.mark.parametrize("what", ["changed", "removed", "taken", "added"])
def test_save_queue_overwrites_nothing(world: World, what: str) -> None:
    repository, other = world.open(), world.open()
    mine = item("mine")
    repository.enqueue(item("first"))
    repository.enqueue(mine)
    queue = repository.get_queue()
    added = item("added")
    queue.items[-1].metadata["a"] = 1
    queue.enqueue(added)
    queue.enqueue(item("another"))
    expected = (mine.id,)
    if what == "changed":
        other.update_item(mine.id, lambda known: setattr(known, "priority", 3))
    elif what == "removed":
        other.remove_item(mine.id)
    elif what == "taken":
        taken(other)
        taken(other)
    else:
        other.enqueue(added)
        expected = (added.id,)
    before = everything(other)
    with pytest.raises(QueueConflictError, match=expected[0]) as raised:
        repository.save_queue(queue)
    assert raised.value.item_ids == expected
    assert everything(other) == before


def test_save_queue_of_another_repository(world: World, tmp_path: Path) -> None:
    repository = world.open()
    for name in ("pending", "failed", "completed", "cancelled", "later"):
        repository.enqueue(item(name, max_retries=1))
    with repository.transaction() as queue:
        queue.items[-1].scheduled_at = world.now + timedelta(hours=1)
        queue.items[0].priority = -5
    repository.fail(taken(repository).id, "oh")
    repository.complete(taken(repository).id)
    repository.cancel(taken(repository).id)
    moved = repository.get_queue()
    assert sorted(moved.get_stats().values()) == [0, 1, 1, 1, 2, 5]
    for kind in KINDS:
        (tmp_path / f"to {kind}").mkdir()
        other = World(kind, tmp_path / f"to {kind}")
        target = other.open()
        target.save_queue(repository.get_queue())
        key = {made.id: made for made in moved.items}
        assert {made.id: made for made in target.get_queue().items} == key
        assert target.stats() == moved.get_stats()
        [failed] = [made for made in moved.items if made.status is QueueItemStatus.FAILED]
        target.retry(failed.id)
        assert taken(target).id == failed.id
        with pytest.raises(QueueConflictError):
            target.save_queue(repository.get_queue())
        other.close()


def test_save_queue_finds_room(world: World) -> None:
    """What counts is what the repository says now, not what the queue said when it was made."""
    repository = world.open(max_size=2)
    if world.kind in ("yaml", "json"):
        with repository.transaction() as settings:
            settings.max_size = 2
    repository.enqueue(item("a"))
    with pytest.raises(QueueFullError) as raised:
        repository.save_queue(Queue("other", [item("b"), item("c")]))
    assert raised.value.maxsize == 2
    assert types(repository) == ["a"]
    repository.save_queue(Queue("other", [item("b")], max_size=1))
    assert types(repository) == ["a", "b"]
    assert repository.max_size == 2


def test_save_queue_cannot_start_items(world: World, repository: QueueRepository) -> None:
    started = item("started")
    started.start()
    with pytest.raises(TransactionError, match=r"recover\(older_than=0\)"):
        repository.save_queue(Queue("x", [item(), started]))
    assert types(repository) == []


def test_settings_in_a_queue(world: World, repository: QueueRepository) -> None:
    if world.kind in ("memory", "sqlite"):
        before = everything(repository)
        refused = pytest.raises(ValueError, match="arguments of QueueRepository")
        with refused, repository.transaction() as queue:
            queue.enqueue(item())
            queue.max_size = 5
        assert everything(repository) == before
        return
    with repository.transaction() as queue:
        queue.max_size, queue.default_max_retries = 5, 8
    other = world.open()
    assert (other.max_size, other.default_max_retries) == (5, 8)
    queue = repository.get_queue()
    queue.max_size = None
    repository.save_queue(queue)
    assert (other.max_size, other.default_max_retries) == (None, 8)


def test_default_settings(world: World) -> None:
    repository = world.open()
    assert (repository.max_size, repository.default_max_retries) == (None, 3)
    assert repository.name == repository.get_queue().name == "queue"


def test_stats_are_those_of_the_queue(repository: QueueRepository) -> None:
    for number in range(7):
        repository.enqueue(item(str(number), max_retries=1))
    repository.complete(taken(repository).id)
    repository.fail(taken(repository).id, "oh")
    repository.cancel(taken(repository).id)
    taken(repository)
    expected = {
        "total": 7,
        "pending": 3,
        "processing": 1,
        "completed": 1,
        "failed": 1,
        "cancelled": 1,
    }
    assert repository.stats() == expected == repository.get_queue().get_stats()
