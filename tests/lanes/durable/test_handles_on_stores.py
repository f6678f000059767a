"""Handles by id on stores of several processes: a worker elsewhere, and after restarts."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from leasedkeyq.lanes import CommandCancelledError, QueueManager
from tests.lanes.real_time import worker as lane_worker
from tests.lanes.real_time.scenarios import PATIENCE, Worker
from tests.lanes.real_time.worker import LANE
from tests.servers.urls import KINDS, empty_store

OPTIONS: dict[str, Any] = {"min_concurrency": 0, "max_concurrency": 4, "partitions": 2}


def web(url: str) -> tuple[QueueManager, Any]:
    """A process that submits and looks, and runs nothing."""
    manager = lane_worker.build(url, dict(OPTIONS)).build()
    return manager, lane_worker.register(manager)


@pytest.mark.parametrize("kind", KINDS)
def test_an_id_finds_its_command_from_anywhere(kind: str, tmp_path: Path) -> None:
    async def submit(url: str) -> list[str]:
        manager, work = web(url)
        done = await manager.submit(LANE, work(7), key="a/b ü")
        endless = await manager.submit(LANE, work(8, 600.0))
        assert await manager.handle(done.id).refresh() == "pending"
        await manager.close()
        return [done.id, endless.id]

    async def look(url: str, done: str, endless: str) -> None:
        manager, _ = web(url)
        assert await manager.handle(done).result(timeout=PATIENCE) == 7
        found = manager.handle(endless)
        async with asyncio.timeout(PATIENCE):
            while await found.refresh() != "running":
                await asyncio.sleep(0.02)
        with pytest.raises(TimeoutError, match="'work'"):
            await found.result(timeout=0)
        assert await found.cancel()
        with pytest.raises(CommandCancelledError):
            await found.result(timeout=PATIENCE)
        await manager.close()

    async def look_later(url: str, done: str, endless: str) -> None:
        manager, _ = web(url)
        assert await manager.handle(done).result(timeout=0) == 7
        assert await manager.handle(endless).refresh() == "cancelled"
        await manager.close()

    with empty_store(kind, tmp_path) as url:
        ids = asyncio.run(submit(url))
        with Worker(url, dict(OPTIONS)):
            asyncio.run(look(url, *ids))
        asyncio.run(look_later(url, *ids))
