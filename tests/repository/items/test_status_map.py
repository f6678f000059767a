"""Documents in which others write a status that is none of ours."""

from pathlib import Path
from typing import Any

import pytest

from leasedkeyq import MemoryStore
from leasedkeyq.engines.file.store import FileStore
from leasedkeyq.errors import StoreError
from leasedkeyq.repository import QueueItemStatus, QueueRepository
from tests.repository.items.test_documents_of_others import load
from tests.repository.support import item

LEGACY = """\
# The queue of the engine.
items:
- id: one
  type: task
  payload: {task_id: T1}
  status: waiting   # since Monday
  owner: ada
- {id: two, type: task, payload: {}, status: "half done"}
- {id: three, type: task, payload: {}, status: pending}
- {id: four, type: task, payload: {}, status: done}
"""
WORDS: dict[str, str | QueueItemStatus] = {
    "waiting": "pending",
    "half done": QueueItemStatus.PROCESSING,
    "done": "completed",
}
SHOWN = {"one": "pending", "two": "processing", "three": "pending", "four": "completed"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "queue.yaml"
    path.write_text(LEGACY, encoding="utf-8")
    return path


def shown(repository: QueueRepository) -> dict[str, str]:
    return {one.id: one.status.value for one in repository.get_queue().items}


def test_without_a_map_the_error_says_what_to_do(path: Path) -> None:
    with pytest.raises(StoreError) as told:
        QueueRepository(path)
    for part in (
        '"one"',
        "'waiting'",
        "pending, processing",
        "status_map={'waiting': \"pending\"}",
    ):
        assert part in str(told.value)
    assert path.read_text(encoding="utf-8") == LEGACY


@pytest.mark.parametrize("words", [WORDS, WORDS.get], ids=["mapping", "function"])
def test_a_status_of_others(path: Path, words: Any) -> None:
    with QueueRepository(path, status_map=words) as repository:
        assert shown(repository) == SHOWN
        repository.enqueue(item("new"))
        assert repository.complete("two").status is QueueItemStatus.COMPLETED
    written = path.read_text(encoding="utf-8")
    assert "# The queue of the engine." in written
    assert "# since Monday" in written
    assert {one["id"]: one["status"] for one in load(path)["items"]}["one"] == "pending"
    with QueueRepository(path) as repository:
        assert shown(repository).items() >= (SHOWN | {"two": "completed"}).items()
        one = repository.get_item("one")
        assert one is not None
        assert one.payload == {"task_id": "T1"}
    assert load(path)["items"][0]["owner"] == "ada"


def test_others_go_on_with_their_words(path: Path) -> None:
    with QueueRepository(path, status_map=WORDS) as repository:
        repository.enqueue(item("new"))
        text = path.read_text(encoding="utf-8")
        added = "items:\n- type: mail\n  payload: {to: ada}\n  status: waiting\n  priority: 9\n"
        path.write_text(text.replace("items:\n", added, 1), encoding="utf-8")
        got = repository.dequeue()
        assert got is not None
        assert got.payload == {"to": "ada"}


def test_a_status_that_the_map_does_not_know(path: Path) -> None:
    with pytest.raises(StoreError, match=r'"two".*half done'):
        QueueRepository(path, status_map={"waiting": "pending"})
    with pytest.raises(StoreError, match=r'"one".*waiting'):
        QueueRepository(path, status_map=lambda _: None)


def test_a_map_to_nowhere(path: Path) -> None:
    with pytest.raises(ValueError, match="'waiting' 'ready', which is none of pending"):
        QueueRepository(path, status_map={"waiting": "ready"})
    with pytest.raises((ValueError, StoreError), match="'waiting' 'ready', which is none of"):
        QueueRepository(path, status_map=lambda _: "ready")
    assert path.read_text(encoding="utf-8") == LEGACY


def test_a_map_is_for_documents(path: Path) -> None:
    store = MemoryStore()
    for source in ("memory://", f"sqlite:///{path}.db", store):
        with pytest.raises(ValueError, match="status_map is for documents"):
            QueueRepository(source, status_map=WORDS)
    document = FileStore(path, form="repository", status_map={"waiting": "pending"}.get)
    with pytest.raises(StoreError, match="half done"):
        QueueRepository(document)


def test_our_own_words_are_not_asked_for(path: Path) -> None:
    asked: list[str] = []

    def status_map(status: str) -> str | QueueItemStatus:
        asked.append(status)
        return WORDS[status]

    with QueueRepository(path, status_map=status_map) as repository:
        assert shown(repository) == SHOWN
    assert set(asked) == set(WORDS)
