"""Opening the Redis store: URLs, rights, TLS, Sentinel, and what the server's settings mean."""

import asyncio
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis
import trustme

import leasedkeyq
from leasedkeyq import RedisStore, StoreError, connect
from leasedkeyq.model.requests import Ack, Claim, Counts, Durability, Put
from tests.servers.proxy import Proxy
from tests.servers.valkey import (
    Server,
    free_port,
    shared_cluster,
    shared_server,
    shared_url,
    wait_until_following,
)

RIGHTS = ["~leasedkeyq:*", "&leasedkeyq:*", "+@all", "-@dangerous", "+info", "+config|get"]
PATIENCE = 30.0


def use(url: str, **options: Any) -> RedisStore:
    """Open a store, do all that a worker does, and close it."""

    async def main() -> RedisStore:
        store = connect(url, **options)
        assert isinstance(store, RedisStore)
        woken = asyncio.Event()
        stop = store.watch("q", woken.set)
        await store.put([Put("q", (("a", b"1"),))])
        [[item]] = await store.claim([Claim((("q", 1),), 1, None, 60.0)])
        assert await store.settle([Ack("q", "a", item.token)]) == [None]
        await asyncio.wait_for(woken.wait(), PATIENCE)
        assert await store.count() == {}
        await store.edit("q", lambda _: [])
        stop()
        await store.close()
        return store

    return asyncio.run(main())


# URLs


def test_an_option_that_nobody_knows_is_named() -> None:
    with pytest.raises(ValueError, match=r"does not know an option of the URL.*'prefix'"):
        connect(f"{shared_url()}?prefix=mine")


def test_urls(prefix: str) -> None:
    with Server(port=free_port()) as server:
        host = f"127.0.0.1:{server.port}"
        for url in (
            f"redis://{host}",
            f"redis://{host}/1",
            f"valkey://{host}/2?socket_timeout=20",
            f"unix://{server.socket}",
            f"unix://{server.socket}?db=3",
        ):
            assert use(url, prefix=prefix)._link.in_loop
        with server.client() as client:
            found = set(client.info("keyspace"))
    assert found == {"db0", "db1", "db2", "db3"}


def test_cluster_urls(prefix: str) -> None:
    cluster = shared_cluster()
    store = use(f"{cluster.url}?socket_timeout=20", prefix=prefix)
    assert not store._link.in_loop
    assert store._link.client.get_connection_kwargs()["socket_timeout"] == 20
    use(cluster.url, prefix=prefix, client_options={"socket_timeout": 20.0})
    use(f"valkey://127.0.0.1:{cluster.servers[1].port}?cluster=true", prefix=prefix)


def test_a_url_without_a_server_says_so() -> None:
    url = f"redis://me:secret@127.0.0.1:{free_port()}"
    with pytest.raises(StoreError, match=r"could not be reached for 0\.1 s") as caught:
        connect(url, retry_for=0.1)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url, options",
    [
        ("redis+sentinel://127.0.0.1:1", {}),
        ("redis://127.0.0.1:1", {"prefix": "a{b}"}),
        ("redis://127.0.0.1:1", {"prefix": ""}),
        ("redis://127.0.0.1:1", {"require_durability": "much"}),
        ("redis://127.0.0.1:1", {"wait_replicas": -1}),
        ("redis://127.0.0.1:1", {"retry_for": -1}),
        ("redis://127.0.0.1:1", {"edit_time": 0}),
        ("redis://127.0.0.1:1", {"wait_timeout": 0}),
        ("redis://127.0.0.1:1", {"poll": 0}),
    ],
)
def test_arguments_that_mean_nothing(url: str, options: dict[str, Any]) -> None:
    with pytest.raises(
        ValueError, match=r"prefix|durability|wait_|retry_for|service|edit_time|poll"
    ):
        connect(url, **options)


def test_without_redis_py_the_error_names_the_command(tmp_path: Path) -> None:
    program = f"""
import sys
sys.path.insert(0, {str(Path(leasedkeyq.__file__).parent.parent)!r})
sys.modules["redis"] = None
from leasedkeyq import connect
try:
    connect("redis://localhost")
except ModuleNotFoundError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert 'pip install "leasedkeyq[redis]"' in done.stdout


# Users and TLS


def test_a_user_with_few_rights() -> None:
    with Server() as server:
        with server.client() as client:
            client.execute_command("ACL SETUSER", "worker", "on", ">right", *RIGHTS)
            client.execute_command("ACL SETUSER", "default", "off")
        url = f"unix://worker:right@{server.socket}"
        use(url)
        with pytest.raises(StoreError, match="password"):
            connect(f"unix://worker:wrong@{server.socket}")
        with pytest.raises(StoreError, match="password"):
            connect(server.url)
        with pytest.raises(StoreError, match="may not"):
            use(url, prefix="elsewhere")


def test_a_user_who_may_not_read_the_settings() -> None:
    with Server("--appendonly", "yes") as server:
        with server.client() as client:
            client.execute_command("ACL SETUSER", "worker", "on", ">right", *RIGHTS, "-config")
        store = use(f"unix://worker:right@{server.socket}")
        assert store.capabilities.durability == "process"
        assert "CONFIG GET" in store.warnings[0]


def test_a_user_who_may_not_ask_for_anything_about_the_server() -> None:
    with Server("--appendonly", "yes", "--appendfsync", "always") as server:
        rights = [right for right in RIGHTS if right not in {"+info", "+config|get"}]
        with server.client() as client:
            client.execute_command("ACL SETUSER", "worker", "on", ">right", *rights)
        url = f"unix://worker:right@{server.socket}"
        store = use(url)
        assert store.capabilities.durability == "none"
        assert "INFO" in store.warnings[0]
        with pytest.raises(StoreError, match="'process' is required"):
            connect(url, require_durability="process")


def test_a_user_who_may_not_listen_is_told_once_and_not_woken_all_the_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(url: str) -> None:
        store = connect(url, poll=PATIENCE)
        woken = 0

        def wake() -> None:
            nonlocal woken
            woken += 1

        store.watch("q", wake)
        deadline = time.monotonic() + PATIENCE
        while "does not let us listen" not in caplog.text:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        await asyncio.sleep(1.5)
        assert woken <= 3
        assert caplog.text.count("does not let us listen") == 1
        await store.close()

    with Server("--acl-pubsub-default", "resetchannels") as server:
        rights = [right for right in RIGHTS if not right.startswith("&")]
        with server.client() as client:
            client.execute_command("ACL SETUSER", "worker", "on", ">right", *rights)
        asyncio.run(main(f"unix://worker:right@{server.socket}"))


def test_a_user_who_may_not_publish_is_woken_by_the_poll() -> None:
    """What a store does is done all the same."""
    with Server("--acl-pubsub-default", "resetchannels") as server:
        rights = [right for right in RIGHTS if not right.startswith("&")]
        with server.client() as client:
            client.execute_command("ACL SETUSER", "worker", "on", ">right", *rights)
        use(f"unix://worker:right@{server.socket}", poll=0.1)


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


def test_tls(authority: trustme.CA, tmp_path: Path, prefix: str) -> None:
    """The servers of the tests have no TLS: a proxy speaks it for them."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    trusted = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(trusted)
    with Proxy(shared_server().socket, tls=context) as proxy:
        url = f"rediss://localhost:{proxy.port}/0"
        assert use(f"{url}?ssl_ca_certs={trusted}", prefix=prefix)._link.in_loop
        use(url, prefix=prefix, client_options={"ssl_ca_certs": str(trusted)})
        with pytest.raises(StoreError, match="certificate"):
            connect(url, retry_for=0)


# Sentinel


@pytest.fixture
def watched() -> Iterator[tuple[list[Server], str]]:
    """A primary and a replica, three Sentinels that watch them, and the URL of all."""
    with ExitStack() as ends:
        settings = ("--appendonly", "yes", "--repl-diskless-sync-delay", "0")
        primary = ends.enter_context(Server(*settings, port=free_port()))
        follow = ("--replicaof", f"127.0.0.1 {primary.port}")
        replica = ends.enter_context(Server(*settings, *follow, port=free_port()))
        wait_until_following(replica)
        ports: list[int] = []
        for _ in range(3):
            port = free_port()
            sentinel = ends.enter_context(Server(port=port, sentinel_of=primary))
            del sentinel
            ports.append(port)
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        for port in ports:
            _wait_until_known(port)
        yield [primary, replica], f"redis+sentinel://{hosts}/main/0"


def _wait_until_known(port: int) -> None:
    deadline = time.monotonic() + PATIENCE
    with redis.Redis(port=port) as client:
        while True:
            known: Any = client.sentinel_masters()
            [state] = known.values()
            if state["num-slaves"] >= 1 and state["num-other-sentinels"] >= 2:
                return
            assert time.monotonic() < deadline, state
            time.sleep(0.05)


def test_sentinel_and_a_failover(watched: tuple[list[Server], str], prefix: str) -> None:
    """The store finds the primary, waits for its replica, and goes on with the next primary."""
    [primary, replica], url = watched

    async def main() -> None:
        others = connect(url, prefix=prefix, client_options={"sentinel_kwargs": {"db": 0}})
        await others.close()
        store = RedisStore(url, prefix=prefix, wait_replicas=1, wait_timeout=1.0, retry_for=60.0)
        assert store._link.in_loop
        await store.put([Put("q", (("before", b"1"),))])
        primary.kill()
        with pytest.raises(StoreError, match=r"not confirmed.*WAIT"):
            await store.put([Put("q", (("after", b"1"),))])
        assert await store.count() == {"q": Counts(available=2)}
        await store.close()

    asyncio.run(main())
    with replica.client() as client:
        assert client.info("replication")["role"] == "master"


# Durability


@pytest.mark.parametrize(
    "settings, durability, warning",
    [
        (("--appendonly", "yes", "--appendfsync", "always"), "power", ""),
        (("--appendonly", "yes"), "process", "may lose the last second"),
        (("--appendonly", "yes", "--appendfsync", "no"), "process", "half a minute"),
        ((), "none", "loses everything"),
    ],
)
def test_durability_is_what_the_server_is_set_up_for(
    settings: tuple[str, ...],
    durability: Durability,
    warning: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with Server(*settings) as server:
        store = use(server.url)
        assert store.capabilities.durability == durability
        assert warning in "".join(store.warnings)
        assert warning in caplog.text
        assert bool(store.warnings) == bool(warning)
        use(server.url, require_durability=durability)
        if durability != "power":
            with pytest.raises(StoreError, match="'power' is required"):
                connect(server.url, require_durability="power")


def test_wait_aof_waits_and_promises_no_more_than_the_server_keeps() -> None:
    with Server("--appendonly", "yes") as server:
        store = use(server.url, wait_aof=True)
        assert store.capabilities.durability == "process"
        with server.client() as client:
            assert client.info("commandstats")["cmdstat_waitaof"]["calls"] >= 3


def test_a_server_without_a_file_cannot_wait_for_its_disk() -> None:
    with Server() as server, pytest.raises(StoreError, match="appendonly to yes"):
        connect(server.url, wait_aof=True)


def test_an_old_server_cannot_wait_for_its_disk() -> None:
    with pytest.raises(StoreError, match=r"7\.2"):
        connect(shared_server("redis6").url, wait_aof=True)


def test_a_batch_that_is_not_confirmed_in_time_is_an_error() -> None:
    with Server() as server, pytest.raises(StoreError, match="was made, but was not confirmed"):
        use(server.url, wait_replicas=1, wait_timeout=0.01)


def test_a_server_that_evicts_is_refused() -> None:
    with (
        Server("--maxmemory-policy", "allkeys-lru", "--maxmemory", "100mb") as server,
        pytest.raises(StoreError, match=r"allkeys-lru.*noeviction"),
    ):
        connect(server.url)


def test_a_server_without_memory_refuses_and_nothing_is_half_done() -> None:
    async def main(url: str) -> None:
        store = connect(url)
        stored: set[str] = set()
        with pytest.raises(StoreError, match="memory is full"):
            for number in range(100):
                await store.put([Put("q", ((f"k{number}", b"1" * 500_000), (f"x{number}", b"1")))])
                stored |= {f"k{number}", f"x{number}"}
        assert stored
        page = await store.browse("q", limit=500)
        assert {item.key for item in page.items} == stored
        [items] = await store.claim([Claim((("q", 500),), 500)])
        assert {item.key for item in items} == stored
        await store.settle([Ack("q", item.key, item.token) for item in items])
        assert await store.count() == {}
        await store.close()

    with Server("--maxmemory", "10mb") as server:
        asyncio.run(main(server.url))


def test_an_option_that_no_cluster_knows_is_named() -> None:
    with pytest.raises(ValueError, match=r"does not know an option of the URL.*: prefix;"):
        connect(f"{shared_cluster().url}?prefix=mine")
