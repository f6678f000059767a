"""Power is lost after each step of the SQLite store, with many outcomes, under ``TORTURE=1``."""

import os
from pathlib import Path
from random import Random

import pytest

from tests.engines.sqlite.power_runs import lose_power_often, losses, run

TORTURE = os.environ.get("TORTURE") == "1"
SEEDS = range(100, 104) if TORTURE else (100,)
ROUNDS = 40 if TORTURE else 2
OUTCOMES = 10 if TORTURE else 2
TURNS = 300 if TORTURE else 3


@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_acknowledged_survives_a_loss_at_every_step(tmp_path: Path, seed: int) -> None:
    work = tmp_path / "work"
    work.mkdir()
    recorded = run(work, seed, rounds=ROUNDS)
    points = range(len(recorded.steps) + 1)
    verdicts = losses(recorded, tmp_path, Random(seed), points=points, outcomes=OUTCOMES)
    assert set(verdicts) <= {"kept", "unclaimed"}


@pytest.mark.parametrize("seed", SEEDS)
def test_synced_claims_survive_a_loss_at_every_step(tmp_path: Path, seed: int) -> None:
    work = tmp_path / "work"
    work.mkdir()
    recorded = run(work, seed, rounds=ROUNDS, sync_claims=True)
    points = range(len(recorded.steps) + 1)
    verdicts = losses(recorded, tmp_path, Random(seed), points=points, outcomes=OUTCOMES)
    assert set(verdicts) == {"kept"}


@pytest.mark.parametrize("seed", SEEDS)
def test_at_normal_nothing_is_damaged_by_a_loss_at_any_step(tmp_path: Path, seed: int) -> None:
    work = tmp_path / "work"
    work.mkdir()
    recorded = run(work, seed, rounds=ROUNDS, durability="normal")
    points = range(len(recorded.steps) + 1)
    verdicts = losses(recorded, tmp_path, Random(seed), points=points, outcomes=OUTCOMES)
    assert verdicts["lost"]
    assert set(verdicts) <= {"kept", "unclaimed", "lost"}


@pytest.mark.parametrize("seed", SEEDS)
def test_power_goes_again_and_again(tmp_path: Path, seed: int) -> None:
    lose_power_often(tmp_path, Random(seed), turns=TURNS)
