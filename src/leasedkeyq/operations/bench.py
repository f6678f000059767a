"""How fast a store is here: `measure`, in a queue of its own, beside the figures of the docs."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from importlib.resources import files
from time import perf_counter
from typing import Final, Literal, TypeAlias

import msgspec

from leasedkeyq.errors import LeasedKeyQError
from leasedkeyq.model.requests import Ack, Claim, Claimed, Purge, Put
from leasedkeyq.stores.store import Store

BenchStep: TypeAlias = Literal["put", "claim", "ack", "batch_put", "batch_claim", "batch_ack"]
"""What is measured, one after the other."""
BATCH: Final = 1000
"""Items in one call of a batch, as in the benchmarks of the docs."""
VALUE: Final = b'{"to": "ann@example.com", "subject": "your order", "order": 1234567}'
MOST_CALLS: Final = 200_000
"""Calls of one step, at most: a store in memory is quick."""
LEASE: Final = 600.0
ENGINES: Final = {
    "sqlite": "sqlite",
    "file": "file",
    "postgresql": "postgresql",
    "postgres": "postgresql",
    "unix": "redis",
}
"""Which engine of the figures a scheme means. What begins with redis or valkey means redis."""


class StepSpeed(msgspec.Struct, frozen=True, kw_only=True):
    """How fast one step was.

    Attributes:
        step: Which one.
        calls: How many calls there were.
        items: How many items they were for.
        per_second: Items in a second.
        p50: The median of the seconds that a call took. So with the other percentiles.
    """

    step: BenchStep
    calls: int
    items: int
    per_second: float
    p50: float
    p95: float
    p99: float
    longest: float


class FigureComparison(msgspec.Struct, frozen=True, kw_only=True):
    """A figure beside that of the docs.

    Attributes:
        what: What was done, in words.
        here: Seconds for one item, here.
        docs: The same in the docs.
        machine: The machine of the docs.
        date: When that was measured.
    """

    what: str
    here: float
    docs: float
    machine: str
    date: str

    @property
    def ratio(self) -> float:
        """How many times as fast it is here."""
        return self.docs / self.here


class BenchReport(msgspec.Struct, frozen=True, kw_only=True):
    """How fast a store is here."""

    store: str
    durability: str
    steps: tuple[StepSpeed, ...]
    comparisons: tuple[FigureComparison, ...]


class _Figures(msgspec.Struct):
    machine: str
    date: str
    seconds: dict[str, float]


WORDS: Final = {
    "put": "putting one by one",
    "cycle": "put, claim and ack, one by one",
    "batch_put": f"putting {BATCH:,} by one call",
}


async def measure(
    store: Store,
    engine: str = "",
    *,
    seconds: float = 10.0,
    progress: Callable[[int, int], None] | None = None,
) -> BenchReport:
    """Measure a store for some seconds, in a queue of its own, which is removed.

    One caller puts, claims and acknowledges, first one by one and then many by one call. What
    others do on the store meanwhile goes on, and is slowed down by it.

    Args:
        store: The store.
        engine: The scheme of its URL, for the figures of the docs.
        seconds: How long it takes, about.
        progress: Called with the steps that are done, and how many there are.
    """
    bench = _Bench(store, seconds / 6)
    try:
        steps = await bench.run(progress)
    finally:
        # Also if it is cancelled: nothing of it is to stay.
        await asyncio.shield(bench.remove())
    return BenchReport(
        store=store.name,
        durability=store.capabilities.durability,
        steps=steps,
        comparisons=compare(engine, steps),
    )


class _Bench:
    def __init__(self, store: Store, share: float) -> None:
        self._store = store
        self._share = share
        # Tools that show queues leave out the names that begin so.
        self._queue = f"leasedkeyq.bench.{secrets.token_hex(4)}"
        self._number = 0
        self._leased: list[Claimed] = []

    async def run(self, progress: Callable[[int, int], None] | None) -> tuple[StepSpeed, ...]:
        steps: tuple[tuple[BenchStep, Callable[[int], Awaitable[int]], int], ...] = (
            ("put", self._put, 1),
            ("claim", self._claim, 1),
            ("ack", self._ack, 1),
            ("batch_put", self._put, BATCH),
            ("batch_claim", self._claim, BATCH),
            ("batch_ack", self._ack, BATCH),
        )
        found: list[StepSpeed] = []
        for number, (step, call, size) in enumerate(steps):
            if progress is not None:
                progress(number, len(steps))
            if step == "batch_put":
                await self._empty()
            found.append(await self._timed(step, call, size))
        return tuple(found)

    async def _timed(
        self, step: BenchStep, call: Callable[[int], Awaitable[int]], size: int
    ) -> StepSpeed:
        times: list[float] = []
        items = 0
        began = perf_counter()
        while len(times) < MOST_CALLS and (not times or perf_counter() - began < self._share):
            start = perf_counter()
            done = await call(size)
            if not done:
                break
            times.append(perf_counter() - start)
            items += done
        times.sort()
        return StepSpeed(
            step=step,
            calls=len(times),
            items=items,
            per_second=items / sum(times) if times else 0.0,
            p50=_percentile(times, 0.50),
            p95=_percentile(times, 0.95),
            p99=_percentile(times, 0.99),
            longest=times[-1] if times else 0.0,
        )

    async def _put(self, size: int) -> int:
        first = self._number
        self._number += size
        items = tuple((f"key-{number}", VALUE) for number in range(first, self._number))
        [answer] = await self._store.put([Put(self._queue, items)])
        if isinstance(answer, LeasedKeyQError):
            raise answer
        return size

    async def _claim(self, size: int) -> int:
        claim = Claim(((self._queue, size),), size, lease_time=LEASE)
        [found] = await self._store.claim([claim])
        self._leased += found
        return len(found)

    async def _ack(self, size: int) -> int:
        some, self._leased = self._leased[-size:], self._leased[:-size]
        if some:
            await self._store.settle([Ack(self._queue, one.key, one.token) for one in some])
        return len(some)

    async def _empty(self) -> None:
        self._leased.clear()
        await self._store.settle([Purge(self._queue)])

    async def remove(self) -> None:
        """Leave nothing behind."""
        await self._empty()


def _percentile(times: list[float], share: float) -> float:
    """A percentile of times that are in order."""
    return times[min(len(times) - 1, int(share * len(times)))] if times else 0.0


def compare(engine: str, steps: tuple[StepSpeed, ...]) -> tuple[FigureComparison, ...]:
    """The figures beside those of the docs, where the docs have the same.

    Args:
        engine: The scheme of the URL of the store.
        steps: What was measured.
    """
    name = ENGINES.get(engine, "redis" if engine.startswith(("redis", "valkey")) else "")
    text = files("leasedkeyq.operations").joinpath("bench_figures.json").read_bytes()
    known = msgspec.json.decode(text, type=dict[str, _Figures]).get(name)
    if known is None:
        return ()
    here: dict[str, float] = {step.step: 1 / step.per_second for step in steps if step.per_second}
    if {"put", "claim", "ack"} <= here.keys():
        here["cycle"] = here["put"] + here["claim"] + here["ack"]
    return tuple(
        FigureComparison(
            what=WORDS[what],
            here=here[what],
            docs=docs,
            machine=known.machine,
            date=known.date,
        )
        for what, docs in known.seconds.items()
        if what in here
    )
