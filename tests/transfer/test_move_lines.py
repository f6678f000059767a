"""`move` of keys with lines: every value arrives once, in order."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from leasedkeyq import MemoryStore, Store, StoreError, move
from leasedkeyq.model.requests import (
    Ack,
    Bury,
    Cancel,
    Claim,
    Claimed,
    Counts,
    Limits,
    Put,
    Release,
    Requeue,
    StoredItem,
)
from leasedkeyq.transfer.key_transfer import MARK, Newer
from leasedkeyq.types import PutPolicy
from tests.transfer.support import Faulty, claim, clock, counts, items, memory, put

Step = Callable[[], Awaitable[None] | None]


async def append(store: Store, key: str, *values: object, **options: Any) -> None:
    pairs = tuple((key, str(value).encode()) for value in values)
    await store.put([Put("q", pairs, "append", **options)])


async def line(store: Store, key: str = "k") -> list[StoredItem]:
    found: list[StoredItem] = []
    cursor: str | None = None
    while True:
        page = await store.line("q", key, cursor=cursor, limit=50)
        found += page.items
        cursor = page.cursor
        if cursor is None:
            return found


async def values(store: Store, key: str = "k") -> list[str]:
    return [item.value.decode() for item in await line(store, key)]


async def take_all(store: Store, queue: str = "q") -> list[tuple[str, str]]:
    """Everything that can be handed out, one after the other."""
    found: list[tuple[str, str]] = []
    while leases := (await store.claim([Claim(((queue, 100),), 100)]))[0]:
        found += [(lease.key, lease.value.decode()) for lease in leases]
        await store.settle([Ack(queue, lease.key, lease.token) for lease in leases])
    return found


def words(first: int, last: int) -> list[str]:
    return [str(number) for number in range(first, last)]


class Worker:
    """Works on what it gets from one of two stores, and sees that all of it comes in order."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.done: dict[str, list[int]] = {}
        self.running: set[str] = set()

    async def run(self, store: Store) -> None:
        while True:
            for lease in await claim(store, 3):
                await self._work(store, lease)
            await asyncio.sleep(self.dice.random())

    async def _work(self, store: Store, lease: Claimed) -> None:
        assert lease.key not in self.running, "a key is worked on in both stores"
        done = self.done.setdefault(lease.key, [])
        assert int(lease.value) == len(done), "out of order"
        self.running.add(lease.key)
        await asyncio.sleep(self.dice.choice((0.0, 0.1, 3.0)))
        self.running.discard(lease.key)
        if self.dice.random() < 0.3:
            delay = self.dice.choice((0.0, 0.5, 4.0, 20.0))
            await store.settle([Release("q", lease.key, lease.token, delay=delay)])
        else:
            done.append(int(lease.value))
            await store.settle([Ack("q", lease.key, lease.token)])


class Steps:
    """Fails at the n-th step."""

    def __init__(self) -> None:
        self.left: int | None = None
        self.count = 0

    def __call__(self, name: str) -> None:
        self.count += 1
        if self.left is not None:
            self.left -= 1
            if self.left == 0:
                raise StoreError(f"the store failed at {name}")


# What arrives


@pytest.mark.parametrize("batch", [1, 7, 500])
async def test_lines_arrive_in_order_and_keys_keep_theirs(batch: int) -> None:
    source, target = memory(), memory()
    for number in range(40):
        await append(source, "k", number)
        if number < 20:
            await append(source, "l", number)
        await append(source, f"single {number:02}", number)
    report = await move(source, target, "q", batch=batch)
    assert await values(target, "k") == words(0, 40)
    assert await values(target, "l") == words(0, 20)
    assert (report.complete, report.verified) == (True, True)
    moved = report.queues["q"]
    assert (moved.available, moved.in_line, moved.moved) == (42, 58, 100)
    assert moved.verified == 100
    assert await source.count() == {}
    assert await target.count() == {"q": Counts(available=100)}
    taken = await take_all(target)
    heads = [f"single {number:02}" for number in range(1, 40)]
    assert [key for key, _ in taken][:42] == ["k", "l", "single 00", *heads]


async def test_each_value_keeps_what_it_was_put_with() -> None:
    source, target = memory(), MemoryStore(clock=lambda: clock() + 3600)
    await append(source, "k", 1, kind="a", priority=3)
    await append(source, "k", 2, kind="b", priority=-4, delay=60.0, deadline=90.0)
    await append(source, "k", 3)
    await asyncio.sleep(10)
    await move(source, target, "q")
    one, two, three = await line(target)
    assert [(item.kind, item.priority, item.state) for item in (one, two, three)] == [
        ("a", 3, "available"),
        ("b", -4, "in_line"),
        ("", 0, "in_line"),
    ]
    assert two.due == pytest.approx(clock() + 3600 + 50)
    assert two.deadline == pytest.approx(clock() + 3600 + 80)
    assert (three.due, three.deadline) == (None, None)


async def test_equal_values_all_arrive() -> None:
    source, target = memory(), memory()
    await append(source, "k", *["tick"] * 10)
    for number in (10, 20):
        report = await move(source, target, "q", batch=3)
        assert report.verified
        assert await values(target) == ["tick"] * number
        await append(source, "k", *["tick"] * 10)


async def test_a_line_behind_a_scheduled_head_stays_behind_it() -> None:
    source, target = memory(), memory()
    await append(source, "k", 1, delay=60.0)
    await append(source, "k", 2, 3)
    report = await move(source, target, "q", batch=1)
    assert (report.queues["q"].scheduled, report.queues["q"].in_line) == (1, 2)
    assert [item.state for item in await line(target)] == ["scheduled", "in_line", "in_line"]
    assert await take_all(target) == []
    await asyncio.sleep(60)
    assert await take_all(target) == [("k", "1"), ("k", "2"), ("k", "3")]


async def test_a_head_that_is_due_next_is_moved_with_its_line_when_it_is() -> None:
    """It might be handed out in the source while its line is copied."""
    source, target = memory(), memory()
    await append(source, "k", 1, delay=3.0)
    await append(source, "k", 2)
    began = asyncio.get_running_loop().time()
    report = await move(source, target, "q", wait=0)
    assert 3 <= asyncio.get_running_loop().time() - began < 4
    assert report.complete
    assert await values(target) == ["1", "2"]


async def test_copying_ends_before_the_head_is_due() -> None:
    """Nobody could keep it from being handed out in both stores then."""
    source, target = memory(), Faulty(None)
    await append(source, "k", 0, delay=8.0)
    await append(source, "k", *range(1, 9))
    target.fault = lambda name: asyncio.sleep(2) if name == "edit+" else None
    worker = Worker(0)
    tasks = [asyncio.create_task(worker.run(store)) for store in (source, target)]
    assert (await move(source, target, "q", batch=2)).complete
    while await target.count():
        await asyncio.sleep(1)
        assert not any(task.done() for task in tasks)
    for task in tasks:
        task.cancel()
    assert worker.done == {"k": [*range(9)]}


async def test_what_was_withdrawn_is_not_taken_for_copied() -> None:
    """A move gives up a line that it cannot copy in time, and is interrupted then."""

    async def interrupted(fails_at: int) -> bool:
        source, target, steps = memory(), Faulty(None), Steps()
        await append(source, "k", 1, delay=8.0)
        await append(source, "k", *range(2, 9))

        async def slow(name: str) -> None:
            steps(name)
            await asyncio.sleep(2 if name == "edit+" else 0)

        target.fault, steps.left = slow, fails_at
        try:
            await move(source, target, "q", batch=2)
        except StoreError:
            steps.left = None
            assert (await move(source, target, "q", batch=2)).complete
        assert await values(target) == words(1, 9), fails_at
        return steps.left is None

    fails_at = 1
    while await interrupted(fails_at):
        fails_at += 1
    assert fails_at > 10


async def test_a_line_behind_a_leased_head_waits_for_it() -> None:
    source, target = memory(), memory()
    await append(source, "k", 1)
    (lease,) = await claim(source)
    await put(source, "k", policy="buffer")
    await append(source, "k", 3, delay=100.0)
    report = await move(source, target, "q", wait=0)
    assert (report.complete, report.queues["q"].left, report.moved) == (False, 3, 0)
    moving = asyncio.create_task(move(source, target, "q"))
    await asyncio.sleep(5)
    assert not moving.done()
    await source.settle([Release("q", "k", lease.token, delay=50.0)])
    report = await moving
    assert report.complete
    # The buffered value has replaced the one that was released.
    assert await values(target) == ['"k"', "3"]
    assert [item.state for item in await line(target)] == ["scheduled", "in_line"]


async def held_key(store: Store, *behind: object) -> None:
    await append(store, "k", 1, *behind)
    (lease,) = await claim(store, key="k")
    await store.settle([Bury("q", "k", lease.token, "why", hold=True)])


@pytest.mark.parametrize("batch", [1, 500])
async def test_a_buried_item_that_holds_its_key_comes_with_its_line_and_holds_it(
    batch: int,
) -> None:
    source, target = memory(), memory()
    for number in range(3):
        await append(source, "k", f"dead {number}")
        (lease,) = await claim(source)
        await source.settle([Bury("q", "k", lease.token, "before")])
    await held_key(source, 2, 3, 4)
    await append(source, "other", 9)
    report = await move(source, target, "q", batch=batch)
    assert (report.complete, report.verified) == (True, True)
    assert (report.queues["q"].buried, report.queues["q"].in_line) == (4, 3)
    assert await counts(target) == Counts(available=1, buried=4, held=3)
    assert await source.count() == {}
    assert await take_all(target) == [("other", "9")]
    (buried,) = [item for item in await items(target, "buried") if item.holds]
    assert (buried.error, buried.value) == ("why", b"1")
    await target.settle([Requeue("q", buried.id)])
    assert await take_all(target) == [("k", value) for value in words(1, 5)]


async def test_a_held_key_waits_for_its_key_to_be_free_in_the_target() -> None:
    source, target = memory(), memory()
    await held_key(source, 2, 3)
    await append(target, "k", "there")
    report = await move(source, target, "q")
    assert (report.complete, report.queues["q"].left) == (False, 3)
    assert await counts(source) == Counts(buried=1, held=2)
    assert await take_all(target) == [("k", "there")]
    assert (await move(source, target, "q")).complete
    assert await counts(target) == Counts(buried=1, held=2)


async def test_another_buried_item_waits_while_the_key_is_held_in_the_target() -> None:
    source, target = memory(), memory()
    await held_key(target)
    await append(source, "k", "dead")
    (lease,) = await claim(source)
    await source.settle([Bury("q", "k", lease.token, "later")])
    report = await move(source, target, "q")
    assert report.queues["q"].left == 1
    assert await counts(target) == Counts(buried=1)


async def test_a_value_goes_behind_a_key_that_is_held_in_the_target() -> None:
    source, target = memory(), memory()
    await held_key(target)
    await append(source, "k", 2, 3)
    assert (await move(source, target, "q")).verified
    assert await counts(target) == Counts(buried=1, held=2)


# Keys that are in both


async def test_nothing_is_lost_where_a_key_waits_in_both() -> None:
    source, target = memory(), memory()
    await append(target, "k", "there")
    await append(source, "k", "comes")
    report = await move(source, target, "q")
    assert await values(target) == ["there", "comes"]
    assert report.queues["q"].superseded == 0


async def test_what_is_appended_to_the_source_later_is_appended_in_the_target() -> None:
    source, target = memory(), memory()
    await append(source, "other", 0)
    (lease,) = await claim(source)
    moving = asyncio.create_task(move(source, target, "q"))
    for number in range(5):
        await asyncio.sleep(1)
        await append(source, "k", number)
    await source.settle([Ack("q", "other", lease.token)])
    assert (await moving).complete
    assert await values(target) == words(0, 5)


@pytest.mark.parametrize("newer", ["source", "target"])
@pytest.mark.parametrize(
    "here, there", [(["1", "2"], ["x"]), (["1"], ["x", "y"]), (["1", "2"], ["1", "2"])]
)
async def test_every_value_counts_where_a_key_has_a_line(
    newer: Newer, here: list[str], there: list[str]
) -> None:
    source, target = memory(), memory()
    await append(source, "k", *here)
    await append(target, "k", *there)
    report = await move(source, target, "q", newer=newer)
    assert (report.verified, report.queues["q"].superseded) == (True, 0)
    assert await values(target) == there + here


async def test_a_value_that_stands_far_back_in_the_target_is_read_back() -> None:
    source, target = memory(), memory()
    await append(target, "k", *range(300))
    await append(source, "k", "last")
    report = await move(source, target, "q")
    assert report.verified
    assert (await values(target))[-1] == "last"


# While others use both


class Meanwhile:
    """Calls steps, one after the other, each time a verb of the target has changed something."""

    def __init__(self, *steps: Step) -> None:
        self.steps = list(steps)

    def __call__(self, name: str) -> Awaitable[None] | None:
        return self.steps.pop(0)() if name == "edit+" and self.steps else None


def nothing() -> None:
    return None


async def test_a_value_that_is_appended_while_its_line_is_copied_comes_along() -> None:
    source = memory()
    more = [lambda number=number: append(source, "k", number) for number in range(3, 8)]
    target = Faulty(Meanwhile(nothing, *more))
    await append(source, "k", 1, 2)
    report = await move(source, target, "q", batch=1)
    assert report.verified
    assert await values(target) == words(1, 8)
    assert await source.count() == {}


@pytest.mark.parametrize("policy", ["update", "buffer", "reject"])
async def test_a_value_in_line_that_is_updated_while_it_is_copied(policy: PutPolicy) -> None:
    source = memory()

    async def update() -> None:
        await source.put([Put("q", (("k", b"newer"),), policy, priority=2)])

    target = Faulty(Meanwhile(nothing, nothing, update))
    await append(source, "k", 1, 2, 3)
    report = await move(source, target, "q", batch=500)
    assert report.complete
    last = "3" if policy == "reject" else "newer"  # the head is leased while it is moved
    assert await values(target) == ["1", "2", last]
    assert await source.count() == {}


async def test_a_value_in_line_that_is_cancelled_while_it_is_copied() -> None:
    source = memory()

    async def cancel() -> None:
        two = (await line(source))[1]
        await source.settle([Cancel("q", "k", id=two.id)])

    target = Faulty(Meanwhile(nothing, nothing, cancel))
    await append(source, "k", 1, 2, 3)
    report = await move(source, target, "q")
    assert report.complete
    assert report.moved == 2
    assert await values(target) == ["1", "3"]


async def test_a_key_that_is_removed_while_it_is_copied_does_not_arrive() -> None:
    source = memory()

    async def cancel() -> None:
        await source.settle([Cancel("q", "k"), Cancel("q", "later")])

    target = Faulty(Meanwhile(nothing, nothing, cancel))
    await append(source, "k", 1, 2, 3)
    await append(source, "later", 1, delay=100.0)
    await append(source, "later", 2)
    report = await move(source, target, "q")
    assert (report.complete, report.moved) == (True, 0)
    assert await target.count() == {}


async def test_a_held_key_that_is_let_go_while_it_is_copied_is_moved_as_it_is_then() -> None:
    source = memory()

    async def requeue() -> None:
        for buried in await items(source, "buried"):
            await source.settle([Requeue("q", buried.id)])

    for steps in range(8):
        target = Faulty(Meanwhile(*[nothing] * steps, requeue))
        await held_key(source, 2, 3)
        report = await move(source, target, "q", batch=1)
        assert report.complete, steps
        held = (await counts(target)).held
        if held:  # it was too late
            (buried,) = await items(target, "buried")
            await target.settle([Requeue("q", buried.id)])
        assert await take_all(target) == [("k", "1"), ("k", "2"), ("k", "3")], steps
        assert await counts(target) == Counts(), steps
        assert await source.count() == {}, steps


async def test_the_source_stays_locked_while_a_long_line_is_copied() -> None:
    """The leases of heads end after a minute, unless they are renewed."""
    source, target = memory(), Faulty(None)
    await append(source, "k", *range(20))
    target.fault = lambda name: asyncio.sleep(20) if name == "edit" else None
    moving = asyncio.create_task(move(source, target, "q", batch=2))
    while not (await counts(source)).in_flight:
        await asyncio.sleep(1)
    taken: list[Claimed] = []
    while not moving.done():
        await asyncio.sleep(1)
        taken += await claim(source)
    assert taken == []
    assert (await moving).complete
    assert await values(target) == words(0, 20)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("consumers", ["both", "target"])
async def test_order_is_kept_while_workers_take_from_both_stores(seed: int, consumers: str) -> None:
    source, target = memory(), memory()
    worker = Worker(seed)
    expected: dict[str, int] = {}

    async def produce(count: int) -> None:
        for _ in range(count):
            key = f"k{worker.dice.randrange(8)}"
            number = expected.get(key, 0)
            expected[key] = number + 1
            await append(source, key, number)

    await produce(150)
    stores = [source, target] if consumers == "both" else [target]
    tasks = [asyncio.create_task(worker.run(store)) for store in stores for _ in range(2)]
    if consumers == "both":
        await asyncio.sleep(10)
    moving = asyncio.create_task(move(source, target, "q", batch=3))
    if consumers == "target":
        for _ in range(20):
            await asyncio.sleep(worker.dice.random())
            await produce(5)
    report = await moving
    while report.queues and await source.count():
        report = await move(source, target, "q")
    while await target.count():
        await asyncio.sleep(1)
        for task in tasks:
            assert not task.done() or task.result() is None
    for task in tasks:
        task.cancel()
    assert {key: len(done) for key, done in worker.done.items()} == expected


# When something fails


async def faulty_pair(fails_at: int | None) -> tuple[Faulty, Faulty, Steps]:
    steps = Steps()
    source, target = Faulty(steps), Faulty(steps)
    await held_key(source, 2, 2, 3)
    await append(source, "ready", 1, 1, 1, 2, 1, 1)
    await append(source, "later", 1, 1, 1, delay=300.0)
    await append(source, "single", 1)
    steps.count = 0
    steps.left = fails_at
    return source, target, steps


EVERYTHING = {
    "ready": ["1", "1", "1", "2", "1", "1"],
    "later": ["1", "1", "1"],
    "single": ["1"],
    "k": ["2", "2", "3"],
}


async def test_a_move_that_fails_anywhere_is_resumed_and_no_value_comes_twice() -> None:
    source, target, steps = await faulty_pair(None)
    await move(source, target, "q", batch=2)
    number = steps.count
    assert number > 40
    for step in range(1, number + 1):
        source, target, steps = await faulty_pair(step)
        with pytest.raises(StoreError, match="the store failed at"):
            await move(source, target, "q", batch=2)
        if step % 2:  # and is interrupted once more, often before it has done anything
            steps.left = 1 + step % 12
            with pytest.raises(StoreError, match="the store failed at"):
                await move(source, target, "q", batch=2)
        steps.left = None
        report = await move(source, target, "q", batch=2)
        assert (report.complete, report.verified) == (True, True), step
        found = {key: await values(target, key) for key in EVERYTHING}
        assert found == EVERYTHING, step
        assert await source.count() == {}, step
        assert await counts(target) == Counts(available=9, scheduled=1, buried=1, held=3), step


async def test_what_consumers_of_the_target_have_taken_is_not_brought_again() -> None:
    source, target, steps = await faulty_pair(None)
    await move(source, target, "q", batch=2)
    for step in range(1, steps.count + 1):
        source, target, steps = await faulty_pair(step)
        with pytest.raises(StoreError, match="the store failed at"):
            await move(source, target, "q", batch=2)
        steps.left = None
        taken = await take_all(target)
        assert (await move(source, target, "q", batch=2)).complete, step
        taken += await take_all(target)
        for key in ("ready", "single"):
            assert [value for found, value in taken if found == key] == EVERYTHING[key], step
        assert await values(target, "later") == EVERYTHING["later"], step


async def test_a_mark_that_does_not_fit_is_not_made() -> None:
    source, target = memory(), memory(limits=Limits(value_size=100))
    await append(source, "k" * 512, *range(10))
    assert (await move(source, target, "q")).verified
    assert await values(target, "k" * 512) == words(0, 10)
    assert not [item for item in await items(target) if item.key == MARK]


async def test_no_mark_is_left_behind() -> None:
    source, target = memory(), memory()
    await append(source, "k", 1, 2)
    await move(source, target, "q")
    assert not [item for item in await items(target) if item.key == MARK]
    assert await target.count() == {"q": Counts(available=2)}


# Long lines


async def test_a_long_line_costs_as_much_as_its_length() -> None:
    """Each verb looks at a page; only the one that removes the key looks at all of it."""
    calls: list[str] = []
    shown: list[int] = []

    class Counting(Faulty):
        async def do_edit(self, edit: Any) -> Any:
            work = edit.work

            def counted(found: Sequence[StoredItem]) -> Any:
                shown.append(len(found))
                return work(found)

            edit.work = counted
            return await super().do_edit(edit)

    source, target = Counting(calls.append), Counting(calls.append)
    await append(source, "k", *range(5000))
    calls.clear()
    report = await move(source, target, "q", batch=100)
    assert report.verified
    assert len(calls) < 4 * 50 + 60
    assert sum(shown) < 2 * 5000
    assert await values(target) == words(0, 5000)
