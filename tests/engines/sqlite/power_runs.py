"""Work on a SQLite store, and what is left of it after a loss of power at some step of it."""

import asyncio
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Any, Literal, NamedTuple, TypeAlias

import pytest

from leasedkeyq.engines.sqlite import store as sqlite_store
from leasedkeyq.engines.sqlite.schema import SqliteDurability
from leasedkeyq.engines.sqlite.store import SqliteStore
from leasedkeyq.model.requests import (
    Ack,
    Bury,
    Cancel,
    Change,
    Claim,
    Claimed,
    Extend,
    Purge,
    Put,
    Release,
    Requeue,
)
from tests.engines.sqlite.power_disk import Disk, Name, Step, Sync, SyncFolder, Truncate
from tests.engines.sqlite.power_layer import files_in, recorded

DATABASE = "q.db"
Content: TypeAlias = tuple[tuple[str, tuple[Any, ...]], ...]
Verdict: TypeAlias = Literal["kept", "unclaimed", "lost", "half", "damaged", "repeated"]
"""All is there; but for the last claims and extensions; something else is lost; something is there
in part; nothing can be read; or a fence is given out a second time."""


class Told(NamedTuple):
    """Callers were told what is stored now, after so many steps."""

    steps: int
    content: Content
    certain: bool = True
    """Whether that has to survive a loss of power: there was more than claims and extensions."""
    fence: int = 0
    """The greatest fence that was given out so far."""


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
    copy = folder.with_name(f"{folder.name}-copy")
    told = [Told(0, stored(copy, before)[0])]
    shutil.rmtree(copy)
    with recorded(folder) as steps:
        options = {"durability": durability, "sync_claims": sync_claims}
        worker = Worker(folder / DATABASE, Random(seed), options, steps.steps, told)
        asyncio.run(worker.work(rounds))
    return Run(before, steps.steps, told, worker.seen)


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
        self._held: list[Claimed] = []
        self._buried: list[int] = []
        self.seen: list[tuple[int, dict[str, bytes]]] = []

    async def work(self, rounds: int) -> None:
        stores = [self._open(), self._open()]
        await stores[0].put(self._puts())
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
            fence = self._told[-1].fence
            for request, answer in zip(requests, committed[0], strict=True):
                if isinstance(request, Claim):
                    assert all(item.fence > fence for item in answer), "a fence did not grow"
                    fence = max((fence, *(item.fence for item in answer)))
            certain = self._options["sync_claims"] or not all(
                isinstance(request, Claim | Extend) for request in requests
            )
            self._told.append(Told(len(self._steps), content_of(store), certain, fence))
            return committed

        setattr(store, "_transact_once", tell)  # noqa: B010  # type checkers know that it is a method
        return store

    async def _round(self, store: SqliteStore) -> None:
        dice = self._dice
        kind = dice.random()
        if kind < 0.4:
            await asyncio.gather(*(store.put(self._puts()) for _ in range(dice.choice((1, 1, 5)))))
        elif kind < 0.6:
            claim = Claim((("a", 2), ("b", 2)), 2, lease_time=dice.choice((None, 1000.0)))
            for _ in range(dice.choice((1, 3))):
                for claimed in await store.claim([claim, claim]):
                    self._held += claimed
        elif kind < 0.65 and self._held:
            item = dice.choice(self._held)
            await store.settle([Extend(item.queue, item.key, item.token, lease_time=3000.0)])
        elif kind < 0.95:
            for change, answer in await self._settle(store):
                if isinstance(change, Bury) and isinstance(answer, int):
                    self._buried.append(answer)
        else:
            await store.edit(
                "a", lambda items: [Put("a", ((item.key, b"edited"),)) for item in items]
            )

    def _puts(self) -> list[Put]:
        dice = self._dice
        return [
            Put(
                dice.choice("ab"),
                tuple(
                    (f"k{dice.randrange(60)}", dice.randbytes(dice.choice((5, 50, 3000))))
                    for _ in range(dice.randint(1, 6))
                ),
                policy=dice.choice(("update", "buffer")),
                priority=dice.choice((None, 1)),
                delay=dice.choice((None, None, 500.0)),
            )
            for _ in range(dice.randint(1, 3))
        ]

    async def _settle(self, store: SqliteStore) -> Iterator[tuple[Change, Any]]:
        dice = self._dice
        changes: list[Change] = [Cancel(dice.choice("ab"), f"k{dice.randrange(60)}")]
        for _ in range(dice.randint(0, len(self._held))):
            item = self._held.pop(dice.randrange(len(self._held)))
            held = (item.queue, item.key, item.token)
            changes.append(
                dice.choice(
                    (
                        Ack(*held),
                        Ack(*held, result=b"done", keep=500.0),
                        Release(*held, front=True, error="again"),
                        Release(*held, delay=500.0),
                        Bury(*held, error="no"),
                        Extend(*held, lease_time=2000.0),
                    )
                )
            )
        if self._buried and dice.random() < 0.5:
            changes.append(Requeue(dice.choice("ab"), self._buried.pop()))
        if dice.random() < 0.1:
            changes.append(Purge("b", "results"))
        return zip(changes, await store.settle(changes), strict=True)


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
        last = max(number for number, told in enumerate(done.told) if told.steps <= point)
        verdicts = judge(folder / f"left-{turn}", files, done.told, last)
        where = f"turn {turn}, after step {point} of {len(done.steps)}"
        assert verdicts <= {"kept", "unclaimed"}, where
        given_out = [told.fence for told in done.told[: last + 1] if told.fence]
        assert all(later > fence for later in given_out), where
        fence = max((fence, *given_out))


def outcome(disk: Disk, dice: Random, number: int) -> dict[str, bytes]:
    """The number-th outcome: first the ends, then anything in between."""
    if number == 0:
        return disk.least()
    if number in (1, 2):
        return disk.most(names=number == 1)
    files = disk.any(dice)
    if DATABASE in files and dice.random() < 0.5:
        files[f"{DATABASE}-shm"] = dice.randbytes(32768)
    return files


def judge(folder: Path, files: dict[str, bytes], told: list[Told], last: int) -> set[Verdict]:
    """What was told last must be there; what is told next may be there already.

    What callers were told since the last certain thing may be lost.
    """
    verdicts: set[Verdict]
    try:
        found, fence = stored(folder, files)
    except Exception as error:  # of whatever kind: a damaged file can break anything
        print(f"{folder.name}: {error!r}")
        verdicts = {"damaged"}
    else:
        contents = [each.content for each in told]
        certain = max(number for number in range(last + 1) if told[number].certain)
        if found in contents[last : last + 2]:
            verdicts = {"kept"}
        elif found in contents[certain:last]:
            verdicts = {"unclaimed"}
        else:
            verdicts = {"lost"} if found in contents[:last] else {"half"}
        if fence <= told[last].fence:
            verdicts.add("repeated")
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
