"""A SQLite store with items in all states, and what becomes of it when its files are harmed."""

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from leasedkeyq.engines.sqlite.store import SqliteStore
from leasedkeyq.errors import StoreError
from leasedkeyq.model.requests import Ack, Bury, Claim, Claimed, Extend, Put, Release
from leasedkeyq.testing.shorthand import EVERY_STATE
from tests.torture.damage.harm import harm

DATABASE = "q.db"
QUEUES = ("mail", "jobs")
NOW = 1.8e9
PATIENCE = 60.0
"""Seconds after which a call counts as stuck; each takes some milliseconds."""


class Sample(NamedTuple):
    """The files of a store, and what is in it."""

    files: dict[str, bytes]
    content: Any
    without_log: Any
    """What was in it before the work that is in the log only."""


def opened(folder: Path) -> SqliteStore:
    return SqliteStore(folder / DATABASE, clock=lambda: NOW, durability="normal", busy_timeout=1.0)


async def _fill(store: SqliteStore) -> None:
    """Enough for some pages of each table, and items in all states."""
    for number in range(60):
        value = b'{"n":%d,"text":"hello, w\xc3\xb6rld"}' % number
        await store.put([Put("mail", ((f"welcome-{number}", value),), priority=number % 3)])
    await store.put([Put("jobs", (("later", b"[1]"), ("large", b"x" * 9000)), delay=3600.0)])
    keys = ("now", "raw", "bad", "done")
    await store.put([Put("jobs", tuple((key, b"\xff\xfe") for key in keys), priority=5)])
    [claimed] = await store.claim([Claim((("jobs", 4), ("mail", 1)), 5, lease_time=3600.0)])
    tokens = {item.key: item.token for item in claimed}
    await store.put([Put("jobs", (("now", b'"newer"'),), "buffer")])
    await store.put([Put("jobs", (("now", b"2"), ("bad", b"3")), "append") for _ in range(5)])
    await store.settle(
        [
            Bury("jobs", "bad", tokens["bad"], "it failed", hold=True),
            Ack("jobs", "done", tokens["done"], b"7", 3600.0),
        ]
    )


def samples(folder: Path) -> list[Sample]:
    """One that was closed, and one whose last work is in the log only."""
    folder.mkdir()

    async def main() -> list[Sample]:
        store = opened(folder)
        await _fill(store)
        content = await _content(store)
        await store.close()
        closed = Sample(_files(folder), content, content)
        store = opened(folder)
        await store.put([Put("mail", ((f"new-{number}", b"1"),)) for number in range(20)])
        logged = Sample(_files(folder), await _content(store), content)
        await store.close()
        return [closed, logged]

    try:
        return asyncio.run(main())
    finally:
        shutil.rmtree(folder)


def _files(folder: Path) -> dict[str, bytes]:
    return {
        file.name: file.read_bytes()
        for file in sorted(folder.iterdir())
        if not file.name.endswith("-shm")
    }


async def _content(store: SqliteStore) -> Any:
    return [(await store.browse(queue, states=EVERY_STATE, limit=1000)).items for queue in QUEUES]


class Outcome(NamedTuple):
    """What a store makes of harmed files."""

    wrong: str = ""
    """What must not be, in words."""
    how: str = ""
    """How it ended, if that is as it should be."""


def open_harmed(folder: Path, sample: Sample, dice: Random) -> Outcome:
    """Harm the database or its log, open it, ask for everything, and work on."""
    folder.mkdir()
    try:
        names = [DATABASE, *(name for name in sample.files if name != DATABASE)]
        target = dice.choice(names)
        for name, content in sample.files.items():
            (folder / name).write_bytes(harm(content, dice) if name == target else content)
        return asyncio.run(_use(folder, sample, log=target != DATABASE))
    finally:
        shutil.rmtree(folder)


async def _use(folder: Path, sample: Sample, *, log: bool) -> Outcome:
    user = _User(folder)
    await user.use()
    if user.wrong:
        return Outcome(wrong=user.wrong)
    if user.told:
        return Outcome(how="told by an error")
    if user.content == sample.content:
        return Outcome(how="harmless")
    if log:
        # The log has checksums: what is behind the damage counts as not written, all or nothing.
        if user.content == sample.without_log:
            return Outcome(how="the transaction in the log is gone, as a whole")
        return Outcome(wrong="a damaged log has left a part of a transaction")
    if user.damage_found:
        return Outcome(how="told by doctor alone")
    return Outcome(how="other values in the database, which SQLite does not notice")


class _User:
    """Calls every kind of verb. A `StoreError` that names the file is right, all else is not."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._store: SqliteStore | None = None
        self.wrong = ""
        self.told = False
        self.content: Any = None
        self.damage_found = False

    async def use(self) -> None:
        await self._try("open", self._open)
        store = self._store
        if store is None:
            return
        self.content = await self._try("browse", lambda: _content(store))
        findings = await self._try("diagnose", store.diagnose) or []
        self.damage_found = any(found.code == "database-damaged" for found in findings)
        await self._try("count", store.count)
        await self._try("line", lambda: store.line("jobs", "now"))
        await self._try("look", lambda: store.look("jobs", ["now", "large"]))
        await self._try("sweep", lambda: store.sweep(QUEUES))
        await self._try("put", lambda: store.put([Put("mail", (("fresh", b"1"), ("x", b"2")))]))
        claim = Claim((("mail", 3), ("jobs", 3)), 6, lease_time=60.0)
        claimed = await self._try("claim", lambda: store.claim([claim]))
        items = claimed[0] if claimed else ()
        for number, item in enumerate(items):
            await self._try("settle", partial(_settle, store, item, number))
        await self._try("close", store.close)

    async def _open(self) -> None:
        self._store = opened(self._folder)

    async def _try(self, name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        try:
            async with asyncio.timeout(PATIENCE):
                return await call()
        except StoreError as error:
            self.told = True
            if str(self._folder) not in str(error):
                self.wrong = self.wrong or f"{name}: the error does not name the file: {error}"
        except TimeoutError:
            self.wrong = self.wrong or f"{name} was stuck for {PATIENCE:.0f} s"
        except Exception as error:  # of whatever kind: none is documented but StoreError
            self.wrong = self.wrong or f"{name} raised {error!r}"
        return None


async def _settle(store: SqliteStore, item: Claimed, number: int) -> None:
    held = (item.queue, item.key, item.token)
    changes = (Ack(*held), Release(*held), Bury(*held, error="no"), Extend(*held, lease_time=9.0))
    await store.settle([changes[number % len(changes)]])
