"""`QueueService`: tasks from their submission to their end."""

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from leasedkeyq.repository import (
    InvalidItemError,
    InvalidLeaseError,
    InvalidTransitionError,
    ItemNotFoundError,
    QueueClosedError,
    QueueFullError,
    QueueItem,
    QueueItemStatus,
    QueueRepository,
    QueueService,
)
from tests.repository.support import WAIT, World, found


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


# What is submitted


@pytest.mark.parametrize("task_id", [None, "", 7, ["a"]])
def test_a_task_has_a_name(world: World, task_id: Any) -> None:
    service = QueueService(world.open())
    with pytest.raises(InvalidItemError, match="task_id must be a text that is not empty") as told:
        service.submit_task(task_id)
    assert told.value.field == "task_id"
    assert service.stats()["total"] == 0


def test_the_payload_does_not_lose_a_task_id_of_its_own(world: World) -> None:
    service = QueueService(world.open())
    with pytest.raises(InvalidItemError, match="its payload has the task_id 'b'"):
        service.submit_task("a", payload={"task_id": "b"})
    assert service.submit_task("a", payload={"task_id": "a"}).payload == {"task_id": "a"}


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("field", ["payload", "metadata"])
def test_numbers_that_json_does_not_have(world: World, field: str, number: float) -> None:
    options: dict[str, Any] = {field: {"sizes": [1.5, number]}}
    service = QueueService(world.open())
    with pytest.raises(
        InvalidItemError, match=rf"{field} cannot .* {field}.sizes\[1\] is {number}"
    ) as told:
        service.submit_task("a", **options)
    assert told.value.field == field
    task = service.submit_task("b", payload={"none": None})
    with pytest.raises(InvalidItemError, match=field):
        service.repository.update_item(task, lambda item: setattr(item, field, {"x": number}))
    assert service.get_next_task() == found(service.repository, task.id)


def test_the_error_of_a_full_queue_is_at_hand() -> None:
    with QueueService(QueueRepository("memory://", max_size=1)) as service:
        service.submit_task("a")
        with pytest.raises(QueueFullError):
            service.submit_task("b")


# The statements of Python


def test_with_closes_the_repository(world: World) -> None:
    with QueueService(world.open()) as service:
        service.submit_task("a")
    assert service.repository.closed
    with pytest.raises(QueueClosedError):
        service.submit_task("b")


def test_a_service_wants_a_repository() -> None:
    with pytest.raises(TypeError, match=r"write QueueService\(QueueRepository\("):
        QueueService("queue.yaml")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_len_is_what_is_pending(world: World) -> None:
    service = QueueService(world.open())
    assert (len(service), len(service.repository), bool(service), bool(service.repository)) == (
        0,
        0,
        True,
        True,
    )
    for number in range(4):
        service.submit_task(f"T{number}")
    service.submit_task("later", scheduled_at=world.now + timedelta(hours=1))
    task = service.get_next_task()
    assert task is not None
    assert len(service) == len(service.repository) == 4
    service.complete_task(task)
    assert len(service) == 4


def test_for_hands_out_what_is_there(world: World) -> None:
    service = QueueService(world.open())
    for number in range(3):
        service.submit_task(f"T{number}", number)
    service.submit_task("later", scheduled_at=world.now + timedelta(hours=1))
    names: list[str] = []
    for task in service:
        names.append(task.payload["task_id"])
        service.complete_task(task)
    assert names == ["T2", "T1", "T0"]
    assert list(service) == []
    for task in service.tasks(timeout=0.01):
        raise AssertionError(task)
    world.clock.advance(3601)
    for _ in service:
        break  # it is ours now
    assert service.stats()["processing"] == 1


def test_for_takes_no_more_than_is_asked_for(world: World) -> None:
    service = QueueService(world.open())
    for number in range(3):
        service.submit_task(f"T{number}")
    tasks = iter(service)
    next(tasks)
    assert service.stats()["processing"] == 1


def test_for_waits_and_ends_with_the_repository(world: World) -> None:
    service = QueueService(world.open())
    seen: list[str] = []
    got = threading.Event()

    def work() -> None:
        for task in service.tasks(timeout=None):
            seen.append(task.payload["task_id"])
            service.complete_task(task)
            got.set()

    worker = threading.Thread(target=work)
    worker.start()
    service.submit_task("a")
    assert got.wait(WAIT)
    service.close()
    worker.join(WAIT)
    assert (seen, worker.is_alive()) == (["a"], False)


def test_with_a_task_completes_it(world: World) -> None:
    service = QueueService(world.open())
    service.submit_task("a")
    with service.task() as task:
        assert task is not None
        assert task.status.value == "processing"
    assert task.status.value == "completed"
    assert found(service.repository, task.id) == task
    with service.task() as none:
        assert none is None
    with pytest.raises(ZeroDivisionError), service.task():
        raise ZeroDivisionError


def test_with_a_task_fails_it(world: World) -> None:
    service = QueueService(world.open())
    service.submit_task("a", max_retries=2)
    with pytest.raises(ConnectionError), service.task() as task:
        raise ConnectionError("no answer")
    assert task is not None
    assert (task.status, task.retry_count) == (QueueItemStatus.PENDING, 1)
    assert task.error_message == "ConnectionError: no answer"
    world.clock.advance(10)
    with pytest.raises(LookupError), service.task() as again:
        raise LookupError
    assert again is not None
    assert (again.id, again.status) == (task.id, QueueItemStatus.FAILED)
    assert found(service.repository, task.id) == again


@pytest.mark.parametrize(
    "end", [KeyboardInterrupt, SystemExit, asyncio.CancelledError, GeneratorExit]
)
def test_with_a_task_an_end_of_the_program_is_no_failure(
    world: World, end: type[BaseException]
) -> None:
    service = QueueService(world.open())
    first = service.submit_task("a", max_retries=1)
    service.submit_task("b")
    with pytest.raises(end), service.task() as task:
        raise end
    assert task is not None
    assert (task.status, task.retry_count) == (QueueItemStatus.PENDING, 0)
    assert task.error_message is None
    # It is the next again.
    with service.task() as again:
        assert again is not None
        assert again.id == first.id


@pytest.mark.parametrize("how", ["complete", "fail", "release", "cancel", "remove"])
@pytest.mark.parametrize("error", [None, ValueError])
def test_with_a_task_that_was_settled_inside(
    world: World, how: str, error: type[Exception] | None
) -> None:
    service = QueueService(world.open())
    service.submit_task("a")
    repository = service.repository
    settle = {
        "complete": repository.complete,
        "fail": lambda task: repository.fail(task, "by hand"),
        "release": repository.release,
        "cancel": repository.cancel,
        "remove": repository.remove_item,
    }[how]
    settled: list[dict[str, int]] = []
    try:
        with service.task() as task:
            assert task is not None
            settle(task)
            settled.append(service.stats())
            if error is not None:
                raise error
    except ValueError:
        assert error is not None
    assert [service.stats()] == settled


def in_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(WAIT)
    assert not thread.is_alive()


@pytest.mark.parametrize("error", [None, ValueError])
@pytest.mark.parametrize("same_thread", [False, True])
def test_with_a_task_that_was_settled_inside_and_is_in_other_hands(
    world: World, error: type[Exception] | None, same_thread: bool
) -> None:
    service = QueueService(world.open())
    task_id = service.submit_task("a").id
    run = (lambda work: work()) if same_thread else in_thread
    try:
        with service.task() as task:
            assert task is not None
            service.release_task(task)
            run(service.get_next_task)
            if error is not None:
                raise error
    except ValueError:
        assert error is not None
    now = found(service.repository, task_id)
    assert (now.status, now.retry_count) == (QueueItemStatus.PROCESSING, 0)


@pytest.mark.parametrize("how", ["complete", "fail", "release"])
def test_with_a_task_that_another_thread_settled(world: World, how: str) -> None:
    service = QueueService(world.open())
    service.submit_task("a")
    with service.task() as task:
        assert task is not None
        settle = {
            "complete": lambda: service.complete_task(task),
            "fail": lambda: service.fail_task(task, "no luck"),
            "release": lambda: service.release_task(task),
        }[how]
        in_thread(settle)
        settled = service.stats()
    assert service.stats() == settled


@pytest.mark.parametrize("how", ["cancel", "remove"])
def test_with_a_task_that_another_thread_did_not_want(world: World, how: str) -> None:
    service = QueueService(world.open())
    service.submit_task("a")
    with pytest.raises(InvalidLeaseError), service.task() as task:
        assert task is not None
        repository = service.repository
        end = repository.cancel if how == "cancel" else repository.remove_item
        in_thread(lambda: end(task))


def test_with_a_task_whose_lease_was_lost(world: World) -> None:
    service = QueueService(world.open(lease_time=10))
    other = QueueService(world.open())
    service.submit_task("a", max_retries=9)
    with pytest.raises(InvalidLeaseError), service.task():
        world.clock.advance(11)
        assert other.get_next_task() is not None
    world.clock.advance(3601)
    with pytest.raises(ValueError, match="oh") as told, service.task():
        world.clock.advance(11)
        assert other.get_next_task() is not None
        raise ValueError("oh")
    assert "could not be settled: item" in told.value.__notes__[0]
    assert service.stats()["processing"] == 1


# An item in place of its id


def test_an_item_stands_for_its_id(world: World) -> None:
    service = QueueService(world.open())
    repository = service.repository
    service.submit_task("a", max_retries=1)
    task = service.get_next_task()
    assert task is not None
    assert repository.extend(task) is not None
    assert service.fail_task(task, "no") is task
    assert task.status.value == "failed"
    assert service.retry_task(task) is task
    assert task.status.value == "pending"
    assert repository.update_item(task, lambda item: item.metadata.update(x=1)) is not None
    assert repository.get_item(task) == found(repository, task.id)
    again = service.get_next_task()
    assert again is not None
    assert service.release_task(again) is again
    assert (again.status, again.metadata) == (QueueItemStatus.PENDING, {"x": 1})
    assert again == found(repository, task.id)
    assert service.cancel_task(task).status is QueueItemStatus.CANCELLED
    assert repository.remove_item(task)
    assert repository.get_item(task) is None


@pytest.mark.parametrize("wrong", [None, 7, {"id": "a"}])
def test_neither_an_id_nor_an_item(world: World, wrong: Any) -> None:
    repository = world.open()
    for call in (
        repository.complete,
        repository.cancel,
        repository.retry,
        repository.release,
        repository.extend,
        repository.get_item,
        repository.remove_item,
        lambda item: repository.fail(item, "no"),
        lambda item: repository.update_item(item, lambda _: None),
    ):
        with pytest.raises(TypeError, match="the id of an item, or the item itself"):
            call(wrong)


def test_who_may_release(world: World) -> None:
    service = QueueService(world.open())
    made = service.submit_task("a")
    with pytest.raises(InvalidTransitionError):
        service.release_task(made)
    with pytest.raises(ItemNotFoundError):
        service.release_task("nobody")
    task = service.get_next_task()
    assert task is not None
    service.repository.remove_item(task)
    with pytest.raises(ItemNotFoundError):
        service.release_task(task)


def test_what_was_released_has_its_place_and_its_retries(world: World) -> None:
    service = QueueService(world.open())
    for name in "ab":
        service.submit_task(name, max_retries=1)
    for _ in range(5):
        task = service.get_next_task()
        assert isinstance(task, QueueItem)
        assert (task.payload["task_id"], task.retry_count) == ("a", 0)
        service.release_task(task)
    assert service.repository.recover().failed == ()


class UnshowableError(Exception):
    """Raises where it is shown."""

    def __str__(self) -> str:
        raise RuntimeError("it cannot be shown")


@pytest.mark.parametrize("error", ["x" * 2_000_000, UnshowableError()], ids=["long", "unshowable"])
def test_a_task_can_be_failed_whatever_its_error_is(error: str | BaseException) -> None:
    with QueueRepository("memory://") as repository:
        service = QueueService(repository)
        task = service.submit_task("a", max_retries=1)
        assert service.get_next_task() is not None
        failed = service.fail_task(task.id, error)
        assert failed.status is QueueItemStatus.FAILED
        assert failed.error_message is not None
        assert 0 < len(failed.error_message) < 21_000
