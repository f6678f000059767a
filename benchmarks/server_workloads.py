"""The workloads on a server, the same for every library: putting, draining, and the idle latency.

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
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import count
from multiprocessing.connection import Connection
from statistics import median
from typing import Any, TypeAlias

from benchmarks.places import end_with_parent, new_place
from benchmarks.timing import Turn, Workload, quiet, wall_clock

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
"""Seconds that a worker goes on after its last job."""
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


async def drain(server: str, library: str, items: int, concurrency: int, **options: Any) -> Turn:
    """Empty a queue by a worker process: the time from its first job to its last.

    The first ones are not counted, nor is the start of the process.
    """
    new_place(server)

    async def turn() -> float:
        made = Made(library, new_place(server), options)
        whole = WARM_UP + items
        async with _opened(made) as queue:
            if type(queue).put_many is Library.put_many:
                await _fill(queue, range(whole), CALLERS)
            else:
                await _put_in_portions(queue, range(whole))
        with _worker(drain_in_process, made, concurrency, whole) as here:
            seconds: float
            seconds, ran = await asyncio.to_thread(_received, here)
        assert Counter(ran) == Counter(range(whole)), f"{len(ran)} runs of {whole} jobs"
        return seconds / items

    return turn


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


def drain_in_process(there: Connection, queue: Made, concurrency: int, whole: int) -> None:
    """Work, and tell the seconds from the last job of the warm-up to the last of all."""
    end_with_parent()
    ran: list[int] = []
    order = count(1)
    start = 0.0

    def note(number: int) -> None:
        nonlocal start
        ran.append(number)
        place = next(order)
        if place == WARM_UP:
            quiet()
            start = wall_clock()
        elif place == whole:
            seconds = wall_clock() - start
            # Not at once: a job that runs a second time is to be seen.
            threading.Timer(AFTERWARDS, lambda: there.send((seconds, ran))).start()

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
    "latency": latency,
}
