"""What once went wrong with lanes."""

import asyncio
import contextlib
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from leasedkeyq.errors import LimitExceededError, StoreClosedError, StoreError
from leasedkeyq.lanes import (
    CommandCancelledError,
    CommandExitError,
    CommandTimeoutError,
    LaneConfig,
    LaneError,
    ManagerClosedError,
    QueueManagerBuilder,
    RateLimitConfig,
    RetryPolicy,
)
from leasedkeyq.lanes.on_store import StoreEngine
from leasedkeyq.stores import MemoryStore
from leasedkeyq.stores.contract import (
    Answer,
    Cancel,
    Change,
    Claim,
    Claimed,
    Extend,
    Put,
    StoredItem,
)
from leasedkeyq.telemetry.metrics import LaneMetrics
from tests.lanes.support import Build, Work, clock, everywhere, in_memory, on_a_store


def now() -> float:
    return asyncio.get_running_loop().time()


async def nothing() -> None:
    return None


async def soon(true: Callable[[], bool]) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(1000):
        while not true():
            await asyncio.sleep(0.01)


class Trouble(MemoryStore):
    """A store that can be slow, and that can fail."""

    def __init__(self) -> None:
        super().__init__(clock=clock)
        self.fails: dict[str, Exception] = {}
        self.takes: dict[str, float] = {}
        self.calls: dict[str, int] = {}

    async def _hurt(self, verb: str) -> None:
        self.calls[verb] = self.calls.get(verb, 0) + 1
        if verb in self.takes:
            await asyncio.sleep(self.takes[verb])
        if verb in self.fails:
            raise self.fails[verb]

    async def put(self, requests: Sequence[Put]) -> Any:
        answer = await super().put(requests)
        await self._hurt("put")
        return answer

    async def claim(self, requests: Sequence[Claim]) -> list[tuple[Claimed, ...]]:
        await self._hurt("claim")
        answer = await super().claim(requests)
        if "claimed" in self.takes:
            await asyncio.sleep(self.takes["claimed"])
        return answer

    async def settle(self, requests: Sequence[Change]) -> list[Answer]:
        await self._hurt("extend" if isinstance(requests[0], Extend) else "settle")
        return await super().settle(requests)

    async def results(self, queue: str, ids: Sequence[int]) -> Any:
        await self._hurt("results")
        return await super().results(queue, ids)

    async def count(self, queues: Sequence[str] | None = None) -> Any:
        await self._hurt("count")
        found = await super().count(queues)
        if "counted" in self.takes:
            await asyncio.sleep(self.takes["counted"])
        return found


def on(store: MemoryStore) -> QueueManagerBuilder:
    return QueueManagerBuilder(clock=clock).with_storage(store)


# How commands end


class OddError(BaseException):
    """Neither an `Exception` nor a way to leave the program."""


@everywhere
async def test_any_base_exception_is_the_failure_of_its_command(build: Build) -> None:
    manager = build().with_lane("x", LaneConfig(0, 1), 0).build()

    @manager.command("odd")
    async def odd(which: int) -> None:
        raise [OddError("odd"), GeneratorExit(), BaseExceptionGroup("many", [OddError()])][which]

    async with manager:
        for which in range(3):
            with pytest.raises(CommandExitError) as caught:
                await (await manager.submit("x", odd(which)))
            assert caught.value.__cause__ is not None
        await manager.drain(1)
        assert await manager.dlq.len() == 3


@everywhere
async def test_a_command_that_cancels_its_own_task_has_failed(build: Build) -> None:
    manager = build().with_lane("x", LaneConfig(0, 1), 0).build()
    runs = 0

    @manager.command("suicide")
    async def suicide() -> None:
        nonlocal runs
        runs += 1
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    async with manager:
        handle = await manager.submit("x", suicide())
        with pytest.raises(CommandCancelledError):
            await handle
        assert runs == 1


@everywhere
@pytest.mark.parametrize("answer", ["soon", float("inf"), float("nan"), [], True])
async def test_a_retry_policy_that_answers_nonsense_ends_the_command(
    build: Build, answer: Any
) -> None:
    class Policy:
        def delay(self, attempt: int, error: BaseException) -> Any:
            return answer

    manager = build().with_lane("x", LaneConfig(0, 1, retry_policy=Policy()), 0).build()

    @manager.command("fail")
    async def fail() -> None:
        raise ValueError("no")

    async with manager:
        handle = await manager.submit("x", fail())
        with pytest.raises(ValueError, match="no"):
            await handle
        await manager.drain(1)


@everywhere
async def test_a_command_that_is_cancelled_while_it_times_out_is_not_retried(build: Build) -> None:
    config = LaneConfig(0, 1, timeout=1, retry_policy=RetryPolicy.fixed(5, 1), cancel_grace=10)
    manager = build().with_lane("x", config, 0).build()
    runs = 0

    @manager.command("slow")
    async def slow() -> None:
        nonlocal runs
        runs += 1
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(2)  # cleaning up takes its time
            raise

    async with manager:
        handle = await manager.submit("x", slow(), key="k")
        await asyncio.sleep(2)
        assert await manager.cancel("x", "k")
        with pytest.raises(CommandCancelledError):
            await handle
        await manager.drain(60)
        assert runs == 1


@everywhere
async def test_what_an_error_says_on_several_lines_is_told_in_one(build: Build) -> None:
    manager = build().with_lane("x", LaneConfig(0, 1), 0).build()

    @manager.command("fail")
    async def fail() -> None:
        raise ValueError("first\nsecond")

    async with manager:
        with pytest.raises(ValueError, match="second"):
            await (await manager.submit("x", fail()))
        (letter,) = await manager.dlq.list()
        assert letter.error == "ValueError: first second"
        assert letter.traceback.startswith("Traceback")


@everywhere
async def test_no_time_out_at_all_overrides_that_of_the_lane(build: Build) -> None:
    manager = build().with_lane("x", LaneConfig(0, 1, timeout=1), 0).build()

    @manager.command("slow")
    async def slow() -> str:
        await asyncio.sleep(5)
        return "done"

    async with manager:
        assert await (await manager.submit("x", slow(), timeout=float("inf"))) == "done"


# Keys


async def test_a_command_without_a_key_never_meets_a_key() -> None:
    manager = in_memory().with_lane("x", LaneConfig(0, 1), 0).build()
    ran: list[str] = []

    @manager.command("note")
    async def note(name: str) -> None:
        ran.append(name)

    for number in range(20):
        await manager.submit("x", note(f"none {number}"))
    for number in range(20):
        await manager.submit("x", note(f"key {number}"), key=f"{number:x}")
    async with manager:
        await manager.drain(10)
    assert len(ran) == 40


@everywhere
async def test_a_handle_cancels_its_own_command_and_not_the_one_behind_it(build: Build) -> None:
    manager = build().with_lane("x", LaneConfig(0, 4), 0).build()
    ran: list[str] = []

    @manager.command("note")
    async def note(name: str, seconds: float) -> str:
        ran.append(name)
        await asyncio.sleep(seconds)
        return name

    async with manager:
        first = await manager.submit("x", note("first", 60), key="k")
        await soon(lambda: bool(ran))
        second = await manager.submit("x", note("second", 1), key="k", if_in_flight="buffer")
        assert await first.cancel()
        with pytest.raises(CommandCancelledError):
            await first
        assert await second == "second"
    assert ran == ["first", "second"]


@everywhere
async def test_what_is_cancelled_while_the_manager_stops_does_not_run_again(build: Build) -> None:
    builder = build().with_lane("x", LaneConfig(0, 4, cancel_grace=60), 0)
    manager = builder.build()

    @manager.command("slow")
    async def slow() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(10)

    await manager.start()
    first, second = [await manager.submit("x", slow(), key=key) for key in "ab"]
    await soon(lambda: first.status == second.status == "running")
    closing = asyncio.create_task(manager.close())
    await asyncio.sleep(1)
    assert await first.cancel()
    assert await manager.cancel("x", "b")
    await closing
    for handle in (first, second):
        with pytest.raises(CommandCancelledError):
            await handle
    assert not (await builder.build().stats()).total_pending


async def test_a_key_is_cancelled_although_a_lost_run_of_it_goes_on() -> None:
    store = MemoryStore(clock=clock)
    manager = on(store).with_lane("x", LaneConfig(0, 4, cancel_grace=60), 0).build()
    elsewhere = on(store).with_lane("x", LaneConfig(0, 4), 0).build()

    async def slow() -> None:
        try:
            await asyncio.sleep(600)
        finally:
            await asyncio.sleep(30)

    command, other = manager.command("slow", slow), elsewhere.command("slow", slow)
    async with manager:
        first = await manager.submit("x", command(), key="k")
        await soon(lambda: first.status == "running")
        await manager.pause("x")
        await elsewhere.cancel("x", "k")
        await asyncio.sleep(2)
        waiting = await elsewhere.submit("x", other(), key="k")
        assert await manager.cancel("x", "k")
        with pytest.raises(CommandCancelledError):
            await asyncio.wait_for(waiting.wait(), 5)
        assert await store.look("x", ["k"]) == [()]
        await manager.resume("x")
    await elsewhere.close()


async def test_what_waits_behind_a_cancelled_run_is_cancelled_at_once() -> None:
    """Also by a worker that always has something to settle."""
    store = Trouble()
    store.takes["settle"] = 0.2
    manager = on(store).with_lane("x", LaneConfig(0, 40), 0).build()
    ran: list[int] = []

    @manager.command("note")
    async def note(number: int, seconds: float) -> None:
        ran.append(number)
        await asyncio.sleep(seconds)

    async def keep_busy() -> None:
        while True:
            await manager.submit("x", note(0, 0.0))
            await asyncio.sleep(0.05)

    async with manager:
        busy = asyncio.create_task(keep_busy())
        first = await manager.submit("x", note(1, 600), key="k")
        await soon(lambda: 1 in ran)
        second = await manager.submit("x", note(2, 600), key="k", if_in_flight="buffer")
        assert await manager.cancel("x", "k")
        for handle in (first, second):
            with pytest.raises(CommandCancelledError):
                await asyncio.wait_for(handle.wait(), 5)
        busy.cancel()
    assert 2 not in ran


async def test_a_store_that_does_not_answer_does_not_keep_a_manager_from_its_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = Trouble()
    manager = on(store).with_lane("x", LaneConfig(0, 4), 0).build()
    manager.command("nothing", nothing)
    await manager.start()
    store.takes["count"] = 3600
    began = now()
    assert await manager.close() == {}
    assert now() - began < 30
    assert "how many commands are left is not known: the store does not answer" in caplog.text


@everywhere
async def test_metrics_that_are_reset_count_what_starts_afterwards(build: Build) -> None:
    metrics = LaneMetrics()
    manager = build().with_lane("x", LaneConfig(0, 1), 0).with_metrics(metrics=metrics).build()
    command = manager.command("nothing", nothing)
    for _ in range(3):
        await manager.submit("x", command())
    metrics.reset()
    async with manager:
        await manager.drain(1)
    (series,) = metrics.snapshot().series
    assert (series.submitted, series.started, series.completed) == (0, 3, 3)


async def test_a_handle_cancels_its_own_command_and_not_the_one_before_it() -> None:
    manager = in_memory().with_lane("x", LaneConfig(0, 4), 0).build()

    @manager.command("note")
    async def note(name: str) -> str:
        await asyncio.sleep(1)
        return name

    async with manager:
        first = await manager.submit("x", note("first"), key="k")
        await asyncio.sleep(0.5)
        second = await manager.submit("x", note("second"), key="k", if_in_flight="buffer")
        assert await second.cancel()
        assert await first == "first"
        with pytest.raises(CommandCancelledError):
            await second
        await manager.drain(1)


@everywhere
async def test_cancelling_a_key_cancels_all_there_is_of_it(build: Build) -> None:
    manager = build().with_lane("x", LaneConfig(0, 4), 0).build()
    ran: list[str] = []

    @manager.command("note")
    async def note(name: str) -> None:
        ran.append(name)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(1)
            raise

    async with manager:
        handles = [await manager.submit("x", note("first"), key="k")]
        await soon(lambda: bool(ran))
        handles.append(await manager.submit("x", note("second"), key="k", if_in_flight="buffer"))
        assert await manager.cancel("x", "k")
        for handle in handles:
            with pytest.raises(CommandCancelledError):
                await handle
        await manager.drain(10)
    assert ran == ["first"]


async def test_a_cancelled_command_that_lost_its_lease_leaves_its_successor_alone() -> None:
    store = MemoryStore(clock=clock)
    config = LaneConfig(0, 1, cancel_grace=20)
    first = on(store).with_lane("x", config, 0).build()
    started = asyncio.Event()

    @first.command("slow")
    async def slow() -> None:
        started.set()
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            await asyncio.sleep(10)
            raise

    await first.start()
    await first.submit("x", slow(), key="k")
    await started.wait()
    assert await first.cancel("x", "k")
    # While it cleans up, somebody takes the key away, and it is used anew.
    await store.settle([Cancel("x", "k")])
    first.pause("x")
    again = await first.submit("x", slow(), key="k")
    await asyncio.sleep(30)
    assert again.status == "pending"
    assert (await first.stats()).total_pending == 1
    await first.close()


@everywhere
async def test_a_delay_of_nothing_ends_the_waiting(build: Build) -> None:
    manager = build().with_lane("x", LaneConfig(0, 1), 0).build()

    @manager.command("note")
    async def note() -> None:
        return None

    async with manager:
        manager.pause("x")
        handle = await manager.submit("x", note(), key="k", delay=100)
        assert str(handle.status) == "scheduled"
        await manager.submit("x", note(), key="k", delay=0)
        assert str(handle.status) == "pending"
        manager.resume("x")
        await handle
        assert now() < 1


async def test_the_letter_of_a_command_that_was_buffered_has_its_priority() -> None:
    manager = in_memory().with_lane("x", LaneConfig(0, 1), 0).build()

    async def fail() -> None:
        await asyncio.sleep(1)
        raise ValueError("no")

    async with manager:
        await manager.submit("x", Work(fail), key="k", priority=5)
        await asyncio.sleep(0.5)
        await manager.submit("x", Work(fail), key="k", if_in_flight="buffer")
        await manager.drain()
        assert [letter.priority for letter in await manager.dlq.list()] == [5, 5]


# The end of a manager


async def test_stopping_a_command_with_another_behind_it_tells_both() -> None:
    builder = in_memory().with_lane("x", LaneConfig(0, 1), 0).with_drain_timeout(1)
    manager = builder.build()

    async def slow() -> None:
        await asyncio.sleep(100)

    async with manager:
        first = await manager.submit("x", Work(slow), key="k")
        await asyncio.sleep(0)
        second = await manager.submit("x", Work(slow), key="k", if_in_flight="buffer")
        waiting = [asyncio.create_task(handle.wait()) for handle in (first, second)]
        await asyncio.sleep(0)
    async with asyncio.timeout(10):
        for task in waiting:
            with pytest.raises(ManagerClosedError):
                await task
    await manager.drain(0)


async def test_nothing_starts_once_the_manager_stops() -> None:
    store = Trouble()
    manager = on(store).with_lane("x", LaneConfig(0, 4), 0).build()
    ran: list[float] = []

    @manager.command("note")
    async def note() -> None:
        ran.append(now())
        await asyncio.sleep(100)

    await manager.start()
    await asyncio.sleep(1)
    store.takes["claimed"] = 2.0
    await manager.submit("x", note())
    await asyncio.sleep(1)  # the claim is under way, and has its command
    left = await manager.close()
    assert left == {"x": 1}
    await asyncio.sleep(10)
    assert ran == []
    counts = (await store.count(["x"]))["x"]
    assert (counts.available, counts.in_flight) == (1, 0)


async def test_closing_does_not_wait_for_ever_for_a_store_that_is_out_of_reach(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = Trouble()
    manager = on(store).with_lane("x", LaneConfig(0, 4), 0).build()

    @manager.command("note")
    async def note() -> None:
        await asyncio.sleep(1)

    await manager.start()
    handle = await manager.submit("x", note())
    await asyncio.sleep(0.5)
    for verb in ("settle", "extend", "claim", "count", "results"):
        store.fails[verb] = StoreError("the network is gone")
    await asyncio.sleep(5)
    with contextlib.suppress(StoreError):
        async with asyncio.timeout(120):
            await manager.close()
    assert "not settled" in caplog.text
    assert handle.status == "lost"
    for _ in range(5):
        await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_store_that_is_closed_under_the_manager_does_not_hold_it_up() -> None:
    store = MemoryStore(clock=clock)
    manager = on(store).with_lane("x", LaneConfig(0, 4), 0).build()

    @manager.command("note")
    async def note(seconds: float) -> None:
        await asyncio.sleep(seconds)

    await manager.start()
    handles = [await manager.submit("x", note(seconds)) for seconds in (1, 2, 3, 50)]
    waiting = [asyncio.create_task(handle.wait()) for handle in handles]
    await asyncio.sleep(0.5)
    await store.close()
    await asyncio.sleep(10)
    async with asyncio.timeout(60):
        await manager.close()
    ends = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(end) for end in ends] == [ManagerClosedError] * 4
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_waiter_for_a_remote_command_is_quiet_while_the_store_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = Trouble()
    manager = on(store).with_lane("x", LaneConfig(0, 4), 0).build()
    note = manager.command("note", nothing)
    handle = await manager.submit("x", note())
    store.fails["results"] = StoreError("the network is gone")
    waiting = asyncio.create_task(handle.wait())
    await asyncio.sleep(60)
    assert len(caplog.records) < 50
    store.fails.clear()
    await manager.start()
    await waiting
    await manager.close()


async def test_an_unexpected_error_of_a_store_does_not_end_the_worker() -> None:
    store = Trouble()
    manager = on(store).with_lane("x", LaneConfig(0, 4, lease_time=3), 0).build()

    @manager.command("note")
    async def note(seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    async with manager:
        for verb in ("claim", "settle", "extend", "results"):
            long = await manager.submit("x", note(20))
            other = asyncio.create_task(long.wait())
            await asyncio.sleep(0.5)
            store.fails[verb] = RuntimeError("a bug")
            short = await manager.submit("x", note(1))
            await asyncio.sleep(2)
            store.fails.clear()
            assert await short == 1
            assert await other == 20


async def test_two_closes_are_one() -> None:
    store = MemoryStore(clock=clock)
    manager = on(store).with_lane("x", LaneConfig(0, 4, cancel_grace=5), 0).build()

    @manager.command("slow")
    async def slow() -> None:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            await asyncio.sleep(3)
            raise

    await manager.start()
    await manager.submit("x", slow())
    await asyncio.sleep(1)
    first = asyncio.create_task(manager.close())
    await asyncio.sleep(1)
    first.cancel()
    assert await manager.close() == {"x": 1}
    assert asyncio.all_tasks() == {asyncio.current_task()}


@everywhere
async def test_a_cancelled_run_closes_the_manager(build: Build) -> None:
    manager = build().with_lane("x", LaneConfig(0, 4), 0).build()
    cancelled = False

    @manager.command("slow")
    async def slow() -> None:
        nonlocal cancelled
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            cancelled = True
            raise

    running = asyncio.create_task(manager.run(signals=()))
    await asyncio.sleep(0)
    await manager.submit("x", slow())
    await asyncio.sleep(1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert cancelled
    assert asyncio.all_tasks() == {asyncio.current_task()}


@everywhere
async def test_a_command_that_drains_would_wait_for_itself(build: Build) -> None:
    manager = build().with_lane("x", LaneConfig(0, 4), 0).build()

    @manager.command("drain")
    async def drain() -> None:
        await manager.drain()

    async with manager:
        with pytest.raises(LaneError, match="itself"):
            await (await manager.submit("x", drain()))


@everywhere
async def test_a_command_may_close_its_manager(build: Build) -> None:
    manager = build().with_lane("x", LaneConfig(0, 4), 0).build()

    @manager.command("close")
    async def close() -> None:
        await manager.close()

    await manager.start()
    handle = await manager.submit("x", close())
    async with asyncio.timeout(60):
        with pytest.raises(ManagerClosedError):
            await handle
        await manager.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}


# Drain


async def test_two_drains_on_a_store_both_end() -> None:
    store = Trouble()
    here = on(store).with_lane("x", LaneConfig(0, 4), 0).build()
    there = on(store).with_lane("x", LaneConfig(0, 4), 0).build()

    @there.command("note")
    async def note() -> None:
        await asyncio.sleep(3)

    async with there:
        await there.submit("x", note())
        await asyncio.sleep(1)
        early = asyncio.create_task(here.drain())
        await asyncio.sleep(1)
        store.takes["counted"] = 2.0
        late = asyncio.create_task(here.drain())
        # The command ends while the late one counts, and the early one hears of it.
        await asyncio.gather(early, late)
        assert now() < 10
        store.takes.clear()
    await here.close()


async def test_drain_ends_when_a_command_that_was_cancelled_elsewhere_has_stopped() -> None:
    store = MemoryStore(clock=clock)
    here = on(store).with_lane("x", LaneConfig(0, 4, cancel_grace=20), 0).build()
    there = on(store).with_lane("x", LaneConfig(0, 4), 0).build()
    started = asyncio.Event()

    @here.command("slow")
    async def slow() -> None:
        started.set()
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            await asyncio.sleep(10)
            raise

    async with here:
        await here.submit("x", slow(), key="k")
        await started.wait()
        assert await there.cancel("x", "k")
        async with asyncio.timeout(100):
            await here.drain()
        assert now() > 10
    await there.close()


# Leases


async def test_a_command_that_is_claimed_again_after_its_lease_frees_its_slot() -> None:
    jump = 0.0
    store = MemoryStore(clock=lambda: clock() + jump)
    config = LaneConfig(0, 2, lease_time=10, cancel_grace=1)
    manager = on(store).with_lane("x", config, 0).build()
    runs = 0

    @manager.command("slow")
    async def slow() -> int:
        nonlocal runs
        runs += 1
        mine = runs
        await asyncio.sleep(2)
        return mine

    async with manager:
        handle = await manager.submit("x", slow())
        await asyncio.sleep(1)
        jump = 100.0  # as if the process had been stopped for a while
        engine = manager.queue()._engine
        engine.wake()
        assert await handle == 2
        await manager.drain(100)
        await asyncio.sleep(5)
        assert (engine.slots.active, engine.running) == (0, set())


async def test_a_stuck_command_does_not_end_the_renewal_of_leases() -> None:
    store = Trouble()
    config = LaneConfig(0, 2, lease_time=3, timeout=1, cancel_grace=1)
    manager = on(store).with_lane("x", config, 0).build()
    runs = 0

    @manager.command("stubborn")
    async def stubborn() -> None:
        for _ in range(2):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(50)

    @manager.command("long")
    async def long() -> str:
        nonlocal runs
        runs += 1
        await asyncio.sleep(30)
        return "done"

    async with manager:
        stuck = await manager.submit("x", stubborn())
        other = await manager.submit("x", long(), timeout=100)
        await asyncio.sleep(1.5)
        store.takes["settle"] = 2.5
        with pytest.raises(CommandTimeoutError):
            await stuck
        assert await other == "done"
        assert runs == 1
        store.takes.clear()


async def test_leases_are_renewed_soon_after_the_store_has_failed_once() -> None:
    store = Trouble()
    config = LaneConfig(0, 2, lease_time=10, heartbeat=9)
    manager = on(store).with_lane("x", config, 0).build()
    runs = 0

    @manager.command("long")
    async def long() -> str:
        nonlocal runs
        runs += 1
        await asyncio.sleep(60)
        return "done"

    async with manager:
        handle = await manager.submit("x", long())
        await asyncio.sleep(8)
        store.fails["extend"] = StoreError("not now")
        await soon(lambda: "extend" in store.calls)
        store.fails.clear()
        assert await handle == "done"
        assert runs == 1


async def test_a_handle_that_was_told_cancelled_stays_so() -> None:
    store = Trouble()
    manager = on(store).with_lane("x", LaneConfig(0, 2, keep_results=0), 0).build()

    @manager.command("note")
    async def note() -> None:
        await asyncio.sleep(1)

    async with manager:
        handle = await manager.submit("x", note())
        await asyncio.sleep(0.5)
        store.takes["settle"] = 5
        await asyncio.sleep(1)  # it is done, and not settled yet
        assert await handle.cancel()
        assert handle.status == "cancelled"
        await asyncio.sleep(10)
        assert handle.status == "cancelled"
        store.takes.clear()


async def test_a_look_that_takes_long_does_not_undo_the_end_of_a_command() -> None:
    class SlowToAnswer(MemoryStore):
        async def look(self, queue: str, keys: Sequence[str]) -> list[tuple[StoredItem, ...]]:
            found = await super().look(queue, keys)
            await asyncio.sleep(5)
            return found

    manager = on(SlowToAnswer(clock=clock)).with_lane("x", LaneConfig(0, 1), 0).build()

    @manager.command("note")
    async def note() -> str:
        return "done"

    handle = await manager.submit("x", note())
    waiting = asyncio.create_task(handle.wait())
    await asyncio.sleep(1)
    async with manager:
        assert await waiting == "done"
        await asyncio.sleep(10)
        assert handle.status == "completed"
        assert await asyncio.wait_for(handle.wait(), 1) == "done"


# Limits and lanes


async def test_a_rate_limit_holds_for_all_partitions_together() -> None:
    config = LaneConfig(0, 5, partitions=4, rate_limit=RateLimitConfig.per_second(2, burst=2))
    manager = on_a_store().with_lane("x", config, 0).build()
    starts: list[float] = []

    @manager.command("note")
    async def note() -> None:
        starts.append(now())

    for number in range(20):
        await manager.submit("x", note(), key=f"k{number}")
    async with manager:
        await manager.drain(100)
    for moment in starts:
        assert sum(moment <= other < moment + 1 for other in starts) <= 4
    assert len(starts) == 20


@everywhere
async def test_a_lane_that_is_added_later_is_served(build: Build) -> None:
    manager = build().with_lane("x", LaneConfig(0, 1), 0).build()

    @manager.command("note")
    async def note() -> str:
        return "done"

    async with manager:
        await asyncio.sleep(1)
        manager.queue().add_lane("late", LaneConfig(0, 1), 1)
        async with asyncio.timeout(10):
            assert await (await manager.submit("late", note())) == "done"


async def test_names_that_a_store_does_not_take_are_refused() -> None:
    manager = on_a_store().with_lane("x", LaneConfig(0, 1), 0).build()
    long = manager.command("k" * 600, nothing)
    odd = manager.command("k\x00", nothing)
    async with manager:
        with pytest.raises(LimitExceededError, match="command_type has 600"):
            await manager.submit("x", long())
        with pytest.raises(ValueError, match="command_type must be text"):
            await manager.submit("x", odd())
        assert (await manager.stats()).total_pending == 0
    with pytest.raises(LimitExceededError, match="lane has 600"):
        on_a_store().with_lane("l" * 600, LaneConfig(0, 1), 0).build()


async def test_the_class_of_a_command_is_no_command() -> None:
    class Thing:
        command_type = "thing"

        async def execute(self) -> None:
            raise AssertionError

    manager = in_memory().with_lane("x", LaneConfig(0, 1), 0).build()
    with pytest.raises(TypeError, match=r"got <class .*Thing"):
        wrong: Any = Thing
        await manager.submit("x", wrong)


# Telling


class BrokenTracing:
    """Raises at every turn."""

    def __init__(self, *, late: bool) -> None:
        self.late = late

    @contextlib.contextmanager
    def _break(self) -> Generator[Any, None, None]:
        if not self.late:
            raise RuntimeError("tracing is broken")
        yield {}
        raise RuntimeError("tracing is broken")

    def submitting(self, lane: str, kind: str, command_id: str) -> AbstractContextManager[Any]:
        return self._break()

    def submitting_many(self, lane: str, count: int) -> AbstractContextManager[Any]:
        return self._break()

    def claimed(self, lane: str, count: int) -> None:
        raise RuntimeError("tracing is broken")

    def processing(
        self, lane: str, kind: str, command_id: str, attempt: int, carrier: Mapping[str, str]
    ) -> AbstractContextManager[None]:
        return self._break()

    def settling(self, lane: str, count: int) -> AbstractContextManager[None]:
        return self._break()


@everywhere
@pytest.mark.parametrize("late", [False, True])
async def test_tracing_that_fails_harms_no_command(build: Build, late: bool) -> None:
    manager = (
        build().with_lane("x", LaneConfig(0, 1), 0).with_tracing(BrokenTracing(late=late)).build()
    )

    @manager.command("note")
    async def note(fail: bool) -> str:
        if fail:
            raise ValueError("on purpose")
        return "done"

    async with manager:
        assert await (await manager.submit("x", note(False))) == "done"
        (handle,) = await manager.submit_many("x", [note(False)])
        assert await handle == "done"
        with pytest.raises(ValueError, match="on purpose"):
            await (await manager.submit("x", note(True)))
        await manager.drain(1)


async def test_cancelled_waits_leave_nothing_behind() -> None:
    manager = in_memory().with_lane("x", LaneConfig(0, 1), 0).build()
    handle = await manager.submit("x", Work(nothing))
    for _ in range(100):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(handle.wait(), 0.1)
    assert not handle._job.waiters
    async with manager:
        await handle


async def test_a_result_is_read_whatever_the_annotation_says() -> None:
    store = MemoryStore(clock=clock)
    here = on(store).with_lane("x", LaneConfig(0, 1), 0).build()
    there = on(store).with_lane("x", LaneConfig(0, 1), 0).build()

    class One:
        pass

    class Two:
        pass

    async def odd() -> Any:
        return 7

    odd.__annotations__["return"] = One | Two | int
    submitted = here.command("odd", odd)
    there.command("odd", odd)
    handle = await here.submit("x", submitted())
    async with there, asyncio.timeout(10):
        assert await handle == 7
    await here.close()


def test_a_folder_that_the_builder_opened_is_closed(tmp_path: Path) -> None:
    async def main() -> None:
        builder = QueueManagerBuilder().with_storage(tmp_path / "jobs", durability="normal")
        manager = builder.with_lane("x", LaneConfig(), 0).build()
        engine = manager.queue()._engine
        assert isinstance(engine, StoreEngine)
        await engine.store.count()
        assert (tmp_path / "jobs" / "commands.db").exists()
        await manager.close()
        with pytest.raises(StoreClosedError):
            await engine.store.count()

    asyncio.run(main())


@pytest.mark.parametrize("url", [None, "memory://"])
async def test_cancelling_by_handle_leaves_the_other_command_of_the_key(url: str | None) -> None:
    builder = QueueManagerBuilder().with_lane("a", LaneConfig(0, 2), 0)
    manager = (builder.with_storage(url) if url else builder).build()
    go = asyncio.Event()

    @manager.command("echo")
    async def echo(number: int) -> int:
        await go.wait()
        return number

    async with manager:
        running = await manager.submit("a", echo(1), key="k")
        while running.status != "running":
            await asyncio.sleep(0.01)
        behind = await manager.submit("a", echo(2), key="k", if_in_flight="buffer")
        assert await behind.cancel()
        go.set()
        assert await running == 1
        with pytest.raises(CommandCancelledError):
            await behind
        go.clear()
        first = await manager.submit("a", echo(3), key="k")
        while first.status != "running":
            await asyncio.sleep(0.01)
        second = await manager.submit("a", echo(4), key="k", if_in_flight="buffer")
        assert await first.cancel()
        go.set()
        assert await second == 4
        with pytest.raises(CommandCancelledError):
            await first


async def test_a_priority_that_no_store_can_keep_is_refused() -> None:
    manager = on_a_store().with_lane("a", LaneConfig(0, 2), 0).build()
    command = manager.command("nothing", nothing)
    async with manager:
        with pytest.raises(ValueError, match=r"priority must be below 2\*\*63 on a store"):
            await manager.submit("a", command(), priority=2**63)


@everywhere
async def test_a_command_that_is_requeued_keeps_its_own_time_out(build: Build) -> None:
    manager = build().with_lane("a", LaneConfig(0, 2, timeout=100), 0).build()

    @manager.command("sleep")
    async def sleep() -> None:
        await asyncio.sleep(50)

    async with manager:
        handle = await manager.submit("a", sleep(), timeout=1)
        with pytest.raises(CommandTimeoutError):
            await handle
        assert await manager.dlq.requeue_all() == 1
        await asyncio.sleep(2)
        assert len(await manager.dlq.list()) == 1
