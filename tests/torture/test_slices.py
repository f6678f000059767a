"""A little of each part of the torture."""

from pathlib import Path

import pytest

from tests.torture.part import Trial
from tests.torture.parts import PARTS
from tests.torture.runner import run_here

SLICES = [
    (name, engine, rounds) for name, part in PARTS.items() for engine, rounds in part.slice.items()
]
FIRST_SEED = 1


@pytest.mark.parametrize("name, engine, rounds", SLICES)
def test_nothing_is_wrong(name: str, engine: str, rounds: int, tmp_path: Path) -> None:
    seeds = range(FIRST_SEED, FIRST_SEED + rounds)
    found = run_here(PARTS[name], Trial(engine, seeds, tmp_path))
    assert found.tried > 0
    assert not any(found.wrong.values()), "\n".join(found.violations)


@pytest.mark.parametrize("name", PARTS)
def test_a_part_has_a_slice_on_engines_of_its_own(name: str) -> None:
    part = PARTS[name]
    assert part.slice.keys() <= part.amounts.keys()
    assert part.slice
