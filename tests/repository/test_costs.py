"""What calls cost does not grow with the finished items that a queue keeps."""

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from leasedkeyq import MemoryStore
from leasedkeyq.model.requests import Cancel, Put, StoredItem
from leasedkeyq.repository import QueueItem, QueueItemStatus, QueueRepository
from tests.repository.support import World, everything, found, item
from tests.servers.urls import empty_store


def finish(repository: QueueRepository, count: int) -> list[str]:
    """Give it so many completed items."""
    with repository.transaction() as queue:
        for number in range(count):
            made = item(f"work {number}")
            made.start()
            made.complete()
            queue.items.append(made)
    return [item.id for item in repository.get_queue().items]


class Counting:
    """Counts what edits look at, and what they ask of the store."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen = self.asked = 0
        self._edit = world.store.edit
        monkeypatch.setattr(world.store, "edit", self.edit)

    async def edit(self, queue: str, work: Callable[..., Any], **options: Any) -> Any:
        def counted(items: Sequence[StoredItem]) -> Sequence[Any]:
            asked: Sequence[Any] = work(items)
            self.seen += len(items)
            self.asked += len(asked)
            return asked

        return await self._edit(queue, counted, **options)


CHANGES: dict[str, Callable[[QueueRepository, str], object]] = {
    "remove": lambda repository, key: repository.remove_item(key),
    "update": lambda repository, key: repository.update_item(
        key, lambda item: item.metadata.update(seen=True)
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_one_finished_item_leaves_the_others_alone(
    world: World, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = world.open()
    ids = finish(repository, 50)
    before = everything(repository)
    counting = Counting(world, monkeypatch)
    CHANGES[change](repository, ids[10])
    assert counting.seen == 1
    assert counting.asked <= 3
    monkeypatch.undo()
    left = [shown for shown in before if shown.get("id") != ids[10]]
    assert [shown for shown in everything(repository) if shown.get("id") != ids[10]] == left


def test_a_changed_finished_item_is_forgotten_in_its_old_time(world: World) -> None:
    repository = world.open(keep_finished=100)
    first, second = finish(repository, 2)
    world.clock.advance(60)
    repository.update_item(first, lambda item: item.metadata.update(seen=True))
    assert found(repository, first).metadata == {"seen": True}
    world.clock.advance(39)
    assert repository.stats()["completed"] == 2
    world.clock.advance(2)
    assert repository.stats()["completed"] == 0
    assert repository.get_item(second) is None


def test_stats_build_no_items(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = world.open()
    ids = finish(repository, 20)
    with repository.transaction() as queue:
        for status in (QueueItemStatus.CANCELLED, QueueItemStatus.FAILED):
            made = item("other")
            made.status = QueueItemStatus.PROCESSING
            made.status = status
            queue.items.append(made)
    repository.enqueue(item("waits"))
    repository.remove_item(ids[0])
    expected = repository.get_queue().get_stats()

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("an item was built to be counted")

    monkeypatch.setattr(QueueItem, "__init__", refuse)
    assert repository.stats() == expected
    assert (expected["completed"], expected["cancelled"], expected["total"]) == (19, 1, 22)


def test_stats_are_much_quicker_than_reading_the_queue(world: World) -> None:
    repository = world.open()
    finish(repository, 700)

    def best_of_three(call: Callable[[], object]) -> float:
        times: list[float] = []
        for _ in range(3):
            began = time.perf_counter()
            call()
            times.append(time.perf_counter() - began)
        return min(times)

    # Five to ten times as quick on a quiet machine.
    assert best_of_three(repository.stats) * 2 < best_of_three(repository.get_queue)


@contextmanager
def opened(kind: str, folder: Path) -> Generator[QueueRepository]:
    """A repository on an empty store, on a server where it has to be."""
    if kind in ("postgresql", "redis"):
        with empty_store(kind, folder) as url, QueueRepository(url) as repository:
            yield repository
    else:
        world = World(kind, folder)
        yield world.open()
        world.close()


@pytest.mark.parametrize("kind", ["json", "memory", "postgresql", "redis", "sqlite", "yaml"])
def test_stats_cost_the_same_with_many_finished_items(kind: str, tmp_path: Path) -> None:
    """In calls of functions, in all threads.

    What the servers do for it is measured in tests/engines: rows on PostgreSQL, steps on Redis.
    """
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    def cost(finished: int) -> int:
        folder = tmp_path / str(finished)
        folder.mkdir()
        threading.setprofile(count)
        sys.setprofile(count)
        try:
            repository = stack.enter_context(opened(kind, folder))
            repository.enqueue(item("waits"))
            if finished:
                finish(repository, finished)
            # The first look reads the document that was written last.
            assert repository.stats()["total"] == repository.stats()["completed"] + 1
            before = calls
            stats = repository.stats()
            spent = calls - before
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
        assert (stats["completed"], stats["pending"]) == (finished, 1)
        return spent

    with ExitStack() as stack:
        few, many = cost(0), cost(1000)
    assert many <= few * 1.5


def test_stats_of_results_that_are_no_items() -> None:

    async def fill() -> None:
        for key, result in (("a", b"[]"), ("b", b'{"status": "pending"}'), ("c", None)):
            await store.put([Put("queue", ((key, b"1"),))])
            await store.settle([Cancel("queue", key, result, 100.0)])

    store = MemoryStore()
    asyncio.run(fill())
    with QueueRepository(store) as repository:
        assert repository.stats() == repository.get_queue().get_stats()
