"""What the soak says of times and sizes."""

import pytest

from tests.torture.part import Findings
from tests.torture.soak.judgement import (
    ENOUGH,
    GROWS,
    SLOW,
    judge_size,
    judge_times,
    window,
)
from tests.torture.soak.work import KINDS


def rounds(*claims: float, many: int = 12) -> list[dict[str, list[float]]]:
    """As many rounds with these claims, of which the last sixth is two."""
    return [{kind: list(claims) for kind in KINDS} for _ in range(many)]


QUICK = [0.001] * (ENOUGH // 2)


def test_the_last_sixth_is_compared_with_the_twin() -> None:
    found = Findings()
    judge_times(found, 1, rounds(*QUICK), rounds(*QUICK))
    assert not found.violations
    assert found.counted[f"% of the twin's p99: {KINDS[0]}, the last sixth"] == 100
    slow = rounds(*QUICK)
    for kind in KINDS:
        # One claim in fifty, and only at the end: the p99 sees it, the median does not.
        slow[-1][kind][::50] = [0.01] * len(slow[-1][kind][::50])
        slow[-2][kind][::50] = slow[-1][kind][::50]
    judge_times(found, 7, slow, rounds(*QUICK))
    assert found.wrong == {SLOW: 2}
    assert found.violations[0].startswith(f"seed 7: {SLOW}: {KINDS[0]}: p99 0.0100 s, 10.0 times")
    assert found.counted[f"% of its own p99 at first: {KINDS[0]}, the last sixth"] == 1000


def test_load_that_slows_both_is_not_held_against_one() -> None:
    found = Findings()
    busy = rounds(*QUICK)
    for each in busy[-2:]:
        each[KINDS[0]] = [0.5] * len(QUICK)
    judge_times(found, 1, busy, busy)
    assert not found.violations


def test_a_few_claims_are_not_judged() -> None:
    found = Findings()
    judge_times(found, 1, rounds(0.01), rounds(0.001))
    assert not found.violations
    assert found.counted[f"% of the twin's p99: {KINDS[0]}, the last sixth"] == 1000


def test_a_window_is_a_sixth() -> None:
    numbered = [{KINDS[0]: [float(number)]} for number in range(12)]
    assert window(numbered, KINDS[0], last=False) == [0.0, 1.0]
    assert window(numbered, KINDS[0], last=True) == [10.0, 11.0]
    assert window(numbered[:1], KINDS[0], last=True) == [0.0]


@pytest.mark.parametrize("late, grows", [(216, False), (217, True)])
def test_a_size_may_double_and_a_little_more(late: int, grows: bool) -> None:
    found = Findings()
    judge_size(found, 3, "open files of the process", 104, late)
    assert found.wrong[GROWS] == grows
