"""What the doctor finds by the contract and by what workers tell, each provoked."""

import ast
import asyncio
import os
import re
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from leasedkeyq import MemoryStore, __version__, connect
from leasedkeyq.lanes.durable.schedules import SCHEDULES_QUEUE
from leasedkeyq.lanes.presence.records import WORKER, WORKERS_QUEUE, Member, ServedLane
from leasedkeyq.operations import doctor
from leasedkeyq.operations.doctor import examine, examine_url, only_grows
from leasedkeyq.operations.items.burying import BURYING
from leasedkeyq.operations.operator import Operator
from leasedkeyq.operations.views import WorkerView
from leasedkeyq.stores import Bury, Cancel, Claim, Extend, Finding, Limits, Put, Store
from tests.lanes.support import clock
from tests.operations.support import bury, mail_manager
from tests.servers.valkey import Server

ROOT = Path(__file__).parent.parent.parent
CODE = re.compile(r"^[a-z]+(?:-[a-z]+)+$")
NO_CODES = {
    *("maxmemory-policy", "used-memory", "save-status", "append-status", "rewrite-status"),
}
"""Texts in the sources that look like the code of a finding."""


async def found(store: Store, **options: Any) -> dict[str, Finding]:
    return {finding.code: finding for finding in await examine(store, clock=clock, **options)}


def memory(**options: Any) -> MemoryStore:
    return MemoryStore(clock=clock, **options)


def ended_process() -> int:
    """The number of a process that is over."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait(60)
    return process.pid


async def lease(store: Store, key: str, lease_time: float | None, holder: str = "") -> None:
    await store.put([Put("q", ((key, b"1"),))])
    [[_]] = await store.claim([Claim((("q", 1),), 1, key, lease_time, holder=holder)])


async def test_nothing_is_wrong_with_a_store_at_work() -> None:
    store = memory()
    manager, send = mail_manager(store)
    async with manager:
        handle = await manager.submit("mail", send("ann"), key="a")
        await handle
        await store.put([Put("plain", (("k", b"1"),))])
        await lease(store, "leased", 60.0, f"{socket.gethostname()}:{os.getpid()}")
        assert await found(store, look_again=1.0) == {}


async def test_findings_come_by_severity() -> None:
    store = memory(limits=Limits(buried=1))
    await lease(store, "endless", None)
    await lease(store, "stuck", None, f"{socket.gethostname()}:{ended_process()}")
    await lease(store, "orphan", 600.0, f"{socket.gethostname()}:{ended_process()}")
    assert [finding.severity for finding in await examine(store, clock=clock)] == [
        "error",
        "warning",
        "note",
    ]


# Out of reach, old, damaged


def test_a_store_that_is_out_of_reach() -> None:
    [finding] = asyncio.run(examine_url("redis://:s3cret@127.0.0.1:1/0", {"retry_for": 0}))
    assert (finding.code, finding.severity) == ("store-out-of-reach", "error")
    assert "s3cret" not in str(finding)
    with pytest.raises(ValueError, match="no store for the scheme"):
        asyncio.run(examine_url("nonsense://"))


async def test_a_store_that_fails_meanwhile() -> None:
    store = memory()
    await store.close()
    assert [*await found(store)] == ["store-out-of-reach"]


def test_a_store_with_nothing_in_it(tmp_path: Path) -> None:
    [finding] = asyncio.run(examine_url(f"file://{tmp_path}/q.json"))
    assert (finding.code, finding.severity) == ("schema-missing", "note")


def test_a_damaged_queue() -> None:
    async def run(url: str, damage: Any) -> list[Finding]:
        async with connect(url) as store:
            await store.put([Put("q", (("a", b"1"), ("b", b"1"))), Put("sound", (("a", b"1"),))])
            damage()
            return await examine(store)

    with Server("--appendonly", "yes", "--appendfsync", "always") as server:

        def damage() -> None:
            client = server.client()
            keys = client.keys("*{q}*")
            client.delete(max(keys, key=client.memory_usage))

        [finding] = asyncio.run(run(server.url, damage))
    assert (finding.code, finding.where) == ("queue-damaged", "queue q")


# Queues


async def test_leases_without_end_or_holder() -> None:
    store = memory()
    here, gone = socket.gethostname(), ended_process()
    await lease(store, "mine", None, f"{here}:{os.getpid()}")
    await lease(store, "elsewhere", 600.0, "another-host:1")
    await lease(store, "odd", 600.0, "a name of its own")
    for number in ("²", "9" * 12, "9" * 90):  # none is that of a process
        await lease(store, f"odd {number}", 600.0, f"{here}:{number}")
    findings = await found(store)
    assert [*findings] == ["lease-without-expiry"]
    assert "'mine'" in findings["lease-without-expiry"].what
    await lease(store, "orphan", 600.0, f"{here}:{gone}")
    await lease(store, "stuck", None, f"{here}:{gone}")
    findings = await found(store)
    assert "'orphan'" in findings["lease-without-holder"].what
    assert findings["lease-stuck"].severity == "error"
    assert "'stuck'" in findings["lease-stuck"].what


async def test_keys_behind_a_dead_letter() -> None:
    store = memory()
    await store.put([Put("q", (("k", b"%d" % n),), "append") for n in range(3)])
    [[item]] = await store.claim([Claim((("q", 1),), 1, "k", 60.0)])
    await store.settle([Bury("q", "k", item.token, "no", hold=True)])
    finding = (await found(store))["key-held"]
    assert finding.severity == "warning"
    assert "2 items wait behind dead letters that hold their keys: 'k'" in finding.what
    [values] = await store.look("q", ["k"])
    await store.settle([Cancel("q", "k", id=values[0].id)])
    finding = (await found(store))["key-held"]
    assert "1 item waits behind dead letters that hold their keys: 'k'" in finding.what


async def test_dead_letters_that_are_full_soon() -> None:
    store = memory(limits=Limits(buried=10))
    for number in range(8):
        await bury(store, "q", f"k{number}", "no")
    assert await found(store) == {}
    await bury(store, "q", "k8", "no")
    assert (
        "9 dead letters are kept, of at most 10" in (await found(store))["dead-letters-full"].what
    )


async def test_a_clock_that_was_set_back() -> None:
    store = MemoryStore(clock=lambda: clock() + 3600)
    await store.put([Put("q", (("k", b"1"),))])
    assert "3,600 s in the future" in (await found(store))["clock-back"].what


async def test_a_queue_that_only_grows() -> None:
    store = memory()
    await store.put([Put("q", (("a", b"1"),)), Put("busy", (("a", b"1"),))])

    async def go_on() -> None:
        await asyncio.sleep(1)
        await store.put([Put("q", (("b", b"1"),)), Put("busy", (("b", b"1"), ("c", b"1")))])
        await store.claim([Claim((("busy", 1),), 1, lease_time=60.0)])

    task = asyncio.create_task(go_on())
    findings = await examine(store, clock=clock, look_again=3.0)
    await task
    assert [(one.code, one.where) for one in findings] == [("queue-grows", "queue q")]
    assert "1 item waited, and 2 did 3 s later" in findings[0].what


def test_what_it_means_to_only_grow() -> None:
    assert only_grows([100, 100, 120, 150, 180, 210])
    assert not only_grows([100, 100, 120, 150, 180])
    assert not only_grows([100, 90, 120, 150, 180, 210])
    assert not only_grows([0, 1, 2, 3, 4, 5])
    assert not only_grows([1000, 1010, 1020, 1030, 1040, 1200])


async def test_a_lane_whose_minutes_only_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "GROWTH_LEAST", 5)
    store = memory()
    manager, send = mail_manager(store)
    async with manager:
        await manager.pause("mail")
        # The worker writes a minute down if something has happened in it.
        for minute in range(10):
            for number in range(3):
                await manager.submit("mail", send("ann"), key=f"{minute}.{number}")
            await asyncio.sleep(60)
        findings = await found(store)
        assert [*findings] == ["queue-grows", "lane-paused"]
        assert findings["queue-grows"].where == "lane mail"
        await manager.shutdown()


# Lanes, schedules and workers


async def test_a_lane_without_workers() -> None:
    store = memory()
    manager, send = mail_manager(store)
    async with manager:
        await asyncio.sleep(1)
    await submitted(store, "mail", "send")
    finding = (await found(store))["lane-without-workers"]
    assert (finding.severity, finding.where) == ("error", "lane mail")
    # Also if no worker has ever told of it.
    other = memory()
    await submitted(other, "mail", "send")
    assert [*await found(other)] == ["lane-without-workers"]
    del send


async def submitted(store: Store, queue: str, kind: str) -> None:
    envelope = msgspec.json.encode({"payload": {"to": "ann"}, "at": clock()})
    await store.put([Put(queue, ((kind, envelope),), kind=kind)])


async def test_commands_that_nobody_knows_or_can_read() -> None:
    store = memory()
    manager, _ = mail_manager(store)
    async with manager:
        await asyncio.sleep(1)
        await submitted(store, "mail", "forgotten")
        await submitted(store, "mail", f"{BURYING}0.0:send")
        await store.put([Put("mail", (("odd", b"no envelope"),), kind="send")])
        # What a worker cannot read it gives up; here it has not come to it yet.
        await manager.pause("mail")
        await store.put([Put("mail", (("odd", b"no envelope"),), kind="send")])
        findings = await found(store)
        assert "'forgotten'" in findings["type-unknown"].what
        assert BURYING not in findings["type-unknown"].what
        assert BURYING in findings["command-half-buried"].what  # its key is named so here
        assert findings["command-undecodable"].severity == "error"
        assert findings["lane-paused"].severity == "note"


async def test_schedules() -> None:
    store = memory()
    manager, send = mail_manager(store)
    manager.schedule("often", send("ann"), every=60, lane="mail")
    async with manager:
        await asyncio.sleep(1)
        assert await found(store) == {}
    await asyncio.sleep(300)
    finding = (await found(store))["schedule-missed"]
    assert (finding.severity, finding.where) == ("error", "schedule often")
    again, _ = mail_manager(store)
    async with again:
        await asyncio.sleep(5)
        findings = await found(store)
        assert [*findings] == ["schedule-undeclared"]
    await store.put([Put(SCHEDULES_QUEUE, (("odd", b"nonsense"),), delay=60.0)])
    assert "'odd'" in (await found(store))["schedule-undecodable"].what


async def worker(store: Store, name: str, version: str, lease_time: float = 60.0) -> str:
    """A worker of another version, which tells what it has to."""
    member = Member({}, "", "another-host", 7, version, "3.11", clock(), lease_time)
    member.serves = (ServedLane("mail", 0, 1),)
    await store.put([Put(WORKERS_QUEUE, ((WORKER + name, msgspec.json.encode(member)),))])
    [[item]] = await store.claim([Claim(((WORKERS_QUEUE, 1),), 1, WORKER + name, lease_time)])
    [_] = await store.settle([Extend(WORKERS_QUEUE, item.key, item.token, lease_time, b"{}")])
    return item.token


async def test_old_versions_of_workers() -> None:
    store = memory()
    await worker(store, "old", "0.0.9")
    await worker(store, "same", __version__)
    findings = await examine(store, clock=clock)
    assert [finding.code for finding in findings] == ["worker-old"]
    assert "0.0.9" in findings[0].what
    assert "worker old (process 7 on another-host)" in findings[0].where


async def test_workers_that_died_and_their_leases() -> None:
    store = memory()
    await worker(store, "dead", __version__, lease_time=5.0)
    await lease(store, "orphan", 600.0, "another-host:7")
    await asyncio.sleep(10)
    findings = await found(store)
    assert findings["worker-died"].severity == "note"
    assert "'orphan'" in findings["lease-without-holder"].what


async def test_a_worker_that_is_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own thread tells so; here that is said for it."""

    async def workers(_: Operator) -> Sequence[WorkerView]:
        return [
            WorkerView(
                id="w",
                host="h",
                pid=1,
                version=__version__,
                started_at=clock(),
                seen_at=clock(),
                expires_at=clock() + 9,
                blocked=12.0,
            )
        ]

    monkeypatch.setattr(Operator, "workers", workers)
    assert "blocked for 12 s" in (await found(memory()))["worker-blocked"].what


async def test_it_changes_nothing() -> None:
    store = memory()
    await bury(store, "q", "dead", "no")
    await store.put([Put("q", (("k", b"1"),)), Put("q", (("late", b"1"),), delay=60.0)])
    before = await store.browse("q", states=("available", "scheduled", "buried"))
    await found(store)
    assert await store.browse("q", states=("available", "scheduled", "buried")) == before


def test_the_page_has_every_code_and_no_other() -> None:
    page = (ROOT / "docs/howto/doctor.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    told = {code for row in rows for code in re.findall(r"`([a-z-]+)`", row)}
    sources = [
        *ROOT.glob("src/leasedkeyq/**/diag*.py"),
        *ROOT.glob("src/leasedkeyq/stores/**/*.py"),
    ]
    found: set[str] = set()
    for path in (*sources, Path(doctor.__file__)):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.update(CODE.findall(node.value))
    # A code is a text of two words or more with hyphens between, and nothing else.
    assert told <= found
    assert found - told <= NO_CODES
