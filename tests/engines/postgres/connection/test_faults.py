"""Connections that break at any point, servers that are killed: nothing is lost or done twice."""

import asyncio
import os
import secrets
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from leasedkeyq import connect
from leasedkeyq.engines.postgres.batch import Batch
from leasedkeyq.engines.postgres.link import Writer
from leasedkeyq.engines.postgres.store import PostgresStore
from leasedkeyq.errors import StoreError
from leasedkeyq.model.requests import Change
from leasedkeyq.stores import Ack, Bury, Claim, Counts, Purge, Put, Release, Store, StoredItem
from tests.servers.postgres import PostgresServer, run_sql, shared_server
from tests.servers.proxy import Direction, Proxy, Verdict, let_all_pass
from tests.torture.network.frames import PostgresFrames
from tests.torture.network.proxy import Fault, FaultyNetwork, Network

APART = 1 if os.environ.get("TORTURE") == "1" else 3
"""Of so many points, a connection breaks at one."""


def one(key: str, value: bytes = b"1", **options: Any) -> Put:
    return Put("q", ((key, value),), **options)


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncGenerator[PostgresStore]:
    schema = f"faults_{secrets.token_hex(6)}"
    store = connect(url, schema=schema, **options)
    assert isinstance(store, PostgresStore)
    try:
        yield store
    finally:
        await store.close()
        run_sql(url, f"DROP SCHEMA {schema} CASCADE")


def through(proxy: Proxy, url: str) -> str:
    port = urlsplit(url).port
    return url.replace(f":{port}/", f":{proxy.port}/")


async def story(store: Store) -> None:
    """Some batches, each of which must be answered as if nothing had happened."""
    [first, second] = await store.put([one("a"), one("b", priority=1)])
    assert isinstance(first, tuple)
    assert isinstance(second, tuple)
    assert second[0] > first[0]
    [[b], [a]] = await store.claim([Claim((("q", 1),)), Claim((("q", 1),))])
    assert (b.key, a.key, a.attempt, b.attempt) == ("b", "a", 1, 1)
    assert await store.put([one("a", b"2", policy="buffer"), one("c", policy="reject")]) != []
    answers = await store.settle([Ack("q", "a", a.token), Release("q", "b", b.token, error="no")])
    assert answers == [None, None]
    [claimed] = await store.claim([Claim((("q", 9),), 9, None, 600.0)])
    assert [(c.key, c.value, c.attempt) for c in claimed] == [
        ("b", b"1", 2),
        ("c", b"1", 1),
        ("a", b"2", 1),
    ]
    [number, refusal] = await store.settle(
        [Bury("q", "b", claimed[0].token, "x"), Ack("q", "b", "forged")]
    )
    assert number == claimed[0].id
    assert isinstance(refusal, Exception)
    try:
        await store.edit("q", lambda items: [Ack("q", "c", _token(items, "c"))])
    except StoreError:
        # Its work was called and is not called again. Nothing has happened.
        assert await store.settle([Ack("q", "c", claimed[1].token)]) == [None]
    assert await store.count(["q"]) == {"q": Counts(in_flight=1, buried=1)}


def _token(items: Sequence[StoredItem], key: str) -> str:
    return next(item.token for item in items if item.key == key and item.token)


def cut_at(direction: Direction, number: int, how: Verdict) -> Callable[..., Verdict]:
    """One piece is lost, with its connection."""

    def judge(where: Direction, count: int, _: bytes) -> Verdict:
        return how if (where, count) == (direction, number) else "pass"

    return judge


@pytest.mark.parametrize("direction", ["request", "reply"])
def test_a_connection_that_breaks_at_any_point(direction: Direction) -> None:
    """The same answers as without, whichever request or reply is lost, or half of it."""
    url = shared_server().url

    async def tell(proxy: Proxy, schema: str, judge: Any) -> int:
        proxy.begin()
        store = connect(through(proxy, url), schema=schema)
        await store.put([one("warm")])
        await store.settle([Purge("q")])
        await store.count(["q"])
        proxy.begin(judge)
        await story(store)
        pieces = proxy.count(direction)
        proxy.begin()
        await store.close()
        return pieces

    async def run(proxy: Proxy) -> None:
        async with opened(url) as direct:
            pieces = await tell(proxy, direct.schema, let_all_pass)
            assert pieces >= 8
            for number in range(1, pieces + 1, APART):
                await tell(proxy, direct.schema, cut_at(direction, number, "cut"))
            for number in range(2, pieces + 1, 3 * APART):
                await tell(proxy, direct.schema, cut_at(direction, number, "half"))

    with Proxy(urlsplit(url).port or 0) as proxy:
        asyncio.run(run(proxy))


def test_a_late_request_is_not_applied_any_more() -> None:
    """What the server gets after its client has asked what became of it is void."""

    async def run() -> None:
        async with opened(shared_server().url) as store:
            link = store._link()
            batch = Batch(link._settings.schema, [one("late")])
            deadline = asyncio.get_running_loop().time() + 30
            writer = Writer()
            assert await link._ask(writer, batch, "lost.1", deadline, OSError()) is None
            connection = await link._connected(writer, deadline)
            with pytest.raises(asyncpg.UniqueViolationError):
                await link._send(connection, "lost.1", None, batch.told())
            assert await store.count() == {}
            await connection.close()

    asyncio.run(run())


def test_those_who_wait_survive_a_lost_connection() -> None:
    url = shared_server().url

    async def run(proxy: Proxy) -> None:
        async with opened(url) as other:
            store = connect(through(proxy, url), schema=other.schema, poll=600)
            queue = store.queue("q")
            for number in range(3):
                getter = asyncio.create_task(queue.get(timeout=60))
                while proxy.count("reply") < 5:
                    await asyncio.sleep(0.01)
                proxy.refuse = True
                proxy.cut_all()
                await asyncio.sleep(0.05)
                await other.put([one(f"k{number}")])
                proxy.begin()
                proxy.refuse = False
                key, _, lease = await getter
                assert key == f"k{number}"
                await queue.ack(lease)
            await store.close()

    with Proxy(urlsplit(url).port or 0) as proxy:
        asyncio.run(run(proxy))


def test_a_server_that_stays_away_is_an_error() -> None:
    url = shared_server().url

    async def run(proxy: Proxy) -> None:
        async with opened(url) as other:
            store = connect(through(proxy, url), schema=other.schema, patience=0.3)
            await store.put([one("a")])
            proxy.refuse = True
            proxy.cut_all()
            for call in (store.put([one("b")]), store.count(), store.queue("q").get()):
                with pytest.raises(StoreError, match=r"127\.0\.0\.1"):
                    await call
            proxy.refuse = False
            await store.put([one("c")])
            assert (await other.count(["q"]))["q"].available >= 2
            await store.close()

    with Proxy(urlsplit(url).port or 0) as proxy:
        asyncio.run(run(proxy))


def test_a_server_that_is_killed_under_load() -> None:
    """Nothing acknowledged is lost, no key is held twice, no finished item comes back."""
    server = PostgresServer()
    jobs, workers = 400, 8

    async def run() -> None:
        store = connect(server.url, patience=60)
        held: set[str] = set()
        done: Counter[str] = Counter()
        stored: set[str] = set()

        async def produce(first: int) -> None:
            for number in range(first, jobs, 4):
                [answer] = await store.put([one(f"k{number}")])
                assert isinstance(answer, tuple)
                stored.add(f"k{number}")

        async def work() -> None:
            while sum(done.values()) < jobs:
                [claimed] = await store.claim([Claim((("q", 2),), 2, None, 600.0)])
                for item in claimed:
                    assert item.key not in held, "a key is held twice"
                    assert item.attempt == 1, "a lease was lost"
                    held.add(item.key)
                    await asyncio.sleep(0)
                    assert await store.settle([Ack("q", item.key, item.token)]) == [None]
                    held.discard(item.key)
                    done[item.key] += 1
                if not claimed:
                    await asyncio.sleep(0.005)

        async def disturb() -> None:
            for share in (0.2, 0.6):
                while sum(done.values()) < jobs * share:
                    await asyncio.sleep(0.002)
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.start)

        async with asyncio.timeout(100):
            tasks = [disturb(), *(produce(n) for n in range(4)), *(work() for _ in range(workers))]
            await asyncio.gather(*tasks)
        assert len(stored) == jobs
        assert done == Counter(dict.fromkeys(stored, 1))
        assert await store.count() == {}
        await store.close()

    try:
        asyncio.run(run())
    finally:
        server.remove()


# Connections that are silent: nothing comes back, and nobody is told that they are broken


def lose_one(direction: Direction, number: int, containing: bytes = b"") -> Callable[..., Verdict]:
    """One piece is lost, and its connection stays: the client waits for an answer in vain."""
    lost = 0

    def judge(where: Direction, _: int, data: bytes) -> Verdict:
        nonlocal lost
        if where != direction or containing not in data or lost == number:
            return "pass"
        lost += 1
        return "lose" if lost == number else "pass"

    return judge


def put_another(queue: str) -> Callable[[Sequence[StoredItem]], list[Put | Change]]:
    return lambda _: [Put(queue, (("b", b"1"),))]


def test_an_edit_whose_connection_is_silent_comes_to_an_end() -> None:
    """Wherever it is by then: it has happened or not, and the next call is answered."""
    url = shared_server().url

    async def edit(proxy: Proxy, store: Store, direction: Direction, number: int) -> None:
        queue = f"{direction}{number}"
        put = Put(queue, (("a", b"1"),))
        await store.put([put])
        proxy.begin(lose_one(direction, number))
        refusal = ""
        try:
            async with asyncio.timeout(90):
                await store.edit(queue, put_another(queue))
        except StoreError as error:
            refusal = str(error)
        assert not refusal or "has not happened" in refusal
        proxy.begin()
        await store.put([put])
        assert (await store.count([queue]))[queue].available == (1 if refusal else 2)

    async def run(proxy: Proxy) -> None:
        async with opened(url) as direct:
            there = through(proxy, url)
            store = connect(there, schema=direct.schema, call_timeout=1.5, patience=90)
            await edit(proxy, store, "request", 1)  # it begins
            await edit(proxy, store, "reply", 4)
            await edit(proxy, store, "request", 7)  # it ends
            await store.close()

    with Proxy(urlsplit(url).port or 0) as proxy:
        asyncio.run(run(proxy))


def test_an_edit_one_of_whose_requests_arrives_twice() -> None:
    """What has spoiled the transaction is seen at its end: no edit is lost silently."""
    url = shared_server().url
    refusals: list[str] = []

    async def run(proxy: FaultyNetwork) -> None:
        async with opened(url) as direct:
            port = urlsplit(url).port
            there = url.replace(f":{port}/", f":{proxy.port}/")
            store = await asyncio.to_thread(connect, there, schema=direct.schema)
            for number in range(8):
                queue = f"q{number}"
                await store.put([Put(queue, (("a", b"1"),))])
                proxy.arm(Fault("request doubled", skip=number, seconds=0.0))
                try:
                    await store.edit(queue, put_another(queue))
                except StoreError as error:
                    refusals.append(str(error))
                else:
                    refusals.append("")
                proxy.disarm()
                counts = (await store.count([queue]))[queue]
                assert counts.available == (1 if refusals[-1] else 2), (number, refusals)
            await store.close()

    port = urlsplit(url).port or 0
    with (
        closing(Network()) as network,
        closing(FaultyNetwork(network, port, PostgresFrames())) as proxy,
    ):
        asyncio.run(run(proxy))
    # All but the changes themselves can be asked for twice.
    [refusal] = [refusal for refusal in refusals if refusal]
    assert "has undone the edit" in refusal


@pytest.mark.parametrize("asked", [b"server_version_num", b"pg_backend_pid"])
def test_opening_by_a_connection_that_is_silent_comes_to_an_end(asked: bytes) -> None:
    url = shared_server().url

    async def run(proxy: Proxy) -> None:
        async with opened(url) as other:
            proxy.begin(lose_one("request", 1, asked))
            there = through(proxy, url)
            store = await asyncio.to_thread(connect, there, schema=other.schema, call_timeout=1.5)
            await store.put([one("a")])
            await store.close()

    with Proxy(urlsplit(url).port or 0) as proxy:
        asyncio.run(run(proxy))


def test_a_waiting_get_is_served_though_its_wish_to_listen_was_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("leasedkeyq.engines.postgres.watch.ANSWER_TIMEOUT", 0.3)
    url = shared_server().url

    async def run(proxy: Proxy) -> None:
        async with opened(url) as other:
            store = connect(through(proxy, url), schema=other.schema, poll=0.2)
            proxy.begin(lose_one("request", 1, b"LISTEN"))
            getting = asyncio.create_task(store.queue("q").get())
            await asyncio.sleep(0.5)
            await other.put([one("a")])
            async with asyncio.timeout(60):
                assert (await getting)[0] == "a"
            await store.close()

    with Proxy(urlsplit(url).port or 0) as proxy:
        asyncio.run(run(proxy))
