"""Each write, sync, rename and so on failing at each step, and a disk that is really full.

In one round a caller works on a store. At some call the disk begins to fail: one kind of call, with
one error, once or until it is mended. The caller gets a `StoreError` that says what to do, or its
answer. Then the disk works again: the store that is open must work on, what was acknowledged must
be there, a call that failed must have happened in full or not at all, and the leases that the
caller holds must be good. So it must be in a store that is opened anew.
"""

import asyncio
import logging
import os
import shutil
import subprocess
import warnings
from collections.abc import Coroutine, Generator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

from leasedkeyq.engines.file.store import FileStore
from leasedkeyq.engines.sqlite.store import SqliteStore
from leasedkeyq.errors import StoreError
from leasedkeyq.stores.store import Store
from tests.torture.disk_faults.file_layer import failing_files
from tests.torture.disk_faults.plan import FILE_KINDS, SQLITE_KINDS, FaultPlan, draw_plan
from tests.torture.disk_faults.session import Session, Wrong
from tests.torture.disk_faults.sqlite_layer import failing_sqlite
from tests.torture.part import Findings, Part, Trial
from tests.torture.scratch import scratch_folder

NOT_KEPT: Final = "promises not kept while or after the disk failed"
PATIENCE: Final = 120.0
"""Seconds after which a round counts as stuck; it takes some milliseconds."""
KINDS: Final = {"file": FILE_KINDS, "sqlite": SQLITE_KINDS}
REALLY_FULL: Final = 20
"""Each of so many rounds is one on a small disk that is really full, if it can be mounted."""
SMALL_DISK: Final = 1024 * 1024


class Place(NamedTuple):
    """Where the store of a round is."""

    engine: str
    folder: Path
    suffix: str

    def open(self) -> Store:
        if self.engine == "sqlite":
            return SqliteStore(self.folder / "q.db", busy_timeout=1.0)
        store = FileStore(self.folder / f"queue.{self.suffix}")
        store.engine.file.settled = 0.0
        return store


def open_despite(session: Session, place: Place) -> Store | None:
    """A store that is opened while the disk fails, if that can be."""
    try:
        return place.open()
    except StoreError:
        session.refused += 1
        return None


async def play(place: Place, plan: FaultPlan, dice: Random, session: Session) -> None:
    """A session during which the disk fails."""
    store = place.open()
    for _ in range(dice.randint(0, 3)):
        await session.step(store)
    opened: Store | None = store
    if dice.random() < 0.2:
        await store.close()
        plan.armed = True
        opened = open_despite(session, place)
    plan.armed = True
    if opened is not None:
        for _ in range(dice.randint(2, 4)):
            await session.step(opened)
    plan.armed = False
    store = opened or place.open()
    await session.look(store)
    for _ in range(2):
        await session.step(store)
    await session.settle_all(store)
    await session.look(store)
    await store.close()


async def check_anew(place: Place, session: Session) -> None:
    """What another process finds."""
    store = place.open()
    if isinstance(store, SqliteStore):
        connection = store._connection
        assert connection is not None
        found = connection.execute("PRAGMA integrity_check").fetchall()
        if found != [("ok",)]:
            raise Wrong(f"the database is damaged: {found}")
    await session.look(store)
    await session.step(store)
    await store.close()


async def fill(place: Place, dice: Random, session: Session) -> None:
    """A session on a disk that becomes full, and then has room again."""
    store = place.open()
    await session.step(store)
    ballast = place.folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
        file.truncate(max(0, file.tell() - dice.randrange(0, 40_000)))
    for _ in range(6):
        await session.step(store)
    ballast.unlink()
    await session.look(store)
    for _ in range(2):
        await session.step(store)
    await session.settle_all(store)
    await store.close()


@contextmanager
def small_disk(folder: Path) -> Generator[Path | None]:
    """A disk of a few hundred kilobytes, or None where this user may not mount one."""
    place = folder / "small"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK}", "leasedkeyq-torture", str(place)]
    mounted = (
        os.geteuid() == 0
        and shutil.which("mount") is not None
        and subprocess.run(command, capture_output=True, check=False).returncode == 0
    )
    try:
        yield place if mounted else None
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(place)], capture_output=True, check=False)


class Rounds:
    """The rounds of one trial."""

    def __init__(self, trial: Trial, folder: Path, full: Path | None) -> None:
        self.found = Findings()
        self._trial = trial
        self._folder = folder
        self._full = full

    def run(self) -> None:
        for seed in self._trial.seeds:
            dice = self._trial.dice(seed)
            suffix = dice.choice(("yaml", "json"))
            full = self._full if seed % REALLY_FULL == 0 else None
            folder = (full or self._folder) / "round"
            folder.mkdir()
            session = Session(dice, str(folder))
            place = Place(self._trial.engine, folder, suffix)
            plan = draw_plan(KINDS[place.engine], dice)
            try:
                if full is not None:
                    self._until(fill(place, dice, session))
                    self.found.counted["disks really full"] += 1
                    self.found.tried += 1
                else:
                    self._fault(place, plan, dice, session)
                self._until(check_anew(place, session))
            except Exception as error:  # of whatever kind: none of them is to come out here
                words = "a disk that is full" if full is not None else f"{plan}, {plan.hit} times"
                self.found.violation(NOT_KEPT, seed, f"{suffix}, {words}: {error!r}")
            finally:
                shutil.rmtree(folder)
            self.found.counted["acknowledged calls"] += session.acknowledged
            self.found.counted["calls that failed with advice"] += session.refused

    def _fault(self, place: Place, plan: FaultPlan, dice: Random, session: Session) -> None:
        layer = (
            failing_files(place.folder, plan) if place.engine == "file" else failing_sqlite(plan)
        )
        with layer:
            self._until(play(place, plan, dice, session))
        if plan.hit:
            self.found.tried += 1
            self.found.counted[f"{plan.kind} that failed"] += plan.hit

    def _until(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run(asyncio.wait_for(work, PATIENCE))


def run(trial: Trial) -> Findings:
    logger = logging.getLogger("leasedkeyq")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with (
            warnings.catch_warnings(),
            scratch_folder(trial.folder) as folder,
            small_disk(folder) as full,
        ):
            warnings.simplefilter("ignore")
            rounds = Rounds(trial, folder, full)
            rounds.run()
            return rounds.found
    finally:
        logger.setLevel(level)


PART = Part(
    name="disk-faults",
    title="Writes, syncs, renames and so on that fail at any step, and disks that are full",
    unit="faults",
    amounts={"file": 4_000, "sqlite": 4_000},
    slice={"file": 20, "sqlite": 20},
    run=run,
    wrong=(NOT_KEPT,),
    note=(
        "Calls fail with EIO, ENOSPC, EDQUOT, EMFILE, ENOLCK or EINTR, before or after they were "
        "done, or after a part of a write, once or until the disk is mended. Each twentieth round "
        "is on a small disk that is filled up, where root may mount one."
    ),
)
