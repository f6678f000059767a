"""What is said of ticks that were fired twice, left out or lost. The part `schedules` of the
torture, of which `make test` has a slice, lets real workers fire them and kills those.
"""

import pytest

from tests.lanes.schedules.tick_processes import LEFT_OUT, NOT_COUNTED, NOT_RUN, TWICE, complaints

GOOD = [
    f"ticks@2026-01-01T00:00:00.{number * 50:03}+00:00 {number}-work-ticks" for number in range(4)
]


def test_ticks_that_ran_once_or_again_under_one_id_are_right() -> None:
    assert list(complaints([*GOOD, GOOD[2]], 4)) == []


@pytest.mark.parametrize(
    "notes, runs, wrong",
    [
        ([*GOOD, GOOD[2].replace(" 2-", " 9-")], 4, TWICE),
        ([*GOOD[:1], *GOOD[2:]], 3, LEFT_OUT),
        (GOOD, 5, NOT_RUN),
        (GOOD, 3, NOT_COUNTED),
    ],
)
def test_a_fault_is_found(notes: list[str], runs: int, wrong: str) -> None:
    assert [name for name, _ in complaints(notes, runs)] == [wrong]
