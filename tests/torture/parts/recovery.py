"""Measures how long it takes from the kill of a holder until a waiting worker has its item.

A round is a store with four keys and eight workers in a `get`. Four of them hold a key, and renew
its lease at a third of its time; the others wait. Holders are killed with kill -9 at random moments
and replaced, ten times. When a lease has run out, a worker that waits must be given the key.
"""

import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tests.engines.kill_facts import ClaimDone, SettleDone
from tests.engines.kill_judge import FAILED, WRONG
from tests.engines.kill_rounds import PATIENCE, Arena, Life, Site
from tests.torture.part import Findings, Part, Trial
from tests.torture.parts.kills import KINDS, tell

KEYS: Final = 4
WORKERS: Final = 8
KILLS: Final = 10
LEASE_TIME: Final = 0.5
LIMIT: Final = LEASE_TIME + 1.0
"""Seconds within which a key should be in new hands."""
STEP: Final = 0.02
"""Seconds between two looks at what workers have noted."""
TO_NEW_HANDS: Final = "from the kill of a holder to new hands"
TOO_LATE: Final = f"later than the lease of {LEASE_TIME:g} s and a second"


@dataclass
class Holding:
    """A lease that a worker has noted."""

    key: str
    fence: int
    at: float
    """When the worker had it."""
    worker: Life
    held: bool


@dataclass
class Kill:
    key: str
    fence: int
    at: float


def run(trial: Trial) -> Findings:
    found = Findings()
    with Site(KINDS[trial.engine], trial.folder) as site:
        for seed in trial.seeds:
            try:
                try_round(site, seed, found)
            except Exception:
                found.violation(FAILED, seed, traceback.format_exc())
                site.begin_anew()
    return found


def try_round(site: Site, seed: int, found: Findings) -> None:
    with site.arena(seed) as arena:
        workers = [start(arena, feed=KEYS if number == 0 else 0) for number in range(WORKERS)]
        kills = [kill_one(arena, workers) for _ in range(KILLS)]
        for kill in kills:
            seconds = until_in_new_hands(arena, kill) - kill.at
            found.time(TO_NEW_HANDS, seconds)
            found.counted[TOO_LATE] += seconds > LIMIT
            found.tried += 1
        for worker in workers:
            arena.kill(worker)
        judge = arena.judge(by_key=True)
    tell(arena, judge, seed, found)


def start(arena: Arena, feed: int = 0) -> Life:
    return arena.start("renewer", lease_time=LEASE_TIME, feed=feed)


def kill_one(arena: Arena, workers: list[Life]) -> Kill:
    """Kill a worker that holds a key, at a random moment, and start another one."""
    time.sleep(arena.dice.random() * LEASE_TIME / 2)
    deadline = time.monotonic() + PATIENCE
    while True:
        # By name: the order in which they came to their keys is not that of a repetition.
        holdings = sorted(current(arena), key=lambda one: one.key)
        living = [one for one in holdings if one.held and one.worker in workers]
        if living:
            break
        assert time.monotonic() < deadline, "no worker holds a key"
        time.sleep(STEP)
    chosen = arena.dice.choice(living)
    at = arena.clock()
    arena.kill(chosen.worker)
    workers.remove(chosen.worker)
    workers.append(start(arena))
    return Kill(chosen.key, chosen.fence, at)


def until_in_new_hands(arena: Arena, kill: Kill) -> float:
    """When the next worker had the key."""
    deadline = time.monotonic() + PATIENCE
    while True:
        after = [
            one for one in all_holdings(arena) if one.key == kill.key and one.fence > kill.fence
        ]
        if after:
            return min(after, key=lambda one: one.fence).at
        assert time.monotonic() < deadline, f"{kill} and nobody has it"
        time.sleep(STEP)


def current(arena: Arena) -> list[Holding]:
    """The latest holding of each key."""
    latest: dict[str, Holding] = {}
    for one in all_holdings(arena):
        if one.key not in latest or latest[one.key].fence < one.fence:
            latest[one.key] = one
    return list(latest.values())


def all_holdings(arena: Arena) -> Iterator[Holding]:
    for worker in arena.lives:
        held: Holding | None = None
        for fact in worker.facts():
            if isinstance(fact, ClaimDone):
                (lease,) = fact.leases
                held = Holding(lease.key, lease.fence, fact.at, worker, held=True)
                yield held
            elif isinstance(fact, SettleDone) and held is not None:
                held.held = fact.accepted


PART = Part(
    name="recovery",
    title="Holders killed with kill -9, until a waiting worker has their item",
    unit="kills",
    amounts=dict.fromkeys(KINDS, 50),
    slice={"sqlite": 1},
    run=run,
    wrong=WRONG,
    note=(
        f"Holders have leases of {LEASE_TIME:g} s and renew them at a third of that time; the "
        "workers that are given their items wait in a `get` of other processes."
    ),
)
