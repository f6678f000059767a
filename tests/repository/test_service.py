"""`QueueService`: tasks from their submission to their end."""

from datetime import timedelta

import pytest

from leasedkeyq.repository import (
    InvalidTransitionError,
    ItemNotFoundError,
    QueueItemStatus,
    QueueService,
)
from tests.repository.support import World


def test_the_life_of_a_task(world: World) -> None:
    service = QueueService(world.open())
    low = service.submit_task("T1")
    high = service.submit_task("T2", 5, payload={"file": "a"}, metadata={"by": "me"})
    assert (high.type, high.payload) == ("task", {"task_id": "T2", "file": "a"})
    first = service.get_next_task()
    assert first is not None
    assert (first.id, first.metadata) == (high.id, {"by": "me"})
    assert service.complete_task(first.id).status is QueueItemStatus.COMPLETED
    second = service.get_next_task(timeout=1)
    assert second is not None
    assert second.id == low.id
    assert service.fail_task(second.id, "no answer").retry_count == 1
    assert service.get_next_task() is None
    world.clock.advance(10)
    assert service.get_next_task() is not None
    assert service.cancel_task(second.id).status is QueueItemStatus.CANCELLED
    assert service.stats() == {
        "total": 2,
        "pending": 0,
        "processing": 0,
        "completed": 1,
        "failed": 0,
        "cancelled": 1,
    }
    with pytest.raises(InvalidTransitionError):
        service.retry_task(second.id)
    with pytest.raises(ItemNotFoundError):
        service.complete_task("T1")


def test_a_task_that_is_retried(world: World) -> None:
    service = QueueService(world.open())
    service.submit_task("T1", max_retries=1)
    task = service.get_next_task()
    assert task is not None
    assert service.fail_task(task.id, ValueError("oh")).status is QueueItemStatus.FAILED
    assert service.retry_task(task.id).status is QueueItemStatus.PENDING
    assert service.get_next_task() is not None


def test_a_task_for_later(world: World) -> None:
    service = QueueService(world.open())
    service.submit_task("T1", scheduled_at=world.now + timedelta(minutes=1))
    assert service.get_next_task() is None
    world.clock.advance(61)
    assert service.get_next_task() is not None


def test_tasks_have_the_retries_of_their_queue(world: World) -> None:
    if world.kind in ("memory", "sqlite"):
        repository = world.open(default_max_retries=7)
    else:
        repository = world.open()
        with repository.transaction() as queue:
            queue.default_max_retries = 7
    service = QueueService(repository)
    assert service.submit_task("T1").max_retries == 7
    assert service.submit_task("T2", max_retries=0).max_retries == 0
