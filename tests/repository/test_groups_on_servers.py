"""Groups on every kind of store, real clocks and servers included: order, lookups and costs."""

import threading
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from leasedkeyq.model.requests import EditWork, StoredItem
from leasedkeyq.repository import QueueItem, QueueItemStatus, QueueRepository
from leasedkeyq.stores import Store
from tests.repository.support import item
from tests.servers.urls import empty_store

KINDS = ("file", "postgresql", "redis", "sqlite")


@pytest.mark.parametrize("kind", KINDS)
def test_workers_that_fail_keep_the_order(kind: str, tmp_path: Path) -> None:
    groups, count = 3, 4
    done: defaultdict[str | None, list[str]] = defaultdict(list)
    working: set[str | None] = set()
    wrong: list[str] = []
    with empty_store(kind, tmp_path) as url:
        with QueueRepository(url) as repository:
            for number in range(count):
                for group in range(groups):
                    repository.enqueue(item(f"{number}", group=f"g{group}"))

        def work() -> None:
            with QueueRepository(url, backoff=lambda _: 0.01) as repository:
                while sum(map(len, list(done.values()))) < groups * count:
                    got = repository.dequeue(timeout=0.1)
                    if got is None:
                        continue
                    if got.group in working:
                        wrong.append(f"two of {got.group} at a time")
                    working.add(got.group)
                    if got.retry_count == 0 and int(got.type) % 2:
                        working.discard(got.group)
                        repository.fail(got, "not yet")
                    else:
                        done[got.group].append(got.type)
                        working.discard(got.group)
                        repository.complete(got)

        workers = [threading.Thread(target=work) for _ in range(3)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert not wrong
        assert done == {f"g{group}": [str(n) for n in range(count)] for group in range(groups)}
        with QueueRepository(url) as repository:
            assert repository.stats()["completed"] == groups * count


@pytest.mark.parametrize("kind", KINDS)
def test_items_are_found_changed_and_taken_out_of_the_middle(kind: str, tmp_path: Path) -> None:
    with empty_store(kind, tmp_path) as url, QueueRepository(url) as repository:
        items = [item(str(number), group="acme") for number in range(6)]
        for made in items:
            repository.enqueue(made)
        with QueueRepository(url) as other:
            other.update_item(items[2].id, lambda item: item.metadata.update(seen=True))
            other.cancel(items[4].id)
            assert other.remove_item(items[1].id)
            first = other.dequeue()
            assert first is not None
            other.update_item(first, lambda item: item.metadata.update(mine=True))
            other.fail(first.id, "boom")
        waiting = repository.get_item(items[0].id)
        assert waiting is not None
        assert (waiting.metadata, waiting.error_message) == ({"mine": True}, "boom")
        repository.cancel(items[0].id)
        names: list[tuple[str, bool]] = []
        for _ in range(3):
            got = repository.dequeue()
            assert got is not None
            assert repository.dequeue() is None
            names.append((got.type, "seen" in got.metadata))
            repository.complete(got.id)
        assert names == [("2", True), ("3", False), ("5", False)]
        assert repository.dequeue() is None


@pytest.mark.parametrize("kind", ["memory", "postgresql", "redis", "sqlite"])
def test_settling_the_first_of_a_group_costs_the_same_with_many_behind_it(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No call shows more than a few items, however long the line is."""
    shown: list[int] = []
    with ExitStack() as stack:
        url = "memory://" if kind == "memory" else stack.enter_context(empty_store(kind, tmp_path))
        repository = stack.enter_context(QueueRepository(url))
        with repository.transaction() as queue:
            queue.items += [
                QueueItem.create("work", {}, group="acme", max_retries=2) for _ in range(2000)
            ]
        made = QueueItem.create("last", {}, group="acme")
        edit = Store.edit

        async def counting(self: Store, queue: str, work: EditWork, **options: Any) -> Any:
            def counted(items: Sequence[StoredItem]) -> Sequence[Any]:
                shown.append(len(items))
                return work(items)

            return await edit(self, queue, counted, **options)

        monkeypatch.setattr(Store, "edit", counting)
        repository.enqueue(made)
        for _ in range(3):
            got = repository.dequeue()
            assert got is not None
            repository.extend(got)
            repository.release(got)
            again = repository.dequeue()
            assert again is not None
            assert again.id == got.id
            repository.fail(again, "boom")
            repository.cancel(again)
            got = repository.dequeue()
            assert got is not None
            assert repository.complete(got).status is QueueItemStatus.COMPLETED
            assert repository.get_item(got.id) == got
        monkeypatch.undo()
        assert max(shown) <= 2
        assert len(repository) == 2001 - 6
