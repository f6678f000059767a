"""Takes random steps with a queue or a store and with a model of it, and compares all answers.

In memory: `LeasedKeyQueue` beside a naive model (`tests.local.model_rig`), with tasks that wait and
are cancelled; after each step all that can be seen is compared, and the inside is looked at. On a
store: the store beside the state machine (`leasedkeyq.testing.differential`), on a clock that is
moved by hand, with up to three store objects on the same items.
"""

import asyncio
import logging
import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Final

from leasedkeyq import Store, connect
from leasedkeyq.model import ready, timers
from leasedkeyq.model.requests import Change, Claim, Put
from leasedkeyq.testing import ManualClock, Place
from leasedkeyq.testing.differential import Differential
from leasedkeyq.testing.site import SMALL_LIMITS
from tests.local.model_rig import walk_from
from tests.servers.postgres import schemas
from tests.servers.valkey import makes, shared_cluster, shared_server
from tests.torture.part import Findings, Part, Trial

IN_MEMORY: Final = 2_500
"""Steps of a round."""
BATCHES: Final = 600
"""Of a round on a store: batches of requests, waits and looks, each of some steps."""
DIFFERENT: Final = "answers that differ from the model's"


class CountingDifferential(Differential):
    """Counts its steps: each request of a batch, each wait, each look, each full comparison."""

    steps = 0

    async def put(self, requests: Sequence[Put]) -> None:
        self.steps += len(requests)
        await super().put(requests)

    async def claim(self, requests: Sequence[Claim]) -> None:
        self.steps += len(requests)
        await super().claim(requests)

    async def settle(self, requests: Sequence[Change]) -> None:
        self.steps += len(requests)
        await super().settle(requests)

    async def edit(self, queue: str, keys: Sequence[str] | None, number: int) -> None:
        self.steps += 1
        await super().edit(queue, keys, number)

    async def wait(self, seconds: float) -> None:
        self.steps += 1
        await super().wait(seconds)

    async def sweep(self, queues: Sequence[str]) -> None:
        self.steps += len(queues)
        await super().sweep(queues)

    async def look(self, queue: str, keys: Sequence[str]) -> None:
        self.steps += len(keys)
        await super().look(queue, keys)

    async def compare(self) -> None:
        self.steps += 1
        await super().compare()


def run(trial: Trial) -> Findings:
    found = Findings()
    with quiet_logs(), tidy_heaps():
        for seed in trial.seeds:
            try:
                if trial.engine == "memory":
                    found.tried += walk_from(seed, IN_MEMORY)
                else:
                    found.tried += on_a_store(trial, seed)
            except Exception:
                found.violation(DIFFERENT, seed, traceback.format_exc()[-6000:])
    return found


def on_a_store(trial: Trial, seed: int) -> int:
    """Compare an empty store with the model; returns the steps that were taken."""
    clock = ManualClock()

    async def compare(opener: Callable[..., Store]) -> int:
        stores = [opener(clock=clock, limits=SMALL_LIMITS) for _ in range(1 + seed % 3)]
        try:
            differential = CountingDifferential(stores, clock, seed)
            await differential.run(BATCHES)
        finally:
            for store in stores:
                await store.close()
        return differential.steps

    with ExitStack() as end:
        place = Place()
        end.callback(place.close)
        return asyncio.run(compare(opener_of(trial.engine, place, seed)))


def opener_of(engine: str, place: Place, seed: int) -> Callable[..., Store]:
    """What opens an empty store of an engine, as often as it is called."""
    if engine == "postgres":
        return partial(connect, schemas().url, schema=schemas().borrow(place))
    if engine == "redis":
        wheres: list[Any] = [*makes(), "cluster"]
        where = wheres[seed // 3 % len(wheres)]
        url = shared_cluster().url if where == "cluster" else shared_server(where).url
        return partial(connect, url, prefix=place.name)
    if engine == "sqlite":
        return partial(connect, f"sqlite:///{place.folder}/q.db", durability="normal")
    suffix = ("yaml", "json")[seed // 3 % 2]
    return partial(connect, f"file://{place.folder}/q.{suffix}")


@contextmanager
def quiet_logs() -> Generator[None]:
    """Without the warnings of each buried item that is dropped, of which there are many."""
    logger = logging.getLogger("leasedkeyq")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextmanager
def tidy_heaps() -> Generator[None]:
    """Heaps are tidied up every few steps, and not only when they are large."""
    before = timers.SMALL, ready.SMALL
    timers.SMALL = ready.SMALL = 4
    try:
        yield
    finally:
        timers.SMALL, ready.SMALL = before


PART = Part(
    name="model",
    title="Random steps, each answer compared with a model's",
    unit="steps",
    amounts={"memory": 4_000, "file": 20, "sqlite": 1_060, "postgres": 265, "redis": 265},
    slice={"memory": 1, "sqlite": 1},
    run=run,
    wrong=(DIFFERENT,),
    note=(
        "In memory, a step is a call of a queue, or a turn of its event loop; after each, all "
        "that can be seen is compared and all lists and heaps are checked from inside. On a "
        "store, a step is a request of a batch, a look, a full comparison, or time that passes; "
        "up to three store objects take turns on the same items. Redis stands for Redis, Valkey "
        "and a cluster in turn, with the default of `appendfsync`. The file store is tried less, "
        "as it writes its whole document at each step."
    ),
)
