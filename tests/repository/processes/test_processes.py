"""Several processes on one repository, some of which die."""

import json
import os
from pathlib import Path

import pytest

from leasedkeyq.repository import QueueItem, QueueItemStatus, QueueRepository
from tests.repository.support import SHARED_KINDS, finish, item, kill, program, source_of, types

PATIENCE = 500
"""Seconds that other processes may take; they never do, but the machine may be busy."""

pytestmark = pytest.mark.timeout(PATIENCE + 60)


def fill(repository: QueueRepository, count: int) -> None:
    with repository.transaction() as queue:
        queue.items = [QueueItem.create("t", {"number": number}) for number in range(count)]


@pytest.mark.parametrize("kind, items", [("sqlite", 600), ("yaml", 60)])
def test_every_item_is_done_exactly_once(kind: str, items: int, tmp_path: Path) -> None:
    do_each_once(source_of(kind, tmp_path), items)


def do_each_once(source: str, items: int) -> None:
    """Work in eight processes of eight threads. Also for tests/torture."""
    with QueueRepository(source) as repository:
        fill(repository, items)
        assert repository.stats()["pending"] == items
        processes = [program("work", source, 8) for _ in range(8)]
        reports = [json.loads(finish(process, PATIENCE)) for process in processes]
        assert [error for report in reports for error in report["errors"]] == []
        done = [number for report in reports for number in report["done"]]
        assert sorted(done) == list(range(items))
        expected = dict.fromkeys(repository.stats(), 0) | {"total": items, "completed": items}
        assert repository.stats() == expected == repository.get_queue().get_stats()


@pytest.mark.parametrize("kind", SHARED_KINDS)
def test_no_change_is_lost(kind: str, tmp_path: Path) -> None:
    source = source_of(kind, tmp_path)
    made = QueueItem.create("counter", {"count": 0})
    with QueueRepository(source) as repository:
        repository.enqueue(made)
        for process in [program("count", source, made.id, 15) for _ in range(4)]:
            finish(process, PATIENCE)
        counted = repository.get_item(made.id)
        assert counted is not None
        assert counted.payload == {"count": 4 * (15 + 10)}


@pytest.mark.parametrize("kind, items", [("sqlite", 30), ("yaml", 6)])
def test_processes_keep_the_order_of_groups(kind: str, items: int, tmp_path: Path) -> None:
    source, journal = source_of(kind, tmp_path), tmp_path / "journal"
    groups = ("a", "b", "c", "d")
    with QueueRepository(source) as repository, repository.transaction() as queue:
        for number in range(items):
            for group in groups:
                queue.enqueue(QueueItem.create("t", {"number": number}, group=group))
    processes = [program("work_in_order", source, journal, 4 * items, 3) for _ in range(3)]
    for process in processes:
        finish(process, PATIENCE)
    notes = [line.split() for line in journal.read_text().splitlines()]
    for group in groups:
        wanted: list[list[str]] = []
        for number in range(items):
            if number % 3 == 1:
                wanted += [["begin", group, str(number)], ["fail", group, str(number)]]
            wanted += [["begin", group, str(number)], ["end", group, str(number)]]
        assert [note for note in notes if note[1] == group] == wanted


@pytest.mark.parametrize("kind", SHARED_KINDS)
def test_a_worker_that_is_killed_holds_its_group_up_until_its_lease_ends(
    kind: str, tmp_path: Path
) -> None:
    source = source_of(kind, tmp_path)
    first, second = (item(name, max_retries=2, group="acme") for name in "ab")
    with QueueRepository(source) as repository:
        repository.enqueue(first)
        repository.enqueue(second)
        for lease_time in (3600, 0.01):
            worker = program("die", source, lease_time)
            assert worker.stdout is not None
            assert worker.stdout.readline().strip() == first.id
            kill(worker)
            if lease_time > 1:
                assert repository.dequeue() is None
                assert repository.recover(older_than=0).pending == (first.id,)
        got = repository.dequeue(timeout=30)
        assert got is not None
        assert got.id == second.id
        failed = repository.get_item(first.id)
        assert failed is not None
        assert (failed.status, failed.retry_count) == (QueueItemStatus.FAILED, 2)


@pytest.mark.parametrize("kind", SHARED_KINDS)
def test_a_worker_that_is_killed(kind: str, tmp_path: Path) -> None:
    source = source_of(kind, tmp_path)
    made = item(max_retries=2)
    with QueueRepository(source) as repository:
        repository.enqueue(made)
        worker = program("die", source, 3600)
        assert worker.stdout is not None
        assert worker.stdout.readline().strip() == made.id
        kill(worker)
        assert repository.dequeue() is None, "it may still be at work, for all we know"
        assert repository.recover(older_than=0).pending == (made.id,)
        # The next one has a short lease: nobody has to say that it died.
        worker = program("die", source, 0.01)
        assert worker.stdout is not None
        assert worker.stdout.readline().strip() == made.id
        kill(worker)
        assert repository.dequeue(timeout=1) is None
        failed = repository.get_item(made.id)
        assert failed is not None
        assert (failed.status, failed.retry_count) == (QueueItemStatus.FAILED, 2)


@pytest.mark.parametrize("kind", SHARED_KINDS)
def test_a_process_that_is_killed_in_a_transaction(kind: str, tmp_path: Path) -> None:
    source = source_of(kind, tmp_path)
    with QueueRepository(source) as repository:
        repository.enqueue(item("stays"))
        worker = program("die_in_a_transaction", source)
        assert worker.stdout is not None
        assert worker.stdout.readline().strip() == "inside"
        kill(worker)
        repository.enqueue(item("new"))
        assert types(repository) == ["stays", "new"]


@pytest.mark.parametrize("kind", SHARED_KINDS)
def test_a_program_may_forget_to_close(kind: str, tmp_path: Path) -> None:
    source = source_of(kind, tmp_path)
    assert finish(program("leave_open", source), PATIENCE) == "1\n"
    with QueueRepository(source) as repository:
        assert types(repository) == ["left open"]
    if kind == "sqlite":
        assert [name for name in os.listdir(tmp_path) if name.endswith("-wal")] == []
