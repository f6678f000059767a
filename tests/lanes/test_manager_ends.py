"""Draining and closing a manager, whatever its store and its commands do."""

import asyncio
import contextlib

import pytest

from leasedkeyq import MemoryStore
from leasedkeyq.errors import StoreError
from leasedkeyq.lanes import LaneConfig, LaneError, ManagerClosedError
from tests.lanes.support import Build, Work, clock, everywhere, in_memory, nothing, now
from tests.lanes.trouble import Trouble, on

# The end of a manager


async def test_stopping_a_command_with_another_behind_it_tells_both() -> None:
    builder = in_memory().with_lane("x", LaneConfig(0, 1), 0).with_drain_timeout(1)
    manager = builder.build()

    async def slow() -> None:
        await asyncio.sleep(100)

    async with manager:
        first = await manager.submit("x", Work(slow), key="k")
        await asyncio.sleep(0)
        second = await manager.submit("x", Work(slow), key="k", if_present="update")
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
