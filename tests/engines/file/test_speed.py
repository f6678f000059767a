"""How long calls and hand edits take in documents of some thousand items, or with a long line."""

import time
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from leasedkeyq.engines.file.document.queues_form import QueuesForm
from leasedkeyq.model.requests import Ack, Cancel, Put
from leasedkeyq.repository import QueueItem, QueueRepository
from tests.engines.file.support import SUFFIXES, claim, opened
from tests.engines.file.test_races import RacingOps

ITEMS = 2000
LIMIT = 1.0
"""Seconds of this process; others may be busy beside it."""


@cache
def document(items: int) -> str:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "queue.yaml"
        with QueueRepository(path) as repository, repository.transaction() as queue:
            queue.items.extend(
                QueueItem.create("task", {"task_id": f"T{number}"}) for number in range(items)
            )
        return path.read_text()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "queue.yaml"


def cost_of_a_look(path: Path, items: int = ITEMS) -> float:
    began = time.process_time()
    with QueueRepository(path) as repository:
        assert repository.stats()["total"] == items
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
    text = document(ITEMS)
    old = 'payload: {"task_id": "T3"}'
    assert old in text
    path.write_text(text.replace(old, new, 1))
    assert cost_of_a_look(path) < LIMIT


@pytest.mark.parametrize("flow", [None, False])
def test_a_script_that_writes_all_of_it_in_its_own_style(path: Path, flow: bool | None) -> None:
    yaml = pytest.importorskip("yaml")
    some = ITEMS // 4
    found = yaml.load(document(some), Loader=yaml.CSafeLoader)
    found["items"][3]["priority"] = 7
    path.write_text(yaml.dump(found, Dumper=yaml.CSafeDumper, default_flow_style=flow))
    assert cost_of_a_look(path, some) < 3 * LIMIT / 4


def values(count: int) -> Put:
    return Put("jobs", tuple(("k", b"%d" % number) for number in range(count)), "append")


@SUFFIXES
def test_a_change_of_a_long_line_writes_one_value(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text is put together of those of all values; but only that of one is made."""
    engine = opened(tmp_path / f"queue.{suffix}")
    engine.apply([values(1000)])
    written: list[int] = []
    write = QueuesForm.write

    def counted(form: QueuesForm, section: Any, facts: Any) -> Any:
        written.append(facts.payload.id)
        return write(form, section, facts)

    monkeypatch.setattr(QueuesForm, "write", counted)
    engine.apply([Put("jobs", (("k", b"0"),), "append")])
    (lease,) = claim(engine)
    engine.apply([Ack("jobs", "k", lease.token)])
    engine.apply([Cancel("jobs", "k", id=500)])
    assert written == [1001, 1, 2]


def test_an_edit_that_comes_while_a_long_line_is_written(tmp_path: Path) -> None:
    path, ops = tmp_path / "queue.yaml", RacingOps()
    engine = opened(path, ops=ops)
    engine.apply([values(2 * ITEMS)])

    def by_hand() -> None:
        text = path.read_text()
        path.write_text(text.replace("# sum", "          - value: new\n# sum"))

    ops.race = by_hand
    began = time.process_time()
    engine.apply([Put("jobs", (("k", b"0"),), "append")])
    assert time.process_time() - began < 3 * LIMIT
    found = engine.read(lambda model, now: model.line("jobs", "k", now))
    assert [item.value for item in found[-2:]] == [b"0", b'"new"']
