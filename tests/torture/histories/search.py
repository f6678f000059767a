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
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Literal, NamedTuple, TypeAlias

from tests.torture.histories.history import LOOKING, SETTLING, Call, Leased
from tests.torture.histories.specification import ABSENT, KeyMachine, KeyState, States

Verdict: TypeAlias = Literal["explained", "unexplained", "undecided"]
NEVER: Final = 1 << 60
MOST_STEPS: Final = 50_000
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
    asked = _alike(calls)
    before = _before(asked)
    over = _over(asked)
    future = _Future(asked)
    # One level for each call that is placed: what is placed, the states, the time, and where to go
    # on looking for the next one.
    placed, states, now, turn = 0, frozenset({ABSENT}), -math.inf, 0
    levels: list[tuple[int, States, float, int]] = []
    known: dict[tuple[int, States], list[int]] = {}
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
        call = asked[place]
        moment = max(now, call.invoked)
        after = machine.after(states, call, moment)
        if after == states and call.ended is not None and not over[place] & ~placed:
            # It changes nothing, and no lease that is yet to be given is over by its time: what
            # can be placed now can be placed behind it. So nothing else need be tried here.
            turn = number
        elif call.ended is None:
            # Where a call without an answer changes nothing, it need not be placed.
            after -= states
        if after:
            after = future.possible(after, placed | bit)
        if not after:
            continue
        # The same states with fewer calls without an answer used up leave more ways to go on.
        tried = known.setdefault((placed & answered | bit & answered, after), [])
        if all(one & ~(placed | bit) for one in tried):
            tried.append(placed | bit)
            levels.append((placed, states, now, turn))
            placed, states, now, turn = placed | bit, after, moment, 0
    return Judgement("explained", steps, _order(calls, [one for one, *_ in levels], placed))


def _alike(calls: Sequence[Call]) -> list[Call]:
    """The calls, with one name for all values that no answer shows: it does not matter which."""
    seen = {value for call in calls for value in call.seen()}
    return [
        replace(call, value="unseen") if call.verb == "put" and call.value not in seen else call
        for call in calls
    ]


def _over(calls: Sequence[Call]) -> list[int]:
    """For each call, the leases that are over when it begins, by the calls that gave them."""
    ends: list[tuple[float, int]] = []
    for place, call in enumerate(calls):
        answer = call.answer.expires_at if isinstance(call.answer, Leased) else call.answer
        if isinstance(answer, float):
            ends.append((answer, 1 << place))
    return [sum(bit for end, bit in ends if end <= call.invoked) for call in calls]


def _before(calls: Sequence[Call]) -> list[int]:
    """The calls that must be placed before each one: they had ended when it began.

    Answers say more. Claims are in the order of their fences, and a lease can be settled until the
    next one is claimed. Values that were seen in an order, in a line or by claims, were put in this
    order.
    """
    before = [
        sum(
            1 << place
            for place, other in enumerate(calls)
            if other.ended is not None and other.ended < call.begun
        )
        for call in calls
    ]
    # Calls without an answer that are alike can stand for each other: the first one goes first.
    alike: dict[tuple[object, ...], int] = {}
    for place, call in enumerate(calls):
        if call.ended is None and call.verb in ("claim", "put"):
            kind = call.verb, call.lease_time, call.value, call.policy
            before[place] |= alike.get(kind, 0)
            alike[kind] = 1 << place
    puts = {call.value: place for place, call in enumerate(calls) if call.verb == "put"}
    claims = _claims(calls)
    firsts = list(dict.fromkeys(value for _, _, value in claims))
    for values in [firsts, *([*call.seen()] for call in calls if call.verb in LOOKING)]:
        for value, newer in itertools.pairwise(values):
            if value in puts and newer in puts:
                before[puts[newer]] |= 1 << puts[value]
    turns = {calls[place].number: turn for turn, (_, place, _) in enumerate(claims)}
    settled = [0] * len(claims)
    for place, call in enumerate(calls):
        if call.verb in SETTLING and call.answer not in (None, "refused") and call.lease in turns:
            settled[turns[call.lease]] |= 1 << place
    for (fence, place, _), ends, (higher, following, _) in zip(
        claims, settled, claims[1:], strict=False
    ):
        if fence < higher:
            before[following] |= 1 << place | ends
    return before


def _claims(calls: Sequence[Call]) -> list[tuple[int, int, str]]:
    """The fence, the place and the value of each claim that was answered, by their fences."""
    return sorted(
        (call.answer.fence, place, call.answer.value)
        for place, call in enumerate(calls)
        if isinstance(call.answer, Leased)
    )


class _Future:
    """What the calls that are not placed yet tell of a state: it may be hopeless.

    A value that has gone never comes back: one that was put and is yet to be seen is there. And the
    claims to come, which are in the order of their fences, meet the line of the key in its order.
    """

    def __init__(self, calls: Sequence[Call]) -> None:
        seen: dict[str, int] = {}
        for place, call in enumerate(calls):
            for value in call.seen():
                seen[value] = seen.get(value, 0) | 1 << place
        self._values = [
            (call.value, 1 << place, seen[call.value])
            for place, call in enumerate(calls)
            if call.verb == "put" and call.value in seen
        ]
        """Each value that was seen, the call that put it, and those that have seen it."""
        claims = _claims(calls)
        self._claims = sum(1 << place for _, place, _ in claims)
        self._turns: list[dict[str, int]] = [{}]
        """After so many claims were placed: when each value is claimed next."""
        for turn, (_, _, value) in reversed([*enumerate(claims)]):
            self._turns.insert(0, {**self._turns[0], value: turn})

    def possible(self, states: States, placed: int) -> States:
        """The states that are not hopeless after the calls that are placed."""
        wanted = {value for value, put, seen in self._values if put & placed and seen & ~placed}
        turns = self._turns[(placed & self._claims).bit_count()]
        return frozenset(
            state
            for state in states
            if wanted.issubset(state.values) and (not turns or self._in_turn(state, turns))
        )

    def _in_turn(self, state: KeyState, turns: dict[str, int]) -> bool:
        """Whether each value leaves the line before those behind it are claimed."""
        values = state.values
        soonest = NEVER
        for place in range(len(values) - 1, 0, -1):
            turn = turns.get(values[place], NEVER)
            if turn >= soonest and soonest != NEVER:
                return False
            soonest = min(soonest, turn)
        if soonest == NEVER or not values:
            return True
        # A head that somebody holds can be acknowledged, and one before a buffered value replaced.
        held = state.lease is not None and not state.lease.lost
        return held or state.buffered or turns.get(values[0], NEVER) < soonest


def _order(calls: Sequence[Call], levels: Sequence[int], placed: int) -> tuple[Call, ...]:
    """The calls in the order in which they were placed."""
    bits = (after & ~earlier for earlier, after in itertools.pairwise([*levels, placed]))
    return tuple(calls[bit.bit_length() - 1] for bit in bits)
