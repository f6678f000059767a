"""Workloads of the lanes: this package in memory and on SQLite, and bare tasks of asyncio."""

import asyncio
from asyncio import Future, create_task
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import asynccontextmanager
from itertools import count
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier
from statistics import quantiles
from typing import Any

from benchmarks.drain import seconds_to_empty
from benchmarks.sqlite_facts import pragmas
from benchmarks.timing import FACTS, Turn, Workload, clock, own_folder, quiet, wall_clock
from leasedkeyq.engines.sqlite.store import SqliteStore
from leasedkeyq.lanes import (
    LaneConfig,
    QueueManager,
    QueueManagerBuilder,
    RunIn,
    current_command,
)

LANES = ("system", "control", "query", "session", "skill", "prompt")
CLOCKS = {"cpu": clock, "wall": wall_clock}
MANY = 50
"""Commands of chains and gathers that run at a time."""
LONG = 100
"""Commands that run all the time, and may tell their progress."""


async def nothing() -> None:
    """The coroutine that all of them run."""


async def bare_tasks(operations: int) -> Turn:
    """Make tasks of asyncio and await them."""

    async def turn() -> float:
        quiet()
        start = clock()
        tasks = [create_task(nothing()) for _ in range(operations)]
        for task in tasks:
            await task
        return (clock() - start) / operations

    return turn


async def commands(
    operations: int, timeout: float | None = None, metrics: bool = False, time: str = "cpu"
) -> Turn:
    """Submit commands to the six default lanes in memory, in turn, and await their handles."""
    builder = QueueManagerBuilder().with_default_lanes()
    manager = (builder.with_metrics() if metrics else builder).build()
    command = manager.command("nothing", nothing)
    await manager.start()
    lanes = [LANES[number % len(LANES)] for number in range(operations)]
    now = CLOCKS[time]

    async def turn() -> float:
        quiet()
        start = now()
        handles = [await manager.submit(lane, command(), timeout=timeout) for lane in lanes]
        for handle in handles:
            await handle
        return (now() - start) / operations

    return turn


async def same(number: int) -> int:
    """The command of chains and gathers: it returns what it was given."""
    return number


async def workflow_turn(
    operations: int, work: Callable[[QueueManager, Any, int], Awaitable[None]]
) -> Turn:
    """Time work with a manager in memory, a command, and so many of them."""
    manager = QueueManagerBuilder().with_lane("lane", LaneConfig(0, MANY), 0).build()
    command = manager.command("same", same)
    await manager.start()

    async def turn() -> float:
        quiet()
        start = clock()
        await work(manager, command, operations)
        return (clock() - start) / operations

    return turn


async def by_hand(operations: int) -> Turn:
    """Tasks that submit three commands, each with the result of the one before."""

    async def one(manager: QueueManager, command: Any, number: int) -> None:
        for _ in range(3):
            number = await (await manager.submit("lane", command(number)))

    async def work(manager: QueueManager, command: Any, many: int) -> None:
        tasks = [create_task(one(manager, command, n)) for n in range(many // 3)]
        for task in tasks:
            await task

    return await workflow_turn(operations, work)


async def chains(operations: int) -> Turn:
    """Chains of three commands."""

    async def work(manager: QueueManager, command: Any, many: int) -> None:
        handles = [
            await manager.chain(command(n), command, command, lane="lane") for n in range(many // 3)
        ]
        for handle in handles:
            await handle

    return await workflow_turn(operations, work)


async def many_awaited(operations: int) -> Turn:
    """Commands that are submitted together, and their handles awaited."""

    async def work(manager: QueueManager, command: Any, many: int) -> None:
        for handle in await manager.submit_many("lane", [command(n) for n in range(many)]):
            await handle

    return await workflow_turn(operations, work)


async def gathered(operations: int) -> Turn:
    """Commands whose outcomes are gathered."""

    async def work(manager: QueueManager, command: Any, many: int) -> None:
        await (await manager.gather([command(n) for n in range(many)], lane="lane"))

    return await workflow_turn(operations, work)


async def latency(operations: int, percentile: int) -> Turn:
    """From the call of submit to the first line of the command, when nothing else is to be done."""
    manager = QueueManagerBuilder().with_default_lanes().build()
    started = 0.0

    async def note() -> None:
        nonlocal started
        started = wall_clock()

    command = manager.command("note", note)
    await manager.start()

    async def turn() -> float:
        quiet()
        waits: list[float] = []
        for _ in range(operations):
            start = wall_clock()
            handle = await manager.submit("query", command())
            await handle
            waits.append(started - start)
        return quantiles(waits, n=100)[percentile - 1]

    return turn


async def backlog(operations: int, pending: int) -> Turn:
    """Commands while so many are pending all the time: each submits another one to its lane."""
    manager = QueueManagerBuilder().with_default_lanes().build()
    left = 0
    done: Future[None]

    async def again(lane: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            done.set_result(None)
            for one in LANES:
                manager.pause(one)
        await manager.submit(lane, command(lane))

    command = manager.command("again", again)
    for lane in LANES:
        manager.pause(lane)
    await manager.start()
    for number in range(pending):
        lane = LANES[number % len(LANES)]
        await manager.submit(lane, command(lane))

    async def turn() -> float:
        nonlocal done, left
        done = asyncio.get_running_loop().create_future()
        left = operations
        quiet()
        start = clock()
        for lane in LANES:
            manager.resume(lane)
        await done
        seconds = clock() - start
        await asyncio.sleep(0.01)  # the last ones end
        stats = await manager.stats()
        assert stats.total_pending == pending, stats
        return seconds / operations

    return turn


async def drain(items: int, processes: int, most: int) -> Turn:
    """Empty six lanes in a file on SQLite by worker processes; every result is kept."""
    files = count()
    store = SqliteStore(own_folder() / "facts.db")
    assert store._connection is not None
    FACTS.update(pragmas(store._connection))
    await store.close()

    async def turn() -> float:
        path = str(own_folder() / f"{next(files)}.db")
        async with _jobs(path, most) as (manager, job, _):
            for first in range(0, items, 1000):
                some = range(first, min(first + 1000, items))
                submits = [manager.submit(LANES[n % len(LANES)], job(n)) for n in some]
                await asyncio.gather(*submits)
        seconds = await asyncio.to_thread(
            seconds_to_empty, empty_in_process, processes, items, path, most
        )
        store = SqliteStore(path)
        kept = sum(counts.done for counts in (await store.count()).values())
        assert kept == items, f"{kept} results of {items} commands"
        await store.close()
        return seconds / items

    return turn


def empty_in_process(start: Barrier, counter: Any, path: str, most: int) -> list[int]:
    """Run what is in the lanes of a file until all is done; return what this process ran."""
    del counter

    async def main() -> list[int]:
        async with _jobs(path, most) as (manager, _, ran):
            start.wait()
            await manager.start()
            await manager.drain()
        return ran

    return asyncio.run(main())


@asynccontextmanager
async def _jobs(
    path: str, most: int
) -> AsyncGenerator[tuple[QueueManager, Callable[[int], Any], list[int]]]:
    """A manager on a file, not started, its command, and the list of what that has run."""
    builder = QueueManagerBuilder().with_storage(f"sqlite:///{path}")
    for priority, lane in enumerate(LANES):
        builder = builder.with_lane(lane, LaneConfig(1, most), priority)
    manager = builder.build()
    ran: list[int] = []

    @manager.command("job")
    async def job(number: int) -> int:
        ran.append(number)
        return number

    try:
        yield manager, job, ran
    finally:
        await manager.close()


def double(number: int) -> int:
    """The plain function that threads and processes run."""
    return 2 * number


async def plain_functions(operations: int, at_a_time: int, run_in: RunIn) -> Turn:
    """Submit commands of a plain function to a lane in memory, and await their handles."""
    manager = QueueManagerBuilder().with_lane("work", LaneConfig(0, at_a_time), 0).build()
    command = manager.command("double", double, run_in=run_in)
    await manager.start()

    async def turn() -> float:
        quiet()
        start = wall_clock()
        handles = [await manager.submit("work", command(n)) for n in range(operations)]
        for handle in handles:
            await handle
        return (wall_clock() - start) / operations

    return await _started(turn)


async def to_thread(operations: int, at_a_time: int) -> Turn:
    """Call a plain function by `asyncio.to_thread`, in so many threads."""
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(at_a_time))

    async def turn() -> float:
        quiet()
        start = wall_clock()
        await asyncio.gather(*[asyncio.to_thread(double, n) for n in range(operations)])
        return (wall_clock() - start) / operations

    return await _started(turn)


async def process_pool(operations: int, at_a_time: int) -> Turn:
    """Call a plain function in a `ProcessPoolExecutor` of so many processes."""
    loop = asyncio.get_running_loop()

    async def turn() -> float:
        # A pool of each turn's own: this worker is killed in the end, and its processes would stay.
        with ProcessPoolExecutor(at_a_time, mp_context=get_context("spawn")) as pool:
            seconds = 0.0
            for _ in range(2):  # the first time, the processes start
                quiet()
                start = wall_clock()
                calls = [loop.run_in_executor(pool, double, n) for n in range(operations)]
                await asyncio.gather(*calls)
                seconds = wall_clock() - start
        return seconds / operations

    return turn


async def _started(turn: Turn) -> Turn:
    """Measure once, so that the threads and processes are there."""
    await turn()
    return turn


async def idle_schedules(schedules: int, seconds: float) -> Turn:
    """CPU seconds that an idle worker on SQLite takes in a second, with so many schedules."""
    path = own_folder() / f"schedules-{schedules}.db"
    builder = QueueManagerBuilder().with_default_lanes().with_storage(f"sqlite:///{path}")
    manager = builder.build()
    command = manager.command("nothing", nothing)
    for number in range(schedules):
        name, every = f"schedule-{number}", 86400 + number
        await manager.schedule(name, command(), every=every, lane="query").declare()
    await manager.start()

    async def turn() -> float:
        await asyncio.sleep(1.0)  # what was looked at between two turns is over
        quiet()
        start = clock()
        await asyncio.sleep(seconds)
        return (clock() - start) / seconds

    return turn


async def beside_progress(operations: int, tells: bool) -> Turn:
    """Run quick commands on SQLite beside 100 long ones, which tell their progress or do not."""
    path = own_folder() / f"progress-{tells}.db"
    builder = QueueManagerBuilder().with_storage(f"sqlite:///{path}")
    builder = builder.with_lane("long", LaneConfig(0, LONG), 0)
    manager = builder.with_lane("quick", LaneConfig(0, MANY), 1).build()

    async def long() -> None:
        for number in count():
            if tells:
                current_command().progress(number, f"step {number}")
            await asyncio.sleep(0.1)

    command = manager.command("same", same)
    endless = manager.command("long", long)
    await manager.submit_many("long", [endless() for _ in range(LONG)])
    await manager.start()

    async def turn() -> float:
        quiet()
        start = clock()
        for handle in await manager.submit_many("quick", [command(n) for n in range(operations)]):
            await handle
        return (clock() - start) / operations

    return await _started(turn)


WORKLOADS: dict[str, Workload] = {
    "bare_tasks": bare_tasks,
    "commands": commands,
    "latency": latency,
    "backlog": backlog,
    "drain": drain,
    "idle_schedules": idle_schedules,
    "plain_functions": plain_functions,
    "by_hand": by_hand,
    "chains": chains,
    "many_awaited": many_awaited,
    "gathered": gathered,
    "to_thread": to_thread,
    "process_pool": process_pool,
    "beside_progress": beside_progress,
}
