"""The Redis store for longer: many claimers, killed servers, failovers, memory.

At full length under ``TORTURE=1``.
"""

import asyncio
import multiprocessing
import os
import secrets
import time
from multiprocessing.connection import Connection

import pytest

from leasedkeyq import StoreError, connect
from leasedkeyq.model.requests import Put
from leasedkeyq.stores import Store
from tests.engines.redis.claimers import run_claimers
from tests.servers.sync_watch import SyncWatch
from tests.servers.valkey import (
    Server,
    free_port,
    shared_server,
    wait_until_following,
)

TORTURE = os.environ.get("TORTURE") == "1"
SIZE = 100_000 if TORTURE else 5_000


@pytest.fixture
def prefix() -> str:
    return f"torture{secrets.token_hex(6)}"


def test_64_claimers_on_1_000_keys(prefix: str) -> None:
    """No key is held twice, no value is lost or handed out twice, the order per key is kept."""
    stores = [connect(shared_server().url, prefix=prefix) for _ in range(8)]
    asyncio.run(run_claimers(stores, claimers=64, keys=1000, values=SIZE // 1000))


def produce(url: str, prefix: str, said: "multiprocessing.Queue[str]") -> None:
    """Put one item after the other, and name each that was acknowledged."""

    async def main() -> None:
        store = connect(url, prefix=prefix, retry_for=0)
        for number in range(10**6):
            try:
                await store.put([Put("q", ((f"k{number}", b"1"),))])
            except StoreError:
                return
            said.put(f"k{number}")

    asyncio.run(main())


def test_what_kill_9_loses_with_everysec(prefix: str) -> None:
    """Kill -9 spares what the system has in its cache. The part `servers` does it with `always`."""
    context = multiprocessing.get_context("spawn")
    with Server("--appendonly", "yes", "--appendfsync", "everysec") as server:
        for number in range(5 if TORTURE else 1):
            said: multiprocessing.Queue[str] = context.Queue()
            name = f"{prefix}{number}"
            process = context.Process(target=produce, args=(server.url, name, said), daemon=True)
            process.start()
            acknowledged = {said.get(timeout=60) for _ in range(500)}
            server.kill()
            process.join(60)
            while not said.empty():
                acknowledged.add(said.get())
            server.start()
            lost = acknowledged - asyncio.run(_keys(server, name))
            # The server puts a write off while the last sync is under way.
            print(f"appendfsync everysec: {len(lost)} of {len(acknowledged)} lost by kill -9")
            assert len(lost) < len(acknowledged)


def produce_much(url: str, prefix: str, said: Connection) -> None:
    """Put as much as 64 callers can, and tell at the end when each item was acknowledged."""
    acknowledged: dict[str, float] = {}

    async def put(store: Store, caller: int) -> None:
        for number in range(10**6):
            key = f"{caller}-{number}"
            try:
                await store.put([Put("q", ((key, b"1" * 100),))])
            except StoreError:
                return
            acknowledged[key] = time.monotonic()

    async def main() -> None:
        store = connect(url, prefix=prefix, retry_for=0)
        await asyncio.gather(*(put(store, caller) for caller in range(64)))

    asyncio.run(main())
    said.send(acknowledged)


def test_what_a_loss_of_power_loses_with_everysec(prefix: str) -> None:
    """What was acknowledged after the last sync began, and nothing older.

    The power goes right before the next sync: what the server has written since the last one is
    taken away from its file.
    """
    context = multiprocessing.get_context("spawn")
    for number in range(5 if TORTURE else 1):
        settings = ("--appendfsync", "everysec", "--auto-aof-rewrite-percentage", "0")
        with Server("--appendonly", "yes", *settings) as server:
            name = f"{prefix}{number}"
            heard, said = context.Pipe(duplex=False)
            arguments = (server.url, name, said)
            process = context.Process(target=produce_much, args=arguments, daemon=True)
            process.start()
            watch = SyncWatch(server)
            limit = time.monotonic() + 60
            while len(watch.gaps) < (4 if TORTURE else 1):
                assert time.monotonic() < limit, "the server does not sync"
                watch.until(time.monotonic() + 0.1)
            watch.until(watch.begun + 0.95)
            server.kill()
            killed = time.monotonic()
            acknowledged: dict[str, float] = heard.recv()
            process.join(60)
            os.truncate(watch.file, watch.size)
            server.start()
            lost = acknowledged.keys() - asyncio.run(_keys(server, name))
        oldest = min((acknowledged[key] for key in lost), default=killed)
        print(
            f"appendfsync everysec: {len(lost)} of {len(acknowledged)} lost with the power, the "
            f"oldest {killed - oldest:.2f} s old; synced every {max(watch.gaps):.2f} s at the "
            f"most, which took up to {watch.longest * 1000:.0f} ms"
        )
        assert lost, "the loss was none"
        # While a sync is under way, writes are put off, though they are acknowledged.
        assert oldest >= watch.begun - watch.longest
        late = max(watch.stalled, killed - watch.looked_at)
        assert killed - watch.begun < 2 + watch.longest + late


async def _keys(server: Server, prefix: str) -> set[str]:
    store: Store = connect(server.url, prefix=prefix)
    found: set[str] = set()
    cursor: str | None = None
    while True:
        page = await store.browse("q", cursor=cursor, limit=1000)
        found.update(item.key for item in page.items)
        cursor = page.cursor
        if cursor is None:
            await store.close()
            return found


def test_what_a_failover_to_a_replica_loses(prefix: str) -> None:
    """Replicas follow a little later: what was acknowledged in between is lost with the primary."""

    async def main(primary: Server) -> set[str]:
        store = connect(primary.url, prefix=prefix, retry_for=0)
        acknowledged: set[str] = set()

        async def put_all(caller: int) -> None:
            number = 0
            while True:
                key = f"{caller}-{number}"
                try:
                    await store.put([Put("q", ((key, b"1" * 100),))])
                except StoreError:
                    return
                acknowledged.add(key)
                number += 1

        putting = asyncio.gather(*(put_all(caller) for caller in range(64)))
        while len(acknowledged) < SIZE // 5:
            await asyncio.sleep(0.05)
        primary.kill()
        await putting
        await store.close()
        return acknowledged

    settings = ("--appendonly", "yes", "--repl-diskless-sync-delay", "0")
    with Server(*settings, port=free_port()) as primary:
        follow = ("--replicaof", f"127.0.0.1 {primary.port}")
        with Server(*follow) as replica, replica.client() as client:
            wait_until_following(replica)
            acknowledged = asyncio.run(main(primary))
            client.execute_command("REPLICAOF NO ONE")
            kept = asyncio.run(_keys(replica, prefix))
    lost = acknowledged - kept
    print(f"failover: {len(lost)} of {len(acknowledged)} acknowledged puts are lost")
    assert len(lost) < SIZE // 10


def test_memory_per_item(prefix: str) -> None:
    """What the guide says about it."""

    async def main(server: Server) -> float:
        store = connect(server.url, prefix=prefix)
        with server.client() as client:
            before = client.info("memory")["used_memory"]
            for first in range(0, SIZE, 1000):
                keys = [f"user:{first + number:011}" for number in range(1000)]
                await store.put([Put("q", tuple((key, b"x" * 100) for key in keys))])
            used: int = client.info("memory")["used_memory"] - before
        await store.close()
        return used / SIZE

    with Server() as server:
        size = asyncio.run(main(server))
    print(f"an item of 16 + 100 bytes takes {size:.0f} bytes")
    assert size < 700
