"""Where payloads go through the door without an event loop: fields of the items of a repository."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

from leasedkeyq.checks import storable
from leasedkeyq.repository import QueueItem, QueueItemStatus, QueueRepository, QueueService
from leasedkeyq.repository.items import LONGEST_ERROR
from tests.torture.hostile.store_places import as_json
from tests.torture.hostile.verdicts import SpoiledError, Verdict, expect

RepositoryPlace: TypeAlias = Callable[[QueueService, Any], Verdict]


def _through(service: QueueService, item: QueueItem) -> QueueItem:
    """An item that is enqueued, handed out, completed and removed."""
    repository = service.repository
    repository.enqueue(item)
    try:
        found = repository.get_item(item.id)
        got = repository.dequeue()
        if found is None or got is None:
            raise SpoiledError("the item is gone")
        expect(found.payload, got.payload, "the payload that was looked at")
        repository.complete(got)
    finally:
        repository.remove_item(item.id)
    return got


def item_id(service: QueueService, value: Any) -> Verdict:
    now = datetime.now(UTC)
    item = QueueItem(value, "task", {"a": 1}, QueueItemStatus.PENDING, now)
    expect(_through(service, item).id, value, "the id")
    return "kept"


def item_type(service: QueueService, value: Any) -> Verdict:
    expect(_through(service, QueueItem.create(value, {})).type, value, "the type")
    return "kept"


def item_payload(service: QueueService, value: Any) -> Verdict:
    item = QueueItem.create("task", {"in": value}, metadata={"of": [value]})
    got = _through(service, item)
    wanted = as_json({"in": value})
    expect(got.payload, wanted, "the payload")
    expect(got.metadata, {"of": [wanted["in"]]}, "the metadata")
    return "kept"


def item_group(service: QueueService, value: Any) -> Verdict:
    expect(_through(service, QueueItem.create("task", {}, group=value)).group, value, "the group")
    return "kept"


def item_priority(service: QueueService, value: Any) -> Verdict:
    got = _through(service, QueueItem.create("task", {}, priority=value))
    expect(got.priority, value, "the priority")
    return "kept"


def item_error(service: QueueService, value: Any) -> Verdict:
    task = service.submit_task("x", max_retries=0)
    got = service.get_next_task()
    if got is None:
        raise SpoiledError("the task is gone")
    try:
        failed = service.fail_task(got, value)
        found = service.repository.get_item(task.id)
    finally:
        service.repository.remove_item(task.id)
    if found is None:
        raise SpoiledError("the task that failed is gone")
    if isinstance(value, str) and 0 < len(value) <= LONGEST_ERROR:
        expect(found.error_message, storable(value), "the error")
    expect(failed.status, QueueItemStatus.FAILED, "the status")
    return "kept"


def id_asked_for(service: QueueService, value: Any) -> Verdict:
    repository: QueueRepository = service.repository
    return f"answered {repository.get_item(value)}, {repository.remove_item(value)}"


REPOSITORY_PLACES: Final[dict[str, RepositoryPlace]] = {
    "the id of an item": item_id,
    "the type of an item": item_type,
    "the payload of an item": item_payload,
    "the group of an item": item_group,
    "the priority of an item": item_priority,
    "the error of a task": item_error,
    "an id that a repository is asked for": id_asked_for,
}
