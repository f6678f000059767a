"""Event loops that end, that are busy, or that are not asyncio's own."""

import asyncio
import gc
import logging
import socket
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import uvloop

from leasedkeyq.engines.redis.loop_link import LoopConnection
from leasedkeyq.engines.redis.store import RedisStore
from leasedkeyq.errors import StoreClosedError
from leasedkeyq.model.requests import Counts, Put
from tests.engines.redis.support import opened
from tests.servers.proxy import Proxy
from tests.servers.valkey import Server

PATIENCE = 30.0


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


def put(key: str) -> list[Put]:
    return [Put("q", ((key, b"1"),))]


def test_on_uvloop(server: Server, prefix: str) -> None:
    async def main() -> None:
        with Proxy(server.socket) as proxy:
            store = RedisStore(f"redis://127.0.0.1:{proxy.port}", prefix=prefix, poll=PATIENCE)
            other = RedisStore(server.url, prefix=prefix)
            queue = store.queue("q")
            waiting = asyncio.ensure_future(queue.get())
            await asyncio.sleep(0.1)
            await other.queue("q").put("a", 1)
            key, _, lease = await asyncio.wait_for(waiting, PATIENCE)
            proxy.cut_all()
            await queue.ack(lease)
            assert key == "a"
            await other.close()
            await store.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def test_a_wrong_argument_harms_nobody_else(server: Server, prefix: str) -> None:
    async def main() -> None:
        store = RedisStore(server.url, prefix=prefix)
        wrong: Any = put("a")[0]
        with pytest.raises(TypeError):
            await store.put(wrong)
        await asyncio.wait_for(store.put(put("b")), PATIENCE)
        await asyncio.wait_for(store.close(), PATIENCE)

    asyncio.run(main())


@pytest.mark.parametrize("turns", range(1, 7))
def test_what_was_claimed_when_the_event_loop_ended_is_given_back(
    server: Server, prefix: str, turns: int
) -> None:
    store = RedisStore(server.url, prefix=prefix)

    async def main() -> "asyncio.Future[Any]":
        queue = store.queue("q")
        await queue.put("a", 1)
        getting = asyncio.ensure_future(queue.get())
        for _ in range(turns):
            await asyncio.sleep(0)
        return getting

    async def look() -> Counts:
        found = await store.count(["q"])
        await store.close()
        return found["q"]

    got_it = not asyncio.run(main()).cancelled()
    assert asyncio.run(look()) == Counts(available=not got_it, in_flight=got_it)


# redis-py leaves sockets of tries that failed to the collector.
@pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"
)
def test_a_program_that_ends_while_the_server_is_away_ends_in_silence(
    server: Server, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    said: list[str] = []

    async def main(proxy: Proxy, store: RedisStore) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: said.append(context["message"]))
        await store.put(put("a"))
        proxy.refuse = True
        proxy.cut_all()
        await asyncio.sleep(0.05)
        tasks = []
        for number in range(6):
            tasks.append(asyncio.ensure_future(store.put(put(str(number)))))
            await asyncio.sleep(0.02)
        assert not any(task.done() for task in tasks)

    with Proxy(server.socket) as proxy, caplog.at_level(logging.ERROR):
        store = RedisStore(f"redis://127.0.0.1:{proxy.port}", prefix=prefix)
        asyncio.run(main(proxy, store))
        store._link.close()
        gc.collect()
    assert said == []
    assert caplog.text == ""


def test_a_call_under_way_when_generators_are_shut_down_is_answered(
    server: Server, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leasedkeyq.stores.batching.loop.END_TIME", 0.05)

    async def main(proxy: Proxy) -> None:
        store = RedisStore(f"redis://127.0.0.1:{proxy.port}", prefix=prefix)
        await store.put(put("a"))
        proxy.begin(lambda way, _, _data: "lose" if way == "reply" else "pass")
        asking = asyncio.ensure_future(store.put(put("b")))
        await asyncio.sleep(0.05)
        await asyncio.get_running_loop().shutdown_asyncgens()
        with pytest.raises(StoreClosedError, match="closed before it answered"):
            await asyncio.wait_for(asking, PATIENCE)
        proxy.begin()
        await store.close()

    with Proxy(server.socket) as proxy:
        asyncio.run(main(proxy))


def test_busy_threads_of_the_program_do_not_hold_up_the_store(server: Server, prefix: str) -> None:
    """Connecting and editing block, and do so in threads of the store's own."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        go_on = threading.Event()
        busy = asyncio.ensure_future(asyncio.to_thread(go_on.wait, PATIENCE))
        store = RedisStore(server.url, prefix=prefix, poll=PATIENCE)
        woken = asyncio.Event()
        store.watch("q", woken.set)
        async with asyncio.timeout(PATIENCE / 2):
            await woken.wait()
            await store.put(put("a"))
            await store.edit("q", lambda _: [])
            assert not busy.done()
        go_on.set()
        await busy
        await store.close()

    asyncio.run(main())


def test_one_store_in_many_event_loops(server: Server, prefix: str) -> None:
    """More than redis-py lets one of its pools have connections."""
    store = opened(server, prefix, retry_for=0.1)

    async def put(number: int) -> None:
        await store.put([Put("q", ((f"k{number}", b"1"),))])

    for number in range(120):
        asyncio.run(put(number))
    assert asyncio.run(store.count()) == {"q": Counts(available=120)}
    asyncio.run(store.close())


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_event_loops_that_were_closed_without_a_word_are_let_go(
    server: Server, prefix: str
) -> None:
    store = opened(server, prefix)

    async def listen() -> None:
        changed = asyncio.Event()
        stop = store.watch("q", changed.set)
        await asyncio.wait_for(changed.wait(), PATIENCE)  # by the subscription
        stop()

    def left() -> weakref.ref[Any]:
        loop = asyncio.new_event_loop()
        loop.run_until_complete(listen())
        loop.close()
        return weakref.ref(loop)

    loops = [left() for _ in range(3)]
    asyncio.run(listen())
    gc.collect()
    assert [loop() for loop in loops] == [None] * 3
    asyncio.run(store.close())


def test_a_message_that_nobody_asked_for_is_no_answer(server: Server, prefix: str) -> None:
    async def main() -> None:
        store = opened(server, prefix)
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        loop = asyncio.get_running_loop()
        _, wire = await loop.create_connection(
            lambda: LoopConnection(store._link.new_connection(), 30.0), sock=ours
        )
        asking: asyncio.Future[list[Any] | Exception] = loop.create_future()
        wire.send([("PING",)], asking.set_result)
        theirs.send(b">2\r\n+moving\r\n+soon\r\n+PONG\r\n")
        assert await asyncio.wait_for(asking, 30) == [b"PONG"]
        wire.close()
        theirs.close()
        await store.close()

    asyncio.run(main())


def test_the_url_says_how_long_an_answer_may_take(server: Server, prefix: str) -> None:
    store = RedisStore(f"{server.url}?socket_timeout=20", prefix=prefix)
    assert store._link.call_timeout == 20
    asyncio.run(store.close())


def test_a_store_that_was_closed_says_so_in_every_event_loop(server: Server, prefix: str) -> None:
    async def main() -> None:
        store = opened(server, prefix)
        await store.close()
        with pytest.raises(StoreClosedError):
            await store._link.in_thread(lambda: None)

    asyncio.run(main())
