"""The search takes short cuts. One without any comes to the same verdicts."""

import math
from collections.abc import Sequence
from itertools import count

from tests.torture.histories.contradiction import _until
from tests.torture.histories.history import Call, by_key
from tests.torture.histories.planted_bugs import BUGS, Planted
from tests.torture.histories.rounds import in_virtual_time, quiet
from tests.torture.histories.search import judge
from tests.torture.histories.specification import ABSENT, KeyMachine, KeyState
from tests.torture.histories.test_planted_bugs import MEMORY, planted

MOST = 4_000
"""Calls that the plain search places; what it has not decided by then is left out."""


def plain_verdict(calls: Sequence[Call], machine: KeyMachine) -> str:
    """Try all orders, as Wing and Gong do, one state at a time; nothing is remembered."""
    steps = count()

    def explained(left: tuple[Call, ...], state: KeyState, now: float) -> bool:
        if all(call.ended is None for call in left):
            return True
        first_end = min(call.ended for call in left if call.ended is not None)
        for place, call in enumerate(left):
            if call.begun > first_end:
                continue
            if next(steps) > MOST:
                raise TimeoutError
            moment = max(now, call.invoked)
            others = left[:place] + left[place + 1 :]
            if any(explained(others, one, moment) for one in machine.after([state], call, moment)):
                return True
        return False

    try:
        found = explained(tuple(calls), ABSENT, -math.inf)
    except TimeoutError:
        return "undecided"
    return "explained" if found else "unexplained"


def beginnings(calls: Sequence[Call]) -> list[list[Call]]:
    """A history of one key as it was after some of its first answers."""
    ends = sorted(call.ended for call in calls if call.ended is not None)
    return [_until(calls, end) for end in ends[3:10:3]]


def test_short_cuts_change_no_verdict() -> None:
    verdicts: dict[str, int] = {}
    machine = KeyMachine()
    stores: list[type[Planted]] = [Planted, *BUGS.values()]
    for bug in stores:
        for seed in range(1, 4):
            with quiet():
                calls, keys = in_virtual_time(MEMORY, seed, planted(bug))
            for part in by_key(calls, keys).values():
                for beginning in beginnings(part):
                    plain = plain_verdict(beginning, machine)
                    verdicts[plain] = verdicts.get(plain, 0) + 1
                    assert plain in (judge(beginning, machine).verdict, "undecided"), beginning
    assert min(verdicts["explained"], verdicts["unexplained"]) >= 5
