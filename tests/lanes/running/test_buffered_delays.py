"""A command that was submitted with a delay while another of its key ran."""

import asyncio

import pytest

from leasedkeyq import MemoryStore
from leasedkeyq.lanes import LaneConfig, QueueManagerBuilder
from tests.lanes.support import clock


@pytest.mark.parametrize("capacity", [None, 1])
@pytest.mark.parametrize("on_store", [False, True])
async def test_it_starts_when_its_delay_is_over(on_store: bool, capacity: int | None) -> None:
    built = QueueManagerBuilder(clock=clock)
    if on_store:
        built = built.with_storage(MemoryStore(clock=clock))
    if capacity is not None:
        built = built.with_capacity(capacity)
    manager = built.with_lane("jobs", LaneConfig(0, 1), 0).build()
    loop = asyncio.get_running_loop()
    ran: list[float] = []

    @manager.command("job")
    async def job() -> None:
        ran.append(loop.time() - began)
        await asyncio.sleep(1.0)

    async with manager:
        began = loop.time()
        await manager.submit("jobs", job(), key="k")
        await asyncio.sleep(0.5)
        await manager.submit("jobs", job(), key="k", if_present="update", delay=5.0)
        await manager.drain(60)
    assert ran == [pytest.approx(0.0, abs=0.1), pytest.approx(5.5, abs=0.1)]
