"""The part `clocks` finds what is wrong: a store whose own time runs too fast, or not at all."""

import asyncio
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from leasedkeyq.engines.memory import MemoryStore
from tests.torture.clocks import servers
from tests.torture.clocks.session import EARLY, LOST, TWICE
from tests.torture.part import Findings, Trial
from tests.torture.parts import clocks


def jumps(folder: Path) -> Findings:
    return clocks.run(Trial("memory", range(1, 21), folder))


def test_a_store_whose_time_runs_too_fast_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = MemoryStore._now
    asked: Counter[MemoryStore] = Counter()

    def hurry(store: MemoryStore) -> float:
        asked[store] += 1
        # Not for ever: leases have to last while what is left is handed out.
        return now(store) + 700.0 * min(asked[store], 25)

    monkeypatch.setattr(MemoryStore, "_now", hurry)
    found = jumps(tmp_path)
    assert found.wrong[TWICE]
    assert found.wrong[EARLY]


def test_a_store_whose_time_stands_still_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryStore, "_now", lambda store: 1e9)
    assert jumps(tmp_path).wrong[LOST]


def test_a_store_that_goes_by_the_clock_of_its_client_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As SQLite does: its only client is this machine."""
    monkeypatch.setattr(servers, "WAIT", 0.5)

    async def main() -> list[str]:
        dice = {seed: Random(seed) for seed in range(3)}
        played = servers.play_all(f"sqlite:///{tmp_path}/q.db", dice)
        return [problem.name async for _, clients in played for problem in clients.problems]

    assert asyncio.run(main())
