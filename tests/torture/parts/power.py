"""Power loss: what was written and not synced is lost, kept or torn, in any combination.

One round is a short run of a store, recorded step by step: each write, sync, truncation and change
of a name. Then the power goes at some of the steps. What was synced by then is on the disk, and of
the rest any part: whole writes, single sectors, rubbish, any selection of the names. The store is
opened on that, and must have what callers were told, and work on. Some rounds go on from what is
left, with another run and another loss.
"""

import asyncio
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

import pytest

from leasedkeyq.engines.file.document_file import DocumentForm
from leasedkeyq.engines.sqlite.schema import SqliteDurability
from leasedkeyq.engines.sqlite.store import SqliteStore
from tests.torture.part import Findings, Part, Trial
from tests.torture.power import file_runs, sqlite_runs
from tests.torture.power.disk import Disk, Name, Names, Step, Sync, SyncFolder, Truncate
from tests.torture.power.sqlite_layer import files_in
from tests.torture.power.work import Told, Verdict, told_by
from tests.torture.scratch import scratch_folder

LOST: Final = "acknowledged calls lost"
HALF: Final = "calls stored in part"
DAMAGED: Final = "stores that did not open"
REPEATED: Final = "fences given out twice"
WRONG: Final[dict[Verdict, str]] = {
    "lost": LOST,
    "half": HALF,
    "damaged": DAMAGED,
    "repeated": REPEATED,
}
ENDS: Final = 8
"""Of so many outcomes three are the ends: nothing but what is certain, and all with or without the
names that were not synced."""


class Setting(NamedTuple):
    """How the store of a round is used."""

    suffix: str = ""
    form: DocumentForm = "queues"
    exchanges: bool = True
    durability: SqliteDurability = "full"
    sync_claims: bool = False

    def __str__(self) -> str:
        if self.suffix:
            return f"{self.suffix}, {self.form}, {'' if self.exchanges else 'no '}exchange"
        return f"{self.durability}{', synced claims' if self.sync_claims else ''}"


class Lost(NamedTuple):
    """What a loss of power has left."""

    point: int
    files: dict[str, bytes]


def settings(engine: str, dice: Random) -> list[Setting]:
    """Those of one round: for the file store one for each kind of document."""
    if engine == "file":
        form: DocumentForm = "repository" if dice.random() < 0.15 else "queues"
        exchanges = dice.random() < 0.7
        return [Setting(suffix, form, exchanges) for suffix in ("yaml", "json")]
    kind = dice.random()
    if kind < 0.2:
        return [Setting(sync_claims=True)]
    return [Setting(durability="normal" if kind < 0.3 else "full")]


def points(steps: Sequence[Step], told: Sequence[Told], dice: Random) -> list[int]:
    """One step near which something becomes certain, and one of all."""
    marks = [each.steps for each in told]
    marks += [
        number
        for number, step in enumerate(steps)
        if isinstance(step, Sync | SyncFolder | Name | Names | Truncate)
    ]
    near = dice.choice(marks) + dice.choice((-1, 0, 1, 2))
    chosen = {min(max(near, 0), len(steps))}
    chosen.add(dice.randint(0, len(steps)))
    return sorted(chosen)


def losses(
    before: dict[str, bytes],
    steps: Sequence[Step],
    chosen: Sequence[int],
    outcome: Callable[[Disk], dict[str, bytes]],
) -> Iterator[Lost]:
    disk = Disk(before)
    done = 0
    for point in chosen:
        for step in steps[done:point]:
            disk.do(step)
        done = point
        yield Lost(point, outcome(disk))


_made: dict[str, bytes] = {}


def made_database(folder: Path) -> dict[str, bytes]:
    """The files of a SQLite store that has nothing in it."""
    if not _made:
        path = folder / "made" / sqlite_runs.DATABASE
        path.parent.mkdir()
        asyncio.run(SqliteStore(path).close())
        _made.update(files_in(path.parent))
    return _made


class Round:
    """One seed, in one setting."""

    def __init__(self, folder: Path, seed: int, setting: Setting, dice: Random) -> None:
        self.found = Findings()
        self._folder = folder
        self._seed = seed
        self._setting = setting
        self._dice = dice

    def run(self) -> None:
        # Most runs on SQLite begin in a database: to make one takes ten times as long as a put.
        fresh = bool(self._setting.suffix) or self._dice.random() < 0.2
        files = {} if fresh else made_database(self._folder)
        fence = 0
        for turn in range(self._dice.choice((1, 1, 1, 2))):
            work = self._folder / f"work-{turn}"
            sqlite_runs.write_files(work, files)
            run = self._record(work)
            shutil.rmtree(work)
            self.found.counted["acknowledged calls"] += len(run.told) - 1
            last = 0
            for lost in losses(
                run.before, run.steps, points(run.steps, run.told, self._dice), self._outcome
            ):
                self.found.tried += 1
                last = told_by(run.told, lost.point)
                words = f"{self._setting}, turn {turn}, step {lost.point} of {len(run.steps)}"
                self._count(self._judge(lost.files, run.told, last), words)
                files = lost.files
            given_out = [told.fence for told in run.told[: last + 1] if told.fence]
            if any(each <= fence for each in given_out):
                self.found.violation(REPEATED, self._seed, f"{self._setting}, turn {turn}")
            fence = max((fence, *given_out))
            if self.found.violations:
                return  # what is left may be of no use

    def _record(self, work: Path) -> "file_runs.Run | sqlite_runs.Run":
        dice, setting = self._dice, self._setting
        rounds = dice.randint(1, 3)
        if setting.suffix:
            path = work / f"queue.{setting.suffix}"
            return file_runs.run(
                path, dice, rounds=rounds + 1, form=setting.form, exchanges=setting.exchanges
            )
        return sqlite_runs.run(
            work,
            dice.getrandbits(32),
            rounds=rounds,
            durability=setting.durability,
            sync_claims=setting.sync_claims,
        )

    def _outcome(self, disk: Disk) -> dict[str, bytes]:
        number = self._dice.randrange(ENDS)
        if self._setting.suffix:
            return disk.outcome(self._dice, number)
        return sqlite_runs.outcome(disk, self._dice, number)

    def _judge(self, files: dict[str, bytes], told: list[Told], last: int) -> set[Verdict]:
        left = self._folder / "left"
        if not self._setting.suffix:
            verdicts = sqlite_runs.judge(left, files, told, last)
            shutil.rmtree(left, ignore_errors=True)
            return verdicts
        sqlite_runs.write_files(left, files)
        path = left / f"queue.{self._setting.suffix}"
        verdicts = file_runs.judge(path, self._setting.form, told, last)
        shutil.rmtree(left)
        return verdicts

    def _count(self, verdicts: set[Verdict], words: str) -> None:
        for verdict in verdicts:
            if verdict == "unclaimed":
                self.found.counted["losses of the last claims alone"] += 1
            elif verdict == "lost" and self._setting.durability == "normal":
                self.found.counted["losses of the last moments at durability normal"] += 1
            elif verdict in WRONG:
                self.found.violation(WRONG[verdict], self._seed, words)


def run(trial: Trial) -> Findings:
    found = Findings()
    with scratch_folder(trial.folder) as folder:
        for seed in trial.seeds:
            dice = trial.dice(seed)
            for setting in settings(trial.engine, dice):
                own = folder / "round"
                own.mkdir()
                one = Round(own, seed, setting, Random(dice.getrandbits(64)))
                with pytest.MonkeyPatch.context() as patch:
                    # Tokens have their places in the file, too.
                    patch.setattr(os, "urandom", Random(dice.getrandbits(64)).randbytes)
                    one.run()
                found += one.found
                shutil.rmtree(own)
    return found


PART = Part(
    name="power",
    title="Power lost at any step: unsynced writes lost, kept or torn in any combination",
    unit="losses of power",
    amounts={"file": 10_000, "sqlite": 10_000},
    slice={"file": 12, "sqlite": 8},
    run=run,
    wrong=(LOST, HALF, DAMAGED, REPEATED),
    note=(
        "One round is a recorded run and two losses in it; every fourth goes on from "
        "what is left. A round of the file store is one of YAML and one of JSON. A tenth of the "
        "rounds on SQLite is at durability normal, where whole calls of the last moments may go."
    ),
)
