"""Chains and gathers whose workers are killed, on every store: one kill, and under ``TORTURE=1``
hundreds. No chain is lost, no step runs before the one before it, each result is right.
"""

import asyncio
import os
from pathlib import Path
from typing import Final

import pytest

from tests.lanes.workflow import workflow_worker
from tests.lanes.workflow.workflow_kills import PATIENCE, kill_at_points, kill_at_random
from tests.servers.urls import KINDS, empty_store

TORTURE = os.environ.get("TORTURE") == "1"
ROUNDS = 20 if TORTURE else 1
KILLS = 20 if TORTURE else 1
MEMBERS = 10_000 if TORTURE else 100
AT_POINTS: Final = -1
"""In place of a seed: workers are killed at named points, and not at random."""
CASES = (
    [(kind, seed) for kind in KINDS for seed in (*[AT_POINTS] * ROUNDS, *range(ROUNDS))]
    if TORTURE
    else [("redis", 0)]
)


@pytest.mark.parametrize("kind, seed", CASES)
def test_workers_are_killed(kind: str, seed: int, tmp_path: Path) -> None:
    with empty_store(kind, tmp_path) as url:
        if seed == AT_POINTS:
            asyncio.run(kill_at_points(url, tmp_path))
        else:
            asyncio.run(kill_at_random(url, tmp_path, KILLS, seed, work=2 if TORTURE else 1))


@pytest.mark.parametrize("kind", KINDS if TORTURE else ["sqlite"])
def test_many_members_are_gathered(kind: str, tmp_path: Path) -> None:
    async def gather(url: str) -> None:
        manager = workflow_worker.build(url)
        commands = workflow_worker.register(manager, tmp_path / "diary")
        async with asyncio.timeout(10 * PATIENCE), manager:
            members = [commands.member(number) for number in range(MEMBERS)]
            outcomes = await (await manager.gather(members, lane="a"))
            good = [outcome.result for outcome in outcomes if outcome.ok]
            assert good == [n * n for n in range(MEMBERS) if n % 10 != 7]

    with empty_store(kind, tmp_path) as url:
        asyncio.run(gather(url))
