"""Chains and gathers on a store at the worst moments, in virtual time.

A worker that is dead renews no lease and settles nothing; one that is stuck does so too late.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from leasedkeyq import MemoryStore
from leasedkeyq.errors import StoreError
from leasedkeyq.lanes import (
    CommandCancelledError,
    GatherOutcome,
    LaneConfig,
    QueueManagerBuilder,
    RetryPolicy,
)
from leasedkeyq.lanes.durable.workflow import GATHERS_QUEUE
from leasedkeyq.stores import Put
from tests.lanes.support import clock

CONFIG = LaneConfig(0, 4, lease_time=30.0, max_attempts=10, retry_policy=RetryPolicy.none())


class Worker:
    """A manager on the store, and the runs of its commands."""

    def __init__(self, store: MemoryStore, runs: list[str]) -> None:
        builder = QueueManagerBuilder(clock=clock).with_lane("a", CONFIG, 0)
        self.manager = builder.with_lane("b", CONFIG, 1).with_storage(store).build()
        self.engine: Any = self.manager.queue()._engine
        self.broken = False

        @self.manager.command("first")
        async def first(number: int) -> int:
            runs.append("first")
            return number + 1

        @self.manager.command("second")
        async def second(number: int) -> int:
            runs.append("second")
            if self.broken:
                raise LookupError("nothing there")
            return number + 1

        @self.manager.command("third")
        async def third(number: int) -> int:
            runs.append("third")
            return number + 1

        @self.manager.command("slow")
        async def slow(number: int) -> int:
            await asyncio.sleep(100)
            return number

        @self.manager.command("count")
        async def count(outcomes: list[GatherOutcome[int]]) -> int:
            runs.append("count")
            return sum(outcome.ok for outcome in outcomes)

        self.first, self.second, self.third = first, second, third
        self.slow, self.count = slow, count

    def renew_nothing(self) -> None:
        """From now on, its leases expire."""

        async def nothing(*args: Any) -> None: ...

        self.engine._heartbeat._renew = nothing
        self.engine._heartbeat._find_revoked = nothing

    def claim_nothing(self) -> None:
        """From now on, it begins nothing more."""

        async def nothing() -> list[Any]:
            return []

        self.engine._plan.claim = nothing

    def settle_nothing(self) -> None:
        """From now on, nothing that has ended here is told to the store: as if it was killed."""
        self.renew_nothing()
        self.engine._outbox.add = lambda change, told: None

    def stick_in(self, verb: str) -> asyncio.Event:
        """Stop before the next call of the store by a workflow, until the event is set."""
        self.renew_nothing()
        go_on = asyncio.Event()
        store = self.engine._workflow._store
        self.engine._workflow._store = Sticking(store, verb, go_on)
        return go_on

    async def chain(self) -> Any:
        lanes = ["a", "b", "a"]
        return await self.manager.chain(self.first(1), self.second, self.third, lane=lanes)


class Sticking:
    """A store with a verb that waits for an event."""

    def __init__(self, store: MemoryStore, verb: str, go_on: asyncio.Event) -> None:
        self._store = store
        self._verb = verb
        self._go_on = go_on

    def __getattr__(self, name: str) -> Any:
        plain: Callable[..., Awaitable[Any]] = getattr(self._store, name)
        if name != self._verb:
            return plain

        async def waiting(*args: Any, **kwargs: Any) -> Any:
            await self._go_on.wait()
            return await plain(*args, **kwargs)

        return waiting


class House:
    """Two workers on a store, and a manager that only submits."""

    def __init__(self) -> None:
        self.store = MemoryStore(clock=clock)
        self.runs: list[str] = []
        self.doomed, self.sound, self.submitter = (Worker(self.store, self.runs) for _ in range(3))

    async def close(self) -> None:
        for worker in (self.doomed, self.sound, self.submitter):
            await worker.manager.close()

    async def waiting(self) -> dict[str, int]:
        """How many commands wait in each lane."""
        counts = await self.store.count(["a", "b"])
        return {name: count.available + count.scheduled for name, count in counts.items()}


@pytest.fixture
def house() -> House:
    return House()


async def test_a_step_that_runs_again_finds_the_next_one_there(house: House) -> None:
    await house.doomed.manager.start()
    house.doomed.settle_nothing()
    handle = await house.submitter.chain()
    await asyncio.sleep(5)
    house.doomed.claim_nothing()
    assert house.runs == ["first", "second", "third"]
    await house.sound.manager.start()
    assert await handle == 4
    # The dead worker has settled none of them: each runs again, and none a third time.
    assert sorted(house.runs) == ["first", "first", "second", "second", "third", "third"]
    await house.close()


async def test_a_next_step_that_was_done_is_not_put_again(house: House) -> None:
    """The worker dies between the put and the acknowledgement, and others do the rest meanwhile."""
    await house.doomed.manager.start()
    house.doomed.settle_nothing()
    await house.doomed.manager.pause("b")
    handle = await house.submitter.chain()
    await asyncio.sleep(5)
    house.doomed.claim_nothing()
    await house.sound.manager.resume("b")
    await house.sound.manager.start()
    await asyncio.sleep(5)
    assert house.runs == ["first", "second", "third"]
    assert handle.status == "running"
    assert await handle == 4
    assert house.runs == ["first", "second", "third", "first"]
    await house.close()


async def test_a_next_step_that_was_given_up_is_not_put_again(house: House) -> None:
    await house.doomed.manager.start()
    house.doomed.settle_nothing()
    await house.doomed.manager.pause("b")
    handle = await house.submitter.chain()
    await asyncio.sleep(5)
    house.doomed.claim_nothing()
    house.sound.broken = True
    await house.sound.manager.resume("b")
    await house.sound.manager.start()
    with pytest.raises(LookupError, match="nothing there"):
        await handle
    assert house.runs == ["first", "second", "first"]
    assert await house.sound.manager.dlq.len() == 1
    await house.close()


async def test_a_worker_that_comes_too_late_puts_nothing(house: House) -> None:
    """It is stuck before it asks whether its lease still holds."""
    go_on = house.doomed.stick_in("settle")
    await house.doomed.manager.start()
    handle = await house.submitter.chain()
    await asyncio.sleep(5)
    house.doomed.claim_nothing()
    house.sound.broken = True
    await house.sound.manager.start()
    with pytest.raises(LookupError, match="nothing there"):
        await handle
    go_on.set()
    await asyncio.sleep(100)
    assert house.runs == ["first", "first", "second"]
    await house.close()


async def test_a_worker_that_comes_too_late_takes_back_what_it_has_put(house: House) -> None:
    """It is stuck after that, for longer than its lease, and the next step has failed meanwhile."""
    go_on = house.doomed.stick_in("put")
    await house.doomed.manager.start()
    handle = await house.submitter.chain()
    await asyncio.sleep(5)
    house.doomed.claim_nothing()
    house.sound.broken = True
    await house.sound.manager.start()
    with pytest.raises(LookupError, match="nothing there"):
        await handle
    await house.sound.manager.pause("b")
    await asyncio.sleep(5)
    go_on.set()
    await asyncio.sleep(5)
    assert await house.waiting() == {"a": 0, "b": 0}
    assert house.runs == ["first", "first", "second"]
    await house.close()


async def test_a_chain_that_is_cancelled_on_its_way_to_the_next_step_ends(house: House) -> None:
    go_on = house.doomed.stick_in("put")
    await house.doomed.manager.pause("b")
    await house.doomed.manager.start()
    handle = await house.submitter.chain()
    await asyncio.sleep(5)
    assert await handle.cancel()
    go_on.set()
    with pytest.raises(CommandCancelledError):
        await handle
    await asyncio.sleep(5)
    assert await house.waiting() == {"a": 0, "b": 0}
    await house.close()


async def test_a_chain_is_cancelled_though_a_dead_worker_has_put_its_next_step(
    house: House,
) -> None:
    await house.doomed.manager.pause("b")
    await house.doomed.manager.start()
    house.doomed.settle_nothing()
    handle = await house.submitter.chain()
    await asyncio.sleep(5)
    assert await house.waiting() == {"a": 0, "b": 1}
    assert await handle.cancel()
    assert await house.waiting() == {"a": 0, "b": 0}
    with pytest.raises(CommandCancelledError):
        await handle
    await house.close()


async def test_an_outcome_is_recorded_once_though_its_command_runs_again(house: House) -> None:
    await house.doomed.manager.start()
    house.doomed.settle_nothing()
    worker = house.submitter
    members = [worker.first(number) for number in range(3)]
    handle = await worker.manager.gather(members, then=worker.count, lane="a", then_lane="b")
    await asyncio.sleep(5)
    house.doomed.claim_nothing()
    assert house.runs == ["first", "first", "first", "count"]
    await house.sound.manager.start()
    assert await handle == 3
    assert sorted(house.runs) == ["count"] * 2 + ["first"] * 6
    await house.close()


async def test_an_outcome_that_is_recorded_again_is_not_counted_again(house: House) -> None:
    await house.doomed.manager.start()
    house.doomed.settle_nothing()
    worker = house.submitter
    members = [worker.first(1), worker.slow(2)]
    handle = await worker.manager.gather(members, then=worker.count, lane="a")
    await asyncio.sleep(5)
    house.doomed.claim_nothing()
    await house.sound.manager.start()
    await asyncio.sleep(60)
    assert house.runs == ["first", "first"]
    assert await handle == 2
    assert house.runs == ["first", "first", "count"]
    await house.close()


async def test_an_outage_of_the_store_delays_a_workflow_and_loses_nothing(house: House) -> None:
    worker = house.sound
    store: Any = worker.engine._workflow._store
    failures = {"put": 3, "count": 2}

    def failing(verb: str) -> Callable[..., Awaitable[Any]]:
        plain = getattr(store, verb)

        async def call(*args: Any) -> Any:
            if failures[verb]:
                failures[verb] -= 1
                raise StoreError("the server is away")
            return await plain(*args)

        return call

    handle = await worker.chain()
    members = [worker.first(number) for number in range(3)]
    gather = await worker.manager.gather(members, then=worker.count, lane="a")
    worker.engine._workflow._store = proxy = Sticking(store, "", asyncio.Event())
    for verb in failures:
        setattr(proxy, verb, failing(verb))
    async with worker.manager:
        assert (await handle, await gather) == (4, 3)
    assert failures == {"put": 0, "count": 0}
    assert sorted(house.runs) == ["count", *["first"] * 4, "second", "third"]


async def test_closing_a_worker_lets_a_step_hand_on_what_it_has(house: House) -> None:
    worker = house.sound
    go_on = worker.stick_in("put")
    await worker.manager.start()
    await house.submitter.chain()
    await asyncio.sleep(1)
    closing = asyncio.create_task(worker.manager.close())
    await asyncio.sleep(1)
    go_on.set()
    await closing
    assert house.runs == ["first"]
    assert await house.waiting() == {"a": 0, "b": 1}
    counts = await house.store.count(["a"])
    assert counts["a"].in_flight == 0
    await house.close()


async def test_members_of_a_gather_whose_plan_is_damaged_are_done_all_the_same() -> None:
    store = MemoryStore(clock=clock)
    runs: list[str] = []
    worker = Worker(store, runs)
    await worker.manager.gather([worker.first(1), worker.first(2)], lane="a")
    [key] = [item.key for item in (await store.browse(GATHERS_QUEUE)).items]
    await store.put([Put(GATHERS_QUEUE, ((key, b"\xff no plan"),))])
    async with worker.manager:
        await asyncio.sleep(100)
        assert runs == ["first", "first"]
        assert (await store.count(["a"]))["a"].in_flight == 0
