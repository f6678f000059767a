"""Batches of which a part fails, is large, or meets a server that refuses for a while."""

import asyncio
import os
import resource
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from leasedkeyq import StoreError, UnstorableError, connect
from leasedkeyq.model.requests import (
    Ack,
    Bury,
    Cancel,
    Cap,
    Claim,
    Counts,
    Extend,
    Put,
    Refusal,
    Release,
    Requeue,
    StoredItem,
)
from leasedkeyq.stores import Limits, Store
from leasedkeyq.testing import ManualClock
from tests.servers.valkey import Make, Server, makes, shared_server, shared_url

PATIENCE = 60.0


async def together(
    store: Store, *calls: Any, before: Callable[[], None] = lambda: None
) -> list[Any]:
    """Have calls made in one batch: while an edit is at work, they gather behind it."""
    begun, go_on = threading.Event(), threading.Event()

    def work(_: Sequence[StoredItem]) -> list[Put]:
        begun.set()
        assert go_on.wait(PATIENCE)
        before()
        return []

    edit = asyncio.create_task(store.edit("another", work))
    assert await asyncio.to_thread(begun.wait, PATIENCE)
    tasks = [asyncio.ensure_future(call) for call in calls]
    await asyncio.sleep(0)
    go_on.set()
    await edit
    return await asyncio.gather(*tasks, return_exceptions=True)


def test_puts_into_several_queues_in_one_batch(prefix: str) -> None:
    """New items are written together; whatever makes one queue look first loses no other's."""

    async def main() -> None:
        store = connect(shared_url(), prefix=prefix)
        await store.put([Put("a", (("old", b"1"),))])
        [[buried]] = await store.claim([Claim((("a", 1),))])
        await store.settle([Bury("a", "old", buried.token)])
        await store.put([Put("a", (("old", b"1"),))])
        turn = [
            Put("a", (("a1", b"1"),)),
            Put("b", (("b1", b"1"),)),
            Put("a", (("old", b"2"),)),
            Put("b", (("b2", b"1"),)),
            Put("c", (("c1", b"1"),), max_items=5),
            Put("b", (("b3", b"1"),)),
            Put("c", (("c2", b"1"),), max_items=5),
            Put("b", (("b4", b"1"), ("b4", b"2"))),
            Put("a", (("a2", b"1"),)),
            Put("c", (("c3", b"1"),)),
        ]
        answers = await store.put(turn)
        assert all(isinstance(answer, tuple) for answer in answers)
        assert await store.settle([Requeue("a", buried.id, "update")]) == [True]
        found = await store.count()
        waiting = {name: counts.available for name, counts in found.items()}
        assert waiting == {"a": 3, "b": 4, "c": 3}
        [items] = await store.claim([Claim((("a", 9), ("b", 9), ("c", 9)), 99)])
        keys = [item.key for item in items]
        assert keys == ["old", "a1", "a2", "b1", "b2", "b3", "b4", "c1", "c2", "c3"]
        await store.close()

    asyncio.run(main())


def test_a_large_batch_goes_in_parts(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server closes the connection of somebody who sends too much in one piece."""
    monkeypatch.setattr("leasedkeyq.engines.redis.engine.LARGE", 500_000)
    monkeypatch.setattr("leasedkeyq.engines.redis.engine.TOO_LARGE", 1024 * 1024)

    async def main(server: Server) -> None:
        limits = Limits(value_size=2 * 1024 * 1024)
        store = connect(server.url, prefix=prefix, retry_for=0.5, limits=limits)
        value = b"1" * 300_000
        puts = [store.put([Put("q", ((f"k{number}", value),))]) for number in range(8)]
        answers = await together(store, *puts)
        assert [type(answer) for answer in answers] == [list] * 8
        assert await store.count(["q"]) == {"q": Counts(available=8)}
        with pytest.raises(StoreError, match="proto-max-bulk-len"):
            await store.put([Put("q", (("large", b"1" * 1_200_000),))])
        await store.close()

    with Server("--proto-max-bulk-len", "1mb") as server:
        asyncio.run(main(server))


@pytest.mark.parametrize("make", makes())
def test_a_server_without_memory_goes_on_with_what_needs_none(prefix: str, make: Make) -> None:
    async def main(server: Server) -> None:
        store = connect(server.url, prefix=prefix)
        await store.put([Put("q", ((key, b"1"),)) for key in "abc"])
        [[a]] = await store.claim([Claim((("q", 1),), lease_time=PATIENCE)])

        def fill() -> None:
            with server.client() as client:
                client.config_set("maxmemory", 1)

        put, settled, claimed, other = await together(
            store,
            store.put([Put("q", (("d", b"1"),))]),
            store.settle([Ack("q", "a", a.token)]),
            store.claim([Claim((("q", 1),), lease_time=PATIENCE)]),
            store.put([Put("new", (("a", b"1"),))]),
            before=fill,
        )
        assert "memory is full" in str(put)
        assert settled == [None]
        assert [item.key for item in claimed[0]] == ["b"]
        assert "memory is full" in str(other)
        assert isinstance(put, StoreError)
        assert isinstance(other, StoreError)
        with pytest.raises(StoreError, match="memory is full"):
            await store.put([Put("q", (("d", b"1"),))])
        assert await store.count() == {"q": Counts(available=1, in_flight=1)}
        await store.close()

    with Server(make=make) as server:
        asyncio.run(main(server))


@pytest.mark.parametrize("make", makes())
def test_a_server_without_memory_answers_what_changes_nothing(prefix: str, make: Make) -> None:
    """Alone and in batches; and a cancelled item makes room for its result."""

    async def main(server: Server) -> None:
        store = connect(server.url, prefix=prefix)
        await store.put([Put("q", ((key, b"1"),)) for key in "abc"])
        [[_, _]] = await store.claim([Claim((("q", 2),), 2, lease_time=PATIENCE)])
        with server.client() as client:
            client.config_set("maxmemory", 1)
        for count in (1, 2):
            assert await store.claim([Claim((("none", 1),))] * count) == [()] * count
            refusals = await store.settle([Ack("q", "a", "no token")] * count)
            assert [type(refusal) for refusal in refusals] == [Refusal] * count
        assert await store.settle([Cancel("q", key, b"1", PATIENCE) for key in "ac"]) == [True] * 2
        assert await store.count() == {"q": Counts(in_flight=1, done=2, done_cancelled=2)}
        await store.close()

    with Server(make=make) as server:
        asyncio.run(main(server))


@pytest.mark.parametrize("make", makes())
def test_an_edit_that_the_server_refuses_leaves_the_queue_to_others(
    prefix: str, make: Make
) -> None:
    async def main(server: Server) -> None:
        editor, other = (connect(server.url, prefix=prefix, edit_time=600.0) for _ in range(2))
        await other.put([Put("q", (("a", b"1"),))])

        def work(_: Sequence[StoredItem]) -> list[Put]:
            with server.client() as client:
                client.config_set("maxmemory", 1)
            return [Put("q", (("a", b"2"),))]

        with pytest.raises(StoreError, match="memory is full"):
            await editor.edit("q", work)
        [[item]] = await asyncio.wait_for(other.claim([Claim((("q", 1),))]), PATIENCE)
        assert (item.key, item.value) == ("a", b"1")
        await editor.close()
        await other.close()

    with Server(make=make) as server:
        asyncio.run(main(server))


@pytest.mark.parametrize("make", makes())
def test_a_server_that_is_a_replica_for_a_while(prefix: str, make: Make) -> None:
    async def main(server: Server) -> None:
        store = connect(server.url, prefix=prefix, retry_for=PATIENCE)
        hasty = connect(server.url, prefix=prefix, retry_for=0.2)
        await store.put([Put("q", (("a", b"1"),))])
        with server.client() as client:
            client.execute_command("REPLICAOF", "127.0.0.1", "1")
            with pytest.raises(StoreError, match="is a replica"):
                await hasty.put([Put("q", (("b", b"1"),))])
            # What it knows may be old.
            with pytest.raises(StoreError, match="is a replica"):
                await hasty.settle([Ack("q", "a", "token")])
            with pytest.raises(StoreError, match="is a replica"):
                await hasty.settle([Ack("q", "a", "token")] * 2)
            connections = client.info("stats")["total_connections_received"]
            putting = asyncio.create_task(store.put([Put("q", (("c", b"1"),))]))
            # It comes back on other connections: a name may have come to mean another server.
            while client.info("stats")["total_connections_received"] < connections + 2:
                await asyncio.sleep(0.01)
            client.execute_command("REPLICAOF", "NO", "ONE")
        await asyncio.wait_for(putting, PATIENCE)
        assert await store.count() == {"q": Counts(available=2)}
        await store.close()
        await hasty.close()

    with Server(make=make) as server:
        asyncio.run(main(server))


@pytest.mark.parametrize("make", makes())
def test_a_server_that_is_busy_with_a_script(prefix: str, make: Make) -> None:
    """It refuses everything until the script of somebody else ends."""
    script = """
    local first = redis.call('TIME')
    repeat
      local time = redis.call('TIME')
    until (time[1] - first[1]) * 1000000 + time[2] - first[2] > 600000
    """

    async def main(server: Server) -> None:
        store = connect(server.url, prefix=prefix, retry_for=PATIENCE)
        with server.client() as client:
            client.config_set("lua-time-limit", 10)
            hogging = asyncio.create_task(asyncio.to_thread(client.eval, script, 0))
            await asyncio.sleep(0.1)
            await store.put([Put("q", (("a", b"1"),))])
            await hogging
        assert await store.count() == {"q": Counts(available=1)}
        await store.close()

    with Server(make=make) as server:
        asyncio.run(main(server))


def test_times_that_are_no_numbers_spoil_nobody(prefix: str) -> None:
    async def main() -> None:
        store = connect(shared_url(), prefix=prefix)
        await store.put([Put("q", ((key, b"1"),)) for key in "abcd"])
        nan = float("nan")
        with pytest.raises(UnstorableError, match="lease_time must be finite"):
            await store.claim([Claim((("q", 1),)), Claim((("q", 1),), lease_time=nan)])
        [[a]] = await store.claim([Claim((("q", 1),))])
        assert a.attempt == 1, "nothing was leased before"
        answers = await store.settle(
            [
                Extend("q", "a", a.token, nan),
                Release("q", "a", a.token, delay=nan),
                Ack("q", "a", a.token, b"1", nan),
            ]
        )
        answers += await store.put([Put("q", (("e", b"1"),), delay=nan)])
        assert [isinstance(answer, StoreError) for answer in answers] == [True] * 4
        assert await store.count() == {"q": Counts(available=3, in_flight=1)}
        assert await store.settle([Ack("q", "a", a.token)]) == [None]
        await store.close()

    asyncio.run(main())


def test_wake_ups_in_a_process_with_many_open_files(prefix: str) -> None:
    async def main() -> None:
        store, other = (
            connect(shared_url(), prefix=prefix, poll=PATIENCE * 10),
            connect(shared_url(), prefix=prefix),
        )
        woken = asyncio.Event()
        store.watch("q", woken.set)
        await asyncio.wait_for(woken.wait(), PATIENCE)  # by the beginning of the subscription
        for key in "ab":
            woken.clear()
            await other.put([Put("q", ((key, b"1"),))])
            await asyncio.wait_for(woken.wait(), PATIENCE)
        await store.close()
        await other.close()

    shared_url()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        asyncio.run(main())
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_closing_does_not_wait_for_the_edit_of_somebody_else(prefix: str) -> None:
    async def main() -> None:
        store, editor = (connect(shared_url(), prefix=prefix) for _ in range(2))
        await store.put([Put("q", (("a", b"1"),))])
        begun, go_on = threading.Event(), threading.Event()

        def work(_: Sequence[StoredItem]) -> list[Put]:
            begun.set()
            assert go_on.wait(PATIENCE)
            return []

        edit = asyncio.create_task(editor.edit("q", work))
        assert await asyncio.to_thread(begun.wait, PATIENCE)
        putting = asyncio.create_task(store.put([Put("q", (("b", b"1"),))]))
        await asyncio.sleep(0.02)
        await asyncio.wait_for(store.close(), PATIENCE / 2)
        with pytest.raises(StoreError, match="closed"):
            await putting
        go_on.set()
        await edit
        await editor.close()

    asyncio.run(main())


def test_an_edit_that_took_too_long_raises_what_its_work_raises(prefix: str) -> None:
    async def main() -> None:
        store = connect(shared_url(), prefix=prefix, edit_time=0.05)

        def fail(_: Sequence[StoredItem]) -> list[Put]:
            time.sleep(0.2)
            raise LookupError("mine")

        def do_nothing(_: Sequence[StoredItem]) -> list[Put]:
            time.sleep(0.2)
            return []

        with pytest.raises(LookupError, match="mine"):
            await store.edit("q", fail)
        with pytest.raises(StoreError, match="edit_time"):
            await store.edit("q", do_nothing)
        await store.close()

    asyncio.run(main())


def test_what_is_over_is_forgotten_without_a_sweep(prefix: str) -> None:
    async def main() -> None:
        clock = ManualClock()
        store = connect(shared_url(), prefix=prefix, clock=clock)
        keys: list[str] = []
        for turn in range(5):
            keys = [f"k{turn}.{number}" for number in range(60)]
            await store.put([Put("q", ((key, b"1"),)) for key in keys])
            caps = (Cap("q", rate=1000.0, each=True),)
            claims = [Claim((("q", 1),), caps=caps) for _ in keys]
            items = [item for [item] in await store.claim(claims)]
            await store.settle([Ack("q", item.key, item.token, b"1", 5.0) for item in items])
            clock.advance(10)
        await store.put([Put("q", ((key, b"1"),)) for key in keys])
        await store.close()
        with shared_server().client() as client:
            assert client.hlen(f"{prefix}:{{q}}:d") <= 120
            assert client.hlen(f"{prefix}:{{q}}:c") <= 120

    asyncio.run(main())
