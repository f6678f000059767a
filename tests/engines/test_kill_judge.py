"""The judge of the kill tests must find what is wrong, and nothing in what is right."""

import itertools

import pytest

from tests.engines.kill_facts import (
    ClaimAsked,
    ClaimDone,
    Fact,
    How,
    Leased,
    PutAsked,
    PutDone,
    SettleAsked,
    SettleDone,
)
from tests.engines.kill_judge import Complaint, Found, Judge

numbers = itertools.count(1)


def put(
    at: float, value: str, item: str | None = "1", key: str = "a", buffered: bool = False
) -> list[Fact]:
    """It takes 0.2 seconds, and has no answer without an item."""
    call = next(numbers)
    facts: list[Fact] = [PutAsked(call, at, key, value, buffered)]
    return facts if item is None else [*facts, PutDone(call, at + 0.2, item)]


def claim(
    at: float, fence: int, value: str = "v", item: str = "1", key: str = "a", *, attempt: int = 1
) -> list[Fact]:
    """A lease of a second that begins 0.1 seconds after it was asked for."""
    call = next(numbers)
    leased = Leased(item, key, value, fence, attempt, at + 0.1, at + 1.1)
    return [ClaimAsked(call, at, 1), ClaimDone(call, at + 0.2, [leased])]


def lost_claim(at: float) -> list[Fact]:
    return [ClaimAsked(next(numbers), at, 1)]


def settle(
    how: How, at: float, fence: int, accepted: bool | None = True, until: float | None = None
) -> list[Fact]:
    call = next(numbers)
    facts: list[Fact] = [SettleAsked(call, at, how, fence)]
    return facts if accepted is None else [*facts, SettleDone(call, at + 0.2, accepted, until)]


def found(value: str = "v", item: str = "1", key: str = "a", attempt: int = 0) -> Found:
    return Found(item, key, value, attempt)


Story = tuple[list[list[Fact]], list[Found], dict[str, int]]

RIGHT: dict[str, Story] = {
    "put and left": ([put(0, "v")], [found()], {}),
    "put and done": ([put(0, "v"), claim(1, 1), settle("ack", 1.5, 1)], [], {}),
    "put and done, with a result": (
        [put(0, "v"), claim(1, 1), settle("keep", 1.5, 1)],
        [],
        {"1": 1},
    ),
    "expired, and done by the next": (
        [
            put(0, "v"),
            claim(1, 1),
            claim(2.1, 2, attempt=2),
            settle("ack", 2.2, 1, False),
            settle("ack", 2.5, 2),
        ],
        [],
        {},
    ),
    "released, and leased again": (
        [put(0, "v"), claim(1, 1), settle("release", 1.2, 1), claim(1.5, 2, attempt=2)],
        [found(attempt=2)],
        {},
    ),
    "extended": (
        [
            put(0, "v"),
            claim(1, 1),
            settle("extend", 1.5, 1, until=2.6),
            settle("ack", 2.5, 1),
        ],
        [],
        {},
    ),
    "done, and refused the second time": (
        [put(0, "v"), claim(1, 1), settle("ack", 1.4, 1), settle("ack", 1.5, 1, False)],
        [],
        {},
    ),
    "an ack without an answer that happened": (
        [put(0, "v"), claim(1, 1), settle("keep", 1.5, 1, None)],
        [],
        {"1": 1},
    ),
    "an ack without an answer that did not happen": (
        [put(0, "v"), claim(1, 1), settle("keep", 1.5, 1, None), claim(2.1, 2, attempt=2)],
        [found(attempt=2)],
        {},
    ),
    "a put without an answer that happened": ([put(0, "v", None)], [found()], {}),
    "a put without an answer that did not happen": ([put(0, "v", None)], [], {}),
    "a claim without an answer that happened": (
        [put(0, "v"), lost_claim(1), claim(3, 2, attempt=2)],
        [found(attempt=2)],
        {},
    ),
    "updated": ([put(0, "v"), put(1, "w"), claim(2, 1, "w")], [found("w", attempt=1)], {}),
    "two updates at a time": (
        [put(0, "v"), put(0.1, "w"), claim(2, 1)],
        [found(attempt=1)],
        {},
    ),
    "replaced by a buffered value": (
        [put(0, "v", buffered=True), claim(1, 1), put(1.3, "w", "2", buffered=True)],
        [found("w", "2")],
        {},
    ),
}

WRONG: list[tuple[str, Story]] = [
    ("put and lost", ([put(0, "v")], [], {})),
    ("put and lost", ([put(0, "v"), claim(1, 1)], [], {})),
    # Its result is missing, so the ack without an answer did not happen.
    (
        "1, key a, value v: put and lost",
        (
            [put(0, "v"), claim(1, 1), settle("keep", 1.5, 1, None)],
            [],
            {},
        ),
    ),
    (
        "1, key a, value v: put and lost",
        (
            [put(0, "v"), put(1, "w", "2", "b", buffered=True)],
            [found("w", "2", "b")],
            {},
        ),
    ),
    ("nobody put w", ([put(0, "v")], [found("w")], {})),
    ("nobody put v", ([put(0, "v"), put(1, "w", "2", "b")], [found("v", "2", "b"), found()], {})),
    ("v is back", ([put(0, "v"), put(1, "w")], [found("v")], {})),
    (
        "w was put and lost",
        (
            [put(0, "v"), put(1, "w"), claim(2, 1), settle("ack", 2.5, 1)],
            [],
            {},
        ),
    ),
    (
        "fence 1 was given out twice",
        (
            [put(0, "v"), put(0, "w", "2", "b"), claim(1, 1), claim(1, 1, "w", "2", "b")],
            [found(attempt=1), found("w", "2", "b", 1)],
            {},
        ),
    ),
    (
        "before those with lower fences",
        (
            [put(0, "v"), put(0, "w", "2", "b"), claim(2, 1), claim(1, 2, "w", "2", "b")],
            [found(attempt=1), found("w", "2", "b", 1)],
            {},
        ),
    ),
    (
        "held twice, by leases 1 and 2",
        (
            [put(0, "v"), claim(1, 1), claim(1.9, 2, attempt=2)],
            [found(attempt=2)],
            {},
        ),
    ),
    (
        "held twice, by leases 1 and 2",
        (
            [put(0, "v"), claim(1, 1), put(1.3, "w", "2"), claim(1.9, 2, "w", "2")],
            [found(attempt=1), found("w", "2", attempt=1)],
            {},
        ),
    ),
    (
        "held twice, by leases 1 and 2",
        (
            [put(0, "v"), claim(1, 1), claim(1.2, 2, attempt=2), settle("release", 1.5, 1)],
            [found(attempt=2)],
            {},
        ),
    ),
    (
        "held twice, by leases 1 and 2",
        (
            [
                put(0, "v"),
                claim(1, 1),
                settle("extend", 1.5, 1, until=2.6),
                claim(2.1, 2, attempt=2),
            ],
            [found(attempt=2)],
            {},
        ),
    ),
    (
        "accepted after it had expired",
        (
            [put(0, "v"), claim(1, 1), settle("ack", 2.2, 1)],
            [],
            {},
        ),
    ),
    (
        "accepted after it was settled",
        (
            [put(0, "v"), claim(1, 1), settle("release", 1.4, 1), settle("ack", 1.5, 1)],
            [],
            {},
        ),
    ),
    (
        "refused while it was running",
        (
            [put(0, "v"), claim(1, 1), settle("ack", 1.5, 1, False)],
            [found(attempt=1)],
            {},
        ),
    ),
    (
        "acknowledged 2 times",
        (
            [
                put(0, "v"),
                claim(1, 1),
                settle("ack", 1.9, 1),
                claim(2.1, 2, attempt=2),
                settle("ack", 2.5, 2),
            ],
            [],
            {},
        ),
    ),
    (
        "acknowledged by a lease that had a successor",
        (
            [put(0, "v"), claim(1, 1), settle("ack", 1.9, 1), claim(2.1, 2, attempt=2)],
            [],
            {},
        ),
    ),
    (
        "acknowledged and is still there",
        (
            [put(0, "v"), claim(1, 1), settle("ack", 1.5, 1)],
            [found(attempt=1)],
            {},
        ),
    ),
    (
        "the result of item 1 was lost",
        (
            [put(0, "v"), claim(1, 1), settle("keep", 1.5, 1)],
            [],
            {},
        ),
    ),
    (
        "the result of item 1 is that of another lease",
        (
            [put(0, "v"), claim(1, 1), claim(2.1, 2, attempt=2), settle("keep", 2.5, 2)],
            [],
            {"1": 1},
        ),
    ),
    (
        "done by lease 1, which did not do it",
        (
            [put(0, "v"), claim(1, 1), settle("keep", 2.5, 1, False)],
            [],
            {"1": 1},
        ),
    ),
    (
        "done and still there",
        (
            [put(0, "v"), claim(1, 1), settle("keep", 1.5, 1)],
            [found(attempt=1)],
            {"1": 1},
        ),
    ),
    (
        "the attempts do not count up: [0, 1, 1, 1]",
        (
            [put(0, "v"), claim(1, 1), claim(2.1, 2, attempt=1)],
            [found(attempt=1)],
            {},
        ),
    ),
    (
        "the attempts do not count up: [0, 1, 0]",
        (
            [put(0, "v"), claim(1, 1)],
            [found(attempt=0)],
            {},
        ),
    ),
    (
        "2 leases went to nobody, 1 claims had no answer",
        (
            [put(0, "v"), lost_claim(1), claim(3, 3, attempt=3)],
            [found(attempt=3)],
            {},
        ),
    ),
]


def verdict(story: Story, *, one_writer: bool = True) -> list[Complaint]:
    calls, left, done = story
    judge = Judge([[fact for facts in calls for fact in facts]], one_writer=one_writer)
    return judge.verdict(left, done, 100.0)


@pytest.mark.parametrize("name", RIGHT)
def test_nothing_is_found_in_what_is_right(name: str) -> None:
    assert verdict(RIGHT[name]) == []


def test_a_lease_may_begin_after_the_moment_that_it_says_where_many_write() -> None:
    """Its claim had looked at the clock, and then waited until the item was released."""
    story: Story = (
        [put(0, "v"), claim(1, 1), settle("release", 1.35, 1), claim(1.2, 2, attempt=2)],
        [found(attempt=2)],
        {},
    )
    assert len(verdict(story)) == 1
    assert verdict(story, one_writer=False) == []


@pytest.mark.parametrize("claims", [[(1, 2), (1.5, 1)], [(1, 1), (1.1, 2)]])
def test_what_is_wrong_where_many_write(claims: list[tuple[float, int]]) -> None:
    """A lower fence that was asked for later, or a second lease while the first one runs."""
    facts = [claim(at, fence, attempt=fence) for at, fence in claims]
    story: Story = ([put(0, "v"), *facts], [found(attempt=2)], {})
    assert verdict(story, one_writer=False)


@pytest.mark.parametrize("complaint, story", WRONG)
def test_what_is_wrong_is_found(complaint: str, story: Story) -> None:
    complaints = verdict(story)
    assert any(complaint in found.words for found in complaints), complaints
