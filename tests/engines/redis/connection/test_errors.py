"""What the Redis store says when something is wrong, and how soon: with advice, by real servers."""

import asyncio
import logging
import shutil
import signal
import socket
import ssl
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trustme

from leasedkeyq import StoreError, StoreUnavailableError, connect
from leasedkeyq.engines.redis.errors import TROUBLES
from leasedkeyq.model.requests import Claim, Counts, Put
from tests.servers.proxy import Direction, Proxy, Verdict
from tests.servers.valkey import (
    Make,
    Server,
    free_port,
    makes,
    shared_cluster,
    shared_server,
    wait_until_following,
)

SOON = 15.0
"""Seconds: a mistake in the URL is told before patience is at its end, also on a busy machine."""
PATIENCE = 120.0


def told(url: str, **options: Any) -> str:
    """What a store says that cannot be opened, and soon."""
    began = time.monotonic()
    with pytest.raises(StoreError) as caught:
        connect(url, retry_for=PATIENCE, **options)
    assert time.monotonic() - began < SOON
    assert not isinstance(caught.value, StoreUnavailableError)
    return str(caught.value)


@pytest.fixture(scope="module")
def plain() -> Iterator[Server]:
    with Server(port=free_port()) as server:
        yield server


# TLS


class Tls:
    """A server behind a proxy that speaks TLS, and the files of its certificates."""

    def __init__(self, server: Server, folder: Path, *, wants_certificate: bool = False) -> None:
        self.authority = trustme.CA()
        self.trusted = folder / "ca.pem"
        self.authority.cert_pem.write_to_path(self.trusted)
        self.stranger = folder / "stranger.pem"
        trustme.CA().cert_pem.write_to_path(self.stranger)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.authority.issue_cert("localhost").configure_cert(context)
        if wants_certificate:
            self.authority.configure_trust(context)
            context.verify_mode = ssl.CERT_REQUIRED
        self.proxy = Proxy(server.socket, tls=context)
        self.port = self.proxy.port


@contextmanager
def tls(server: Server, folder: Path, **options: Any) -> Generator[Tls]:
    found = Tls(server, folder, **options)
    with found.proxy:
        yield found


def test_tls_on_a_port_without_it(plain: Server) -> None:
    for scheme in ("rediss", "valkeys"):
        said = told(f"{scheme}://127.0.0.1:{plain.port}")
        assert "speaks no TLS at this port: write redis://" in said


def test_a_port_with_tls_that_is_asked_without(plain: Server, tmp_path: Path) -> None:
    with tls(plain, tmp_path) as server:
        said = told(f"redis://localhost:{server.port}")
        assert "speaks TLS at this port: write rediss://" in said


def test_certificates_that_do_not_fit(plain: Server, tmp_path: Path) -> None:
    nothing = tmp_path / "nothing.pem"
    nothing.write_text("no certificate")
    with tls(plain, tmp_path) as server:
        url = f"rediss://localhost:{server.port}"
        assert "signed by nobody who is trusted here" in told(url)
        assert "?ssl_ca_certs=" in told(f"{url}?ssl_ca_certs={server.stranger}")
        here = f"rediss://127.0.0.1:{server.port}?ssl_ca_certs={server.trusted}"
        assert "for another host" in told(here)
        assert "is no certificate" in told(f"{url}?ssl_ca_certs={nothing}")
        missing = str(tmp_path / "none.pem")
        for name in ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile"):
            assert f"{name} names a file that is not there" in told(f"{url}?{name}={missing}")
            assert missing in told(url, client_options={name: missing})


def test_a_server_that_wants_a_certificate_of_the_client(plain: Server, tmp_path: Path) -> None:
    with tls(plain, tmp_path, wants_certificate=True) as server:
        said = told(f"rediss://localhost:{server.port}?ssl_ca_certs={server.trusted}")
        assert "wants a certificate of this client" in said
        assert "ssl_certfile=" in said


# Mistakes in the URL


def test_users_and_passwords() -> None:
    with Server("--requirepass", "right", port=free_port()) as server:
        host = f"127.0.0.1:{server.port}"
        assert "wants a password: write redis://user:password@host" in told(f"redis://{host}")
        for user in ("", "nobody"):
            said = told(f"redis://{user}:wrong@{host}")
            assert "the user or the password in the URL is wrong" in said
            assert ":wrong@" not in said


def test_numbers_of_databases_and_clusters_that_are_none(plain: Server) -> None:
    assert "no database of the number" in told(f"redis://127.0.0.1:{plain.port}/99")
    assert "no part of a cluster" in told(f"redis+cluster://127.0.0.1:{plain.port}")
    [first, *_] = shared_cluster().servers
    assert "open redis+cluster://" in told(first.url)


def test_a_host_without_a_server() -> None:
    with pytest.raises(
        StoreUnavailableError, match=r"could not be reached for 0\.2 s: nobody list"
    ):
        connect(f"redis://127.0.0.1:{free_port()}", retry_for=0.2)
    with pytest.raises(StoreUnavailableError, match="the name of the host is not known"):
        connect("redis://no.such.host.invalid", retry_for=0.2)
    with pytest.raises(StoreUnavailableError, match="the socket is not there"):
        connect("unix:///no/such/socket", retry_for=0.2)
    with pytest.raises(StoreUnavailableError):
        connect(f"redis+cluster://127.0.0.1:{free_port()}", retry_for=0.2)


@contextmanager
def saying(line: str) -> Generator[int]:
    """A port where the same is said to every command."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            with client, suppress(OSError):
                client.settimeout(0.2)
                while data := client.recv(4096):
                    client.sendall(line.encode() * max(data.count(b"*"), 1))

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


@pytest.mark.parametrize(
    "line, advice",
    [
        ("-DENIED Redis is running in protected mode because ...\r\n", "protected-mode"),
        ("HTTP/1.1 400 Bad Request\r\n\r\n", "no Redis server"),
        ("-ERR unknown command 'SCRIPT'\r\n", "pass on scripts"),
    ],
)
def test_what_answers_is_no_server_for_us(line: str, advice: str) -> None:
    with saying(line) as port:
        assert advice in told(f"redis://127.0.0.1:{port}?protocol=2")


# Replicas


@pytest.fixture
def replicated() -> Iterator[tuple[Server, Server]]:
    """A primary and its replica."""
    with (
        Server("--repl-diskless-sync-delay", "0", port=free_port()) as primary,
        Server("--replicaof", f"127.0.0.1 {primary.port}", port=free_port()) as replica,
    ):
        wait_until_following(replica)
        yield primary, replica


@pytest.mark.parametrize("rights", [[], ["-info"]])
def test_a_replica_is_refused_at_once(replicated: tuple[Server, Server], rights: list[str]) -> None:
    """Also one that takes changes, which its primary never hears of, and without INFO."""
    primary, replica = replicated
    with replica.client() as client:
        client.config_set("replica-read-only", "no")
        client.execute_command("ACL SETUSER", "me", "on", ">it", "~*", "&*", "+@all", *rights)
    said = told(f"redis://me:it@127.0.0.1:{replica.port}")
    assert "the server is a replica" in said
    assert "name its primary in the URL" in said
    assert rights or f"replica of 127.0.0.1:{primary.port}" in said


def test_a_primary_that_becomes_a_replica_is_no_empty_queue(
    replicated: tuple[Server, Server], prefix: str
) -> None:
    _, replica = replicated

    async def main(server: Server) -> None:
        store = connect(server.url, prefix=prefix)
        queue = store.queue("q")
        with pytest.raises(TimeoutError):
            await queue.get(timeout=0.1)
        with server.client() as client:
            client.replicaof("127.0.0.1", replica.port)
            with pytest.raises(StoreUnavailableError, match="is a replica"):
                await queue.get(timeout=0.5)
            client.replicaof("NO", "ONE")
        await queue.put("a", 1)
        assert (await queue.get(timeout=PATIENCE))[0] == "a"
        await store.close()

    with Server(port=free_port()) as server:
        asyncio.run(main(server))


# Outages


def test_a_server_that_is_down_is_no_empty_queue(
    prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "leasedkeyq")

    async def main(server: Server) -> None:
        store = connect(server.url, prefix=prefix, retry_for=PATIENCE)
        queue = store.queue("q")
        assert store.outage is None
        with pytest.raises(TimeoutError):
            await queue.get(timeout=0.1)
        server.kill()
        began = time.monotonic()
        with pytest.raises(StoreUnavailableError, match=r"has been away for .* s: the socket"):
            await queue.get(timeout=1)
        assert time.monotonic() - began < SOON
        with pytest.raises(StoreUnavailableError):
            await queue.take("a", timeout=0.2)
        assert caplog.text.count("the server is away") == 1
        server.start()
        await queue.put("a", 1)
        assert (await queue.get(timeout=PATIENCE))[0] == "a"
        assert store.outage is None
        assert "the server answers again after" in caplog.text
        with pytest.raises(TimeoutError):
            await queue.get(timeout=0.1)
        await store.close()

    with Server() as server:
        asyncio.run(main(server))


def test_an_outage_by_way_of_a_thread(prefix: str, tmp_path: Path) -> None:
    """With TLS, a thread of the store talks to the server."""

    async def main(server: Tls) -> None:
        address = f"rediss://localhost:{server.port}?ssl_ca_certs={server.trusted}"
        store = connect(address, prefix=prefix, retry_for=PATIENCE)
        queue = store.queue("q")
        with pytest.raises(TimeoutError):
            await queue.get(timeout=0.1)
        server.proxy.refuse = True
        server.proxy.cut_all()
        with pytest.raises(StoreUnavailableError, match="has been away for"):
            await queue.get(timeout=1)
        server.proxy.refuse = False
        await queue.put("a", 1)
        assert (await queue.get(timeout=PATIENCE))[0] == "a"
        assert store.outage is None
        await store.close()

    with tls(shared_server(), tmp_path) as server:
        asyncio.run(main(server))


def test_a_server_that_is_frozen_is_no_empty_queue(prefix: str) -> None:
    async def main(server: Server) -> None:
        store = connect(server.url, prefix=prefix)
        queue = store.queue("q")
        with pytest.raises(TimeoutError):
            await queue.get(timeout=0.1)
        server.signal(signal.SIGSTOP)
        try:
            with pytest.raises(StoreUnavailableError, match="did not answer"):
                await queue.get(timeout=0.3)
        finally:
            server.signal(signal.SIGCONT)
        await queue.put("a", 1)
        assert (await queue.get(timeout=PATIENCE))[0] == "a"
        await store.close()

    with Server() as server:
        asyncio.run(main(server))


def test_an_outage_that_one_loop_has_met_is_over_for_all(prefix: str) -> None:
    """A call in another event loop, whose connection lives, says that the server is there."""

    async def answered(store: Any) -> None:
        await store.count(["q"])
        store._link.lost(ConnectionError("somebody's connection"))
        assert store.outage is not None
        await store.count(["q"])
        assert store.outage is None
        await store.close()

    asyncio.run(answered(connect(shared_server().url, prefix=prefix)))


# Whether a change was made


@pytest.mark.parametrize("url", ["redis", "rediss"])
def test_it_is_said_whether_a_change_may_have_been_made(
    url: str, prefix: str, tmp_path: Path
) -> None:
    """An answer that was lost, and a server that was never reached, are told apart."""

    async def main(server: Tls | Server, proxy: Proxy, address: str) -> None:
        store = connect(address, prefix=prefix, retry_for=0.3)
        await store.put([Put("q", (("a", b"1"),))])

        def lose_answers(way: Direction, _number: int, data: bytes) -> Verdict:
            return "cut" if way == "reply" else "pass"

        proxy.begin(lose_answers)
        with pytest.raises(StoreUnavailableError, match="not known whether the change was made"):
            await store.put([Put("q", (("b", b"1"),))])
        with pytest.raises(StoreUnavailableError) as caught:
            await store.count(["q"])
        assert "the change" not in str(caught.value)
        proxy.refuse = True
        proxy.begin()
        with suppress(StoreUnavailableError):
            await store.count(["q"])
        with pytest.raises(StoreUnavailableError):
            await store.count(["q"])
        proxy.refuse = False
        assert (await store.count(["q"]))["q"].available >= 1
        await store.close()

    if url == "redis":
        with Proxy(shared_server().socket) as proxy:
            address = f"redis://127.0.0.1:{proxy.port}"
            asyncio.run(main(shared_server(), proxy, address))
    else:
        with tls(shared_server(), tmp_path) as server:
            address = f"rediss://localhost:{server.port}?ssl_ca_certs={server.trusted}"
            asyncio.run(main(server, server.proxy, address))


def test_nothing_is_changed_by_a_server_that_cannot_be_reached(prefix: str) -> None:
    async def main(server: Server) -> None:
        store = connect(server.url, prefix=prefix, retry_for=0.3)
        server.kill()
        with pytest.raises(StoreUnavailableError, match=r"nothing was changed$"):
            await store.put([Put("q", (("a", b"1"),))])
        await store.close()

    with Server() as server:
        asyncio.run(main(server))


# What a server refuses


async def refused(server: Server, prefix: str, kind: type[StoreError], advice: str) -> None:
    """A put is refused, with advice, and changes nothing."""
    store = connect(server.url, prefix=prefix, retry_for=0.3)
    await store.put([Put("q", (("a", b"1"),))])
    yield_to_server = await asyncio.to_thread(server.client)
    with yield_to_server as client:
        client.config_set("min-replicas-to-write", 1)
        with pytest.raises(kind, match=advice):
            await store.put([Put("q", (("b", b"1"),))])
        client.config_set("min-replicas-to-write", 0)
    assert await store.count(["q"]) == {"q": Counts(available=1)}
    await store.close()


def test_a_server_with_too_few_replicas(prefix: str) -> None:
    advice = "could not be used for .*min-replicas-to-write.*; nothing was changed$"
    with Server() as server:
        asyncio.run(refused(server, prefix, StoreUnavailableError, advice))


def test_a_server_that_cannot_write_to_its_disk(prefix: str, tmp_path: Path) -> None:
    async def main(server: Server) -> None:
        store = connect(server.url, prefix=prefix)
        await store.put([Put("q", (("a", b"1"),))])
        with server.client() as client:
            client.config_set("save", "3600 1")
            shutil.rmtree(folder)
            client.bgsave()
            deadline = time.monotonic() + PATIENCE
            while client.info("persistence")["rdb_last_bgsave_status"] == "ok":
                assert time.monotonic() < deadline
                await asyncio.sleep(0.01)
            with pytest.raises(StoreError, match=r"cannot write to its disk.*nothing was changed$"):
                await store.put([Put("q", (("b", b"1"),))])
            client.config_set("stop-writes-on-bgsave-error", "no")
        assert await store.count(["q"]) == {"q": Counts(available=1)}
        await store.close()

    folder = tmp_path / "gone"
    folder.mkdir()
    with Server("--dir", str(folder)) as server:
        asyncio.run(main(server))


def test_a_server_that_is_kept_busy_by_others(prefix: str) -> None:
    async def main(server: Server) -> None:
        store = connect(server.url, prefix=prefix, retry_for=0.3)
        await store.put([Put("q", (("a", b"1"),))])
        with server.client() as client, server.client() as other:
            client.config_set("lua-time-limit", 1)
            forever = asyncio.create_task(
                asyncio.to_thread(_ended_by_others, other, "while true do end")
            )
            with pytest.raises(StoreUnavailableError, match="keeps the server busy"):
                async with asyncio.timeout(PATIENCE):
                    while True:
                        await store.put([Put("q", (("a", b"1"),))])
            client.script_kill()
            await forever
        await store.close()

    with Server() as server:
        asyncio.run(main(server))


def _ended_by_others(client: Any, script: str) -> None:
    with pytest.raises(Exception, match="killed"):
        client.eval(script, 0)


def test_a_server_that_reads_its_data(prefix: str) -> None:
    """It is waited for; if that takes too long, the error says what it does."""
    slowly = ("--key-load-delay", "100000", "--loading-process-events-interval-bytes", "1024")
    enough = threading.Event()

    def start(server: Server) -> None:
        server.start()
        enough.wait()  # a server ends with the thread that has started it

    with Server("--rdbcompression", "no", *slowly) as server:
        with server.client() as client:
            client.mset({f"key{number}": "x" * 2000 for number in range(40)})
            client.save()
        server.kill()
        starting = threading.Thread(target=start, args=(server,))
        starting.start()
        try:
            said = _until_loading(server, prefix)
            assert "could not be used for 0.1 s: the server is reading its data" in said
            store = connect(server.url, prefix=prefix, retry_for=PATIENCE)
            assert asyncio.run(store.claim([Claim((("q", 1),), 1)])) == [()]
        finally:
            enough.set()
            starting.join()


def _until_loading(server: Server, prefix: str) -> str:
    deadline = time.monotonic() + PATIENCE
    while True:
        assert time.monotonic() < deadline
        try:
            connect(server.url, prefix=prefix, retry_for=0.1)
        except StoreError as error:
            if "reading its data" in str(error):
                return str(error)
        else:
            raise AssertionError("it was loaded too soon")


def test_a_server_that_has_no_room_for_another_connection(prefix: str) -> None:
    with Server("--maxclients", "2") as server, server.client() as one, server.client() as other:
        one.ping()
        other.ping()
        with pytest.raises(StoreUnavailableError, match="raise its maxclients"):
            connect(server.url, prefix=prefix, retry_for=0.2)


@pytest.mark.parametrize("make", makes())
def test_a_user_without_a_right_is_told_which(make: Make, prefix: str) -> None:
    """Also inside the script, where old servers give no code to their errors."""

    async def main(server: Server) -> None:
        store = connect(f"unix://me:it@{server.socket}", prefix=prefix)
        with server.client() as client:
            client.execute_command("ACL SETUSER", "me", "-hset", "-hsetnx")
        with pytest.raises(StoreError, match=r"may not do this.*rights"):
            await store.put([Put("q", (("a", b"1"),))])
        with server.client() as client:
            client.execute_command("ACL SETUSER", "me", "-evalsha")
        with pytest.raises(StoreError, match=r"may not do this.*rights.*evalsha"):
            await store.put([Put("q", (("a", b"1"),))])
        await store.close()

    with Server(make=make) as server:
        with server.client() as client:
            client.execute_command("ACL SETUSER", "me", "on", ">it", "~*", "&*", "+@all")
        asyncio.run(main(server))


# The table


def test_the_table_says_something_about_each_trouble_and_no_advice_twice() -> None:
    advice = [trouble.advice for trouble in TROUBLES]
    assert len(set(advice)) == len(advice)
    assert all(len(each) > 20 for each in advice)
