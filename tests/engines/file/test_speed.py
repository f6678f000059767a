"""How long a hand edit holds up the next call, in documents of some thousand items."""

import time
from pathlib import Path

import pytest

from leasedkeyq.repository import QueueItem, QueueRepository

ITEMS = 2000
LIMIT = 1.0
"""Seconds of this process; others may be busy beside it."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "queue.yaml"
    with QueueRepository(path) as repository, repository.transaction() as queue:
        queue.items.extend(
            QueueItem.create("task", {"task_id": f"T{number}"}) for number in range(ITEMS)
        )
    return path


def cost_of_a_look(path: Path) -> float:
    began = time.process_time()
    with QueueRepository(path) as repository:
        assert repository.stats()["total"] == ITEMS
        return time.process_time() - began


@pytest.mark.parametrize(
    "new",
    [
        "payload: {task_id: T3}",
        "payload: # by hand\n    task_id: 'T3'",
        "payload:\n    task_id: T3\n    text: |\n      two\n      lines",
        'payload: {"task_id": "T4"}',
    ],
)
def test_one_edit_in_another_style(path: Path, new: str) -> None:
    text = path.read_text()
    old = 'payload: {"task_id": "T3"}'
    assert old in text
    path.write_text(text.replace(old, new, 1))
    assert cost_of_a_look(path) < LIMIT


@pytest.mark.parametrize("flow", [None, False])
def test_a_script_that_writes_all_of_it_in_its_own_style(path: Path, flow: bool | None) -> None:
    yaml = pytest.importorskip("yaml")
    document = yaml.load(path.read_text(), Loader=yaml.CSafeLoader)
    document["items"][3]["priority"] = 7
    path.write_text(yaml.dump(document, Dumper=yaml.CSafeDumper, default_flow_style=flow))
    assert cost_of_a_look(path) < 3 * LIMIT
