"""Whether a history can be explained: the search of Wing and Gong, with the cache of Lowe.

A history of one key is right if its calls can be put one after the other so that each takes place
between its beginning and its end, and every answer is the one that `specification` gives. The
search tries the calls that may be next, one after the other, and goes back where no answer fits. A
set of calls in any order that leads to the same states is tried once: that is the cache.

A call without an answer may be placed anywhere after its beginning, or nowhere. So the search is
over when all calls with answers are placed. It is also over after so many steps; then the history
is not decided, which is not the same as right.

After G. Lowe, Testing for linearizability (2017), and A. Athalye's Porcupine; what is written here
is small, as the histories are: sets of calls are the bits of a number.
"""

import itertools
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

from tests.torture.histories.history import Call
from tests.torture.histories.specification import ABSENT, KeyMachine, States

Verdict: TypeAlias = Literal["explained", "unexplained", "undecided"]
MOST_STEPS: Final = 200_000
"""Calls that a search tries to place before it gives up."""


class Judgement(NamedTuple):
    """What a search has found.

    Attributes:
        steps: How many calls it has tried to place.
        order: The calls in an order that explains the history.
    """

    verdict: Verdict
    steps: int
    order: tuple[Call, ...] = ()


def judge(calls: Sequence[Call], machine: KeyMachine, most_steps: int = MOST_STEPS) -> Judgement:
    """Look for an order of the calls of one key in which all answers are right."""
    # Calls that are answered come first, the one that was answered first foremost: it has to be
    # placed soon. A call without an answer is tried where nothing else fits.
    calls = sorted(calls, key=lambda call: (call.ended is None, call.ended or 0, call.begun))
    number = len(calls)
    answered = sum(1 << place for place, call in enumerate(calls) if call.ended is not None)
    before = [
        sum(
            1 << place
            for place, other in enumerate(calls)
            if other.ended is not None and other.ended < call.begun
        )
        for call in calls
    ]
    # One level for each call that is placed: what is placed, the states, the time, and where to go
    # on looking for the next one.
    start: States = frozenset({ABSENT})
    placed, states, now, turn = 0, start, float("-inf"), 0
    levels: list[tuple[int, States, float, int]] = []
    known: set[tuple[int, States]] = set()
    steps = 0
    while placed & answered != answered:
        if turn == number:
            if not levels:
                return Judgement("unexplained", steps)
            placed, states, now, turn = levels.pop()
            continue
        place, turn = turn, turn + 1
        bit = 1 << place
        if placed & bit or before[place] & ~placed:
            continue
        steps += 1
        if steps > most_steps:
            return Judgement("undecided", steps)
        call = calls[place]
        moment = max(now, call.invoked)
        after = machine.after(states, call, moment)
        if call.ended is None:
            # Where a call without an answer changes nothing, it need not be placed.
            after -= states
        if after and (placed | bit, after) not in known:
            known.add((placed | bit, after))
            levels.append((placed, states, now, turn))
            placed, states, now, turn = placed | bit, after, moment, 0
    return Judgement("explained", steps, _order(calls, [one for one, *_ in levels], placed))


def _order(calls: Sequence[Call], levels: Sequence[int], placed: int) -> tuple[Call, ...]:
    """The calls in the order in which they were placed."""
    steps = [*levels, placed]
    bits = (after & ~earlier for earlier, after in itertools.pairwise(steps))
    return tuple(calls[bit.bit_length() - 1] for bit in bits)
