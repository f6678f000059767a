"""The random walks of `tests.local.test_model`, ten million steps of them under ``TORTURE=1``.

Every walk has a seed of its own and is short, so that one that fails is quick to replay. Its seed
is in the note of the error:

    MODEL_SEED=1234 pytest tests/torture/test_model_torture.py

``MODEL_FIRST_SEED`` makes all of them start elsewhere.
"""

import os

import pytest

from leasedkeyq.model import ready, timers
from tests.local.model_rig import walk_from

TORTURE = os.environ.get("TORTURE") == "1"
REPLAY = os.environ.get("MODEL_SEED")
FIRST_SEED = int(os.environ.get("MODEL_FIRST_SEED", "1000"))

STEPS = 2_500
BLOCKS = 20
WALKS = 200


def test_the_walks_are_ten_million_steps() -> None:
    assert BLOCKS * WALKS * STEPS >= 10_000_000


@pytest.mark.parametrize("block", range(BLOCKS) if TORTURE and not REPLAY else (0,))
def test_random_walks(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # Tidy up the heaps every few steps, and not only when they are large.
    monkeypatch.setattr(timers, "SMALL", 4)
    monkeypatch.setattr(ready, "SMALL", 4)
    first = FIRST_SEED + block * WALKS
    seeds = range(first, first + (WALKS if TORTURE else 4))
    if REPLAY:
        seeds = range(int(REPLAY), int(REPLAY) + 1)
    print(f"seeds {seeds.start} to {seeds.stop - 1}, {STEPS} steps each")
    steps = sum(walk_from(seed, STEPS) for seed in seeds)
    assert steps >= len(seeds) * STEPS
