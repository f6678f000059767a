"""The part `bit-flips` finds what is wrong: a store that takes damage for an edit, or breaks."""

import sqlite3
from pathlib import Path
from random import Random

import pytest

from leasedkeyq.engines.file import document_file
from leasedkeyq.engines.sqlite import store as sqlite_store
from leasedkeyq.errors import StoreError
from tests.torture.damage.harm import harm
from tests.torture.part import Trial
from tests.torture.parts import bit_flips


def test_a_store_that_takes_single_bits_for_an_edit_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(document_file, "_damage", lambda text, good: "")
    found = bit_flips.run(Trial("file", range(1, 31), tmp_path))
    assert found.wrong[bit_flips.WRONG_ITEMS]
    assert "the items are not those that were stored" in " ".join(found.violations)


def test_an_error_that_does_not_name_the_file_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def explain(error: sqlite3.Error, path: Path) -> StoreError:
        return StoreError(str(error))

    monkeypatch.setattr(sqlite_store, "explain", explain)
    found = bit_flips.run(Trial("sqlite", range(1, 21), tmp_path))
    assert "does not name the file" in " ".join(found.violations)


def test_harm_is_never_none() -> None:
    dice = Random(1)
    assert all(harm(b"ab", dice) != b"ab" for _ in range(200))
