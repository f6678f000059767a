"""Schedules on a Redis cluster, which cannot edit two queues at once."""

import asyncio
import secrets

from leasedkeyq import connect
from leasedkeyq.lanes import LaneConfig, QueueManagerBuilder, current_command
from tests.servers.valkey import shared_cluster


def test_ticks_on_a_cluster() -> None:
    async def main() -> list[str]:
        store = connect(shared_cluster().url, prefix=secrets.token_hex(4))
        assert not store.capabilities.joint_edits
        manager = QueueManagerBuilder().with_lane("work", LaneConfig(0, 4), 0).with_storage(store)
        keys: list[str] = []
        enough = asyncio.Event()

        async def note() -> None:
            keys.append(current_command().key)
            if len(keys) == 3:
                enough.set()

        built = manager.build()
        command = built.command("note", note, lane="work")
        schedule = built.schedule("often", command(), every=0.2, missed="all")
        async with asyncio.timeout(60), built:
            await enough.wait()
            await schedule.pause()
            assert (await schedule.refresh()).runs >= 3
        await store.close()
        return keys

    keys = asyncio.run(main())
    assert len(set(keys)) == len(keys) >= 3
