"""The simulation of lanes, from a hundred thousand seeds at full length."""

import os

import pytest

from tests.lanes.simulation.simulation import simulate

CHUNKS = 100 if os.environ.get("TORTURE") else 1
SEEDS = {False: 900, True: 100}
"""Seeds in a chunk, in memory and on a store."""
FIRST = 1_000_000


@pytest.mark.parametrize("chunk", range(CHUNKS))
@pytest.mark.parametrize("on_store", [False, True])
def test_lanes_keep_their_promises(chunk: int, on_store: bool) -> None:
    many = SEEDS[on_store] if CHUNKS > 1 else 10
    first = FIRST + chunk * many
    traces = [simulate(seed, on_store=on_store).trace for seed in range(first, first + many)]
    # Of many seeds, a few have nothing happen.
    assert sum(bool(trace) for trace in traces) > 0.9 * many
