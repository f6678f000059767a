"""Each tick once: worker processes that are killed, paused and have other clocks."""

from pathlib import Path

from tests.lanes.schedules.tick_processes import survive


def test_each_tick_is_fired_once_whatever_becomes_of_the_workers(tmp_path: Path) -> None:
    """Two workers on one SQLite file, one of which is half a second ahead."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    survive(url, tmp_path / "notes", ticks=120, offsets=[0.0, 0.5], disturb=0.7)
