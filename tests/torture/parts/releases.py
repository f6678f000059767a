"""Part `releases`: workers of two releases on a store that an older version has left behind.

In `tests/torture/releases`, `copies.py` has frozen copies of what each version stores,
`older_stores.py` puts them in place, `other_release.py` has the second copy of the package, and
`two_releases.py` processes of both. A round puts the store of an older version in place, with items
in every state. Workers of both releases open it at the same time, and are killed while they bring
it up to date and while they work on a queue of their own. Then what they asked for and what was
there before must be there, and a store of a newer version must be refused.
"""

import asyncio
import time
import traceback
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from leasedkeyq.errors import StoreError
from tests.engines.kill_judge import FAILED, WRONG
from tests.engines.kill_rounds import PATIENCE, Ground, Kind, Life, Nursery, engine_of
from tests.torture.part import Findings, Part, Trial
from tests.torture.parts.kills import tell
from tests.torture.releases.older_stores import VERSIONS, missing
from tests.torture.releases.other_release import Release, other_release
from tests.torture.releases.scenario import THEN, contents
from tests.torture.releases.two_releases import TwoReleases, ground_of

KINDS: Final[dict[str, tuple[Kind, ...]]] = {
    "file": ("yaml", "json"),
    "sqlite": ("sqlite-full",),
    "postgres": ("postgres",),
    "redis": ("redis",),
}
CHANGED: Final = "items of an older version lost or changed"
NOT_REFUSED: Final = "stores of a newer version not refused"
ADVICE: Final = "this leasedkeyq knows version", "this program knows"
"""What a refusal says."""
SEEN_AT_WORK: Final[frozenset[Kind]] = frozenset({"sqlite-full"})
"""Where a worker that has a store open notices that a newer release has changed it. A document is
read anew each time, but cannot be exchanged by a test while a worker writes it. On PostgreSQL and
Redis older workers go on beside newer ones: nothing is taken away that they use."""
EACH: Final = 2
"""Workers of each release that open the store at the same time."""
WAVES: Final = 2


class Both:
    """The two releases, and where stores are, for many rounds."""

    def __init__(self, kinds: tuple[Kind, ...], folder: Path, running: ExitStack) -> None:
        self.places: list[tuple[Kind, int]] = [
            (kind, version) for kind in kinds for version in VERSIONS[kind]
        ]
        self._engines = {engine_of(kind) for kind in kinds}
        self._folder = folder
        self._running = running
        copy = folder / "release"
        copy.mkdir()
        self._release: Release = other_release(copy)
        self._release.check()
        self._grounds: dict[Kind, Ground] = {kind: ground_of(kind) for kind in kinds}
        for ground in self._grounds.values():
            running.callback(ground.close)
        self._own, self._other = self._nurseries()

    def _nurseries(self) -> tuple[Nursery, Nursery]:
        own = Nursery(self._folder / "errors", self._engines)
        self._running.callback(own.close)
        other = Nursery(
            self._folder / "other errors",
            self._engines,
            environment=self._release.environment(),
            root=self._release.root,
        )
        self._running.callback(other.close)
        return own, other

    def begin_anew(self) -> None:
        """After something went wrong: with other processes."""
        self._own.close()
        self._other.close()
        self._own, self._other = self._nurseries()

    def arena(self, kind: Kind, seed: int) -> TwoReleases:
        return TwoReleases(kind, seed, self._grounds[kind], self._own, self._other)


def run(trial: Trial) -> Findings:
    found = Findings()
    with ExitStack() as running:
        both = Both(KINDS[trial.engine], trial.folder, running)
        for seed in trial.seeds:
            try:
                try_round(both, seed, found)
            except Exception:
                found.violation(FAILED, seed, traceback.format_exc())
                both.begin_anew()
    return found


def try_round(both: Both, seed: int, found: Findings) -> None:
    kind, version = both.places[seed % len(both.places)]
    with both.arena(kind, seed) as arena:
        expected = arena.put_older(version)
        _race(arena)
        for wave in range(WAVES):
            first = 2 * (seed * WAVES + wave)
            arena.wave([arena.points[place % len(arena.points)] for place in (first, first + 1)])
        judge = arena.judge()
        there = asyncio.run(_contents(arena))
        for words in missing(expected, there):
            found.violation(CHANGED, seed, f"{kind} of version {version}: {words}")
        _refuse(arena, seed, found)
    found.tried += 1
    found.counted[f"stores of version {version}"] += 1
    found.counted["kills"] += 2 * EACH + 3 * WAVES
    found.counted["items in every state, brought over"] += len(expected)
    tell(arena, judge, seed, found)


def _race(arena: TwoReleases) -> None:
    """Workers of both releases find the older store at the same moment, and are killed soon."""
    lives = [arena.start("requests", own=number % 2 == 0) for number in range(2 * EACH)]
    arena.dice.shuffle(lives)
    for life in lives:
        time.sleep(arena.dice.random() * 0.06)
        arena.kill(life)


async def _contents(arena: TwoReleases) -> list[dict[str, Any]]:
    async with arena.open(THEN) as store:
        return await contents(store)


def _refuse(arena: TwoReleases, seed: int, found: Findings) -> None:
    """Neither release touches a store of a later version, and both say so."""
    said: dict[str, str] = {}
    at_work: Life | None = None
    if arena.kind in SEEN_AT_WORK:
        at_work = arena.start("requests")
        deadline = time.monotonic() + PATIENCE
        while not at_work.facts():
            assert time.monotonic() < deadline, "a worker does not begin"
            time.sleep(0.005)
    fingerprint = arena.make_newer()
    before = fingerprint()
    if at_work is not None:
        arena.wait(at_work)
        said["a worker of the other release that had it open"] = arena.said_by_other()
    said["this release"] = asyncio.run(_refusal(arena))
    arena.wait(arena.start("requests"))
    said["the other release"] = arena.said_by_other()
    for name, words in said.items():
        if not any(advice in words for advice in ADVICE):
            found.violation(NOT_REFUSED, seed, f"{arena.kind}: {name} said {words!r}")
    if fingerprint() != before:
        found.violation(NOT_REFUSED, seed, f"{arena.kind}: {before!r} became {fingerprint()!r}")
    found.counted["newer stores refused"] += len(said)


async def _refusal(arena: TwoReleases) -> str:
    try:
        async with arena.open() as store:
            await store.count()
    except StoreError as error:
        return str(error)
    return ""


PART = Part(
    name="releases",
    title="Two releases on one store that an older version has left behind, with kills",
    unit="stores",
    amounts={"file": 60, "sqlite": 90, "postgres": 45, "redis": 60},
    slice={"sqlite": 1},
    run=run,
    wrong=(*WRONG, CHANGED, NOT_REFUSED),
    note=(
        "Older versions: SQLite 1 to 9, PostgreSQL 2 to 4, Redis 2 and 3, documents 1 and 2, as"
        " frozen copies. There is no release yet: the other one is a second installed copy of this"
        " package under another version, until `--sdist` names one or `build/releases` has one."
    ),
)
