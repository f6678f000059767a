"""Rounds of hostile input: one payload in all places, on the store of an engine and in memory.

What the memory store says of a payload in a place, the others have to say, too.
"""

import asyncio
import json
import random
import sqlite3
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from leasedkeyq.operations.store_layout import is_internal
from leasedkeyq.repository import QueueRepository, QueueService
from leasedkeyq.stores import Purge
from tests.torture.hostile.lane_places import LANE_PLACES, LaneDoor, lane_door
from tests.torture.hostile.local_places import LOCAL_PLACES
from tests.torture.hostile.opened import OpenedStore, opened, path_of
from tests.torture.hostile.payloads import CANARY, Payload, all_payloads, mixed
from tests.torture.hostile.repository_places import REPOSITORY_PLACES, RepositoryPlace
from tests.torture.hostile.shown_places import ShownDoor, shown_door
from tests.torture.hostile.store_places import (
    CONTENT_PLACES,
    NUMBER_PLACES,
    TEXT_PLACES,
    Scene,
    StorePlace,
)
from tests.torture.hostile.verdicts import SpoiledError, Verdict, judged, shown
from tests.torture.part import Findings, Trial

EXECUTED: Final = "payloads executed"
SPOILED: Final = "payloads changed"
CRASHED: Final = "crashes"
UNCLEAR: Final = "refusals without a clear error"
DIFFERENT: Final = "verdicts that differ from memory"
LEFT: Final = "things left in a store"
STUCK: Final = "queues that do not work afterwards"
WRONG: Final = (EXECUTED, SPOILED, CRASHED, UNCLEAR, DIFFERENT, LEFT, STUCK)
PATIENCE: Final = 60.0
SHOWN: Final = "what people see"
EVERY_SHOWN: Final = 4
EVERY_TEXT: Final = 10
"""One text in so many is tried where numbers belong."""

Verdicts: TypeAlias = dict[str, Verdict]
DECLARED: Final[dict[tuple[str, str], Callable[[Any], bool]]] = {
    ("redis", place): lambda value: type(value) is int and abs(value) > 2**53
    for place in ("a priority", "Put.priority", "the priority of an item")
}
"""The differences of docs/reference/differences.md, by store and place: for which payloads."""


def payload_of(seed: int) -> Payload:
    """The payload of a round: one of the list, and beyond its end a mixture of two of it."""
    known = all_payloads()
    return known[seed - 1] if seed <= len(known) else mixed(random.Random(seed))


def places_for(seed: int, value: Any) -> Mapping[str, StorePlace]:
    """Where a payload is tried."""
    if isinstance(value, str) and seed % EVERY_TEXT:
        return {**TEXT_PLACES, **CONTENT_PLACES}
    return {**TEXT_PLACES, **CONTENT_PLACES, **NUMBER_PLACES}


class Doors(NamedTuple):
    """The doors to a store that stay open for many rounds."""

    lanes: LaneDoor
    service: QueueService
    shown: ShownDoor


@asynccontextmanager
async def doors_of(target: OpenedStore) -> AsyncGenerator[Doors]:
    """Open the doors to a store; a document cannot have a repository beside other queues."""
    source = target.store if target.kind == "memory" else target.url
    if target.kind in ("yaml", "json"):
        source = target.url.replace("queue.", "repository.")
    name = None if target.kind in ("yaml", "json") else "repository"
    async with lane_door(target.store) as lanes, shown_door(target) as shown_to_people:
        service = await asyncio.to_thread(lambda: QueueService(QueueRepository(source, name)))
        try:
            yield Doors(lanes, service, shown_to_people)
        finally:
            await asyncio.to_thread(service.close)


class Judge:
    """Tries payloads, and notes what is wrong."""

    def __init__(self, trial: Trial, found: Findings) -> None:
        self._engine = trial.engine
        self._found = found
        self._canary = trial.folder / CANARY

    async def try_store(self, seed: int, target: OpenedStore) -> Verdicts:
        """All places of a store."""
        verdicts: Verdicts = {}
        value = payload_of(seed).marked(self._canary)
        for place, work in places_for(seed, value).items():
            scene = Scene(target.store, f"{place} {seed}")
            attempt = partial(work, scene, value)
            verdicts[place] = await self.attempt(seed, f"{target.kind}: {place}", value, attempt)
        await self._check_store(seed, target)
        return verdicts

    async def try_local(self, seed: int) -> None:
        """All places of a `LeasedKeyQueue`."""
        value = payload_of(seed).marked(self._canary)
        for place, work in LOCAL_PLACES.items():
            await self.attempt(seed, place, value, partial(work, value))

    async def try_doors(self, seed: int, target: OpenedStore, doors: Doors) -> Verdicts:
        """All places of lanes and of a repository, and all that people see of a text."""
        value = payload_of(seed).marked(self._canary)
        verdicts: Verdicts = {}
        attempt: Callable[[], Awaitable[Verdict]]
        for place, work in LANE_PLACES.items():
            attempt = partial(work, doors.lanes, value)
            verdicts[place] = await self.attempt(seed, f"{target.kind}: {place}", value, attempt)
        for place, call in REPOSITORY_PLACES.items():
            attempt = partial(_in_a_thread, call, doors.service, value)
            verdicts[place] = await self.attempt(seed, f"{target.kind}: {place}", value, attempt)
        if isinstance(value, str) and self._is_shown(seed, target):
            attempt = partial(doors.shown.show, seed, value)
            place = f"{target.kind}: {SHOWN}"
            verdicts[SHOWN] = await self.attempt(seed, place, value, attempt)
        try:
            await doors.lanes.ordinary()
        except Exception as error:
            self._found.violation(STUCK, seed, f"{target.kind}: lanes: {error}"[:2000])
        await doors.lanes.forget()
        await self._check_store(seed, target)
        return verdicts

    async def attempt(
        self, seed: int, place: str, value: Any, work: Callable[[], Awaitable[Verdict]]
    ) -> Verdict:
        """Try a payload in a place."""
        words = f"{place}, with {shown(value)}"
        self._found.counted["attempts"] += 1
        try:
            async with asyncio.timeout(PATIENCE):
                verdict, trouble = await judged(work)
        except SpoiledError as error:
            self._found.violation(SPOILED, seed, f"{words}: {error}")
            return "spoiled"
        except Exception as error:
            self._found.violation(CRASHED, seed, f"{words}: {type(error).__name__}: {error}"[:2000])
            return "crashed"
        if trouble:
            self._found.violation(UNCLEAR, seed, f"{words}: {trouble}"[:2000])
        refused = verdict.startswith("refused")
        self._found.counted["refused" if refused else "taken and given back"] += 1
        return verdict

    def _is_shown(self, seed: int, target: OpenedStore) -> bool:
        """Whether it is looked at what people see: it is made in the same way on all stores.

        So it is looked at for each payload in memory and on SQLite, and for some elsewhere.
        """
        if target.kind != self._engine:
            return target.kind in ("yaml", "json") and seed % EVERY_SHOWN == 0
        return target.kind in ("memory", "sqlite") or seed % EVERY_SHOWN == 0

    def compare(
        self, seed: int, kind: str, verdicts: Mapping[str, Verdict], model: Mapping[str, Verdict]
    ) -> None:
        """See that a store says what the memory store says."""
        value = payload_of(seed).make()
        for place, verdict in verdicts.items():
            if place == SHOWN:
                continue
            declared = DECLARED.get((kind, place))
            if verdict != model[place] and not (declared is not None and declared(value)):
                words = f"{kind}: {place}, with {shown(value)}: {verdict}, in memory {model[place]}"
                self._found.violation(DIFFERENT, seed, words)

    async def _check_store(self, seed: int, target: OpenedStore) -> None:
        """Nothing was left behind or executed, and an ordinary item goes through."""
        counts = await target.store.count()
        if left := [name for name in counts if not is_internal(name)]:
            words = f"{target.kind}: {', '.join(map(shown, left))}"
            self._found.violation(LEFT, seed, words)
            await target.store.settle([Purge(name) for name in left])
        queue = target.store.queue("ordinary")
        try:
            async with asyncio.timeout(PATIENCE):
                await queue.put("item", {"seed": seed})
                key, value, lease = await queue.get(timeout=0)
                await queue.ack(lease)
                assert (key, value) == ("item", {"seed": seed}), (key, value)
        except Exception as error:
            self._found.violation(STUCK, seed, f"{target.kind}: {type(error).__name__}: {error}")
        if self._canary.exists():
            self._found.violation(EXECUTED, seed, f"{target.kind}: {payload_of(seed).family}")
            self._canary.unlink()

    def check_canaries(self, seed: int, target: OpenedStore) -> None:
        """See that no payload was executed inside the store."""
        for canary in [*target.canaries(), *_of_file(target)]:
            self._found.violation(EXECUTED, seed, f"{target.kind}: {canary} was made")


async def _in_a_thread(place: RepositoryPlace, service: QueueService, value: Any) -> Verdict:
    """A place of a door without an event loop."""
    return await asyncio.to_thread(place, service, value)


def _of_file(target: OpenedStore) -> list[str]:
    """Tables of a database, and objects of a document, that payloads would have made."""
    if target.kind == "sqlite":
        with sqlite3.connect(path_of(target)) as database:
            sql = "SELECT name FROM sqlite_master WHERE name = ?"
            return [name for (name,) in database.execute(sql, (CANARY,))]
    if target.kind == "json" and path_of(target).exists():
        return [CANARY] if CANARY in json.loads(path_of(target).read_text()) else []
    return []


def run(trial: Trial) -> Findings:
    """The rounds of a trial."""
    return asyncio.run(_run(trial))


async def _run(trial: Trial) -> Findings:
    found = Findings()
    found.wrong.update(dict.fromkeys(WRONG, 0))
    judge = Judge(trial, found)
    async with AsyncExitStack() as stack:
        targets = await stack.enter_async_context(opened(trial.engine, trial.folder))
        if trial.engine != "memory":
            targets = [*await stack.enter_async_context(opened("memory", trial.folder)), *targets]
        doors = [await stack.enter_async_context(doors_of(target)) for target in targets]
        for seed in trial.seeds:
            await judge.try_local(seed)
            model: Verdicts = {}
            for target, door in zip(targets, doors, strict=True):
                verdicts = await judge.try_store(seed, target)
                verdicts |= await judge.try_doors(seed, target, door)
                model = model or verdicts
                judge.compare(seed, target.kind, verdicts, model)
            found.tried += 1
        for target in targets:
            judge.check_canaries(trial.seeds.stop - 1, target)
    return found
