"""What is measured on PostgreSQL and on Redis, and what it has to show."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks import peers
from benchmarks.places import SYNCED_REDIS
from benchmarks.scenarios import Case, Claim, Scenario, line_scenario
from benchmarks.servers import POSTGRES, REDIS

OURS = "this package"
RESULTS_KEPT = "this package, results kept"
SYNCED = "this package, `appendfsync always`"
PUT = "this package, `put`"
LANES = "server_own_workloads.Lanes"
QUEUE = "server_own_workloads.Queue"
AGAINST = "speed against the fastest of the others"
TWO = ", two processes"
CALLERS = 100
THREADS = 32
PLENTY = 100
"""Jobs that run at a time, where a worker is to be as fast as it can."""
IDLE = 100
"""Jobs that are put when a worker is idle, one after the other."""
KEYS = 20
"""Keys whose jobs are to run in order."""
ORDERED = ("pgqueuer", "procrastinate", "bullmq")
"""Libraries that have a way to run the jobs of a key in order, without paying for it."""


@dataclass(frozen=True)
class Rival:
    """A library on one server, and how much of each workload fits its speed.

    Attributes:
        drained: Jobs that its worker runs in a turn.
        concurrency: What its worker is set to, each in a case of its own. Where more are not
            faster than fewer, both are here.
        batches: Whether it puts many jobs by one call.
        idle: Jobs that are put when its worker is idle.
        idle_concurrency: What that worker is set to.
        options: What its class wants to know.
    """

    name: str
    peer: str
    library: str
    drained: int
    concurrency: Sequence[int]
    batches: bool = True
    idle: int = IDLE
    idle_concurrency: int = 10
    options: Mapping[str, object] = field(default_factory=dict[str, object])


ON_POSTGRES = (
    Rival("pgqueuer", peers.PGQUEUER, "postgres_peers.PgQueuer", 10_000, (10, 100)),
    Rival("procrastinate", peers.PROCRASTINATE, "postgres_peers.Procrastinate", 200, (10, 100)),
    Rival("saq", peers.SAQ, "postgres_peers.Saq", 200, (10, 100), batches=False),
    Rival("bullmq", peers.BULLMQ, "postgres_peers.BullMQ", 200, (10, 100)),
)
ON_REDIS = (
    Rival("saq", peers.SAQ, "postgres_peers.Saq", 500, (100,), batches=False),
    # It looks for jobs twice a second.
    Rival("arq", peers.ARQ, "redis_peers.Arq", 500, (100,), batches=False, idle=3),
    Rival("streaq", peers.STREAQ, "redis_peers.Streaq", 300, (100,)),
    Rival(
        "taskiq, stream",
        peers.TASKIQ,
        "redis_peers.Taskiq",
        1000,
        (100,),
        batches=False,
        options={"broker": "stream"},
    ),
    Rival(
        "taskiq, list",
        peers.TASKIQ,
        "redis_peers.Taskiq",
        1000,
        (100,),
        batches=False,
        options={"broker": "list"},
    ),
    Rival(
        "dramatiq",
        peers.DRAMATIQ,
        "redis_peers.Dramatiq",
        2000,
        (8, 16),
        batches=False,
        idle_concurrency=8,
    ),
    Rival("rq", peers.RQ, "redis_peers.Rq", 200, (1,), idle_concurrency=1),
    Rival(
        "huey",
        peers.HUEY_ON_REDIS,
        "redis_peers.Huey",
        2000,
        (1, 8),
        batches=False,
        idle_concurrency=1,
    ),
    Rival("bullmq", peers.BULLMQ, "postgres_peers.BullMQ", 500, (100,)),
    Rival("pydocket", peers.PYDOCKET, "redis_peers.Docket", 50, (10,)),
)


@dataclass(frozen=True)
class Engine:
    """A kind of server, who is compared on it, and what we promise.

    Attributes:
        drains: The concurrency of our worker and the target; on one that says so, the others
            have the same concurrency.
    """

    name: str
    server: str
    rivals: Sequence[Rival]
    same_concurrency: bool
    drains: Mapping[int, float | None]
    callers: float
    batch: float
    synced: str | None = None
    """The same server with every change on the disk before it is acknowledged."""


POSTGRES_ENGINE = Engine(
    "PostgreSQL", POSTGRES, ON_POSTGRES, True, {100: 1.5, 10: 2.0}, callers=5.0, batch=1.0
)
REDIS_ENGINE = Engine(
    "Redis",
    REDIS,
    ON_REDIS,
    False,
    {100: 4.0, 10: None},
    callers=3.0,
    batch=1.5,
    synced=SYNCED_REDIS,
)


def postgres_scenarios(*, quick: bool) -> tuple[Scenario, ...]:
    """PostgreSQL; `quick` makes them so small that they only show that all of it works."""
    return (
        *_scenarios(POSTGRES_ENGINE, quick),
        _two_workers(POSTGRES_ENGINE, quick),
        _cores(POSTGRES_ENGINE, quick),
    )


def redis_scenarios(*, quick: bool) -> tuple[Scenario, ...]:
    """Redis; `quick` makes them so small that they only show that all of it works."""
    return (*_scenarios(REDIS_ENGINE, quick), _threads(REDIS_ENGINE, quick))


def _scenarios(engine: Engine, quick: bool) -> tuple[Scenario, ...]:
    drains = (
        tuple(_drain(engine, quick, (concurrency,)) for concurrency in engine.drains)
        if engine.same_concurrency
        else (_drain(engine, quick, tuple(engine.drains)),)
    )
    return (
        *drains,
        _callers(engine, quick),
        _batches(engine, quick),
        _one_by_one(engine, quick),
        _latency(engine, quick),
        _claims(engine, quick),
        _ordered(engine, quick),
        line_scenario(
            engine.name,
            peers.OUR_SERVERS,
            {"server": engine.server, "operations": 50 if quick else 300},
            quick,
        ),
    )


def _case(
    engine: Engine, rival: Rival, workload: str, options: Mapping[str, object], more: str = ""
) -> Case:
    whole = {"server": engine.server, "library": rival.library, **rival.options, **options}
    return Case(f"{rival.name}{more}", rival.peer, workload, whole)


def _own(
    engine: Engine, name: str, library: str, workload: str, options: Mapping[str, object]
) -> Case:
    whole = {"server": engine.server, "library": library, **options}
    return Case(name, peers.OUR_SERVERS, workload, whole)


def _threads(engine: Engine, quick: bool) -> Scenario:
    huey = next(rival for rival in engine.rivals if rival.peer == peers.HUEY_ON_REDIS)
    options = {"items": 64 if quick else 6400, "callers": THREADS}
    cases = (
        _own(engine, OURS, "server_own_workloads.SyncLanes", "puts", options),
        _case(engine, huey, "puts", options),
    )
    return Scenario(
        f"{engine.name}: {THREADS} threads that submit",
        f"{THREADS} threads without an event loop submit commands by `manager.sync.submit`, each "
        "one after the other. For huey: its task is called.",
        cases,
        (
            Claim(
                f"{engine.name}, {THREADS} threads that submit: speed against huey",
                (huey.name,),
                (OURS,),
                1.0,
            ),
        ),
        turns=1 if quick else 3,
        warm_up=0,
    )


def _synced(engine: Engine, workload: str, options: Mapping[str, object]) -> list[Case]:
    """Our lanes where every change is on the disk before it is acknowledged."""
    if engine.synced is None:
        return []
    return [_own(engine, SYNCED, LANES, workload, {**options, "server": engine.synced})]


def _synced_claim(cases: Sequence[Case]) -> list[Claim]:
    if SYNCED not in [case.name for case in cases]:
        return []
    text = "the same with `appendfsync always`, the others with `everysec`"
    return [Claim(text, _names(cases), (SYNCED,), headline=False)]


def _fewer(items: int, most: int) -> int:
    """So many jobs, or not so many where only few run at a time."""
    return items if most == PLENTY else min(items, 3000)


def _names(cases: Sequence[Case]) -> tuple[str, ...]:
    """Of the others."""
    return tuple(case.name for case in cases if case.peer != peers.OUR_SERVERS)


def _drain(engine: Engine, quick: bool, ours: Sequence[int]) -> Scenario:
    items = 60 if quick else 10_000
    cases: list[Case] = []
    for most in ours:
        name = OURS if len(ours) == 1 else f"{OURS}, {most} at a time"
        options = {"items": _fewer(items, most), "concurrency": most}
        cases.append(_own(engine, name, LANES, "drain", options))
    kept = {"items": _fewer(items, ours[0]), "concurrency": ours[0], "keep_results": 3600}
    cases.append(_own(engine, RESULTS_KEPT, LANES, "drain", kept))
    fastest = {"items": _fewer(items, ours[0]), "concurrency": ours[0]}
    cases += _synced(engine, "drain", fastest)
    for rival in engine.rivals:
        for most in rival.concurrency:
            if engine.same_concurrency and most not in ours:
                continue
            some = 20 if quick else _fewer(rival.drained, most)
            options = {"items": some, "concurrency": most}
            more = "" if engine.same_concurrency else f", {most} at a time"
            cases.append(_case(engine, rival, "drain", options, more))
    others = _names(cases)
    title = f"{engine.name}: one worker process"
    if engine.same_concurrency:
        title += f", {ours[0]} jobs at a time"
    claims = [
        Claim(
            f"{engine.name}, one worker process, {most} jobs at a time: {AGAINST}",
            others,
            (name,),
            engine.drains[most],
            headline=engine.drains[most] is not None,
        )
        for most, name in zip(ours, [case.name for case in cases], strict=False)
    ]
    claims.append(
        Claim("the same with results kept for an hour", others, (RESULTS_KEPT,), headline=False)
    )
    claims += _synced_claim(cases)
    return Scenario(
        title,
        "A process runs jobs that do nothing, from a queue that is full, by the clock on the wall "
        "from one of its first jobs to its last. Every job is counted, and must have run exactly "
        "once. This package: commands in a lane, with leases, fences, keys and priorities.",
        tuple(cases),
        tuple(claims),
        turns=1,
        warm_up=0,
    )


def _one_and_two(engine: Engine, workload: str, quick: bool) -> tuple[Case, ...]:
    """One worker process and two, of this package and of the library that is fastest."""
    items = 60 if quick else 20_000
    cases: list[Case] = []
    for processes, more in ((1, ""), (2, TWO)):
        options = {"items": items, "concurrency": PLENTY, "processes": processes}
        cases += (
            _own(engine, f"{OURS}{more}", LANES, workload, options),
            _case(engine, engine.rivals[0], workload, options, more),
        )
    return tuple(cases)


def _two_workers(engine: Engine, quick: bool) -> Scenario:
    fastest = engine.rivals[0].name
    return Scenario(
        f"{engine.name}: a second worker process",
        f"As with one worker process, {PLENTY} jobs at a time, and with two that empty the queue "
        "together: the first job of each waits for that of the other. The server, the workers and "
        f"whatever else runs share the cores of one machine. {fastest} was the fastest of the "
        "others with one.",
        _one_and_two(engine, "drain", quick),
        (
            Claim(
                f"{engine.name}, two worker processes, {PLENTY} jobs at a time: "
                f"speed against {fastest}",
                (f"{fastest}{TWO}",),
                (f"{OURS}{TWO}",),
                1.5,
            ),
            Claim(
                f"{engine.name}, two worker processes: speed against one",
                (OURS,),
                (f"{OURS}{TWO}",),
                headline=False,
            ),
            Claim(
                f"the same for {fastest}",
                (fastest,),
                (f"{fastest}{TWO}",),
                headline=False,
            ),
        ),
        turns=1 if quick else 2,
        warm_up=0,
    )


def _cores(engine: Engine, quick: bool) -> Scenario:
    cases = _one_and_two(engine, "busy_cores", quick)
    return Scenario(
        f"{engine.name}: cores that one and two worker processes keep busy",
        "How many cores of the machine work while the queue is emptied, as above: for the workers, "
        "for the server, and for whatever else runs. Where one worker process and its server leave "
        "no core idle, a second one cannot gain.",
        cases,
        tuple(
            Claim(
                f"cores that work meanwhile, {case.name}",
                (case.name,),
                unit="cores",
                headline=False,
            )
            for case in cases
        ),
        turns=1,
        warm_up=0,
        measure="cores",
    )


def _ordered(engine: Engine, quick: bool) -> Scenario:
    """Jobs of some keys, each key in order and one at a time."""
    items = 60 if quick else 2000
    options = {"concurrency": PLENTY, "keys": KEYS}
    cases = [_own(engine, OURS, LANES, "drain", {"items": items, **options})]
    for rival in engine.rivals:
        if rival.name in ORDERED:
            some = 20 if quick else min(items, rival.drained)
            cases.append(_case(engine, rival, "drain", {"items": some, **options}))
    return Scenario(
        f"{engine.name}: {KEYS} keys, each in order, one at a time",
        "As with one worker process, and the jobs of one key run one after the other, in the order "
        "in which they were put. This package: commands with a key. "
        "procrastinate: a `lock` for each key. pgqueuer: an entrypoint with serialized dispatch "
        "for each key. bullmq without its paid groups: a queue and a worker for each key.",
        tuple(cases),
        (
            Claim(
                f"{engine.name}, {KEYS} keys, each in order: {AGAINST}",
                _names(cases),
                (OURS,),
                1.0,
            ),
        ),
        turns=1,
        warm_up=0,
    )


def _callers(engine: Engine, quick: bool) -> Scenario:
    callers = 10 if quick else CALLERS
    options = {"items": callers * (2 if quick else 100), "callers": callers}
    fewer = {"items": callers * (2 if quick else 10), "callers": callers}
    cases = (
        _own(engine, OURS, LANES, "puts", options),
        _own(engine, PUT, QUEUE, "puts", options),
        *_synced(engine, "puts", options),
        *(_case(engine, rival, "puts", fewer) for rival in engine.rivals),
    )
    title = f"{engine.name}: putting by {callers} callers"
    return Scenario(
        title,
        f"{callers} tasks of one process put one job after the other; threads, where a library "
        "blocks. This package: `submit` of a lane, and `put` of a queue.",
        cases,
        (
            Claim(
                f"{engine.name}, {callers} callers submit: {AGAINST}",
                _names(cases),
                (OURS,),
                engine.callers,
            ),
            Claim("the same with `put`", _names(cases), (PUT,), headline=False),
            *_synced_claim(cases),
        ),
        turns=1,
        warm_up=0,
    )


def _batches(engine: Engine, quick: bool) -> Scenario:
    cases = (
        _own(engine, PUT, QUEUE, "batches", {"items": 100 if quick else 20_000}),
        _own(engine, OURS, LANES, "batches", {"items": 100 if quick else 20_000}),
        *(
            _case(engine, rival, "batches", {"items": 100 if quick else 2000})
            for rival in engine.rivals
            if rival.batches
        ),
    )
    return Scenario(
        f"{engine.name}: putting in batches",
        "One task puts jobs, 1,000 by one call. This package: `submit_many` of a lane, and "
        "`put_many` of a queue.",
        cases,
        (
            Claim(
                f"{engine.name}, jobs put in batches: {AGAINST}",
                _names(cases),
                (PUT,),
                engine.batch,
            ),
            Claim("the same with `submit_many`", _names(cases), (OURS,), headline=False),
        ),
        turns=1,
        warm_up=0,
    )


def _one_by_one(engine: Engine, quick: bool) -> Scenario:
    options = {"items": 20 if quick else 200, "callers": 1}
    cases = (
        _own(engine, OURS, LANES, "puts", options),
        _own(engine, PUT, QUEUE, "puts", options),
        *(_case(engine, rival, "puts", options) for rival in engine.rivals),
    )
    return Scenario(
        f"{engine.name}: putting one by one",
        "One task puts one job after the other, while nobody else does; a thread, where a library "
        "blocks.",
        cases,
        (
            Claim(
                f"{engine.name}, one caller submits: {AGAINST}",
                _names(cases),
                (OURS,),
                1.0,
            ),
            Claim("the same with `put`", _names(cases), (PUT,), headline=False),
        ),
        turns=1 if quick else 2,
        warm_up=0,
    )


def _latency(engine: Engine, quick: bool) -> Scenario:
    cases = (
        _own(
            engine, OURS, LANES, "latency", {"operations": 5 if quick else IDLE, "concurrency": 10}
        ),
        *(
            _case(
                engine,
                rival,
                "latency",
                {
                    "operations": 2 if quick else rival.idle,
                    "concurrency": rival.idle_concurrency,
                },
            )
            for rival in engine.rivals
        ),
    )
    return Scenario(
        f"{engine.name}: from submit to start",
        "One job at a time, for a worker process that waits: from the call that puts the job to "
        "its first line, the median of a turn.",
        cases,
        (
            Claim(
                f"{engine.name}, idle: time from submit to start, against the best of the others",
                (OURS,),
                _names(cases),
                at_most=1.2,
            ),
        ),
        turns=1,
        warm_up=0,
    )


def _claims(engine: Engine, quick: bool) -> Scenario:
    many, held = (2000, 500) if quick else (1_000_000, 100_000)
    sizes = {
        "1,000 waiting": (1000, 0),
        f"{many:,} waiting": (many, 0),
        f"{held:,} in flight": (1000, held),
    }
    options = {"server": engine.server, "operations": 200 if quick else 500, "callers": 100}
    few, waiting, in_flight = (
        Case(
            name,
            peers.OUR_SERVERS,
            "claims",
            {**options, "waiting": some, "in_flight": others},
        )
        for name, (some, others) in sizes.items()
    )
    return Scenario(
        f"{engine.name}: a claim among many items",
        "100 tasks get items, with a lease time-out of an hour, while so many wait in the queue or "
        "are in flight. What was got is acknowledged, and as many items are put, while the clock "
        "stands still.",
        (few, waiting, in_flight),
        tuple(
            Claim(
                f"{engine.name}: cost of a claim with {case.name}, against 1,000 waiting",
                (case.name,),
                (few.name,),
                at_most=2.0,
            )
            for case in (waiting, in_flight)
        ),
        turns=1 if quick else 25,
        rounds=1,
    )
