"""Chains and gathers on every store, in real time."""

import asyncio
from functools import partial
from pathlib import Path

import pytest

from leasedkeyq.lanes import CommandCancelledError, QueueManager
from tests.lanes.workflow import workflow_worker
from tests.servers.urls import KINDS, empty_store

PATIENCE = 60.0


@pytest.mark.parametrize("kind", ["memory", "file", *KINDS])
def test_chains_and_gathers_work_on_every_store(kind: str, tmp_path: Path) -> None:
    async def use(url: str | None) -> None:
        diary = tmp_path / "diary"
        submitter, worker = (workflow_worker.build(url) for _ in range(2))
        if url is None:
            worker = submitter
        commands = workflow_worker.register(submitter, diary)
        if worker is not submitter:
            workflow_worker.register(worker, diary)
        chains = [
            await submitter.chain(
                commands.first(n), commands.middle, commands.last, lane=["a", "b", "a"]
            )
            for n in range(5)
        ]
        members = [commands.member(n) for n in range(20)]
        then = partial(commands.report, name="g")
        told = await submitter.gather(members, then=then, lane="a", then_lane="b")
        listed = await submitter.gather(members[:3], lane="b")
        late = await submitter.chain(commands.first(9), commands.middle, lane="a", delay=1000)
        gone = await submitter.gather([commands.member(1)], lane="a", then=then)
        assert await gone.cancel()
        await worker.start()
        async with asyncio.timeout(PATIENCE):
            assert [await chain for chain in chains] == [2 * n + 1 for n in range(5)]
            good = [n * n for n in range(20) if n % 10 != 7]
            assert await told == {"sum": sum(good), "states": "cccccccfcccccccccfcc"}
            assert [one.result for one in await listed] == [0, 1, 4]
            assert await late.cancel()
            with pytest.raises(CommandCancelledError):
                await late
            await submitter.drain()
            await left_alone(submitter)
        await worker.close()
        await submitter.close()

    if kind == "memory":
        asyncio.run(use(None))
    else:
        with empty_store(kind, tmp_path) as url:
            asyncio.run(use(url))


async def left_alone(manager: QueueManager) -> None:
    """Wait until nothing of gathers is left in the store."""
    store = manager.queue().store
    while store is not None:
        counts = await store.count()
        if not any("gather" in name for name in counts):
            return
        await asyncio.sleep(0.05)
