"""The name of a queue stays; a document that got another one meanwhile is noticed."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from leasedkeyq.errors import StoreError
from leasedkeyq.repository import Queue, QueueRepository
from tests.repository.support import WAIT, World, everything, item, open_session, types


def test_a_stored_queue_keeps_its_name(world: World) -> None:
    repository = world.open()
    repository.enqueue(item("a"))
    before = everything(repository)
    with (
        pytest.raises(AttributeError, match=r"keeps its name.*save_queue"),
        repository.transaction() as queue,
    ):
        queue.items.clear()
        queue.name = "other"
    assert everything(repository) == before
    with repository.transaction() as queue:
        queue.name = repository.name  # that is no change
    read = repository.get_queue()
    with pytest.raises(AttributeError, match="keeps its name"):
        read.name = "other"
    repository.save_queue(read)
    assert read.name == repository.name


def test_a_queue_of_ones_own_can_have_any_name(world: World) -> None:
    queue = Queue("mine")
    queue.name = "other"
    queue.enqueue(item("a"))
    repository = world.open()
    repository.save_queue(queue)
    assert (queue.name, types(repository)) == (repository.name, ["a"])


CALLS: dict[str, Callable[[QueueRepository], object]] = {
    "enqueue": lambda r: r.enqueue(item("b")),
    "dequeue": lambda r: r.dequeue(),
    "dequeue in time": lambda r: r.dequeue(timeout=5),
    "get_item": lambda r: r.get_item("a"),
    "complete": lambda r: r.complete("a"),
    "remove_item": lambda r: r.remove_item("a"),
    "update_item": lambda r: r.update_item("a", lambda _: None),
    "extend": lambda r: r.extend("a"),
    "recover": lambda r: r.recover(),
    "stats": lambda r: r.stats(),
    "len": len,
    "get_queue": lambda r: r.get_queue(),
    "save_queue": lambda r: r.save_queue(Queue("x", [item("b")])),
    "transaction": lambda r: r.transaction().__enter__(),
}


def rename(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("name: queue", "name: other", 1), encoding="utf-8")


@pytest.mark.parametrize("call", CALLS)
def test_a_document_that_was_renamed_meanwhile(tmp_path: Path, call: str) -> None:
    """It is not taken for an empty queue."""
    path = tmp_path / "queue.yaml"
    with QueueRepository(path) as repository:
        repository.enqueue(item("a"))
        rename(path)
        before = path.read_bytes()
        with pytest.raises(StoreError, match="is the queue 'other' now, and was 'queue'"):
            CALLS[call](repository)
        if call in ("get_item", "stats", "len", "get_queue"):
            assert path.read_bytes() != before, "the edit was taken up"
    with QueueRepository(path) as repository:
        assert (repository.name, types(repository)) == ("other", ["a"])


def test_who_waits_hears_of_another_name(tmp_path: Path) -> None:
    path = tmp_path / "queue.yaml"
    heard: list[Exception] = []

    def wait(repository: QueueRepository) -> None:
        try:
            repository.dequeue(timeout=WAIT)
        except StoreError as error:
            heard.append(error)

    with QueueRepository(path) as repository:
        made = item("a")
        repository.enqueue(made)
        repository.remove_item(made)
        worker = threading.Thread(target=wait, args=(repository,))
        worker.start()
        while not open_session(repository).is_waited_on:
            time.sleep(0.01)
        rename(path)
        worker.join(WAIT)
    assert len(heard) == 1
    assert "make a new QueueRepository" in str(heard[0])
