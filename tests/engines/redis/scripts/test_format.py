"""The mark that says how the keys of a store are laid out."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from leasedkeyq.engines.redis.store import RedisStore
from leasedkeyq.errors import StoreError
from leasedkeyq.model.requests import Counts, Put
from tests.engines.redis.support import opened
from tests.servers.valkey import Server, shared_cluster


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


def set_mark(server: Server, prefix: str, mark: str) -> None:
    with server.client() as client:
        client.set(f"{prefix}:format", mark)


def mark_of(server: Server, prefix: str) -> Any:
    with server.client() as client:
        return client.get(f"{prefix}:format")


async def put_one(store: RedisStore) -> None:
    await store.put([Put("q", (("a", b"1"),))])
    assert await store.count() == {"q": Counts(available=1)}
    await store.close()


def test_a_store_is_marked_when_it_is_opened(server: Server, prefix: str) -> None:
    asyncio.run(put_one(opened(server, prefix)))
    assert mark_of(server, prefix) == b"3"
    asyncio.run(opened(server, prefix).close())


def test_a_newer_layout_is_refused(server: Server, prefix: str) -> None:
    set_mark(server, prefix, "4")
    with pytest.raises(StoreError) as caught:
        opened(server, prefix)
    assert str(caught.value).endswith(
        f"the prefix {prefix!r} has keys of version 4, this leasedkeyq knows version 3: upgrade "
        "leasedkeyq"
    )
    assert mark_of(server, prefix) == b"4"


def test_the_layout_before_progress_is_read_and_marked_anew(server: Server, prefix: str) -> None:
    """Nothing of it has changed, but a program that knows it alone could not read progress."""
    set_mark(server, prefix, "2")
    asyncio.run(put_one(opened(server, prefix)))
    assert mark_of(server, prefix) == b"3"


def test_an_older_layout_is_refused(server: Server, prefix: str) -> None:
    """Before there were lines, a buffered value was elsewhere."""
    set_mark(server, prefix, "1")
    with pytest.raises(StoreError) as caught:
        opened(server, prefix)
    assert str(caught.value).endswith(
        f"the prefix {prefix!r} has keys of version 1, this leasedkeyq knows version 3: empty the "
        f"queues with the leasedkeyq that filled them and delete the key '{prefix}:format', or use "
        "another prefix"
    )
    assert mark_of(server, prefix) == b"1"
    with server.client() as client:
        client.delete(f"{prefix}:format")
    asyncio.run(put_one(opened(server, prefix)))


def test_a_key_of_somebody_else_is_refused(server: Server, prefix: str) -> None:
    set_mark(server, prefix, "pdf")
    with pytest.raises(StoreError, match="is not one of leasedkeyq; use another prefix"):
        opened(server, prefix)


def test_a_server_without_memory_is_opened_without_a_mark(prefix: str) -> None:
    with Server("--maxmemory", "1") as full:
        asyncio.run(opened(full, prefix).close())
        assert mark_of(full, prefix) is None
        with full.client() as client:
            client.config_set("maxmemory", 0)
        asyncio.run(put_one(opened(full, prefix)))
        assert mark_of(full, prefix) == b"3"


def test_one_mark_for_a_cluster(prefix: str) -> None:
    url = shared_cluster().url
    store = RedisStore(url, prefix=prefix)
    store._link.client.set(f"{prefix}:format", "7")
    asyncio.run(put_one(store))
    with pytest.raises(StoreError, match="has keys of version 7"):
        RedisStore(url, prefix=prefix)
