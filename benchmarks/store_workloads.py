"""Workloads of the stores: this package on SQLite and in files, by the clock on the wall."""

import asyncio
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import count
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from benchmarks.handed_out import handed_out_twice
from benchmarks.server_own_workloads import line_turn
from benchmarks.sqlite_facts import pragmas
from benchmarks.timing import (
    FACTS,
    Turn,
    Workload,
    names,
    own_folder,
    quiet,
    shared_folder,
    wall_clock,
)
from leasedkeyq.engines.file.store import FileStore
from leasedkeyq.engines.sqlite.schema import SqliteDurability
from leasedkeyq.engines.sqlite.store import SqliteStore
from leasedkeyq.stores.queue.store_queue import StoreQueue

VALUE = {"user": 12345, "action": "refresh"}
HOUR = 3600.0
WARM_UP = "warm-up"
"""The first time is not counted: a new process is slow at first."""

Jobs = StoreQueue[Any]


async def cycle(operations: int, callers: int) -> Turn:
    """put, get, ack on SQLite by so many tasks at a time; the queue is empty otherwise."""
    await _note("full")
    queue: Jobs = SqliteStore(_new_path()).queue("jobs")
    keys = names(operations)

    async def turn() -> float:
        quiet()
        start = wall_clock()
        await asyncio.gather(*(_use(queue, keys[first::callers]) for first in range(callers)))
        return (wall_clock() - start) / operations

    return turn


async def puts(items: int, callers: int, durability: SqliteDurability = "full") -> Turn:
    """Put new items on SQLite, by so many tasks, each of which waits until its item is stored."""
    await _note(durability)

    async def put(queue: Jobs, mine: list[str]) -> None:
        for key in mine:
            await queue.put(key, VALUE)

    async def turn() -> float:
        seconds = 0.0
        async with _fresh_sqlite(durability) as queue:
            for portion in (WARM_UP, "timed"):
                keys = [f"{portion}-{number}" for number in range(items)]
                shares = [keys[first::callers] for first in range(callers)]
                quiet()
                start = wall_clock()
                await asyncio.gather(*(put(queue, share) for share in shares))
                seconds = wall_clock() - start
        return seconds / items

    return turn


async def drain(items: int, callers: int, durability: SqliteDurability = "full") -> Turn:
    """Empty a queue on SQLite: so many tasks get and acknowledge until nothing is left."""
    await _note(durability)
    keys = names(items)

    async def turn() -> float:
        seconds = 0.0
        async with _fresh_sqlite(durability) as queue:
            for _ in (WARM_UP, "timed"):
                await queue.put_many([(key, VALUE) for key in keys])
                quiet()
                start = wall_clock()
                done = await asyncio.gather(*(_empty(queue) for _ in range(callers)))
                seconds = wall_clock() - start
                assert sum(len(some) for some in done) == items
        return seconds / items

    return turn


async def claims(operations: int, callers: int, waiting: int, in_flight: int) -> Turn:
    """get on SQLite with so many items waiting and so many in flight, all the time.

    What was got is acknowledged, and as many items are put, while the clock stands still.
    """
    path = own_folder() / "jobs.db"
    shutil.copy(await _prepared(waiting, in_flight), path)
    queue: Jobs = SqliteStore(path).queue("jobs", default_lease_timeout=HOUR)
    numbers = count()
    step = min(operations, waiting // 2)

    async def get(times: int) -> list[Any]:
        return [await queue.get() for _ in range(times)]

    async def turn() -> float:
        seconds = 0.0
        for _ in range(operations // step):
            quiet()
            start = wall_clock()
            got = await asyncio.gather(*(get(step // callers) for _ in range(callers)))
            seconds += wall_clock() - start
            leases = [lease for some in got for _, _, lease in some]
            await asyncio.gather(*(queue.ack(lease) for lease in leases))
            await queue.put_many([(f"new-{next(numbers)}", VALUE) for _ in leases])
        return seconds / operations

    return turn


async def file_cycle(operations: int, callers: int, suffix: str, waiting: int) -> Turn:
    """put, get, ack by so many tasks on a store with so many items waiting all the time."""
    path = own_folder() / f"jobs{suffix}"
    store = SqliteStore(path) if suffix == ".db" else FileStore(path)
    queue: Jobs = store.queue("jobs")
    numbers = count()
    await queue.put_many([(f"waiting-{number}", VALUE) for number in range(waiting)])

    async def turn() -> float:
        keys = [f"key-{next(numbers)}" for _ in range(operations)]
        quiet()
        start = wall_clock()
        await asyncio.gather(*(_use(queue, keys[first::callers]) for first in range(callers)))
        return (wall_clock() - start) / operations

    return turn


async def twice(items: int) -> Turn:
    """How many items two processes that empty one queue both get."""

    async def turn() -> float:
        path = _new_path()
        store = SqliteStore(path)
        await store.queue("jobs").put_many([(key, VALUE) for key in names(items)])
        await store.close()
        return await asyncio.to_thread(handed_out_twice, empty_in_process, str(path))

    return turn


def empty_in_process(path: str, start: Barrier) -> list[str]:
    """Empty a queue together with another process; return what this one got."""

    async def main() -> list[str]:
        store = SqliteStore(path)
        queue: Jobs = store.queue("jobs")
        start.wait()
        done = await asyncio.gather(*(_empty(queue) for _ in range(10)))
        await store.close()
        return [key for some in done for key in some]

    return asyncio.run(main())


async def _use(queue: Jobs, mine: list[str]) -> None:
    for key in mine:
        await queue.put(key, VALUE)
        _, _, lease = await queue.get()
        await queue.ack(lease)


async def _empty(queue: Jobs) -> list[str]:
    done: list[str] = []
    while True:
        try:
            key, _, lease = await queue.get(timeout=0)
        except TimeoutError:
            return done
        await queue.ack(lease)
        done.append(key)


_files = count()


def _new_path() -> Path:
    return own_folder() / f"{next(_files)}.db"


async def _note(durability: SqliteDurability) -> None:
    """Note how the store sets its connection."""
    store = SqliteStore(_new_path(), durability=durability)
    assert store._connection is not None
    FACTS.update(pragmas(store._connection))
    await store.close()


@asynccontextmanager
async def _fresh_sqlite(durability: SqliteDurability) -> AsyncGenerator[Jobs]:
    store = SqliteStore(_new_path(), durability=durability)
    try:
        yield store.queue("jobs")
    finally:
        await store.close()


async def _prepared(waiting: int, in_flight: int) -> Path:
    """A database with so many items; it is made once in a run."""
    path = shared_folder() / f"{waiting}-{in_flight}.db"
    if not path.exists():
        making = own_folder() / "making.db"
        store = SqliteStore(making, durability="normal")
        queue: Jobs = store.queue("jobs", default_lease_timeout=HOUR)
        for prefix, many in (("held", in_flight), ("waiting", waiting)):
            for first in range(0, many, 10_000):
                some = range(first, min(first + 10_000, many))
                await queue.put_many([(f"{prefix}-{number}", VALUE) for number in some])
                if prefix == "held":
                    await queue.get_many(len(some))
        await store.close()
        making.rename(path)
    return path


async def lines(operations: int, keys: int, values: int) -> Turn:
    """get and ack on SQLite with so many keys and values of each; see `server_own_workloads`."""
    queue: Any = SqliteStore(_new_path()).queue("jobs", default_lease_timeout=HOUR)
    return await line_turn(queue, operations, keys, values)


WORKLOADS: dict[str, Workload] = {
    "cycle": cycle,
    "lines": lines,
    "puts": puts,
    "drain": drain,
    "claims": claims,
    "file_cycle": file_cycle,
    "twice": twice,
}
