"""A server that is away, starts late or only reads: no worker takes it for an empty queue."""

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from leasedkeyq import connect
from leasedkeyq.errors import StoreError, StoreUnavailableError
from leasedkeyq.repository import QueueRepository, QueueService
from leasedkeyq.stores import Claim, Put, Store
from leasedkeyq.testing import Place
from tests.servers.postgres import PostgresServer, Schemas, run_aside, server_url, shared_server
from tests.servers.proxy import Direction, Proxy, Verdict


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    started = PostgresServer()
    yield started
    started.remove()


def make_standby(server: PostgresServer) -> None:
    """Start it again as a standby: it follows nobody, and only reads."""
    server.stop()
    (server.folder / "data" / "standby.signal").touch()
    server.start()


def make_primary(server: PostgresServer) -> None:
    server.stop()
    (server.folder / "data" / "standby.signal").unlink()
    server.start()


def test_a_get_tells_an_outage_from_an_empty_queue(
    server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "leasedkeyq")

    async def run() -> None:
        store = connect(server.url)
        queue = store.queue("q")
        with pytest.raises(TimeoutError, match="no item became available"):
            await queue.get(timeout=0.2)
        waiting = asyncio.create_task(queue.get(timeout=3))
        await asyncio.sleep(0.5)
        assert not caplog.records
        await asyncio.to_thread(server.stop)
        with pytest.raises(StoreUnavailableError, match=r"cannot be reached|shutting down"):
            await waiting
        began = time.monotonic()
        with pytest.raises(StoreUnavailableError, match=r"cannot be reached.*away for"):
            await queue.get(timeout=1)
        assert time.monotonic() - began < 4
        await asyncio.to_thread(server.start)
        await queue.put("a", 1)
        assert (await queue.get(timeout=30))[0] == "a"
        with pytest.raises(TimeoutError, match="no item became available"):
            await queue.get(timeout=0.5)
        await store.close()

    asyncio.run(run())
    said = [record.getMessage() for record in caplog.records]
    assert sum("trying again for 30 s" in text for text in said) >= 1
    assert sum("the server answers again after" in text for text in said) >= 1
    assert len(said) < 10


def test_an_outage_is_over_though_another_event_loop_has_not_asked_since(
    server: PostgresServer,
) -> None:
    store = connect(server.url, patience=0.5)
    other = asyncio.new_event_loop()
    queue = store.queue("q")

    async def run() -> None:
        with pytest.raises(TimeoutError, match="no item became available"):
            await queue.get(timeout=0.5)
        await store.close()

    server.stop()
    with pytest.raises(StoreUnavailableError):
        other.run_until_complete(store.put([Put("q", (("a", b"1"),))]))
    assert store.outage is not None
    server.start()
    asyncio.run(run())
    other.close()


def test_a_server_that_has_become_a_standby(server: PostgresServer) -> None:
    """It answers, and takes nothing: an outage, until it is the primary again."""

    async def run() -> None:
        store = connect(server.url, patience=1)
        queue = store.queue("q")
        await queue.put("a", 1)
        await asyncio.to_thread(make_standby, server)
        for call in (queue.get(timeout=2), queue.take("a", timeout=2)):
            with pytest.raises(StoreUnavailableError, match="only reads"):
                await call
        changes: list[Awaitable[Any]] = [queue.put("b", 1)]
        changes.append(store.edit("q", lambda _: [Put("q", (("c", b"1"),))]))
        for change in changes:
            with pytest.raises(StoreUnavailableError, match="connect to the primary") as caught:
                await change
            assert "not known" not in str(caught.value), "the server has said that it did nothing"
        assert (await store.count(["q"]))["q"].available == 1
        await asyncio.to_thread(make_primary, server)
        assert (await queue.get(timeout=30))[0] == "a"
        await store.close()

    asyncio.run(run())


def test_a_standby_is_refused_at_once(server: PostgresServer) -> None:
    asyncio.run(connect(server.url).close())
    make_standby(server)
    began = time.monotonic()
    with pytest.raises(StoreError, match=r"is a standby.*target_session_attrs=read-write"):
        connect(server.url)
    assert time.monotonic() - began < 5


def test_a_user_who_only_reads_is_refused_at_once() -> None:
    with pytest.raises(StoreError, match="default_transaction_read_only is on"):
        connect(f"{server_url()}?default_transaction_read_only=on")


def test_opening_waits_for_a_server_that_starts(
    server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.stop()
    opened: list[Store] = []
    # A server ends with the thread that has started it.
    opening = threading.Thread(target=lambda: opened.append(connect(server.url)))
    opening.start()
    time.sleep(1.5)
    server.start()
    opening.join()
    [store] = opened
    run_aside(store.close())
    [said] = [record.getMessage() for record in caplog.records]
    assert "cannot be reached" in said
    assert "trying again for 30 s" in said


def test_opening_does_not_wait_for_ever() -> None:
    began = time.monotonic()
    with pytest.raises(StoreUnavailableError, match="cannot be reached"):
        connect("postgresql://somebody@127.0.0.1:1/postgres", patience=0.5)
    assert 0.4 < time.monotonic() - began < 10


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_waiting_worker_of_a_repository_survives_a_restart(
    server: PostgresServer, end: str
) -> None:
    """Three seconds without a server, and a fork meanwhile, for which the store is opened anew."""
    repository = QueueRepository(server.url, name="tasks")
    found: list[object] = []

    def work() -> None:
        try:
            found.append(repository.dequeue(timeout=60))
        except BaseException as error:
            found.append(error)

    worker = threading.Thread(target=work)
    worker.start()
    time.sleep(0.5)
    getattr(server, end)()
    time.sleep(3)
    server.start()
    with QueueRepository(server.url, name="tasks") as other:
        QueueService(other).submit_task("a task")
    worker.join(60)
    [item] = found
    assert getattr(item, "payload", item) == {"task_id": "a task"}
    repository.close()


def test_what_was_not_sent_is_known_not_to_be_applied(server: PostgresServer) -> None:
    async def run() -> None:
        store = connect(server.url, patience=0.5)
        await store.put([Put("q", (("a", b"1"),))])
        await store.count(["q"])
        await asyncio.to_thread(server.stop)
        await asyncio.sleep(0.2)
        for call in (
            store.put([Put("q", (("b", b"1"),))]),
            store.claim([Claim((("q", 1),))]),
            store.count(["q"]),
            store.edit("q", lambda _: []),
        ):
            with pytest.raises(StoreUnavailableError) as caught:
                await call
            assert "not known" not in str(caught.value)
        await store.close()

    asyncio.run(run())


def test_an_answer_that_was_lost_with_its_server() -> None:
    """Only then it is not known whether the call was applied, and the error says so."""
    url = shared_server().url
    place = Place()
    schema = Schemas(url).borrow(place)

    async def run(proxy: Proxy) -> None:
        port = urlsplit(url).port
        through = url.replace(f":{port}/", f":{proxy.port}/")
        store = connect(through, schema=schema, patience=0.5)
        await store.put([Put("q", (("a", b"1"),))])

        def cut(direction: Direction, _: int, __: bytes) -> Verdict:
            if direction == "request":
                return "pass"
            proxy.refuse = True
            return "cut"

        proxy.begin(cut)
        with pytest.raises(StoreUnavailableError, match="not known whether it was applied"):
            await store.put([Put("q", (("b", b"1"),))])
        proxy.begin()
        proxy.refuse = False
        assert (await store.count(["q"]))["q"].available == 2
        await store.close()

    with Proxy(urlsplit(url).port or 0) as proxy:
        asyncio.run(run(proxy))
    place.close()


def test_closing_does_not_wait_for_a_server_that_is_away(server: PostgresServer) -> None:
    async def run() -> None:
        store = connect(server.url)
        queue = store.queue("q")
        await queue.put("a", 1)
        await asyncio.to_thread(server.stop)
        putting = asyncio.create_task(queue.put("b", 1))
        getting = asyncio.create_task(queue.get())
        await asyncio.sleep(0.2)
        began = time.monotonic()
        await store.close()
        assert time.monotonic() - began < 8
        for call in (putting, getting):
            with pytest.raises(StoreError):
                await call

    asyncio.run(run())
