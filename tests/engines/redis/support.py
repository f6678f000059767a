"""Stores and requests for the tests of the Redis store."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from leasedkeyq import RedisStore
from leasedkeyq.engines.redis.link import Script
from leasedkeyq.model.requests import Put
from tests.servers.valkey import Server


def opened(server: Server, prefix: str, **options: Any) -> RedisStore:
    return RedisStore(server.url, prefix=prefix, **options)


def many(count: int, size: int = 1) -> Put:
    return Put("q", tuple((f"k{number:05}", b"1" * size) for number in range(count)))


def keys_of(server: Server, prefix: str) -> dict[str, int]:
    """All keys of a store and the seconds that each has to live; -1: for ever."""
    with server.client() as client:
        return {key.decode(): client.ttl(key) for key in client.scan_iter(f"{prefix}:*", 1000)}


def change_script(monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> None:
    """Have stores that are opened from now on use another script."""
    begin = Script.__init__

    def changed(script: Script) -> None:
        begin(script)
        assert old in script.text
        script.text = script.text.replace(old, new)

    monkeypatch.setattr(Script, "__init__", changed)


def use_small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the script cut its work into many steps."""
    change_script(monkeypatch, "local CHUNK = 1000 ", "local CHUNK = 2 ")
    change_script(monkeypatch, "local AT_ONCE = 200 ", "local AT_ONCE = 4 ")


SMALL_STEPS = ("--hash-max-ziplist-entries", "0")
"""Options of a server for them: others read a small hash in one step."""


async def until(true: Callable[[], Any]) -> None:
    """Wait for something to become true."""
    async with asyncio.timeout(20):
        while not true():
            await asyncio.sleep(0.005)
