"""What is measured, and what it has to show."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from benchmarks.peers import OURS, PUBLISHED, STDLIB

Unit = Literal["x", "%", "bytes", "items", "seconds", "cores"]
Measure = Literal["seconds", "bytes", "items", "cores"]


@dataclass(frozen=True)
class Case:
    """One workload of one peer, in a process of its own."""

    name: str
    peer: str
    workload: str
    options: Mapping[str, object]


@dataclass(frozen=True)
class Claim:
    """What the cases of a scenario show: a ratio of two of them, or the value of one.

    Where several cases stand on a side, the pair that looks worst for the claim counts.

    Attributes:
        over, under: Names of cases: the claim is over / under, or just over.
        at_least, at_most: The target. Neither: a figure that is only reported.
        unit: How the figure reads. ``%`` means "so much more", from a ratio.
        headline: Belongs into the short table of the README.
    """

    text: str
    over: tuple[str, ...]
    under: tuple[str, ...] = ()
    at_least: float | None = None
    at_most: float | None = None
    unit: Unit = "x"
    headline: bool = True


@dataclass(frozen=True)
class Scenario:
    """Cases that are measured side by side.

    Attributes:
        turns: How often each case is measured in a round, one after the other.
        warm_up: How often before that, for nothing.
        averaged: Some turns cost more than others, and all of them count.
        measure: What the cases tell.
        rounds: At most so many, where getting ready takes longer than measuring.
    """

    title: str
    about: str
    cases: tuple[Case, ...]
    claims: tuple[Claim, ...]
    turns: int
    warm_up: int = 1
    averaged: bool = field(default=False, kw_only=True)
    measure: Measure = field(default="seconds", kw_only=True)
    rounds: int | None = field(default=None, kw_only=True)


def line_cases(
    peer: str, options: Mapping[str, object], quick: bool
) -> tuple[tuple[Case, ...], Sequence[tuple[str, str]]]:
    """A plain queue, one long line, and many lines; and what the last two are called."""
    deep, wide = (500, 50) if quick else (100_000, 100_000)
    shapes = {
        "1,000 keys with one value": (1000, 1),
        f"one key with {deep:,} values": (1, deep),
        f"{wide:,} keys with 10 values": (wide, 10),
    }
    cases = tuple(
        Case(name, peer, "lines", {**options, "keys": keys, "values": values})
        for name, (keys, values) in shapes.items()
    )
    plain, *long = shapes
    return cases, [(name, plain) for name in long]


def line_scenario(name: str, peer: str, options: Mapping[str, object], quick: bool) -> Scenario:
    """What a get and an ack cost where keys have lines."""
    cases, pairs = line_cases(peer, options, quick)
    return Scenario(
        f"{name}: a get and an ack where keys have lines",
        "One task gets an item and acknowledges it, again and again. The next value of the key is "
        "then the one that can be got. What was got is put again, at the end of its line, while "
        "the clock stands still.",
        cases,
        tuple(
            Claim(
                f"{name}: cost of a get and an ack with {shape}, against {plain}",
                (shape,),
                (plain,),
                at_most=1.5,
            )
            for shape, plain in pairs
        ),
        turns=1 if quick else 9,
        rounds=1,
    )


def memory_scenarios(*, quick: bool) -> tuple[Scenario, ...]:
    """The queue in memory; `quick` makes them so small that they only show that all of it works."""
    scenarios = (
        _cycle(quick),
        _all_takers(quick),
        _one_by_one(quick),
        _standing_takers(quick),
        _many_items(quick),
        _lease_timeout(quick),
        _memory(quick),
        _pipeline(quick),
        _priorities(quick),
    )
    return tuple(scenarios)


def _cycle(quick: bool) -> Scenario:
    options = {"operations": 1000 if quick else 5000}
    return Scenario(
        "One task: put, get, ack",
        "One task puts an item, gets it and acknowledges it; the queue is empty otherwise. "
        "For `asyncio.Queue`: put, get, task_done.",
        (
            Case("this package", OURS, "cycle", options),
            Case("0.0.7", PUBLISHED, "cycle", options),
            Case("asyncio.Queue", STDLIB, "cycle", options),
        ),
        (
            Claim("put + get + ack, speed against 0.0.7", ("0.0.7",), ("this package",), 4.0),
            Claim(
                "put + get + ack, speed against `asyncio.Queue`",
                ("asyncio.Queue",),
                ("this package",),
                0.35,
            ),
        ),
        turns=1 if quick else 30,
    )


def _all_takers(quick: bool) -> Scenario:
    takers = 200 if quick else 10_000
    at_once = {"takers": takers, "portions": 1}
    portions = {"takers": takers, "portions": 8}
    return Scenario(
        f"{takers:,} tasks in `take`, each on its own key",
        "Then one task puts all keys, timed until every taker has its item. 0.0.7 is fastest when "
        "the putting task lets the others run after every eighth of the keys: each put looks at "
        "everybody who still waits, and each pause wakes all of them. The order of the keys makes "
        "no difference. The best way of 0.0.7 is compared with the worst of this package.",
        (
            Case("this package, all at once", OURS, "all_takers", at_once),
            Case("this package, in 8 portions", OURS, "all_takers", portions),
            Case("0.0.7, all at once", PUBLISHED, "all_takers", at_once),
            Case("0.0.7, in 8 portions", PUBLISHED, "all_takers", portions),
        ),
        (
            Claim(
                f"{takers:,} waiting `take`s served, speed against the best of 0.0.7",
                ("0.0.7, all at once", "0.0.7, in 8 portions"),
                ("this package, all at once", "this package, in 8 portions"),
                10.0,
            ),
        ),
        turns=1,
        warm_up=0,
    )


def _one_by_one(quick: bool) -> Scenario:
    takers = 100 if quick else 1000
    options = {"takers": takers, "portions": takers}
    return Scenario(
        f"{takers:,} tasks in `take`, one put per turn of the event loop",
        "As above with fewer tasks, and with a putting task that lets the others run after each "
        "put, as a task does that waits for its input.",
        (
            Case("this package", OURS, "all_takers", options),
            Case("0.0.7", PUBLISHED, "all_takers", options),
        ),
        (
            Claim(
                f"{takers:,} waiting `take`s served one by one, speed against 0.0.7",
                ("0.0.7",),
                ("this package",),
                headline=False,
            ),
        ),
        turns=1,
        warm_up=0,
    )


def _standing_takers(quick: bool) -> Scenario:
    many = 5000 if quick else 100_000
    steps = 1 if quick else 5
    return Scenario(
        "A put that serves one of many waiting takers",
        "So many tasks wait in `take` all the time, each on its own key. Timed: 1,000 puts, until "
        "their takers have acknowledged; then as many new takers come.",
        (
            Case("1,000 takers", OURS, "standing_takers", {"takers": 1000, "steps": steps}),
            Case(f"{many:,} takers", OURS, "standing_takers", {"takers": many, "steps": steps}),
        ),
        (
            Claim(
                f"cost of a put with {many:,} waiting takers, against 1,000",
                (f"{many:,} takers",),
                ("1,000 takers",),
                at_most=2.0,
            ),
        ),
        turns=1 if quick else 15,
    )


def _many_items(quick: bool) -> Scenario:
    many = 5000 if quick else 1_000_000
    operations = 1000 if quick else 5000
    return Scenario(
        "put, get, ack with many items waiting",
        "One task, as in the first scenario, but each get finds the oldest of so many items.",
        (
            Case("1,000 items", OURS, "cycle", {"operations": operations, "waiting": 1000}),
            Case(f"{many:,} items", OURS, "cycle", {"operations": operations, "waiting": many}),
        ),
        (
            Claim(
                f"cost of put + get + ack with {many:,} items waiting, against 1,000",
                (f"{many:,} items",),
                ("1,000 items",),
                at_most=1.5,
            ),
        ),
        turns=1 if quick else 20,
    )


def _lease_timeout(quick: bool) -> Scenario:
    outstanding = 1000 if quick else 100_000
    options = {"operations": outstanding // 10, "outstanding": outstanding}
    hour = {**options, "lease_timeout": 3600.0}
    return Scenario(
        f"Lease time-outs with {outstanding:,} leases outstanding",
        "get and ack while others hold leases: all without a time-out, all with one of an hour, or "
        "each with one of 1,000 different lengths from one to two hours. The puts are not timed. "
        "Averages over three times as many operations as there are leases, so that they contain "
        "whatever clean-up the time-outs of acknowledged leases call for.",
        (
            Case("no time-out", OURS, "settle", {**options, "lease_timeout": None}),
            Case("one hour", OURS, "settle", hour),
            Case("1,000 lengths", OURS, "settle", {**hour, "lengths": 1000}),
        ),
        (
            Claim(
                f"what a lease time-out adds to get + ack, {outstanding:,} leases outstanding",
                ("one hour",),
                ("no time-out",),
                at_most=1.6,
                unit="%",
            ),
            Claim(
                "the same with lease time-outs of 1,000 different lengths",
                ("1,000 lengths",),
                ("no time-out",),
                unit="%",
                headline=False,
            ),
        ),
        turns=1 if quick else 30,
        averaged=True,
    )


def _memory(quick: bool) -> Scenario:
    items = 2000 if quick else 200_000
    traced = {"items": items, "traced": True}
    resident = {"items": items, "traced": False}
    return Scenario(
        f"Memory of {items:,} waiting items",
        "Keys and values exist before and do not count. Allocated: what Python asked its "
        "allocators for. Resident: how much the process grew, with whatever the allocators lose.",
        (
            Case("this package, allocated", OURS, "footprint", traced),
            Case("this package, resident", OURS, "footprint", resident),
            Case("0.0.7, resident", PUBLISHED, "footprint", resident),
        ),
        (
            Claim(
                "memory of a waiting item beyond key and value",
                ("this package, allocated", "this package, resident"),
                at_most=400.0,
                unit="bytes",
            ),
        ),
        turns=1,
        warm_up=0,
        measure="bytes",
    )


def _pipeline(quick: bool) -> Scenario:
    options = {"items": 200 if quick else 2000, "consumers": 100, "producers": 10}
    return Scenario(
        "Handing over to waiting consumers",
        "100 tasks get and acknowledge in a loop; 10 tasks put one item each per turn of the "
        "event loop. The time per item contains the switching between tasks.",
        (
            Case("this package", OURS, "pipeline", options),
            Case("0.0.7", PUBLISHED, "pipeline", options),
            Case("asyncio.Queue", STDLIB, "pipeline", options),
        ),
        (
            Claim(
                "10 producers, 100 waiting consumers, speed against 0.0.7",
                ("0.0.7",),
                ("this package",),
            ),
            Claim(
                "10 producers, 100 waiting consumers, speed against `asyncio.Queue`",
                ("asyncio.Queue",),
                ("this package",),
            ),
        ),
        turns=1 if quick else 10,
    )


def _priorities(quick: bool) -> Scenario:
    options = {"operations": 500 if quick else 5000, "waiting": 1000}
    mixed = {**options, "priorities": 10}
    return Scenario(
        "10 priorities in use",
        "100 puts, then 100 times get and ack, with 1,000 items of the lowest priority waiting.",
        (
            Case("this package, 10 priorities", OURS, "bursts", mixed),
            Case("this package, no priorities", OURS, "bursts", {**options, "priorities": 0}),
            Case("asyncio.PriorityQueue", STDLIB, "bursts", mixed),
        ),
        (
            Claim(
                "put + get + ack with 10 priorities, cost against none",
                ("this package, 10 priorities",),
                ("this package, no priorities",),
                headline=False,
            ),
            Claim(
                "put + get + ack with 10 priorities, speed against `asyncio.PriorityQueue`",
                ("asyncio.PriorityQueue",),
                ("this package, 10 priorities",),
                headline=False,
            ),
        ),
        turns=1 if quick else 20,
    )
