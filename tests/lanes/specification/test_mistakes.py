"""The tables of the specification: what mistakes do."""

import asyncio
import contextlib
import logging
from typing import Any

import pytest

from leasedkeyq import MemoryStore
from leasedkeyq.errors import LimitExceededError
from leasedkeyq.lanes import (
    CommandLostError,
    CommandPayloadError,
    CommandTimeoutError,
    LaneConfig,
    QueueManagerBuilder,
    RemoteCommandError,
)
from leasedkeyq.model.requests import Purge, Put
from tests.lanes.specification.support import MyCommand, failing, one_lane, sleeping
from tests.lanes.support import Build, clock, everywhere, in_memory, on_a_store


async def test_a_command_larger_than_the_store_takes() -> None:
    manager = one_lane(on_a_store)
    with pytest.raises(LimitExceededError, match="the limit value_size"):
        await manager.submit("x", MyCommand("a" * 2_000_000))
    assert (await manager.stats()).total_pending == 0


def test_keyword_parameters_that_cannot_be_named() -> None:
    async def anything(**things: int) -> None:
        raise AssertionError

    with pytest.raises(TypeError, match="name the parameters"):
        one_lane(in_memory).command("anything", anything)


@everywhere
async def test_arguments_that_do_not_fit(build: Build) -> None:
    work: Any = one_lane(build).command("sleeping", sleeping)
    with pytest.raises(CommandPayloadError, match="do not fit"):
        work("long")


async def test_a_command_on_a_store_that_swallows_its_cancellation(
    caplog: pytest.LogCaptureFixture,
) -> None:
    manager = one_lane(on_a_store, LaneConfig(0, 1, timeout=1, cancel_grace=2))

    @manager.command("stubborn")
    async def stubborn() -> None:
        for _ in range(2):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(100)

    async with manager:
        handle = await manager.submit("x", stubborn())
        with caplog.at_level(logging.ERROR), pytest.raises(CommandTimeoutError, match="not stop"):
            await handle
        assert "did not stop within 2" in caplog.text
        assert await manager.dlq.len() == 1
        assert await (await manager.submit("x", MyCommand("a"))) == {"processed": "a"}


async def test_a_result_that_cannot_be_written_down_is_an_error_elsewhere() -> None:
    store = MemoryStore(clock=clock)
    here = one_lane(lambda: QueueManagerBuilder(clock=clock).with_storage(store))
    there = one_lane(lambda: QueueManagerBuilder(clock=clock).with_storage(store))

    async def thing() -> Any:
        return object()

    here.command("thing", thing)
    submitted = there.command("thing", thing)
    handle = await there.submit("x", submitted())
    async with here:
        with pytest.raises(RemoteCommandError, match="could not be written down"):
            await handle
    await there.close()


async def test_a_stored_command_that_cannot_be_read_is_a_dead_letter() -> None:
    store = MemoryStore(clock=clock)
    manager = one_lane(lambda: QueueManagerBuilder(clock=clock).with_storage(store))
    envelope = b'{"payload":{"data":3},"at":1.0}'
    for key, value in (("a", b"\xff"), ("b", envelope), ("c", b'{"payload":{},"at":"\xff"}')):
        await store.put([Put("x", ((key, value),), kind="my_command")])
    async with manager:
        await manager.drain(10)
        letters = {letter.key: letter.error for letter in await manager.dlq.list()}
    assert "this is no command" in letters["a"]
    assert "do not fit" in letters["b"]
    assert "this is no command" in letters["c"]


@everywhere
async def test_a_retry_policy_that_raises(build: Build, caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def delay(self, attempt: int, error: BaseException) -> float | None:
            raise ZeroDivisionError

    manager = one_lane(build, LaneConfig(0, 1, retry_policy=Broken()))
    fail = manager.command("failing", failing)
    async with manager:
        with pytest.raises(ValueError, match="on purpose"):
            await (await manager.submit("x", fail()))
        assert await manager.dlq.len() == 1
    assert "retry policy failed" in caplog.text


async def test_a_command_that_was_purged_is_lost() -> None:
    store = MemoryStore(clock=clock)
    manager = one_lane(lambda: QueueManagerBuilder(clock=clock).with_storage(store))
    handle = await manager.submit("x", MyCommand("a"))
    waiting = asyncio.create_task(handle.wait())
    await asyncio.sleep(1)
    await store.settle([Purge("x")])
    async with asyncio.timeout(10):
        with pytest.raises(CommandLostError, match="purged"):
            await waiting
    assert handle.status == "lost"
    await manager.close()


@pytest.mark.parametrize("keep", [0, 5])
async def test_results_are_kept_as_long_as_the_lane_says(keep: float) -> None:
    store = MemoryStore(clock=clock)

    def build() -> QueueManagerBuilder:
        return QueueManagerBuilder(clock=clock).with_storage(store)

    here = one_lane(build, LaneConfig(0, 1, keep_results=keep))
    there = one_lane(build, LaneConfig(0, 1, keep_results=keep))
    async with here:
        handle = await there.submit("x", MyCommand("a"))
        await here.drain()
        assert (await store.count(["x"]))["x"].done == (1 if keep else 0)
        if keep:
            assert await handle == {"processed": "a"}
        else:
            with pytest.raises(CommandLostError, match="kept too short"):
                await handle
        mine = await here.submit("x", MyCommand("b"))
        assert await mine == {"processed": "b"}
    await there.close()
