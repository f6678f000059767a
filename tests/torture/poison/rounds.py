"""Rounds of poison: values that cannot be decoded between good ones, and the workers live on."""

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Final

from leasedkeyq.lanes import (
    EventEmitter,
    LaneConfig,
    QueueManagerBuilder,
    RetryPolicy,
    current_command,
)
from leasedkeyq.repository import QueueRepository, QueueService
from leasedkeyq.stores import Purge, Put, Store
from tests.torture.hostile.opened import OpenedStore, opened
from tests.torture.part import Findings, Trial
from tests.torture.poison.values import WRONG as WRONG_VALUES
from tests.torture.poison.values import PoisonedValue, poisoned

DEATHS: Final = "workers that died"
STAYED: Final = "values that are not in the dead letters"
UNRUN: Final = "good commands that did not run"
WRONG: Final = (DEATHS, STAYED, UNRUN)
LANE: Final = "poison"
IN_A_ROUND: Final = 20
"""Poisoned values in lanes; there are more of other kinds."""
GOOD: Final = 6
PATIENCE: Final = 120.0


class Unwritable:
    """Nothing that JSON has."""


class PoisonedLane:
    """A worker with a lane that good commands and poisoned values go through."""

    def __init__(self, store: Store) -> None:
        self._store = store
        config = LaneConfig(0, 4).with_retry_policy(RetryPolicy.none())
        builder = QueueManagerBuilder(EventEmitter()).with_lane(LANE, config, 1)
        self.manager = builder.with_storage(store).build()

        @self.manager.command("typed")
        async def typed(number: int, text: str) -> str:
            return text * number

        @self.manager.command("returns")
        async def returns() -> Any:
            return Unwritable()

        @self.manager.command("tells")
        async def tells() -> None:
            current_command().progress({"how": Unwritable()})

        self._typed, self._returns, self._tells = typed, returns, tells

    async def round(self, found: Findings, seed: int, dice: random.Random) -> None:
        """Poison between good commands, in one lane."""
        values = [poisoned(dice) for _ in range(IN_A_ROUND)]
        handles: list[Any] = []
        for number, value in enumerate(values):
            if number % (IN_A_ROUND // GOOD) == 0:
                command = self._typed(2, f"{seed}")
                handles.append(await self.manager.submit(LANE, command, key=f"good {number}"))
            await self._store.put([_put(LANE, f"bad {number}", value)])
        tells = await self.manager.submit(LANE, self._tells(), key="tells")
        returns = await self.manager.submit(LANE, self._returns(), key="returns")
        try:
            async with asyncio.timeout(PATIENCE):
                results = await asyncio.gather(*handles, returns, tells, return_exceptions=True)
                await self._until_done(values)
        except TimeoutError:
            found.violation(DEATHS, seed, f"not done after {PATIENCE} s")
            return
        good = results[: len(handles)]
        for result in good:
            if result != f"{seed}{seed}":
                found.violation(UNRUN, seed, f"a good command ended with {result!r}"[:1000])
        if isinstance(results[-2], BaseException):
            found.violation(UNRUN, seed, f"a result that cannot be written: {results[-2]!r}"[:1000])
        letters = {letter.key: letter for letter in await self.manager.dlq.list(LANE)}
        for number, value in enumerate(values):
            self._judge(found, seed, value, dead=f"bad {number}" in letters)
        if "tells" not in letters:
            found.violation(STAYED, seed, "progress that cannot be encoded")
        found.counted["good commands that ran"] += len(good)
        found.counted["in the dead letters"] += len(letters)
        found.tried += len(values) + 2
        await self._store.settle([Purge(LANE)])

    async def _until_done(self, values: list[PoisonedValue]) -> None:
        """Wait until nothing is left but what no worker here knows."""
        left = sum(value.destination == "waits" for value in values)
        while True:
            counts = (await self._store.count([LANE]))[LANE]
            if counts.available + counts.scheduled == left and not counts.in_flight:
                return
            await asyncio.sleep(0.05)

    def _judge(self, found: Findings, seed: int, value: PoisonedValue, *, dead: bool) -> None:
        if dead != (value.destination == "dead"):
            words = f"{value.name}: {value.value[:200]!r}"
            found.violation(STAYED, seed, f"{words} should be {value.destination}")
        elif not dead:
            found.counted["of unknown types, which wait"] += 1


def _put(queue: str, key: str, value: PoisonedValue) -> Put:
    return Put(queue, ((key, value.value),), kind=value.kind)


async def _queue_round(found: Findings, seed: int, store: Store, dice: random.Random) -> None:
    """A consumer of a queue with a type, which meets values of other types."""
    name = f"typed {seed}"
    for number in range(GOOD):
        value = WRONG_VALUES[dice.choice(list(WRONG_VALUES))](dice)
        await store.put([Put(name, ((f"bad {number}", value),))])
        await store.queue(name).put(f"good {number}", number)
    queue = store.queue(name, value_type=int)
    try:
        got = [(await queue.get(timeout=PATIENCE))[1] for _ in range(GOOD)]
        if sorted(got) != list(range(GOOD)):
            found.violation(UNRUN, seed, f"a queue handed out {got}")
    except Exception as error:
        found.violation(DEATHS, seed, f"a consumer: {type(error).__name__}: {error}"[:1000])
    counts = (await store.count([name]))[name]
    if counts.buried != GOOD:
        found.violation(STAYED, seed, f"of {GOOD} values, {counts.buried} are buried")
    found.tried += GOOD
    found.counted["in the dead letters"] += counts.buried
    await queue.close()
    await store.settle([Purge(name)])


async def _repository_round(
    found: Findings, seed: int, target: OpenedStore, dice: random.Random
) -> None:
    """A repository whose queue has values that are no items."""
    name = f"tasks {seed}"
    for number in range(GOOD):
        value = WRONG_VALUES[dice.choice(list(WRONG_VALUES))](dice)
        await target.store.put([Put(name, ((f"bad {number}", value),))])

    def work() -> int:
        with QueueRepository(target.url, name) as repository:
            service = QueueService(repository)
            service.submit_task("good")
            done = 0
            for task in service.tasks():
                service.complete_task(task)
                done += 1
            return done

    try:
        done = await asyncio.to_thread(work)
    except Exception as error:
        found.violation(DEATHS, seed, f"a repository: {type(error).__name__}: {error}"[:1000])
        done = 1
    if done != 1:
        found.violation(UNRUN, seed, f"a repository handed out {done} items in place of one")
    counts = (await target.store.count([name]))[name]
    if counts.buried != GOOD:
        found.violation(STAYED, seed, f"of {GOOD} values of a repository, {counts.buried} failed")
    found.tried += GOOD
    found.counted["in the dead letters"] += counts.buried
    await target.store.settle([Purge(name)])


@asynccontextmanager
async def _working(target: OpenedStore) -> AsyncGenerator[PoisonedLane]:
    lane = PoisonedLane(target.store)
    async with lane.manager:
        yield lane


def run(trial: Trial) -> Findings:
    """The rounds of a trial."""
    return asyncio.run(_run(trial))


async def _run(trial: Trial) -> Findings:
    found = Findings()
    found.wrong.update(dict.fromkeys(WRONG, 0))
    # One document is enough: the other one would have the same values.
    async with opened(trial.engine, trial.folder) as [target, *_], _working(target) as lane:
        for seed in trial.seeds:
            dice = trial.dice(seed)
            await lane.round(found, seed, dice)
            await _queue_round(found, seed, target.store, dice)
            if trial.engine != "file":  # a document has one repository, and nothing beside it
                await _repository_round(found, seed, target, dice)
    return found
