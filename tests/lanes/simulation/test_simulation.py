"""The simulation, from many seeds. `make torture` runs many more."""

import pytest

from leasedkeyq.lanes.durable import prefetch as ahead
from leasedkeyq.lanes.running.lane import Slots
from tests.lanes.simulation.simulation import simulate

CHUNK = 50


@pytest.mark.parametrize("first", range(0, 300, CHUNK))
def test_lanes_in_memory_keep_their_promises(first: int) -> None:
    starts = sum(
        simulate(seed, on_store=False).checked_starts for seed in range(first, first + CHUNK)
    )
    assert starts > 10 * CHUNK


def test_lanes_on_a_store_keep_their_promises() -> None:
    for seed in range(25):
        assert simulate(seed, on_store=True).trace


def test_workers_that_claim_ahead_keep_their_promises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "ENOUGH", 1)
    monkeypatch.setattr(ahead, "FADING", 0.9)
    for seed in range(12):
        for trip in (0.02, 0.3):
            assert simulate(seed, on_store=True, trip=trip).trace


def test_a_seed_replays_exactly() -> None:
    assert simulate(7, on_store=False).trace == simulate(7, on_store=False).trace
    assert simulate(8, on_store=True).trace == simulate(8, on_store=True).trace


def test_a_scheduler_that_forgets_a_maximum_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Slots, "may_start", lambda slots, partition, coming=0: True)
    with pytest.raises(AssertionError, match="is above its maximum"):
        for seed in range(20):
            simulate(seed, on_store=False)
