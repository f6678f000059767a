"""Stores and requests for the tests of the Redis store."""

from typing import Any

from leasedkeyq import RedisStore
from leasedkeyq.stores.contract import Put
from tests.servers.valkey import Server


def opened(server: Server, prefix: str, **options: Any) -> RedisStore:
    return RedisStore(server.url, prefix=prefix, **options)


def many(count: int, size: int = 1) -> Put:
    return Put("q", tuple((f"k{number:05}", b"1" * size) for number in range(count)))


def keys_of(server: Server, prefix: str) -> dict[str, int]:
    """All keys of a store and the seconds that each has to live; -1: for ever."""
    with server.client() as client:
        return {key.decode(): client.ttl(key) for key in client.scan_iter(f"{prefix}:*", 1000)}
