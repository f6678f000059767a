"""What an urgency means, and which claims make no sense."""

from math import inf, nan
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leasedkeyq.lanes import PriorityBoostConfig
from leasedkeyq.lanes.policies.boost import HIGHEST
from leasedkeyq.model.store_model import StoreModel
from leasedkeyq.model.urgency import most_urgent_first, rank
from leasedkeyq.stores import Claim, Put, Urgency

STEPS = ((0.75, 1), (0.5, 2), (0.25, 3))


@pytest.mark.parametrize(
    "due, now, expected",
    [
        (None, 50, (True, 7)),
        (100, 0, (True, 7)),
        (100, 25, (True, 6)),
        (100, 49.9, (True, 6)),
        (100, 50, (True, 5)),
        (100, 99, (True, 4)),
        (100, 100, (False, 7)),
        (100, 1000, (False, 7)),
        (0, -1, (False, 7)),
    ],
)
def test_levels_follow_the_share_that_remains(due: Any, now: float, expected: Any) -> None:
    assert rank(Urgency(7, None, STEPS), 0.0, due, 1, now)[:2] == expected


def test_the_deadline_of_the_queue_is_for_items_that_have_none() -> None:
    assert rank(Urgency(7, 100.0, STEPS), 1000.0, None, 1, 1050.0)[:2] == (True, 5)
    assert rank(Urgency(7, 100.0, STEPS), 1000.0, 1060.0, 1, 1050.0)[:2] == (True, 4)
    assert rank(Urgency(7, 100.0), 1000.0, None, 1, 1100.0)[:2] == (False, 7)


def test_without_deadline_and_steps_nothing_is_urgent() -> None:
    assert rank(Urgency(7), 0.0, 1.0, 1, 99.0) == (True, 7, 0.0, 1)


@settings(deadline=None)
@given(
    st.integers(-5, 5),
    st.none() | st.floats(0.1, 100),
    st.lists(st.tuples(st.floats(0.01, 1), st.integers(0, 9)), max_size=4),
    st.floats(-50, 50),
    st.none() | st.floats(-200, 200),
    st.floats(-300, 300),
)
def test_lanes_in_memory_say_the_same(  # noqa: PLR0917 - it is what the strategies draw
    priority: int, deadline: Any, steps: Any, put_at: float, due: Any, now: float
) -> None:
    boost = PriorityBoostConfig(deadline, tuple(steps))
    in_time, effective, _, _ = rank(
        Urgency(priority, boost.deadline, boost.steps), put_at, due, 1, now
    )
    expected = priority - boost.levels(put_at, due, now)
    assert (effective if in_time else effective - HIGHEST) == expected


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 9), max_size=6), max_size=5), st.integers(0, 20))
def test_it_is_the_turn_of_the_line_with_the_most_urgent_head(lines: Any, limit: int) -> None:
    ranked = [
        [
            ((True, urgent, 0.0, 100 * line + place), (line, place))
            for place, urgent in enumerate(of)
        ]
        for line, of in enumerate(lines)
    ]
    chosen = [*most_urgent_first([iter(line) for line in ranked], limit)]
    left = [[*line] for line in ranked]
    expected: list[Any] = []
    while any(left) and len(expected) < limit:
        expected.append(min(filter(None, left), key=lambda line: line[0]).pop(0)[1])
    assert chosen == expected


@pytest.mark.parametrize(
    "arguments, error, said",
    [
        ((2**52 + 1,), ValueError, "priority"),
        ((-(2**52) - 1,), ValueError, "priority"),
        ((0.5,), TypeError, "priority"),
        ((0, 0.0), ValueError, "deadline"),
        ((0, inf), ValueError, "deadline"),
        ((0, "60"), TypeError, "deadline"),
        ((0, 1.0, ((0.0, 1),)), ValueError, "remaining"),
        ((0, 1.0, ((1.1, 1),)), ValueError, "remaining"),
        ((0, 1.0, ((nan, 1),)), ValueError, "remaining"),
        ((0, 1.0, ((0.5, -1),)), ValueError, "levels"),
        ((0, 1.0, ((0.5, 2**53),)), ValueError, "levels"),
        ((0, 1.0, ((0.5, 1.5),)), TypeError, "levels"),
    ],
)
def test_urgencies_that_make_no_sense(arguments: Any, error: Any, said: str) -> None:
    with pytest.raises(error, match=said):
        Urgency(*arguments)


@pytest.mark.parametrize(
    "options, said",
    [
        ({"urgencies": (Urgency(),)}, "urgencies are one for each queue"),
        ({"urgencies": (Urgency(),) * 3}, "urgencies are one for each queue"),
        ({"lease_times": (1.0,)}, "lease_times are one for each queue"),
        (
            {"queues": (("a", 1), ("a", 1)), "urgencies": (Urgency(), Urgency())},
            "each queue is there once",
        ),
    ],
)
def test_claims_that_make_no_sense(options: Any, said: str) -> None:
    queues = options.pop("queues", (("a", 1), ("b", 1)))
    with pytest.raises(ValueError, match=said):
        Claim(queues, **options)


def test_a_claim_by_urgency_keeps_a_queue_that_it_does_not_know_out() -> None:
    model = StoreModel()
    model.put(Put("a", (("k", b"1"),)), 0.0)
    request = Claim((("absent", 1), ("a", 1)), 2, urgencies=(Urgency(), Urgency()))
    assert [item.key for item in model.claim(request, 0.0)] == ["k"]
    assert list(model.queues) == ["a"]
