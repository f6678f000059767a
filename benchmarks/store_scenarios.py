"""What is measured of the stores, and what it has to show."""

from benchmarks.peers import (
    HUEY,
    LITEQUEUE,
    LITEQUEUE_WORKERS,
    OUR_SERVERS,
    OUR_STORES,
    PERSISTQUEUE,
)
from benchmarks.places import SQLITE
from benchmarks.scenarios import Case, Claim, Scenario, line_scenario

OURS = "this package"
OURS_AT_NORMAL = "this package at NORMAL"
LITEQUEUE_AT_FULL = "litequeue at FULL"
BEST = "the best of huey, litequeue and persist-queue"
THREADS = 4
"""Of the others, when they drain a queue in threads. Other numbers were not compared."""


def store_scenarios(*, quick: bool) -> tuple[Scenario, ...]:
    """The stores; `quick` makes them so small that they only show that all of it works."""
    return (
        _callers(quick),
        _one_caller(quick),
        _idle_start(quick),
        _drain(quick),
        _puts(quick),
        _claims(quick),
        line_scenario("SQLite", OUR_STORES, {"operations": 50 if quick else 500}, quick),
        _twice(quick),
        _files(quick),
    )


def _callers(quick: bool) -> Scenario:
    return Scenario(
        "SQLite: put, get, ack by 64 callers and by one",
        "64 tasks put, get and acknowledge at a time, and one task does the same. What is asked "
        "for at a time is stored by one transaction and one fsync.",
        (
            Case(
                "64 callers",
                OUR_STORES,
                "cycle",
                {"operations": 128 if quick else 1920, "callers": 64},
            ),
            Case(
                "one by one", OUR_STORES, "cycle", {"operations": 5 if quick else 100, "callers": 1}
            ),
        ),
        (
            Claim(
                "SQLite, `full`: put + get + ack by 64 callers, speed against one by one",
                ("one by one",),
                ("64 callers",),
                15.0,
            ),
        ),
        turns=1 if quick else 5,
    )


def _one_caller(quick: bool) -> Scenario:
    options = {"operations": 5 if quick else 300}
    full = {"library": LITEQUEUE, **options, "full": True}
    cases = (
        Case(OURS, OUR_STORES, "cycle", {**options, "callers": 1}),
        Case("huey", HUEY, "cycle", {"library": HUEY, **options}),
        Case(LITEQUEUE_AT_FULL, LITEQUEUE, "cycle", full),
        Case("persist-queue", PERSISTQUEUE, "cycle", {"library": PERSISTQUEUE, **options}),
    )
    return Scenario(
        "SQLite: one caller that waits for each step",
        "One task, or for the others one loop, puts an item, gets it and acknowledges it, at "
        "`FULL`. That is two syncs, as a claim needs none; for huey, too, as what it hands out is "
        "gone. For the others it is three.",
        cases,
        (
            Claim(
                f"SQLite, one caller at `FULL`: put + get + ack, speed against {BEST}",
                ("huey", LITEQUEUE_AT_FULL, "persist-queue"),
                (OURS,),
                1.0,
            ),
            Claim(
                "the same against those that acknowledge: litequeue and persist-queue",
                (LITEQUEUE_AT_FULL, "persist-queue"),
                (OURS,),
                headline=False,
            ),
        ),
        turns=1 if quick else 9,
    )


def _idle_start(quick: bool) -> Scenario:
    options = {"server": SQLITE, "operations": 5 if quick else 200}
    few = {**options, "concurrency": 1}
    peer = {**few, "library": "sqlite_peers.LiteQueue"}
    lanes = {**options, "concurrency": 10, "library": "server_own_workloads.Lanes"}
    cases = (
        Case(OURS, OUR_SERVERS, "latency", {**few, "library": "server_own_workloads.Queue"}),
        Case(f"{OURS}, lanes", OUR_SERVERS, "latency", lanes),
        Case(LITEQUEUE_AT_FULL, LITEQUEUE_WORKERS, "latency", {**peer, "full": True}),
        Case("litequeue", LITEQUEUE_WORKERS, "latency", peer),
    )
    return Scenario(
        "SQLite: from submit to start",
        "One job at a time, for a worker process that waits: from the call that puts the job to "
        "its first line, the median of a turn. This package: `put` and `get` of a queue, and "
        "`submit` of a lane. litequeue has nothing that waits: its worker looks for a job every "
        "millisecond.",
        cases,
        (
            Claim(
                "SQLite, idle: time from put to start, against litequeue, both at `FULL`",
                (OURS,),
                (LITEQUEUE_AT_FULL,),
                at_most=1.2,
            ),
            Claim(
                "the same with `submit` of a lane",
                (f"{OURS}, lanes",),
                (LITEQUEUE_AT_FULL,),
                headline=False,
            ),
            Claim(
                "the same with `put`, litequeue at `NORMAL`",
                (OURS,),
                ("litequeue",),
                headline=False,
            ),
        ),
        turns=1 if quick else 3,
        warm_up=0,
    )


def _drain(quick: bool) -> Scenario:
    items = 20 if quick else 3000
    ours = {"items": items, "callers": 100}
    loop = {"items": items, "callers": 1}
    threads = {"items": items, "callers": THREADS}
    each = {**threads, "way": "one for each"}
    cases = (
        Case(OURS, OUR_STORES, "drain", ours),
        Case(OURS_AT_NORMAL, OUR_STORES, "drain", {**ours, "durability": "normal"}),
        Case("huey", HUEY, "drain", {"library": HUEY, **loop}),
        Case(f"huey, {THREADS} threads", HUEY, "drain", {"library": HUEY, **threads}),
        Case("litequeue", LITEQUEUE, "drain", {"library": LITEQUEUE, **loop}),
        Case(f"litequeue, {THREADS} threads", LITEQUEUE, "drain", {"library": LITEQUEUE, **each}),
        Case(LITEQUEUE_AT_FULL, LITEQUEUE, "drain", {"library": LITEQUEUE, **loop, "full": True}),
        Case("persist-queue", PERSISTQUEUE, "drain", {"library": PERSISTQUEUE, **loop}),
        Case(
            f"persist-queue, {THREADS} threads",
            PERSISTQUEUE,
            "drain",
            {"library": PERSISTQUEUE, **threads},
        ),
    )
    at_full: tuple[str, ...] = ("huey", f"huey, {THREADS} threads", LITEQUEUE_AT_FULL)
    at_full += ("persist-queue", f"persist-queue, {THREADS} threads")
    at_normal = ("litequeue", f"litequeue, {THREADS} threads")
    return Scenario(
        "SQLite: draining a queue",
        f"Get and acknowledge until nothing is left of {items:,} items: 100 tasks of one process, "
        f"and for the others one loop or {THREADS} threads. huey has no acknowledgement: what it "
        "hands out is gone, which saves it a transaction.",
        cases,
        (
            Claim(
                f"draining on SQLite, all at `FULL`, speed against {BEST}",
                at_full,
                (OURS,),
                5.0,
            ),
            Claim(
                "the same, the others at their own durability",
                (*at_full, *at_normal),
                (OURS,),
                5.0,
            ),
            Claim(
                "the same against litequeue, both at `NORMAL`",
                at_normal,
                (OURS_AT_NORMAL,),
                headline=False,
            ),
        ),
        turns=1,
        warm_up=0,
    )


def _puts(quick: bool) -> Scenario:
    callers = 10 if quick else 100
    options = {"items": callers * (2 if quick else 30), "callers": callers}
    lite = {"library": LITEQUEUE, **options}
    each = {**lite, "way": "one for each"}
    locked = {**lite, "way": "locked"}
    cases = (
        Case(OURS, OUR_STORES, "puts", options),
        Case(OURS_AT_NORMAL, OUR_STORES, "puts", {**options, "durability": "normal"}),
        Case("huey", HUEY, "puts", {"library": HUEY, **options}),
        Case("litequeue", LITEQUEUE, "puts", lite),
        Case("litequeue, an object per thread", LITEQUEUE, "puts", each),
        Case("litequeue behind a lock", LITEQUEUE, "puts", locked),
        Case(f"{LITEQUEUE_AT_FULL} behind a lock", LITEQUEUE, "puts", {**locked, "full": True}),
        Case("persist-queue", PERSISTQUEUE, "puts", {"library": PERSISTQUEUE, **options}),
    )
    return Scenario(
        f"SQLite: putting by {callers} callers",
        f"{callers} tasks of one process put one item after the other, each stored when its put "
        f"returns; for the others {callers} threads. litequeue leaves it to its users how threads "
        "share it: all three ways are here. The lock is fastest, and is not part of it.",
        cases,
        (
            Claim(
                f"putting on SQLite by {callers} callers, all at `FULL`, speed against {BEST}",
                ("huey", f"{LITEQUEUE_AT_FULL} behind a lock", "persist-queue"),
                (OURS,),
                5.0,
            ),
            Claim(
                "the same, the others at their own durability and as they come",
                ("huey", "litequeue", "litequeue, an object per thread", "persist-queue"),
                (OURS,),
                5.0,
            ),
            Claim(
                "the same against litequeue at `NORMAL` behind a lock",
                ("litequeue behind a lock",),
                (OURS,),
                headline=False,
            ),
            Claim(
                "the same against litequeue behind a lock, both at `NORMAL`",
                ("litequeue behind a lock",),
                (OURS_AT_NORMAL,),
                headline=False,
            ),
        ),
        turns=1 if quick else 2,
        warm_up=0,
    )


def _claims(quick: bool) -> Scenario:
    many, held = (2000, 500) if quick else (1_000_000, 100_000)
    options = {"operations": 200 if quick else 2000, "callers": 100}
    few = f"{1000:,} waiting"
    cases = (
        Case(few, OUR_STORES, "claims", {**options, "waiting": 1000, "in_flight": 0}),
        Case(
            f"{many:,} waiting", OUR_STORES, "claims", {**options, "waiting": many, "in_flight": 0}
        ),
        Case(
            f"{held:,} in flight",
            OUR_STORES,
            "claims",
            {**options, "waiting": 1000, "in_flight": held},
        ),
    )
    return Scenario(
        "SQLite: a claim among many items",
        "100 tasks get items, with a lease time-out of an hour, while so many wait in the queue or "
        "are in flight. What was got is acknowledged, and as many items are put, while the clock "
        "stands still.",
        cases,
        (
            Claim(
                f"SQLite: cost of a claim with {many:,} items waiting, against 1,000",
                (cases[1].name,),
                (few,),
                at_most=2.0,
            ),
            Claim(
                f"SQLite: cost of a claim with {held:,} keys in flight, against none",
                (cases[2].name,),
                (few,),
                at_most=2.0,
            ),
        ),
        turns=1 if quick else 5,
    )


def _twice(quick: bool) -> Scenario:
    items = 20 if quick else 500
    cases = (
        Case(OURS, OUR_STORES, "twice", {"items": items}),
        *(
            Case(name, name, "twice", {"library": name, "items": items})
            for name in (HUEY, LITEQUEUE, PERSISTQUEUE)
        ),
    )
    return Scenario(
        f"SQLite: two processes drain a queue of {items:,} items",
        "How many items both of them got.",
        cases,
        (
            Claim(
                "SQLite: items that two draining processes both got",
                (OURS,),
                at_most=0.0,
                unit="items",
                headline=False,
            ),
        ),
        turns=1,
        warm_up=0,
        measure="items",
    )


def _files(quick: bool) -> Scenario:
    options = {"operations": 2 if quick else 5, "callers": 1}
    sizes = (10, 100) if quick else (10, 100, 1000, 10_000)
    cases = tuple(
        Case(
            f"{kind}, {size:,} items waiting",
            OUR_STORES,
            "file_cycle",
            {**options, "suffix": suffix, "waiting": size},
        )
        for kind, suffix in (("JSON", ".json"), ("YAML", ".yaml"), ("SQLite", ".db"))
        for size in (sizes if suffix != ".db" else sizes[-1:])
    )
    by_name = {case.name for case in cases}
    large, small = f"{sizes[2 if not quick else 1]:,}", f"{sizes[0]:,}"
    claims = tuple(
        Claim(
            f"{kind} file: cost of put + get + ack with {large} items waiting, against {small}",
            (f"{kind}, {large} items waiting",),
            (f"{kind}, {small} items waiting",),
            headline=False,
        )
        for kind in ("JSON", "YAML")
    )
    assert all({*claim.over, *claim.under} <= by_name for claim in claims)
    return Scenario(
        "The file store: put, get, ack by one caller",
        "One task puts, gets and acknowledges, with so many items waiting. Each of the three steps "
        "writes the whole document and waits for the disk. SQLite is here for comparison.",
        cases,
        claims,
        turns=1 if quick else 3,
    )
