"""Workloads that are the same for every library: putting, draining, and the idle latency.

They are made for servers; the idle latency is measured on SQLite, too.

A library is a class that knows how to put jobs and how to run a worker. Workers are processes of
their own. Each turn has an empty place, so that what a library leaves behind does not slow the
next turn down.
"""

import asyncio
import multiprocessing
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import count
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from statistics import median
from time import sleep
from typing import Any, TypeAlias

from benchmarks.places import end_with_parent, new_place
from benchmarks.timing import Turn, Workload, busy_seconds, quiet, wall_clock

WARM_UP = 100
"""So many jobs go through before the clock starts: a new process is slow at first."""
IDLE_WARM_UP = 3
"""The same where one job is put at a time."""
PORTION = 1000
"""Jobs of one call, where a library puts many by one."""
CALLERS = 20
"""How many put at a time what is to be drained, where a library cannot put many by one call."""
REST = 0.005
"""Seconds between two jobs of an idle worker."""
AFTERWARDS = 0.2
"""Seconds that workers go on after the last job: a job that runs a second time is to be seen."""
LOOK = 0.005
"""Seconds between two looks whether the workers have run all jobs."""
PATIENCE = 120.0
"""Seconds for a worker to do its part."""

Note: TypeAlias = Callable[[int], object]
"""What a job does: it is told its number."""


class Library(ABC):
    """A queue on a server, for one that puts or for one that works.

    Args:
        url: The server, and the place on it.
        note: What the jobs do, when this one works.
        options: What the scenario wants of this library.
    """

    in_threads = False
    """Whether `put` blocks: then callers are threads."""

    def __init__(self, url: str, note: Note, **options: Any) -> None:
        self.url = url
        self.note = note
        self.options = options

    async def open(self) -> None:  # noqa: B027  # some have nothing to do
        """Get ready to put; make the tables, where there are some."""

    async def close(self) -> None:  # noqa: B027  # some have nothing to do
        """Let go of what `open` has got."""

    async def put(self, number: int) -> None:
        """Put a job."""
        self.put_now(number)

    def put_now(self, number: int) -> None:
        """The same for a library that blocks."""
        raise NotImplementedError

    async def put_many(self, numbers: Sequence[int]) -> None:
        """Put jobs by one call."""
        raise NotImplementedError

    @abstractmethod
    def work(self, concurrency: int) -> None:
        """Run a worker in this process, for ever."""


@dataclass(frozen=True)
class Made:
    """How a library is made, in any process.

    Attributes:
        library: A module of this package, and a class.
    """

    library: str
    url: str
    options: dict[str, Any]

    def make(self, note: Note) -> Library:
        module, _, name = self.library.rpartition(".")
        kind: Any = getattr(import_module(f"benchmarks.{module}"), name)
        made: Library = kind(self.url, note, **self.options)
        return made


async def puts(server: str, library: str, items: int, callers: int, **options: Any) -> Turn:
    """Put, by so many callers at a time."""
    new_place(server)

    async def turn() -> float:
        async with _opened(Made(library, new_place(server), options)) as queue:
            await _fill(queue, range(WARM_UP), callers)
            quiet()
            start = wall_clock()
            await _fill(queue, range(WARM_UP, WARM_UP + items), callers)
            return (wall_clock() - start) / items

    return turn


async def batches(server: str, library: str, items: int, **options: Any) -> Turn:
    """Put, many by one call."""
    new_place(server)

    async def turn() -> float:
        async with _opened(Made(library, new_place(server), options)) as queue:
            await queue.put_many(range(WARM_UP))
            quiet()
            start = wall_clock()
            await _put_in_portions(queue, range(WARM_UP, WARM_UP + items))
            return (wall_clock() - start) / items

    return turn


async def drain(
    server: str, library: str, items: int, concurrency: int, processes: int = 1, **options: Any
) -> Turn:
    """Empty a queue by worker processes: the time from one of the first jobs to the last.

    The first jobs are not counted, nor is the start of the processes.
    """
    new_place(server)

    async def turn() -> float:
        made = Made(library, new_place(server), options)
        return (await _drained(made, items, concurrency, processes)).seconds_per_job

    return turn


async def busy_cores(
    server: str, library: str, items: int, concurrency: int, processes: int = 1, **options: Any
) -> Turn:
    """How many cores of this machine are busy while worker processes empty a queue.

    That is the workers, the server, and whatever else runs here.
    """
    new_place(server)

    async def turn() -> float:
        made = Made(library, new_place(server), options)
        return (await _drained(made, items, concurrency, processes)).busy_cores

    return turn


@dataclass(frozen=True)
class Drained:
    """What draining a queue has shown."""

    seconds_per_job: float
    busy_cores: float


async def _drained(made: Made, items: int, concurrency: int, processes: int) -> Drained:
    """Fill a queue, and let worker processes empty it."""
    whole = WARM_UP * processes + items
    async with _opened(made) as queue:
        if type(queue).put_many is Library.put_many:
            await _fill(queue, range(whole), CALLERS)
        else:
            await _put_in_portions(queue, range(whole))
    context = multiprocessing.get_context("spawn")
    counts: list[Any] = [context.RawValue("q", 0) for _ in range(processes)]
    together = context.Barrier(processes)
    with ExitStack() as stack:
        workers = [
            stack.enter_context(_worker(drain_in_process, made, concurrency, count, together))
            for count in counts
        ]
        cores = await asyncio.to_thread(_cores_until, counts, whole)
        await asyncio.sleep(AFTERWARDS)
        runs: list[list[tuple[float, int]]] = []
        for here in workers:
            here.send(None)
            runs.append(await asyncio.to_thread(_received, here))
    ran = Counter(number for some in runs for _, number in some)
    assert ran == Counter(range(whole)), f"{ran.total()} runs of {len(ran)} of {whole} jobs"
    moments = sorted(moment for some in runs for moment, _ in some)[-items - 1 :]
    return Drained((moments[-1] - moments[0]) / items, cores)


def _cores_until(counts: Sequence[Any], whole: int) -> float:
    """Wait until the workers have run so many jobs; return the cores that were busy meanwhile."""
    latest = wall_clock() + PATIENCE
    start: tuple[float, float] | None = None
    while (ran := sum(count.value for count in counts)) < whole:
        if start is None and ran > WARM_UP:
            start = wall_clock(), busy_seconds()
        if wall_clock() > latest:
            raise TimeoutError("the workers did not do their part")
        sleep(LOOK)
    if start is None:
        return 0.0
    return (busy_seconds() - start[1]) / (wall_clock() - start[0])


async def latency(
    server: str, library: str, operations: int, concurrency: int, **options: Any
) -> Turn:
    """From the call that puts a job to its first line in a worker process that waits."""
    new_place(server)

    async def turn() -> float:
        made = Made(library, new_place(server), options)
        waits: list[float] = []
        async with _opened(made) as queue:
            with _worker(tell_from_process, made, concurrency) as here:
                for number in range(IDLE_WARM_UP + operations):
                    put_at = wall_clock()
                    await queue.put(number)
                    started, ran = await asyncio.to_thread(_received, here)
                    assert ran == number
                    waits.append(started - put_at)
                    await asyncio.sleep(REST)
        return median(waits[IDLE_WARM_UP:])

    return turn


def drain_in_process(
    there: Connection, queue: Made, concurrency: int, shown: Any, together: Barrier
) -> None:
    """Work, and tell when asked which jobs ran, and when.

    Args:
        shown: Where this process shows how many jobs it has run.
        together: Where the first job of each process waits for those of the others, so that no
            process has emptied the queue before the next one has started.
    """
    end_with_parent()
    ran: list[tuple[float, int]] = []
    one_at_a_time = threading.Lock()
    order = count(1)

    def note(number: int) -> None:
        place = next(order)
        if place == 1:
            together.wait(PATIENCE)
        elif place == WARM_UP:
            quiet()
        with one_at_a_time:  # a thread that is late must not show a smaller number
            ran.append((wall_clock(), number))
            shown.value = len(ran)

    def tell() -> None:
        there.recv()
        there.send(ran)

    threading.Thread(target=tell, daemon=True).start()
    queue.make(note).work(concurrency)


def tell_from_process(there: Connection, queue: Made, concurrency: int) -> None:
    """Work, and tell when each job began."""
    end_with_parent()

    def note(number: int) -> None:
        there.send((wall_clock(), number))

    queue.make(note).work(concurrency)


@contextmanager
def _worker(target: Callable[..., None], *arguments: Any) -> Generator[Connection]:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=target, args=(there, *arguments), daemon=True)
    process.start()
    there.close()
    try:
        yield here
    finally:
        process.kill()
        process.join()


def _received(here: Connection) -> Any:
    if not here.poll(PATIENCE):
        raise TimeoutError("a worker did not do its part")
    return here.recv()


@asynccontextmanager
async def _opened(made: Made) -> AsyncGenerator[Library]:
    queue = made.make(lambda _: None)
    await queue.open()
    yield queue
    await queue.close()


async def _put_in_portions(queue: Library, numbers: range) -> None:
    for first in range(0, len(numbers), PORTION):
        await queue.put_many(numbers[first : first + PORTION])


async def _fill(queue: Library, numbers: range, callers: int) -> None:
    """Put the numbers, by so many callers at a time."""
    shares = [numbers[first::callers] for first in range(callers)]
    if queue.in_threads:

        def put(share: range) -> None:
            for number in share:
                queue.put_now(number)

        with ThreadPoolExecutor(callers) as threads:
            list(threads.map(put, shares))
        return

    async def put_all(share: range) -> None:
        for number in share:
            await queue.put(number)

    async with asyncio.TaskGroup() as tasks:
        for share in shares:
            tasks.create_task(put_all(share))


WORKLOADS: dict[str, Workload] = {
    "puts": puts,
    "batches": batches,
    "drain": drain,
    "busy_cores": busy_cores,
    "latency": latency,
}
