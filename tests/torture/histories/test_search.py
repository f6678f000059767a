"""The search on histories that were written by hand."""

import math
from collections.abc import Sequence
from typing import Any

import pytest

from tests.torture.histories.contradiction import contradiction, in_words
from tests.torture.histories.history import Answer, Call, Leased, Recorder, Seen, Verb, by_key
from tests.torture.histories.search import judge
from tests.torture.histories.specification import KeyMachine

FOR_EVER = math.inf


def call(
    number: int,
    when: tuple[float, float | None],
    verb: Verb,
    answer: Answer | None = None,
    **more: Any,
) -> Call:
    """A call of key "k" from one second to another; None: it was never answered."""
    begun, ended = when
    return Call(
        number,
        number,
        verb,
        "k",
        int(begun * 1000),
        begun,
        None if ended is None else int(ended * 1000),
        FOR_EVER if ended is None else ended,
        answer,
        **more,
    )


def put(
    number: int, begun: float, ended: float | None, value: str, answer: Answer | None, **more: Any
) -> Call:
    return call(number, (begun, ended), "put", answer, value=value, **more)


def take(
    number: int, begun: float, ended: float | None, answer: Answer | None, **more: Any
) -> Call:
    return call(number, (begun, ended), "claim", answer, **more)


def verdict(calls: Sequence[Call], slack: float = 0.0) -> str:
    return judge(calls, KeyMachine(slack)).verdict


def lease(value: str, fence: int = 1, attempt: int = 1, until: float | None = None) -> Leased:
    return Leased(value, fence, attempt, until)


A_PUT = put(1, 0, 1, "a", "added")
A_TAKE = take(2, 2, 3, lease("a"))
SHORT_TAKE = take(2, 2, 3, lease("a", until=12), lease_time=10)

RIGHT: dict[str, list[Call]] = {
    "nothing": [],
    "put and take": [A_PUT, A_TAKE],
    "take that begins before the put ends": [
        put(1, 0, 5, "a", "added"),
        take(2, 1, 2, lease("a")),
    ],
    "the second of two puts at a time is the one that stays": [
        put(1, 0, 9, "a", "updated"),
        put(2, 1, 8, "b", "added"),
        take(3, 10, 11, lease("a")),
    ],
    "a put without an answer that was stored": [put(1, 0, None, "a", None), A_TAKE],
    "a put without an answer that was not": [put(1, 0, None, "a", None), take(2, 2, 3, "empty")],
    "a put without an answer that is stored late": [
        put(1, 0, None, "a", None),
        take(2, 2, 3, "empty"),
        take(3, 4, 5, lease("a")),
    ],
    "the lease has expired": [
        A_PUT,
        SHORT_TAKE,
        take(3, 11, 13, lease("a", 2, 2)),
        call(4, (13, 14), "ack", "refused", lease=2),
    ],
    "an ack while the lease expires": [
        A_PUT,
        SHORT_TAKE,
        call(3, (11, 13), "ack", "done", lease=2),
        take(4, 11, 13, "empty"),
    ],
    "an ack without an answer that was done": [
        A_PUT,
        A_TAKE,
        call(3, (4, None), "ack", None, lease=2),
        put(4, 5, 6, "b", "added"),
    ],
    "a take without an answer holds the key until its lease expires": [
        A_PUT,
        take(2, 2, None, None, lease_time=10),
        take(3, 3, 4, "empty"),
        take(4, 11, 13, lease("a", 5, 2)),
    ],
    "a take without an answer is taken back, and its attempt does not count": [
        A_PUT,
        take(2, 2, None, None),
        take(3, 3, 4, "empty"),
        take(4, 5, 6, lease("a", 5, 1)),
    ],
    "an extended lease": [
        A_PUT,
        SHORT_TAKE,
        call(3, (4, 5), "extend", 24.5, lease=2, lease_time=20),
        take(4, 14, 15, "empty"),
        call(5, (16, 17), "ack", "done", lease=2),
    ],
    "an extension without an answer": [
        A_PUT,
        SHORT_TAKE,
        call(3, (4, None), "extend", None, lease=2, lease_time=20),
        take(4, 14, 15, "empty"),
    ],
    "a line": [
        A_PUT,
        put(2, 1, 2, "b", "appended", policy="append"),
        take(3, 3, 4, lease("a")),
        call(4, (5, 6), "ack", "done", lease=3),
        take(5, 7, 8, lease("b", 2)),
    ],
    "a buffered value replaces what is released": [
        A_PUT,
        A_TAKE,
        put(3, 3, 4, "b", "buffered", policy="buffer"),
        call(4, (5, 6), "release", "done", lease=2),
        take(5, 7, 8, lease("b", 2, 2)),
    ],
    "an update of a leased value is gone with the ack": [
        A_PUT,
        A_TAKE,
        put(3, 3, 4, "b", "updated"),
        call(4, (5, 6), "ack", "done", lease=2),
        call(5, (7, 8), "look", ()),
    ],
    "looks": [
        A_PUT,
        call(2, (1.1, 1.2), "look", (Seen("available", "a", 0),)),
        take(3, 2, 3, lease("a", until=12), lease_time=10),
        put(4, 4, 5, "b", "buffered", policy="buffer"),
        call(5, (6, 7), "look", (Seen("in_flight", "a", 1, 12), Seen("buffered", "b", 0))),
        call(6, (13, 14), "look", (Seen("available", "b", 1),)),
    ],
    "refusals": [
        put(1, 0, 1, "a", "added"),
        put(2, 1, 2, "b", "refused", policy="only_new"),
        put(3, 1, 2, "c", "skipped", policy="skip"),
        take(4, 3, 4, lease("a")),
        put(5, 4, 5, "d", "refused", policy="reject"),
    ],
    "a removed key": [
        A_PUT,
        A_TAKE,
        call(3, (4, 5), "remove", "done"),
        call(4, (5, 6), "ack", "refused", lease=2),
        call(5, (6, 7), "remove", "absent"),
    ],
}

WRONG: dict[str, list[Call]] = {
    "a value from nowhere": [A_TAKE],
    "a lost put": [A_PUT, take(2, 2, 3, "empty")],
    "a lost update": [A_PUT, put(2, 2, 3, "b", "updated"), take(3, 4, 5, lease("a"))],
    "two leases at a time": [A_PUT, A_TAKE, take(3, 4, 5, lease("a", 2, 2))],
    "a lease that another has got before it ends": [
        A_PUT,
        SHORT_TAKE,
        take(3, 4, 11, lease("a", 2, 2)),
    ],
    "a late ack": [A_PUT, SHORT_TAKE, call(3, (12, 13), "ack", "done", lease=2)],
    "a late extension": [
        A_PUT,
        SHORT_TAKE,
        call(3, (12, 13), "extend", 32.5, lease=2, lease_time=20),
    ],
    "an ack that was refused without a reason": [
        A_PUT,
        SHORT_TAKE,
        call(3, (4, 5), "ack", "refused", lease=2),
    ],
    "an ack that was not done": [
        A_PUT,
        A_TAKE,
        call(3, (4, 5), "ack", "done", lease=2),
        take(4, 6, 7, lease("a", 2, 2)),
    ],
    "two acks": [
        A_PUT,
        A_TAKE,
        call(3, (4, 5), "ack", "done", lease=2),
        call(4, (4, 5), "ack", "done", lease=2),
    ],
    "a fence that goes back": [
        A_PUT,
        take(2, 2, 3, lease("a", 7)),
        call(3, (4, 5), "release", "done", lease=2),
        take(4, 6, 7, lease("a", 6, 2)),
    ],
    "a lost attempt": [
        A_PUT,
        A_TAKE,
        call(3, (4, 5), "release", "done", lease=2),
        take(4, 6, 7, lease("a", 2, 1)),
    ],
    "a line out of order": [
        A_PUT,
        put(2, 1, 2, "b", "appended", policy="append"),
        take(3, 3, 4, lease("b")),
    ],
    "an old look": [A_PUT, A_TAKE, call(3, (4, 5), "look", (Seen("available", "a", 0),))],
    "a look at an expiry that is not the lease's": [
        A_PUT,
        SHORT_TAKE,
        call(3, (4, 5), "look", (Seen("in_flight", "a", 1, 13),)),
    ],
    "a lease that is too short": [A_PUT, take(2, 2, 3, lease("a", until=11), lease_time=10)],
    "a lease that does not expire": [A_PUT, SHORT_TAKE, take(3, 13, 14, "empty")],
    "an answer to a put that differs": [A_PUT, put(2, 2, 3, "b", "added")],
    "a put without an answer is stored once": [
        put(1, 0, None, "a", None),
        take(2, 2, 3, lease("a")),
        call(3, (4, 5), "ack", "done", lease=2),
        take(4, 6, 7, lease("a", 2)),
    ],
    "a put without an answer before it was made": [
        take(2, 2, 3, lease("a")),
        put(1, 4, None, "a", None),
    ],
    "a take without an answer cannot hold the key for ever": [
        A_PUT,
        take(2, 2, None, None, lease_time=10),
        take(3, 3, 4, "empty"),
        put(4, 5, 6, "b", "updated"),
        call(5, (6, 7), "look", (Seen("in_flight", "b", 1),)),
        call(6, (13, 14), "look", (Seen("available", "b", 2),)),
    ],
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_histories_are_explained(name: str) -> None:
    assert verdict(RIGHT[name]) == "explained"


@pytest.mark.parametrize("name", WRONG)
def test_wrong_histories_are_not(name: str) -> None:
    assert verdict(WRONG[name]) == "unexplained"


@pytest.mark.parametrize("name", WRONG)
def test_the_contradiction_is_wrong_by_itself(name: str) -> None:
    calls = WRONG[name]
    core = contradiction(calls, KeyMachine())
    others = [one.unanswered() for one in calls if one not in core and one.verb != "look"]
    assert core
    assert verdict([*core, *others]) == "unexplained"


def test_the_order_that_explains_is_told() -> None:
    calls = RIGHT["the second of two puts at a time is the one that stays"]
    order = judge(calls, KeyMachine()).order
    assert [one.value or one.verb for one in order] == ["b", "a", "claim"]


def test_a_search_that_takes_too_long_has_not_decided() -> None:
    calls = RIGHT["a line"]
    needed = judge(calls, KeyMachine()).steps
    assert judge(calls, KeyMachine(), needed).verdict == "explained"
    assert judge(calls, KeyMachine(), needed - 1).verdict == "undecided"


def test_what_was_tried_is_not_tried_again() -> None:
    # Nine puts at a time have 362,880 orders, and no more last values than there are puts.
    puts = [put(n, 0, 10, f"v{n}", "updated") for n in range(1, 9)]
    calls = [put(0, 0, 10, "v0", "added"), *puts, take(20, 11, 12, lease("from nowhere"))]
    found = judge(calls, KeyMachine())
    assert found.verdict == "unexplained"
    assert found.steps < 20_000


def test_clocks_may_differ_a_little() -> None:
    early = [A_PUT, SHORT_TAKE, take(3, 4, 11.9, lease("a", 2, 2))]
    late = [A_PUT, SHORT_TAKE, call(3, (12.1, 13), "ack", "done", lease=2)]
    assert [verdict(early), verdict(late)] == ["unexplained", "unexplained"]
    assert [verdict(early, 0.2), verdict(late, 0.2)] == ["explained", "explained"]


def test_a_contradiction_leaves_out_what_does_not_matter() -> None:
    before = [put(n, n, n + 0.5, f"v{n}", "added" if n == 1 else "updated") for n in range(1, 6)]
    calls = [
        *before,
        take(6, 6, 7, lease("v4")),
        put(7, 8, 9, "later", "updated"),
        call(8, (10, 11), "release", "done", lease=6),
    ]
    core = contradiction(calls, KeyMachine())
    assert 6 in [one.number for one in core]
    assert not {7, 8} & {one.number for one in core}
    words = in_words(calls, KeyMachine())
    assert "#6 client 6 6.000000-7.000000 take(k, for ever): v4, fence 1, attempt 1" in words
    assert f"({len(calls) - len(core)} more calls" in words


def test_a_get_belongs_to_the_key_that_it_took() -> None:
    record = Recorder(lambda: 1.0)
    taken = record.begin(1, "claim", None)
    nothing = record.begin(2, "claim", None)
    waited = record.begin(3, "claim", None, waits=True)
    lost = record.begin(4, "claim", None, repeated=True)
    unseen = record.begin(5, "look", "a")
    record.end(taken, lease("x"), "a")
    record.end(nothing, "empty")
    record.end(waited, "empty")
    parts = by_key(record.calls.values(), ["a", "b"])
    numbers = {
        key: [(one.number, one.ended is None) for one in part] for key, part in parts.items()
    }
    everywhere = [(nothing, False), (waited, False), (waited, True), (lost, True)]
    assert numbers == {"a": [(taken, False), *everywhere], "b": everywhere}
    assert unseen in record.calls


def test_where_claims_pass_over_keys_an_empty_one_says_nothing_beside_another_call() -> None:
    missed = take(3, 2, 3, "empty")
    beside = [A_PUT, missed, put(4, 2.5, 4, "b", "updated")]
    alone = [A_PUT, missed, put(4, 3.5, 4, "b", "updated")]
    for calls, explained in ((beside, True), (alone, False)):
        assert verdict(by_key(calls, ["k"])["k"]) == "unexplained"
        judged = by_key(calls, ["k"], passes_over=True)["k"]
        assert (verdict(judged) == "explained") is explained


def test_where_an_expired_lease_lingers_only_a_look_may_show_it() -> None:
    late = call(3, (13, 14), "look", (Seen("in_flight", "a", 1, 12),))
    lingering = KeyMachine(lingers=True)
    assert verdict([A_PUT, SHORT_TAKE, late]) == "unexplained"
    assert judge([A_PUT, SHORT_TAKE, late], lingering).verdict == "explained"
    after = [take(4, 12.5, 12.9, lease("a", 2, 2)), late]
    assert judge([A_PUT, SHORT_TAKE, *after], lingering).verdict == "unexplained"
    assert judge(WRONG["a late ack"], lingering).verdict == "unexplained"
