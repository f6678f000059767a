"""Gradual migration: programs that read and write the document plainly, beside the repository."""

import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from leasedkeyq.errors import StoreError
from leasedkeyq.repository import QueueItem, QueueItemStatus, QueueRepository, QueueService
from tests.repository.support import LocalTime, item

PENDING, PROCESSING, COMPLETED, FAILED, CANCELLED = QueueItemStatus

OLD = """\
# The queue of the engine.
queue:
- id: 1f9b3c2d   # the first
  type: task
  payload:
    task_id: TASK-1
  status: pending
  created_at: '2026-02-06T12:00:00.123456'
  priority: 75
  owner: ada
- id: 77aa00bb
  type: task
  payload: {task_id: TASK-2}
  status: completed
  created_at: '2026-02-06T12:00:00'
  completed_at: '2026-02-06T13:00:00'
"""


def load(path: Path) -> Any:
    """As a program does that knows nothing of us."""
    with path.open(encoding="utf-8") as file:
        return json.load(file) if path.suffix == ".json" else YAML(typ="safe").load(file)


@pytest.mark.parametrize("suffix", ["yaml", "json"])
def test_the_document_has_the_fields_of_the_seed(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"queue.{suffix}"
    with QueueRepository(path, max_size=50) as repository:
        service = QueueService(repository)
        service.submit_task("a", 1)
        service.submit_task("b", max_retries=1)
        service.submit_task("c", scheduled_at=datetime(2099, 1, 1, tzinfo=UTC))
        for settle in (service.complete_task, lambda key: service.fail_task(key, "oh")):
            task = service.get_next_task()
            assert task is not None
            settle(task.id)
        service.submit_task("d")
        service.get_next_task()
        document = load(path)
        assert (document["name"], document["max_size"]) == ("queue", 50)
        assert document["default_max_retries"] == 3
        stored = {made.id: made.to_dict() for made in repository.get_queue().items}
        assert {data["id"]: data for data in document["items"]} == stored
        assert sorted(data["status"] for data in document["items"]) == [
            "completed",
            "failed",
            "pending",
            "processing",
        ]


@pytest.mark.parametrize("zone, hour", [("UTC", 12), ("EST5EDT,M3.2.0,M11.1.0", 17), ("XYZ-9", 3)])
def test_times_without_a_zone_are_local(
    tmp_path: Path, local_time: LocalTime, zone: str, hour: int
) -> None:
    """As the programs meant them that wrote `datetime.now()`, quoted or not."""
    local_time(zone)
    path = tmp_path / "queue.yaml"
    text = OLD.replace("'2026-02-06T12:00:00'", "2026-02-06 12:00:00")
    path.write_text(text, encoding="utf-8")
    with QueueRepository(path) as repository:
        first, second = repository.get_queue().items
        assert first.created_at == datetime(2026, 2, 6, hour, 0, 0, 123456, tzinfo=UTC)
        assert second.created_at == datetime(2026, 2, 6, hour, tzinfo=UTC)
        repository.update_item(first, lambda one: one.metadata.update(seen=True))
        repository.update_item(second, lambda one: one.metadata.update(seen=True))
    local_time("XYZ+3")
    with QueueRepository(path) as repository:
        assert [one.created_at.astimezone(UTC).hour for one in repository.get_queue().items] == [
            hour,
            hour,
        ], "what is written has its offset"


def test_what_others_have_finished_stays(tmp_path: Path) -> None:
    path = tmp_path / "queue.yaml"
    done = "".join(
        f"- {{id: {name}, type: task, payload: {{}}, status: completed}}\n" for name in "abc"
    )
    path.write_text(f"items:\n{done}", encoding="utf-8")
    with QueueRepository(path) as repository:
        repository.update_item("a", lambda one: one.metadata.update(seen=True))
        assert repository.remove_item("b")
        time.sleep(0.01)
        assert {one.id: one.metadata for one in repository.get_queue().items} == {
            "a": {"seen": True},
            "c": {},
        }


def test_an_older_document(tmp_path: Path) -> None:
    path = tmp_path / "queue.yaml"
    path.write_text(OLD, encoding="utf-8")
    with QueueRepository(path) as repository:
        first, second = repository.get_queue().items
        assert (first.id, first.priority, first.status) == ("1f9b3c2d", 75, PENDING)
        assert first.created_at == datetime(2026, 2, 6, 12, 0, 0, 123456, tzinfo=UTC)
        assert (first.payload, first.max_retries) == ({"task_id": "TASK-1"}, 3)
        assert (second.status, second.priority) == (COMPLETED, 0)
        repository.enqueue(item("new"))
        got = repository.dequeue()
        assert got is not None
        repository.complete(got.id)
    document = load(path)
    by_id = {data["id"]: data for data in document["queue"]}
    assert len(by_id) == 3
    assert by_id["1f9b3c2d"]["status"] == "completed"
    assert by_id["1f9b3c2d"]["owner"] == "ada", "what nobody knows stays"
    text = path.read_text(encoding="utf-8")
    assert "# The queue of the engine." in text
    assert "# the first" in text


@pytest.mark.parametrize("suffix", ["yaml", "json"])
def test_a_program_that_writes_plainly(suffix: str, tmp_path: Path) -> None:
    """As long as it does so while nobody else does, everything that it changed is taken up."""
    path = tmp_path / f"queue.{suffix}"
    with QueueRepository(path) as repository:
        made = [item(name) for name in ("goes", "completed", "urgent", "failed")]
        for one in made:
            repository.enqueue(one)
        document = load(path)
        data = {one["type"]: one for one in document["items"]}
        data["completed"]["status"] = "completed"
        data["urgent"]["priority"] = 9
        data["failed"] |= {"status": "failed", "error_message": "by hand", "retry_count": 3}
        document["items"].remove(data["goes"])
        document["items"].append(QueueItem.create("added", {"x": 1}).to_dict())
        with path.open("w", encoding="utf-8") as file:
            if suffix == "json":
                json.dump(document, file)
            else:
                YAML(typ="safe").dump(document, file)
        items = {one.type: one for one in repository.get_queue().items}
        assert set(items) == {"completed", "urgent", "failed", "added"}
        assert items["completed"].status is COMPLETED
        assert (items["failed"].status, items["failed"].error_message) == (FAILED, "by hand")
        got = repository.dequeue()
        assert got is not None
        assert got.type == "urgent"
        assert repository.retry(items["failed"].id).retry_count == 0


def test_an_item_that_a_person_adds(tmp_path: Path) -> None:
    path = tmp_path / "queue.yaml"
    with QueueRepository(path, default_max_retries=5) as repository:
        repository.enqueue(item("first"))
        text = path.read_text(encoding="utf-8")
        added = "items:\n- type: mail\n  payload: {to: ada}\n  priority: 3\n"
        path.write_text(text.replace("items:\n", added, 1), encoding="utf-8")
        got = repository.dequeue()
        assert got is not None
        assert (got.type, got.payload, got.max_retries) == ("mail", {"to": "ada"}, 5)
        assert repository.complete(got.id).status is COMPLETED


def test_a_processing_item_without_a_worker(tmp_path: Path) -> None:
    path = tmp_path / "queue.yaml"
    path.write_text(OLD.replace("status: pending", "status: processing"), encoding="utf-8")
    with QueueRepository(path) as repository:
        assert repository.dequeue() is None
        assert repository.complete("1f9b3c2d").status is COMPLETED, "its worker may still do that"


def test_nonsense_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "queue.yaml"
    text = OLD.replace("status: pending", "status: half done")
    path.write_text(text, encoding="utf-8")
    with pytest.raises(StoreError, match="half done"):
        QueueRepository(path)
    assert path.read_text(encoding="utf-8") == text
