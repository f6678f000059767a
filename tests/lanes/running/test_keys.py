"""Commands of one key: what waits, what runs, and what is cancelled."""

import asyncio
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest

from leasedkeyq import MemoryStore, SqliteStore
from leasedkeyq.lanes import (
    CommandCancelledError,
    LaneConfig,
    QueueManagerBuilder,
    RetryPolicy,
)
from leasedkeyq.lanes.durable.envelope import ending
from leasedkeyq.model.requests import Ack, Cancel, Claim
from leasedkeyq.telemetry.metrics import LaneMetrics
from tests.lanes.support import Build, Work, clock, everywhere, in_memory, nothing, now
from tests.lanes.trouble import Trouble, on, soon
from tests.servers.urls import KINDS, empty_store


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
        second = await manager.submit("x", note("second", 1), key="k", if_present="update")
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
        second = await manager.submit("x", note(2, 600), key="k", if_present="update")
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
        second = await manager.submit("x", note("second"), key="k", if_present="update")
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
        handles.append(await manager.submit("x", note("second"), key="k", if_present="update"))
        assert await manager.cancel("x", "k")
        for handle in handles:
            with pytest.raises(CommandCancelledError):
                await handle
        await manager.drain(10)
    assert ran == ["first"]


async def test_kept_results_say_how_their_commands_ended() -> None:
    store = MemoryStore(clock=clock)
    config = LaneConfig(0, 1, keep_results=100)
    manager = on(store).with_lane("x", config, 0).build()

    @manager.command("sleep")
    async def sleep(seconds: float) -> None:
        await asyncio.sleep(seconds)

    async with manager:
        await (await manager.submit("x", sleep(1)))
        running = await manager.submit("x", sleep(60))
        await soon(lambda: running.status == "running")
        waiting = await manager.submit("x", sleep(60))
        for handle in (waiting, running):
            assert await handle.cancel()
            with pytest.raises(CommandCancelledError):
                await handle
    [counts] = (await store.count(["x"])).values()
    assert (counts.done, counts.done_failed, counts.done_cancelled) == (3, 0, 2)


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
        await manager.submit("x", note(), key="k", if_present="update", delay=0)
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
        await manager.submit("x", Work(fail), key="k", if_present="update")
        await manager.drain()
        assert [letter.priority for letter in await manager.dlq.list()] == [5, 5]


@everywhere
async def test_a_key_that_keeps_failing_is_given_up_whatever_is_submitted_meanwhile(
    build: Build,
) -> None:
    config = LaneConfig(0, 1, retry_policy=RetryPolicy.exponential(3))
    manager = build().with_lane("x", config, 0).build()
    runs: list[tuple[float, int]] = []

    @manager.command("note")
    async def note(number: int) -> None:
        runs.append((now(), number))
        await asyncio.sleep(0.25)
        raise ValueError(f"no {number}")

    async with manager:
        began = now()
        while now() < began + 8.9:
            await manager.submit("x", note(round(10 * now())), key="k", if_present="update")
            await asyncio.sleep(0.1)
        letters = await manager.dlq.list()
        await manager.drain()
    # It runs at once, then after backoffs of 1, 2 and 4 s; then it is given up, and what was
    # submitted meanwhile begins anew.
    starts = [when - began for when, _ in runs[:5]]
    assert starts == pytest.approx([0.0, 1.25, 3.5, 7.75, 8.0], abs=0.11)
    assert [(letter.attempts, letter.key) for letter in letters] == [(4, "k")]


@pytest.mark.parametrize("kind", ["memory", *KINDS])
def test_a_failing_key_backs_off_under_submits_that_never_end(kind: str, tmp_path: Path) -> None:
    """By real clocks, on every engine: a new command for the key every 0.1 s."""
    starts: list[float] = []

    async def main(builder: QueueManagerBuilder) -> None:
        config = LaneConfig(0, 1, retry_policy=RetryPolicy.fixed(3, 0.5))
        manager = builder.with_lane("x", config, 0).build()

        @manager.command("note")
        async def note() -> None:
            starts.append(now())
            await asyncio.sleep(0.15)
            raise ValueError("no")

        async with manager:
            end = now() + 20
            while now() < end and not await manager.dlq.list():
                await manager.submit("x", note(), key="k", if_present="update")
                await asyncio.sleep(0.1)
            [letter] = await manager.dlq.list()
            assert (letter.attempts, letter.key) == (4, "k")
            await manager.cancel("x", "k")

    with ExitStack() as stack:
        builder = QueueManagerBuilder()
        if kind != "memory":
            builder = builder.with_storage(stack.enter_context(empty_store(kind, tmp_path)))
        asyncio.run(main(builder))
    # Four attempts before it was given up; what ran later is the command behind it.
    assert min(after - before for before, after in pairwise(starts[:4])) > 0.6


@pytest.mark.parametrize("told_first", [True, False])
def test_a_command_that_was_replaced_and_is_over_tells_the_result_of_the_other(
    tmp_path: Path, told_first: bool
) -> None:
    """Its worker died, the command behind it took its place, and ended before anybody looked."""

    async def main() -> None:
        store = SqliteStore(tmp_path / "jobs.db")
        manager = QueueManagerBuilder().with_lane("x", LaneConfig(0, 1), 0).with_storage(store)
        submitter = manager.build()

        @submitter.command("note")
        async def note(name: str) -> str:
            return name

        first = await submitter.submit("x", note("first"), key="k")
        await store.claim([Claim((("x", 1),), lease_time=0.05)])
        second = await submitter.submit("x", note("second"), key="k", if_present="update")
        await asyncio.sleep(0.1)
        [[lease]] = await store.claim([Claim((("x", 1),), lease_time=60)])
        await store.settle([Ack("x", "k", lease.token, ending("second", 1000), 60)])
        if told_first:
            assert await asyncio.wait_for(second, 10) == "second"
        assert await asyncio.wait_for(first, 10) == "second"
        assert await asyncio.wait_for(second, 10) == "second"
        assert first.status == second.status == "completed"
        await submitter.close()
        await store.close()

    asyncio.run(main())
