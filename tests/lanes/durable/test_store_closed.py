"""A store that is closed while a manager still stands on it."""

import asyncio
import logging

import pytest

from leasedkeyq import MemoryStore
from leasedkeyq.lanes import LaneConfig, QueueManager, QueueManagerBuilder


async def at_work(store: MemoryStore) -> tuple[QueueManager, list[int]]:
    """A manager that has started, and the numbers that its command has seen."""
    manager = QueueManagerBuilder().with_storage(store).with_lane("a", LaneConfig(1, 2), 0).build()
    seen: list[int] = []

    @manager.command("note")
    async def note(number: int) -> None:
        seen.append(number)

    await manager.start()
    await manager.submit("a", note(1))
    return manager, seen


async def test_nothing_is_said_when_the_manager_was_shut_down_before(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "leasedkeyq")
    store = MemoryStore()
    manager, seen = await at_work(store)
    await manager.shutdown()
    await manager.drain()
    await store.close()
    await asyncio.sleep(10)
    assert seen == [1]
    assert [record.getMessage() for record in caplog.records] == []


async def test_a_store_that_is_closed_under_a_manager_at_work_is_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryStore()
    manager, _ = await at_work(store)
    await manager.drain()
    await store.close()
    await asyncio.sleep(10)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("ERROR", "the store was closed; no more commands are started")
    ]
