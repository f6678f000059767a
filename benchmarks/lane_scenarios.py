"""What is measured of the lanes, and what it has to show."""

from benchmarks.peers import A3S_LANE, HUEY_ON_SQLITE, HUEY_WORKERS, OUR_LANES, OUR_SERVERS
from benchmarks.places import SQLITE
from benchmarks.scenarios import Case, Claim, Scenario

OURS = "this package"
BARE = "bare tasks"
A3S = "a3s-lane"
PROCESSES = {1: "one worker process", 2: "two worker processes"}
THREADS = 32
MOST = 50
"""Commands of one lane that run at a time, where it is not one of the default lanes."""
HUEY_THREADS = (1, 4)
"""More threads do not make huey faster."""


def lane_scenarios(*, quick: bool) -> tuple[Scenario, ...]:
    """The lanes; `quick` makes them so small that they only show that all of it works."""
    return (
        _commands(quick),
        _beside_a3s(quick),
        _latency(quick),
        _backlog(quick),
        _workflows(quick),
        _threads(quick),
        _processes(quick),
        _schedules(quick),
        _progress(quick),
        *(_workers(quick, processes) for processes in PROCESSES),
        _submitting_threads(quick),
    )


def _commands(quick: bool) -> Scenario:
    options = {"operations": 60 if quick else 1200}
    return Scenario(
        "Lanes in memory: commands that do nothing",
        f"{options['operations']:,} commands are submitted to the six default lanes in turn, and "
        "their handles awaited. Bare tasks: the same coroutine by `asyncio.create_task`, and the "
        "tasks awaited.",
        (
            Case(BARE, OUR_LANES, "bare_tasks", options),
            Case(OURS, OUR_LANES, "commands", options),
            Case(f"{OURS}, time-outs", OUR_LANES, "commands", {**options, "timeout": 30}),
            Case(f"{OURS}, metrics", OUR_LANES, "commands", {**options, "metrics": True}),
        ),
        (
            Claim(
                "six lanes in memory: cost of a command against a bare `asyncio` task",
                (OURS,),
                (BARE,),
                at_most=5.0,
            ),
            Claim(
                "the same with a time-out for each command",
                (f"{OURS}, time-outs",),
                (BARE,),
                at_most=8.0,
            ),
            Claim(
                "what metrics add to a command in memory",
                (f"{OURS}, metrics",),
                (OURS,),
                at_most=1.25,
                unit="%",
            ),
        ),
        turns=1 if quick else 30,
        warm_up=1 if quick else 3,
    )


def _beside_a3s(quick: bool) -> Scenario:
    return Scenario(
        "Lanes in memory beside a3s-lane",
        "Commands that do nothing through six lanes, by the clock on the wall. The Python package "
        "of a3s-lane cannot run Python code: it runs a command of its own that returns what it was "
        "given. It starts one command every 10 milliseconds, however many threads submit.",
        (
            Case(
                OURS,
                OUR_LANES,
                "commands",
                {"operations": 60 if quick else 1200, "time": "wall"},
            ),
            Case(A3S, A3S_LANE, "commands", {"operations": 12 if quick else 60, "threads": 12}),
        ),
        (
            Claim(
                "commands through six lanes in memory, speed against a3s-lane",
                (A3S,),
                (OURS,),
                500.0,
            ),
        ),
        turns=1 if quick else 3,
    )


def _latency(quick: bool) -> Scenario:
    options = {"operations": 100 if quick else 1000}
    cases = tuple(
        Case(f"p{percentile}", OUR_LANES, "latency", {**options, "percentile": percentile})
        for percentile in (50, 99)
    )
    return Scenario(
        "Lanes in memory: from submit to start",
        "One command at a time, while nothing else is to be done: from the call of `submit` to the "
        "first line of the command, by the clock on the wall.",
        cases,
        tuple(
            Claim(
                f"lanes in memory, idle: from submit to start, {case.name}",
                (case.name,),
                unit="seconds",
                headline=False,
            )
            for case in cases
        ),
        turns=1 if quick else 10,
    )


def _backlog(quick: bool) -> Scenario:
    few, many = 100, 1000 if quick else 100_000
    options = {"operations": 100 if quick else 2000}
    cases = tuple(
        Case(f"{pending:,} pending", OUR_LANES, "backlog", {**options, "pending": pending})
        for pending in (few, many)
    )
    return Scenario(
        "Lanes in memory: many commands pending",
        "Six lanes with so many commands pending all the time: each command that runs is the "
        "oldest of its lane, and submits another one, which is the newest.",
        cases,
        (
            Claim(
                f"lanes in memory: cost of a command with {many:,} pending, against {few}",
                (cases[1].name,),
                (cases[0].name,),
                at_most=1.3,
            ),
        ),
        turns=1 if quick else 30,
    )


def _workflows(quick: bool) -> Scenario:
    options = {"operations": 60 if quick else 1200}
    return Scenario(
        "Lanes in memory: chains and gathers",
        f"{options['operations']:,} commands that return what they were given. In chains of three, "
        "beside tasks that submit one, await it, and submit the next. In one gather, beside "
        "`submit_many` and all handles awaited.",
        (
            Case("one after the other", OUR_LANES, "by_hand", options),
            Case("chains", OUR_LANES, "chains", options),
            Case("submit_many", OUR_LANES, "many_awaited", options),
            Case("a gather", OUR_LANES, "gathered", options),
        ),
        (
            Claim(
                "a step of a chain: cost against a command that a task submits and awaits",
                ("chains",),
                ("one after the other",),
                at_most=2.0,
            ),
            Claim(
                "a command of a gather: cost against one of `submit_many`",
                ("a gather",),
                ("submit_many",),
                at_most=2.0,
            ),
        ),
        turns=1 if quick else 30,
        warm_up=1 if quick else 3,
    )


def _threads(quick: bool) -> Scenario:
    options = {"operations": 40 if quick else 2000, "at_a_time": 4}
    return Scenario(
        "Lanes in memory: plain functions in threads",
        f"{options['operations']:,} calls of a function that doubles a number, by the clock on the "
        "wall: as commands of a lane that runs 4 at a time, and by `asyncio.to_thread` with an "
        "executor of 4 threads. All are submitted, and then awaited.",
        (
            Case("asyncio.to_thread", OUR_LANES, "to_thread", options),
            Case(OURS, OUR_LANES, "plain_functions", {**options, "run_in": "thread"}),
        ),
        (
            Claim(
                "a plain function in a lane: cost against `asyncio.to_thread`",
                (OURS,),
                ("asyncio.to_thread",),
                at_most=2.0,
            ),
        ),
        turns=1 if quick else 10,
    )


def _processes(quick: bool) -> Scenario:
    options = {"operations": 40 if quick else 1000, "at_a_time": 2}
    return Scenario(
        "Lanes in memory: plain functions in processes",
        f"{options['operations']:,} calls of a function that doubles a number, by the clock on the "
        "wall: as commands of a lane that runs 2 at a time in processes, and by "
        "`concurrent.futures.ProcessPoolExecutor` with 2 processes (`spawn`). All are submitted, "
        "and then awaited. The start of the processes is not timed.",
        (
            Case("concurrent.futures", OUR_LANES, "process_pool", options),
            Case(OURS, OUR_LANES, "plain_functions", {**options, "run_in": "process"}),
        ),
        (
            Claim(
                "a function in a process of a lane: cost against `concurrent.futures`",
                (OURS,),
                ("concurrent.futures",),
                at_most=1.5,
            ),
        ),
        turns=1 if quick else 10,
    )


def _schedules(quick: bool) -> Scenario:
    seconds = 1 if quick else 20
    cases = {number: f"{number} schedules" for number in (0, 100)}
    return Scenario(
        "Lanes on SQLite: idle schedules",
        f"The CPU time that an idle worker takes in a second, measured for {seconds} s: without "
        "schedules, and with 100 that come due once a day. 10 ms are one per cent of a core.",
        tuple(
            Case(name, OUR_LANES, "idle_schedules", {"schedules": number, "seconds": seconds})
            for number, name in cases.items()
        ),
        (
            Claim(
                "an idle worker on SQLite with 100 schedules: CPU time in a second",
                (cases[100],),
                at_most=0.01,
                unit="seconds",
            ),
        ),
        turns=1,
        warm_up=0,
    )


def _progress(quick: bool) -> Scenario:
    options = {"operations": 100 if quick else 4000}
    return Scenario(
        "Lanes on SQLite: progress",
        f"{options['operations']:,} commands that return a number, in a worker in which 100 other "
        "commands run all the time. Those tell their progress ten times a second each, or do not.",
        (
            Case("without progress", OUR_LANES, "beside_progress", {**options, "tells": False}),
            Case("with progress", OUR_LANES, "beside_progress", {**options, "tells": True}),
        ),
        (
            Claim(
                "what the progress of 100 commands adds to the others of their worker",
                ("with progress",),
                ("without progress",),
                at_most=1.05,
                unit="%",
            ),
        ),
        turns=1 if quick else 10,
    )


def _workers(quick: bool, processes: int) -> Scenario:
    items = 60 if quick else 3000
    some = 30 if quick else 300
    shared = {"processes": processes}
    cases = [
        Case(OURS, OUR_LANES, "drain", {**shared, "items": items, "most": MOST}),
        Case(f"{OURS}, 5 at a time", OUR_LANES, "drain", {**shared, "items": items, "most": 5}),
    ]
    for threads in HUEY_THREADS:
        for results in (True, False):
            name = f"huey, {threads} thread{'s' * (threads > 1)}{', no results' * (not results)}"
            options = {**shared, "items": some, "threads": threads, "results": results}
            cases.append(Case(name, HUEY_WORKERS, "drain", options))
    huey = tuple(case.name for case in cases[2:])
    return Scenario(
        f"Lanes on SQLite: {PROCESSES[processes]}",
        f"{processes} process{'es' * (processes > 1)} run what waits in a file until nothing is "
        f"left: commands that return a number, in six lanes of which each runs at most {MOST} (or "
        "5) at a time. Here a command that is lost with its worker runs again, and every result is "
        "kept. For huey: its consumer with threads, and jobs without lanes; a job that is lost "
        "with its worker is gone. The start of the processes is not timed.",
        tuple(cases),
        (
            Claim(
                f"lanes on SQLite, `full`, {PROCESSES[processes]}: speed against huey at its best",
                huey,
                (OURS,),
                5.0,
            ),
            Claim(
                "the same with at most 5 commands of a lane at a time",
                huey,
                (f"{OURS}, 5 at a time",),
                headline=False,
            ),
        ),
        turns=1 if quick else 2,
        warm_up=0,
    )


def _submitting_threads(quick: bool) -> Scenario:
    items = 64 if quick else 6400
    some = 32 if quick else 640
    shared = {"server": SQLITE, "callers": THREADS}
    huey = {**shared, "items": some, "library": "sqlite_peers.Huey"}
    library = "server_own_workloads.SyncLanes"
    cases = (
        Case(OURS, OUR_SERVERS, "puts", {**shared, "items": items, "library": library}),
        Case("huey", HUEY_ON_SQLITE, "puts", huey),
        Case("huey at `FULL`", HUEY_ON_SQLITE, "puts", {**huey, "full": True}),
    )
    return Scenario(
        f"Lanes on SQLite: {THREADS} threads that submit",
        f"{THREADS} threads without an event loop submit commands by `manager.sync.submit`, each "
        "one after the other, and each survives a loss of power when its call returns. For huey: "
        "its task is called, as it comes and with `fsync`.",
        cases,
        (
            Claim(
                f"{THREADS} threads that submit on SQLite: speed against huey, both at `FULL`",
                ("huey at `FULL`",),
                (OURS,),
                1.0,
            ),
            Claim(
                "the same against huey as it comes, which syncs nothing",
                ("huey",),
                (OURS,),
                headline=False,
            ),
        ),
        turns=1 if quick else 3,
        warm_up=0,
    )
