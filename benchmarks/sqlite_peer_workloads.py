"""The same workloads for other queues on SQLite, each used as its documentation has it.

They are synchronous: many callers are threads. Each turn has a new file, so that what a library
leaves behind does not slow the next turn down.
"""

import asyncio
import json
import sqlite3
import threading
from collections.abc import Callable
from contextlib import nullcontext
from importlib import import_module
from itertools import count
from multiprocessing.synchronize import Barrier
from pathlib import Path
from time import sleep
from typing import Any, Protocol

from benchmarks.handed_out import handed_out_twice
from benchmarks.sqlite_facts import pragmas
from benchmarks.timing import FACTS, Turn, Workload, own_folder, quiet, wall_clock

VALUE = {"user": 12345, "action": "refresh"}
WARM_UP = 200
"""So many items go through before the clock starts: a new process is slow at first."""
PATIENCE = 60.0
"""Seconds that a library waits for a lock of SQLite, where it can be told."""


class Handle(Protocol):
    """A queue as one thread uses it."""

    def put(self, number: int) -> None: ...

    def work(self) -> int | None:
        """Take an item and finish it; None when there is none."""
        ...


class Library(Protocol):
    """A queue in a file, opened."""

    def handle(self) -> Handle:
        """For another thread."""
        ...

    def connections(self) -> list[sqlite3.Connection]: ...


class Huey:
    """Its dequeue removes the item: there is nothing to acknowledge, and nothing to give back."""

    def __init__(self, path: Path) -> None:
        self._huey: Any = import_module("huey").SqliteHuey(filename=str(path), timeout=PATIENCE)

        def job(number: int, value: object) -> None:
            del number, value

        self._job = self._huey.task()(job)

    def handle(self) -> Handle:
        return self

    def connections(self) -> list[sqlite3.Connection]:
        return [self._huey.storage.conn]

    def put(self, number: int) -> None:
        self._job(number, VALUE)

    def work(self) -> int | None:
        task = self._huey.dequeue()
        if task is None:
            return None
        self._huey.execute(task)
        number: int = task.args[0]
        return number


class LiteQueue:
    """Three ways to share it among threads: one object, one for each, or one behind a lock."""

    def __init__(self, path: Path, *, full: bool, way: str) -> None:
        self._path = path
        self._full = full
        self._way = way
        self._lock = threading.Lock()
        self._opened: list[sqlite3.Connection] = []
        self._queue = self._open()

    def _open(self) -> Any:
        queue = import_module("litequeue").LiteQueue(str(self._path), timeout=PATIENCE)
        if self._full:
            queue.conn.execute("PRAGMA synchronous = FULL")
        self._opened.append(queue.conn)
        return queue

    def handle(self) -> Handle:
        if self._way == "one for each":
            return LiteQueueHandle(self._open(), nullcontext())
        return LiteQueueHandle(self._queue, self._lock if self._way == "locked" else nullcontext())

    def connections(self) -> list[sqlite3.Connection]:
        return self._opened


class LiteQueueHandle:
    def __init__(self, queue: Any, lock: Any) -> None:
        self._queue = queue
        self._lock = lock

    def put(self, number: int) -> None:
        data = json.dumps([number, VALUE])
        with self._lock:
            self._queue.put(data)

    def work(self) -> int | None:
        with self._lock:
            message = self._queue.pop()
        if message is None:
            return None
        number: int = json.loads(message.data)[0]
        with self._lock:
            self._queue.done(message.message_id)
        return number


class PersistQueue:
    def __init__(self, path: Path) -> None:
        self._module: Any = import_module("persistqueue")
        self._queue: Any = self._module.SQLiteAckQueue(
            str(path), multithreading=True, timeout=PATIENCE
        )

    def handle(self) -> Handle:
        return self

    def connections(self) -> list[sqlite3.Connection]:
        return [self._queue._getter, self._queue._putter]

    def put(self, number: int) -> None:
        self._queue.put([number, VALUE])

    def work(self) -> int | None:
        try:
            item = self._queue.get(block=False, raw=True)
        except self._module.Empty:
            return None
        self._queue.ack(id=item["pqid"])
        number: int = item["data"][0]
        return number


def open_library(library: str, path: Path, full: bool = False, way: str = "shared") -> Library:
    if library == "huey":
        return Huey(path)
    if library == "litequeue":
        return LiteQueue(path, full=full, way=way)
    return PersistQueue(path)


async def puts(library: str, items: int, callers: int, **options: Any) -> Turn:
    """Put, in so many threads."""
    _note(library, **options)

    async def turn() -> float:
        queue = _open(library, **options)
        shares = [range(first, items, callers) for first in range(callers)]
        handles = [queue.handle() for _ in shares]
        for number in range(WARM_UP):
            handles[0].put(number)

        def put(handle: Handle, share: range) -> None:
            for number in share:
                handle.put(number)

        return _in_threads(put, list(zip(handles, shares, strict=True))) / items

    return turn


async def drain(library: str, items: int, callers: int, **options: Any) -> Turn:
    """Empty a queue, in so many threads or, with one caller, in a loop."""
    _note(library, **options)

    async def turn() -> float:
        queue = _open(library, **options)
        handles = [queue.handle() for _ in range(callers)]
        got: list[int] = []

        def empty(handle: Handle) -> None:
            while (number := handle.work()) is not None:
                got.append(number)

        _fill(queue, handles[0], WARM_UP)
        empty(handles[0])
        got.clear()
        _fill(queue, handles[0], items)
        if callers == 1:
            quiet()
            start = wall_clock()
            empty(handles[0])
            seconds = wall_clock() - start
        else:
            seconds = _in_threads(empty, [(handle,) for handle in handles])
        assert len(got) == items
        return seconds / items

    return turn


async def cycle(library: str, operations: int, **options: Any) -> Turn:
    """Put an item, take it and finish it, one after the other, in a loop."""
    _note(library, **options)

    async def turn() -> float:
        handle = _open(library, **options).handle()

        def use(numbers: range) -> None:
            for number in numbers:
                handle.put(number)
                assert handle.work() == number

        use(range(WARM_UP))
        quiet()
        start = wall_clock()
        use(range(operations))
        return (wall_clock() - start) / operations

    return turn


async def twice(library: str, items: int) -> Turn:
    """How many items two processes that empty one queue both get."""

    async def turn() -> float:
        path = _new_path(library)
        queue = open_library(library, path)
        _fill(queue, queue.handle(), items)
        return await asyncio.to_thread(handed_out_twice, empty_in_process, str(path))

    return turn


def empty_in_process(path: str, start: Barrier) -> list[str]:
    """Empty a queue together with another process; return what this one got."""
    library = Path(path).stem.rpartition("-")[0]
    handle = open_library(library, Path(path)).handle()
    start.wait()
    got: list[str] = []
    while (number := _work_when_possible(handle)) is not None:
        got.append(str(number))
    return got


def _work_when_possible(handle: Handle) -> int | None:
    while True:
        try:
            return handle.work()
        except sqlite3.OperationalError:  # locked, with no regard to the time-out
            sleep(0.001)


_files = count()


def _new_path(library: str) -> Path:
    return own_folder() / f"{library}-{next(_files)}.db"


def _open(library: str, **options: Any) -> Library:
    return open_library(library, _new_path(library), **options)


def _fill(queue: Library, handle: Handle, items: int) -> None:
    """Put items before the clock starts, without waiting for the disk."""
    connections = queue.connections()
    levels = [connection.execute("PRAGMA synchronous").fetchone()[0] for connection in connections]
    for connection in connections:
        connection.execute("PRAGMA synchronous = OFF")
    for number in range(items):
        handle.put(number)
    for connection, level in zip(connections, levels, strict=True):
        connection.execute(f"PRAGMA synchronous = {level}")


def _note(library: str, **options: Any) -> None:
    """Note how the library sets its connections."""
    queue = _open(library, **options)
    for connection in queue.connections():
        FACTS.update(pragmas(connection))


def _in_threads(work: Callable[..., None], arguments: list[tuple[Any, ...]]) -> float:
    """Seconds from the moment when all threads are there to the end of the last one."""
    errors: list[BaseException] = []
    start = threading.Barrier(len(arguments) + 1)

    def run(*args: Any) -> None:
        start.wait()
        try:
            work(*args)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=args) for args in arguments]
    quiet()
    for thread in threads:
        thread.start()
    start.wait()
    began = wall_clock()
    for thread in threads:
        thread.join()
    seconds = wall_clock() - began
    if errors:
        raise errors[0]
    return seconds


WORKLOADS: dict[str, Workload] = {"cycle": cycle, "puts": puts, "drain": drain, "twice": twice}
