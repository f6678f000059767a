"""Idle workers whose claims stand on the server: what is put then starts at once."""

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from leasedkeyq.engines.redis.parked_claims import ParkedClaimer
from leasedkeyq.engines.redis.subscriber import Subscribers
from leasedkeyq.lanes import LaneConfig, QueueManager, QueueManagerBuilder
from leasedkeyq.lanes.durable import engine as on_store
from leasedkeyq.lanes.durable.engine import StoreEngine
from leasedkeyq.model.requests import Claim, Purge
from tests.engines.redis.support import opened, until
from tests.servers.valkey import Server, makes

PATIENCE = 20.0


@pytest.fixture(scope="module", params=makes())
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with Server(make=request.param) as running:
        yield running


class Lanes:
    """A worker of two lanes, and what it has run."""

    def __init__(self, server: Server, prefix: str, slots: int, **options: Any) -> None:
        self.store = opened(server, prefix, **options)
        self.ran: list[int] = []
        self.most = 0
        running = 0
        built = QueueManagerBuilder().with_storage(self.store)
        for lane in ("jobs", "others"):
            built = built.with_lane(lane, LaneConfig(0, slots), 0)
        self.manager: QueueManager = built.build()

        async def job(number: int, seconds: float) -> None:
            nonlocal running
            running += 1
            self.most = max(self.most, running)
            self.ran.append(number)
            if seconds:
                await asyncio.sleep(seconds)
            running -= 1

        self.job = self.manager.command("job", job)
        engine = self.manager._queue._engine
        assert isinstance(engine, StoreEngine)
        self.engine = engine

    async def close(self) -> None:
        await self.manager.close()
        await self.store.close()


def parked(server: Server, prefix: str) -> list[bytes]:
    """The claims that are left by workers, whose names have dots."""
    client = server.client()
    names: list[bytes] = client.keys(f"{prefix}:*.*:s")
    return [name for name in names if (client.get(name) or b"").startswith(b"\0")]


def test_lanes_never_run_more_than_they_may(server: Server, prefix: str) -> None:
    """Puts come at any moment: alone, in twos, while a claim is under way."""

    async def main() -> None:
        chance = random.Random(5)
        submitter = Lanes(server, prefix, 1)
        workers = [Lanes(server, prefix, 1, poll=0.05) for _ in range(2)]
        for worker in workers:
            await worker.manager.start()
        many = 400
        for number in range(many):
            lane = chance.choice(("jobs", "others"))
            seconds = chance.choice((0.0, 0.0, 0.002))
            await submitter.manager.submit(lane, submitter.job(number, seconds))
            await asyncio.sleep(chance.choice((0.0, 0.0, 0.001, 0.004)))
        await until(lambda: sum(len(worker.ran) for worker in workers) >= many)
        await asyncio.sleep(0.05)
        ran = Counter(number for worker in workers for number in worker.ran)
        assert ran == Counter(range(many))
        for worker in workers:
            assert worker.most <= 2, "one in each lane"
        for each in (*workers, submitter):
            await each.close()

    asyncio.run(main())


def test_an_idle_worker_starts_what_comes_without_asking(server: Server, prefix: str) -> None:
    async def main() -> None:
        submitter = Lanes(server, prefix, 1)
        worker = Lanes(server, prefix, 1, poll=PATIENCE)
        await worker.manager.start()
        for number in range(5):
            await submitter.manager.submit("jobs", submitter.job(number, 0))
            await until(lambda: len(worker.ran) > number)  # noqa: B023
            await asyncio.sleep(0.02)
        claims: list[Any] = []
        claim = ParkedClaimer.claim

        async def noted(self: ParkedClaimer, *arguments: Any, **options: Any) -> Any:
            claims.append(len(worker.ran))
            return await claim(self, *arguments, **options)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(ParkedClaimer, "claim", noted)
            await submitter.manager.submit("jobs", submitter.job(5, 0))
            await until(lambda: len(worker.ran) > 5)
        assert all(begun == 6 for begun in claims), "it was running before anything was claimed"
        await worker.close()
        await submitter.close()

    asyncio.run(main())


@pytest.mark.parametrize("how", ["paused", "closed"])
def test_what_a_lane_was_given_and_may_not_start(server: Server, prefix: str, how: str) -> None:
    """It is given back at once, and was not tried."""

    async def main() -> None:
        submitter = Lanes(server, prefix, 1)
        worker = Lanes(server, prefix, 1, poll=PATIENCE)
        await worker.manager.start()
        await submitter.manager.submit("jobs", submitter.job(0, 0))
        await until(lambda: worker.ran)
        await asyncio.sleep(0.05)
        assert parked(server, prefix)
        if how == "paused":
            await worker.manager.pause("jobs")
        else:
            await worker.manager.close()
            assert not parked(server, prefix)
        await submitter.manager.submit("jobs", submitter.job(1, 0))
        await asyncio.sleep(0.1)
        assert worker.ran == [0]
        [item] = (await submitter.store.browse("jobs")).items
        assert (item.state, item.attempt) == ("available", 0)
        await worker.close()
        await submitter.close()

    asyncio.run(main())


def test_late_messages_end_no_lease(server: Server, prefix: str) -> None:
    """Of two commands that were found by taking the claim back; the second one runs."""

    async def main() -> None:
        submitter = Lanes(server, prefix, 1)
        worker = Lanes(server, prefix, 1, poll=PATIENCE)
        await worker.manager.start()
        await submitter.manager.submit("jobs", submitter.job(0, 0))
        await until(lambda: worker.ran)
        assert isinstance(worker.store._subscribers, Subscribers)
        [subscriber] = worker.store._subscribers._by_loop.values()
        [(channel, take)] = subscriber._takers.items()
        late: list[bytes] = []
        subscriber._takers[channel] = late.append
        for number, seconds in ((1, 0.0), (2, 0.5)):
            await asyncio.sleep(0.2)  # what was woken has claimed, and waits
            await until(lambda: parked(server, prefix))
            await submitter.manager.submit("jobs", submitter.job(number, seconds))
            await until(lambda: len(late) >= number)  # noqa: B023
            worker.engine.wake()
            await until(lambda: number in worker.ran)  # noqa: B023
        for message in late:
            take(message)
        await asyncio.sleep(0.1)
        assert (await submitter.store.count(["jobs"]))["jobs"].in_flight == 1
        await worker.close()
        await submitter.close()

    asyncio.run(main())


def test_a_worker_without_work_takes_its_claim_back(server: Server, prefix: str) -> None:
    async def main() -> None:
        worker = Lanes(server, prefix, 1, poll=PATIENCE)
        await worker.manager.start()
        await until(lambda: parked(server, prefix))
        await worker.manager.pause("jobs")
        await worker.manager.pause("others")
        await until(lambda: not parked(server, prefix))
        await worker.close()

    asyncio.run(main())


def test_what_belongs_to_a_part_that_others_have_now_is_given_back(
    server: Server, prefix: str
) -> None:
    async def main() -> None:
        submitter = Lanes(server, prefix, 1)
        worker = Lanes(server, prefix, 1, poll=PATIENCE)
        await worker.manager.start()
        await worker.manager.pause("jobs")
        await submitter.manager.submit("jobs", submitter.job(0, 0))
        [[claimed]] = await worker.store.claim([Claim((("jobs", 1),), 1, lease_time=30.0)])
        [share] = [share for share in worker.engine.partitions if share.queue == "jobs"]
        share.owned, share.lane.paused = False, False
        worker.engine._take_given(claimed)
        share.owned, share.lane.paused = True, True
        async with asyncio.timeout(PATIENCE):
            while not (await submitter.store.count(["jobs"]))["jobs"].available:
                await asyncio.sleep(0.005)
        assert not worker.ran
        await worker.close()
        await submitter.close()

    asyncio.run(main())


def test_a_manager_that_closed_without_the_server_is_given_nothing(
    server: Server, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        worker = Lanes(server, prefix, 1, poll=PATIENCE)
        await worker.manager.start()
        await until(lambda: parked(server, prefix))

        async def no_answer(*_: Any, **__: Any) -> Any:
            await asyncio.Event().wait()

        monkeypatch.setattr(on_store, "PATIENCE", 0.1)
        monkeypatch.setattr(ParkedClaimer, "claim", no_answer)
        worker.engine.wake()
        await asyncio.sleep(0.01)
        await worker.manager.close()
        client = server.client()
        await until(lambda: not client.pubsub_channels(f"{prefix}:*.*:s"))
        await worker.store.close()

    asyncio.run(main())


def test_a_store_that_is_closed_under_its_manager(server: Server, prefix: str) -> None:
    """What comes in that moment has been run, or waits for another worker."""

    async def main() -> None:
        submitter = Lanes(server, prefix, 1)
        for turns in range(12):
            worker = Lanes(server, prefix, 1, poll=PATIENCE)
            await worker.manager.start()
            await until(lambda: parked(server, prefix))
            closing = asyncio.create_task(worker.store.close())
            for _ in range(turns):
                await asyncio.sleep(0)
            await submitter.manager.submit("jobs", submitter.job(turns, 0))
            await closing
            counts = (await submitter.store.count(["jobs"]))["jobs"]
            assert counts.in_flight == 0
            assert counts.available + len(worker.ran) == 1
            await submitter.store.settle([Purge("jobs")])
            await worker.manager.close()
        await submitter.close()

    asyncio.run(main())
