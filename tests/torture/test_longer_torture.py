"""At full length under ``TORTURE=1``: what other tests do a few times, and what they leave out."""

import os
from pathlib import Path

import pytest

from tests.engines.test_conformance import Json, SqliteByItsOwnClock
from tests.local.test_model import MACHINES, search
from tests.repository.processes.test_processes import do_each_once
from tests.repository.support import source_of

if os.environ.get("TORTURE") == "1":

    class TestJson(Json):
        """All of it."""

    class TestSqliteByItsOwnClock(SqliteByItsOwnClock):
        """All of it."""

    @pytest.mark.parametrize("kind, length", MACHINES)
    def test_state_machine(kind: str, length: int) -> None:
        search(kind, length, 50_000)

    @pytest.mark.parametrize("kind, items", [("sqlite", 10_000), ("yaml", 500)])
    def test_every_item_is_done_exactly_once(kind: str, items: int, tmp_path: Path) -> None:
        do_each_once(source_of(kind, tmp_path), items)
