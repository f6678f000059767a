"""The part `power` finds what is wrong: a disk or a store that does not sync."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import pytest

from leasedkeyq.engines.file.file_operations import FileOperations
from tests.torture.part import Findings, Trial
from tests.torture.parts import power
from tests.torture.power.disk import Disk, Name, Names
from tests.torture.power.file_runs import NotedOperations

SEEDS = range(1, 16)


@pytest.mark.parametrize("engine, seeds", [("file", range(1, 9)), ("sqlite", range(1, 9))])
def test_a_disk_that_does_not_sync_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, seeds: range
) -> None:
    monkeypatch.setattr(power, "Disk", partial(Disk, syncs=False))
    found = power.run(Trial(engine, seeds, tmp_path))
    assert found.wrong[power.LOST] + found.wrong[power.DAMAGED] > 0
    assert found.violations


def skip_sync(monkeypatch: pytest.MonkeyPatch, skipped: Callable[[Path], bool]) -> None:
    """Let the file store leave out some syncs."""
    sync = NotedOperations.sync

    def sync_some(ops: NotedOperations, path: Path) -> None:
        if skipped(path):
            FileOperations.sync(ops, path)
        else:
            sync(ops, path)

    monkeypatch.setattr(NotedOperations, "sync", sync_some)


def lose_power(folder: Path) -> Findings:
    return power.run(Trial("file", SEEDS, folder))


def test_a_file_store_that_does_not_sync_its_folder_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_sync(monkeypatch, Path.is_dir)
    assert lose_power(tmp_path).wrong[power.LOST]


def test_a_file_store_that_does_not_sync_its_document_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_sync(monkeypatch, lambda path: path.name.endswith((".yaml.new", ".json.new")))
    assert any(lose_power(tmp_path).wrong.values())


def test_names_that_change_together_are_kept_or_lost_together() -> None:
    disk = Disk({"a": b"1", "b": b"2"})
    disk.do(Names((Name("a", 1), Name("b", 0))))
    dice = Random(1)
    found = [disk.any(dice) for _ in range(50)]
    assert {(files["a"], files["b"]) for files in found} == {(b"1", b"2"), (b"2", b"1")}
