"""Backups: from one engine to another, cut, damaged, interrupted."""

import asyncio
import io
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from leasedkeyq import MemoryStore, connect
from leasedkeyq.errors import StoreError
from leasedkeyq.model.requests import Ack, Bury, Claim, Put
from leasedkeyq.stores import Limits, Purge, Store
from leasedkeyq.testing import ManualClock
from leasedkeyq.testing.shorthand import EVERY_STATE
from leasedkeyq.transfer import export, restore
from leasedkeyq.transfer.backup_format import (
    BackupError,
    BackupHeader,
    BackupItem,
    BackupReader,
    BackupWriter,
)
from leasedkeyq.transfer.export import export_store
from leasedkeyq.transfer.restore import check_backup, import_backup
from tests.servers.urls import empty_store
from tests.servers.valkey import shared_url

LONG = 10_000.0


async def fill(store: Store) -> None:
    """Something of everything."""
    await store.put(
        [
            Put("mail", (("a", b'"1"'), ("b", b'{"n": 12345678901234567890}'))),
            Put("mail", (("late", b"2"),), priority=5, delay=LONG, kind="slow", deadline=2 * LONG),
            *(Put("mail", (("line", b"%d" % number),), "append") for number in range(5)),
            Put("mail", (("dead", b"1"),), kind="k"),
            Put("mail", (("held", b"1"),), "append"),
            Put("mail", (("held", b"2"),), "append", delay=LONG),
            Put("mail", (("done", b"1"),), kind="k"),
            Put("reports #1", (("ü\n", b"\xff\xfe"),)),
            Put("leasedkeyq.schedules", (("nightly", b"{}"),), delay=LONG, kind="reports"),
            Put("leasedkeyq.lanes", (("paused:mail", b"null"), ("worker:1", b"null"))),
        ]
    )
    for key in ("dead", "held", "done", "b"):
        [[item]] = await store.claim([Claim((("mail", 1),), 1, key, LONG)])
        if key == "done":
            change: Any = Ack("mail", key, item.token, b'"result"', LONG, "failed")
            await store.settle([change])
        elif key != "b":
            await store.settle([Bury("mail", key, item.token, f"no {key}", hold=key == "held")])


def seen(clock: float) -> Any:
    """What is compared of an item: not its id, its age and its attempts."""

    def of(item: Any) -> tuple[Any, ...]:
        due = None if item.state in ("in_flight", "available") else item.due
        state = "available" if item.state == "in_flight" else item.state
        return (
            item.key,
            state,
            item.value,
            item.kind,
            item.priority,
            item.error,
            item.holds,
            item.outcome,
            None if due is None else round((due - clock) / 100),
            None if item.deadline is None else round((item.deadline - clock) / 100),
        )

    return of


async def content(store: Store) -> dict[str, list[Any]]:
    """All items of a store, by queue; those of a key in their order."""
    found: dict[str, list[Any]] = {}
    for queue in sorted(await store.count()):
        page = await store.browse(queue, states=EVERY_STATE, limit=1000)
        of = seen(asyncio.get_running_loop().time() + _offset())
        # The order of keys is that of their heads; what is buried or done comes in another order.
        found[queue] = sorted(map(of, page.items), key=lambda item: (item[1], item[0]))
    return found


def _offset() -> float:
    return time.time() - asyncio.get_running_loop().time()


async def exported(store: Store, **options: Any) -> bytes:
    out = io.BytesIO()
    await export_store(store, out.write, **options)
    return out.getvalue()


def lines(backup: bytes) -> Iterator[bytes]:
    return iter(io.BytesIO(backup))


def test_from_engine_to_engine(tmp_path: Path) -> None:
    """SQLite, PostgreSQL, Redis, file: what each of them has is what the first one had."""

    async def run(urls: list[str]) -> None:
        async with connect(urls[0]) as first:
            await fill(first)
            wanted = await content(first)
            # A worker belongs to its process, and not to what is stored.
            wanted["leasedkeyq.lanes"] = [
                item for item in wanted["leasedkeyq.lanes"] if item[0] == "paused:mail"
            ]
            backup = await exported(first)
        assert check_backup(lines(backup)) == 15
        for url in urls[1:]:
            async with connect(url) as store:
                report = await import_backup(store, lines(backup))
                assert (report.restored, report.refused, report.skipped) == (15, [], 0)
                found = await content(store)
                assert {name: found[name] for name in wanted} == wanted
                backup = await exported(store)

    with ExitStack() as stack:
        kinds = ("sqlite", "postgresql", "redis", "file")
        asyncio.run(run([stack.enter_context(empty_store(kind, tmp_path)) for kind in kinds]))


async def backup_of_memory(count: int = 20) -> tuple[bytes, MemoryStore]:
    store = MemoryStore()
    await store.put(
        [Put("q", ((f"k{number % 3}", b"%d" % number),), "append") for number in range(count)]
    )
    return await exported(store), store


def values_of(store: Store) -> list[tuple[str, bytes]]:
    async def run() -> list[tuple[str, bytes]]:
        page = await store.browse("q", limit=1000)
        return [(item.key, item.value) for item in page.items]

    return asyncio.run(run())


def test_a_cut_backup_is_noticed() -> None:
    backup, _ = asyncio.run(backup_of_memory())
    whole = backup.splitlines(keepends=True)
    for cut, said in (
        (b"".join(whole[:-1]), "cut: it ends after 20 items"),
        (backup[:-9], "line 22 .* cut in this line"),
        (b"", "empty"),
        (b"".join([*whole[:5], *whole[6:]]), "lines are missing"),
        (b"".join([*whole[:5], whole[6], whole[5], *whole[7:]]), "in another order"),
        (b"".join(whole[1:]), "no header"),
    ):
        with pytest.raises(BackupError, match=said):
            check_backup(lines(cut))


def test_a_damaged_line_is_named() -> None:
    backup, _ = asyncio.run(backup_of_memory())
    whole = backup.splitlines(keepends=True)
    for damaged in (whole[6].replace(b'"value":"5"', b'"value":"6"'), b"nonsense\n", b"\xff\n"):
        assert damaged != whole[6]
        broken = b"".join([*whole[:6], damaged, *whole[7:]])
        with pytest.raises(BackupError, match="line 7 of the backup: it is damaged") as caught:
            check_backup(lines(broken))
        assert caught.value.line == 7
    later = whole[0].replace(b'"version":1', b'"version":9')
    with pytest.raises(BackupError, match="checksum"):
        BackupReader(iter([later]))


def test_a_dry_run_changes_nothing() -> None:
    async def run() -> None:
        backup, _ = await backup_of_memory()
        target = MemoryStore()
        report = await import_backup(target, lines(backup), dry_run=True)
        assert (report.items, report.restored, report.dry_run) == (20, 20, True)
        assert await target.count() == {}

    asyncio.run(run())


class InterruptedRunError(Exception):
    """Stands for the end of the process."""


def test_an_import_that_was_interrupted_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is killed before each of its changes; the second one puts nothing twice."""
    monkeypatch.setattr(restore, "MOST_ITEMS", 2)

    async def run(reached: int) -> bool:
        source, target = MemoryStore(), MemoryStore()
        await fill(source)
        backup = await exported(source)
        calls = 0

        def counted(do: Any) -> Any:
            async def call(*arguments: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls == reached:
                    raise InterruptedRunError
                return await do(*arguments)

            return call

        with monkeypatch.context() as patch:
            for verb in ("do_edit", "do_put", "do_settle"):
                patch.setattr(target, verb, counted(getattr(target, verb)))
            with suppress(StoreError):
                await import_backup(target, lines(backup))
        report = await import_backup(target, lines(backup)) if calls >= reached else None
        assert report is None or report.refused == []
        wanted = await content(source)
        found = await content(target)
        for queue in ("mail", "reports #1", "leasedkeyq.schedules"):
            assert found[queue] == wanted[queue], reached
        return calls >= reached

    reached = 1
    while asyncio.run(run(reached)):
        reached += 1
    assert reached > 20


def test_the_same_backup_once_more() -> None:
    async def run() -> None:
        backup, _ = await backup_of_memory()
        target = MemoryStore()
        await import_backup(target, lines(backup))
        second = await import_backup(target, lines(backup))
        assert (second.items, second.restored, second.skipped) == (20, 0, 20)
        assert (await target.count())["q"].available == 20
        third = await import_backup(target, lines(backup), again=True)
        assert third.restored == 20
        assert (await target.count())["q"].available == 40
        # Another backup of the same store is another one.
        await import_backup(target, lines((await backup_of_memory())[0]))
        assert (await target.count())["q"].available == 60

    asyncio.run(run())


def test_what_is_in_the_store_already() -> None:
    async def run() -> None:
        source, target = MemoryStore(), MemoryStore()
        await fill(source)
        backup = await exported(source)
        await target.put(
            [
                Put("mail", (("a", b"mine"), ("dead", b"mine"))),
                Put("leasedkeyq.schedules", (("nightly", b"mine"),), delay=LONG),
            ]
        )
        report = await import_backup(target, lines(backup))
        assert report.skipped == 1, "the schedule of the store stands"
        [(line, queue, key, reason)] = report.refused
        assert (queue, key, reason) == ("mail", "dead", "its key is in use in the store")
        assert b'"dead"' in backup.splitlines()[line - 1]
        [found] = await target.look("mail", ["a"])
        assert [item.value for item in found] == [b"mine", b'"1"']
        [schedule] = await target.look("leasedkeyq.schedules", ["nightly"])
        assert [item.value for item in schedule] == [b"mine"]

    asyncio.run(run())


def test_what_the_store_does_not_take() -> None:
    async def run() -> None:
        source, target = MemoryStore(), MemoryStore(limits=Limits(value_size=90, key_length=25))
        await source.put([Put("q", (("k", b"1"), ("large", b"x" * 91), ("longer" * 5, b"1")))])
        report = await import_backup(target, lines(await exported(source)))
        assert report.restored == 1
        assert [(key, line) for line, _, key, _ in report.refused] == [
            ("large", 3),
            ("longer" * 5, 4),
        ]

    asyncio.run(run())


def test_large_values_come_in_small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "MOST_ITEMS", 10)
    monkeypatch.setattr(export, "MOST_BYTES", 3000)

    async def run() -> None:
        store = MemoryStore(limits=Limits(value_size=1500))
        await store.put([Put("q", tuple((f"k{n}", b"x" * 1000) for n in range(50)))])
        limits: list[int] = []
        browse = store.do_browse

        async def noted(*arguments: Any, **order: Any) -> Any:
            limits.append(arguments[4])
            return await browse(*arguments, **order)

        monkeypatch.setattr(store, "do_browse", noted)
        assert len((await exported(store)).splitlines()) == 52
        assert max(limits) <= 4

    asyncio.run(run())


def test_what_is_left_of_delays() -> None:
    async def run() -> None:
        clock = ManualClock(1000.0)
        source, target = MemoryStore(clock=clock), MemoryStore(clock=clock)
        await source.put([Put("q", (("k", b"1"),), delay=60.0, deadline=90.0)])
        clock.advance(20.0)
        backup = await exported(source, clock=clock)
        clock.advance(500.0)
        await import_backup(target, lines(backup))
        [[item]] = await target.look("q", ["k"])
        assert (item.due, item.deadline) == (1560.0, 1590.0)

    asyncio.run(run())


def _backup_of(*items: BackupItem) -> list[bytes]:
    writer = BackupWriter()
    header = writer.header(BackupHeader(id="x", made_at=1.0, library="0"))
    return [header, *(writer.item(item) for item in items), writer.trailer()]


async def _told(store: Store, *items: BackupItem) -> dict[int, str]:
    report = await import_backup(store, _backup_of(*items))
    assert report.restored == len(items) - len(report.refused)
    return {line: reason for line, _, _, reason in report.refused}


def test_a_name_or_a_number_that_no_store_takes_is_told_with_its_line() -> None:
    async def main() -> None:
        store = MemoryStore()
        told = await _told(
            store,
            BackupItem(queue="q", key="a", state="available", value="1"),
            BackupItem(queue="q", key="a\x00b", state="available", value="1"),
            BackupItem(queue="q", key="b", state="available", value="1", priority=2**63),
            BackupItem(queue="q", key="c", state="available", value="1"),
            BackupItem(queue="q", key="", state="buried", value="1"),
            BackupItem(queue="q", key="d", state="buried", value="1", error="a\x00b"),
        )
        assert told.keys() == {3, 4, 6}
        assert "NUL" in told[3]
        assert "priority" in told[4]
        [dead] = (await store.browse("q", states=("buried",))).items
        assert dead.error == "a\N{REPLACEMENT CHARACTER}b"

    asyncio.run(main())


def test_a_priority_that_only_this_store_does_not_take_is_told_with_its_line() -> None:
    async def main() -> None:
        async with connect(shared_url()) as store:
            await store.settle([Purge("priorities")])
            items = [
                BackupItem(queue="priorities", key="a", state="available", value="1"),
                BackupItem(
                    queue="priorities", key="b", state="available", value="1", priority=2**60
                ),
                BackupItem(queue="priorities", key="c", state="available", value="1"),
            ]
            try:
                told = await _told(store, *items)
            finally:
                await store.settle([Purge("priorities")])
            assert told.keys() == {3}
            assert "2**53 on Redis" in told[3]

    asyncio.run(main())
