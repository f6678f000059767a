"""Short commands are claimed before there is a slot for them, and long ones are not."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from leasedkeyq import MemoryStore
from leasedkeyq.errors import StoreError
from leasedkeyq.lanes import (
    CommandCancelledError,
    KeyLimit,
    LaneConfig,
    QueueManager,
    QueueManagerBuilder,
    RateLimitConfig,
    current_command,
)
from leasedkeyq.lanes.durable.prefetch import ENOUGH, MOST_PREFETCHED, PATIENCE, PrefetchLine
from leasedkeyq.lanes.durable.workers import LOOK_GAP, WorkerGroup
from leasedkeyq.lanes.running.lane import Lane
from leasedkeyq.model.edit import Edit
from leasedkeyq.model.requests import Answer, Change, Claim, Claimed
from leasedkeyq.testing import VirtualTimeLoop
from tests.lanes.support import clock

TRIP = 0.01
"""Seconds that a call takes."""
LEASE = 30.0


class Server(MemoryStore):
    """Every call is a trip."""

    def __init__(self) -> None:
        super().__init__(clock=clock)
        self.claims: list[int] = []
        self.most_leased = 0
        self.broken = False
        self.answer = TRIP / 2
        """Seconds after which who settles hears of it."""

    async def do_claim(self, requests: Sequence[Claim]) -> list[tuple[Claimed, ...]]:
        await asyncio.sleep(TRIP / 2)
        found = await super().do_claim(requests)
        if requests[0].queues[0][0].startswith("jobs"):
            self.claims.append(sum(len(answer) for answer in found))
            counts = await self.count(["jobs"])
            self.most_leased = max(self.most_leased, counts["jobs"].in_flight)
        await asyncio.sleep(TRIP / 2)
        return found

    async def do_settle(self, requests: Sequence[Change]) -> list[Answer]:
        await asyncio.sleep(TRIP / 2)
        if self.broken:
            raise StoreError("not now")
        answers = await super().do_settle(requests)
        await asyncio.sleep(self.answer)
        return answers

    async def do_edit(self, edit: Edit) -> Any:
        await asyncio.sleep(TRIP / 2)
        if self.broken:
            raise StoreError("not now")
        done = await super().do_edit(edit)
        await asyncio.sleep(TRIP / 2)
        return done

    async def leased(self) -> int:
        return (await self.count(["jobs"]))["jobs"].in_flight


class Rig:
    """Workers of one store, and what their commands have told."""

    def __init__(self, **config: Any) -> None:
        self.store = Server()
        self.ran: list[int] = []
        self.attempts: list[int] = []
        self.running = 0
        self.most_running = 0
        self.on_start: Callable[[int], None] = lambda number: None
        self.config: dict[str, Any] = {"lease_time": LEASE, **config}
        self.gate = asyncio.Event()
        self.waiters: list[asyncio.Task[Any]] = []

    def worker(self, slots: int = 1, *, capacity: int | None = None) -> tuple[QueueManager, Any]:
        config = LaneConfig(0, slots, **self.config)
        built = QueueManagerBuilder(clock=clock).with_storage(self.store)
        if capacity is not None:
            built = built.with_capacity(capacity)
        manager = built.with_lane("jobs", config, 0).build()
        # It goes by the real clock: on a busy machine it would take the event loop for blocked.
        watch = manager.queue()._engine.loop_watch
        watch.start = lambda: None  # type: ignore[method-assign]  # as said

        @manager.command("job")
        async def job(number: int, seconds: float = 0.0) -> int:
            self.on_start(number)
            self.running += 1
            self.most_running = max(self.most_running, self.running)
            self.attempts.append(current_command().attempt)
            try:
                if seconds < 0:
                    await self.gate.wait()
                elif seconds:
                    await asyncio.sleep(seconds)
            finally:
                self.running -= 1
            self.ran.append(number)
            return number

        return manager, job

    async def blocked(
        self, behind: int = 20, *, awaited: bool = False
    ) -> tuple[QueueManager, Any, list[Any]]:
        """A worker with one slot, in which a command hangs, and others that wait behind it.

        Args:
            behind: How many.
            awaited: Somebody waits for their results, and sees that they are leased.
        """
        manager, job = self.worker()
        first = [job(number) for number in range(500)]
        hangs = job(500, -1)
        rest = [job(number) for number in range(501, 501 + behind)]
        handles = await manager.submit_many("jobs", [*first, hangs, *rest])
        if awaited:
            self.waiters = [asyncio.create_task(handle.wait()) for handle in handles]
        await manager.start()
        hung = asyncio.Event()
        self.on_start = lambda number: hung.set() if number == 500 else None
        await hung.wait()
        await asyncio.sleep(3 * TRIP)  # what comes has come, and what has ended is settled
        assert await self.store.leased() > 5
        return manager, job, handles[501:]


def line(manager: QueueManager) -> PrefetchLine:
    engine: Any = manager.queue()._engine
    [found] = engine._prefetch.lines.values()
    assert isinstance(found, PrefetchLine)
    return found


async def test_a_new_worker_claims_no_more_than_it_has_slots_for() -> None:
    rig = Rig()
    manager, job = rig.worker(5)
    await manager.submit_many("jobs", [job(number) for number in range(400)])
    async with manager:
        await manager.drain(100)
    slots = [5] * (ENOUGH // 5)
    assert rig.store.claims[: len(slots)] == slots
    assert 40 < max(rig.store.claims) <= 5 + MOST_PREFETCHED
    assert rig.store.most_leased <= 2 * (5 + MOST_PREFETCHED)  # some have ended and are not settled
    assert rig.most_running <= 5
    assert rig.ran == list(range(400))


@pytest.mark.parametrize("seconds", [0.0, 0.001, 0.003])
@pytest.mark.parametrize("slots", [1, 3, 10])
async def test_no_more_run_than_may_and_they_begin_in_order(slots: int, seconds: float) -> None:
    rig = Rig()
    began: list[int] = []
    rig.on_start = began.append
    manager, job = rig.worker(slots)
    await manager.submit_many("jobs", [job(number, seconds) for number in range(600)])
    async with manager:
        await manager.drain(100)
    assert began == list(range(600))
    assert rig.most_running == (slots if seconds else 1)
    assert len(rig.store.claims) < 600 / slots / 1.5
    assert set(rig.attempts) == {1}


async def test_long_commands_are_not_claimed_ahead() -> None:
    rig = Rig()
    manager, job = rig.worker(5)
    await manager.submit_many("jobs", [job(number, 1.0) for number in range(100)])
    async with manager:
        await manager.drain(100)
    assert rig.store.most_leased == 5


async def test_one_long_command_among_many_is_enough_to_claim_nothing_ahead() -> None:
    rig = Rig()
    manager, job = rig.worker(5)
    jobs = [job(number, 1.0 if number % 100 == 0 else 0.0) for number in range(2000)]
    await manager.submit_many("jobs", jobs)
    async with manager:
        await manager.drain(100)
    assert rig.store.most_leased <= 15  # some have ended and are not settled


def test_how_many_wait_is_what_ends_during_a_claim() -> None:
    def learned(runs: Sequence[float], trip: float, slots: int = 10) -> int:
        line = PrefetchLine(Lane("jobs", 0, LaneConfig(0, slots), 0).partitions[0])
        for seconds in runs:
            line.learn(seconds)
            line.decide(trip)
        return line.most

    assert learned([0.001] * (ENOUGH - 1), 0.002) == 0
    assert learned([0.001] * ENOUGH, 0.002) == 80
    assert learned([0.001] * ENOUGH, 0.002, slots=1) == 8
    assert learned([1.0] * ENOUGH, 0.002) == 0
    assert learned([0.0] * ENOUGH, 0.002) == MOST_PREFETCHED
    assert learned([0.0] * ENOUGH, 0.0) == 0
    assert learned([1.0] + [0.001] * 100, 0.002) == 0
    assert learned([0.05] * ENOUGH, 10.0) == 10  # no longer than half of the patience


def test_once_something_did_not_begin_in_time_more_commands_have_to_end() -> None:
    line = PrefetchLine(Lane("jobs", 0, LaneConfig(0, 10), 0).partitions[0])

    def run(commands: int) -> int:
        for _ in range(commands):
            line.learn(0.001)
        line.decide(0.002)
        return line.most

    assert run(ENOUGH) == 80
    line.distrust()
    assert (line.most, run(ENOUGH - 1), run(1)) == (0, 0, 1)
    assert run(500) == 80


async def test_what_cannot_begin_in_time_runs_elsewhere() -> None:
    rig = Rig()
    manager, _, handles = await rig.blocked()
    other, _ = rig.worker()
    async with other:
        await asyncio.wait_for(asyncio.gather(*handles), 2 * PATIENCE + 4 * TRIP + 20 * 2 * TRIP)
        assert rig.ran == [*range(500), *range(501, 521)]
    assert line(manager).most == 0
    rig.gate.set()
    await manager.drain(100)
    await manager.close()
    assert set(rig.attempts) == {1}


async def test_given_back_after_a_tenth_of_a_second() -> None:
    rig = Rig()
    manager, _, _ = await rig.blocked()
    await asyncio.sleep(PATIENCE - 6 * TRIP)
    assert await rig.store.leased() > 5
    await asyncio.sleep(7 * TRIP)
    assert await rig.store.leased() == 1
    await manager.close()


async def test_given_back_earlier_if_leases_are_short() -> None:
    rig = Rig(lease_time=20 * TRIP)
    manager, _, _ = await rig.blocked()
    await asyncio.sleep(4 * TRIP)
    assert await rig.store.leased() == 1
    rig.gate.set()
    await manager.drain(100)
    assert set(rig.attempts) == {1}
    await manager.close()


async def test_a_claim_waits_until_half_of_what_may_be_leased_is_free() -> None:
    rig = Rig()
    manager, _, _ = await rig.blocked(60)
    plan: Any = cast("Any", manager.queue()._engine)._plan
    waiting = len(line(manager).jobs)
    assert waiting > 20
    line(manager).most = 2 * waiting
    assert not plan.has_room()
    line(manager).most += 1
    assert plan.has_room()
    await manager.close()


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_pausing_gives_it_back_at_once(elsewhere: bool) -> None:
    rig = Rig()
    manager, _, handles = await rig.blocked()
    other, _ = rig.worker()
    await (other if elsewhere else manager).pause("jobs")
    # A worker that has just looked at the others waits a moment for more news.
    await asyncio.sleep(2 * TRIP + elsewhere * LOOK_GAP)
    assert await rig.store.leased() == 1
    rig.gate.set()
    await asyncio.sleep(10.0)
    assert rig.ran == list(range(501))
    await manager.resume("jobs")
    assert await asyncio.gather(*handles) == list(range(501, 521))
    assert set(rig.attempts) == {1}
    await manager.close()
    await other.close()


@pytest.mark.parametrize("graceful", [False, True])
async def test_a_worker_that_ends_gives_it_back(graceful: bool) -> None:
    rig = Rig()
    manager, _, handles = await rig.blocked()
    if graceful:
        await manager.shutdown()
        down = asyncio.create_task(manager.queue().settle_down())
        await asyncio.sleep(2 * TRIP)
        assert await rig.store.leased() == 1
        rig.gate.set()
        await down
        assert rig.ran == list(range(501))
        await asyncio.sleep(2 * TRIP)
    del handles
    left = await manager.close()
    assert left == {"jobs": 20 if graceful else 21}
    page = await rig.store.browse("jobs", limit=100)
    assert {(item.state, item.attempt) for item in page.items} == {("available", 0)}
    other, _ = rig.worker()
    rig.gate.set()
    async with other:
        await other.drain(100)
    assert rig.ran[-20:] == list(range(501, 521))


@pytest.mark.parametrize("by_key", [False, True])
async def test_cancelled_while_it_waits(by_key: bool) -> None:
    rig = Rig()
    manager, _, handles = await rig.blocked()
    third = handles[2]
    cancelling = asyncio.create_task(
        manager.cancel("jobs", third.key) if by_key else third.cancel()
    )
    await asyncio.sleep(TRIP / 4)
    rig.gate.set()  # now all that wait here begin, at once
    assert await cancelling
    assert third.status == "cancelled"
    with pytest.raises(CommandCancelledError):
        await third
    await manager.drain(100)
    assert rig.ran == [*range(503), *range(504, 521)]
    assert manager.queue().lanes["jobs"].cancelled == 1
    await manager.close()


@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("after", [0.1, 0.6, 0.9, 1.1, 1.4, 1.6, 2.1])
async def test_cancelled_while_it_is_being_claimed(after: float, kept: bool, busy: bool) -> None:
    """It is leased already, and the answer to the claim is on its way."""
    rig = Rig()
    manager, job = rig.worker()
    async with manager:
        await manager.submit_many("jobs", [job(number) for number in range(500)])
        await manager.drain(100)
        if busy:
            await manager.submit("jobs", job(500, -1))
        await asyncio.sleep(2 * TRIP)
        handles = [await manager.submit("jobs", job(501, 10.0), key="k")]
        if not kept:
            handles.clear()
        await asyncio.sleep(after * TRIP)
        assert await manager.cancel("jobs", "k")
        ended = asyncio.get_running_loop().time()
        rig.gate.set()
        for handle in handles:
            with pytest.raises(CommandCancelledError):
                await handle
        await asyncio.sleep(2 * TRIP)
        assert rig.running == 0
        await manager.drain(100)
        assert asyncio.get_running_loop().time() < ended + 10 * TRIP
        assert rig.ran == list(range(501 if busy else 500))
        for handle in handles:
            assert handle.status == "cancelled"
            assert manager.queue().lanes["jobs"].cancelled == 1


async def test_a_cancellation_that_fails_leaves_it_to_run() -> None:
    rig = Rig()
    manager, _, handles = await rig.blocked()
    rig.store.broken = True
    with pytest.raises(StoreError):
        await handles[2].cancel()
    rig.store.broken = False
    rig.gate.set()
    await manager.drain(100)
    assert sorted(rig.ran) == list(range(521))
    assert set(rig.attempts) == {1}
    await manager.close()


async def test_cancelled_elsewhere_while_it_waits() -> None:
    rig = Rig()
    manager, _, handles = await rig.blocked()
    other, _ = rig.worker()
    assert await other.cancel("jobs", handles[2].key)
    engine: Any = manager.queue()._engine
    await engine._heartbeat._find_revoked()
    rig.gate.set()
    await manager.drain(100)
    assert rig.ran == [*range(503), *range(504, 521)]
    with pytest.raises(CommandCancelledError):
        await handles[2]
    await manager.close()
    await other.close()


async def test_a_lost_partition_is_given_back() -> None:
    rig = Rig()
    manager, _, _ = await rig.blocked()
    engine: Any = manager.queue()._engine
    partition = engine.partitions[0]
    engine._workers._own(partition, False)
    rig.gate.set()
    await asyncio.sleep(3 * TRIP)
    assert rig.ran == list(range(501))
    assert await rig.store.leased() == 0
    engine._workers._own(partition, True)
    engine.wake()
    await manager.drain(100)
    assert rig.ran == list(range(521))
    assert set(rig.attempts) == {1}
    await manager.close()


async def test_nothing_begins_whose_lease_may_have_ended_while_the_event_loop_stood_still() -> None:
    rig = Rig(lease_time=1.0)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    manager, job = rig.worker()
    await manager.submit_many("jobs", [job(number) for number in range(300)])
    starts: list[int] = []
    waiting: list[int] = []

    def on_start(number: int) -> None:
        starts.append(number)
        if number == 200 and not waiting:
            waiting.extend(job.command.arguments.number for job in line(manager).jobs)
            loop.jump(1.5)

    rig.on_start = on_start
    async with manager:
        await manager.drain(100)
    assert len(waiting) > 10
    assert [number for number in starts if number in waiting] == waiting
    assert starts.count(200) == 2  # its own lease had ended, so its run did not count
    assert set(starts) == set(range(300))


async def test_nothing_begins_that_was_claimed_longer_ago_than_its_lease() -> None:
    rig = Rig(lease_time=1.0)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    manager, job = rig.worker()
    await manager.submit("jobs", job(0))
    await manager.start()
    while not await rig.store.leased():
        await asyncio.sleep(TRIP / 10)
    assert not rig.attempts, "the store has answered, and nobody has heard it"
    loop.jump(1.5)
    async with asyncio.timeout(10):
        await manager.drain(10)
    assert rig.attempts == [2], "the first lease had ended before it was heard of"
    await manager.close()


async def test_who_ends_keeps_its_parts_until_what_waits_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig()
    manager, _, _ = await rig.blocked()
    left: list[int] = []
    leave = WorkerGroup.leave

    def noted(self: WorkerGroup) -> None:
        left.append(rig.store._model.count("jobs", clock()).in_flight)
        leave(self)

    monkeypatch.setattr(WorkerGroup, "leave", noted)
    rig.gate.set()
    await manager.close()
    assert left[0] <= 1


@pytest.mark.parametrize("pausing", [False, True])
@pytest.mark.parametrize("answer", [TRIP / 2, 0.0, 8 * TRIP])
async def test_what_was_given_back_begins_before_what_comes_after_it(
    pausing: bool, answer: float, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig()
    rig.store.answer = answer
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    manager, job = rig.worker()
    await manager.submit_many("jobs", [job(number) for number in range(2000)])
    starts: list[int] = []
    given_back = 0

    def on_start(number: int) -> None:
        nonlocal given_back
        starts.append(number)
        if number % 97 == 96:
            given_back += len(line(manager).jobs)
            if pausing:
                manager.pause("jobs")
                manager.resume("jobs")
            else:
                loop.jump(2 * PATIENCE)

    rig.on_start = on_start
    async with manager:
        await manager.drain(1000)
    assert given_back > 10
    assert starts == list(range(2000))
    assert set(rig.attempts) == {1}
    assert "was lost" not in caplog.text


async def test_a_lane_that_runs_one_at_a_time_has_one_claim_under_way() -> None:
    rig = Rig()
    for slots in (1, 2):
        manager, _ = rig.worker(slots)
        engine: Any = manager.queue()._engine
        line(manager).most = 100
        engine._plan.coming[engine.partitions[0]] = 5
        assert engine._plan.has_room() == (slots > 1)
        await manager.close()


async def test_leases_of_what_waits_are_renewed() -> None:
    rig = Rig()
    manager, _, _ = await rig.blocked()
    engine: Any = manager.queue()._engine
    waiting = len(line(manager).jobs)
    assert waiting
    seen: list[Change] = []
    settle = rig.store.do_settle

    async def watched(requests: Sequence[Change]) -> list[Answer]:
        seen.extend(requests)
        return await settle(requests)

    rig.store.do_settle = watched  # type: ignore[method-assign]
    await engine._heartbeat._renew([(job, job.lease) for job in engine._held.values()])
    assert len(seen) == waiting + 1
    rig.gate.set()
    await manager.drain(100)
    await manager.close()


@pytest.mark.parametrize("seen", [False, True])
async def test_what_waits_is_pending(seen: bool) -> None:
    rig = Rig()
    manager, _, handles = await rig.blocked(awaited=seen)
    assert len(line(manager).jobs) > 5
    assert {handle.status for handle in handles} == {"pending"}
    assert {handle.attempt for handle in handles} == {0}
    stats = (await manager.stats()).lanes["jobs"]
    assert (stats.pending, stats.active) == (20, 1)
    rig.gate.set()
    await manager.drain(100)
    assert {handle.status for handle in handles} == {"completed"}
    await manager.close()


LIMITS: list[dict[str, Any]] = [
    {"global_concurrency": 5},
    {"rate_limit": RateLimitConfig.per_second(10_000)},
    {"key_rate_limit": RateLimitConfig.per_second(10_000)},
    {"key_limits": [KeyLimit("a*", 3)]},
    {"max_attempts": 1},
    {},
]


@pytest.mark.parametrize("limits", LIMITS)
async def test_where_limits_count_what_is_leased_nothing_is_claimed_ahead(
    limits: dict[str, Any],
) -> None:
    rig = Rig(**limits)
    manager, job = rig.worker(3, capacity=None if limits else 300)
    await manager.submit_many("jobs", [job(number) for number in range(100)])
    async with manager:
        await manager.drain(100)
    assert max(rig.store.claims) <= 3


async def test_an_idle_worker_claims_one_command_at_once() -> None:
    rig = Rig()
    manager, job = rig.worker(10)
    await manager.submit_many("jobs", [job(number) for number in range(500)])
    async with manager:
        await manager.drain(100)
        await asyncio.sleep(1.0)
        await manager.submit("jobs", job(500))
        await asyncio.sleep(1.5 * TRIP)
        assert rig.ran == list(range(501))
        await manager.drain(100)


async def test_a_free_slot_does_not_wait_for_others() -> None:
    rig = Rig()
    manager, job = rig.worker(10)
    await manager.submit_many("jobs", [job(n, (8 + n % 7) * TRIP) for n in range(500)])
    async with manager:
        await manager.drain(100)
    assert 0 < line(manager).most < 6
    at_best = 500 / 10 * 11 * TRIP
    assert asyncio.get_running_loop().time() < 1.1 * at_best
