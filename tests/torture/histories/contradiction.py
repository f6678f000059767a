"""The smallest part of a history that cannot be explained, in lines that people can read."""

from collections.abc import Sequence

from tests.torture.histories.history import LOOKING, Call
from tests.torture.histories.search import judge
from tests.torture.histories.specification import KeyMachine

STEPS = 2_000
"""Of each search for a smaller part. What is not decided by then stays in."""


def contradiction(calls: Sequence[Call], machine: KeyMachine) -> list[Call]:
    """The calls whose answers contradict each other, of a history that is not explained.

    Any other answer to the other calls would not explain it either.
    """
    calls = _until_it_goes_wrong(calls, machine)
    for call in sorted(calls, key=lambda one: -one.begun):
        if call.ended is not None:
            fewer = _without_answers(calls, {call.number})
            if judge(fewer, machine, STEPS).verdict == "unexplained":
                calls = fewer
    return sorted((call for call in calls if call.ended is not None), key=lambda one: one.begun)


def in_words(calls: Sequence[Call], machine: KeyMachine) -> str:
    """The contradiction of a history, a line for each call, and how many calls were left out."""
    core = contradiction(calls, machine)
    others = len({call.number for call in calls} - {call.number for call in core})
    lines = [f"no order explains these answers on key {calls[0].key!r}:"]
    lines += [f"  {call}" for call in core]
    lines.append(f"  ({others} more calls on this key, whatever their answers, do not explain it)")
    return "\n".join(lines)


def _until_it_goes_wrong(calls: Sequence[Call], machine: KeyMachine) -> Sequence[Call]:
    """Without the answers that came later than the first one that cannot be explained."""
    ends = sorted(call.ended for call in calls if call.ended is not None)
    low, high = 0, len(ends) - 1
    while low < high:
        middle = (low + high) // 2
        if judge(_until(calls, ends[middle]), machine, STEPS).verdict == "unexplained":
            high = middle
        else:
            low = middle + 1
    until = _until(calls, ends[low])
    decided = judge(until, machine, STEPS).verdict == "unexplained"
    return until if decided else calls


def _until(calls: Sequence[Call], end: int) -> list[Call]:
    """The history as it was when that answer came."""
    return [
        call if call.ended is not None and call.ended <= end else call.unanswered()
        for call in calls
        if call.begun < end and (call.verb not in LOOKING or (call.ended or end + 1) <= end)
    ]


def _without_answers(calls: Sequence[Call], numbers: set[int]) -> list[Call]:
    """The history if the answers of these calls had been lost; a look is nothing without one."""
    return [
        call.unanswered() if call.number in numbers else call
        for call in calls
        if call.verb not in LOOKING or call.number not in numbers
    ]
