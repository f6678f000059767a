"""`move` when something fails, or happens, on the way."""

import asyncio
from typing import Any

import pytest

from leasedkeyq import LimitExceededError, MemoryStore, StoreError, move
from leasedkeyq.model.requests import Ack, Bury, Cancel, Claim, Counts
from leasedkeyq.stores import Limits
from leasedkeyq.transfer.key_transfer import MARK
from tests.transfer.support import Faulty, claim, counts, drain, fill, items, memory, put


class Steps:
    """Fails at the n-th step."""

    def __init__(self, fails_at: int | None) -> None:
        self.left = fails_at
        self.count = 0

    def __call__(self, name: str) -> None:
        self.count += 1
        if self.left is not None:
            self.left -= 1
            if self.left == 0:
                raise StoreError(f"the store failed at {name}")


async def faulty_pair(fails_at: int | None) -> tuple[Faulty, Faulty, Steps]:
    steps = Steps(None)
    source, target = Faulty(steps), Faulty(steps)
    await fill(source)
    steps.count = 0
    steps.left = fails_at
    return source, target, steps


async def test_a_move_that_fails_anywhere_is_resumed() -> None:
    source, target, steps = await faulty_pair(None)
    await move(source, target, "q", batch=2)
    number = steps.count
    assert number > 30
    for step in range(1, number + 1):
        source, target, steps = await faulty_pair(step)
        with pytest.raises(StoreError, match="the store failed at"):
            await move(source, target, "q", batch=2)
        both = {item.key for store in (source, target) for item in await items(store)} - {MARK}
        assert both == {"a", "b", "c", "urgent", "late", "dead", "done"}, step
        report = await move(source, target, "q", batch=2)
        assert report.complete, step
        found = sorted((item.key, item.state) for item in await items(target))
        assert found == [
            ("a", "available"),
            ("b", "available"),
            ("c", "available"),
            ("dead", "buried"),
            ("done", "done"),
            ("late", "scheduled"),
            ("urgent", "available"),
        ], step
        assert next(item.key for item in await drain(target)) == "urgent", step
        assert {item.key for item in await items(source)} <= {"done"}, step


async def test_a_value_that_is_put_while_its_item_is_copied_is_not_lost() -> None:
    """The producer updates the item that the move has leased, or that it reads."""
    source, target = memory(), Faulty(None)
    await put(source, "k", kind="old")
    await put(source, "later", kind="old", delay=60.0)
    updated: set[str] = set()

    async def update() -> None:
        for item in await items(target):
            if item.key not in updated:
                updated.add(item.key)
                await put(source, item.key, kind="new")

    target.fault = lambda name: update() if name == "edit+" else None
    report = await move(source, target, "q")
    assert report.complete
    assert {item.key: item.kind for item in await items(target)} == {"k": "new", "later": "new"}
    assert await counts(source) == Counts()


async def test_what_is_cancelled_while_it_is_copied_does_not_arrive() -> None:
    source, target = memory(), Faulty(None)
    await put(source, "k")
    await put(source, "later", delay=60.0)

    async def cancel() -> None:
        await source.settle([Cancel("q", "k"), Cancel("q", "later")])

    target.fault = lambda name: cancel() if name == "edit+" else None
    report = await move(source, target, "q")
    assert report.moved == 0
    assert await items(target) == []


async def test_an_item_that_a_consumer_of_the_target_takes_at_once_is_not_verified() -> None:
    source, target = memory(), Faulty(None)
    await put(source, "k")

    async def consume() -> None:
        for lease in await MemoryStore.claim(target, [Claim((("q", 9),), 9)]):
            for item in lease:
                await MemoryStore.settle(target, [Ack("q", item.key, item.token)])

    target.fault = lambda name: consume() if name == "edit+" else None
    report = await move(source, target, "q")
    assert (report.moved, report.queues["q"].verified) == (1, 0)
    assert report.complete
    assert not report.verified


@pytest.mark.parametrize("policy", ["update", "buffer", "append"])
async def test_what_is_put_into_the_target_beside_a_buried_item_is_not_lost(policy: Any) -> None:
    """A producer puts the key for the moment in which the move has it leased there."""
    source, target = memory(), Faulty(None)
    await put(source, "k", kind="dead")
    (lease,) = await claim(source)
    await source.settle([Bury("q", "k", lease.token, "why")])

    async def produce() -> None:
        target.fault = lambda name: None
        await put(target, "k", kind="new", policy=policy)

    target.fault = lambda name: produce() if name == "claim+" else None
    first = await move(source, target, "q")
    assert [item.kind for item in await drain(target)] == ["new"]
    assert not first.complete
    for item in await items(target, "in_flight"):
        await target.settle([Cancel("q", item.key)])
    await move(source, target, "q")
    assert [(item.kind, item.error) for item in await items(target)] == [("dead", "why")]
    assert await counts(source) == Counts()


async def test_a_move_that_fails_leaves_no_buried_item_to_consumers() -> None:
    source, target, steps = await faulty_pair(None)
    await move(source, target, "q")
    for step in range(1, steps.count + 1):
        source, target, steps = await faulty_pair(step)
        with pytest.raises(StoreError, match="the store failed at"):
            await move(source, target, "q")
        assert "dead" not in {item.key for item in await drain(target)}, step


async def test_a_second_move_waits_for_the_first() -> None:
    source, target = memory(), memory()
    await put(source, "held", "a", "b")
    (lease,) = await claim(source, key="held")
    first = asyncio.create_task(move(source, target, "q"))
    await asyncio.sleep(1)
    second = asyncio.create_task(move(source, target, "q"))
    await asyncio.sleep(300)
    assert not first.done()
    assert not second.done()
    await source.settle([Ack("q", "held", lease.token)])
    assert ((await first).moved, (await second).moved) == (2, 0)


async def test_a_cancelled_move_gives_back_what_it_had_leased() -> None:
    source, target = memory(), Faulty(None)
    await put(source, "a", "b")

    async def stop() -> None:
        if (await counts(source)).in_flight:
            await asyncio.Event().wait()

    target.fault = lambda name: stop() if name == "edit" else None
    moving = asyncio.create_task(move(source, target, "q"))
    await asyncio.sleep(1)
    assert (await counts(source)).in_flight == 2
    moving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await moving
    assert [item.key for item in await drain(source)] == ["a", "b"]


async def test_what_the_target_does_not_take_stays() -> None:
    source = memory()
    await put(source, "short", "much longer")
    for limits in (Limits(value_size=10), Limits(key_length=6)):
        target = memory(limits=limits)
        with pytest.raises(LimitExceededError, match=r"much longer"):
            await move(source, target, "q")
        assert (await counts(source)).available == 2
        assert await items(target) == []
    (lease,) = await claim(source, key="short")
    await source.settle([Bury("q", "short", lease.token, "")])
    with pytest.raises(LimitExceededError, match="at most 0 buried items"):
        await move(source, memory(limits=Limits(buried=0)), "q")
    assert len(await items(source, "buried")) == 1


async def test_mistakes() -> None:
    store = memory()
    anything: Any = 1
    with pytest.raises(ValueError, match="the same store"):
        await move(store, store)
    with pytest.raises(TypeError, match="target must be a Store or a URL, got int"):
        await move(store, anything)
    with pytest.raises(ValueError, match="newer must be 'source', 'target' or None"):
        await move(store, memory(), newer=anything)
    with pytest.raises(ValueError, match="batch must be at least 1"):
        await move(store, memory(), batch=0)
    with pytest.raises(ValueError, match="wait must not be negative"):
        await move(store, memory(), wait=-1)
    with pytest.raises(ValueError, match="queue must not be empty"):
        await move(store, memory(), "")
