"""What a Redis store finds wrong with its server, each provoked on one."""

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from leasedkeyq import connect
from leasedkeyq.errors import StoreError
from leasedkeyq.stores import Finding, Put, SchemaState
from leasedkeyq.stores.system import clock_check
from tests.servers.valkey import Server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("--appendonly", "yes", "--appendfsync", "always") as server:
        yield server


def findings(
    server: Server, provoke: Callable[[Any], object] = bool, url: str = "", **options: Any
) -> dict[str, Finding]:
    """What a store says once something was done to its server."""

    async def run() -> list[Finding]:
        async with connect(url or server.url, **options) as store:
            provoke(server.client())
            return await store.diagnose()

    return {finding.code: finding for finding in asyncio.run(run())}


def test_a_sound_server_has_nothing_to_tell(server: Server) -> None:
    assert findings(server) == {}


@pytest.mark.parametrize(
    "setting, value, normal, told",
    [
        ("appendfsync", "everysec", "always", "durability-weak: warning"),
        ("appendfsync", "no", "always", "durability-weak: warning"),
        ("appendonly", "no", "yes", "durability-weak: warning"),
        ("maxmemory-policy", "allkeys-lru", "noeviction", "eviction-policy: error"),
        ("maxmemory", "1mb", "0", "memory-full: error"),
    ],
)
def test_settings_that_were_changed_meanwhile(
    server: Server, setting: str, value: str, normal: str, told: str
) -> None:
    try:
        found = findings(server, lambda client: client.config_set(setting, value))
    finally:
        server.client().config_set(setting, normal)
    code, _, severity = told.partition(": ")
    assert found[code].severity == severity
    assert found[code].advice


def test_durability_that_was_asked_for(server: Server) -> None:
    try:
        found = findings(
            server,
            lambda client: client.config_set("appendfsync", "everysec"),
            require_durability="power",
        )
    finally:
        server.client().config_set("appendfsync", "always")
    assert found["durability-weak"].severity == "error"


def test_memory_that_is_full_soon(server: Server) -> None:
    def provoke(client: Any) -> None:
        # Beside this, what a connection takes does not count. It is not sent: the server would
        # count what it has read for a while, and then no more.
        client.setrange("ballast", 15_999_999, b"x")
        client.config_set("maxmemory", int(client.info("memory")["used_memory"] * 1.05))

    try:
        found = findings(server, provoke)
    finally:
        server.client().config_set("maxmemory", 0)
        server.client().delete("ballast")
    assert found["memory-full-soon"].severity == "warning"


def test_a_server_that_became_a_replica(server: Server) -> None:
    try:
        found = findings(server, lambda client: client.replicaof("127.0.0.1", "1"))
    finally:
        server.client().replicaof("NO", "ONE")
    assert found["server-read-only"].severity == "error"


def test_rights(server: Server) -> None:
    client = server.client()
    rules = ["on", ">secret", "~leasedkeyq:*", "&leasedkeyq:*", "+@all", "-@dangerous"]
    client.execute_command("ACL", "SETUSER", "worker", *rules, "+info", "+config|get")
    url = server.url.replace("unix://", "unix://worker:secret@")
    assert findings(server, url=url) == {}
    client.execute_command("ACL", "SETUSER", "worker", "-zadd", "-publish")
    found = findings(server, url=url)["rights-missing"]
    assert found.severity == "error"
    assert "zadd, publish" in found.what
    client.execute_command("ACL", "SETUSER", "worker", "+zadd", "+publish", "-info", "-config")
    assert [*findings(server, url=url)] == ["settings-unknown"]
    client.execute_command("ACL", "SETUSER", "worker", "-eval")
    assert "eval" in findings(server, url=url)["rights-missing"].what


def test_clocks(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for apart, direction in ((60.0, "behind"), (-60.0, "ahead of")):
        now = time.time
        with monkeypatch.context() as patch:
            patch.setattr(
                "leasedkeyq.engines.redis.diagnosis.time.time", lambda now=now, a=apart: now() + a
            )
            found = findings(server)["clocks-apart"]
        assert direction in found.what
    assert clock_check.clock_findings("here", 104.9, 100.0, 100.0) == []


def test_a_disk_that_cannot_be_written() -> None:
    with Server("--appendonly", "yes", "--appendfsync", "always") as server:

        def provoke(client: Any) -> None:
            # A snapshot is written under another name, and cannot take this one.
            (server.folder / "dump.rdb").mkdir()
            client.execute_command("BGSAVE")
            end = time.monotonic() + 30
            while client.info("persistence")["rdb_bgsave_in_progress"]:
                assert time.monotonic() < end
                time.sleep(0.01)

        found = findings(server, provoke)
    assert found["persistence-failing"].severity == "error"


def test_the_version_of_the_keys(server: Server) -> None:
    client = server.client()

    async def look(prefix: str) -> SchemaState | None:
        async with connect(server.url, prefix=prefix, migrate=False) as store:
            with pytest.raises(StoreError, match="leasedkeyq migrate"):
                await store.put([Put("q", (("k", b"1"),))])
            return await store.schema_state()

    new = asyncio.run(look("new"))
    assert new is not None
    assert new.version == 0
    assert client.get("new:format") is None, "looking makes nothing"
    client.set("old:format", 2)
    old = asyncio.run(look("old"))
    assert old is not None
    assert (old.version, old.outdated) == (2, True)
    assert old.changes
    assert client.get("old:format") == b"2"

    async def use() -> SchemaState | None:
        async with connect(server.url, prefix="old"):
            pass
        async with connect(server.url, prefix="old", migrate=False) as store:
            await store.put([Put("q", (("k", b"1"),))])
            return await store.schema_state()

    assert asyncio.run(use()) == SchemaState(version=old.wanted, wanted=old.wanted)
