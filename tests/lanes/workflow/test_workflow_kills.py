"""Chains and gathers on a SQLite file whose workers are killed; torture has the other stores."""

import asyncio
from pathlib import Path

from tests.lanes.workflow.workflow_kills import kill_at_points


def test_a_worker_may_be_killed_between_any_two_writes(tmp_path: Path) -> None:
    asyncio.run(kill_at_points(f"sqlite:///{tmp_path}/jobs.db", tmp_path))
