"""The part that runs tests of pytest at full length: all of them, and what fails is found."""

import sys
from pathlib import Path

import pytest

from tests.torture.part import Findings
from tests.torture.parts.long_tests import ASKS, FAILED, GROUPS, ROOT, Group, run_group

TESTS = """
import os, pytest

def test_that_passes():
    assert os.environ["TORTURE"] == "1"

def test_that_fails():
    assert 1 == 2, "not the same"

@pytest.mark.skip(reason="not here")
def test_that_is_skipped():
    pass
"""


def test_all_tests_that_do_more_at_full_length_are_in_a_group() -> None:
    ours = [group.file for groups in GROUPS.values() for group in groups]
    asking = {
        path.relative_to(ROOT).as_posix()
        for path in ROOT.glob("tests/**/test_*.py")
        if ASKS in path.read_text(encoding="utf-8")
    }
    assert {*ours} == asking
    # A file without a name in the part runs on the engine of its folder.
    faults = "tests/engines/postgres/connection/test_faults.py"
    assert faults in {group.file for group in GROUPS["postgres"]}


def test_what_fails_is_found(tmp_path: Path) -> None:
    file = tmp_path / "test_planted.py"
    file.write_text(TESTS, encoding="utf-8")
    found = Findings()
    run_group(Group(str(file), alone=True), 7, tmp_path, found)
    assert found.tried == 2
    assert found.counted["tests skipped"] == 1
    assert found.wrong == {FAILED: 1}
    [words] = found.violations
    assert words.startswith(f"seed 7: {FAILED}: ")
    assert "test_that_fails" in words
    assert "not the same" in words


def test_a_pytest_that_breaks_off_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho it broke\nexit 3\n", encoding="utf-8")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    found = Findings()
    run_group(Group("tests", alone=True), 7, tmp_path, found)
    assert found.tried == 0
    assert found.wrong == {FAILED: 1}
    [words] = found.violations
    assert "pytest ended with 3" in words
    assert "it broke" in words
