"""The model: what its requests cost, and what it forgets."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from leasedkeyq.model.edit import Edit, EditStoppedError
from leasedkeyq.model.requests import (
    Ack,
    Amend,
    Bury,
    Cancel,
    Change,
    Claim,
    Claimed,
    Purge,
    Put,
    Release,
    Requeue,
    StoredItem,
    Urgency,
)
from leasedkeyq.model.store_model import StoreModel


class Walked(dict[int, StoredItem]):
    """Results that count how often somebody walks through all of them."""

    walks = 0

    def __iter__(self) -> Iterator[int]:
        self.walks += 1
        return super().__iter__()

    def keys(self) -> Any:
        self.walks += 1
        return super().keys()

    def values(self) -> Any:
        self.walks += 1
        return super().values()

    def items(self) -> Any:
        self.walks += 1
        return super().items()


def claim(model: StoreModel, now: float, many: int = 1) -> tuple[Claimed, ...]:
    return model.claim(Claim((("q", many),), many), now)


def finish(model: StoreModel, now: float, keeps: Sequence[float]) -> list[int]:
    """Keep results, each for its time; return their ids."""
    model.put(Put("q", tuple((f"k{number}", b"1") for number in range(len(keeps)))), now)
    items = claim(model, now, len(keeps))
    for item, keep in zip(items, keeps, strict=True):
        assert model.settle(Ack("q", item.key, item.token, b"2", keep), now) is None
    return [item.id for item in items]


@pytest.mark.parametrize("known", [True, False])
def test_no_request_walks_through_the_results(known: bool) -> None:
    """Once, if they were put there by somebody else; never again, also while some come due."""
    model = StoreModel()
    ids = finish(model, 0.0, [10.0 + number for number in range(100)])
    if not known:
        loaded = StoreModel()
        loaded.last_id = model.last_id
        queue_model = loaded._at("q", 0.0)
        known_model = model.queues["q"]
        queue_model.done, queue_model.outcomes = known_model.done, known_model.outcomes
        queue_model.completed_of = known_model.completed_of
        model = loaded
    walked = model.queues["q"].done = Walked(model.queues["q"].done)
    for step in range(50):
        now = 10.0 + step
        model.put(Put("q", (("a", b"1"),)), now)
        (item,) = claim(model, now)
        model.settle(Ack("q", "a", item.token, b"2", 1000.0 - step), now)
        model.settle(Cancel("q", "a", b"2", 5.0), now)
        assert model.sweep("q", now) == pytest.approx(11.0 + step - now)
        assert model.count("q", now).done == 100
        assert model.result("q", ids[step], now) is None
        assert model.result("q", ids[step + 1], now) is not None
        assert model.head("q", now) is None
        assert model.look("q", "a", now) == ()
    assert walked.walks == (0 if known else 1)


def test_results_are_forgotten_in_the_order_of_their_times() -> None:
    model = StoreModel()
    a, b, c, d = finish(model, 0.0, [3.0, 1.0, 2.0, 2.0])
    left = [
        (now, [number for number in (a, b, c, d) if model.result("q", number, now)])
        for now in (0.5, 1.0, 1.5, 2.0, 3.0)
    ]
    assert left == [(0.5, [a, b, c, d]), (1.0, [a, c, d]), (1.5, [a, c, d]), (2.0, [a]), (3.0, [])]
    assert model.sweep("q", 3.0) is None
    assert "q" not in model.queues


def test_purged_results_are_not_forgotten_again() -> None:
    model = StoreModel()
    model.put(Put("q", (("later", b"1"),), delay=9.0), 0.0)
    finish(model, 0.0, [3.0, 1.0])
    assert model.sweep("q", 0.0) == 1.0
    assert model.settle(Purge("q", "results"), 0.0) == 2
    (last,) = finish(model, 0.0, [2.0])
    assert model.sweep("q", 1.0) == 1.0
    assert model.result("q", last, 1.5) is not None
    assert model.sweep("q", 2.0) == 7.0


def test_an_edit_that_is_undone_forgets_nothing_and_keeps_nothing() -> None:
    model = StoreModel()
    finish(model, 0.0, [3.0, 1.0])
    model.put(Put("q", (("a", b"1"),)), 0.0)

    def work(_: Sequence[StoredItem]) -> list[Put | Change]:
        return [Cancel("q", "a", b"1", 0.5), Purge("q", "results"), Ack("q", "a", "nobody")]

    with pytest.raises(EditStoppedError):
        model.edit(Edit("q", work), 0.0)
    assert model.sweep("q", 0.0) == 1.0
    assert model.sweep("q", 1.0) == 2.0
    assert model.count("q", 1.0).done == 1


def test_a_copy_of_a_queue_has_items_that_never_were_available() -> None:
    """Such an item has no place in the line yet, and is copied like the others."""
    model = StoreModel()
    model.put(Put("q", (("later", b"1"),), delay=5.0), 0.0)
    copied = model.queues["q"].copy()
    assert [item.key for item, _ in copied.state.advance(5.0)] == ["later"]


def test_a_value_that_was_buffered_behind_a_buried_item_waits_its_turn() -> None:
    """A buffered value is behind a lease; behind a buried item that holds its key there is none."""
    model = StoreModel()
    model.put(Put("q", (("k", b"1"),)), 0.0)
    (lease,) = claim(model, 0.0)
    model.put(Put("q", (("k", b"2"),), "buffer"), 0.0)
    buried = model.settle(Bury("q", "k", lease.token, hold=True), 1.0)
    assert [item.state for item in model.line("q", "k", 1.0)] == ["in_line"]
    assert model.settle(Requeue("q", int(str(buried))), 2.0) is True
    (lease,) = claim(model, 2.0)
    assert lease.value == b"1"
    model.settle(Release("q", "k", lease.token), 3.0)
    assert [(item.value, item.state) for item in model.line("q", "k", 3.0)] == [
        (b"1", "available"),
        (b"2", "in_line"),
    ]


def test_an_amended_item_is_still_brought_forward_by_its_deadline() -> None:
    """The deadlines that claims go by are those of the amended items, wherever these went."""
    model = StoreModel()
    model.put(Put("q", (("a", b"1"),)), 0.0)
    model.put(Put("q", (("b", b"1"),), deadline=10.0), 0.0)
    by_deadline = Claim((("q", 1),), 1, None, 60.0, urgencies=(Urgency(0, None, ((0.5, 1),)),))
    [first] = model.claim(by_deadline, 1.0)
    assert first.key == "a"
    model.settle(Release("q", "a", first.token, front=True), 1.0)
    assert model.settle(Amend("q", "b", 2, b"2", -5, 3.0), 1.0) is True
    assert [item.key for item in model.claim(by_deadline, 2.0)] == ["a"]
    model.put(Put("q", (("c", b"1"),), priority=9), 2.0)
    [late] = model.claim(by_deadline, 9.0)
    assert (late.key, late.value, late.deadline) == ("b", b"2", 10.0)


def test_an_undone_claim_finds_the_place_of_its_amended_buffered_value() -> None:
    """At the back of another priority, as after a put; in its own place otherwise."""
    for priority, expected in ((None, ["a", "b"]), (0, ["a", "b"]), (1, ["b", "a"])):
        model = StoreModel()
        model.put(Put("q", (("a", b"1"),)), 0.0)
        model.put(Put("q", (("b", b"1"),), priority=priority), 0.0)
        [held] = model.claim(Claim((("q", 1),), 1, "a"), 0.0)
        answer = model.put(Put("q", (("a", b"2"),), "buffer"), 0.0)
        assert isinstance(answer, tuple)
        assert model.settle(Amend("q", "a", answer[0].id, b"3", priority), 0.0) is True
        model.settle(Release("q", "a", held.token, undo=True), 0.0)
        found = model.browse("q", ["available"], "", 0.0)
        assert [i.key for i in sorted(found, key=lambda i: (-i.priority, i.place))] == expected
