"""Each tick of a schedule is fired once: workers with other clocks, which are killed and paused.

Under ``TORTURE=1`` 1,000 ticks on SQLite, PostgreSQL and Redis; otherwise some on Redis, as
tests/lanes/schedules has SQLite.
"""

import os
from pathlib import Path

import pytest

from tests.lanes.schedules.tick_processes import survive
from tests.servers.urls import KINDS, empty_store

TORTURE = os.environ.get("TORTURE") == "1"
OFFSETS = [0.0, 2.0, -2.0, 0.5, -0.1] if TORTURE else [2.0, -2.0]
TICKS = 1000 if TORTURE else 10


@pytest.mark.parametrize("kind", KINDS if TORTURE else ["redis"])
def test_each_tick_is_fired_once(kind: str, tmp_path: Path) -> None:
    with empty_store(kind, tmp_path) as url:
        survive(url, tmp_path / "notes", ticks=TICKS, offsets=OFFSETS, disturb=1.0)
