"""Commands of workflows for tests with processes, and a worker process that runs them.

The worker writes a line for each run of a command to a file: one `write` of a few bytes, which the
writes of other processes do not mix up. With a point as its argument it kills itself there.
"""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any, NamedTuple

from leasedkeyq.lanes import (
    CommandFunction,
    GatherOutcome,
    LaneConfig,
    QueueManager,
    QueueManagerBuilder,
    RetryPolicy,
    current_command,
)

LEASE = 2.0
POINTS = ("before_next", "after_next", "before_record", "after_record", "after_last_record")


class Commands(NamedTuple):
    """The types of commands."""

    first: CommandFunction[[int], list[int]]
    middle: CommandFunction[[list[int]], list[int]]
    last: CommandFunction[[list[int]], int]
    member: CommandFunction[[int], int]
    report: CommandFunction[..., dict[str, Any]]


def build(url: str | None) -> QueueManager:
    retry = RetryPolicy.fixed(3, 0.05)
    config = LaneConfig(0, 8, lease_time=LEASE, max_attempts=1000, retry_policy=retry)
    builder = QueueManagerBuilder().with_lane("a", config, 0).with_lane("b", config, 1)
    if url is not None:
        builder.with_storage(url)
    return builder.with_drain_timeout(60).build()


def register(manager: QueueManager, diary: Path) -> Commands:
    """Register the commands; each run is a line of `diary`."""

    def note(*words: object) -> None:
        line = " ".join(map(str, (*words, current_command().id))) + "\n"
        file = os.open(diary, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)

    @manager.command("first")
    async def first(number: int) -> list[int]:
        await asyncio.sleep(0.005)
        note("first", number)
        return [number]

    @manager.command("middle")
    async def middle(numbers: list[int]) -> list[int]:
        await asyncio.sleep(0.005)
        note("middle", numbers[0])
        return [*numbers, numbers[0] + 1]

    @manager.command("last")
    async def last(numbers: list[int]) -> int:
        await asyncio.sleep(0.005)
        note("last", numbers[0])
        return sum(numbers)

    @manager.command("member")
    async def member(number: int) -> int:
        await asyncio.sleep(0.005)
        note("member", number)
        if number % 10 == 7:
            raise ValueError(f"{number} ends with 7")
        return number * number

    @manager.command("report")
    async def report(outcomes: list[GatherOutcome[int]], name: str) -> dict[str, Any]:
        note("report", name)
        good = [outcome.result for outcome in outcomes if outcome.result is not None]
        return {
            "sum": sum(good),
            "states": "".join(outcome.status[0] for outcome in outcomes),
        }

    return Commands(first, middle, last, member, report)


def die_at(manager: QueueManager, point: str) -> None:
    """Kill this process when it comes to a point between two writes to the store."""
    engine: Any = manager.queue()._engine
    parts: Any = engine._workflow
    moment, _, verb = point.partition("_")
    name = {"next": "put_next", "record": "_record_all", "last_record": "_let_go_on"}[verb]
    plain = getattr(parts, name)

    async def doomed(*args: Any) -> Any:
        done = await plain(*args) if moment == "after" else None
        os.kill(os.getpid(), signal.SIGKILL)
        return done

    setattr(parts, name, doomed)


async def _run(url: str, diary: str, point: str) -> None:
    manager = build(url)
    register(manager, Path(diary))
    if point:
        die_at(manager, point)
    await manager.run()


def begin(url: str, diary: str, point: str) -> None:
    """Run a worker until it is killed, or with a `point` until it kills itself there."""
    asyncio.run(_run(url, diary, point))
