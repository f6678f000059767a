"""The part `disk-faults` finds what is wrong: writes that fail unheard, errors without advice."""

import sqlite3
from contextlib import suppress
from pathlib import Path

import pytest

from leasedkeyq.engines.file.document_file import DocumentFile
from leasedkeyq.engines.sqlite import store as sqlite_store
from leasedkeyq.errors import StoreError
from tests.torture.part import Findings, Trial
from tests.torture.parts import disk_faults


def faults(engine: str, folder: Path) -> Findings:
    return disk_faults.run(Trial(engine, range(1, 20), folder))


def test_a_store_that_does_not_tell_of_a_failed_write_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = DocumentFile.save

    def save_quietly(file: DocumentFile) -> None:
        with suppress(OSError):
            save(file)

    monkeypatch.setattr(DocumentFile, "save", save_quietly)
    assert "found" in " ".join(faults("file", tmp_path).violations)


def test_an_error_without_advice_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def explain(error: sqlite3.Error, path: Path) -> StoreError:
        return StoreError(f"{path}: {error}")

    monkeypatch.setattr(sqlite_store, "explain", explain)
    assert "does not say what to do" in " ".join(faults("sqlite", tmp_path).violations)
