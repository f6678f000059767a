"""Show the way of a call through the code: `make walk`.

For `put`, `get` and `ack` of a queue and for `submit` of a command it prints which functions of the
package are called, as an indented list of ``folder/file.function``, and what goes to the store. A
coroutine stands where it is first entered; that it goes on later is not counted again. Work that
the event loop or another thread begins by itself stands at the left, with the name of the thread.

    python tools/walk.py sqlite            the ways on SQLite
    python tools/walk.py --counts          only the numbers, on every store
    python tools/walk.py postgresql submit   one of them

A *trip* is one write to the socket of a server. On SQLite a *statement* is one call of `execute`,
in the file store a *sync* is one `fsync`.
"""

import argparse
import asyncio
import os
import sqlite3
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # for tests.servers

import leasedkeyq  # noqa: E402  # after the path
from leasedkeyq import LeasedKeyQueue, connect  # noqa: E402
from leasedkeyq.lanes import LaneConfig, QueueManagerBuilder  # noqa: E402
from tests.servers.urls import empty_store  # noqa: E402

PACKAGE = str(Path(leasedkeyq.__file__).parent) + os.sep
RESUMED = CO_COROUTINE | CO_GENERATOR | CO_ASYNC_GENERATOR
INDENT = "  "
STORES = ("local", "memory", "yaml", "sqlite", "postgresql", "redis")
"""`local` is `LeasedKeyQueue`, and lanes without a store."""
CALLS = ("put", "get", "ack", "submit")
TRIPS = {"sqlite": "statements", "yaml": "syncs", "postgresql": "trips", "redis": "trips"}
SETTLED = 0.3
"""Seconds after which what follows a command is taken to be over."""


class Step(NamedTuple):
    """A function that was entered."""

    thread: str
    depth: int
    name: str
    file: str


class Walk:
    """Notes the functions of the package that are entered while it records, in every thread."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.trips = 0
        self._recording = False
        self._entered: dict[int, FrameType] = {}
        """Frames that go on later; they are kept, as the number of a frame is used again."""

    def install(self) -> None:
        """Listen in this thread and in those that start from now on."""
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    @contextmanager
    def recording(self) -> Generator[None]:
        """Begin anew, and note what happens inside."""
        self.steps, self.trips = [], 0
        self._recording = True
        try:
            yield
        finally:
            self._recording = False
            self._entered.clear()

    def _note(self, frame: FrameType, event: str, argument: Any) -> None:
        if not self._recording:
            return
        if event == "c_call":
            self.trips += _goes_to_the_disk(argument)
        elif event == "call":
            code = frame.f_code
            if code.co_filename.startswith(PACKAGE):
                if not code.co_name.endswith(("comp>", "genexpr>")):
                    self._enter(frame)
            elif code.co_qualname.endswith(("SocketTransport.write", "SSLProtocol._write_appdata")):
                self.trips += 1

    def _enter(self, frame: FrameType) -> None:
        code = frame.f_code
        if code.co_flags & RESUMED:
            if id(frame) in self._entered:
                return
            self._entered[id(frame)] = frame
        depth = 0
        outer = frame.f_back
        while outer is not None:
            depth += outer.f_code.co_filename.startswith(PACKAGE)
            outer = outer.f_back
        file = code.co_filename.removeprefix(PACKAGE).removesuffix(".py")
        name = code.co_qualname.replace(".<locals>", "")
        thread = threading.current_thread()
        where = "" if thread is threading.main_thread() else thread.name
        self.steps.append(Step(where, depth, f"{file}.{name}", file))

    def lines(self) -> Iterator[str]:
        """The way, as text; steps that repeat at once stand once."""
        last: Step | None = None
        times = 0
        thread = ""
        for step in [*self.steps, None]:
            if step == last:
                times += 1
                continue
            if last is not None:
                if last.thread != thread:
                    thread = last.thread
                    yield f"{INDENT}[{_short(thread) or 'the event loop'}]"
                repeated = f"  x{times}" if times > 1 else ""
                yield f"{INDENT * (last.depth + 2)}{last.name}{repeated}"
            last, times = step, 1

    def counts(self) -> tuple[int, int, int]:
        """Calls, files and trips so far."""
        return len(self.steps), len({step.file for step in self.steps}), self.trips


def _goes_to_the_disk(function: Any) -> bool:
    if function in (os.fsync, os.fdatasync):
        return True
    owner = getattr(function, "__self__", None)
    return isinstance(owner, sqlite3.Connection) and function.__name__ == "execute"


def _short(thread: str) -> str:
    """The name of a thread without the path in it."""
    return " ".join(word for word in thread.split() if "/" not in word)


class Report:
    """Prints what was walked."""

    def __init__(self, walk: Walk, store: str, only_counts: bool) -> None:
        self._walk = walk
        self._store = store
        self._only_counts = only_counts

    def tell(self, call: str, until: str = "") -> None:
        """Print the walk of a call."""
        calls, files, trips = self._walk.counts()
        what = f"{call} on {self._store}{until}"
        unit = TRIPS.get(self._store)
        beyond = f", {trips} {unit}" if unit else ""
        print(f"{what:<34} {calls:>4} calls in {files:>2} files{beyond}")
        if not self._only_counts:
            print("\n".join(self._walk.lines()), end="\n\n")


async def walk_queue(walk: Walk, report: Report, url: str | None, calls: list[str]) -> None:
    """The ways of `put`, `get` and `ack`, each for itself, when all is warm."""
    store = None if url is None else connect(url)
    queue: Any = LeasedKeyQueue[str, Any]() if store is None else store.queue("walked")
    try:
        for number in range(3):  # connections, prepared statements, caches
            await queue.put(f"warm {number}", {"n": number})
            _, _, lease = await queue.get()
            await queue.ack(lease)
        await asyncio.sleep(SETTLED)
        await _walked(walk, report, "put", calls, lambda: queue.put("key", {"n": 1}))
        got = await _walked(walk, report, "get", calls, queue.get)
        await _walked(walk, report, "ack", calls, lambda: queue.ack(got[2]))
    finally:
        await queue.close()
        if store is not None:
            await store.close()


async def _walked(
    walk: Walk, report: Report, name: str, calls: list[str], call: Callable[[], Awaitable[Any]]
) -> Any:
    with walk.recording():
        answer = await call()
    if name in calls:
        report.tell(name)
    await asyncio.sleep(SETTLED)
    return answer


async def walk_lanes(walk: Walk, report: Report, url: str | None) -> None:
    """The way of one command, submitted to a worker that has nothing else to do."""
    builder = QueueManagerBuilder().with_lane("walked", LaneConfig(0, 10), 0)
    manager = (builder if url is None else builder.with_storage(connect(url))).build()

    @manager.command("nothing")
    async def nothing() -> None:
        """Do nothing."""

    await manager.start()
    try:
        for _ in range(3):
            await (await manager.submit("walked", nothing()))
        await asyncio.sleep(SETTLED)
        with walk.recording():
            await (await manager.submit("walked", nothing()))
            report.tell("submit", " until its result")
            await asyncio.sleep(SETTLED)
        calls, files, trips = walk.counts()
        unit = TRIPS.get(report._store)
        print(f"{'  and with what follows':<34} {calls:>4} calls in {files:>2} files", end="")
        print(f", {trips} {unit}" if unit else "")
    finally:
        await manager.shutdown()


def main() -> None:
    """Walk where the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="STORE|CALL", help=", ".join(STORES + CALLS))
    parser.add_argument("--counts", action="store_true", help="only the numbers")
    options = parser.parse_args()
    if unknown := set(options.names) - {*STORES, *CALLS}:
        parser.error(
            f"unknown: {', '.join(sorted(unknown))}; known are {', '.join(STORES + CALLS)}"
        )
    stores = [name for name in STORES if name in options.names] or list(STORES)
    calls = [name for name in CALLS if name in options.names] or list(CALLS)
    walk = Walk()
    walk.install()
    for name in stores:
        report = Report(walk, name, options.counts)
        with tempfile.TemporaryDirectory() as folder:
            Path(folder).chmod(0o755)
            if set(calls) - {"submit"}:
                with _url(name, Path(folder)) as url:
                    asyncio.run(walk_queue(walk, report, url, calls))
            if "submit" in calls:
                with _url(name, Path(folder)) as url:
                    asyncio.run(walk_lanes(walk, report, url))


@contextmanager
def _url(name: str, folder: Path) -> Generator[str | None]:
    """An empty store; None for what needs none."""
    if name in ("local", "memory"):
        yield None if name == "local" else "memory://"
    elif name == "yaml":
        yield f"file://{folder}/queue.yaml"
    else:
        with empty_store(name, folder) as url:
            yield url


if __name__ == "__main__":
    main()
