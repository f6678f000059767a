"""Part `soak`: an hour of work beside a transaction that stays open.

In `tests/torture/soak`, `sides.py` has the two stores of an engine, one of them with an idle
transaction, and their sizes; `work.py` what is done on both at the same moments; `judgement.py`
what is said of times and sizes.
"""

import asyncio
from contextlib import AsyncExitStack

from leasedkeyq import connect
from tests.torture.part import Findings, Part, Trial
from tests.torture.soak.judgement import (
    GROWS,
    SLOW,
    STAYS,
    WINDOWS,
    judge_size,
    judge_times,
)
from tests.torture.soak.sides import Pair, own_sizes, pair_of
from tests.torture.soak.work import TICK, TICKS, Work, Worked

SECONDS = round(TICK * TICKS)
"""Of a round."""
ROUNDS = 3600 // SECONDS
LOOKS = 20
ROUNDS_BETWEEN = 10
"""Looks until a store that works on must have done away with what the transaction had held back,
and the rounds between two looks. SQLite goes some hundreds of commits without writing back."""


def run(trial: Trial) -> Findings:
    found = Findings()
    with pair_of(trial.engine, trial.folder) as pair:
        asyncio.run(_soak(trial, pair, found))
    return found


async def _soak(trial: Trial, pair: Pair, found: Findings) -> None:
    async with AsyncExitStack() as opened:
        stores = [
            await opened.enter_async_context(connect(side.url)) for side in (pair.beside, pair.twin)
        ]
        beside, twin = (Worked(store) for store in stores)
        work = Work(beside, twin)
        await work.fill()
        early: dict[str, int] = {}
        with pair.idle():
            for number, seed in enumerate(trial.seeds):
                if number == len(trial.seeds) // WINDOWS:
                    early = _sizes(pair)
                await work.round(trial.dice(seed))
                found.tried += SECONDS
            late = _sizes(pair)
        last = trial.seeds[-1]
        judge_times(found, last, beside.seconds, twin.seconds)
        for name, size in late.items():
            found.counted[name] = size
        for side, name in pair.bounded:
            label = _label(side, name)
            judge_size(found, last, label, early[label], late[label])
        for name in own_sizes():
            judge_size(found, last, name, early[name], late[name])
        await _work_on(trial, pair, work, found)
        found.counted["claims"] = work.claims
        await work.drain()
        for words in work.differences:
            found.violation("claims unlike those of the twin", last, words)
        for side, worked in (("beside the transaction", beside), ("without it", twin)):
            for words in worked.refused:
                found.violation("requests refused", last, f"{side}: {words}")
            for value in sorted(worked.waiting):
                found.violation("items lost", last, f"{side}: {value} was put and never handed out")


async def _work_on(trial: Trial, pair: Pair, work: Work, found: Findings) -> None:
    """Without the transaction and without pauses, until nothing is left of what it held back."""
    for look in range(LOOKS):
        for number in range(ROUNDS_BETWEEN):
            await work.round(trial.dice(look * ROUNDS_BETWEEN + number), pace=0.0)
        if pair.beside.tidy():
            return
    left = pair.beside.sizes()
    found.violation(STAYS, trial.seeds[-1], f"after {LOOKS * ROUNDS_BETWEEN} rounds more: {left}")


def _sizes(pair: Pair) -> dict[str, int]:
    sizes = dict(own_sizes())
    for side, of in (("beside", pair.beside), ("twin", pair.twin)):
        sizes |= {_label(side, name): size for name, size in of.sizes().items()}
    return sizes


def _label(side: str, name: str) -> str:
    return f"{'beside the transaction' if side == 'beside' else 'without it'}: {name}"


PART = Part(
    name="soak",
    title="An hour of puts, claims and acks beside a transaction that stays open",
    unit="seconds",
    amounts=dict.fromkeys(("sqlite", "postgres", "redis"), ROUNDS),
    slice={"sqlite": 1},
    run=run,
    wrong=(
        SLOW,
        "items lost",
        "claims unlike those of the twin",
        "requests refused",
        GROWS,
        STAYS,
    ),
    spread=False,
    note=(
        "The one part that takes longer than 30 minutes: an hour on each engine; the three may run "
        "side by side. 32 values a second are put and claimed on two stores of the same kind at "
        "the same moments; one claimed value in twenty is released, the others are acknowledged, "
        "so that 200 values wait at first and about 6,000 in the end. One of the two has an idle "
        "transaction open: on SQLite a reader in another process, on PostgreSQL a snapshot "
        "(`REPEATABLE READ`), on Redis a `MULTI` that watches all keys. So other load "
        "on the machine slows both. The p99 of claims in the last ten minutes may be three times "
        "that of the twin. As long as a reader is there, SQLite cannot use its log "
        "again and PostgreSQL cannot throw dead rows away: these sizes grow by the work "
        "that is done, and shrink when the transaction has ended."
    ),
)
