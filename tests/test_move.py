"""`move`: every item arrives once, in its state and order, whatever happens on the way."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import pytest

from leasedkeyq import LimitExceededError, MoveProgress, Store, StoreError, connect, move
from leasedkeyq.repository import QueueRepository, QueueService
from leasedkeyq.stores import Limits, MemoryStore
from leasedkeyq.stores.contract import (
    Ack,
    Answer,
    Bury,
    Cancel,
    Change,
    Claim,
    Claimed,
    Counts,
    EditWork,
    Put,
    Release,
    StoredItem,
    StoredState,
)
from leasedkeyq.stores.move_items import Arrivals, Record
from tests.servers.urls import empty_store

EPOCH = 1_800_000_000.0
EVERY_STATE: tuple[StoredState, ...] = get_args(StoredState)


def clock() -> float:
    return EPOCH + asyncio.get_running_loop().time()


def memory(**options: Any) -> MemoryStore:
    return MemoryStore(clock=clock, **options)


async def put(store: Store, *keys: str, queue: str = "q", **options: Any) -> None:
    for key in keys:
        answer = (await store.put([Put(queue, ((key, f'"{key}"'.encode()),), **options)]))[0]
        assert isinstance(answer, tuple)


async def claim(
    store: Store, count: int = 1, *, key: str | None = None, lease_time: float | None = None
) -> Sequence[Claimed]:
    return (await store.claim([Claim((("q", count),), count, key, lease_time)]))[0]


async def drain(store: Store, queue: str = "q") -> list[Claimed]:
    return list((await store.claim([Claim(((queue, 10_000),), 10_000)]))[0])


async def items(store: Store, *states: StoredState, queue: str = "q") -> list[StoredItem]:
    return list((await store.browse(queue, states=states or EVERY_STATE, limit=1000)).items)


async def counts(store: Store, queue: str = "q") -> Counts:
    return (await store.count([queue])).get(queue, Counts())


async def fill(store: Store) -> None:
    """Something of everything."""
    await put(store, "a", "b", "c")
    await put(store, "urgent", priority=5, kind="sort")
    await put(store, "late", priority=3, delay=1000.0, kind="later")
    await put(store, "dead", kind="sort")
    (lease,) = await claim(store, key="dead")
    await store.settle([Bury("q", "dead", lease.token, "why it died")])
    await put(store, "done", kind="sort")
    (lease,) = await claim(store, key="done")
    await store.settle([Ack("q", "done", lease.token, b'{"result":1}', 500.0)])


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
    add = Arrivals.add
    put_again: list[str] = []

    async def change_meanwhile(arrivals: Arrivals, records: Sequence[Record]) -> None:
        await add(arrivals, records)
        if not put_again:
            put_again.append("k")
            await put(source, "k", deadline=60.0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Arrivals, "add", change_meanwhile)
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
    moving = asyncio.create_task(move(source, target, "q"))
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


# Faults


class Faulty(MemoryStore):
    """Calls `fault` with the name of each verb before it, and after it with a ``+``."""

    def __init__(self, fault: Any) -> None:
        super().__init__(clock=clock)
        self.fault = fault

    async def _at(self, name: str) -> None:
        answer = self.fault(name)
        if answer is not None:
            await answer

    async def put(self, requests: Sequence[Put]) -> Any:
        await self._at("put")
        answers = await super().put(requests)
        await self._at("put+")
        return answers

    async def claim(self, requests: Sequence[Claim]) -> Any:
        await self._at("claim")
        answers = await super().claim(requests)
        await self._at("claim+")
        return answers

    async def settle(self, requests: Sequence[Change]) -> list[Answer]:
        await self._at("settle")
        answers = await super().settle(requests)
        await self._at("settle+")
        return answers

    async def edit(
        self, queue: str, work: EditWork, *, keys: Sequence[str] | None = None
    ) -> list[Answer]:
        await self._at("edit")
        answers = await super().edit(queue, work, keys=keys)
        await self._at("edit+")
        return answers


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
        both = {item.key for store in (source, target) for item in await items(store)}
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


@pytest.mark.parametrize("policy", ["update", "buffer"])
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
    stop = asyncio.Event()
    target.fault = lambda name: stop.wait() if name == "edit" else None
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
    with pytest.raises(ValueError, match="newer must be 'source' or 'target'"):
        await move(store, memory(), newer=anything)
    with pytest.raises(ValueError, match="batch must be at least 1"):
        await move(store, memory(), batch=0)
    with pytest.raises(ValueError, match="wait must not be negative"):
        await move(store, memory(), wait=-1)
    with pytest.raises(ValueError, match="queue must not be empty"):
        await move(store, memory(), "")


# Real stores and real processes

MOVER = """
import asyncio, sys
from leasedkeyq import move

def told(progress):
    print(progress.moved, flush=True)

asyncio.run(move(sys.argv[1], sys.argv[2], batch=20, progress=told))
"""


@pytest.mark.parametrize("kinds", ["sqlite sqlite", "file file", "postgresql redis"])
def test_a_killed_move_is_resumed(tmp_path: Path, kinds: str) -> None:
    with ExitStack() as stack:
        urls = [stack.enter_context(empty_store(kind, tmp_path)) for kind in kinds.split()]
        kill_a_move(*urls)


def kill_a_move(first: str, second: str) -> None:
    async def produce() -> None:
        store = connect(first)
        keys = [f"{number:03}" for number in range(200)]
        await store.put([Put("q", tuple((key, b"1") for key in keys))])
        await put(store, "late", delay=3600.0)
        await put(store, "dead")
        for lease in await claim(store, key="dead"):
            await store.settle([Bury("q", "dead", lease.token, "broken")])
        await store.close()

    async def resume() -> None:
        source, target = connect(first), connect(second)
        # The leases of the dead one end after a minute; so that the test need not wait for that:
        for queue in ("leasedkeyq.moves", "q"):
            await source.edit(queue, end_leases)
        report = await move(source, target, batch=50)
        assert report.complete
        assert report.verified
        await source.close()
        await target.close()

    async def look() -> None:
        target = connect(second)
        found = {item.key: item.state for item in await items(target)}
        assert found == {f"{number:03}": "available" for number in range(200)} | {
            "late": "scheduled",
            "dead": "buried",
        }
        await target.close()

    asyncio.run(produce())
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", MOVER, first, second]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as mover:
        assert mover.stdout is not None
        for line in mover.stdout:
            if int(line) > 60:
                mover.send_signal(signal.SIGKILL)
    assert mover.returncode == -signal.SIGKILL
    asyncio.run(resume())
    asyncio.run(look())


def end_leases(found: Sequence[StoredItem]) -> list[Put | Change]:
    return [
        Release(item.queue, item.key, item.token, undo=True)
        for item in found
        if item.state == "in_flight"
    ]


@pytest.mark.parametrize("left_behind", [0, 1])
def test_a_store_is_not_moved_onto_itself(
    tmp_path: Path, left_behind: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if left_behind:  # as with a store that is no file
        monkeypatch.setattr("leasedkeyq.stores.moving._same_file", lambda *_: False)

    async def main(first: str, second: str) -> None:
        store = connect(first)
        await put(store, "a")
        with pytest.raises(ValueError, match="the same store"):
            await move(first, second)
        assert await counts(store) == Counts(available=1)
        assert await counts(store, "leasedkeyq.moves") == Counts(available=left_behind)
        await store.close()

    for name in ("a.db", "b.json"):
        kind = "sqlite" if name == "a.db" else "file"
        asyncio.run(
            main(f"{kind}://{tmp_path}/{name}", f"{kind}:///{tmp_path}/../{tmp_path.name}/{name}")
        )


def test_a_repository_is_moved_although_it_holds_one_queue_only(tmp_path: Path) -> None:
    path = tmp_path / "queue.yaml"
    with QueueRepository(path) as repository:
        QueueService(repository).submit_task("resize photo 1")

    async def main() -> None:
        link = tmp_path / "link.yaml"
        link.symlink_to(path)
        for same in (path, link):
            with pytest.raises(ValueError, match="the same store"):
                await move(f"file://{path}", f"file://{same}")
        source, target = connect(f"file://{path}"), MemoryStore()
        report = await move(source, target)
        assert report.complete
        assert report.verified
        assert report.moved == 1
        await source.close()
        (item,) = await items(target, queue="queue")
        other = connect(f"file://{tmp_path}/other.yaml", form="repository", name="queue")
        report = await move(target, other)
        assert report.complete
        await other.close()
        with QueueRepository(tmp_path / "other.yaml") as repository:
            task = QueueService(repository).get_next_task()
            assert task is not None
            assert task.id == item.key

    asyncio.run(main())


def test_between_different_stores_by_url(tmp_path: Path) -> None:
    async def main(urls: Sequence[str]) -> None:
        store = connect(urls[0])
        await fill(store)
        await store.close()
        for first, second in pairwise(urls):
            report = await move(first, second)
            assert report.complete
            assert report.verified
            assert report.moved == 7
        store = connect(urls[-1])
        states = {item.key: item.state for item in await items(store)}
        assert states["late"] == "scheduled"
        assert states["dead"] == "buried"
        assert states["done"] == "done"
        assert [item.key for item in await drain(store)] == ["urgent", "a", "b", "c"]
        await store.close()

    with ExitStack() as stack:
        kinds = ("file", "sqlite", "postgresql", "redis", "postgresql", "sqlite")
        asyncio.run(main([stack.enter_context(empty_store(kind, tmp_path)) for kind in kinds]))
