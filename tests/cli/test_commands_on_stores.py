"""The same commands on PostgreSQL, Redis and in a file: a short slice of the tests on SQLite."""

from pathlib import Path

import pytest

from leasedkeyq.stores import Claim, Store
from tests.cli.commands import Shell
from tests.servers.urls import empty_store


@pytest.mark.parametrize("kind", ["postgresql", "redis", "file"])
def test_a_session_of_an_operator(
    kind: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LEASEDKEYQ_ACTOR", "ann")
    with empty_store(kind, tmp_path) as url:
        shell = Shell(url, capsys)
        assert shell("put", "orders", "a", '{"n": 12345678901234567890}').code == 0
        assert shell("put", "orders", "later", "1", "--delay", "1h").code == 0
        shell.put("orders", "b", "c", "d")
        shell.bury("orders", "dead", "OSError: gone\n  at line 3")
        [view] = shell("queues", "--json").json
        assert (view["available"], view["scheduled"], view["buried"]) == (4, 1, 1)
        listed = shell("list", "orders", "--limit", "2", "--newest-first", "--all", "--json").lines
        assert [view["key"] for view in listed] == ["dead", "d", "c", "b", "later", "a"]
        assert "12345678901234567890}" in shell("show", "orders", "a").out
        assert shell("requeue-all", "orders", "--error", "gone", "--yes").code == 0
        assert shell("run-now", "orders", "later").code == 0
        assert shell("edit-priority", "orders", "c", "5").code == 0

        async def lease(store: Store) -> str:
            [[claimed]] = await store.claim([Claim((("orders", 1),), holder="host:1")])
            return claimed.key

        assert shell.on_store(lease) == "c"
        assert shell("show", "orders", "c", "--json").json["item"]["holder"] == "host:1"
        assert shell("release", "orders", "c", "--yes").code == 0
        assert shell("bury", "orders", "b", "--reason", "no").code == 0
        [buried] = shell("list", "orders", "--state", "dead", "--json").lines
        assert buried["error"] == "buried by ann: no"
        assert (
            shell("cancel-all", "orders", "--prefix", "d", "--dry-run", "--json").json["done"] == 2
        )
        assert shell("cancel-all", "orders", "--prefix", "d", "--yes", "--json").json["done"] == 2
        assert shell("remove", "orders", "a", "--yes").code == 0
        assert shell("purge", "orders", "--yes").out == "purged 3 items of orders\n"
        assert shell("queues", "--json").json == []


def test_a_look_makes_and_migrates_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with empty_store("postgresql", tmp_path, new=True) as url:
        shell = Shell(url, capsys)
        looked = shell("queues")
        assert (looked.code, looked.out) == (3, "")
        [line] = looked.err.splitlines()
        assert "leasedkeyq migrate" in line
        assert shell("queues") == looked  # there are still no tables
        assert shell("put", "q", "k", "1").code == 0
        assert shell("queues").code == 0
