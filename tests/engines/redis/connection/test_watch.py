"""Hearing of changes that others make: from the event loop itself, and from a thread."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from leasedkeyq.engines.redis.store import RedisStore
from leasedkeyq.model.requests import Put
from tests.servers.proxy import Proxy
from tests.servers.valkey import Server

PATIENCE = 20.0
ONE = Put("q", (("a", b"1"),))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


@pytest.fixture(params=["hiredis", "no hiredis"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "no hiredis":
        monkeypatch.setattr("leasedkeyq.engines.redis.resp.find_spec", lambda _: None)
    return str(request.param)


async def until(true: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not true():
            await asyncio.sleep(0.005)


def listeners(store: RedisStore) -> list[Any]:
    found: list[Any] = store._link.client.client_list(_type="pubsub")
    return found


def channels(store: RedisStore, prefix: str) -> list[bytes]:
    found: list[bytes] = store._link.client.pubsub_channels(f"{prefix}:*")
    return found


async def quiet(woken: asyncio.Event) -> None:
    """Wait until the waking that comes with a new subscription is over."""
    await asyncio.wait_for(woken.wait(), PATIENCE)
    await asyncio.sleep(0.05)
    woken.clear()


def test_who_watches_hears_of_what_others_do(server: Server, prefix: str) -> None:
    async def main() -> None:
        here = RedisStore(server.url, prefix=prefix, poll=PATIENCE)
        there = RedisStore(server.url, prefix=prefix)
        woken, other = asyncio.Event(), asyncio.Event()
        here.watch("q", woken.set)
        here.watch("other", other.set)
        await until(lambda: len(channels(here, prefix)) == 2)
        await quiet(woken)
        other.clear()
        await there.put([ONE])
        await asyncio.wait_for(woken.wait(), PATIENCE)
        assert not other.is_set()
        await there.close()
        await here.close()

    asyncio.run(main())


def test_a_lost_link_is_made_anew(server: Server, prefix: str) -> None:
    async def main() -> None:
        here = RedisStore(server.url, prefix=prefix, poll=PATIENCE)
        there = RedisStore(server.url, prefix=prefix)
        woken = asyncio.Event()
        here.watch("q", woken.set)
        await until(lambda: channels(here, prefix))
        await quiet(woken)
        [before] = listeners(here)
        here._link.client.client_kill_filter(_id=before["id"])
        await asyncio.wait_for(woken.wait(), PATIENCE)  # something may have been missed
        await until(lambda: [each for each in listeners(here) if each["id"] != before["id"]])
        await until(lambda: channels(here, prefix))
        await quiet(woken)
        await there.put([ONE])
        await asyncio.wait_for(woken.wait(), PATIENCE)
        await there.close()
        await here.close()

    asyncio.run(main())


def test_a_link_that_says_nothing_is_made_anew(server: Server, prefix: str) -> None:
    """The replies to all pings get lost on the way, and nobody says so."""

    async def main() -> None:
        with Proxy(server.socket) as proxy:
            url = f"redis://127.0.0.1:{proxy.port}"
            here = RedisStore(url, prefix=prefix, poll=0.05)
            woken = asyncio.Event()
            here.watch("q", woken.set)
            await until(lambda: channels(here, prefix))
            [before] = listeners(here)
            proxy.begin(lambda _, _number, data: "lose" if b"pong" in data.lower() else "pass")
            await until(lambda: [each for each in listeners(here) if each["id"] != before["id"]])
            proxy.begin()
            await here.close()

    asyncio.run(main())


def test_a_queue_that_nobody_watches_any_more_is_left(server: Server, prefix: str) -> None:
    async def main() -> None:
        store = RedisStore(server.url, prefix=prefix, poll=0.05)
        stops = [store.watch(queue, lambda: None) for queue in ("a", "b", "b")]
        await until(lambda: len(channels(store, prefix)) == 2)
        stops[1]()
        stops[0]()
        stops[0]()
        await until(lambda: channels(store, prefix) == [store._engine.channel("b").encode()])
        stops[2]()
        await until(lambda: not channels(store, prefix))
        woken = asyncio.Event()
        store.watch("a", woken.set)
        await until(lambda: channels(store, prefix))
        await asyncio.wait_for(woken.wait(), PATIENCE)
        await store.close()
        assert channels(RedisStore(server.url, prefix=prefix), prefix) == []

    asyncio.run(main())


def test_two_event_loops_hear_each_for_itself(server: Server, prefix: str) -> None:
    store = RedisStore(server.url, prefix=prefix, poll=PATIENCE)
    heard: list[str] = []
    listening = threading.Barrier(3)

    async def listen(name: str) -> None:
        woken = asyncio.Event()
        store.watch("q", woken.set)
        await quiet(woken)
        await asyncio.to_thread(listening.wait)
        await asyncio.wait_for(woken.wait(), PATIENCE)
        heard.append(name)

    threads = [threading.Thread(target=asyncio.run, args=(listen(name),)) for name in "ab"]
    for thread in threads:
        thread.start()

    async def main() -> None:
        other = RedisStore(server.url, prefix=prefix)
        await asyncio.to_thread(listening.wait)
        await other.put([ONE])
        for thread in threads:
            await asyncio.to_thread(thread.join, PATIENCE)
        await other.close()

    asyncio.run(main())
    assert sorted(heard) == ["a", "b"]
    asyncio.run(store.close())


def test_an_event_loop_that_ends_leaves_nothing(server: Server, prefix: str) -> None:
    store = RedisStore(server.url, prefix=prefix)
    loops: list[weakref.ref[asyncio.AbstractEventLoop]] = []

    async def main() -> None:
        loops.append(weakref.ref(asyncio.get_running_loop()))
        stop = store.watch("q", lambda: None)
        await store.put([ONE])
        await until(lambda: channels(store, prefix))
        stop()

    for _ in range(3):
        asyncio.run(main())
    gc.collect()
    # A thread knows whom it served last.
    assert [loop() for loop in loops][:2] == [None, None]
    asyncio.run(store.close())
