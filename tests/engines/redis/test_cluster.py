"""What only a cluster asks of the Redis store."""

import asyncio
import threading
from typing import Any

import pytest
import redis

from leasedkeyq import RedisStore, StoreError, connect
from leasedkeyq.engines.redis.engine import RedisEngine
from leasedkeyq.engines.redis.link import Steps
from leasedkeyq.model.requests import Claim, Claimed, Counts, Put, Urgency
from leasedkeyq.stores import StoreQueue
from tests.engines.redis.connection.load import Load
from tests.servers.valkey import SLOTS, Cluster, Server, shared_cluster

PATIENCE = 60.0


def slot_of(cluster: Cluster, queue: str, prefix: str) -> int:
    with cluster.servers[0].client() as client:
        slot: int = client.execute_command("CLUSTER KEYSLOT", f"{prefix}:{{{queue}}}:i")
        return slot


def owner_of(cluster: Cluster, slot: int) -> Server:
    size = len(cluster.servers)
    return next(
        server
        for number, server in enumerate(cluster.servers)
        if slot < SLOTS * (number + 1) // size
    )


def name_of(server: Server) -> str:
    with server.client(decode_responses=True) as client:
        name: str = client.execute_command("CLUSTER MYID")
        return name


class Moving:
    """A slot on its way to another server, as the tools of Redis move it."""

    def __init__(self, cluster: Cluster, slot: int) -> None:
        self.slot = slot
        self.source = owner_of(cluster, slot)
        self.target = next(server for server in cluster.servers if server is not self.source)
        self._set(self.target, "IMPORTING", name_of(self.source))
        self._set(self.source, "MIGRATING", name_of(self.target))

    def _set(self, server: Server, *what: str) -> None:
        with server.client() as client:
            client.execute_command("CLUSTER SETSLOT", self.slot, *what)

    def keys(self, server: Server) -> list[bytes]:
        with server.client() as client:
            keys: list[bytes] = client.execute_command("CLUSTER GETKEYSINSLOT", self.slot, 100)
            return keys

    def move_some(self) -> None:
        """Move every second key."""
        self._move(sorted(self.keys(self.source))[::2])

    def finish(self) -> None:
        self._move(self.keys(self.source))
        for server in (self.target, self.source):
            self._set(server, "NODE", name_of(self.target))

    def _move(self, keys: list[bytes]) -> None:
        with self.source.client() as client:
            for key in keys:
                client.execute_command("MIGRATE", "127.0.0.1", self.target.port, key, 0, 5000)


def test_a_queue_that_moves_to_another_server_stays_one_queue(prefix: str) -> None:
    async def main(cluster: Cluster) -> None:
        before = connect(cluster.url, prefix=prefix, retry_for=PATIENCE)
        await before.put([Put("q", (("a", b"1"), ("b", b"1")))])
        moving = Moving(cluster, slot_of(cluster, "q", prefix))
        after = connect(cluster.url, prefix=prefix, retry_for=PATIENCE)
        calls = [
            asyncio.create_task(store.put([Put("q", ((key, b"2"),))]))
            for store, key in ((before, "a"), (after, "b"), (after, "c"))
        ]
        await asyncio.wait(calls, timeout=0.5)
        moving.move_some()
        await asyncio.wait(calls, timeout=0.5)
        moving.finish()
        await asyncio.gather(*calls)
        assert moving.keys(moving.source) == []
        [items] = await before.claim([Claim((("q", 9),), 9)])
        assert {item.key: item.value for item in items} == {"a": b"2", "b": b"2", "c": b"2"}
        assert await after.count() == {"q": Counts(in_flight=3)}
        await before.close()
        await after.close()

    cluster = Cluster()
    try:
        asyncio.run(main(cluster))
    finally:
        cluster.close()


def test_waiting_for_the_disk_asks_the_server_that_has_the_queue(prefix: str) -> None:
    cluster = shared_cluster()

    def asked() -> list[int]:
        counts = []
        for server in cluster.servers:
            with server.client() as client:
                stats: dict[str, Any] = client.info("commandstats")
            counts.append(stats.get("cmdstat_waitaof", {"calls": 0})["calls"])
        return counts

    async def main() -> None:
        store = connect(cluster.url, prefix=prefix, wait_aof=True)
        expected = asked()
        for number in range(12):
            queue = f"q{number}"
            owner = owner_of(cluster, slot_of(cluster, queue, prefix))
            expected[cluster.servers.index(owner)] += 1
            await store.put([Put(queue, (("a", b"1"),))])
        assert asked() == expected
        assert len(await store.count()) == 12
        await store.close()

    asyncio.run(main())


def test_what_one_server_did_counts_though_another_fails(prefix: str) -> None:
    """Nobody would know of the leases otherwise."""
    cluster = shared_cluster()

    async def main() -> None:
        store = connect(cluster.url, prefix=prefix)
        await store.put([Put("good", ((key, b"1"),)) for key in "abcde"])
        with redis.RedisCluster.from_url(f"redis://127.0.0.1:{cluster.servers[0].port}") as client:
            client.set(f"{prefix}:{{bad}}:m", "no hash")
        [items] = await store.claim([Claim((("good", 1), ("bad", 1)), 2)])
        assert [item.key for item in items] == ["a"]
        [items, none] = await store.claim([Claim((("good", 1),)), Claim((("bad", 1),))])
        assert [item.key for item in items] == ["b"]
        assert none == ()
        with pytest.raises(StoreError):
            await store.put([Put("good", (("f", b"1"),)), Put("bad", (("a", b"1"),))])
        with pytest.raises(StoreError):
            await store.queue("bad").remove("a")
        with pytest.raises(StoreError):
            await store.claim([Claim((("bad", 1), ("good", 1)), 2)])
        assert await store.count(["good"]) == {"good": Counts(available=4, in_flight=2)}
        await store.close()

    asyncio.run(main())


def test_a_claim_by_urgency_finds_what_is_far_behind(prefix: str) -> None:
    async def main() -> None:
        store = connect(shared_cluster().url, prefix=prefix)
        await store.put([Put("a", tuple((f"k{number}", b"1") for number in range(6000)))])
        rare = [Put("a", (("x", b"1"), ("y", b"1")), kind="rare")]
        await store.put([*rare, Put("b", (("z", b"1"),), kind="rare")])
        queues, urgencies = (("a", 1), ("b", 5)), (Urgency(1), Urgency(2))
        claim = Claim(queues, 5, None, PATIENCE, ("rare",), urgencies=urgencies)
        [items] = await store.claim([claim])
        assert sorted(item.key for item in items) == ["x", "z"]
        await store.close()

    asyncio.run(main())


def test_a_claim_by_urgency_replaces_what_others_have_taken(
    prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = shared_cluster().url
    claim_part = RedisEngine._claim_part
    taken: list[str] = []

    async def take() -> None:
        other = connect(url, prefix=prefix)
        [[item]] = await other.claim([Claim((("a", 1),))])
        taken.append(item.key)
        await other.close()

    def late(
        engine: RedisEngine, request: Claim, number: int, limit: int
    ) -> Steps[tuple[Claimed, ...]]:
        if not taken:
            thief = threading.Thread(target=asyncio.run, args=(take(),))
            thief.start()
            thief.join(PATIENCE)
        return (yield from claim_part(engine, request, number, limit))

    async def main(store: RedisStore) -> None:
        await store.put([Put("a", (("a1", b"1"),)), Put("b", (("b1", b"1"), ("b2", b"1")))])
        queues, urgencies = (("a", 1), ("b", 1)), (Urgency(1), Urgency(2))
        [items] = await store.claim([Claim(queues, 1, None, PATIENCE, urgencies=urgencies)])
        assert (taken, [item.key for item in items]) == (["a1"], ["b1"])
        await store.close()

    monkeypatch.setattr(RedisEngine, "_claim_part", late)
    asyncio.run(main(RedisStore(url, prefix=prefix)))


def test_the_settings_of_all_servers_are_read(prefix: str) -> None:
    cluster = shared_cluster()

    async def main(**options: Any) -> RedisStore:
        store = connect(cluster.url, prefix=prefix, **options)
        assert isinstance(store, RedisStore)
        await store.close()
        return store

    store = asyncio.run(main())
    assert store.capabilities.durability == "process"
    assert ["once a second" in warning for warning in store.warnings] == [True]
    clients = [server.client() for server in cluster.servers]
    try:
        for client in clients:
            with pytest.raises(StoreError, match="'power' is required"):
                connect(cluster.url, prefix=prefix, require_durability="power")
            client.config_set("appendfsync", "always")
        store = asyncio.run(main(require_durability="power"))
        assert store.warnings == []
    finally:
        for client in clients:
            client.config_set("appendfsync", "everysec")
            client.close()


@pytest.mark.parametrize("name", ["{}", "}{", "{"])
def test_names_that_look_like_hash_tags(prefix: str, name: str) -> None:
    async def main() -> None:
        store = connect(shared_cluster().url, prefix=prefix)
        await store.put([Put(name, (("a", b"1"),))])
        [[item]] = await store.claim([Claim(((name, 1),))])
        assert item.key == "a"
        assert await store.count() == {name: Counts(in_flight=1)}
        await store.close()

    asyncio.run(main())


def test_a_server_of_a_cluster_is_killed(prefix: str) -> None:
    """Nothing that was acknowledged is lost, and work on the other servers goes on meanwhile.

    The server that counts the ids for all of them is another one: puts need it, too.
    """

    async def main(cluster: Cluster) -> None:
        with cluster.servers[0].client() as client:
            counting = owner_of(cluster, client.execute_command("CLUSTER KEYSLOT", f"{prefix}:m"))
        victim, other = (server for server in cluster.servers if server is not counting)
        names = [f"q{number}" for number in range(100)]
        places = {owner_of(cluster, slot_of(cluster, name, prefix)): name for name in names}
        stores = [
            connect(cluster.url, prefix=prefix, retry_for=PATIENCE, poll=0.5) for _ in range(5)
        ]
        assert {store.capabilities.durability for store in stores} == {"power"}
        hit = Load(stores[:2], places[victim])
        spared = [Load(stores[2:3], places[counting]), Load(stores[3:4], places[other])]
        waiting: StoreQueue[int] = StoreQueue(stores[4], places[victim] + ":slow")
        while owner_of(cluster, slot_of(cluster, waiting.name, prefix)) is not victim:
            waiting = StoreQueue(stores[4], waiting.name + "r")
        getting = asyncio.create_task(waiting.get())
        await hit.progress(50)
        await asyncio.to_thread(victim.kill)
        for load in spared:
            await load.progress(100)
        await asyncio.to_thread(victim.start)
        await hit.progress(50)
        await stores[3].queue(waiting.name).put("key", 1)
        _, value, lease = await asyncio.wait_for(getting, PATIENCE)
        assert value == 1
        await waiting.ack(lease)
        for load in (hit, *spared):
            await load.finish()
        for store in stores:
            await store.close()

    cluster = Cluster("--appendfsync", "always")
    try:
        asyncio.run(main(cluster))
    finally:
        cluster.close()


def test_a_cluster_that_is_gone_is_an_error(prefix: str) -> None:
    async def main(cluster: Cluster) -> None:
        store = connect(cluster.url, prefix=prefix, retry_for=0.1)
        for server in cluster.servers:
            server.kill()
        with pytest.raises(StoreError, match="could not be reached"):
            await store.put([Put("q", (("a", b"1"),))])
        await store.close()

    cluster = Cluster()
    try:
        asyncio.run(main(cluster))
    finally:
        cluster.close()


def test_one_server_of_a_cluster_is_no_store() -> None:
    port = shared_cluster().servers[0].port
    with pytest.raises(StoreError, match=r"redis\+cluster://"):
        connect(f"redis://127.0.0.1:{port}")
