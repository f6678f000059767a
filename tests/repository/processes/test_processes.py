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


@pytest.mark.parametrize("kind, items", [("sqlite", 2_000), ("yaml", 100)])
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
