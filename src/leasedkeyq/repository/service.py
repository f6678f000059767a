"""`QueueService`: the words of a task queue, on a repository."""

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from types import TracebackType
from typing import Any, Self

from leasedkeyq.errors import LeasedKeyQError, QueueClosedError
from leasedkeyq.repository.errors import InvalidItemError
from leasedkeyq.repository.items import QueueItem, describe_any
from leasedkeyq.repository.repository import QueueRepository
from leasedkeyq.types import Duration


class QueueService:
    """Tasks: submit them, work on them, see how they are doing.

    - ``with QueueService(repository) as service:`` closes the repository at the end.
    - ``for task in service:`` hands out one task after the other and ends when there is none.
    - ``with service.task() as task:`` completes a task, or fails it with what the block raised.
    - ``len(service)`` is how many tasks are pending.

    Methods that want an `item_id` take the item, too. Of that only the id counts; when they return,
    it shows how the item is now.

    Args:
        repository: Where the tasks are.
    """

    def __init__(self, repository: QueueRepository) -> None:
        given: object = repository
        if not isinstance(given, QueueRepository):
            raise TypeError(
                f"repository must be a QueueRepository, got {type(given).__name__}; write "
                'QueueService(QueueRepository("queue.yaml"))'
            )
        self.repository = repository

    # Life

    def close(self) -> None:
        """Close the repository; see `QueueRepository.close`."""
        self.repository.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # Tasks

    def submit_task(
        self,
        task_id: str,
        priority: int = 0,
        *,
        payload: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        scheduled_at: datetime | None = None,
        max_retries: int | None = None,
        group: str | None = None,
    ) -> QueueItem:
        """Add a task. The item is of the type ``"task"``, with the ``task_id`` in its payload.

        Args:
            task_id: What is to be done, in the caller's own words. It need not be unique: the
                item that is returned has an `id` that is.
            priority: Higher goes first.
            payload: What else the worker needs to know, as far as JSON has it; see `QueueItem`.
            metadata: Whatever else is worth keeping, in the same way.
            scheduled_at: Not handed out before this time. Without a zone it is local time.
            max_retries: As in `QueueItem`; by default that of the queue.
            group: Tasks of one group are handed out one at a time, in order; see `QueueItem`.

        Raises:
            QueueFullError: `max_size` items are pending.
            InvalidItemError: Something cannot be stored; the error names the field. So is a
                `task_id` that is no text, or is empty, or differs from one in `payload`.
            LimitExceededError: It is larger than the store takes; the error names the limit.
        """
        given: object = task_id
        if not isinstance(given, str) or not given:
            raise InvalidItemError(
                f"task_id must be a text that is not empty, got {describe_any(given)}",
                field="task_id",
            )
        if payload and payload.get("task_id", task_id) != task_id:
            raise InvalidItemError(
                f"the task is {describe_any(task_id)}, and its payload has the task_id "
                f"{describe_any(payload['task_id'])}; give the payload another name for that",
                field="payload",
            )
        if max_retries is None:
            max_retries = self.repository.default_max_retries
        item = QueueItem.create(
            "task",
            {**(payload or {}), "task_id": task_id},
            priority,
            scheduled_at=scheduled_at,
            max_retries=max_retries,
            metadata=metadata,
            group=group,
        )
        self.repository.enqueue(item)
        return item

    def get_next_task(self, timeout: Duration | None = 0) -> QueueItem | None:
        """Hand out the next task, as `QueueRepository.dequeue` does."""
        return self.repository.dequeue(timeout)

    def tasks(self, timeout: Duration | None = 0) -> Iterator[QueueItem]:
        """Hand out one task after the other: ``for task in service.tasks(timeout=60):``.

        It ends when no task has come within `timeout`, None to wait for ever, or when the
        repository was closed. The worker has to complete, fail or release each task, as with
        `get_next_task`.
        """
        while True:
            try:
                task = self.get_next_task(timeout)
            except QueueClosedError:
                return
            if task is None:
                return
            yield task

    def __iter__(self) -> Iterator[QueueItem]:
        """Hand out one task after the other until there is none, as `tasks` does."""
        return self.tasks()

    @contextmanager
    def task(self, timeout: Duration | None = 0) -> Generator[QueueItem | None]:
        """Work on the next task: ``with service.task(timeout=60) as task:``.

        The block gets None if there is no task within `timeout`. Leaving the block completes the
        task. Leaving it by an exception fails it with that, and lets the exception pass. What ends
        the program or the thread (`KeyboardInterrupt`, `SystemExit`, a cancellation) is no failure
        of the task: it is released, and pending again. A task that was settled inside the block, by
        whichever thread, is left alone.

        Raises:
            InvalidLeaseError: The lease was lost meanwhile, and the task was not completed. If the
                block raised something, that is raised, with a note.
        """
        task = self.get_next_task(timeout)
        if task is None:
            yield None
            return
        lease = self.repository._lease_of(task)
        try:
            yield task
        except BaseException as error:
            if not lease.settled:
                try:
                    if isinstance(error, Exception):
                        self.fail_task(task, error)
                    else:
                        self.release_task(task)
                except LeasedKeyQError as trouble:
                    error.add_note(f"The task {task.id!r} could not be settled: {trouble}")
            raise
        if not lease.settled:
            self.complete_task(task)

    def complete_task(self, item_id: str | QueueItem) -> QueueItem:
        """The task is done; see `QueueRepository.complete`.

        Raises:
            ItemNotFoundError: There is no such item.
            InvalidTransitionError: It is not being processed.
            InvalidLeaseError: It was handed out here, and its lease is lost.
        """
        return self.repository.complete(item_id)

    def fail_task(self, item_id: str | QueueItem, error: str | BaseException) -> QueueItem:
        """The task failed and is tried again, or given up; see `QueueRepository.fail`.

        Raises:
            ItemNotFoundError: There is no such item.
            InvalidTransitionError: It is not being processed.
            InvalidLeaseError: It was handed out here, and its lease is lost.
        """
        return self.repository.fail(item_id, error)

    def release_task(self, item_id: str | QueueItem) -> QueueItem:
        """Give the task back unfinished; see `QueueRepository.release`.

        Raises:
            ItemNotFoundError: There is no such item.
            InvalidTransitionError: It is not being processed.
            InvalidLeaseError: It was handed out here, and its lease is lost.
        """
        return self.repository.release(item_id)

    def cancel_task(self, item_id: str | QueueItem) -> QueueItem:
        """The task is not wanted any more; see `QueueRepository.cancel`.

        Raises:
            ItemNotFoundError: There is no such item.
            InvalidTransitionError: It is completed, or cancelled.
        """
        return self.repository.cancel(item_id)

    def retry_task(self, item_id: str | QueueItem) -> QueueItem:
        """Have a task that failed tried anew; see `QueueRepository.retry`.

        Raises:
            ItemNotFoundError: There is no such item.
            InvalidTransitionError: It did not fail.
        """
        return self.repository.retry(item_id)

    def stats(self) -> dict[str, int]:
        """How many tasks there are: ``"total"``, and by status."""
        return self.repository.stats()

    def __len__(self) -> int:
        """How many tasks are pending, those that are scheduled for later included."""
        return len(self.repository)

    def __bool__(self) -> bool:
        """Always true: a service without tasks is a service, too."""
        return True
