"""`QueueService`: the words of a task queue, on a repository."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from leasedkeyq.repository.model import QueueItem
from leasedkeyq.repository.repository import QueueRepository
from leasedkeyq.types import Duration


class QueueService:
    """Tasks: submit them, work on them, see how they are doing.

    Args:
        repository: Where the tasks are.
    """

    def __init__(self, repository: QueueRepository) -> None:
        self.repository = repository

    def submit_task(
        self,
        task_id: str,
        priority: int = 0,
        *,
        payload: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        scheduled_at: datetime | None = None,
        max_retries: int | None = None,
    ) -> QueueItem:
        """Add a task. The item is of the type ``"task"``, with the ``task_id`` in its payload.

        Args:
            task_id: What is to be done, in the caller's own words. It need not be unique: the
                item that is returned has an `id` that is.
            priority: Higher goes first.
            payload: What else the worker needs to know.
            metadata: Whatever else is worth keeping.
            scheduled_at: Not handed out before this time.
            max_retries: As in `QueueItem`; by default that of the queue.

        Raises:
            QueueFullError: `max_size` items are pending.
            InvalidItemError: Something cannot be stored; the error names the field.
            LimitExceededError: It is larger than the store takes; the error names the limit.
        """
        if max_retries is None:
            max_retries = self.repository.default_max_retries
        item = QueueItem.create(
            "task",
            {**(payload or {}), "task_id": task_id},
            priority,
            scheduled_at=scheduled_at,
            max_retries=max_retries,
            metadata=metadata,
        )
        self.repository.enqueue(item)
        return item

    def get_next_task(self, timeout: Duration | None = 0) -> QueueItem | None:
        """Hand out the next task, as `QueueRepository.dequeue` does."""
        return self.repository.dequeue(timeout)

    def complete_task(self, item_id: str) -> QueueItem:
        """The task is done; see `QueueRepository.complete`.

        Raises:
            ItemNotFoundError: There is no such item.
            InvalidTransitionError: It is not being processed.
            InvalidLeaseError: It was handed out here, and its lease is lost.
        """
        return self.repository.complete(item_id)

    def fail_task(self, item_id: str, error: str | BaseException) -> QueueItem:
        """The task failed and is tried again, or given up; see `QueueRepository.fail`.

        Raises:
            ItemNotFoundError: There is no such item.
            InvalidTransitionError: It is not being processed.
            InvalidLeaseError: It was handed out here, and its lease is lost.
        """
        return self.repository.fail(item_id, error)

    def cancel_task(self, item_id: str) -> QueueItem:
        """The task is not wanted any more; see `QueueRepository.cancel`.

        Raises:
            ItemNotFoundError: There is no such item.
            InvalidTransitionError: It is completed, or cancelled.
        """
        return self.repository.cancel(item_id)

    def retry_task(self, item_id: str) -> QueueItem:
        """Have a task that failed tried anew; see `QueueRepository.retry`.

        Raises:
            ItemNotFoundError: There is no such item.
            InvalidTransitionError: It did not fail.
        """
        return self.repository.retry(item_id)

    def stats(self) -> dict[str, int]:
        """How many tasks there are: ``"total"``, and by status."""
        return self.repository.stats()
