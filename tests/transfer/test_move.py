"""`move`: every item arrives once, in its state and order."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from leasedkeyq import MemoryStore, MoveProgress, move
from leasedkeyq.model.requests import (
    OUTCOMES,
    Ack,
    Bury,
    Change,
    Claim,
    Counts,
    Extend,
    Release,
)
from leasedkeyq.transfer.item_record import ItemRecord
from leasedkeyq.transfer.key_transfer import Copy, KeyTransfer
from tests.transfer.support import Faulty, claim, clock, counts, drain, fill, items, memory, put

# What arrives


async def test_every_state_order_priority_and_kind_arrive() -> None:
    source, target = memory(), memory()
    await fill(source)
    told: list[MoveProgress] = []
    began = asyncio.get_running_loop().time()
    report = await move(source, target, "q", progress=told.append)
    found = {item.key: item for item in await items(target)}
    assert asyncio.get_running_loop().time() == began
    assert {key: item.state for key, item in found.items()} == {
        "a": "available",
        "b": "available",
        "c": "available",
        "urgent": "available",
        "late": "scheduled",
        "dead": "buried",
        "done": "done",
    }
    assert found["late"].due == pytest.approx(clock() + 1000)
    assert (found["late"].priority, found["late"].kind) == (3, "later")
    assert (found["dead"].error, found["dead"].kind) == ("why it died", "sort")
    assert (found["done"].value, found["done"].kind) == (b'{"result":1}', "sort")
    assert found["done"].due == pytest.approx(clock() + 500)
    claimed = await drain(target)
    assert [item.key for item in claimed] == ["urgent", "a", "b", "c"]
    assert [item.value for item in claimed] == [b'"urgent"', b'"a"', b'"b"', b'"c"']
    assert [item.kind for item in claimed] == ["sort", "", "", ""]
    assert {item.key for item in await items(source)} == {"done"}, "results expire there"
    assert await counts(source, "leasedkeyq.moves") == Counts()
    moved = report.queues["q"]
    assert (moved.available, moved.scheduled, moved.buried, moved.results) == (4, 1, 1, 1)
    assert (report.moved, moved.verified, moved.left) == (7, 7, 0)
    assert report.complete
    assert report.verified
    assert int(moved.source_checksum, 16) != 0
    assert told[-1] == MoveProgress(queue="q", moved=7, left=0)
    assert [told.moved for told in told] == sorted(told.moved for told in told)


async def test_a_deadline_that_is_set_during_the_move_arrives() -> None:
    source, target = memory(), memory()
    await put(source, "k")
    add = KeyTransfer.add
    put_again: list[str] = []

    async def change_meanwhile(keys: KeyTransfer, records: Sequence[ItemRecord]) -> list[Copy]:
        copies = await add(keys, records)
        if not put_again:
            put_again.append("k")
            await put(source, "k", deadline=60.0)
        return copies

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KeyTransfer, "add", change_meanwhile)
        await move(source, target, "q")
    [[item]] = await target.look("q", ["k"])
    assert item.deadline is not None
    assert await source.count() == {}


async def test_deadlines_arrive() -> None:
    """They are the same moments by another clock; one that is past stays past."""
    source, target = memory(), MemoryStore(clock=lambda: clock() + 3600)
    await put(source, "soon", deadline=100.0)
    await put(source, "late", delay=10.0, deadline=200.0)
    await put(source, "past", deadline=1.0)
    await put(source, "none")
    await asyncio.sleep(5)
    await move(source, target, "q")
    left = {
        item.key: None if item.deadline is None else item.deadline - clock() - 3600
        for item in await items(target)
    }
    assert left == {
        "soon": pytest.approx(95),
        "past": pytest.approx(0),
        "none": None,
        "late": pytest.approx(195),
    }


async def test_all_queues_of_the_store_go_and_its_own_stay() -> None:
    source, target = memory(), memory()
    await put(source, "a", queue="one")
    await put(source, "b", queue="two#1")
    await put(source, "x", queue="leasedkeyq.lanes", delay=1000.0)
    report = await move(source, target)
    assert set(report.queues) == {"one", "two#1"}
    assert [item.key for item in await drain(target, "one")] == ["a"]
    assert [item.key for item in await drain(target, "two#1")] == ["b"]
    assert set(await target.count()) == {"one", "two#1"}
    assert set(await source.count()) == {"leasedkeyq.lanes"}


async def test_many_batches_keep_their_order() -> None:
    source, target = memory(), memory()
    keys = [f"{number:03}" for number in range(95)]
    await put(source, *keys)
    report = await move(source, target, "q", batch=10)
    assert [item.key for item in await drain(target)] == keys
    assert report.queues["q"].available == report.queues["q"].verified == 95


async def test_several_buried_items_and_results_of_one_key_arrive_once() -> None:
    source, target = memory(), memory()
    for number in range(3):
        for key in ("k", "l"):
            await put(source, key)
            (lease,) = await claim(source, key=key)
            error = "the same" if key == "k" else f"error {number}"
            await source.settle([Bury("q", key, lease.token, error)])
        await put(source, "r")
        (lease,) = await claim(source, key="r")
        await source.settle([Ack("q", "r", lease.token, b"1", 60.0)])
    for _ in range(2):
        report = await move(source, target, "q", batch=2)
        assert report.complete
        assert report.verified
        errors = sorted(item.error for item in await items(target, "buried"))
        assert errors == ["error 0", "error 1", "error 2", "the same", "the same", "the same"]
        assert len(await items(target, "done")) == 3
        assert await items(source, "buried") == []


async def test_results_arrive_with_their_outcome() -> None:
    source, target = memory(), memory()
    for outcome in OUTCOMES:
        # Alike but for their outcome.
        await put(source, "r")
        (lease,) = await claim(source, key="r")
        await source.settle([Ack("q", "r", lease.token, b"1", 60.0, outcome)])
    for _ in range(2):
        report = await move(source, target, "q", batch=2)
        assert report.verified
        assert [item.outcome for item in await items(target, "done")] == [*OUTCOMES]
        assert await counts(target) == Counts(done=3, done_failed=1, done_cancelled=1)


async def test_buried_items_and_results_keep_their_progress() -> None:
    source, target = memory(), memory()
    for key in ("dead", "held", "done", "untold", "again"):
        await put(source, key)
        (lease,) = await claim(source, key=key)
        where = "q", key, lease.token
        if key != "untold":
            await source.settle([Extend(*where, 60.0, f"half of {key}".encode())])
        ends: dict[str, Change] = {
            "dead": Bury(*where),
            "held": Bury(*where, hold=True),
            "again": Release(*where),
        }
        await source.settle([ends.get(key, Ack(*where, b"1", 60.0))])
    for _ in range(2):
        assert (await move(source, target, "q")).verified
        assert {item.key: item.progress for item in await items(target)} == {
            "dead": b"half of dead",
            "held": b"half of held",
            "done": b"half of done",
            "untold": None,
            "again": None,  # it starts anew
        }


async def test_a_buried_item_waits_for_its_key_to_be_free_in_the_target() -> None:
    source, target = memory(), memory()
    await fill(source)
    await put(target, "dead")
    report = await move(source, target, "q")
    assert (report.complete, report.queues["q"].left) == (False, 1)
    assert next(item.value for item in await items(target, "available")) == b'"dead"'
    (lease,) = await claim(target, key="dead")
    await target.settle([Ack("q", "dead", lease.token)])
    report = await move(source, target, "q")
    assert report.complete
    assert [item.error for item in await items(target, "buried")] == ["why it died"]


# In flight


async def test_leased_items_come_when_their_leases_end() -> None:
    source, target = memory(), memory()
    await put(source, "expires", "released", "finished")
    await claim(source, key="expires", lease_time=20)
    (released,) = await claim(source, key="released")
    (finished,) = await claim(source, key="finished")
    await put(source, "finished", policy="buffer", kind="buffered")
    report = await move(source, target, "q", wait=0)
    assert (report.complete, report.queues["q"].left, report.moved) == (False, 4, 0)
    moving = asyncio.create_task(move(source, target, "q"))
    await asyncio.sleep(5)
    assert not moving.done()
    await source.settle([Ack("q", "finished", finished.token)])
    await asyncio.sleep(5)
    assert [item.kind for item in await items(target)] == ["buffered"]
    await source.settle([Release("q", "released", released.token, delay=500.0)])
    report = await moving
    assert report.complete
    states = {item.key: item.state for item in await items(target)}
    assert states == {"finished": "available", "released": "scheduled", "expires": "available"}
    assert await counts(source) == Counts()


async def test_waiting_has_an_end() -> None:
    source, target = memory(), memory()
    await put(source, "held")
    await claim(source)
    began = asyncio.get_running_loop().time()
    report = await move(source, target, "q", wait=30)
    assert asyncio.get_running_loop().time() - began == pytest.approx(30, abs=0.1)
    assert report.queues["q"].left == 1


async def test_what_producers_put_meanwhile_is_moved_too() -> None:
    source, target = memory(), memory()
    await put(source, "held", "a")
    (lease,) = await claim(source, key="held")
    moving = asyncio.create_task(move(source, target, "q", newer="source"))
    for number in range(5):
        await asyncio.sleep(1)
        await put(source, f"new {number}")
        await put(source, "a", kind=f"version {number}")
    await source.settle([Ack("q", "held", lease.token)])
    await moving
    kinds = {item.key: item.kind for item in await drain(target)}
    assert kinds == {"a": "version 4"} | {f"new {number}": "" for number in range(5)}
    assert await counts(source) == Counts()


# Keys that are in both


@pytest.mark.parametrize("newer", ["source", "target"])
async def test_the_newer_value_of_a_key_stands(newer: Any) -> None:
    source, target = memory(), memory()
    await put(source, "k", "same", kind="source")
    await put(target, "k", kind="target", delay=60.0)
    await put(target, "same", kind="source")
    report = await move(source, target, "q", newer=newer)
    assert report.complete
    assert report.verified
    (item,) = [item for item in await items(target) if item.key == "k"]
    assert item.kind == newer
    assert item.state == ("available" if newer == "source" else "scheduled")
    assert report.queues["q"].superseded == (newer == "target")
    assert report.queues["q"].available == (2 if newer == "source" else 1)


async def test_a_value_beside_a_running_one_is_buffered() -> None:
    source, target = memory(), memory()
    await put(source, "k", kind="second")
    await put(target, "k", kind="first")
    (lease,) = await claim(target)
    report = await move(source, target, "q")
    assert report.verified
    await target.settle([Ack("q", "k", lease.token)])
    assert [item.kind for item in await drain(target)] == ["second"]


async def test_an_equal_value_that_is_put_again_is_run_again() -> None:
    """The target works on the first one when the second comes: both were asked for."""
    source, target = memory(), memory()
    await put(source, "k")
    await move(source, target, "q")
    (lease,) = await claim(target)
    await put(source, "k")
    report = await move(source, target, "q")
    assert report.complete
    await target.settle([Ack("q", "k", lease.token)])
    assert [item.key for item in await drain(target)] == ["k"]


async def test_what_comes_to_a_queue_while_others_are_moved_comes_along() -> None:
    source, target = Faulty(lambda name: None), memory()
    await put(source, "k", queue="a")
    await put(source, "k", queue="b")

    async def put_again() -> None:
        if (await counts(target, "b")).available:
            source.fault = lambda name: None
            await put(source, "late", queue="a")

    source.fault = lambda name: put_again()
    report = await move(source, target)
    assert report.complete
    assert [item.key for item in await drain(target, "a")] == ["k", "late"]
    assert await source.count() == {}


async def test_all_queues_are_waited_for_together() -> None:
    source, target = memory(), memory()
    for queue in ("a", "b", "c"):
        await put(source, "held", queue=queue)
        await source.claim([Claim(((queue, 1),), 1)])
    began = asyncio.get_running_loop().time()
    report = await move(source, target, wait=10)
    assert 10 <= asyncio.get_running_loop().time() - began < 15
    assert [report.queues[queue].left for queue in "abc"] == [1, 1, 1]
