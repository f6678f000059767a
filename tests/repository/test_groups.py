"""Items of one group are handed out one at a time, in order."""

import threading
from collections import defaultdict
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from leasedkeyq.errors import InvalidLeaseError, LimitExceededError, QueueFullError
from leasedkeyq.repository import (
    DuplicateItemError,
    InvalidItemError,
    InvalidTransitionError,
    ItemNotFoundError,
    Queue,
    QueueItem,
    QueueItemStatus,
    QueueRepository,
    QueueService,
)
from leasedkeyq.repository.items import fresh_ids
from tests.repository.support import World, everything, found, item, taken, types


def fill(repository: QueueRepository, group: str, *names: str, **options: Any) -> list[QueueItem]:
    items = [item(name, group=group, **options) for name in names]
    for made in items:
        repository.enqueue(made)
    return items


def handed_out(repository: QueueRepository) -> list[str]:
    """The types of all items in the order in which one worker gets them."""
    names: list[str] = []
    while (got := repository.dequeue()) is not None:
        names.append(got.type)
        repository.complete(got)
    return names


# One at a time, in order


def test_the_next_item_of_a_group_comes_when_the_one_before_is_completed(
    repository: QueueRepository,
) -> None:
    first, second, third = fill(repository, "acme", "a", "b", "c")
    got = taken(repository)
    assert (got.id, got.group) == (first.id, "acme")
    assert repository.dequeue() is None
    repository.complete(got)
    assert taken(repository).id == second.id
    assert repository.dequeue() is None
    repository.complete(second.id)
    assert taken(repository).id == third.id


def test_other_groups_and_items_without_one_do_not_wait(repository: QueueRepository) -> None:
    fill(repository, "acme", "a1", "a2")
    fill(repository, "other", "b1", "b2")
    repository.enqueue(item("free"))
    assert [taken(repository).type for _ in range(3)] == ["a1", "b1", "free"]
    assert repository.dequeue() is None


def test_groups_take_turns(repository: QueueRepository) -> None:
    fill(repository, "acme", *(f"a{number}" for number in range(5)))
    fill(repository, "other", "b0", "b1")
    assert handed_out(repository) == ["a0", "b0", "a1", "b1", "a2", "a3", "a4"]


def test_the_next_item_takes_its_place_at_the_back_of_its_own_priority(
    repository: QueueRepository,
) -> None:
    for name, priority in (("a0", 0), ("a1", 5), ("a2", 0)):
        repository.enqueue(item(name, priority, group="acme"))
    for name, priority in (("x", 0), ("y", 5), ("z", 0)):
        repository.enqueue(item(name, priority))
    assert types(repository) == ["y", "a0", "x", "z", "a1", "a2"]
    assert handed_out(repository) == ["y", "a0", "a1", "x", "z", "a2"]


def test_a_failing_item_keeps_those_behind_it_waiting(
    world: World, repository: QueueRepository
) -> None:
    first, second = fill(repository, "acme", "a", "b")
    got = taken(repository)
    shown = repository.fail(got, "boom")
    assert shown is got
    assert (got.status, got.retry_count, got.error_message) == (
        QueueItemStatus.PENDING,
        1,
        "boom",
    )
    stored = found(repository, first.id)
    assert (stored.retry_count, stored.error_message) == (1, "boom")
    assert stored.scheduled_at == world.now + timedelta(seconds=10)
    assert repository.dequeue() is None
    world.clock.advance(10)
    assert taken(repository).id == first.id
    repository.fail(first.id, "again")
    assert found(repository, first.id).error_message == "again"
    world.clock.advance(20)
    got = taken(repository)
    assert (got.id, got.retry_count) == (first.id, 2)
    repository.fail(got, "the end")
    assert (got.status, got.retry_count, got.error_message) == (
        QueueItemStatus.FAILED,
        3,
        "the end",
    )
    assert found(repository, first.id) == got
    assert taken(repository).id == second.id


def test_an_item_that_was_retried_goes_to_the_end_of_its_group(repository: QueueRepository) -> None:
    first, *_ = fill(repository, "acme", "a", "b", "c", max_retries=1)
    repository.fail(taken(repository), "boom")
    repository.retry(first.id)
    stored = found(repository, first.id)
    assert (stored.status, stored.retry_count, stored.group) == (QueueItemStatus.PENDING, 0, "acme")
    assert handed_out(repository) == ["b", "c", "a"]


@pytest.mark.parametrize("take_away", [QueueRepository.cancel, QueueRepository.remove_item])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_an_item_that_is_taken_away_lets_the_next_go(
    repository: QueueRepository,
    take_away: Callable[[QueueRepository, str], object],
    which: int,
) -> None:
    items = fill(repository, "acme", "a", "b", "c")
    got = taken(repository)
    take_away(repository, items[which].id)
    if which == 0:
        with pytest.raises((InvalidTransitionError, ItemNotFoundError)):
            repository.complete(got)
    else:
        repository.complete(got)
    left = [name for number, name in enumerate("abc") if number not in {0, which}]
    assert handed_out(repository) == left


def test_an_item_with_a_time_ahead_keeps_those_behind_it_waiting(
    world: World, repository: QueueRepository
) -> None:
    later = world.now + timedelta(seconds=60)
    fill(repository, "acme", "a")
    fill(repository, "acme", "b", scheduled_at=later)
    fill(repository, "acme", "c")
    assert found(repository, fill(repository, "acme", "d")[0].id).scheduled_at is None
    repository.complete(taken(repository))
    assert repository.dequeue() is None
    world.clock.advance(60)
    assert handed_out(repository) == ["b", "c", "d"]


def test_an_item_that_is_released_stays_the_first(repository: QueueRepository) -> None:
    fill(repository, "acme", "a", "b")
    got = taken(repository)
    repository.release(got)
    assert got.status is QueueItemStatus.PENDING
    assert handed_out(repository) == ["a", "b"]


def test_a_worker_that_dies_loses_the_item_and_the_group_goes_on(
    world: World, repository: QueueRepository
) -> None:
    repository = world.open(lease_time=10)
    first, second = fill(repository, "acme", "a", "b", max_retries=2)
    dead = taken(repository)
    world.clock.advance(11)
    report = repository.recover()
    assert report.pending == (first.id,)
    assert repository.recover() == type(report)()
    assert "the worker died" in (found(repository, first.id).error_message or "")
    other = world.open(lease_time=10)
    assert taken(other).id == first.id
    with pytest.raises(InvalidLeaseError):
        repository.complete(dead)
    world.clock.advance(11)
    assert repository.recover().failed == (first.id,)
    assert found(other, first.id).status is QueueItemStatus.FAILED
    assert taken(other).id == second.id


def test_recover_takes_the_items_of_groups_away(world: World, repository: QueueRepository) -> None:
    first, _ = fill(repository, "acme", "a", "b")
    taken(repository)
    world.clock.advance(1)
    assert repository.recover(older_than=0.5).pending == (first.id,)
    assert handed_out(repository) == ["a", "b"]


def test_a_lease_is_extended(world: World) -> None:
    repository = world.open(lease_time=10)
    fill(repository, "acme", "a", "b")
    got = taken(repository)
    world.clock.advance(6)
    repository.extend(got.id)
    world.clock.advance(6)
    assert repository.complete(got.id).status is QueueItemStatus.COMPLETED


def test_many_workers_keep_the_order(world: World) -> None:
    repository = world.open()
    order: defaultdict[str | None, list[str]] = defaultdict(list)
    busy: set[str | None] = set()
    wrong: list[str] = []
    with repository.transaction() as queue:
        for number in range(5):
            for group in ("a", "b", "c"):
                queue.enqueue(item(f"{number}", group=group))

    def work() -> None:
        while (got := repository.dequeue(timeout=0.2)) is not None:
            if got.group in busy:
                wrong.append(f"{got.group} twice")
            busy.add(got.group)
            order[got.group].append(got.type)
            busy.discard(got.group)
            repository.complete(got)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong
    assert order == {group: ["0", "1", "2", "3", "4"] for group in ("a", "b", "c")}


# Looking and changing


@pytest.mark.parametrize("by_id", [True, False])
@pytest.mark.parametrize("stranger", [True, False])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_an_item_is_found_wherever_it_waits(
    world: World, by_id: bool, stranger: bool, which: int
) -> None:
    repository = world.open()
    items = fill(repository, "acme", "a", "b", "c")
    asking = world.open() if stranger else repository
    wanted = items[which]
    got = asking.get_item(wanted.id if by_id else wanted)
    assert got == wanted
    assert asking.get_item("nobody") is None


@pytest.mark.parametrize("stranger", [True, False])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_an_item_is_changed_wherever_it_waits(world: World, stranger: bool, which: int) -> None:
    repository = world.open()
    items = fill(repository, "acme", "a", "b", "c")
    taken(repository)
    asking = world.open() if stranger else repository

    def change(item: QueueItem) -> None:
        item.metadata["seen"] = True
        item.priority = 7

    changed = asking.update_item(items[which].id, change)
    assert changed == asking.get_item(items[which].id)
    assert changed is not None
    assert (changed.metadata, changed.priority) == ({"seen": True}, 7)
    others = [one for one in repository.get_queue().items if one.id != items[which].id]
    assert all(one.metadata == {} and one.priority == 0 for one in others)
    repository.complete(items[0].id)
    assert handed_out(repository) == ["b", "c"]


def test_a_change_keeps_the_times_and_priorities_of_those_behind(
    world: World, repository: QueueRepository
) -> None:
    later = world.now + timedelta(seconds=60)
    first, _ = fill(repository, "acme", "a", "b")
    fill(repository, "acme", "c", scheduled_at=later, priority=3)
    fill(repository, "acme", "d", priority=2)
    before = everything(repository)
    repository.update_item(first.id, lambda item: item.payload.update(more=1))
    before[1]["payload"]["more"] = 1
    assert everything(repository) == before
    repository.complete(taken(repository))
    repository.complete(taken(repository))
    assert repository.dequeue() is None
    world.clock.advance(60)
    assert handed_out(repository) == ["c", "d"]


def test_the_time_of_an_item_that_waits_can_be_changed(
    world: World, repository: QueueRepository
) -> None:
    _, second = fill(repository, "acme", "a", "b")

    def postpone(item: QueueItem) -> None:
        item.scheduled_at = world.now + timedelta(seconds=60)

    repository.update_item(second, postpone)
    assert found(repository, second.id).scheduled_at == world.now + timedelta(seconds=60)
    repository.complete(taken(repository))
    assert repository.dequeue() is None
    repository.update_item(second.id, lambda item: setattr(item, "scheduled_at", None))
    assert taken(repository).id == second.id


def test_an_item_joins_leaves_and_changes_its_group(repository: QueueRepository) -> None:
    fill(repository, "acme", "a", "b")
    free, moving = item("free"), item("moving")
    repository.enqueue(free)
    repository.enqueue(moving)
    repository.update_item(free.id, lambda item: setattr(item, "group", "acme"))
    repository.update_item(moving.id, lambda item: setattr(item, "group", "other"))
    assert found(repository, free.id).group == "acme"
    assert [taken(repository).type for _ in range(2)] == ["a", "moving"]
    assert repository.dequeue() is None
    repository.update_item(free.id, lambda item: setattr(item, "group", None))
    assert taken(repository).type == "free"
    assert found(repository, free.id).group is None


def test_the_group_of_an_item_that_is_processing_cannot_be_changed(
    repository: QueueRepository,
) -> None:
    fill(repository, "acme", "a", "b")
    got = taken(repository)
    before = everything(repository)
    for group in (None, "other"):
        change = partial(QueueItem.__setattr__, name="group", value=group)
        with pytest.raises(InvalidItemError, match="processing") as caught:
            repository.update_item(got.id, change)
        assert caught.value.field == "group"
    assert everything(repository) == before


def test_an_error_that_was_written_by_hand_is_replaced_by_the_next_failure(
    world: World, repository: QueueRepository
) -> None:
    first, second = fill(repository, "acme", "a", "b")
    repository.fail(taken(repository), "one")
    repository.update_item(first.id, lambda item: setattr(item, "error_message", "mine"))
    assert found(repository, first.id).error_message == "mine"
    world.clock.advance(10)
    repository.fail(taken(repository), "two")
    assert found(repository, first.id).error_message == "two"
    assert repository.get_item(second) == second


def test_finished_items_keep_their_group(world: World, repository: QueueRepository) -> None:
    first, second, third = fill(repository, "acme", "a", "b", "c", max_retries=1)
    repository.complete(taken(repository))
    repository.fail(taken(repository), "boom")
    repository.cancel(third)
    assert [found(world.open(), one.id).group for one in (first, second, third)] == ["acme"] * 3
    assert repository.stats() == {
        "total": 3,
        "pending": 0,
        "processing": 0,
        "completed": 1,
        "failed": 1,
        "cancelled": 1,
    }
    with pytest.raises(ItemNotFoundError):
        repository.complete("nobody")


def test_finished_items_are_not_kept_if_that_is_not_wanted(world: World) -> None:
    repository = world.open(keep_finished=0)
    fill(repository, "acme", "a", "b")
    assert handed_out(repository) == ["a", "b"]
    assert repository.stats()["total"] == 0


def test_stats_count_the_items_that_wait_in_groups(repository: QueueRepository) -> None:
    fill(repository, "acme", "a", "b", "c")
    taken(repository)
    assert (repository.stats()["pending"], repository.stats()["processing"]) == (2, 1)
    assert len(repository) == 2


def test_max_size_counts_the_items_that_wait_in_groups(world: World) -> None:
    repository = world.open()
    with repository.transaction() as queue:
        if world.kind in {"yaml", "json"}:
            queue.max_size = 2
    limited = repository if world.kind in {"yaml", "json"} else world.open(max_size=2)
    fill(limited, "acme", "a", "b")
    before = everything(limited)
    with pytest.raises(QueueFullError):
        limited.enqueue(item("c", group="acme"))
    with pytest.raises(QueueFullError), limited.transaction() as queue:
        queue.items.append(item("c", group="acme"))
    assert everything(limited) == before


# Ids and groups that cannot be


@pytest.mark.parametrize("known", ["waiting", "first", "finished", "in another group", "ungrouped"])
def test_an_id_that_is_there_is_refused(world: World, known: str) -> None:
    repository = world.open()
    first, second = fill(repository, "acme", "a", "b")
    free = item("free")
    repository.enqueue(free)
    if known == "finished":
        repository.complete(taken(repository))
    again = {"waiting": second, "in another group": second, "ungrouped": free}.get(known, first)
    copy = QueueItem.from_dict(
        {**item("copy").to_dict(), "id": again.id, "group": "acme"}
        | ({"group": "other"} if known == "in another group" else {})
    )
    before = everything(repository)
    for asking in (repository, world.open()):
        with pytest.raises(DuplicateItemError):
            asking.enqueue(copy)
    assert everything(repository) == before


def test_the_same_item_twice_is_refused(repository: QueueRepository) -> None:
    fill(repository, "acme", "a")
    made = item("b", group="acme")
    repository.enqueue(made)
    with pytest.raises(DuplicateItemError):
        repository.enqueue(made)
    assert types(repository) == ["a", "b"]


def test_an_id_of_this_process_is_not_looked_for(
    repository: QueueRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(repository, "acme", "a")
    asked: list[str] = []
    monkeypatch.setattr(
        "leasedkeyq.repository.session.Session.find_group",
        lambda _, item_id: asked.append(item_id),
    )
    fresh = item("b", group="acme")
    repository.enqueue(fresh)
    assert asked == []
    made = item("c", group="acme")
    fresh_ids.begin_anew()
    repository.enqueue(made)
    assert asked == [made.id]


def test_an_item_without_a_group_may_have_the_id_of_one_that_waits(world: World) -> None:
    repository = world.open()
    fill(repository, "acme", "a", "b")
    waiting = next(one for one in repository.get_queue().items if one.type == "b")
    repository.enqueue(QueueItem.from_dict({**item("free").to_dict(), "id": waiting.id}))
    repository.complete(taken(repository))
    names = [taken(repository).type for _ in range(2)]
    assert sorted(names) == ["b", "free"]


@pytest.mark.parametrize("group", ["", 7, True, b"x"])
def test_a_group_is_a_text(group: Any) -> None:
    with pytest.raises(InvalidItemError) as caught:
        QueueItem.create("work", {}, group=group)
    assert caught.value.field == "group"


def test_a_group_that_cannot_be_stored(repository: QueueRepository) -> None:
    before = everything(repository)
    for group in ("a\x00b", "\ud800"):
        with pytest.raises(InvalidItemError) as caught:
            repository.enqueue(item("work", group=group))
        assert caught.value.field == "group"
    with pytest.raises(LimitExceededError):
        repository.enqueue(item("work", group="x" * 512))
    with pytest.raises(InvalidItemError) as caught:
        repository.enqueue(QueueItem.from_dict({**item().to_dict(), "id": "\x1fx"}))
    assert caught.value.field == "id"
    assert everything(repository) == before
    fill(repository, "x" * 511, "a")
    assert handed_out(repository) == ["a"]


# The whole queue


def test_a_transaction_adds_changes_and_removes_items_of_groups(
    repository: QueueRepository,
) -> None:
    first, second, third, fourth = fill(repository, "acme", "a", "b", "c", "d")
    with repository.transaction() as queue:
        queue.enqueue(item("e", group="acme"))
        for one in (first, third, fourth):
            found = queue.get_item(one.id)
            assert found is not None
            found.metadata["seen"] = one.type
        queue.remove_item(second.id)
    queue = repository.get_queue()
    assert [(one.type, one.metadata) for one in queue.items] == [
        ("a", {"seen": "a"}),
        ("c", {"seen": "c"}),
        ("d", {"seen": "d"}),
        ("e", {}),
    ]
    assert handed_out(repository) == ["a", "c", "d", "e"]


def test_a_transaction_takes_the_first_out_and_changes_the_next(
    repository: QueueRepository,
) -> None:
    first, second, _ = fill(repository, "acme", "a", "b", "c")
    with repository.transaction() as queue:
        queue.remove_item(first.id)
        found = queue.get_item(second.id)
        assert found is not None
        found.priority = 4
    assert [(one.type, one.priority) for one in repository.get_queue().items] == [
        ("b", 4),
        ("c", 0),
    ]
    assert handed_out(repository) == ["b", "c"]


def test_a_saved_queue_keeps_its_groups_in_order(world: World, repository: QueueRepository) -> None:
    queue = Queue("other")
    for name, priority in (("a", 0), ("b", 9), ("c", 4)):
        queue.enqueue(item(name, priority, group="acme"))
    queue.enqueue(item("free", 2))
    assert [one.type for one in queue.items] == ["free", "a", "b", "c"]
    repository.save_queue(queue)
    assert types(repository) == ["free", "a", "b", "c"]
    assert handed_out(repository) == ["free", "a", "b", "c"]


def test_a_queue_hands_out_only_the_first_of_a_group() -> None:
    queue = Queue("plain")
    first, second = item("a", group="acme"), item("b", 5, group="acme")
    queue.enqueue(first)
    queue.enqueue(second)
    assert queue.dequeue() is first
    first.start()
    assert queue.dequeue() is None
    first.complete()
    assert queue.peek() is second


def test_an_item_and_its_dictionary() -> None:
    grouped, free = item("a", group="acme"), item("b")
    assert QueueItem.from_dict(grouped.to_dict()) == grouped
    assert grouped.to_dict()["group"] == "acme"
    assert "group" not in free.to_dict()
    assert QueueItem.from_dict(free.to_dict()) == free


def test_a_service_submits_tasks_of_a_group(repository: QueueRepository) -> None:
    service = QueueService(repository)
    for name in ("one", "two"):
        service.submit_task(name, group="acme")
    done: list[str] = []
    for task in service:
        assert service.get_next_task() is None
        done.append(task.payload["task_id"])
        service.complete_task(task)
    assert done == ["one", "two"]
