"""The part that pauses holders must find late settles that are accepted."""

from pathlib import Path
from typing import Any

import pytest

from tests.engines.kill_facts import LifeName
from tests.engines.kill_rounds import Arena, Life
from tests.torture.part import Trial
from tests.torture.parts import pauses


def test_a_holder_for_which_no_time_passes_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = Arena.start

    def start_with_a_stuck_clock(arena: Arena, life: LifeName, **plan: Any) -> Life:
        return start(arena, life, stuck_clock=True, **plan)

    monkeypatch.setattr(Arena, "start", start_with_a_stuck_clock)
    found = pauses.run(Trial("sqlite", range(3, 4), tmp_path))
    assert found.tried > 0
    assert found.wrong[pauses.ACCEPTED] > 0
    assert found.wrong[pauses.LOST] > 0
    assert found.wrong[pauses.FAILED] == 0
