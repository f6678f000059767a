"""Six lanes on one SQLite file, two worker processes, and one of them is killed. Watch it heal.

This process submits commands to six lanes and shows what becomes of them; it runs none. Two worker
processes run them. Some commands fail at first and are retried, one fails for good and ends in the
dead letters, and commands of one customer run one at a time. Half-way through, a worker is
killed with commands in its hands: their leases expire, and the other worker runs them.

On a terminal the picture is live. Elsewhere every step is a line.

    python examples/demo.py [--file jobs.db]
"""

import argparse
import asyncio
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from leasedkeyq.lanes import (
    DEFAULT_LANES,
    Handle,
    LaneConfig,
    QueueManager,
    QueueManagerBuilder,
    RetryPolicy,
    current_command,
)

LEASE = 2.0
CUSTOMERS = ["ada", "bob", "cleo", "dan"]
LANES = [name for name, _, _ in DEFAULT_LANES]


def build(file: str) -> tuple[QueueManager, Any, Any]:
    """The manager, as the producer and the workers have it, and its two types of commands."""
    builder = QueueManagerBuilder()
    retry = RetryPolicy.fixed(2, 0.3)
    for name, priority, most in DEFAULT_LANES:
        config = LaneConfig(1, most, timeout=10, retry_policy=retry).with_lease(LEASE)
        builder.with_lane(name, config, priority)
    manager = builder.with_storage(f"sqlite:///{file}").with_dlq(100).with_drain_timeout(5).build()

    @manager.command("serve")
    async def serve(customer: str, order: int, seconds: float) -> str:
        print("+", flush=True)
        await asyncio.sleep(seconds)
        print("-", flush=True)
        return f"{customer} {order}"

    @manager.command("call the bank")
    async def call_the_bank(account: str, failures: int) -> str:
        await asyncio.sleep(0.05)
        if current_command().attempt <= failures:
            raise ConnectionError(f"the bank is busy ({account})")
        return account

    return manager, serve, call_the_bank


async def work(file: str) -> None:
    """A worker: runs whatever is in the lanes until it is told to end."""
    manager, _, _ = build(file)
    print("ready", flush=True)
    await manager.run()


class Worker:
    """A worker process, and how many commands it has in its hands, by what it prints."""

    def __init__(self, file: str) -> None:
        command = [sys.executable, __file__, "--worker", "--file", file]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.busy = 0
        self.ready = threading.Event()
        self.listener = threading.Thread(target=self.listen)
        self.listener.start()

    def listen(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self.busy += {"+": 1, "-": -1}.get(line.strip(), 0)
                self.ready.set()
        self.ready.set()

    def end(self, how: signal.Signals) -> None:
        if self.process.poll() is None:
            self.process.send_signal(how)
        self.process.wait()
        self.listener.join()


HEIGHT = 17
"""Lines of the picture."""


class Screen:
    """Shows the lanes: as a live picture on a terminal that has room for it, as lines elsewhere."""

    def __init__(self, manager: QueueManager) -> None:
        self.manager = manager
        self.live = sys.stdout.isatty() and shutil.get_terminal_size().lines > HEIGHT
        self.started = time.monotonic()
        self.done = Counter[str]()
        self.submitted = Counter[str]()
        self.news: list[str] = []
        self.drawn = 0

    def say(self, text: str) -> None:
        line = f"{time.monotonic() - self.started:5.1f} s  {text}"
        if self.live:
            self.news = [*self.news[-5:], line]
        else:
            print(line, flush=True)

    async def watch(self) -> None:
        while True:
            if self.live:
                await self.draw()
            await asyncio.sleep(0.1)

    async def draw(self) -> None:
        stats = await self.manager.stats()
        lines = ["", f"  {'lane':<9} {'waiting':>8} {'later':>6} {'running':>8} {'done':>6}"]
        for name, lane in stats.lanes.items():
            done = self.done[name]
            bar = "#" * (20 * done // max(1, self.submitted[name]))
            numbers = f"{lane.pending:>8} {lane.scheduled:>6} {lane.active:>8} {done:>6}"
            lines.append(f"  {name:<9} {numbers}  \x1b[32m{bar:<20}\x1b[0m")
        lines += [f"  {'dead letters':<34} {stats.dead_letters:>6}", ""]
        lines += [f"  {line}" for line in self.news] + [""] * (6 - len(self.news))
        # A line that the terminal wraps would be two, and the next picture would miss its place.
        width = shutil.get_terminal_size().columns - 1
        if self.drawn:
            print(f"\x1b[{self.drawn}A", end="")
        print("".join(f"\x1b[2K{fit(line, width)}\n" for line in lines), end="", flush=True)
        self.drawn = len(lines)


COLOUR = re.compile(r"\x1b\[\d+m")


def fit(line: str, width: int) -> str:
    """A line as it is, or cut if it is wider than that on the screen."""
    plain = COLOUR.sub("", line)
    return line if len(plain) <= width else f"{plain[: width - 3]}..."


async def follow(handle: Handle[Any], screen: Screen) -> Handle[Any]:
    try:
        await handle
    except Exception:
        screen.say(f"given up after {handle.attempt} attempts: {handle.command_type}")
    screen.done[handle.lane] += 1
    return handle


async def submit_all(manager: QueueManager, serve: Any, bank: Any, screen: Screen) -> list[Any]:
    """Orders of four customers in six lanes, and some calls to a bank that is often busy."""
    dice = random.Random(4)
    waiting: list[Awaitable[Handle[Any]]] = []

    async def submit(lane: str, command: Any, key: str | None) -> None:
        handle = await manager.submit(lane, command, key=key)
        screen.submitted[lane] += 1
        waiting.append(asyncio.ensure_future(follow(handle, screen)))

    # All at a time: they share transactions, and all are there before the workers have run many.
    async with asyncio.TaskGroup() as submitting:
        for number in range(150):
            lane = dice.choice(LANES)
            customer = dice.choice(CUSTOMERS)
            command = serve(customer, number, dice.choice([0.02, 0.1, 0.3]))
            # One at a time for each customer in the lane of sessions; elsewhere in any order.
            key = f"{customer} {number % 7}" if lane == "session" else None
            submitting.create_task(submit(lane, command, key))
        for account, failures in (("savings", 1), ("loan", 2), ("closed account", 9)):
            submitting.create_task(submit("control", bank(account, failures), account))
    return waiting


async def kill_one(
    workers: list[Worker], screen: Screen, more: Callable[[], Awaitable[None]]
) -> None:
    """Kill a worker with several commands in its hands."""
    while (done := sum(screen.done.values())) < 30 or workers[0].busy < 3:
        if done == sum(screen.submitted.values()):
            await more()  # a slow machine: all was done before this process could look
        await asyncio.sleep(0.01)
    workers[0].end(signal.SIGKILL)
    screen.say("worker 1 was killed; its commands wait until their leases expire")


async def show(file: str) -> bool:
    manager, serve, bank = build(file)
    screen = Screen(manager)
    workers = [Worker(file), Worker(file)]
    try:
        for number, worker in enumerate(workers, 1):
            await asyncio.to_thread(worker.ready.wait)
            screen.say(f"worker {number} is ready")
        watching = asyncio.create_task(screen.watch())
        waiting = await submit_all(manager, serve, bank, screen)
        screen.say(f"{len(waiting)} commands submitted to {len(LANES)} lanes")

        async def more() -> None:
            for number in range(20):
                handle = await manager.submit("query", serve("eve", number, 2.0))
                screen.submitted["query"] += 1
                waiting.append(asyncio.ensure_future(follow(handle, screen)))

        await kill_one(workers, screen, more)
        handles: list[Handle[Any]] = await asyncio.gather(*waiting)
        watching.cancel()
        if screen.live:
            await screen.draw()
        return await summary(manager, handles)
    finally:
        for worker in workers:
            worker.end(signal.SIGTERM)
        await manager.close()


async def summary(manager: QueueManager, handles: list[Handle[Any]]) -> bool:
    """Count, and say whether it adds up."""
    ends = Counter(handle.status for handle in handles)
    letters = await manager.dlq.list()
    retried = sum(h.attempt > 1 for h in handles if h.command_type == "call the bank")
    healed = sum(h.attempt > 1 for h in handles if h.command_type == "serve")
    left = (await manager.stats()).total_pending
    print(f"\n{len(handles)} commands: {ends['completed']} done, {len(letters)} given up.")
    print(f"{retried} were retried. {healed} were in the hands of the worker that was killed;")
    print("the other one took them over. Nothing was lost.")
    for letter in letters:
        print(f"dead letter: {letter.command_type}: {letter.error}")
    return (
        ends["completed"] + len(letters) == len(handles) >= 153
        and len(letters) == 1
        and healed >= 1
        and retried == 3
        and left == 0
    )


INTRODUCTION = """\
Six lanes on one SQLite file. This process submits commands, two others run
them. One of them will be killed with commands in its hands: watch the other
one take them over.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description="Six lanes, two workers, one of them is killed.")
    parser.add_argument("--file", help="keep the database here")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        asyncio.run(work(options.file))
        return 0
    print(INTRODUCTION)
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.abspath(options.file or Path(folder, "jobs.db"))
        adds_up = asyncio.run(show(file))
    if options.file:
        print(f"the database is {options.file}")
    if not adds_up:
        print("that does not add up", file=sys.stderr)
    return 0 if adds_up else 1


if __name__ == "__main__":
    sys.exit(main())
