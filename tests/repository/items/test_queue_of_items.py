"""`Queue`: a list of items with rules."""

import copy
from datetime import UTC, datetime, timedelta

import pytest

from leasedkeyq import QueueFullError
from leasedkeyq.repository import DuplicateItemError, Queue, QueueItem, QueueItemStatus

NOON = datetime(2026, 2, 6, 12, tzinfo=UTC)


def item(name: str, priority: int = 0, scheduled_at: datetime | None = None) -> QueueItem:
    made = QueueItem.create(name, {}, priority, scheduled_at=scheduled_at)
    made.id = name
    return made


def filled(*items: QueueItem, max_size: int | None = None) -> Queue:
    queue = Queue("q", max_size=max_size)
    for made in items:
        queue.enqueue(made)
    return queue


def ids(queue: Queue) -> list[str]:
    return [made.id for made in queue.items]


def test_higher_priority_first_then_first_in_first_out() -> None:
    queue = filled(item("a"), item("b", 5), item("c"), item("d", 5), item("e", -1))
    assert ids(queue) == ["b", "d", "a", "c", "e"]


def test_dequeue_leaves_the_item_there() -> None:
    queue = filled(item("a"), item("b", 1))
    first = queue.dequeue()
    assert first is not None
    assert first is queue.peek() is queue.get_item("b")
    first.start()
    assert queue.dequeue() is queue.get_item("a")
    assert len(queue.items) == 2


def test_dequeue_goes_by_priority_whatever_the_order() -> None:
    queue = Queue("q", [item("a"), item("b", 3), item("c", 3)])
    assert queue.dequeue() is queue.items[1]


def test_dequeue_waits_for_the_time() -> None:
    later = item("later", 9, NOON)
    queue = filled(later, item("now"))
    assert queue.dequeue(now=NOON - timedelta(microseconds=1)) is queue.get_item("now")
    assert queue.dequeue(now=NOON) is later
    assert Queue("q", [item("a", 0, NOON)]).peek(now=NOON - timedelta(days=1)) is None


def test_empty() -> None:
    queue = Queue("q")
    assert queue.dequeue() is queue.peek() is queue.get_item("a") is None
    assert not queue.remove_item("a")


def test_only_pending_items_take_room() -> None:
    queue = filled(item("a"), item("b"), max_size=2)
    with pytest.raises(QueueFullError, match="max_size is 2") as raised:
        queue.enqueue(item("c"))
    assert raised.value.maxsize == 2
    assert ids(queue) == ["a", "b"]
    queue.items[0].start()
    queue.enqueue(item("c"))
    started = item("d")
    started.start()
    queue.enqueue(started)
    assert ids(queue) == ["a", "b", "c", "d"]


def test_no_limit() -> None:
    for limit in (None, 0):
        filled(*(item(str(number)) for number in range(10)), max_size=limit)


def test_an_id_is_there_once() -> None:
    queue = filled(item("a"))
    with pytest.raises(DuplicateItemError, match="'a'") as raised:
        queue.enqueue(item("a"))
    assert raised.value.item_id == "a"


def test_remove() -> None:
    queue = filled(item("a"), item("b"))
    assert queue.remove_item("a")
    assert ids(queue) == ["b"]


def test_stats() -> None:
    queue = Queue("q")
    for number, status in enumerate(QueueItemStatus):
        for copies in range(number + 1):
            queue.items.append(QueueItem(f"{status}{copies}", "x", {}, status, NOON))
    assert queue.get_stats() == {
        "total": 15,
        "pending": 1,
        "processing": 2,
        "completed": 3,
        "failed": 4,
        "cancelled": 5,
    }


def test_two_queues_are_equal_by_what_they_hold() -> None:
    queue = filled(item("a"))
    assert copy.deepcopy(queue) == queue
    assert "_origin" not in repr(queue)
