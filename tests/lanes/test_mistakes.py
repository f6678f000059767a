"""What a manager refuses, and what it cannot write down."""

import asyncio
from typing import Any

import pytest

from leasedkeyq.errors import WrongEventLoopError
from leasedkeyq.lanes import (
    CommandPayloadError,
    LaneConfig,
    LaneConfigError,
    QueueManager,
    QueueManagerBuilder,
    UnknownLaneError,
    UnregisteredCommandError,
)
from tests.lanes.diary import Diary
from tests.lanes.support import Build, Work, everywhere, in_memory, nothing, on_a_store

anything: Any = 17


async def test_wrong_submissions() -> None:
    manager = in_memory().with_lane("x", LaneConfig(0, 1), 0).build()
    diary = Diary(manager)
    note: Any = diary.note
    async with manager:
        with pytest.raises(UnknownLaneError, match="no lane 'y'; the lanes are: x"):
            await manager.submit("y", diary.note("a"))
        with pytest.raises(TypeError, match="call it with its arguments"):
            await manager.submit("x", note)
        with pytest.raises(TypeError, match="a command has"):
            await manager.submit("x", anything)
        with pytest.raises(ValueError, match="timeout must be greater than 0"):
            await manager.submit("x", diary.note("a"), timeout=0)
        with pytest.raises(ValueError, match="if_present"):
            await manager.submit("x", diary.note("a"), if_present=anything)
        with pytest.raises(TypeError, match="key must be a str"):
            await manager.submit("x", diary.note("a"), key=anything)
        with pytest.raises(CommandPayloadError, match="Expected `str`, got `int`"):
            note(3)
        with pytest.raises(CommandPayloadError, match="missing required field `name`"):
            note()
        with pytest.raises(CommandPayloadError, match="given twice"):
            note("a", name="b")
        with pytest.raises(CommandPayloadError, match="at most 2"):
            note("a", 1, 2)
        with pytest.raises(CommandPayloadError, match="unknown field `more`"):
            note("a", more=1)
    assert diary.lines == []


async def test_a_store_takes_registered_commands_that_can_be_written_down() -> None:
    manager = on_a_store().with_lane("x", LaneConfig(0, 1), 0).build()

    @manager.command("opaque")
    async def opaque(thing: Any) -> Any:
        return thing

    async with manager:
        with pytest.raises(UnregisteredCommandError, match=r'@manager.command\("work"\)'):
            await manager.submit("x", Work(nothing))
        with pytest.raises(CommandPayloadError, match="cannot be written down"):
            await manager.submit("x", opaque(object()))
        assert (await manager.stats()).total_pending == 0


async def test_a_result_that_cannot_be_written_down_is_still_a_result() -> None:
    manager = on_a_store().with_lane("x", LaneConfig(0, 1), 0).build()

    @manager.command("thing")
    async def thing() -> Any:
        return object()

    async with manager:
        handle = await manager.submit("x", thing())
        assert type(await handle) is object


async def test_a_type_that_this_worker_does_not_know_stays() -> None:
    builder = on_a_store().with_lane("x", LaneConfig(0, 1), 0)
    knows = builder.build()
    diary = Diary(knows)
    store = builder.storage
    assert store is not None
    other = QueueManagerBuilder().with_lane("x", LaneConfig(0, 1), 0).with_storage(store).build()
    known: list[int] = []

    @other.command("other")
    async def mine(number: int) -> None:
        known.append(number)

    await knows.submit("x", diary.note("a"))
    await other.submit("x", mine(1))
    await other.start()
    await asyncio.sleep(5)
    assert known == [1]
    assert diary.names == []
    assert (await other.stats()).total_pending == 1
    async with knows:
        await knows.drain()
    assert diary.names == ["a"]
    await other.close()


def test_wrong_lanes() -> None:
    builder = QueueManagerBuilder()
    with pytest.raises(LaneConfigError, match="at least one lane"):
        builder.build()
    builder.with_lane("x", LaneConfig(2, 2), 0)
    with pytest.raises(LaneConfigError, match="two lanes of the name 'x'"):
        builder.with_lane("x", LaneConfig(), 1)
    with pytest.raises(LaneConfigError, match="minimum cannot be above"):
        LaneConfig(3, 2)
    with pytest.raises(LaneConfigError, match="more than the capacity of 1"):
        builder.with_capacity(1).build()
    with pytest.raises(LaneConfigError, match="lane 'y' has no minimum"):
        builder.with_capacity(2).with_lane("y", LaneConfig(0, 1), 2).build()
    with pytest.raises(ValueError, match="timeout must be greater than 0"):
        LaneConfig(timeout=0)
    with pytest.raises(TypeError, match="retry_policy"):
        LaneConfig(retry_policy=anything)
    with pytest.raises(LaneConfigError, match="heartbeat"):
        LaneConfig(lease_time=3, heartbeat=4)


def test_wrong_commands() -> None:
    manager = QueueManagerBuilder().with_default_lanes().build()

    nonsense: Any = 5

    async def many(*things: int) -> None:
        raise AssertionError

    with pytest.raises(TypeError, match=r"'a': int is neither a function nor a class"):
        manager.command("a", nonsense)
    with pytest.raises(TypeError, match="name the parameters"):
        manager.command("a", many)
    manager.command("a", nothing)
    with pytest.raises(LaneConfigError, match="registered already"):
        manager.command("a", nothing)
    with pytest.raises(TypeError, match="a command type is a name"):
        manager.command("", nothing)


def test_a_manager_belongs_to_one_event_loop() -> None:
    manager = QueueManagerBuilder().with_default_lanes().build()
    asyncio.run(_submit_nothing(manager))
    with pytest.raises(WrongEventLoopError, match="run_coroutine_threadsafe"):
        asyncio.run(_submit_nothing(manager))


async def _submit_nothing(manager: QueueManager) -> None:
    handle = await manager.submit("query", Work(nothing))
    assert handle.status == "pending"


@everywhere
async def test_a_manager_that_was_started_is_not_rebuilt(build: Build) -> None:
    """Its tasks would go on with lanes that nobody closes."""
    builder = build().with_lane("x", LaneConfig(0, 1), 0)
    manager = builder.build()
    await builder.rebuild(manager)
    async with manager:
        with pytest.raises(LaneConfigError, match="has been started"):
            await builder.rebuild(manager)
