"""Chains and gathers whose workers are killed, on every store: a few kills, and under ``TORTURE=1``
hundreds. No chain is lost, no step runs before the one before it, each result is right.
"""

import asyncio
import os
from pathlib import Path

import pytest

from tests.lanes.workflow import workflow_worker
from tests.lanes.workflow.workflow_kills import PATIENCE, kill_at_points, kill_at_random
from tests.servers.urls import KINDS, empty_store

TORTURE = os.environ.get("TORTURE") == "1"
ROUNDS = 20 if TORTURE else 1
KILLS = 20 if TORTURE else 1
MEMBERS = 10_000 if TORTURE else 500
POINTS = workflow_worker.POINTS if TORTURE else ("after_next",)


@pytest.mark.parametrize("kind", KINDS if TORTURE else ["redis"])
def test_killed_between_any_two_writes(kind: str, tmp_path: Path) -> None:
    for _ in range(ROUNDS):
        with empty_store(kind, tmp_path) as url:
            asyncio.run(kill_at_points(url, tmp_path, POINTS))
        (tmp_path / "diary").unlink()


@pytest.mark.parametrize("kind", KINDS if TORTURE else ["postgresql"])
@pytest.mark.parametrize("seed", range(ROUNDS))
def test_killed_at_any_moment(kind: str, seed: int, tmp_path: Path) -> None:
    with empty_store(kind, tmp_path) as url:
        asyncio.run(kill_at_random(url, tmp_path, KILLS, seed, work=2 if TORTURE else 1))


@pytest.mark.parametrize("kind", KINDS if TORTURE else ["sqlite"])
def test_many_members_are_gathered(kind: str, tmp_path: Path) -> None:
    async def gather(url: str) -> None:
        manager = workflow_worker.build(url)
        commands = workflow_worker.register(manager, tmp_path / "diary")
        async with asyncio.timeout(PATIENCE * ROUNDS), manager:
            members = [commands.member(number) for number in range(MEMBERS)]
            outcomes = await (await manager.gather(members, lane="a"))
            good = [outcome.result for outcome in outcomes if outcome.ok]
            assert good == [n * n for n in range(MEMBERS) if n % 10 != 7]

    with empty_store(kind, tmp_path) as url:
        asyncio.run(gather(url))
