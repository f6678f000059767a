"""TLS in the event loop: what it carries, and what becomes of a connection that is lost."""

import asyncio
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from leasedkeyq import RedisStore
from leasedkeyq.engines.redis.loop_link import LoopLink, TlsTransport
from leasedkeyq.engines.redis.parked_claims import ParkedClaimer
from leasedkeyq.model.requests import Claim, Claimed, Put
from leasedkeyq.stores.batching import LoopBatcher
from tests.engines.redis.support import until
from tests.servers.proxy import Proxy
from tests.servers.valkey import shared_server

LARGE = tuple((f"key {number}", b'"' + b"x" * 500_000 + b'"') for number in range(10))
"""More than the buffers of a socket take at a time."""


@pytest.fixture
def trusted(tmp_path: Path) -> Iterator[tuple[Proxy, str]]:
    """A proxy that speaks TLS for a server, and the URL of that."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    path = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(path)
    with Proxy(shared_server().socket, tls=context) as proxy:
        yield proxy, f"rediss://localhost:{proxy.port}/0?ssl_ca_certs={path}"


def transports(store: RedisStore) -> list[Any]:
    """What carries the calls of this store."""
    assert isinstance(store._batcher, LoopBatcher)
    found: list[Any] = []
    for site in store._batcher._sites.values():
        assert isinstance(site.engine, LoopLink)
        assert site.engine._connection is not None
        found.append(site.engine._connection._transport)
    return found


def test_large_values_and_many_callers(trusted: tuple[Proxy, str], prefix: str) -> None:
    async def main() -> None:
        store = RedisStore(trusted[1], prefix=prefix)
        [numbers] = await store.put([Put("large", LARGE)])
        assert isinstance(numbers, tuple)
        [carrier] = transports(store)
        assert isinstance(carrier, TlsTransport), "no thread is between"
        [items] = await store.claim([Claim((("large", 10),), 10)])
        assert [(item.key, bytes(item.value)) for item in items] == list(LARGE)
        queue: Any = store.queue("q")
        await asyncio.gather(*(queue.put(f"key {number}", number) for number in range(500)))
        found = await asyncio.gather(*(queue.get() for _ in range(500)))
        assert sorted(value for _, value, _ in found) == list(range(500))
        await store.close()

    asyncio.run(main())


def test_a_waiting_get_is_woken(trusted: tuple[Proxy, str], prefix: str) -> None:
    async def main() -> None:
        puts = RedisStore(trusted[1], prefix=prefix)
        store = RedisStore(trusted[1], prefix=prefix, poll=60.0)
        queue: Any = store.queue("q")
        waiting = asyncio.create_task(queue.get())
        await until(lambda: puts._link.client.pubsub_channels(f"{prefix}:*"))
        other: Any = puts.queue("q")
        await other.put("a", 1)
        async with asyncio.timeout(20):
            assert (await waiting)[:2] == ("a", 1)
        await store.close()
        await puts.close()

    asyncio.run(main())


def test_claims_are_parked(trusted: tuple[Proxy, str], prefix: str) -> None:
    async def main() -> None:
        store = RedisStore(trusted[1], prefix=prefix)
        given: list[Claimed] = []
        assert isinstance(store.claimer(given.append), ParkedClaimer)
        await store.close()

    asyncio.run(main())


def test_a_lost_connection_is_made_anew(trusted: tuple[Proxy, str], prefix: str) -> None:
    async def main() -> None:
        proxy, url = trusted
        store = RedisStore(url, prefix=prefix)
        queue: Any = store.queue("q")
        await queue.put("a", 1)
        [before] = transports(store)
        proxy.cut_all()
        await queue.put("b", 2)
        [after] = transports(store)
        assert after is not before
        assert await queue.available_keys() == {"a", "b"}
        await store.close()

    asyncio.run(main())
