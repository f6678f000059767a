"""The judge of poison finds a value that is not where it must be."""

import asyncio
import random
from typing import Any

from leasedkeyq import MemoryStore
from tests.torture.part import Findings
from tests.torture.poison import rounds
from tests.torture.poison.rounds import PoisonedLane
from tests.torture.poison.values import PoisonedValue, envelope, poisoned


def test_a_value_that_runs_is_found(monkeypatch: Any) -> None:
    """One that is whole stands for poison that a worker would take for a command."""
    found = Findings()
    dice = random.Random(1)
    whole = PoisonedValue("whole", envelope())
    values = iter([whole, *(poisoned(dice) for _ in range(rounds.IN_A_ROUND))])
    monkeypatch.setattr(rounds, "poisoned", lambda _: next(values))

    async def main() -> None:
        lane = PoisonedLane(MemoryStore())
        async with lane.manager:
            await lane.round(found, 1, dice)

    asyncio.run(main())
    assert found.wrong == {rounds.STAYED: 1}, found.violations
    assert "whole" in found.violations[0]
