"""Leases of commands that are late, lost or stuck."""

import asyncio
import contextlib
from collections.abc import Sequence

import pytest

from leasedkeyq import MemoryStore
from leasedkeyq.errors import StoreError
from leasedkeyq.lanes import CommandTimeoutError, LaneConfig
from leasedkeyq.model.requests import Ack, Answer, Change, StoredItem
from tests.lanes.support import clock
from tests.lanes.trouble import Trouble, on, soon


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
        store.takes.clear()  # the cancellation is quicker than the acknowledgement
        assert await handle.cancel()
        assert handle.status == "cancelled"
        await asyncio.sleep(10)
        assert handle.status == "cancelled"


async def test_a_look_that_takes_long_does_not_undo_the_end_of_a_command() -> None:
    class SlowToAnswer(MemoryStore):
        async def do_look(self, queue: str, keys: Sequence[str]) -> list[tuple[StoredItem, ...]]:
            found = await super().do_look(queue, keys)
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


async def test_a_lease_whose_settlement_is_answered_late_is_not_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The store has acknowledged the command, and refuses to renew its lease before it says so."""

    class Late(MemoryStore):
        async def do_settle(self, requests: Sequence[Change]) -> list[Answer]:
            answers = await super().do_settle(requests)
            if any(isinstance(one, Ack) and one.queue == "x" for one in requests):
                await asyncio.sleep(8)
            return answers

    manager = on(Late(clock=clock)).with_lane("x", LaneConfig(0, 2, lease_time=9), 0).build()

    @manager.command("quick")
    async def quick() -> str:
        return "done"

    async with manager:
        assert await (await manager.submit("x", quick())) == "done"
    assert "was lost" not in caplog.text
