"""What is said of chains that went wrong. The part `chains` of the torture, of which `make test`
has a slice, runs real ones and kills their workers.
"""

import pytest

from tests.lanes.workflow.workflow_kills import LOST, TWICE, UNORDERED, complaints, runs_of

GOOD = ["first 3 a", "member 0 b", "first 3 a", "middle 3 c", "last 3 d", "report g0 e"]


def test_steps_in_order_are_right_though_one_runs_again() -> None:
    assert list(complaints(runs_of(GOOD), [3], ["g0"])) == []


@pytest.mark.parametrize(
    "diary, wrong",
    [
        (GOOD[:4] + GOOD[5:], LOST),
        (GOOD[:5], LOST),
        ([*GOOD[:1], *GOOD[4:], GOOD[3]], UNORDERED),
        ([*GOOD, "middle 3 x"], TWICE),
    ],
)
def test_a_fault_is_found(diary: list[str], wrong: str) -> None:
    assert [name for name, _ in complaints(runs_of(diary), [3], ["g0"])] == [wrong]
