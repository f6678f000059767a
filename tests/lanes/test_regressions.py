"""What once went wrong with lanes."""

import asyncio
import contextlib
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from leasedkeyq import MemoryStore
from leasedkeyq.errors import LimitExceededError, StoreClosedError
from leasedkeyq.lanes import (
    CommandCancelledError,
    CommandTimeoutError,
    LaneConfig,
    QueueManagerBuilder,
    RateLimitConfig,
)
from leasedkeyq.lanes.durable.engine import StoreEngine
from tests.lanes.support import Build, Work, clock, everywhere, in_memory, nothing, now, on_a_store
from tests.lanes.trouble import on

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
        behind = await manager.submit("a", echo(2), key="k", if_present="update")
        assert await behind.cancel()
        go.set()
        assert await running == 1
        with pytest.raises(CommandCancelledError):
            await behind
        go.clear()
        first = await manager.submit("a", echo(3), key="k")
        while first.status != "running":
            await asyncio.sleep(0.01)
        second = await manager.submit("a", echo(4), key="k", if_present="update")
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
