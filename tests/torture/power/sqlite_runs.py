"""Work on a SQLite store, and what is left of it after a loss of power at some step of it."""

import asyncio
import shutil
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, TypeAlias

import pytest

from leasedkeyq.engines.sqlite import store as sqlite_store
from leasedkeyq.engines.sqlite.schema import SqliteDurability
from leasedkeyq.engines.sqlite.store import SqliteStore
from leasedkeyq.model.requests import Claim, Extend, Put
from tests.torture.power.disk import Disk, Name, Step, Sync, SyncFolder, Truncate
from tests.torture.power.sqlite_layer import files_in, recorded
from tests.torture.power.work import (
    RandomWork,
    Told,
    Verdict,
    compare,
    greatest_fence,
    told_by,
)

DATABASE = "q.db"
Content: TypeAlias = tuple[tuple[str, tuple[Any, ...]], ...]


class Run(NamedTuple):
    before: dict[str, bytes]
    """The files in which it began."""
    steps: list[Step]
    told: list[Told]
    """The first is what was stored at the beginning."""
    seen: list[tuple[int, dict[str, bytes]]]
    """The files after so many steps."""

    def points(self) -> set[int]:
        """Numbers of steps after which something has just become certain, or is about to."""
        marks = [told.steps for told in self.told]
        marks += [
            number
            for number, step in enumerate(self.steps)
            if isinstance(step, Sync | SyncFolder | Name | Truncate)
        ]
        near = {mark + offset for mark in marks for offset in (-1, 0, 1, 2)}
        return near & set(range(len(self.steps) + 1))


def content_of(store: SqliteStore) -> Content:
    """All that is stored."""
    connection = store._connection
    assert connection is not None
    names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
    return tuple(
        (name, tuple(connection.execute(f"SELECT * FROM {name} ORDER BY 1").fetchall()))
        for (name,) in names.fetchall()
    )


# Working


def run(
    folder: Path,
    seed: int,
    *,
    rounds: int,
    durability: SqliteDurability = "full",
    sync_claims: bool = False,
) -> Run:
    """Work in a folder, which may have a database already."""
    before = files_in(folder)
    told = [Told(0, _stored_before(folder, before))]
    with recorded(folder) as steps:
        options = {"durability": durability, "sync_claims": sync_claims}
        worker = Worker(folder / DATABASE, Random(seed), options, steps.steps, told)
        asyncio.run(worker.work(rounds))
    return Run(before, steps.steps, told, worker.seen)


_before: dict[int, Content] = {}
"""What was stored in files in which a run began, by their hash: many begin in the same ones."""


def _stored_before(folder: Path, files: dict[str, bytes]) -> Content:
    mark = hash(tuple(sorted(files.items())))
    if mark not in _before:
        copy = folder.with_name(f"{folder.name}-copy")
        if len(_before) > 8:
            _before.clear()
        _before[mark] = stored(copy, files)[0]
        shutil.rmtree(copy)
    return _before[mark]


class Worker:
    """Two stores on one database, one of which works at a time."""

    def __init__(
        self,
        path: Path,
        dice: Random,
        options: dict[str, Any],
        steps: list[Step],
        told: list[Told],
    ) -> None:
        self._path = path
        self._options = options
        self._dice = dice
        self._steps = steps
        self._told = told
        self._work = RandomWork(dice)
        self.seen: list[tuple[int, dict[str, bytes]]] = []

    async def work(self, rounds: int) -> None:
        stores = [self._open(), self._open()]
        await stores[0].put(self._work.puts())
        for _ in range(rounds):
            if self._dice.random() < 0.1:
                # With the last one the log goes, too.
                for store in stores:
                    await store.close()
                stores = [self._open(), self._open()]
            await self._round(self._dice.choice(stores))
            self._look()
        for store in stores:
            await store.close()
        self._look()

    def _look(self) -> None:
        self.seen.append((len(self._steps), files_in(self._path.parent)))

    def _open(self) -> SqliteStore:
        store = SqliteStore(self._path, **self._options, clock=lambda: 1e9)
        connection = store._connection
        assert connection is not None
        connection.execute("PRAGMA journal_size_limit = 30000")
        transact = store._transact_once

        def tell(requests: list[Any], *arguments: Any) -> Any:
            """Before any caller knows."""
            committed = transact(requests, *arguments)
            fence = greatest_fence(requests, committed[0], self._told[-1].fence)
            certain = self._options["sync_claims"] or not all(
                isinstance(request, Claim | Extend) for request in requests
            )
            self._told.append(Told(len(self._steps), content_of(store), certain, fence))
            return committed

        setattr(store, "_transact_once", tell)  # noqa: B010  # type checkers know that it is a method
        return store

    async def _round(self, store: SqliteStore) -> None:
        dice, work = self._dice, self._work
        kind = dice.random()
        if kind < 0.4:
            # Calls of their own would be one batch or several, as the threads have it.
            await store.put([put for _ in range(dice.choice((1, 1, 5))) for put in work.puts()])
        elif kind < 0.6:
            claims = work.claims()
            for _ in range(dice.choice((1, 3))):
                work.note(claims, await store.claim(claims))
        elif kind < 0.65 and work.held:
            await store.settle([work.extension()])
        elif kind < 0.95:
            changes = work.changes()
            work.note(changes, await store.settle(changes))
        else:
            await store.edit(
                "a", lambda items: [Put("a", ((item.key, b"edited"),)) for item in items]
            )


# Losing power


def losses(
    run: Run,
    folder: Path,
    dice: Random,
    *,
    points: Iterable[int],
    outcomes: int,
    syncs: bool = True,
    folder_syncs: bool = True,
) -> "Counter[Verdict]":
    """Lose power after each of these numbers of steps, each time with several outcomes.

    What is not as it should be is left in the folder, as it was after the loss.
    """
    verdicts: Counter[Verdict] = Counter()
    disk = Disk(run.before, syncs=syncs, folder_syncs=folder_syncs)
    done = last = 0
    seen: set[int] = set()
    for point in sorted(set(points)):
        for step in run.steps[done:point]:
            disk.do(step)
        done = point
        while last + 1 < len(run.told) and run.told[last + 1].steps <= point:
            last += 1
        for number in range(outcomes):
            files = outcome(disk, dice, number)
            mark = hash((last, *sorted(files.items())))
            if mark not in seen:
                seen.add(mark)
                verdicts.update(judge(folder / f"{point}-{number}", files, run.told, last))
    return verdicts


def lose_power_often(folder: Path, dice: Random, *, turns: int) -> None:
    """Go on from where the last loss has left the files, again and again."""
    files: dict[str, bytes] = {}
    fence = 0
    for turn in range(turns):
        work = folder / f"work-{turn}"
        write_files(work, files)
        done = run(work, dice.getrandbits(32), rounds=2)
        shutil.rmtree(work)
        point = dice.randint(0, len(done.steps))
        disk = Disk(done.before)
        for step in done.steps[:point]:
            disk.do(step)
        files = outcome(disk, dice, dice.randrange(8))
        last = told_by(done.told, point)
        verdicts = judge(folder / f"left-{turn}", files, done.told, last)
        where = f"turn {turn}, after step {point} of {len(done.steps)}"
        assert verdicts <= {"kept", "unclaimed"}, where
        given_out = [told.fence for told in done.told[: last + 1] if told.fence]
        assert all(later > fence for later in given_out), where
        fence = max((fence, *given_out))


def outcome(disk: Disk, dice: Random, number: int) -> dict[str, bytes]:
    """The number-th outcome; the shared memory of SQLite, which is never synced, may be rubbish."""
    files = disk.outcome(dice, number)
    if number > 2 and DATABASE in files and dice.random() < 0.5:
        files[f"{DATABASE}-shm"] = dice.randbytes(32768)
    return files


def judge(folder: Path, files: dict[str, bytes], told: list[Told], last: int) -> set[Verdict]:
    """Open what is left, and compare it with what callers were told."""
    verdicts: set[Verdict]
    try:
        found, fence = stored(folder, files)
    except Exception as error:  # of whatever kind: a damaged file can break anything
        print(f"{folder.name}: {error!r}")
        verdicts = {"damaged"}
    else:
        verdicts = compare(told, last, found, fence)
    shutil.rmtree(folder)
    if not verdicts <= {"kept", "unclaimed"}:
        write_files(folder, files)
    return verdicts


def write_files(folder: Path, files: dict[str, bytes]) -> None:
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)


def stored(folder: Path, files: dict[str, bytes]) -> tuple[Content, int]:
    """What a store, with Python's own SQLite, finds in these files; and it can work on.

    Also the next fence that it gives out.
    """
    write_files(folder, files)
    off = "PRAGMA synchronous = OFF"  # this time nothing has to last
    with pytest.MonkeyPatch.context() as patch:
        for level in ("SYNCED", "NOT_SYNCED"):
            patch.setattr(sqlite_store, level, off)
        store = SqliteStore(folder / DATABASE, durability="normal")
        try:
            connection = store._connection
            assert connection is not None
            connection.execute(off)
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            content = content_of(store)
            fence = asyncio.run(_go_on(store))
        finally:
            asyncio.run(store.close())
    return content, fence


async def _go_on(store: SqliteStore) -> int:
    await store.put([Put("new", (("a", b"1"),))])
    [[item]] = await store.claim([Claim((("new", 1),))])
    return item.fence
