"""Many claimers, clients that are paused, and clients whose clocks are wrong."""

import asyncio
import os
import signal
import time
from functools import partial

import pytest

from leasedkeyq import connect
from leasedkeyq.stores import Ack, Claim, Put, Refusal
from leasedkeyq.testing import Place, processes
from leasedkeyq.testing.processes import Worker
from tests.engines.postgres.crowd import work_together
from tests.servers.postgres import schemas


def test_64_claimers_on_one_queue() -> None:
    place = Place()
    crowd = work_together(
        schemas().url, schemas().borrow(place), stores=4, claimers=64, keys=1000, rounds=10
    )
    asyncio.run(crowd)
    place.close()


def test_a_client_that_is_paused_past_its_lease() -> None:
    """It wakes up, and what it does with its lease is refused; its successor's run is untouched."""
    place = Place()
    schema = schemas().borrow(place)

    async def run() -> None:
        store = connect(schemas().url, schema=schema)
        await store.put([Put("q", (("a", b"1"),))])
        worker = Worker(partial(connect, schemas().url, schema=schema))
        [stale] = await worker.ask(processes.claim, Claim((("q", 1),), 1, None, 0.5))
        process = worker._process.pid
        assert process is not None
        os.kill(process, signal.SIGSTOP)
        try:
            _, _, lease = await store.queue("q").get(timeout=60, lease_timeout=600)
        finally:
            os.kill(process, signal.SIGCONT)
        [refusal] = await worker.ask(processes.settle, [Ack("q", "a", stale.token)])
        assert isinstance(refusal, Refusal)
        assert (lease.attempt, lease.fence > stale.fence) == (2, True)
        assert await store.settle([Ack("q", "a", lease.token)]) == [None]
        worker.kill()
        await store.close()

    asyncio.run(run())
    place.close()


@pytest.mark.parametrize("hours", [-5, 5])
def test_a_client_whose_clock_is_wrong(hours: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's clock decides what is due."""
    place = Place()
    right = time.time
    monkeypatch.setattr(time, "time", lambda: right() + 3600 * hours)

    async def run() -> None:
        store = connect(schemas().url, schema=schemas().borrow(place))
        queue = store.queue("q")
        await queue.put("later", 1, delay=600)
        await queue.put("soon", 2, delay=0.2)
        key, _, lease = await queue.get(timeout=60, lease_timeout=600)
        assert key == "soon"
        assert lease.expires_at is not None
        assert abs(lease.expires_at - right() - 600) < 60
        [seconds] = await store.sweep(["q"])
        assert seconds is not None
        assert 500 < seconds <= 600
        await queue.ack(lease)
        assert (await store.count(["q"]))["q"].scheduled == 1
        await store.close()

    asyncio.run(run())
    place.close()
