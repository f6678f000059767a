"""The commands that change something, on SQLite."""

import asyncio
import io
import logging
from pathlib import Path
from typing import Any

import pytest

from leasedkeyq import connect
from leasedkeyq.lanes import LaneConfig, QueueManager, QueueManagerBuilder
from leasedkeyq.lanes.presence.directory import read_types
from leasedkeyq.operations.change_log import AuditEntry, AuditLog
from leasedkeyq.stores import Claim, Store
from tests.cli.commands import Shell, sqlite_shell


@pytest.fixture
def shell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Shell:
    monkeypatch.setenv("LEASEDKEYQ_ACTOR", "ann")
    return sqlite_shell(tmp_path, capsys)


def counts(shell: Shell, queue: str) -> dict[str, Any]:
    for view in shell("queues", "--json").json:
        if view["name"] == queue:
            return {name: view[name] for name in ("available", "scheduled", "in_flight", "buried")}
    return {}


def test_put(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    done = shell("put", "orders", "17", '{"total": 12}', "--priority", "3", "--delay", "10m")
    assert (done.code, done.out[:29]) == (0, "added: key 17 of orders, id 1")
    view = shell("show", "orders", "17", "--json").json["item"]
    assert (view["value"], view["priority"], view["state"]) == ({"total": 12}, 3, "scheduled")
    monkeypatch.setattr("sys.stdin", io.StringIO('"from a pipe"'))
    assert shell("put", "orders", "18").code == 0
    assert shell("show", "orders", "18", "--json").json["item"]["value"] == "from a pipe"
    assert shell("put", "orders", "18", "2", "--if-present", "skip", "--json").json["done"] == 0
    taken = shell("put", "orders", "18", "2", "--if-present", "reject")
    assert (taken.code, len(taken.err.splitlines())) == (4, 1)
    wrong = shell("put", "orders", "19", "not json")
    assert wrong.code == 2
    assert "the value must be JSON" in wrong.err


def test_what_destroys_asks_first(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell.put("q", "a", "b", "c")
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    for words in (
        ["remove", "q", "a"],
        ["cancel", "q", "a"],
        ["release", "q", "a"],
        ["purge", "q"],
        ["remove-all", "q"],
        ["cancel-all", "q"],
    ):
        refused = shell(*words)
        assert (refused.code, refused.out) == (2, ""), words
        assert "there is no terminal to answer; pass --yes" in refused.err, words
    assert counts(shell, "q")["available"] == 3

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    assert shell("remove", "q", "a").code == 2
    assert counts(shell, "q")["available"] == 3
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    done = shell("remove", "q", "a")
    assert (done.code, done.out) == (0, "removed a of q\n")
    assert counts(shell, "q")["available"] == 2


def test_remove_by_key_id_and_filter(shell: Shell) -> None:
    shell.put("q", *(f"k{number}" for number in range(6)))
    number = str(shell("show", "q", "k1", "--json").json["item"]["id"])
    assert shell("remove", "q", number, "--yes").code == 0
    assert shell("show", "q", "k1").code == 1
    assert shell("remove", "q", "--id", number, "--yes").code == 1
    missing = shell("remove", "q", "nobody", "--yes")
    assert (missing.code, missing.err) == (1, "leasedkeyq: there is no nobody of q\n")
    dry = shell("remove-all", "q", "--prefix", "k", "--dry-run")
    assert dry.out == "would have removed 5 items of q\n"
    assert counts(shell, "q")["available"] == 5
    done = shell("remove-all", "q", "--prefix", "k2", "--yes", "--json").json
    assert (done["done"], done["matched"], done["complete"]) == (1, 1, True)
    assert shell("remove-all", "q", "--kind", "x", "--yes").code == 1
    assert shell("purge", "q", "--dead", "--yes").code == 1
    assert shell("purge", "q", "--yes").out == "purged 4 items of q\n"
    assert shell("purge", "q", "--dead", "--results", "--yes").code == 2


def test_requeue_and_requeue_all(shell: Shell) -> None:
    shell.put("mail", "k0")
    for number in range(5):
        shell.bury("mail", f"k{number}", f"OSError: {number}", "send" if number % 2 else "pack")
    shell.put("mail", "k0")
    assert shell("requeue", "mail", "k0").out == "requeued k0 of mail\n"  # the dead one
    assert shell("requeue", "mail", "k0").code == 4
    assert shell("requeue", "mail", "nobody").code == 1
    dry = shell("requeue-all", "mail", "--kind", "send", "--error", "oserror", "--dry-run")
    assert dry.out == "would have requeued 2 items of mail\n"
    assert shell("requeue-all", "--yes").code == 2
    assert shell("requeue-all", "mail", "--kind", "send", "--yes").code == 0
    assert counts(shell, "mail")["buried"] == 2
    every = shell("requeue-all", "--every-queue", "--older-than", "0s", "--yes")
    assert every.out == "requeued 2 items of all queues\n"
    assert shell("requeue-all", "mail", "--yes").code == 1


def test_bury_release_priority_and_run_now(shell: Shell) -> None:
    shell.put("q", "a", "b")
    shell.put("q", "later", delay=600.0)
    assert shell("bury", "q", "a", "--reason", "no more").out == "buried a of q\n"
    view = shell("show", "q", "a", "--json").json["item"]
    assert (view["state"], view["error"]) == ("buried", "buried by ann: no more")
    assert shell("run-now", "q", "later").out == "made due now later of q\n"
    assert shell("edit-priority", "q", "later", "-3").code == 0
    assert shell("show", "q", "later", "--json").json["item"]["priority"] == -3
    assert shell("edit-priority", "q", "later", "high").code == 2
    assert shell("edit-priority", "q", "nobody", "1").code == 1

    async def lease(store: Store) -> None:
        await store.claim([Claim((("q", 1),), key="b", holder="host:1")])

    shell.on_store(lease)
    shown = shell("show", "q", "b")
    assert "holder   host:1" in shown.out
    assert shell("release", "q", "b", "--yes").out == "released b of q\n"
    again = shell("release", "q", "b", "--yes")
    assert (again.code, again.err) == (4, "leasedkeyq: b of q: it is not leased: it waits\n")
    assert shell("release", "q", "nobody", "--yes").code == 1
    assert shell("run-now", "q", "nobody").code == 1


def test_changes_are_kept_in_the_store_for_the_web_page(shell: Shell) -> None:
    shell.put("q", "a", "b")
    assert shell("put", "q", "c", "1").code == 0
    assert shell("remove-all", "q", "--dry-run").code == 0
    assert shell("remove", "q", "nobody", "--yes").code == 1
    assert shell("remove", "q", "a", "--yes").code == 0
    assert shell("remove-all", "q", "--prefix", "b", "--yes").code == 0
    kept: list[AuditEntry] = []

    async def look(store: Store) -> None:
        kept.extend(await AuditLog(store, "jobs").last())

    shell.on_store(look)
    assert [(entry.who, entry.action, entry.target, entry.outcome) for entry in kept] == [
        ("ann", "bulk remove", "q key_prefix='b'", "done"),
        ("ann", "remove", "q a", "done"),
    ]
    assert kept[0].client.startswith("command line on ")


def shop(store: Store) -> tuple[QueueManager, Any]:
    builder = QueueManagerBuilder().with_storage(store)
    manager = builder.with_lane("mail", LaneConfig(0, 2), 5).build()

    @manager.command("send")
    async def send(to: str, copies: int = 1) -> str:
        """Send a mail."""
        return f"{copies} to {to}"

    return manager, send


def test_lanes_and_schedules(shell: Shell) -> None:
    async def begin() -> None:
        async with connect(shell.url) as store:
            manager, send = shop(store)
            await manager.schedule("nightly", "0 3 * * 1-5", send(to="all"), lane="mail").declare()
            await manager.start()
            assert await (await manager.submit("mail", send(to="ann"))) == "1 to ann"
            async with asyncio.timeout(60):
                while not await read_types(store):
                    await asyncio.sleep(0.01)
            await manager.shutdown()

    asyncio.run(begin())
    [schedule] = shell("schedules", "--json").json
    assert (schedule["name"], schedule["lane"], len(schedule["next_runs"])) == (
        "nightly",
        "mail",
        5,
    )
    assert shell("pause", "mail").out == "paused lane mail\n"
    assert shell("pause", "mail").out == "paused lane mail (it was paused already)\n"
    assert shell("pause", "nope").code == 1
    assert shell("pause", "nope", "--unchecked").code == 0
    assert shell("resume", "nope").code == 0
    assert shell("stats", "--json").json["paused"] == ["mail"]
    assert shell("pause", "--schedule", "nightly").out == "paused schedule nightly\n"
    assert "paused" in shell("schedules").out
    assert shell("resume", "--schedule", "nightly").out == "resumed schedule nightly\n"
    unknown = shell("resume", "--schedule", "nope")
    assert unknown.code == 1
    assert unknown.err.startswith("leasedkeyq: there is no schedule 'nope'")
    wrong = shell("submit", "mail", "send", '{"to": 1}')
    assert wrong.code == 4
    assert "the arguments do not fit command 'send'" in wrong.err
    assert shell("submit", "mail", "nope", "{}").code == 4
    first = shell("submit", "mail", "send", '{"to": "bob"}', "--key", "b").out.strip()
    second = shell("run-now", "nightly").out.strip()
    third = shell("submit", "mail", "send", '{"to": "x"}', "--key", "x", "--json").json
    assert shell("show", first, "--json").json["item"]["value"] == {"to": "bob"}
    assert shell("edit-priority", "mail", "b", "-3").code == 0
    assert shell("show", "mail", "b", "--json").json["item"]["priority"] == 3  # as stores have it
    assert shell("cancel", third["command_id"], "--yes").code == 0
    assert shell("show", "mail", "x", "--json").json["item"]["outcome"] == "cancelled"
    assert shell("resume", "mail").out == "resumed lane mail\n"
    assert "it was not paused" in shell("resume", "mail").err

    async def end() -> None:
        async with connect(shell.url) as store:
            manager, _ = shop(store)
            await manager.start()
            assert await manager.handle(first) == "1 to bob"
            assert await manager.handle(second) == "1 to all"
            await manager.shutdown()

    asyncio.run(end())
    [worker] = shell("workers", "--json").json[-1:]
    assert [lane["lane"] for lane in worker["lanes"]] == ["mail"]


def test_the_audit_log_has_the_actor(shell: Shell, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "leasedkeyq.audit")
    shell("put", "q", "k", "1")
    shell("remove", "q", "k", "--yes")
    assert [record.getMessage() for record in caplog.records] == [
        "put 'q' 'k' by 'ann': done",
        "remove 'q' 'k' by 'ann': done",
    ]
