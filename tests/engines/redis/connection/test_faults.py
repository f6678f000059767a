"""The Redis store when the server, the network or a client fails."""

import asyncio
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from leasedkeyq import RedisStore, StoreError, connect
from leasedkeyq.model.requests import (
    Ack,
    Bury,
    Claim,
    Claimed,
    Counts,
    Extend,
    Put,
    Refusal,
    Release,
    Requeue,
)
from leasedkeyq.stores import Store, StoreQueue
from leasedkeyq.testing import processes
from leasedkeyq.testing.shorthand import EVERY_STATE
from tests.engines.redis.claimers import run_claimers
from tests.engines.redis.connection.load import Load
from tests.servers.proxy import Direction, Judge, Proxy, Verdict
from tests.servers.valkey import Server, shared_server, shared_url

PATIENCE = 60.0


# The network


async def do_everything(store: Store) -> list[Any]:
    """Every verb, one call after the other; returns what does not differ between two runs."""
    seen: list[Any] = []
    answers = await store.put([Put("q", tuple((key, b"1") for key in "abcd"), kind="mail")])
    seen.append([len(answer) for answer in answers if isinstance(answer, tuple)])
    claim = Claim((("q", 3), ("other", 1)), 3, None, 60.0)
    [items, none] = await store.claim([claim, Claim((("q", 1),), 1, "a", 60.0)])
    seen.append([_what(item) for item in items])
    assert not none
    a, b, c = items
    seen.append(await store.put([Put("q", (("a", b"2"),), "buffer")]) != [])
    changes: list[Any] = [
        Ack("q", "a", a.token, b"7", 600.0),
        Bury("q", "b", b.token, "bad"),
        Extend("q", "c", c.token, None),
        Release("q", "c", c.token, error="no"),
    ]
    seen.append([type(answer) for answer in await store.settle(changes)])
    seen.append(await store.settle([Requeue("q", b.id), Requeue("q", b.id)]))
    seen.append(len(await store.edit("q", lambda _: [Put("q", (("e", b"1"),), priority=3)])))
    [items] = await store.claim([Claim((("q", 9),), 2, None, 60.0)])
    seen.append([_what(item) for item in items])
    seen.append(await store.count())
    page = await store.browse("q", states=EVERY_STATE)
    seen.append([(item.key, item.state, item.value, item.attempt) for item in page.items])
    return seen


def _what(item: Claimed) -> tuple[str, bytes, int, int, str]:
    return item.key, item.value, item.attempt, item.priority, item.kind


def losing(direction: Direction, number: int, verdict: Verdict) -> Judge:
    """Loses one piece of data."""

    def judge(found: Direction, count: int, _: bytes) -> Verdict:
        return verdict if (found, count) == (direction, number) else "pass"

    return judge


def test_a_connection_may_be_lost_at_any_point(prefix: str) -> None:
    """All calls are answered as if it had not been: nothing happens twice, nothing is missed."""

    async def run(proxy: Proxy, name: str, judge: Judge | None) -> list[Any]:
        url = f"redis://127.0.0.1:{proxy.port}"
        proxy.begin()
        store = connect(url, prefix=f"{prefix}{name}", retry_for=PATIENCE)
        proxy.begin(*[judge] if judge else [])
        try:
            return await do_everything(store)
        finally:
            await store.close()

    with Proxy(shared_server().socket) as proxy:
        expected = asyncio.run(run(proxy, "clean", None))
        points = {way: proxy.count(way) for way in ("request", "reply")}
        assert min(points.values()) >= 12
        way: Direction
        for way in ("request", "reply"):
            for number in range(1, points[way] + 1):
                for verdict in ("cut", "half"):
                    name = f"{way}{number}{verdict}"
                    found = asyncio.run(run(proxy, name, losing(way, number, verdict)))
                    assert found == expected, name


def test_who_waits_is_woken_after_the_connection_was_lost(prefix: str) -> None:
    """Without the help of the poll, also if the server was away for a while."""

    async def main(proxy: Proxy) -> None:
        url = f"redis://127.0.0.1:{proxy.port}"
        store = connect(url, prefix=prefix, poll=1000.0, retry_for=PATIENCE)
        other = connect(shared_url(), prefix=prefix)
        queue: StoreQueue[int] = StoreQueue(store, "q")
        for number in range(4):
            getting = asyncio.create_task(queue.get())
            await asyncio.sleep(0.1)
            proxy.refuse = number % 2 == 1
            proxy.cut_all()
            if number < 2:
                await other.queue("q").put(f"k{number}", number)
                proxy.refuse = False
            else:
                await asyncio.sleep(0.3)
                proxy.refuse = False
                await other.queue("q").put(f"k{number}", number)
            key, _, lease = await asyncio.wait_for(getting, PATIENCE)
            assert key == f"k{number}"
            await queue.ack(lease)
        await queue.close()
        await store.close()
        await other.close()

    with Proxy(shared_server().socket) as proxy:
        asyncio.run(main(proxy))


def test_a_server_that_stays_away_is_an_error(prefix: str) -> None:
    async def main(server: Server) -> None:
        store = connect(server.url, prefix=prefix, retry_for=0.3)
        await store.put([Put("q", (("a", b"1"),))])
        server.kill()
        with pytest.raises(StoreError, match=r"could not be reached for 0\.3 s"):
            await store.put([Put("q", (("b", b"1"),))])
        server.start()
        assert await store.count() == {"q": Counts(available=1)}
        await store.close()

    with Server("--appendonly", "yes", "--appendfsync", "always") as server:
        asyncio.run(main(server))


def test_closing_does_not_wait_for_a_server_that_stays_away(prefix: str) -> None:
    async def main(server: Server) -> None:
        store = connect(server.url, prefix=prefix, retry_for=1000.0)
        server.kill()
        call = asyncio.create_task(store.count())
        await asyncio.sleep(0.1)
        await asyncio.wait_for(store.close(), PATIENCE)
        with pytest.raises(StoreError):
            await call

    with Server() as server:
        asyncio.run(main(server))


# The server


def test_a_killed_server_loses_nothing_that_was_acknowledged(prefix: str) -> None:
    """With an append-only file that is always synced; calls under way are answered afterwards."""

    async def main(server: Server) -> None:
        stores = [connect(server.url, prefix=prefix, retry_for=PATIENCE) for _ in range(3)]
        assert {store.capabilities.durability for store in stores} == {"power"}
        load = Load(stores)
        for _ in range(4):
            await load.progress(50)
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
        await load.finish()
        for store in stores:
            await store.close()

    with Server("--appendonly", "yes", "--appendfsync", "always") as server:
        asyncio.run(main(server))


# Clients


def skewed(hours: float, url: str, prefix: str, **options: Any) -> Store:
    """Opens a store in a process whose clock is wrong."""
    right = time.time
    time.time = lambda: right() + hours * 3600
    return connect(url, prefix=prefix, **options)


def test_a_paused_client_cannot_finish_the_work_of_its_successor(prefix: str) -> None:
    async def main() -> None:
        opener = partial(connect, shared_url(), prefix=prefix)
        store = opener()
        await store.put([Put("q", (("a", b"1"),))])
        worker = processes.Worker(opener)
        try:
            [stale] = await worker.ask(processes.claim, Claim((("q", 1),), 1, None, 0.5))
            pid = worker._process.pid
            assert pid is not None
            os.kill(pid, signal.SIGSTOP)
            queue: StoreQueue[int] = StoreQueue(store, "q")
            _, _, lease = await queue.get(timeout=PATIENCE)
            assert lease.fence > stale.fence
            os.kill(pid, signal.SIGCONT)
            [answer] = await worker.ask(processes.settle, [Ack("q", "a", stale.token)])
            assert isinstance(answer, Refusal)
            await queue.ack(lease)
            await queue.close()
        finally:
            worker.kill()
        assert await store.count() == {}
        await store.close()

    asyncio.run(main())


def test_the_clocks_of_clients_do_not_matter(prefix: str) -> None:
    """They are hours fast or slow: leases and delays go by the server's."""

    async def main() -> None:
        url = shared_url()
        store = connect(url, prefix=prefix)
        workers = [processes.Worker(partial(skewed, hours, url, prefix)) for hours in (-7, 7)]
        try:
            for number, worker in enumerate(workers):
                key = f"k{number}"
                later = Put("q", ((f"later{number}", b"1"),), delay=600.0)
                await worker.ask(processes.put, [Put("q", ((key, b"1"),)), later])
                [held] = await worker.ask(processes.claim, Claim((("q", 9),), 9, None, 60.0))
                assert held.key == key
                assert held.expires_at is not None
                assert 30 < held.expires_at - held.put_at < 90
                other = workers[1 - number]
                assert await other.ask(processes.claim, Claim((("q", 9),), 9, None, 60.0)) == ()
                assert await store.claim([Claim((("q", 9),), 9)]) == [()]
                [answer] = await worker.ask(processes.settle, [Ack("q", key, held.token)])
                assert answer is None
            short = Claim((("q", 1),), 1, None, 0.3)
            await store.put([Put("q", (("short", b"1"),))])
            [held] = await workers[0].ask(processes.claim, short)
            queue: StoreQueue[int] = StoreQueue(store, "q")
            key, _, lease = await queue.get(timeout=PATIENCE)
            assert (key, lease.attempt) == ("short", 2)
            await queue.close()
        finally:
            for worker in workers:
                worker.kill()
        assert (await store.count())["q"].scheduled == 2
        await store.close()

    asyncio.run(main())


def test_64_claimers_on_one_queue(prefix: str) -> None:
    opener: Callable[..., Store] = partial(connect, shared_url(), prefix=prefix)
    asyncio.run(run_claimers([opener() for _ in range(8)], claimers=64, keys=1000, values=10))


def test_a_store_object_says_when_it_was_carried_over_a_fork(
    prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RedisStore(shared_url(), prefix=prefix)
    monkeypatch.setattr(store._batcher, "_process", -1)

    async def main() -> None:
        with pytest.raises(StoreError, match="fork"):
            await store.count()

    asyncio.run(main())
    store._link.close()
