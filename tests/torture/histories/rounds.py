"""Histories on engines: recorded, some side by side, and judged."""

import asyncio
import logging
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Final

from leasedkeyq.engines.memory import MemoryStore
from leasedkeyq.model.requests import Cancel
from leasedkeyq.stores.store import Store
from leasedkeyq.testing.virtual_time import VirtualTimeLoop
from tests.torture.histories.clients import Workload, record
from tests.torture.histories.contradiction import in_words
from tests.torture.histories.history import SETTLING, Call, by_key
from tests.torture.histories.search import judge
from tests.torture.histories.sites import Site, no_trouble, opened
from tests.torture.histories.specification import KeyMachine
from tests.torture.part import Findings, Trial

UNEXPLAINED: Final = "histories that no order explains"
UNDECIDED: Final = "histories not decided within the limit"
SIDE_BY_SIDE: Final = 4
"""Histories that happen at a time, each in a queue of its own: they mostly wait."""
SHORT: Final = 0.01
"""Seconds of virtual time."""


def run(trial: Trial) -> Findings:
    """One history for each seed."""
    found = Findings()
    with quiet():
        if trial.engine == "memory":
            for seed in trial.seeds:
                calls, keys = in_virtual_time(trial, seed)
                weigh(found, seed, calls, keys, KeyMachine())
        else:
            with trial.empty_store() as url:
                asyncio.run(_in_real_time(trial, url, found))
    return found


def in_virtual_time(
    trial: Trial, seed: int, open_store: Callable[..., Store] = MemoryStore
) -> tuple[list[Call], Sequence[str]]:
    """One history in memory; every repetition is the same."""

    async def happen() -> tuple[list[Call], Sequence[str]]:
        loop = asyncio.get_running_loop()
        store = open_store(clock=loop.time)
        site = Site((store,), no_trouble, SHORT, clock=loop.time)
        return await _history(trial, seed, site)

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(happen())


async def _in_real_time(trial: Trial, url: str, found: Findings) -> None:
    async with opened(trial.engine, url) as site:
        machine = KeyMachine(site.slack, lingers=site.passes_over)
        for first in range(trial.seeds.start, trial.seeds.stop, SIDE_BY_SIDE):
            seeds = range(first, min(first + SIDE_BY_SIDE, trial.seeds.stop))
            histories = await asyncio.gather(*(_history(trial, seed, site) for seed in seeds))
            for seed, (calls, keys) in zip(seeds, histories, strict=True):
                weigh(found, seed, calls, keys, machine, passes_over=site.passes_over)


async def _history(trial: Trial, seed: int, site: Site) -> tuple[list[Call], Sequence[str]]:
    dice = trial.dice(seed)
    work = Workload.chosen_by(dice, site.unit)
    queue = f"history-{seed}"
    trouble = asyncio.ensure_future(site.trouble(dice))
    calls = await record(site, queue, work, f"{trial.engine} {seed}")
    await trouble
    await _empty(site.stores[0], queue, work.keys)
    return calls, work.keys


async def _empty(store: Store, queue: str, keys: Sequence[str]) -> None:
    """Leave nothing behind: later histories need not carry it."""
    await store.settle([Cancel(queue, key) for key in keys])


def weigh(
    found: Findings,
    seed: int,
    calls: Sequence[Call],
    keys: Sequence[str],
    machine: KeyMachine,
    *,
    passes_over: bool = False,
) -> None:
    """Judge one history, and note what it was."""
    found.tried += 1
    found.counted["calls"] += len(calls)
    found.counted["calls without an answer"] += sum(call.ended is None for call in calls)
    found.counted["leases refused when they were settled"] += sum(
        call.verb in SETTLING and call.answer == "refused" for call in calls
    )
    found.counted[UNDECIDED] += 0
    verdicts: set[str] = set()
    parts = by_key(calls, keys, passes_over=passes_over)
    if passes_over:
        complete = by_key(calls, keys)
        left_out = sum(len(complete[key]) - len(part) for key, part in parts.items())
        found.counted["claims of nothing beside another call, not judged"] += left_out
        judged = sum(call.answer == "empty" for part in parts.values() for call in part)
        found.counted["claims of nothing, judged"] += judged
    for part in parts.values():
        judgement = judge(part, machine)
        found.counted["steps of the search"] += judgement.steps
        verdicts.add(judgement.verdict)
        if judgement.verdict == "unexplained":
            found.violation(UNEXPLAINED, seed, in_words(part, machine))
    if "undecided" in verdicts:
        found.counted[UNDECIDED] += 1


@contextmanager
def quiet() -> Generator[None]:
    """Without the warnings of stores whose answers are lost on purpose."""
    logger = logging.getLogger("leasedkeyq")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
