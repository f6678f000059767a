"""Each arrow of the state machine, on the model of a queue: no event loop, no clock."""

from typing import Any

import pytest

from leasedkeyq.errors import (
    InvalidLeaseError,
    KeyAlreadyInFlightError,
    KeyAlreadyPresentError,
    LeaseAlreadyAcknowledgedError,
    LeaseExpiredError,
)
from leasedkeyq.lease import Lease
from leasedkeyq.model.state import QueueState
from leasedkeyq.types import InFlightPolicy, PutPolicy

State = QueueState[str, int]


def make(*names: str) -> State:
    state = State()
    for number, name in enumerate(names, 1):
        state.put(name, number)
    return state


def claim(state: State, key: str | None = None, expires_at: float | None = None) -> Lease[str]:
    item = state.claim(expires_at) if key is None else state.claim_key(key, expires_at)
    assert item is not None
    lease: Lease[str] = item.lease
    return lease


def order(state: State) -> str:
    return "".join(item.key for item in state.ready)


def shows(state: State) -> list[tuple[str, int, str]]:
    return [(item.key, item.value, item.state) for item in state.snapshot()]


def line(key: str, count: int) -> State:
    """A key with the values 1, 2 and so on."""
    state = State()
    for number in range(1, count + 1):
        state.put(key, number, "append")
    return state


def values(state: State, key: str) -> list[int]:
    return [shown.value for shown in state.snapshot_of(state.items[key])]


def test_put_makes_an_absent_key_available_at_the_back() -> None:
    state = make("a", "b")
    assert state.put("c", 3) == "added"
    assert order(state) == "abc"


def test_put_with_a_time_ahead_schedules() -> None:
    state = make()
    state.advance(100)
    assert state.put("a", 1, due=101) == "added"
    assert shows(state) == [("a", 1, "scheduled")]
    assert (state.available, state.scheduled) == (0, 1)
    assert state.advance(100.9) == []
    assert [item.key for item, _ in state.advance(101)] == ["a"]
    assert order(state) == "a"


def test_scheduled_items_come_in_the_order_of_their_time_and_then_of_their_put() -> None:
    state = make()
    state.put("late", 1, due=9)
    state.put("b", 2, due=5)
    state.put("c", 3, due=5)
    state.put("early", 4, due=1)
    assert [(i.key, i.due) for i in state.snapshot()] == [
        ("early", 1),
        ("b", 5),
        ("c", 5),
        ("late", 9),
    ]
    moved = state.advance(10)
    assert [item.key for item, lease in moved if lease is None] == ["early", "b", "c", "late"]
    assert [item.key for item in state.ready] == ["early", "b", "c", "late"]


def test_claim_leases_the_first_and_claim_key_any() -> None:
    state = make("a", "b", "c")
    assert claim(state).key == "a"
    assert claim(state, "c").key == "c"
    assert order(state) == "b"
    assert state.claim_key("c") is None
    assert state.claim_key("absent") is None
    assert sorted(state.in_flight) == ["a", "c"]


def test_claim_finds_nothing() -> None:
    state = make()
    state.put("a", 1, due=5)
    assert state.claim() is None
    assert state.claim_key("a") is None


def test_ack_makes_the_key_absent() -> None:
    state = make("a")
    lease = claim(state)
    assert state.ack(lease) is None
    assert not state.items
    assert not state.in_flight


def test_release_goes_to_the_back_or_the_front() -> None:
    state = make("a", "b", "c")
    first, second = claim(state), claim(state)
    state.release(first)
    assert order(state) == "ca"
    state.release(second, front=True)
    assert order(state) == "bca"


def test_release_with_a_time_ahead_schedules() -> None:
    state = make("a", "b")
    lease = claim(state)
    state.release(lease, due=7)
    assert shows(state) == [("b", 2, "available"), ("a", 1, "scheduled")]
    state.advance(7)
    assert order(state) == "ba"


def test_expiry_goes_to_the_front() -> None:
    state = make("a", "b")
    lease = claim(state, expires_at=10)
    assert state.advance(9.99) == []
    moved = state.advance(10)
    assert [(item.key, expired) for item, expired in moved] == [("a", lease)]
    assert order(state) == "ab"


def test_of_several_that_expire_together_the_first_leased_is_foremost() -> None:
    state = make("a", "b", "c", "d")
    for _ in range(3):
        claim(state, expires_at=10)
    state.advance(10)
    assert order(state) == "abcd"


def test_it_does_not_matter_how_often_time_is_told() -> None:
    often, once = make("a", "b", "c"), make("a", "b", "c")
    for state in (often, once):
        claim(state, expires_at=3)
        claim(state, expires_at=1)
        state.put("d", 4, due=2)
        state.put("e", 5, due=1)
    for now in (1, 2, 3):
        often.advance(now)
    once.advance(3)
    assert order(often) == order(once) == "abced"


def test_time_does_not_run_backwards() -> None:
    state = make()
    state.advance(10)
    state.advance(5)
    assert state.now == 10


def test_bury_sets_aside_and_frees_the_key() -> None:
    state = make("a")
    state.advance(4)
    lease = claim(state)
    item, buried, dropped = state.bury(lease, "no use")
    assert item.key == "a"
    assert dropped is None
    assert (buried.key, buried.value, buried.attempt, buried.error) == ("a", 1, 1, "no use")
    assert buried.buried_at == 4
    assert not state.items
    state.put("a", 2)
    again = claim(state)
    state.bury(again, "again")
    assert [b.value for b in state.buried.values()] == [1, 2]


def test_buried_items_are_bounded() -> None:
    state = State(max_buried=2)
    dropped = []
    for number in range(4):
        state.put("a", number)
        dropped.append(state.bury(claim(state), "")[2])
    assert [b.value if b else None for b in dropped] == [None, None, 0, 1]
    assert [b.value for b in state.buried.values()] == [2, 3]


def test_remove_from_every_state() -> None:
    state = make("available", "leased")
    lease = claim(state, "leased", 50)
    state.put("leased", 3, "buffer")
    state.put("scheduled", 4, due=60)
    for key in ("available", "leased", "scheduled"):
        removed = state.remove(key)
        assert removed is not None
        assert removed.key == key
    assert state.remove("available") is None
    assert not state.items
    assert (state.available, state.scheduled, state.earliest()) == (0, 0, None)
    with pytest.raises(InvalidLeaseError) as caught:
        state.ack(lease)
    assert caught.value.reason == "removed"


def test_recall_ends_all_leases_in_the_order_of_leasing() -> None:
    state = make("a", "b", "c", "d")
    leases = [claim(state, key, expires_at=9) for key in "bac"]
    state.recall()
    assert order(state) == "bacd"
    assert [lease._ended for lease in leases] == ["closed"] * 3
    assert state.earliest() is None


class TestAPutOnALiveKey:
    def test_updates_and_keeps_its_place(self) -> None:
        state = make("a", "b")
        assert state.put("a", 9) == "updated"
        assert shows(state) == [("a", 9, "available"), ("b", 2, "available")]

    def test_another_priority_moves_it(self) -> None:
        state = make("a", "b", "c")
        state.put("c", 3, priority=1)
        assert order(state) == "cab"
        state.put("c", 3, priority=0)
        assert order(state) == "abc"
        state.put("a", 1, priority=-1)
        assert order(state) == "bca"

    def test_its_own_priority_does_not(self) -> None:
        state = make("a", "b")
        state.put("a", 9, priority=0)
        assert order(state) == "ab"

    def test_a_time_ahead_takes_it_back(self) -> None:
        state = make("a", "b")
        state.put("a", 1, due=5)
        assert shows(state) == [("b", 2, "available"), ("a", 1, "scheduled")]

    def test_a_time_not_ahead_frees_a_scheduled_one(self) -> None:
        state = make("a")
        state.advance(1)
        state.put("b", 2, due=5)
        assert state.put("b", 3, due=1) == "updated"
        assert shows(state) == [("a", 1, "available"), ("b", 3, "available")]
        assert state.timers.live == 0

    def test_a_time_not_ahead_leaves_an_available_one_in_its_place(self) -> None:
        state = make("a", "b")
        assert state.put("a", 1, due=float("-inf")) == "updated"
        assert order(state) == "ab"

    def test_without_a_time_the_schedule_stands(self) -> None:
        state = make()
        state.put("a", 1, due=5)
        state.put("a", 2)
        assert [(i.value, i.due) for i in state.snapshot()] == [(2, 5)]

    def test_the_priority_of_a_scheduled_one_counts_when_it_is_due(self) -> None:
        state = make("a")
        state.put("b", 2, due=5)
        state.put("b", 2, priority=3)
        assert order(state) == "a"
        state.advance(5)
        assert order(state) == "ba"


class TestAPutOnALeasedKey:
    def test_update_is_seen_when_the_item_comes_back(self) -> None:
        state = make("a")
        lease = claim(state)
        assert state.put("a", 9) == "updated"
        state.release(lease)
        assert shows(state) == [("a", 9, "available")]

    def test_update_is_gone_with_the_ack(self) -> None:
        state = make("a")
        lease = claim(state)
        state.put("a", 9)
        state.ack(lease)
        assert not state.items

    def test_reject_changes_nothing(self) -> None:
        state = make("a")
        claim(state)
        with pytest.raises(KeyAlreadyInFlightError) as caught:
            state.put("a", 9, "reject")
        assert caught.value.keys == ("a",)
        assert shows(state) == [("a", 1, "in_flight")]

    def test_a_buffered_value_waits_for_the_end_of_the_lease(self) -> None:
        state = make("a", "b")
        lease = claim(state)
        state.put("a", 9, "buffer")
        assert state.available == 2
        assert state.claim_key("a") is None
        assert shows(state) == [
            ("b", 2, "available"),
            ("a", 1, "in_flight"),
            ("a", 9, "buffered"),
        ]
        item = state.ack(lease)
        assert item is not None
        assert shows(state) == [("b", 2, "available"), ("a", 9, "available")]
        assert item.attempt == 0

    @pytest.mark.parametrize("front", [False, True])
    def test_a_buffered_value_replaces_the_released_one_at_the_back(self, front: bool) -> None:
        state = make("a", "b")
        lease = claim(state)
        state.put("a", 9, "buffer")
        state.release(lease, front=front)
        assert shows(state) == [("b", 2, "available"), ("a", 9, "available")]

    def test_a_buffered_value_replaces_the_expired_one_at_the_back(self) -> None:
        state = make("a", "b")
        claim(state, expires_at=5)
        state.put("a", 9, "buffer")
        state.advance(5)
        assert shows(state) == [("b", 2, "available"), ("a", 9, "available")]

    def test_a_buffered_value_follows_a_buried_one(self) -> None:
        state = make("a")
        lease = claim(state)
        state.put("a", 9, "buffer")
        state.bury(lease, "")
        assert shows(state) == [("a", 9, "available")]
        assert state.items["a"].attempt == 0

    def test_a_key_that_keeps_failing_counts_its_attempts_whatever_is_put(self) -> None:
        state = make("a")
        for number in range(1, 5):
            lease = claim(state, expires_at=number)
            assert lease.attempt == number
            state.put("a", 10 * number, "buffer")
            if number % 2:
                state.release(lease)
            else:
                state.advance(number)
            assert shows(state) == [("a", 10 * number, "available")]
        lease = claim(state)
        state.put("a", 99, "buffer")
        state.unclaim(lease)
        assert claim(state).attempt == 5
        state.put("a", 100, "buffer")
        state.remove_head("a")
        assert claim(state).attempt == 1

    def test_a_buffered_value_takes_over_what_the_driver_says(self) -> None:
        state = State(take_over=lambda old, new: 100 * old + new)
        state.put("a", 1)
        lease = claim(state, expires_at=1)
        state.put("a", 2, "buffer")
        state.release(lease)
        lease = claim(state, expires_at=1)
        state.put("a", 3, "buffer")
        state.advance(1)
        assert shows(state) == [("a", 10203, "available")]
        lease = claim(state)
        state.put("a", 4, "buffer")
        state.ack(lease)
        assert shows(state) == [("a", 4, "available")]

    def test_a_buffered_value_does_not_cut_a_backoff_short(self) -> None:
        state = make("a")
        lease = claim(state)
        state.put("a", 9, "buffer")
        state.release(lease, due=5)
        assert [(i.value, i.state, i.due) for i in state.snapshot()] == [(9, "scheduled", 5)]

    def test_a_buffered_value_keeps_the_schedule_that_the_item_was_given(self) -> None:
        state = make("a")
        lease = claim(state)
        state.put("a", 8, due=5)
        state.put("a", 9, "buffer")
        state.ack(lease)
        assert [(i.value, i.state, i.due) for i in state.snapshot()] == [(9, "scheduled", 5)]
        state.advance(5)
        assert order(state) == "a"

    def test_a_buffered_value_shows_no_time_that_has_passed(self) -> None:
        state = make("a")
        state.advance(10)
        claim(state)
        state.put("a", 9, "buffer", due=float("-inf"))
        assert [i.due for i in state.snapshot()] == [None, None]

    @pytest.mark.parametrize("policy", ["update", "buffer"])
    def test_the_newest_value_is_the_one_that_stays(self, policy: Any) -> None:
        state = make("a")
        lease = claim(state)
        state.put("a", 8, "buffer")
        state.put("a", 9, policy)
        assert state.in_line == 1
        state.release(lease)
        assert shows(state) == [("a", 9, "available")]

    @pytest.mark.parametrize("policy", ["update", "buffer"])
    def test_priority_and_time_count_when_it_comes_back(self, policy: Any) -> None:
        state = make("a", "b")
        lease = claim(state)
        state.put("a", 9, policy, priority=1, due=5)
        state.release(lease, due=3)
        assert [(i.key, i.due) for i in state.snapshot()] == [("b", None), ("a", 5)]
        state.advance(5)
        assert order(state) == "ab"


class TestSettling:
    def test_an_acknowledged_lease(self) -> None:
        state = make("a")
        lease = claim(state)
        state.ack(lease)
        for settle in (state.ack, state.release, state.item_of):
            with pytest.raises(LeaseAlreadyAcknowledgedError) as caught:
                settle(lease)
            assert caught.value.key == "a"

    def test_a_released_lease(self) -> None:
        state = make("a")
        lease = claim(state)
        state.release(lease)
        with pytest.raises(InvalidLeaseError, match="released before") as caught:
            state.ack(lease)
        assert caught.value.reason == "released"
        assert shows(state) == [("a", 1, "available")]

    def test_an_expired_lease_cannot_touch_its_successor(self) -> None:
        state = make("a")
        stale = claim(state, expires_at=5)
        state.advance(5)
        fresh = claim(state, expires_at=15)
        for settle in (state.ack, state.release):
            with pytest.raises(LeaseExpiredError):
                settle(stale)
        with pytest.raises(LeaseExpiredError):
            state.extend(stale, 99)
        with pytest.raises(LeaseExpiredError):
            state.bury(stale, "")
        assert state.item_of(fresh).attempt == 2
        assert state.earliest() == 15

    def test_a_forged_lease(self) -> None:
        state = make("a")
        claim(state)
        with pytest.raises(InvalidLeaseError) as caught:
            state.ack(Lease("x", "a"))
        assert caught.value.reason == "unknown"
        assert shows(state) == [("a", 1, "in_flight")]

    def test_a_lease_of_another_queue_is_unknown_even_when_acknowledged_there(self) -> None:
        here, there = make("a"), make("a")
        claim(here)
        lease = claim(there)
        with pytest.raises(InvalidLeaseError) as caught:
            here.ack(lease)
        assert caught.value.reason == "unknown"
        there.ack(lease)
        with pytest.raises(InvalidLeaseError):
            here.ack(lease)

    def test_extend_moves_the_expiry(self) -> None:
        state = make("a")
        lease = claim(state, expires_at=5)
        state.extend(lease, 8)
        assert lease.expires_at == 8
        assert state.advance(7) == []
        state.extend(lease, None)
        assert str(lease.expires_at) == "None"
        assert state.advance(1e9) == []
        state.extend(lease, 2e9)
        assert len(state.advance(2e9)) == 1


class TestUnclaim:
    def test_it_is_as_if_nothing_had_been_claimed(self) -> None:
        state = make("a", "b", "c")
        lease = claim(state, expires_at=5)
        assert state.unclaim(lease) is not None
        assert order(state) == "abc"
        again = claim(state)
        assert (again.key, again.attempt) == ("a", 1)

    def test_many_in_any_order_keep_their_places(self) -> None:
        names = "abcdefgh"
        state = make(*names)
        state.put("z", 0, priority=-1)
        leases = [claim(state) for _ in range(6)]
        for number in (3, 0, 5, 1, 4, 2):
            state.unclaim(leases[number])
        assert order(state) == names + "z"

    def test_items_put_since_stay_behind(self) -> None:
        state = make("a", "b")
        lease = claim(state, "b")
        state.put("c", 3)
        released = claim(state, "a")
        state.release(released, front=True)
        state.unclaim(lease)
        assert order(state) == "abc"

    def test_a_lease_that_has_ended_stays_ended(self) -> None:
        state = make("a")
        lease = claim(state, expires_at=1)
        state.advance(1)
        assert state.unclaim(lease) is None
        assert order(state) == "a"

    def test_a_put_meanwhile_counts_as_on_an_available_item(self) -> None:
        state = make("a", "b")
        lease = claim(state)
        state.put("a", 9, "buffer")
        state.unclaim(lease)
        assert shows(state) == [("a", 9, "available"), ("b", 2, "available")]
        assert state.in_line == 0
        lease = claim(state)
        state.put("a", 7, due=5)
        state.unclaim(lease)
        assert shows(state) == [("b", 2, "available"), ("a", 7, "scheduled")]

    def test_with_a_time_ahead_it_is_scheduled_and_was_not_attempted(self) -> None:
        state = make("a", "b")
        state.advance(100)
        lease = claim(state, expires_at=105)
        assert state.unclaim(lease, 101) is not None
        assert shows(state) == [("b", 2, "available"), ("a", 1, "scheduled")]
        assert (state.scheduled, len(state.in_flight), state.earliest()) == (1, 0, 101)
        with pytest.raises(InvalidLeaseError):
            state.ack(lease)
        assert state.advance(100.9) == []
        assert [item.key for item, _ in state.advance(101)] == ["a"]
        assert order(state) == "ba"
        again = claim(state, "a")
        assert again.attempt == 1

    @pytest.mark.parametrize("due", [99, 100])
    def test_with_a_time_that_is_not_ahead_it_is_where_it_was(self, due: float) -> None:
        state = make("a", "b")
        state.advance(100)
        state.unclaim(claim(state), due)
        assert order(state) == "ab"

    @pytest.mark.parametrize("policy", ["update", "buffer"])
    @pytest.mark.parametrize("own, due, held", [(103, 101, 103), (101, 103, 103)])
    def test_of_two_times_the_later_holds(
        self, policy: InFlightPolicy, own: float, due: float, held: float
    ) -> None:
        state = make("a")
        state.advance(100)
        lease = claim(state)
        state.put("a", 2, policy, due=own)
        state.unclaim(lease, due)
        assert shows(state) == [("a", 2, "scheduled")]
        assert state.earliest() == held
        assert state.in_line == 0

    def test_a_lease_that_has_ended_schedules_nothing(self) -> None:
        state = make("a")
        lease = claim(state, expires_at=1)
        state.advance(1)
        assert state.unclaim(lease, 5) is None
        assert order(state) == "a"


class TestALine:
    """Values behind a head: they wait for its end, and come in order."""

    def test_an_appended_value_waits_behind_every_head(self) -> None:
        state = make("waits", "leased")
        claim(state, "leased")
        state.put("later", 3, due=5)
        for number, key in enumerate(("waits", "leased", "later"), 1):
            assert state.put(key, 10 * number, "append") == "appended"
            assert state.put(key, 10 * number + 1, "append") == "appended"
        assert shows(state) == [
            ("waits", 1, "available"),
            ("waits", 10, "in_line"),
            ("waits", 11, "in_line"),
            ("later", 3, "scheduled"),
            ("later", 30, "in_line"),
            ("later", 31, "in_line"),
            ("leased", 2, "in_flight"),
            ("leased", 20, "in_line"),
            ("leased", 21, "in_line"),
        ]
        assert (state.available, state.in_line, state.waiting) == (7, 6, 8)
        assert order(state) == "waits"

    def test_appending_to_an_absent_key_adds(self) -> None:
        state = make()
        assert state.put("a", 1, "append", 2, 5) == "added"
        assert [(i.priority, i.state, i.due) for i in state.snapshot()] == [(2, "scheduled", 5)]

    @pytest.mark.parametrize("end", ["ack", "bury", "remove"])
    def test_the_first_of_the_line_follows_a_head_that_is_over(self, end: str) -> None:
        state = line("a", 3)
        state.put("b", 9)
        state.release(claim(state), front=True)
        lease = claim(state)
        assert lease.attempt == 2
        if end == "ack":
            assert state.ack(lease) is state.items["a"]
        elif end == "bury":
            state.bury(lease, "")
        else:
            assert state.remove_head("a") is state.items["a"]
        assert order(state) == "ba"
        assert shows(state) == [
            ("b", 9, "available"),
            ("a", 2, "available"),
            ("a", 3, "in_line"),
        ]
        assert claim(state, "a").attempt == 1
        with pytest.raises((InvalidLeaseError, LeaseAlreadyAcknowledgedError)):
            state.release(lease)

    def test_a_head_that_waits_can_be_removed(self) -> None:
        state = line("a", 2)
        state.put("b", 9, due=5)
        state.put("b", 10, "append")
        for key in "ab":
            state.remove_head(key)
        assert shows(state) == [("a", 2, "available"), ("b", 10, "available")]
        assert (state.scheduled, state.timers.live) == (0, 0)
        state.remove_head("a")
        assert "a" not in state.items

    @pytest.mark.parametrize("front", [False, True])
    def test_a_line_waits_for_a_head_that_is_released(self, front: bool) -> None:
        state = line("a", 2)
        state.put("b", 9)
        state.release(claim(state), front=front)
        assert order(state) == ("ab" if front else "ba")
        assert values(state, "a") == [1, 2]

    def test_a_line_waits_for_a_head_that_is_delayed(self) -> None:
        state = line("a", 2)
        state.release(claim(state), due=5)
        assert state.claim() is None
        state.advance(5)
        assert claim(state).attempt == 2
        assert values(state, "a") == [1, 2]

    def test_a_line_waits_for_a_head_that_has_expired(self) -> None:
        state = line("a", 2)
        state.put("b", 9)
        claim(state, expires_at=5)
        state.advance(5)
        assert order(state) == "ab"
        assert values(state, "a") == [1, 2]

    def test_a_line_waits_for_a_head_whose_claim_is_undone(self) -> None:
        state = line("a", 2)
        state.put("b", 9)
        state.unclaim(claim(state))
        assert order(state) == "ab"
        assert values(state, "a") == [1, 2]
        assert claim(state).attempt == 1

    def test_a_line_waits_for_a_head_that_is_recalled(self) -> None:
        state = line("a", 2)
        claim(state)
        state.recall()
        assert values(state, "a") == [1, 2]

    def test_the_next_has_terms_of_its_own(self) -> None:
        state = make("a", "b")
        state.put("c", 3, priority=4)
        state.put("a", 2, "append", 4, 7)
        state.put("b", 3, "append", 4)
        for key in "ab":
            state.ack(claim(state, key))
        assert order(state) == "cb"
        assert [(i.key, i.due) for i in state.snapshot() if i.state == "scheduled"] == [("a", 7)]
        state.advance(7)
        assert order(state) == "cba"

    def test_a_time_that_is_over_when_its_turn_comes_holds_nothing_back(self) -> None:
        state = make("a")
        state.put("a", 2, "append", due=7)
        state.advance(7)
        state.ack(claim(state))
        assert shows(state) == [("a", 2, "available")]

    @pytest.mark.parametrize("leased", [False, True])
    @pytest.mark.parametrize("policy", ["update", "buffer", "reject"])
    def test_an_update_replaces_the_last(self, policy: PutPolicy, leased: bool) -> None:
        state = line("a", 3)
        if leased:
            claim(state)
        if leased and policy == "reject":
            with pytest.raises(KeyAlreadyInFlightError):
                state.put("a", 9, policy)
            assert values(state, "a") == [1, 2, 3]
            return
        numbers = [i.id for i in state.snapshot_of(state.items["a"])]
        assert state.put("a", 9, policy, 5, 7) == "updated"
        assert values(state, "a") == [1, 2, 9]
        shown = list(state.snapshot_of(state.items["a"]))
        assert [i.id for i in shown] == numbers
        assert [(i.priority, i.due) for i in shown] == [(0, None), (0, None), (5, 7)]
        state.put("a", 10, policy)
        assert [(i.priority, i.due) for i in state.snapshot()][-1] == (5, 7)
        state.put("a", 11, policy, due=float("-inf"))
        assert [(i.priority, i.due) for i in state.snapshot()][-1] == (5, None)

    def test_skip_puts_nothing_and_only_new_is_refused(self) -> None:
        state = make("waits", "leased")
        claim(state, "leased")
        state.put("later", 3, due=5)
        before = shows(state)
        for key in ("waits", "leased", "later"):
            assert state.put(key, 9, "skip") == "skipped"
            with pytest.raises(KeyAlreadyPresentError) as caught:
                state.put(key, 9, "only_new")
            assert caught.value.keys == (key,)
        assert shows(state) == before
        assert state.put("new", 1, "skip") == "added"
        assert state.put("newer", 1, "only_new") == "added"

    def test_a_buffered_value_is_the_first_of_a_line(self) -> None:
        state = make("a")
        lease = claim(state)
        assert state.put("a", 2, "buffer") == "buffered"
        assert state.put("a", 3, "append") == "appended"
        assert state.put("a", 4, "buffer") == "updated"
        assert shows(state) == [("a", 1, "in_flight"), ("a", 2, "buffered"), ("a", 4, "in_line")]
        state.release(lease)
        assert shows(state) == [("a", 2, "available"), ("a", 4, "in_line")]
        lease = claim(state)
        assert lease.attempt == 2
        state.release(lease)
        assert values(state, "a") == [2, 4]

    def test_what_was_appended_to_a_leased_key_is_not_buffered(self) -> None:
        state = make("a")
        lease = claim(state)
        state.put("a", 2, "append")
        state.release(lease)
        assert values(state, "a") == [1, 2]

    def test_single_values_and_the_whole_line_can_be_removed(self) -> None:
        state = line("a", 4)
        lease = claim(state)
        numbers = [i.id for i in state.snapshot()]
        assert [v.value for v in state.remove_from_line("a", numbers[2])] == [3]
        assert state.remove_from_line("a", numbers[2]) == []
        assert state.remove_from_line("a", numbers[0]) == [], "the head is not in its line"
        assert values(state, "a") == [1, 2, 4]
        assert [v.value for v in state.remove_from_line("a")] == [2, 4]
        assert state.remove_from_line("a") == state.remove_from_line("absent") == []
        assert (state.in_line, state.lines, state.items["a"].line) == (0, {}, None)
        state.ack(lease)
        assert not state.items

    def test_remove_takes_the_line_along(self) -> None:
        state = line("a", 3)
        state.put("b", 1)
        state.remove("a")
        assert (state.in_line, state.lines, state.available) == (0, {}, 1)
        assert state.put("a", 9, "append") == "added"

    def test_the_numbers_of_a_key_grow_along_its_line(self) -> None:
        state = line("a", 3)
        state.put("b", 1)
        numbers = [i.id for i in state.snapshot_of(state.items["a"])]
        assert numbers == sorted(set(numbers))
        state.ack(claim(state))
        assert [i.id for i in state.snapshot_of(state.items["a"])] == numbers[1:]


class TestAHeldKey:
    """A buried item that holds its key, and all that ends that."""

    def held(self, *, line: bool = True) -> State:
        state = make("a")
        if line:
            state.put("a", 2, "append")
            state.put("a", 3, "append")
        state.put("b", 9)
        state.bury(claim(state), "bad", hold=True)
        return state

    def test_its_line_waits(self) -> None:
        state = self.held()
        assert order(state) == "b"
        assert state.claim_key("a") is None
        assert shows(state) == [("b", 9, "available"), ("a", 2, "in_line"), ("a", 3, "in_line")]
        assert (state.available, state.behind_held, state.waiting) == (1, 2, 3)
        assert [b.holds for b in state.buried.values()] == [True]

    @pytest.mark.parametrize("policy", ["update", "buffer", "reject", "append"])
    def test_the_first_value_is_appended_and_others_by_their_policy(
        self, policy: PutPolicy
    ) -> None:
        state = self.held(line=False)
        assert state.put("a", 5, policy) == "appended"
        assert state.put("a", 6, policy) == ("appended" if policy == "append" else "updated")
        assert values(state, "a") == ([5, 6] if policy == "append" else [6])
        assert state.claim_key("a") is None

    def test_it_is_there(self) -> None:
        state = self.held(line=False)
        assert state.put("a", 5, "skip") == "skipped"
        with pytest.raises(KeyAlreadyPresentError):
            state.put("a", 5, "only_new")
        assert state.scheduled == 0
        assert [item.key for item in state.scheduled_items()] == []

    def test_a_requeued_item_is_the_head_again(self) -> None:
        state = self.held()
        [number] = state.buried
        assert state.requeue_head(number, 7) is state.items["a"]
        assert order(state) == "ba"
        assert values(state, "a") == [7, 2, 3]
        assert (state.behind_held, state.in_line, state.available) == (0, 2, 4)
        assert not state.buried
        assert claim(state, "a").attempt == 1

    def test_what_is_unburied_lets_the_next_go(self) -> None:
        state = self.held()
        [number] = state.buried
        assert state.unbury(number) is state.items["a"]
        assert order(state) == "ba"
        assert values(state, "a") == [2, 3]
        state = self.held(line=False)
        [number] = state.buried
        assert state.unbury(number) is None
        assert "a" not in state.items

    def test_what_is_dropped_for_the_limit_lets_the_next_go(self) -> None:
        state = State(max_buried=1)
        for key in "ab":
            state.put(key, 1)
            state.put(key, 2, "append")
        state.bury(claim(state), "", hold=True)
        *_, dropped = state.bury(claim(state), "", hold=True)
        assert dropped is not None
        assert dropped.key == "a"
        assert shows(state) == [("a", 2, "available"), ("b", 2, "in_line")]

    def test_a_removal_ends_the_hold(self) -> None:
        state = self.held()
        state.remove("a")
        assert "a" not in state.items
        assert (state.behind_held, state.in_line, state.held) == (0, 0, {})
        assert [b.holds for b in state.buried.values()] == [False]
        [number] = state.buried
        assert not state.holds_key(number)
        assert state.put("a", 5) == "added"
        assert state.unbury(number) is None
        assert values(state, "a") == [5]

    def test_of_two_buried_items_of_a_key_the_one_that_holds_it_counts(self) -> None:
        state = make("a")
        state.bury(claim(state), "")
        state.put("a", 2)
        state.put("a", 3, "append")
        state.bury(claim(state), "", hold=True)
        first, second = state.buried
        assert (state.holds_key(first), state.holds_key(second)) == (False, True)
        assert state.unbury(first) is None
        assert state.claim_key("a") is None
        state.unbury(second)
        assert values(state, "a") == [3]

    def test_a_delay_that_was_put_on_the_lease_is_over(self) -> None:
        state = make("a")
        lease = claim(state)
        state.put("a", 1, due=9)
        state.bury(lease, "", hold=True)
        assert state.items["a"].not_before is None
        [number] = state.buried
        state.requeue_head(number, 1)
        assert order(state) == "a"

    def test_values_are_removed_from_its_line(self) -> None:
        state = self.held()
        first, second = [i.id for i in state.snapshot_of(state.items["a"])]
        state.remove_from_line("a", second)
        assert state.behind_held == 1
        state.remove_from_line("a", first)
        assert (state.behind_held, state.lines) == (0, {})
        assert "a" in state.held

    def test_a_buffered_value_waits_as_others_do(self) -> None:
        state = make("a")
        lease = claim(state)
        state.put("a", 2, "buffer")
        state.bury(lease, "", hold=True)
        assert shows(state) == [("a", 2, "in_line")]
        [number] = state.buried
        state.requeue_head(number, 1)
        state.release(claim(state))
        assert values(state, "a") == [1, 2]


def test_priorities_go_before_arrival() -> None:
    state = make("n")
    state.put("high", 1, priority=2)
    state.put("low", 1, priority=-2)
    state.put("high too", 1, priority=2)
    state.put("n too", 1)
    assert [item.key for item in state.ready] == ["high", "high too", "n", "n too", "low"]
    claimed = [claim(state).key for _ in range(5)]
    assert claimed == ["high", "high too", "n", "n too", "low"]
    assert not state.ready.others


def test_front_and_back_are_those_of_the_priority() -> None:
    state = make("n")
    state.put("high", 1, priority=1)
    state.put("low", 1, priority=-1)
    low = claim(state, "low")
    state.release(low, front=True)
    assert [item.key for item in state.ready] == ["high", "n", "low"]


def test_many_priorities_in_and_out_leave_nothing_behind() -> None:
    state = make()
    for number in range(5000):
        state.put("a", 1, priority=number + 1)
        state.remove("a")
        state.put("a", 1, priority=-number - 1)
        claim(state, "a")
        state.remove("a")
    assert not state.ready.others
    assert len(state.ready._heap) <= 65


def test_cleared_timers_do_not_pile_up() -> None:
    state = make()
    for number in range(5000):
        state.put("a", 1, due=1000.0 + number)
    assert len(state.timers.heap) <= 67
    state.put("b", 1)
    for number in range(5000):
        state.release(claim(state, "b", 9000.0 - number))
    assert len(state.timers.heap) <= 67
    assert state.timers.live == 1
